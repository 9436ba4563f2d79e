"""The configuration: two TOML files laid over each other, with ${VARIABLES}. Every key is listed in docs/graph-cli.md.

    ~/.config/graph/config.toml     global
    <project>/.graph/config.toml    project; read only when a project is named

Tables merge key by key; arrays and scalars replace. A variable that is not set breaks the configuration, except under
[providers] and [mcp]: there only the entry that needs it is unusable, until the variable is there.
"""

import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from . import paths
from .documents import key_problems, reason_of
from .errors import ConfigError, did_you_mean, type_name

#: Largest configuration file, in bytes; one with a hundred servers has about 20 kB.
MAX_BYTES = 1024 * 1024
#: Shorter values of variables are not treated as secrets: hiding every "1" would hide everything.
SECRET_MIN = 4
#: The same for values that stand in `env` as they are, which are mostly switches such as "debug".
LITERAL_MIN = 8
HIDDEN = "***"

ROLES = ("default", "chat", "planner", "solver", "repair", "judge", "embedder", "use_case_solver")
PROVIDER_TYPES = ("anthropic", "openai", "openai_compat", "bedrock")
RESERVED_SERVERS = ("user", "builtin", "plan")

_VARIABLE = re.compile(r"\$\{([^}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
#: Variables that say where things are; their values stand in every other path and are no secrets.
_PLACES = re.compile(r"HOME|USER|LOGNAME|PWD|PATH|SHELL|LANG|TMPDIR|TEMP|TMP|USERPROFILE|APPDATA|XDG_\w+")
_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
#: Headers whose usual values are no secrets.
_OPEN_HEADERS = ("accept", "content-type", "user-agent", "accept-language")
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")


# The keys ----------------------------------------------------------------------------------------------------------


def _is(kind, words):
    return lambda value: isinstance(value, kind) and not isinstance(value, bool), words


def _number(lowest, words):
    return lambda value: _is((int, float), "")[0](value) and value >= lowest, words


_TEXT = _is(str, "a string")
_TABLE = _is(dict, "a table")
_COUNT = (lambda value: _is(int, "")[0](value) and value >= 1, "an integer of at least 1")
_SECONDS = (lambda value: _number(0, "")[0](value) and value > 0, "a number of seconds above 0")
_PRICE = _number(0, "a number of US dollars per million tokens")
_TEXTS = (lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value), "an array of strings")
_TABLES = (
    lambda value: isinstance(value, list) and all(isinstance(item, dict) for item in value),
    "an array of tables",
)
_TEXT_TABLE = (
    lambda value: isinstance(value, dict) and all(isinstance(item, str) for item in value.values()),
    "a table of strings",
)

