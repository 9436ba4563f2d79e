"""Tools that users write as files: one tool a file, JSON, TOML or YAML. Reference: docs/tools.md.

    exec      runs a program, without a shell           http     sends an HTTP request
    prompt    asks a model                              reshape  builds a value from its input

Templates in a tool refer to one root, `input`: the arguments of the call. `${NAME}` in env, cwd, url, query and headers
is an environment variable, looked up at each call. A file that cannot be used disables its own tool and nothing else.
"""

import functools
import re
import threading
import urllib.parse

from . import config, documents, paths, processes, schema, templates, web
from .documents import key_problems, read_json, to_json
from .errors import (
    DocumentError, ModelUnavailable, PlanError, Problem, TemplateError, ToolError, did_you_mean, shorten)
from .tools import Tool, printable

#: Seconds a program or a request may take where its file does not say.
EXEC_S = 60.0
HTTP_S = 30.0
#: Bytes of stdout or of an answer where its file does not say. Larger results make every later step slow.
OUTPUT_BYTES = 10 * 1024 * 1024
#: Redirects that one request follows.
MAX_REDIRECTS = 5
#: Characters of an unusable answer that an error carries.
SHOWN_BODY = 2000
#: Longest bare name: `user__` + 58 = 64, as for plans.
NAME_MAX = paths.IDENTIFIER_MAX

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


# The file format ---------------------------------------------------------------------------------------------------


def _is(kind, words):
    return lambda value: isinstance(value, kind) and not isinstance(value, bool), words


def _list_of(kind, words):
    return lambda value: isinstance(value, list) and all(isinstance(item, kind) for item in value), words


def _one_of(*names):
    return lambda value: value in names, " or ".join(names)


_TEXT = _is(str, "a string")
_TEXTS = _list_of(str, "an array of strings")
_OBJECT = _is(dict, "an object")
_FLAG = (lambda value: isinstance(value, bool), "true or false")
_SECONDS = (lambda value: _is((int, float), "")[0](value) and value > 0, "a number of seconds above 0")
_SIZE = (lambda value: _is(int, "")[0](value) and value > 0, "a number of bytes above 0")
_TEXT_MAP = (
    lambda value: isinstance(value, dict) and all(isinstance(item, str) for item in value.values()),
    "an object of strings",
)
_ANY = (lambda value: True, "")

#: Keys of every tool: key → (test of its value, what the value must be).
COMMON_KEYS = {
    "name": _TEXT,
    "title": _TEXT,
    "description": _TEXT,
    "kind": _one_of("exec", "prompt", "reshape", "http"),
    "input_schema": _OBJECT,
    "output_schema": _OBJECT,
    "read_only": _FLAG,
}
#: Keys of each kind besides, and which of them it must have.
KIND_KEYS = {
    "exec": {
        "command": _TEXT, "args": _TEXTS, "env": _TEXT_MAP, "cwd": _TEXT, "stdin": _TEXT, "timeout_s": _SECONDS,
        "output": _one_of("text", "json"), "max_output_bytes": _SIZE,
    },
    "prompt": {
        "prompt": _TEXT, "system": _TEXT, "model": _TEXT, "caller_output_schema": _FLAG, "caller_model": _FLAG,
    },
    "reshape": {"shape": _ANY, "caller_shape": _FLAG},
    "http": {
        "method": _one_of(*_METHODS), "url": _TEXT, "query": _OBJECT, "headers": _TEXT_MAP, "body": _ANY,
        "timeout_s": _SECONDS, "output": _one_of("text", "json"), "max_output_bytes": _SIZE, "redirect_hosts": _TEXTS,
    },
}
KIND_REQUIRED = {"exec": ("command",), "prompt": ("prompt",), "reshape": (), "http": ("url",)}
#: Keys whose strings are templates.
_TEMPLATED = ("args", "env", "cwd", "stdin", "prompt", "system", "shape", "url", "query", "headers", "body")
#: Other spellings that are accepted.
_SPELLING = {"timeout_secs": "timeout_s"}


