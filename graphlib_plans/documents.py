"""Plan documents: reading files, their shape, and the catalog of a set of directories.

A document is a plain JSON object; a `Plan` is the same thing with names. JSON files are read and written, TOML files
are read, YAML files too where PyYAML is installed. Whatever a file contains, the result is a document or a
`DocumentError`.

This module knows the *shape* of a plan (keys and types). What a plan *means* (ids, references, gates) is in validation.
"""

import datetime
import functools
import json
import math
import os
import re
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

from .errors import DocumentError, InvalidPlan, PlanError, Problem, UnknownPlan
from .errors import did_you_mean, pointer, shorten, type_name

#: The steps the executor evaluates itself, in the order they are listed.
CONTROL_STEPS = ("agent", "ask", "exit", "decide", "filter", "map", "reduce")
#: First names of references that no step may be called.
RESERVED_ROOTS = ("input", "item", "index", "accumulator", "length")
#: Tool names that are written without a source.
BARE_TOOLS = (*CONTROL_STEPS, "plan_and_execute")
#: Version of the file format.
FORMAT_VERSION = 1

#: Deepest nesting of a value. Plans and tool results in use stay below 20; every walk here recurses, and Python's own
#: limit of 1,000 frames must never be what stops it.
MAX_DEPTH = 100
#: Most values in one document, aliases expanded; a YAML alias bomb of a few lines reaches billions.
MAX_VALUES = 1_000_000
#: Largest plan file, in bytes; a plan of 1,000 steps has about 200 kB.
MAX_FILE_BYTES = 16 * 1024 * 1024
#: Nanoseconds in which a file system may give two writes the same time: twice the 10 ms of Linux's slowest tick.
TICK_NS = 20_000_000

#: File formats by suffix, in the order in which they win inside one directory.
FORMATS = {".json": "json", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}

#: Other spellings that are accepted in files and written back as the name on the right.
_STEP_SPELLING = {"tool_name": "tool", "toolName": "tool"}
_SOLVER_SPELLING = {"queryToAnswer": "query_to_answer", "systemPrompt": "system_prompt"}
_INPUT_SPELLING = {
    "agent": {"systemPrompt": "system_prompt", "maxIterations": "max_iterations", "outputSchema": "output_schema"},
    "ask": {"outputSchema": "output_schema", "whenUnanswered": "when_unanswered"},
}
#: Which keys of which control step's input hold a body.
_BODY_KEYS = {"decide": ("then", "else"), "map": ("do",), "reduce": ("do",)}


# Values ------------------------------------------------------------------------------------------------------------


def read_json(text, what="JSON"):
    """Parse JSON strictly and return the value.

    text: str or UTF-8 bytes, a leading byte order mark is skipped. what: how the text is called in errors.
    Integers keep every digit up to the 4,300 Python converts; NaN, Infinity, numbers beyond the range of a double,
    and nesting beyond MAX_DEPTH are refused. Of repeated keys the last one counts. DocumentError with line and column.
    """
    return _read_json(text, what, None)


_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL | re.IGNORECASE)


def find_json(text):
    """Return the JSON value in a model's words: all of them, a fenced block, or the outermost braces; None for none."""
    for candidate in (text, *_FENCE.findall(text), text[text.find("{") : text.rfind("}") + 1]):
        try:
            return read_json(candidate)
        except DocumentError:
            continue
    return None