_SETTINGS_KEYS = {
    "data_dir": _TEXT,
    "env_file": _TEXT,
    "concurrency": _COUNT,
    "ask_timeout_s": _SECONDS,
    "tool_timeout_s": _SECONDS,
    "connect_timeout_s": _SECONDS,
    "max_agent_iterations": _COUNT,
    "planning_attempts": _COUNT,
    "history_limit": _COUNT,
}
_PROVIDER_KEYS = {
    "type": _TEXT,
    "api_key": _TEXT,
    "base_url": _TEXT,
    "region": _TEXT,
    "profile": _TEXT,
    "timeout_s": _SECONDS,
}
_CHOICE_KEYS = {
    "provider": _TEXT,
    "model": _TEXT,
    "temperature": _number(0, "a number, 0 or more"),
    "max_tokens": _COUNT,
}
_MODEL_KEYS = {**_CHOICE_KEYS, "dimensions": _COUNT, "description": _TEXT, "fallbacks": _TABLES}
_SERVER_KEYS = {
    "command": _TEXT,
    "args": _TEXTS,
    "env": _TEXT_TABLE,
    "cwd": _TEXT,
    "url": _TEXT,
    "headers": _TEXT_TABLE,
    "include_tools": _TEXTS,
    "exclude_tools": _TEXTS,
    "tool_overrides": _TABLE,
    "timeout_s": _SECONDS,
    "connect_timeout_s": _SECONDS,
}
_OVERRIDE_KEYS = {"description": _TEXT, "output_schema": _TABLE, "output_example": (lambda value: True, "")}
_PRICING_KEYS = {"input": _PRICE, "output": _PRICE, "cache_write": _PRICE, "cache_read": _PRICE}
_SECTIONS = {
    "version": (lambda value: value == 1 and value is not True, "1"),
    **dict.fromkeys(
        ("settings", "providers", "models", "mcp", "plans", "tools", "pricing", "storage", "user", "prompts"), _TABLE
    ),
}
#: Sections with fixed keys.
_SECTION_KEYS = {
    "settings": _SETTINGS_KEYS,
    "plans": {"paths": _TEXTS},
    "tools": {"paths": _TEXTS, "packs": _TEXTS},
    "storage": {"backend": _TEXT},
    "user": {"name": _TEXT, "context": _TEXT, "timezone": _TEXT},
    "prompts": {"chat": _TEXT, "workbench": _TEXT},
    "models": {**dict.fromkeys(ROLES, _TABLE), "named": _TABLE},
}
#: Sections of named entries, and the keys of one entry. What an entry must have is checked where layers are merged:
#: a project may complete a global entry.
_ENTRY_KEYS = {"providers": _PROVIDER_KEYS, "mcp": _SERVER_KEYS, "pricing": _PRICING_KEYS}


# What is configured ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """[settings], with defaults. Times are seconds."""

    data_dir: Path
    #: Steps of one plan that may run at the same time, where the plan does not say.
    concurrency: int = 4
    #: How long a question waits for a person: long enough to be away from the desk, short enough to free the run.
    ask_timeout_s: float = 600.0
    #: Limit of one tool call that has no limit of its own.
    tool_timeout_s: float = 120.0
    #: Limit of starting an MCP server: a first `npx` downloads the package.
    connect_timeout_s: float = 30.0
    max_agent_iterations: int = 15
    planning_attempts: int = 2
    history_limit: int = 20


@dataclass(frozen=True)
class Provider:
    """[providers.<name>]: who serves models. timeout_s: limit of one request, in seconds."""

    name: str
    type: str
    api_key: str | None = None
    base_url: str | None = None
    region: str | None = None
    profile: str | None = None
    timeout_s: float = 600.0


@dataclass(frozen=True)
class ModelChoice:
    """[models.<role>] or [models.named.<name>]: a model of a provider; fallbacks are tried when it is overloaded."""

    provider: str
    model: str
    temperature: float | None = None
    max_tokens: int | None = None
    description: str = ""
    dimensions: int | None = None
    fallbacks: tuple = ()


@dataclass(frozen=True)
class Server:
    """[mcp.<name>]: an MCP server, started with `command` or reached at `url`; exactly one of the two is set."""

    name: str
    command: str | None = None
    args: tuple = ()
    env: dict = field(default_factory=dict)
    cwd: str | None = None
    url: str | None = None
    headers: dict = field(default_factory=dict)
    include_tools: tuple = ()
    exclude_tools: tuple = ()
    tool_overrides: dict = field(default_factory=dict)
    timeout_s: float | None = None
    connect_timeout_s: float | None = None


@dataclass(frozen=True)
class Deferred:
    """Why an entry cannot be used: the value at `path` needs `variable`, which is not set."""

    path: str
    variable: str


@dataclass(frozen=True)
class Layer:
    """One configuration file. name: "global" or "project"."""

    path: Path
    exists: bool
    name: str