def tool_problems(document):
    """Return what keeps a document from being a tool, every problem at once."""
    kind = document.get("kind")
    kind = kind if isinstance(kind, str) and kind in KIND_KEYS else None
    keys = {**COMMON_KEYS, **(KIND_KEYS[kind] if kind else _every_key())}
    required = ("name", "description", "kind", *KIND_REQUIRED.get(kind, ()))
    problems = key_problems(document, keys, required, "", "the tool")
    name = document.get("name")
    if isinstance(name, str) and not (paths.IDENTIFIER.match(name) and len(name) <= NAME_MAX):
        text = f"the name {shorten(name, 80)!r} must be 1 to {NAME_MAX} letters, digits, - and _"
        problems.append(Problem("/name", "name_invalid", text))
    if kind == "reshape" and ("shape" in document) == bool(document.get("caller_shape")):
        problems.append(Problem("", "missing_key", "a reshape tool has either a shape or caller_shape: true"))
    for key in ("input_schema", "output_schema"):
        for found in schema.schema_problems(document.get(key, {})):
            reason = f"{key} is no JSON Schema: {found.text}"
            problems.append(Problem(f"/{key}{found.pointer}", "schema_invalid", reason))
    return problems or _template_problems(document)


def _every_key():
    return {key: rule for keys in KIND_KEYS.values() for key, rule in keys.items()}


def _template_problems(document):
    """Return what is wrong with templates: their syntax, and what they refer to."""
    problems = []
    known = schema.known_names(_input_schema(document))
    for key in _TEMPLATED:
        value = document.get(key)
        problems += templates.syntax_problems(value, f"/{key}")
        for reference in templates.references(value, f"/{key}"):
            if reference.maybe_item:
                continue
            if reference.root != "input":
                text = f"{key} refers to {{{{{reference}}}}}, and a tool knows only its input"
                problems.append(Problem(reference.pointer, "reference_unknown", text, "write {{input.…}}"))
            elif reference.path and known is not None and reference.path[0] not in known:
                text = f"{key} refers to {{{{{reference}}}}}, and input_schema has no {str(reference.path[0])!r}"
                hint = did_you_mean(str(reference.path[0]), known)
                problems.append(Problem(reference.pointer, "reference_unknown", text, hint))
    return problems


def _input_schema(document):
    """Return the schema of a tool's arguments, with what the caller may give besides."""
    declared = document.get("input_schema") or {"type": "object", "properties": {}}
    extra = {}
    if document.get("caller_output_schema"):
        extra["output_schema"] = {"type": "object", "description": "JSON Schema the answer keeps to."}
    if document.get("caller_model"):
        extra["model"] = {"type": "string", "description": "Role or name of the model that answers."}
    if document.get("caller_shape"):
        extra["shape"] = {"description": "The value to return; templates in it have been rendered."}
    if not extra:
        return declared
    required = [*declared.get("required", ()), *(["shape"] if "shape" in extra else [])]
    merged = {**declared, "type": "object", "properties": {**declared.get("properties", {}), **extra}}
    return {**merged, "required": required} if required else merged


# The source --------------------------------------------------------------------------------------------------------