def _read_json(text, what, pairs):
    text = _decode(text, what)
    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_float=_finite, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise _syntax_error(what, error.msg, error.lineno, error.colno) from None
    except RecursionError:
        raise DocumentError(f"{what} is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise DocumentError(f"{what} cannot be read: {_digit_limit(error)}") from None
    if text.count("[") + text.count("{") > MAX_DEPTH:
        measure(value, what)
    return value


def _decode(text, what):
    if isinstance(text, bytes):
        try:
            return text.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = text.count(b"\n", 0, error.start) + 1
            message = f"{what} is not UTF-8: byte {text[error.start]:#04x} in line {line}"
            raise DocumentError(message, line=line) from None
    return text.removeprefix("\ufeff")


def _finite(text):
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {shorten(text, 40)} is too large")
    return number


def _refuse_constant(text):
    raise ValueError(f"{text} is not JSON")


def _digit_limit(error):
    text = str(error)
    return "it has an integer of more than 4300 digits" if "integer string conversion" in text else text


def _syntax_error(what, reason, line, column):
    message = f"{what} is not well formed: {reason} (line {line}, column {column})"
    return DocumentError(message, line=line, column=column)


def measure(value, what):
    """Refuse a value that is nested too deeply or has too many parts, with a DocumentError. Does not recurse."""
    level, depth, count = [value], 0, 0
    while level:
        containers = [part for part in level if isinstance(part, (dict, list))]
        if containers and depth >= MAX_DEPTH:
            raise DocumentError(f"{what} is nested deeper than {MAX_DEPTH} levels")
        level, depth = [], depth + 1
        for part in containers:
            level.extend(part.values() if isinstance(part, dict) else part)
            if count + len(level) > MAX_VALUES:
                raise DocumentError(f"{what} has more than {MAX_VALUES:,} values")
        count += len(level)


_SURROGATE = re.compile("[\ud800-\udfff]")


def to_json(value):
    """Write a value as compact JSON that can always be encoded as UTF-8. ValueError for NaN and Infinity."""
    return _encodable(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def pretty_json(value):
    """Write a value as JSON indented by two spaces, keys in the order they have. ValueError for NaN and Infinity."""
    return _encodable(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2))


def _encodable(text):
    # A lone surrogate can be parsed from an escape but not encoded; it goes back to being an escape.
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def to_text(document):
    """Return the text of a document's file: indented JSON, keys in the author's order, a newline at the end."""
    return pretty_json(document) + "\n"


# Files -------------------------------------------------------------------------------------------------------------


def read_document(text, form, path=""):
    """Parse the text of a plan file and return the document with its keys in the written spelling.

    form: "json", "toml" or "yaml". path: named in errors. Repeated keys are refused, because one of them would be lost.
    Nothing but readability is checked: see shape_problems. DocumentError with line and column where there are any.
    """
    what = str(path) or f"the {form.upper()} text"
    try:
        document = _PARSERS[form](text, what)
    except DocumentError as error:
        if path:
            error.details["path"] = str(path)
        raise
    if not isinstance(document, dict):
        raise DocumentError(f"{what} holds {type_name(document)}, and a plan is an object", path=str(path))
    return normalise(document)


def _parse_json(text, what):
    return _read_json(text, what, lambda pairs: _unique(pairs, what))


def _unique(pairs, what):
    value = dict(pairs)
    if len(value) < len(pairs):
        seen = set()
        key = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise DocumentError(f"{what} has the key {key!r} twice in one object")
    return value


def _parse_toml(text, what):
    import tomllib  # only where there is a TOML plan, as for YAML

    text = _decode(text, what).replace("\r\n", "\n")
    try:
        value = tomllib.loads(text, parse_float=_finite)
    except tomllib.TOMLDecodeError as error:
        reason, _, place = str(error).rpartition(" (at ")
        numbers = re.findall(r"\d+", place)
        at_end = (text.count("\n") + 1, len(text) - text.rfind("\n"))
        raise _syntax_error(what, reason, *(map(int, numbers) if numbers else at_end)) from None
    except RecursionError:
        raise DocumentError(f"{what} is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise DocumentError(f"{what} cannot be read: {_digit_limit(error)}") from None
    measure(value, what)
    return _plain(value, what)


def _parse_yaml(text, what):
    try:
        import yaml  # only where there is a YAML plan: it takes longer to load than everything else here
    except ImportError:
        message = f"{what} cannot be read: YAML plans need PyYAML, which is not installed"
        raise DocumentError(message) from None
    try:
        value = yaml.load(_decode(text, what), Loader=_yaml_loader(yaml))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise _syntax_error(what, error.problem or "unreadable", line, column) from None
    except yaml.YAMLError as error:
        raise DocumentError(f"{what} is not well formed: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise DocumentError(f"{what} is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise DocumentError(f"{what} cannot be read: {_digit_limit(error)}") from None
    measure(value, what)
    return _plain(value, what)


_PARSERS = {"json": _parse_json, "toml": _parse_toml, "yaml": _parse_yaml}


def _plain(value, what):
    """Return a parsed value as JSON: dates become their ISO text; numbers that are not finite are refused."""
    if isinstance(value, dict):
        return {key: _plain(item, what) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, what) for item in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        raise DocumentError(f"{what} has the number {value}, which JSON does not know")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise DocumentError(f"{what} has a {type(value).__name__}, which JSON does not know")


@functools.cache
def _yaml_loader(yaml):
    """Return the loader for the YAML 1.2 core schema.

    PyYAML's own is YAML 1.1, where an unquoted `no` is false, `012` is ten, `12:30` is 750 and a date is no text.
    """
    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {}

    for tag, pattern, first in (
        ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
        ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
        ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
        ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
        ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
        ("merge", r"<<", "<"),
    ):
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"(?:{pattern})\Z"), list(first))

    def construct_int(loader, node):
        text = loader.construct_scalar(node)
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))

    def construct_mapping(loader, node):
        mapping = {}
        yield mapping
        keys = [key for key, _ in node.value]
        for key in keys:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a plain text", key.start_mark)
        written = set()
        for key in keys:
            if key.value in written:
                reason = f"the key {key.value!r} is there twice"
                raise yaml.constructor.ConstructorError(None, None, reason, key.start_mark)
            written.add(key.value)
        loader.flatten_mapping(node)  # what "<<" merges in comes first, so that written keys win
        for key, item in node.value:
            mapping[key.value] = loader.construct_object(item, deep=True)

    Loader.add_constructor("tag:yaml.org,2002:int", construct_int)
    Loader.add_constructor("tag:yaml.org,2002:map", construct_mapping)
    return Loader