@dataclass(frozen=True)
class Config:
    """Everything the configuration says. Immutable; loading again gives another one."""

    settings: Settings
    providers: dict
    models: dict
    named_models: frozenset
    mcp: dict
    plan_dirs: tuple
    tool_dirs: tuple
    packs: tuple
    pricing: dict
    storage: str
    user: dict
    prompts: dict
    #: "providers.<name>" or "mcp.<name>" → Deferred.
    deferred: dict
    #: Texts that must not be shown or written down.
    secrets: frozenset
    layers: tuple
    #: Equal fingerprints mean that no file and no variable in use has changed.
    fingerprint: tuple
    tables: dict = field(repr=False)

    @property
    def runs_dir(self):
        """Where run records are kept."""
        return self.settings.data_dir / "runs"

    def usable(self, section):
        """Raise ConfigError when an entry ("mcp.files") needs a variable that is not set; it names both."""
        waiting = self.deferred.get(section)
        if waiting is not None:
            raise ConfigError(
                f"[{section}] cannot be used: {waiting.path} needs the environment variable {waiting.variable},"
                " which is not set",
                variable=waiting.variable,
                path=waiting.path,
            )

    def masked(self):
        """Return the merged tables with secrets as "***"; what waits for a variable still shows its ${NAME}."""
        return _masked(self.tables, (), self.secrets)


# Loading -----------------------------------------------------------------------------------------------------------


def load(project, environ, *, isolated=False):
    """Read the configuration. ConfigError says which file, which key, and what to do.

    project: directory whose .graph/config.toml is laid over the global file, or None. isolated: nothing may depend on
    the working directory; without a project it never does, so relative `paths` entries are dropped then.
    """
    project = None if isolated or project is None else Path(project)
    shared = paths.global_config(environ)
    files = [_File(shared, "global", shared.parent)]
    if project is not None:
        files.append(_File(paths.project_config(project), "project", project))
    merged, bases = {}, {}
    for file in files:
        _merge(merged, file.table)
        bases.update(file.bases())
    environ, env_stamp = _with_env_file(merged, bases, environ)
    expansion = _Expansion(environ)
    tables = expansion.expand(merged, ())
    settings = _settings(tables.get("settings", {}), bases, environ)
    storage = _storage(tables, environ)
    stamp = (*((str(file.path), file.stamp) for file in files), env_stamp, expansion.stamp(), storage)
    return Config(
        settings=settings,
        providers={name: _provider(name, entry) for name, entry in tables.get("providers", {}).items()},
        models=_models(tables),
        named_models=frozenset(tables.get("models", {}).get("named", {})),
        mcp={name: _server(name, entry, bases, environ) for name, entry in tables.get("mcp", {}).items()},
        plan_dirs=_directories(tables.get("plans", {}).get("paths"), "plans", project, environ),
        tool_dirs=_directories(tables.get("tools", {}).get("paths"), "tools", project, environ),
        packs=tuple(tables.get("tools", {}).get("packs", ())),
        pricing=_pricing(tables.get("pricing", {})),
        storage=storage,
        user=tables.get("user", {}),
        prompts=tables.get("prompts", {}),
        deferred=expansion.deferred,
        secrets=frozenset(expansion.secrets | _literal_secrets(tables)),
        layers=tuple(Layer(file.path, file.exists, file.name) for file in files),
        fingerprint=stamp,
        tables=tables,
    )


class _File:
    """One configuration file, read and checked by itself so that errors name it."""

    def __init__(self, path, name, base):
        self.path, self.name, self.base = path, name, base
        self.exists, self.stamp, self.table = False, None, {}
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {reason_of(error)}", path=str(path)) from None
        self.exists, self.stamp = True, hashlib.sha256(data).hexdigest()
        self.table = self._parse(data)
        self._check()

    def _parse(self, data):
        import tomllib  # only where there is a file: it takes a tenth of the time that everything else here takes

        if len(data) > MAX_BYTES:
            raise ConfigError(f"{self.path} has more than {MAX_BYTES:,} bytes", path=str(self.path))
        try:
            return tomllib.loads(data.decode("utf-8-sig").replace("\r\n", "\n"))
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise ConfigError(f"{self.path} is not UTF-8 in line {line}", path=str(self.path), line=line) from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{self.path} is not TOML: {error}", path=str(self.path)) from None
        except (RecursionError, ValueError):
            raise ConfigError(f"{self.path} is nested too deeply or has a number that is too long") from None

    def _check(self):
        problems = list(_table_problems(self.table))
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise ConfigError(f"{self.path}: {problems[0]}{more}", path=str(self.path), problems=problems)

    def bases(self):
        """Return where relative paths of this file start, by the address of their keys."""
        addresses = [("settings", "data_dir"), ("settings", "env_file")]
        addresses += [("mcp", name, "cwd") for name in self.table.get("mcp", {})]
        return {address: self.base for address in addresses if _at(self.table, address) is not None}