class UserTools:
    """The tools of a list of directories (tools.Source). Files are read again when one of them changes.

    directories: an earlier one wins over a later one, file by file. environ: for ${NAME} and for what `exec` starts.
    """

    prefix = label = "user"

    def __init__(self, directories, environ):
        self._directories = tuple(directories)
        self._environ = dict(environ)
        # Protects what follows; held while files are read, so that they are read once.
        self._lock = threading.Lock()
        self._state = None
        self._tools = []
        self._broken = {}
        self._notes = []
        self._secrets = frozenset()

    def known(self):
        """Return the tools of the files as they are now."""
        state = documents.fingerprint(self._directories)
        with self._lock:
            if state != self._state:
                self._read()
                self._state = state
            return self._tools

    def tools(self, context):
        """Return the tools of the files as they are now."""
        return self.known()

    def missing(self, name):
        """Return why there is no such tool: its file is broken, or there is none."""
        bare = name.partition("__")[2]
        names = [tool.name for tool in self.known()]
        if bare in self._broken:
            return Problem("", "user_tool_unknown", f"{shorten(name, 80)!r} cannot be used: {self._broken[bare]}")
        text = f"there is no user tool {shorten(bare, 80)!r}"
        return Problem("", "user_tool_unknown", text, did_you_mean(name, names) if names else "there are no user tools")

    def notes(self):
        """Return a sentence for every file that cannot be used."""
        self.known()
        return list(self._notes)

    def secrets(self):
        """Return the texts that the files add to requests and programs and that no record may hold."""
        self.known()
        return self._secrets

    def close(self):
        """Do nothing: what a call starts ends with the call."""

    def _read(self):
        files, skipped = documents.plan_files(self._directories)
        tools, broken, owners, secrets = {}, {}, {}, set()
        notes = [f"{entry.path}: {entry.reason}" for entry in skipped]
        for path in files:
            name = path.stem
            try:
                document = _respelled(documents.read_file(path))
                name = document["name"] if isinstance(document.get("name"), str) else name
                problems = tool_problems(document)
                if problems:
                    raise DocumentError.of(problems)
                reason = None
            except PlanError as error:
                reason = error.message
            if name in owners:
                if owners[name].parent == path.parent:
                    notes.append(f"{path}: {name!r} is defined by {owners[name]} already, which wins")
                continue
            owners[name] = path
            if reason is None:
                tools[name] = self._to_tool(document, path)
                secrets |= _secrets_of(document, self._environ)
            else:
                broken[name] = reason if str(path) in reason else f"{path}: {reason}"
        self._tools, self._broken = [tools[name] for name in sorted(tools)], broken
        self._secrets = frozenset(secrets)
        notes += [f"user tool {name!r} cannot be used: {reason}" for name, reason in sorted(broken.items())]
        self._notes = notes

    def _to_tool(self, document, path):
        kind = document["kind"]
        read_only = document.get("read_only", True if _is_safe(document) else None)
        run = functools.partial(_RUNNERS[kind], _Call(document, path.parent, self._environ))
        return Tool(
            name=f"user__{document['name']}",
            source=self.label,
            description=document["description"],
            input_schema=_input_schema(document),
            output_schema=document.get("output_schema"),
            title=document.get("title", ""),
            annotations={} if read_only is None else {"readOnlyHint": read_only},
            call=lambda arguments, context: _checked(document, run(arguments, context)),
        )


def _is_safe(document):
    """Say whether a tool of this kind leaves the world as it is (RFC 9110, 9.2.1 for the HTTP methods)."""
    kind, method = document["kind"], document.get("method", "GET")
    return kind in ("prompt", "reshape") or (kind == "http" and method in ("GET", "HEAD", "OPTIONS"))


def _respelled(document):
    return {_SPELLING.get(key, key): value for key, value in document.items()}


def _checked(document, value):
    """Return a result that keeps to the tool's output_schema. ToolError when it does not."""
    wanted = document.get("output_schema")
    problems = schema.problems(value, wanted) if wanted is not None else []
    if problems:
        message = f"user__{document['name']} does not keep to its output_schema: {'; '.join(map(str, problems))}"
        raise ToolError(message, {"error": message, "result": value})
    return value


class _Call:
    """What the call of a tool needs besides the arguments: its document, its folder, the environment."""

    def __init__(self, document, folder, environ):
        self.document, self.folder, self.environ = document, folder, environ
        self.name = f"user__{document['name']}"

    def get(self, key, default=None):
        return self.document.get(key, default)

    def render(self, value, arguments, variables=False):
        """Render the templates of a value; `variables`: its ${NAME} too. ToolError, not retryable."""
        scope = {"input": arguments}
        if variables:
            value, names = _variables_as_tags(value)
            scope["env"] = {name: self._variable(name) for name in names}
        try:
            return templates.render(value, scope)
        except TemplateError as error:
            raise ToolError(f"{self.name}: {error.message}", retryable=False) from None

    def text(self, value, arguments, variables=False):
        """Render one template to text."""
        return templates.text_of(self.render(value, arguments, variables))

    def _variable(self, name):
        if name not in self.environ:
            raise ToolError(f"{self.name} needs the environment variable {name}, which is not set", retryable=False,
                            variable=name)
        return self.environ[name]