def read_file(path):
    """Read a plan file and return its document, format chosen by suffix. DocumentError, with `path` in its details."""
    path = Path(path)
    form = FORMATS.get(path.suffix)
    if form is None:
        raise DocumentError(f"{path} is no plan file: its name must end in {', '.join(FORMATS)}", path=str(path))
    return read_document(_read_bytes(path), form, path)


def _read_bytes(path):
    try:
        # A named pipe or device among the plans would block for ever.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise DocumentError(f"{path} is not a regular file", path=str(path))
        with open(path, "rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise DocumentError(f"{path} cannot be read: {reason_of(error)}", path=str(path)) from None
    if len(content) > MAX_FILE_BYTES:
        raise DocumentError(f"{path} is larger than {MAX_FILE_BYTES // 1024 // 1024} MiB", path=str(path))
    return content


def reason_of(error):
    """Return what an OSError says without its number and path."""
    return getattr(error, "strerror", None) or str(error)


# Spelling ----------------------------------------------------------------------------------------------------------


def normalise(document):
    """Return the document with keys in the spelling that is written; parts of the wrong shape stay as they are."""
    document = dict(document)
    if isinstance(document.get("steps"), list):
        document["steps"] = [normalise_call(step) for step in document["steps"]]
    if isinstance(document.get("solver"), dict):
        document["solver"] = _respell(document["solver"], _SOLVER_SPELLING)
    return document


def normalise_call(call):
    """Return one step or body call in the spelling that is written, bodies included."""
    if not isinstance(call, dict):
        return call
    call = _respell(call, _STEP_SPELLING)
    if isinstance(call.get("input"), dict):
        call["input"] = normalise_input(call.get("tool"), call["input"])
    return call


def normalise_input(tool, arguments):
    """Return a step's input in the spelling that is written. Only keys of control steps are ever renamed."""
    if not isinstance(tool, str) or tool not in CONTROL_STEPS:
        return arguments
    arguments = _respell(arguments, _INPUT_SPELLING.get(tool, {}))
    for key in _BODY_KEYS.get(tool, ()):
        body = arguments.get(key)
        if isinstance(body, list):
            arguments[key] = [normalise_call(step) for step in body]
        elif isinstance(body, dict):
            arguments[key] = normalise_call(body)
    return arguments


def _respell(mapping, spelling):
    """Rename keys in place of order; a key whose written spelling is there too is left for shape_problems to refuse."""
    return {
        spelling[key] if key in spelling and spelling[key] not in mapping else key: value
        for key, value in mapping.items()
    }


# Shape -------------------------------------------------------------------------------------------------------------


def _is_text_list(value):
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_seconds(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _is_wait(value):
    return value == 0 and not isinstance(value, bool) or _is_seconds(value)


_TEXT = (lambda value: isinstance(value, str), "a string")
_TEXT_LIST = (_is_text_list, "a list of strings")
_OBJECT = (lambda value: isinstance(value, dict), "an object")
_LIST = (lambda value: isinstance(value, list), "a list")
_FLAG = (lambda value: isinstance(value, bool), "true or false")
_COUNT = (_is_count, "an integer of at least 1")
_SECONDS = (_is_seconds, "a number of seconds above 0")
_WAIT = (_is_wait, "a number of seconds, 0 or more")
_ANY = (lambda value: True, "")

#: key → (test of its value, what the value must be). These tables are the file format.
PLAN_KEYS = {
    "version": (lambda value: isinstance(value, int) and not isinstance(value, bool), "an integer"),
    "identifier": _TEXT,
    "name": _TEXT,
    "description": _TEXT,
    "exemplars": _TEXT_LIST,
    "requires_servers": _TEXT_LIST,
    "input_schema": _OBJECT,
    "output_schema": _OBJECT,
    "parallel": _FLAG,
    "concurrency": _COUNT,
    "steps": _LIST,
    "solver": _OBJECT,
    "output": _OBJECT,
}
PLAN_REQUIRED = ("identifier", "name", "description", "steps")
#: What a body call may say; steps of a body have an id besides, steps of a plan an `after` as well.
CALL_KEYS = {
    "tool": _TEXT,
    "input": _OBJECT,
    "reasoning": _TEXT,
    "retry": _OBJECT,
    "timeout_s": _SECONDS,
    "on_error": _ANY,
}
CALL_REQUIRED = ("tool", "input")
BODY_STEP_KEYS = {"id": _TEXT, **CALL_KEYS}
STEP_KEYS = {**BODY_STEP_KEYS, "after": _TEXT_LIST}
STEP_REQUIRED = ("id", "tool", "input")
RETRY_KEYS = {"attempts": _COUNT, "backoff_s": _WAIT}
SOLVER_KEYS = {"query_to_answer": _TEXT, "system_prompt": _TEXT, "data": _OBJECT}


def shape_problems(document):
    """Return what keeps a document from being read as a Plan: unknown keys, missing keys, wrong types."""
    version = document.get("version", FORMAT_VERSION)
    if isinstance(version, int) and not isinstance(version, bool) and version != FORMAT_VERSION:
        text = f"the plan has file format version {version}, and this program reads version {FORMAT_VERSION}"
        hint = "use a program that knows this version, or write the plan in this format"
        return [Problem("/version", "version_unsupported", text, hint)]
    problems = key_problems(document, PLAN_KEYS, PLAN_REQUIRED, "", "the plan")
    if isinstance(document.get("steps"), list):
        for index, step in enumerate(document["steps"]):
            place = pointer("steps", index)
            problems += call_problems(step, STEP_KEYS, STEP_REQUIRED, place, step_label(step, index))
    if isinstance(document.get("solver"), dict):
        problems += key_problems(document["solver"], SOLVER_KEYS, (), "/solver", "solver")
    return problems


def step_label(step, index):
    """Return how a step is called in sentences: by its id, else by its number."""
    identifier = step.get("id") if isinstance(step, dict) else None
    return f"step {shorten(identifier, 80)!r}" if isinstance(identifier, str) and identifier else f"step {index + 1}"


def call_problems(call, keys, required, place, label):
    """Return the shape problems of one step or body call."""
    if not isinstance(call, dict):
        return [Problem(place, "wrong_type", f"{label} must be an object, not {type_name(call)}")]
    problems = key_problems(call, keys, required, place, label)
    if isinstance(call.get("retry"), dict):
        problems += key_problems(call["retry"], RETRY_KEYS, (), place + "/retry", f"retry of {label}")
    return problems


def key_problems(mapping, keys, required, place, label):
    """Return unknown keys, missing keys and values of the wrong type of one object."""
    problems = []
    for key, value in mapping.items():
        where = place + pointer(key)
        if key not in keys:
            text = f"{label} has the unknown key {shorten(key, 80)!r}"
            problems.append(Problem(where, "unknown_key", text, did_you_mean(key, keys)))
        elif not keys[key][0](value):
            text = f"{key} of {label} must be {keys[key][1]}"
            got = type_name(value)
            text += f", not {got}" if got != keys[key][1] else ""
            problems.append(Problem(where, "wrong_type", text))
    for key in required:
        if key not in mapping:
            problems.append(Problem(place, "missing_key", f"{label} has no {key!r}"))
    return problems


# Plans -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Retry:
    """attempts: tries in total. backoff_s: wait before the second try, in seconds; it doubles from try to try."""

    attempts: int = 1
    backoff_s: float = 1.0


@dataclass(frozen=True)
class Call:
    """One tool call without an id: the body of a branch, a map or a reduce."""

    tool: str
    input: dict
    reasoning: str = ""
    retry: Retry = Retry()
    #: Limit of each attempt, in seconds.
    timeout_s: float | None = None
    #: "fail", "continue" (the result is {"error": message}), or any other value: the result, templates rendered.
    on_error: object = "fail"


@dataclass(frozen=True)
class Step(Call):
    """One step: a call with an id, and at top level the ids of steps it waits for besides those it refers to."""

    id: str = ""
    after: tuple = ()


@dataclass(frozen=True)
class Plan:
    """A document whose shape is right; the meaning of every field is in docs/plan-format.md.

    `document` is what it was made from and `path` where that stands ("" for none). Treat both as read-only.
    """

    identifier: str
    name: str
    description: str
    steps: tuple
    exemplars: tuple = ()
    requires_servers: tuple = ()
    input_schema: dict | None = None
    output_schema: dict | None = None
    solver: dict | None = None
    output: dict | None = None
    parallel: bool = False
    concurrency: int = 4
    document: dict = field(default_factory=dict, repr=False, compare=False)
    path: str = ""

    @property
    def finish(self):
        """How the plan ends: "output", "solver" or "silent"."""
        return "output" if self.output is not None else "solver" if self.solver is not None else "silent"


def to_plan(document, path=""):
    """Return the Plan of a document. InvalidPlan when its shape is wrong; nothing else is checked."""
    problems = shape_problems(document)
    if problems:
        raise InvalidPlan.of(problems)
    fields = {key: value for key, value in document.items() if key not in ("version", "steps")}
    for key in ("exemplars", "requires_servers"):
        fields[key] = tuple(fields.get(key, ()))
    return Plan(**fields, steps=tuple(map(_to_step, document["steps"])), document=document, path=str(path))


def _to_step(raw):
    return Step(**{**_call_fields(raw), "after": tuple(raw.get("after", ()))})


def _call_fields(raw):
    return {**raw, "retry": Retry(**raw["retry"])} if "retry" in raw else raw


def parse_body(raw):
    """Return a body as a Call (an object was written) or as a tuple of Steps (a list was). InvalidPlan."""
    problems = body_problems(raw, "", "the body")
    if problems:
        raise InvalidPlan.of(problems)
    return Call(**_call_fields(raw)) if isinstance(raw, dict) else tuple(map(_to_step, raw))


def body_problems(raw, place, label):
    """Return what is wrong with the shape of a body, every problem under the code body_shape."""
    if isinstance(raw, dict):
        found = call_problems(raw, CALL_KEYS, CALL_REQUIRED, place, label)
    elif isinstance(raw, list) and raw:
        found = [
            problem
            for index, step in enumerate(raw)
            for problem in call_problems(
                step, BODY_STEP_KEYS, STEP_REQUIRED, place + pointer(index), f"{step_label(step, index)} in {label}"
            )
        ]
    else:
        got = "an empty list" if raw == [] else type_name(raw)
        text = f"{label} must be one call or a list of at least one step, not {got}"
        found = [Problem(place, "body_shape", text)]
    return [Problem(problem.pointer, "body_shape", problem.text, problem.hint) for problem in found]


def bodies(tool, arguments):
    """Return the bodies of a control step's input as (key, raw body) pairs; [] for every other tool."""
    if not isinstance(tool, str) or not isinstance(arguments, dict):
        return []
    return [(key, arguments[key]) for key in _BODY_KEYS.get(tool, ()) if key in arguments]


def steps_of(document):
    """Return the steps of a document as (index, step) pairs; what is no object is left out."""
    steps = document.get("steps")
    steps = steps if isinstance(steps, list) else []
    return [(index, step) for index, step in enumerate(steps) if isinstance(step, dict)]


def calls(document):
    """Yield (pointer, tool, input) of every call at every depth, parts of the wrong shape left out."""
    for index, step in steps_of(document):
        yield from _calls_in(step, pointer("steps", index))


def _calls_in(body, place):
    for where, call in [(place, body)] if isinstance(body, dict) else _numbered(body, place):
        if not isinstance(call, dict) or not isinstance(call.get("tool"), str):
            continue
        arguments = call.get("input")
        yield where, call["tool"], arguments if isinstance(arguments, dict) else {}
        for key, raw in bodies(call["tool"], arguments):
            yield from _calls_in(raw, where + pointer("input", key))


def _numbered(body, place):
    return [(place + pointer(index), call) for index, call in enumerate(body)] if isinstance(body, list) else []


# The catalog -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A plan that can be used here, and its file."""

    plan: Plan
    path: Path


@dataclass(frozen=True)
class Skipped:
    """A file that is not used, and why. `identifier` is "" when it could not be read."""

    path: str
    reason: str
    identifier: str = ""


@dataclass(frozen=True)
class Hidden:
    """A valid plan that needs MCP servers which are not configured here."""

    identifier: str
    missing: tuple
    path: str
    plan: Plan = field(repr=False, compare=False)


@dataclass
class Catalog:
    """What a set of plan directories holds. `plans` is in the order of identifiers."""

    plans: dict = field(default_factory=dict)
    skipped: list = field(default_factory=list)
    hidden: list = field(default_factory=list)

    def find(self, name):
        """Return the Entry of a plan. UnknownPlan says why there is none: hidden, skipped, or a name near it."""
        if name in self.plans:
            return self.plans[name]
        for plan in self.hidden:
            if plan.identifier == name:
                servers = ", ".join(plan.missing)
                keys = ", ".join(f"[mcp.{server}]" for server in plan.missing)
                raise UnknownPlan(f"plan {name!r} needs MCP servers that are not configured: {servers}; add {keys}")
        for entry in self.skipped:
            if name in (entry.identifier, Path(entry.path).stem):
                raise UnknownPlan(f"plan {name!r} cannot be used: {entry.path}: {entry.reason}")
        hint = did_you_mean(name, self.plans) if self.plans else "there are no plans"
        raise UnknownPlan(f"there is no plan {shorten(str(name), 80)!r}; {hint}")

    def find_plan(self, identifier):
        """Return the Plan of an identifier. UnknownPlan, as find says."""
        return self.find(identifier).plan

    def listing(self):
        """Return {"plans", "skipped", "hidden"} as JSON: what can be used, and what cannot and why."""
        plans = [
            {
                "identifier": entry.plan.identifier,
                "name": entry.plan.name,
                "description": entry.plan.description,
                "steps": len(entry.plan.steps),
                "path": str(entry.path),
            }
            for entry in self.plans.values()
        ]
        return {
            "plans": plans,
            "skipped": [{"path": entry.path, "reason": entry.reason} for entry in self.skipped],
            "hidden": [{"identifier": plan.identifier, "missingServers": list(plan.missing)} for plan in self.hidden],
        }

    def has_checked(self, plan):
        """Say whether a Plan is one of this catalog's own, whose document was found right when it was read."""
        entry = self.plans.get(plan.identifier)
        return entry is not None and entry.plan is plan


def plan_files(directories):
    """Return (files, skipped): plan files of the directories in the order in which they win, unreadable directories.

    Directories in the order given, a directory named twice counts once, missing ones are left out. Inside one,
    JSON files come first, because editing a hand-written plan writes a JSON file beside it; then by name.
    """
    files, skipped, seen = [], [], set()
    for directory in directories:
        real = os.path.realpath(directory)
        if real in seen:
            continue
        seen.add(real)
        try:
            names = os.listdir(directory)
        except FileNotFoundError:
            continue
        except OSError as error:
            skipped.append(Skipped(str(directory), f"the directory cannot be read: {reason_of(error)}"))
            continue
        names = [name for name in names if Path(name).suffix in FORMATS and not name.startswith(".")]
        names.sort(key=lambda name: (not name.endswith(".json"), name))
        files += [Path(directory) / name for name in names]
    return files, skipped


def fingerprint(directories):
    """Return a value that changes whenever a plan file of the directories is added, removed or written."""
    files, skipped = plan_files(directories)
    return tuple((str(path), _stamp(path)) for path in files) + tuple(skipped)


def _stamp(path):
    """Return what tells one state of a file from the next, None when it cannot be looked at."""
    try:
        return state_stamp(os.stat(path))
    except OSError:
        return None


def state_stamp(state):
    """Return what tells one state of a file from the next. state: os.stat_result.

    The time of a file that was just written may stay as it is although it is written again, so such a file gives
    another value at each look.
    """
    now = time.time_ns()
    return state.st_mtime_ns, state.st_size, state.st_ino, now if abs(now - state.st_mtime_ns) < TICK_NS else 0


def scan(directories, *, servers, check):
    """Read every plan of the directories and return the Catalog. Never raises for what a file holds.

    servers: names of the configured MCP servers. check: document → problems; a plan with problems is skipped.
    The first file that claims an identifier has it, even when it is broken: running another plan of the same name
    in its place would be a surprise.
    """
    files, skipped = plan_files(directories)
    catalog = Catalog(skipped=skipped)
    claimed = {}
    for path in files:
        identifier = ""
        try:
            document = read_file(path)
            identifier = document["identifier"] if isinstance(document.get("identifier"), str) else ""
            if identifier in claimed:
                raise PlanError(f"{identifier!r} is defined by {claimed[identifier]} already, the earlier file wins")
            if identifier:
                claimed[identifier] = path
            problems = check(document)
            if problems:
                raise InvalidPlan.of(problems)
            plan = to_plan(document, path)
        except PlanError as error:
            catalog.skipped.append(Skipped(str(path), error.message, identifier))
            continue
        missing = tuple(server for server in plan.requires_servers if server not in servers)
        if missing:
            catalog.hidden.append(Hidden(identifier, missing, str(path), plan))
        else:
            catalog.plans[identifier] = Entry(plan, path)
    catalog.plans = dict(sorted(catalog.plans.items()))
    return catalog


def find_file(directories, identifier):
    """Return the file that holds a plan, hidden and invalid plans included. UnknownPlan.

    The identifier is only ever compared, never used as a path.
    """
    files, _ = plan_files(directories)
    reasons, known = [], []
    for path in files:
        try:
            found = read_file(path).get("identifier")
        except DocumentError as error:
            if path.stem == identifier:
                reasons.append(error.message)
            continue
        if found == identifier:
            return path
        if isinstance(found, str):
            known.append(found)
    if reasons:
        raise UnknownPlan(f"plan {identifier!r} cannot be read: {reasons[0]}")
    hint = did_you_mean(identifier, known) if known else "there are no plans"
    raise UnknownPlan(f"there is no plan {shorten(str(identifier), 80)!r}; {hint}")