def _table_problems(table):
    """Yield a sentence for every unknown key and wrong type of one file."""
    yield from map(str, key_problems(table, _SECTIONS, (), "", "the configuration"))
    for section, keys in _SECTION_KEYS.items():
        if isinstance(table.get(section), dict):
            yield from map(str, key_problems(table[section], keys, (), "", f"[{section}]"))
    for section, keys in _ENTRY_KEYS.items():
        for name, entry in _entries(table, section):
            yield from _entry_problems(entry, keys, f"[{section}.{name}]")
    for name, entry in _entries(table, "mcp"):
        for tool, override in _entries(entry, "tool_overrides") if isinstance(entry, dict) else ():
            yield from _entry_problems(override, _OVERRIDE_KEYS, f"[mcp.{name}.tool_overrides.{tool}]")
    models = table.get("models")
    if isinstance(models, dict):
        yield from _model_problems(models)


def _model_problems(models):
    named = [(f"named.{name}", entry) for name, entry in _entries(models, "named")]
    for name, entry in [(role, models[role]) for role in ROLES if isinstance(models.get(role), dict)] + named:
        yield from _entry_problems(entry, _MODEL_KEYS, f"[models.{name}]")
        fallbacks = entry.get("fallbacks") if isinstance(entry, dict) else None
        for index, fallback in enumerate(fallbacks if isinstance(fallbacks, list) else ()):
            yield from _entry_problems(fallback, _CHOICE_KEYS, f"fallback {index + 1} of [models.{name}]")
    for name, _ in _entries(models, "named"):
        if name in ROLES:
            yield f"[models.named.{name}]: {name!r} is the name of a role; choose another one"


def _entries(table, section):
    """Return the (name, value) pairs of a table of named entries; nothing when it is no table."""
    entries = table.get(section)
    return list(entries.items()) if isinstance(entries, dict) else []


def _entry_problems(entry, keys, label):
    if not isinstance(entry, dict):
        return [f"{label} must be a table, not {type_name(entry)}"]
    return list(map(str, key_problems(entry, keys, (), "", label)))


def _merge(into, table):
    for key, value in table.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = _copied(value)


def _copied(value):
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value


def _at(table, address):
    for key in address:
        table = table.get(key) if isinstance(table, dict) else None
    return table


# Variables ---------------------------------------------------------------------------------------------------------