def _variables_as_tags(value):
    """Return (value with every ${NAME} as a tag {{env."NAME"}}, the names). So nothing put in is looked at again."""
    names = set()

    def tag(match):
        names.add(match[1])
        return f'{{{{env."{match[1]}"}}}}'

    def walk(part):
        if isinstance(part, str):
            return _VARIABLE.sub(tag, part)
        return {key: walk(item) for key, item in part.items()} if isinstance(part, dict) else part

    return walk(value), names


def _secrets_of(document, environ):
    """Return what a tool sends and no record may hold, by the rules of the configuration (docs/graph-cli.md).

    The variables of `headers` and `query`, those elsewhere whose names tell, and headers that are written out.
    """
    sent = _variables_as_tags({key: document.get(key, {}) for key in ("headers", "query")})[1]
    named = {name for name in _variables_as_tags(document)[1] if config.tells_a_secret(name)}
    values = {environ[name] for name in sent | named if name in environ and config.hides(name, environ[name])}
    written = {value for value in config.header_secrets(document.get("headers", {})) if config.hides("", value)}
    return values | {value for value in written if "${" not in value and "{{" not in value}


# exec --------------------------------------------------------------------------------------------------------------


def _run_exec(call, arguments, context):
    """Run the program. {"text": stdout} or the JSON it printed; any other exit status than 0 is an error."""
    environ = {**call.environ, **call.render(call.get("env", {}), arguments, variables=True)}
    cwd = call.get("cwd")
    finished = processes.run(
        [call.get("command"), *(call.text(argument, arguments) for argument in call.get("args", ()))],
        context,
        name=call.name,
        limit_s=call.get("timeout_s", EXEC_S),
        environ={name: templates.text_of(value) for name, value in environ.items()},
        cwd=cwd and paths.expand(call.text(cwd, arguments, variables=True), call.folder, call.environ),
        stdin=_input_text(call.render(call.get("stdin", ""), arguments)).encode("utf-8", "replace"),
        max_bytes=call.get("max_output_bytes", OUTPUT_BYTES),
    )
    out, err = (data.decode("utf-8", "replace") for data in (finished.out, finished.err))
    if finished.code != 0:
        message = f"{call.name} {finished.ending}"
        last = err.strip().splitlines()[-1:] or out.strip().splitlines()[-1:]
        sentence = f"{message}: {shorten(last[0], 500)}" if last else message
        raise ToolError(sentence, {"error": message, "stderr": err, "stdout": out})
    if call.get("output") != "json":
        return {"text": out.strip()}
    try:
        return read_json(out, f"the output of {call.name}")
    except DocumentError as error:
        raise ToolError(error.message, {"error": error.message, "stdout": shorten(out, SHOWN_BODY)}) from None


def _input_text(value):
    """Return what a program reads: text as it is, any other value as JSON."""
    return value if isinstance(value, str) else to_json(value)


# prompt ------------------------------------------------------------------------------------------------------------


def _run_prompt(call, arguments, context):
    """Ask a model. The object its schema describes, or {"text": answer} without a schema."""
    if context.models is None:
        raise ModelUnavailable("no model is configured; add [providers.<name>] and [models.default]")
    model = (call.get("caller_model") and arguments.get("model")) or call.get("model", "chat")
    wanted = call.get("output_schema") or (call.get("caller_output_schema") and arguments.get("output_schema"))
    system, prompt = call.text(call.get("system", ""), arguments), call.text(call.get("prompt"), arguments)
    if wanted:
        return context.models.structured(model, system=system, prompt=prompt, schema=wanted, context=context)
    messages = [{"role": "user", "text": prompt}]
    return {"text": context.models.complete(model, system=system, messages=messages, context=context).text}


# reshape -----------------------------------------------------------------------------------------------------------


def _run_reshape(call, arguments, context):
    """Return the shape with its templates rendered, or the caller's shape, which has been rendered already."""
    return arguments["shape"] if call.get("caller_shape") else call.render(call.get("shape"), arguments)


# http --------------------------------------------------------------------------------------------------------------

_FIRST_TAG = re.compile(r"\{\{[^{}#^]*\}\}")


def _run_http(call, arguments, context):
    """Send the request. The JSON of the answer, or {"text", "status"}; a status of 400 and above is an error."""
    url = _url(call, arguments)
    headers = {name: call.text(value, arguments, variables=True) for name, value in call.get("headers", {}).items()}
    body = None
    if "body" in call.document:
        value = call.render(call.get("body"), arguments)
        body = _input_text(value).encode("utf-8", "replace")
        if not any(name.lower() == "content-type" for name in headers):
            kind = "text/plain; charset=utf-8" if isinstance(value, str) else "application/json"
            headers["Content-Type"] = kind
    with _follow(call, call.get("method", "GET"), url, headers, body, context) as response:
        content = response.read(call.get("max_output_bytes", OUTPUT_BYTES))
        return _answer(call, response, content)


def _url(call, arguments):
    """Return the URL of a call. What tags put into it is percent-encoded, but for a tag at its very beginning."""
    template = call.get("url")
    head = _FIRST_TAG.match(template)
    start = call.text(head[0], arguments) if head else ""
    rest = template[head.end() if head else 0:]
    url = start + call.text(rest, _encoded(arguments), variables=True)
    query = call.render(call.get("query", {}), arguments, variables=True)
    pairs = [(key, each) for key, value in query.items() for each in (value if isinstance(value, list) else [value])]
    pairs = [(key, templates.text_of(value)) for key, value in pairs if value is not None]
    if not pairs:
        return url
    return f"{url}{'&' if '?' in url else '?'}{urllib.parse.urlencode(pairs, errors='replace')}"


def _encoded(value):
    """Return a copy of a JSON value with every string percent-encoded."""
    if isinstance(value, str):
        return urllib.parse.quote(value, safe="", errors="replace")
    if isinstance(value, dict):
        return {key: _encoded(item) for key, item in value.items()}
    return [_encoded(item) for item in value] if isinstance(value, list) else value


def _follow(call, method, url, headers, body, context):
    """Send a request and follow its redirects where that is allowed; return the last Response."""
    limit = call.get("timeout_s", HTTP_S)
    for _ in range(MAX_REDIRECTS + 1):
        response = web.send(method, url, cancel=context.cancel, limit_s=context.remaining(limit), headers=headers,
                            body=body)
        target = response.headers.get("location")
        if response.status not in (301, 302, 303, 307, 308) or not target:
            return response
        response.close()
        target = _target(call, url, target)
        if response.status == 303 or (response.status in (301, 302) and method == "POST"):
            method, body = "GET", None  # as every browser does (RFC 9110, 15.4)
            headers = {name: value for name, value in headers.items() if not name.lower().startswith("content-")}
        if web.origin(target) != web.origin(url):
            headers = {name: value for name, value in headers.items() if name.lower() not in _CREDENTIALS}
        url = target
    raise ToolError(f"{call.name} was redirected more than {MAX_REDIRECTS} times", retryable=False)


def _target(call, url, location):
    """Return the URL that a redirect leads to. ToolError, not retryable, where it must not be followed."""
    try:
        return web.redirect(url, location, call.get("redirect_hosts", ()))
    except ToolError as error:
        message = f"{call.name}: {printable(error.message)}; redirect_hosts allows hosts"
        raise ToolError(message, retryable=False) from None


#: Headers that are not sent on to another origin.
_CREDENTIALS = ("authorization", "cookie", "proxy-authorization", "x-api-key")


def _answer(call, response, content):
    text = response.text(content)
    if response.status >= 400:
        message = f"{call.name}: {response.where} answered with HTTP status {response.status}"
        is_passing = response.status in (408, 425, 429) or response.status >= 500
        payload = {"error": message, "status": response.status, "body": shorten(text, SHOWN_BODY)}
        raise ToolError(message, payload, retryable=is_passing)
    is_json = response.media_type == "application/json" or response.media_type.endswith("+json")
    if not (call.get("output") == "json" or (is_json and call.get("output") is None)):
        return {"text": text, "status": response.status}
    if not content:
        return {}
    try:
        return read_json(content, f"the answer to {call.name}")
    except DocumentError as error:
        payload = {"error": error.message, "status": response.status, "body": shorten(text, SHOWN_BODY)}
        raise ToolError(error.message, payload) from None


_RUNNERS = {"exec": _run_exec, "prompt": _run_prompt, "reshape": _run_reshape, "http": _run_http}