class _Expansion:
    """Replaces ${NAME} in every string value and remembers what it used."""

    def __init__(self, environ):
        self.environ = environ
        self.used = {}
        self.deferred = {}
        self.secrets = set()

    def expand(self, value, address):
        if isinstance(value, str):
            return _VARIABLE.sub(lambda match: self.value_of(match, address), value) if "${" in value else value
        if isinstance(value, dict):
            return {key: self.expand(item, (*address, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self.expand(item, (*address, str(index))) for index, item in enumerate(value)]
        return value

    def value_of(self, match, address):
        name, closing = match.groups()
        place = ".".join(address)
        if not closing:
            raise ConfigError(f"{place}: '${{' is never closed; write ${{NAME}}", path=place)
        if not _NAME.match(name):
            raise ConfigError(f"{place}: {match[0]} is no environment variable", path=place)
        value = self.used[name] = self.environ.get(name)
        if value is None:
            return self.unset(match[0], name, address, place)
        if hides(name, value):
            self.secrets.add(value)
        return value

    def unset(self, text, name, address, place):
        if address[0] in ("providers", "mcp") and len(address) > 2:
            self.deferred.setdefault(".".join(address[:2]), Deferred(place, name))
            return text
        raise ConfigError(f"{place} needs the environment variable {name}, which is not set", variable=name, path=place)

    def stamp(self):
        values = repr(sorted(self.used.items(), key=lambda item: item[0]))
        return hashlib.sha256(values.encode("utf-8", "surrogatepass")).hexdigest()


def _with_env_file(merged, bases, environ):
    """Return (environment with the variables of [settings] env_file below it, stamp of that file)."""
    text = _at(merged, ("settings", "env_file"))
    if text is None:
        return environ, None
    text = _Expansion(environ).expand(text, ("settings", "env_file"))
    path = paths.expand(text, bases["settings", "env_file"], environ)
    try:
        data = path.read_bytes()
        lines = data.decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"settings.env_file: {path} cannot be read: {reason}", path="settings.env_file") from None
    variables = dict(filter(None, (_variable(line, path, number) for number, line in enumerate(lines, 1))))
    return {**variables, **environ}, hashlib.sha256(data).hexdigest()


def _variable(line, path, number):
    """Return (name, value) of one line of an env file, None for an empty one or a comment."""
    line = line.strip().removeprefix("export ").strip()
    if not line or line.startswith("#"):
        return None
    name, separator, value = line.partition("=")
    name, value = name.strip(), value.strip()
    if not separator or not _NAME.match(name):
        raise ConfigError(f"{path}: line {number} is not NAME=value", path=str(path), line=number)
    is_quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "'\""
    return name, value[1:-1] if is_quoted else value


# Sections ----------------------------------------------------------------------------------------------------------


def _settings(table, bases, environ):
    table = {key: value for key, value in table.items() if key != "env_file"}
    if "data_dir" in table:
        table["data_dir"] = paths.expand(table["data_dir"], bases["settings", "data_dir"], environ)
    return Settings(**{"data_dir": paths.data_home(environ), **table})


def _provider(name, entry):
    if "type" not in entry:
        raise ConfigError(f"[providers.{name}] has no type; known: {', '.join(PROVIDER_TYPES)}")
    if entry["type"] not in PROVIDER_TYPES:
        hint = did_you_mean(entry["type"], PROVIDER_TYPES)
        raise ConfigError(f"[providers.{name}]: there is no provider type {entry['type']!r}; {hint}")
    return Provider(name=name, **entry)


def _models(tables):
    models = dict(tables.get("models", {}))
    named = models.pop("named", {})
    found = {role: _choice(entry, f"[models.{role}]", tables) for role, entry in models.items()}
    found.update((name, _choice(entry, f"[models.named.{name}]", tables)) for name, entry in named.items())
    return found


def _choice(entry, label, tables):
    for key in ("provider", "model"):
        if key not in entry:
            raise ConfigError(f"{label} has no {key}")
    if entry["provider"] not in tables.get("providers", {}):
        known = did_you_mean(entry["provider"], tables.get("providers", {})) or "no providers are configured"
        raise ConfigError(f"{label}: there is no provider {entry['provider']!r}; {known}")
    fallbacks = tuple(_choice(each, f"a fallback of {label}", tables) for each in entry.get("fallbacks", ()))
    return ModelChoice(**{**entry, "fallbacks": fallbacks})


def _server(name, entry, bases, environ):
    if not paths.IDENTIFIER.match(name) or "__" in name:
        raise ConfigError(f"[mcp.{name}]: a server's name is made of letters, digits, - and single _")
    if name in RESERVED_SERVERS:
        raise ConfigError(f"[mcp.{name}]: {name}__ is the prefix of other tools; choose another name")
    if ("command" in entry) == ("url" in entry):
        raise ConfigError(f"[mcp.{name}] needs either a command or a url")
    entry = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    if "cwd" in entry:
        entry["cwd"] = str(paths.expand(entry["cwd"], bases["mcp", name, "cwd"], environ))
    return Server(name=name, **entry)


def _directories(entries, kind, project, environ):
    """Return the directories of [plans] or [tools] paths. Relative ones need a project and are dropped without."""
    if entries is None:
        start = (project / ".graph" / kind,) if project else ()
        return (*start, paths.config_home(environ) / "graph" / kind)
    found = []
    for entry in entries:
        is_absolute = os.path.isabs(entry) or entry == "~" or entry.startswith("~/")
        if project is not None or is_absolute:
            found.append(paths.expand(entry, project or "/", environ))
    return tuple(found)


def _pricing(tables):
    for model, price in tables.items():
        for key in ("input", "output"):
            if key not in price:
                raise ConfigError(f'[pricing."{model}"] has no {key}')
    return tables


def _storage(tables, environ):
    value = environ.get("GRAPH_STORAGE") or tables.get("storage", {}).get("backend", "file")
    if value not in ("file", "memory"):
        raise ConfigError(f"storage is {value!r}; it must be file or memory (GRAPH_STORAGE or storage.backend)")
    return value


# Secrets -----------------------------------------------------------------------------------------------------------


def hides(name, value):
    """Say whether the value of a variable is kept out of records: long enough to be told apart, and not a place."""
    return len(value) >= SECRET_MIN and not _PLACES.fullmatch(name)


def tells_a_secret(name):
    """Say whether the name of a variable or key says that its value is a secret."""
    return _SECRET_NAME.search(name) is not None


def header_secrets(headers):
    """Return the values that headers hold and no record may: all of those that are not about the kind of content."""
    values = {value for name, value in headers.items() if name.lower() not in _OPEN_HEADERS}
    return values | {value.partition(" ")[2] for value in values}  # "Bearer TOKEN": the token alone as well


def _literal_secrets(tables):
    """Return the secrets that stand in the files as they are."""
    found = {provider.get("api_key", "") for provider in tables.get("providers", {}).values()}
    for server in tables.get("mcp", {}).values():
        found |= header_secrets(server.get("headers", {}))
        for name, value in server.get("env", {}).items():
            if len(value) >= LITERAL_MIN or tells_a_secret(name):
                found.add(value)
    return {value for value in found if len(value) >= SECRET_MIN and "${" not in value}


def _masked(value, address, secrets):
    if isinstance(value, dict):
        return {key: _masked(item, (*address, key), secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, address, secrets) for item in value]
    if not isinstance(value, str):
        return value
    if "${" in value and not any(secret in value for secret in secrets):
        return value
    is_secret = address[-1] == "api_key" or any(secret in value for secret in secrets)
    return HIDDEN if is_secret else _USERINFO.sub(HIDDEN, value)


# Writing -----------------------------------------------------------------------------------------------------------


def template(global_):
    """Return the text `config init` writes: every section explained, everything but defaults commented out."""
    plans = "~/.config/graph/plans" if global_ else "./.graph/plans"
    return _TEMPLATE.replace("PLANS", plans).replace("TOOLS", plans.replace("plans", "tools"))


_TEMPLATE = """\
# Configuration of graph. Every key is explained in docs/graph-cli.md.
# ${NAME} in a value is replaced from the environment.

# [settings]
# concurrency = 4             # steps of one plan that run at the same time
# tool_timeout_s = 120        # limit of one tool call
# env_file = "~/.config/graph/env"    # NAME=value lines, read for ${NAME}; the environment wins

# [plans]
# paths = ["PLANS"]           # replaces the default list

# [tools]
# paths = ["TOOLS"]
# packs = ["git"]             # besides data and llm, which are always on

# [mcp.files]
# command = "npx"
# args = ["-y", "@modelcontextprotocol/server-filesystem", "."]

# [mcp.tracker]
# url = "https://tracker.example/mcp"
# headers = { Authorization = "Bearer ${TRACKER_TOKEN}" }

# [providers.anthropic]
# type = "anthropic"
# api_key = "${ANTHROPIC_API_KEY}"

# [models.default]
# provider = "anthropic"
# model = "the model's id"

# [pricing."the model's id"]  # US dollars per million tokens
# input = 3.0
# output = 15.0
"""
