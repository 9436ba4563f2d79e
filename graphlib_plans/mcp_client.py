"""The client of MCP servers: one connection per server for the life of the program, over stdio or Streamable HTTP.

A `Pool` owns the servers. Each is a tools.Source that connects when it is first needed and again after its server died;
whoever needs it meanwhile waits, and a server that keeps failing is left alone for a growing while. Both protocol eras
are spoken: `initialize` up to 2025-11-25, per-request metadata from 2026-07-28. We declare no capabilities, so a
server may not ask us anything; one that does is told so.

    Pool ─▶ _ServerSource ─▶ _Session (era, handshake, tools) ─▶ StdioLink or HttpLink (one request, one answer)

One more thread than those of mcp_links: `mcp.x.connect` makes one attempt to connect to the server `x` and ends with
it. A caller who gives up does not end the attempt: the next one gains.
"""

import base64
import threading
import time
from concurrent.futures import Future, wait

from . import __version__, schema, web
from .documents import read_json
from .errors import (
    Cancelled, ConfigError, DocumentError, PlanError, Problem, ToolError, ToolTimeout, did_you_mean, shorten, type_name)
from .mcp_links import CLOSE_S, LEGACY, METHOD_NOT_FOUND, MODERN, HttpLink, LinkLost, RpcError, StdioLink
from .tools import CancelToken, Tool, printable, quiet_context

_KEY = "io.modelcontextprotocol/"
_CLIENT = {"name": "graph", "version": __version__}
#: What a modern request carries about us (MCP 2026-07-28, per-request metadata).
_META = {_KEY + "protocolVersion": MODERN, _KEY + "clientCapabilities": {}, _KEY + "clientInfo": _CLIENT}
#: MCP 2026-07-28: the version is not supported; data.supported names those that are.
UNSUPPORTED_VERSION = -32022

#: Seconds for connecting and for a call where nothing else is configured; the defaults of [settings].
CONNECT_S = 30.0
CALL_S = 120.0
#: Seconds that a server may be silent on `server/discover` before it is taken for one that only knows `initialize`.
PROBE_S = 5.0
#: Seconds of the second, third, … pause before a server that keeps failing is tried again; the first retry is at once.
BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
#: A server that lived this many seconds is not taken for one that keeps failing.
STABLE_S = 60.0
#: Pages of one tools/list. Servers in use have at most a few; a cursor that changes for ever must end somewhere.
MAX_PAGES = 1000
#: Rounds of "ask again later" (2026-07-28, input_required without requests), and the wait before each, in seconds.
MAX_ROUNDS = 10
ROUND_S = 0.25
#: How many programs of ours may start each other: a configuration that names its own server would never end.
MAX_DEPTH = 8
DEPTH_VARIABLE = "GRAPH_MCP_DEPTH"


# The pool ----------------------------------------------------------------------------------------------------------


class Pool:
    """The configured MCP servers. One per program; it owns their processes and connections.

    wire: the module that frames messages. environ: what servers inherit. clock: seconds, for the back-off.
    on_change: called with a server's name, on one of its threads, when it says that its tools changed; must not block.
    """

    def __init__(self, wire, environ, *, clock=time.monotonic):
        self._wire = wire
        self._environ = dict(environ)
        self._clock = clock
        # Protects _sources; never held while something blocks.
        self._lock = threading.Lock()
        self._sources = {}
        self.on_change = None

    def sync(self, servers, deferred, connect_timeout_s=CONNECT_S):
        """Take over a configuration: keep servers that did not change, close the others.

        servers: name → config.Server. deferred: "mcp.<name>" → config.Deferred for those that lack a variable.
        connect_timeout_s: of servers that set none.
        """
        with self._lock:
            old, self._sources = self._sources, {}
            for name, server in servers.items():
                terms = (server, deferred.get(f"mcp.{name}"), server.connect_timeout_s or connect_timeout_s)
                source = old.get(name)
                if source is not None and source.terms == terms:
                    self._sources[name] = old.pop(name)
                else:
                    self._sources[name] = _ServerSource(terms, self)
        _close_all(old.values())

    def source(self, name):
        """Return the tools.Source of a configured server. ConfigError for another name."""
        with self._lock:
            if name not in self._sources:
                raise ConfigError(f"the MCP server {name!r} is not configured; {did_you_mean(name, self._sources)}")
            return self._sources[name]

    def status(self, name, context):
        """Connect to a server, list its tools and say how that went; nothing is raised but StopRun and ConfigError."""
        source = self.source(name)
        started = time.monotonic()
        report = {"server": name, "ok": True, "tools": 0, "declareOutputSchema": 0}
        try:
            found = source.tools(context)
            report["tools"] = len(found)
            report["declareOutputSchema"] = sum(tool.output_schema is not None for tool in found)
        except PlanError as error:
            report.update(ok=False, error=error.message)
        report["elapsedMs"] = round((time.monotonic() - started) * 1000)
        return report

    def close(self):
        """Close every connection and end every process; returns when they are gone."""
        with self._lock:
            sources, self._sources = self._sources, {}
        _close_all(sources.values())

    def connect(self, source):
        """Open a link to a server and shake hands. Called on the server's connect thread. ToolError, Cancelled."""
        server = source.server
        if server.url is not None:
            return _open_http(server, self._wire, source)
        return _open_stdio(server, self._wire, self._child_environment(server), source)

    def _child_environment(self, server):
        depth = self._environ.get(DEPTH_VARIABLE, "")
        depth = int(depth) if depth.isascii() and depth.isdigit() and len(depth) < 4 else 0
        if depth >= MAX_DEPTH:
            raise ToolError(
                f"MCP server {server.name!r} is not started: {depth} programs of this kind have started each other;"
                " does the configuration name its own server?", retryable=False)
        return {**self._environ, **server.env, DEPTH_VARIABLE: str(depth + 1)}

    def now(self):
        """Return the time of the back-off clock, in seconds."""
        return self._clock()

    def changed(self, name):
        """Pass on that a server's tools changed."""
        if self.on_change is not None:
            self.on_change(name)


def _close_all(sources):
    """Close sources side by side: first all are told, then all are waited for."""
    retired = [source.retire() for source in sources]
    links = [link for link, _ in retired if link is not None]
    for link in links:
        link.hang_up()
    deadline = time.monotonic() + CLOSE_S
    for link in links:
        link.end(deadline)
    # An attempt under way ends its process itself; a program that left before that would leave the process behind.
    wait([attempt for _, attempt in retired if attempt is not None], CLOSE_S)


# One server --------------------------------------------------------------------------------------------------------


class _ServerSource:
    """The tools of one server (tools.Source), whether it is connected or not. Used by any thread."""

    def __init__(self, terms, pool):
        #: (config.Server, config.Deferred or None, seconds to connect): what has to stay for this source to stay.
        self.terms = terms
        self.server, self._deferred, self._connect_s = terms
        self.prefix = self.label = self.server.name
        self._pool = pool
        #: Cancelled when the source is closed; ends an attempt to connect.
        self.closing = CancelToken()
        #: "legacy" or "modern" once a connection succeeded: the next one need not find out again.
        self.era = None
        # Protects everything below; never held while something blocks.
        self._lock = threading.Lock()
        self._session = None
        self._attempt = None
        self._failures = 0
        self._connected_at = 0.0
        self._not_before = 0.0
        self._reason = ""
        self._tools = None
        self._notes = []
        self._fresh_until = 0.0

    # tools.Source

    def known(self):
        """Return the tools that were listed last, None before the first time."""
        return self._tools

    def tools(self, context):
        """Return the tools, asking the server unless its last list is still good. ToolError, Cancelled."""
        with self._lock:
            if self._tools is not None and self._session is not None and self._pool.now() < self._fresh_until:
                return self._tools
        definitions, notes, fresh_s = self._ask(context, CALL_S, lambda session, limited: session.list_tools(limited))
        found, refused = self._to_tools(definitions)
        with self._lock:
            self._tools, self._notes = found, notes + refused
            self._fresh_until = self._pool.now() + fresh_s
        return found

    def missing(self, name):
        """Return why this server has no such tool: it is left out by the configuration, or unknown."""
        bare = name.partition("__")[2]
        if not self._is_allowed(bare):
            key = "exclude_tools" if bare in self.server.exclude_tools else "include_tools"
            text = f"{shorten(name, 80)!r} is left out by {key} of [mcp.{self.prefix}]"
            return Problem("", "tool_unknown", text, "change the configuration to use it")
        names = [tool.name for tool in self._tools or ()]
        text = f"MCP server {self.prefix!r} has no tool {shorten(bare, 80)!r}"
        return Problem("", "tool_unknown", text, did_you_mean(name, names))

    def notes(self):
        """Return what is wrong with the server's list of tools."""
        return list(self._notes)

    def close(self):
        """Do nothing: the connection outlives registries, and the Pool closes it."""

    # The connection

    def retire(self):
        """Take no more calls; return (the link that is left to close, the attempt that is under way), None for none."""
        self.closing.cancel(f"the configuration of MCP server {self.prefix!r} changed, or the program ends")
        with self._lock:
            session, self._session = self._session, None
            return session.link if session else None, self._attempt

    def connected(self, context):
        """Return a live session, connecting or waiting for the attempt under way. ToolError, ToolTimeout, Cancelled."""
        while True:
            with self._lock:
                self._refuse_if_unusable()
                if self._session is not None:
                    return self._session
                if self._attempt is None:
                    self._start_attempt()
                attempt = self._attempt
            _wait_for(attempt, context, f"MCP server {self.prefix!r} was not ready in time")
            error = attempt.exception()
            if error is not None:
                raise ToolError(error.message, error.payload, error.retryable)

    def _refuse_if_unusable(self):
        if self.closing.cancelled:
            raise ToolError(f"MCP server {self.prefix!r} is closed: {self.closing.reason}", retryable=False)
        if self._deferred is not None:
            waiting = self._deferred
            raise ToolError(
                f"MCP server {self.prefix!r} cannot be used: {waiting.path} needs the environment variable"
                f" {waiting.variable}, which is not set", retryable=False, variable=waiting.variable, path=waiting.path)
        pause = self._not_before - self._pool.now()
        if pause > 0 and self._attempt is None:
            raise ToolError(
                f"MCP server {self.prefix!r} failed {self._failures} times in a row and is left alone for another"
                f" {pause:.0f} s; the last time: {self._reason}")

    def _start_attempt(self):
        self._attempt = Future()
        name = f"mcp.{self.prefix}.connect"
        threading.Thread(target=self._connect, args=(self._attempt,), name=name, daemon=True).start()

    def _connect(self, attempt):
        """Make one attempt; runs on its own thread, so that a caller who gives up does not spoil it for the next."""
        session = error = None
        try:
            session = self._pool.connect(self)
        except PlanError as failure:
            error = failure
        except Cancelled as stop:
            error = ToolError(stop.reason, retryable=False)
        except Exception as bug:  # noqa: the callers who wait must hear of it, whatever it is
            error = ToolError(f"MCP server {self.prefix!r} could not be connected: {type(bug).__name__}: {bug}")
        with self._lock:
            self._attempt = None
            if session is not None:
                self.era = "modern" if session.is_modern else "legacy"
                self._connected_at = self._pool.now()
                self._fresh_until = 0.0
                if not self.closing.cancelled and session.link.lost is None:
                    self._session, session = session, None
            elif not self.closing.cancelled:
                self._count_failure(error.message)
        if session is not None:  # closed, or lost, while it was being made
            session.link.hang_up()
            session.link.end(time.monotonic())
            error = session.link.lost or ToolError(f"MCP server {self.prefix!r} is closed", retryable=False)
        if error is not None:
            attempt.set_exception(error)
        else:
            attempt.set_result(None)

    def _count_failure(self, reason):
        self._failures += 1
        self._reason = reason
        pauses = (0.0, *BACKOFF_S)
        self._not_before = self._pool.now() + pauses[min(self._failures, len(pauses)) - 1]

    def was_lost(self, link, reason, is_failure=True):
        """Take note that a link ended by itself. Called on one of its threads."""
        with self._lock:
            if self._session is not None and self._session.link is link:
                self._session = None
                if self._pool.now() - self._connected_at >= STABLE_S:
                    self._failures = 0
                if is_failure:
                    self._count_failure(reason)

    def expire(self):
        """Take note that the list of tools may have changed."""
        with self._lock:
            self._fresh_until = 0.0

    def notified(self, method):
        """Take a notification of the server. Called on one of the link's threads."""
        if method == "notifications/tools/list_changed":
            self.expire()
            self._pool.changed(self.prefix)

    def connect_context(self):
        """Return the context of one attempt to connect."""
        return quiet_context(cancel=self.closing, deadline=time.monotonic() + self._connect_s)

    # Tools and calls

    def _is_allowed(self, bare):
        listed = not self.server.include_tools or bare in self.server.include_tools
        return listed and bare not in self.server.exclude_tools

    def _to_tools(self, definitions):
        """Return (tools, sentences about definitions that cannot be used)."""
        found, notes = {}, []
        for definition in definitions:
            bare = definition.get("name") if isinstance(definition, dict) else None
            if not isinstance(bare, str) or not bare:
                notes.append(f"MCP server {self.prefix!r} lists a tool without a name; it is left out")
            elif bare in found:
                name = printable(shorten(bare, 80))
                notes.append(f"MCP server {self.prefix!r} lists {name!r} twice; the first counts")
            elif self._is_allowed(bare):
                found[bare] = self._to_tool(bare, definition)
        return list(found.values()), notes

    def _to_tool(self, bare, definition):
        override = self.server.tool_overrides.get(bare, {})
        annotations = _object(definition.get("annotations"))
        input_schema = {"type": "object", "properties": {}, **_object(definition.get("inputSchema"))}
        output_schema = override.get("output_schema", definition.get("outputSchema"))
        title = definition.get("title") or annotations.get("title")
        return Tool(
            name=f"{self.prefix}__{bare}",
            source=self.label,
            description=override.get("description") or _text(definition.get("description")),
            input_schema=input_schema,
            output_schema=output_schema if isinstance(output_schema, dict) else None,
            output_example=override.get("output_example"),
            title=_text(title),
            annotations=annotations,
            checks_input=False,
            call=lambda arguments, context: self.call(bare, arguments, context, input_schema, output_schema),
        )

    def call(self, bare, arguments, context, input_schema, output_schema):
        """Call a tool of the server and return its value. ToolError, ToolTimeout, Cancelled."""
        if not self._is_allowed(bare):
            raise ToolError(str(self.missing(f"{self.prefix}__{bare}")), retryable=False)
        limit_s = self.server.timeout_s
        if limit_s is None and context.deadline is None:  # neither the server nor the step sets one
            limit_s = context.services.settings.tool_timeout_s if context.services else CALL_S
        result = self._ask(context, limit_s, lambda session, limited: session.call_tool(
            bare, arguments, limited, input_schema))
        value = value_of(result)
        if result.get("isError") is True:
            text = value["text"] if isinstance(value, dict) and isinstance(value.get("text"), str) else str(value)
            raise ToolError(f"{self.prefix}__{bare} failed: {printable(shorten(text, 2000))}", value)
        self._warn_of_broken_promise(bare, result, output_schema, context)
        return value

    def _ask(self, context, limit_s, ask):
        """Return ask(session, context), the context limited to limit_s seconds from when the server is ready."""
        try:
            return ask(self.connected(context), context.with_(deadline=_sooner(context, limit_s)))
        except LinkLost as lost:
            if not lost.expired:  # what was under way may have had its effect: only the plan may decide to repeat it
                raise
        return ask(self.connected(context), context.with_(deadline=_sooner(context, limit_s)))

    def _warn_of_broken_promise(self, bare, result, output_schema, context):
        # A server that breaks its own outputSchema is told about and not stopped: the step may not need what is wrong.
        if isinstance(output_schema, dict) and "structuredContent" in result:
            problems = schema.problems(result["structuredContent"], output_schema)
            if problems:
                context.tell("warning", text=f"{self.prefix}__{bare} breaks its own outputSchema: {problems[0]}")


def _object(value):
    return value if isinstance(value, dict) else {}


def _text(value):
    return value if isinstance(value, str) else ""


def _sooner(context, limit_s):
    """Return the deadline that comes first: the context's, or limit_s from here on (None: no limit)."""
    ours = [] if limit_s is None else [time.monotonic() + limit_s]
    return min(ours if context.deadline is None else [context.deadline, *ours], default=None)


def _wait_for(future, context, late):
    """Wait until a future is done. ToolTimeout with the sentence `late` at the deadline, Cancelled."""
    woken = threading.Event()
    future.add_done_callback(lambda _: woken.set())
    remove = context.cancel.on_cancel(woken.set)
    try:
        woken.wait(context.remaining())
    finally:
        remove()
    context.cancel.check()
    if not future.done():
        raise ToolTimeout(late)


def value_of(result):
    """Return the value of a tools/call result, as later steps see it.

    structuredContent if there is any; else the text: one text block that is JSON is that JSON, any other text is
    {"text": text}, no text is {}. Blocks that are no text (images, audio, resources) are kept as `content` beside it.
    """
    blocks = [block for block in result.get("content") or () if isinstance(block, dict)]
    texts = [block["text"] for block in blocks if block.get("type") == "text" and isinstance(block.get("text"), str)]
    others = [block for block in blocks if block.get("type") != "text"]
    if result.get("structuredContent") is not None:
        value = result["structuredContent"]
    elif len(texts) == 1:
        value = _json_or_text(texts[0], bool(others))
    else:
        value = {"text": "\n".join(texts)} if texts else {}
    return {**value, "content": others} if others and isinstance(value, dict) and "content" not in value else value


def _json_or_text(text, needs_object):
    try:
        value = read_json(text)
    except DocumentError:
        return {"text": text}
    return {"text": text} if needs_object and not isinstance(value, dict) else value


# The session: what both transports have in common ------------------------------------------------------------------


class _Session:
    """A connection after its handshake. link: StdioLink or HttpLink. Used by any thread."""

    def __init__(self, link, is_modern, capabilities):
        self.link = link
        self.is_modern = is_modern
        self._announces_changes = _object(_object(capabilities).get("tools")).get("listChanged") is True

    def listen(self):
        """Ask for the notifications of the server where they have to be asked for."""
        if self._announces_changes:
            filter_ = {"notifications": {"toolsListChanged": True}}
            self.link.listen("subscriptions/listen" if self.is_modern else None, self._params(filter_))

    def _params(self, params):
        return {**params, "_meta": _META} if self.is_modern else params

    def request(self, method, params, context, headers=None):
        """Send a request and return its result object. RpcError, LinkLost, ToolTimeout, Cancelled."""
        return self.link.request(method, self._params(params), context, headers)

    def list_tools(self, context):
        """Return (tool definitions of all pages, sentences about the list, seconds it stays good)."""
        found, notes, seen, cursor, fresh_s = [], [], set(), None, float("inf")
        name = self.link.name
        for _ in range(MAX_PAGES):
            try:
                page = self.request("tools/list", {} if cursor is None else {"cursor": cursor}, context)
            except RpcError as error:
                if error.code == METHOD_NOT_FOUND and not found:  # a server without tools need not know the method
                    return [], notes, 0.0
                raise
            listed = page.get("tools")
            if not isinstance(listed, list):
                raise ToolError(f"MCP server {name!r} answered tools/list with {type_name(listed)} as its tools")
            found += listed
            fresh_s = min(fresh_s, self._fresh_s(page))
            seen.add(cursor)
            cursor = page.get("nextCursor")  # an empty string is a cursor like any other
            if not isinstance(cursor, str):
                break
            if cursor in seen:
                notes.append(f"MCP server {name!r} repeats a page of its tool list; the list may be incomplete")
                break
        else:
            notes.append(f"MCP server {name!r} has more than {MAX_PAGES} pages of tools; the rest is left out")
        return found, notes, fresh_s

    def _fresh_s(self, page):
        """Return for how many seconds a page stays good: until a change is announced, or as long as it says."""
        ttl = page.get("ttlMs")
        ttl_s = ttl / 1000 if isinstance(ttl, (int, float)) and ttl > 0 else 0.0
        return float("inf") if self._announces_changes else ttl_s

    def call_tool(self, bare, arguments, context, input_schema):
        """Call a tool and return its complete result. RpcError, LinkLost, ToolError, ToolTimeout, Cancelled."""
        params = {"name": bare, "arguments": arguments or {}}
        headers = {"Mcp-Name": _header(bare), **_parameter_headers(input_schema, arguments)} if self.is_modern else None
        for _ in range(MAX_ROUNDS):
            result = self.request("tools/call", params, context, headers)
            kind = result.get("resultType", "complete")
            if kind == "complete":
                return result
            if kind != "input_required" or result.get("inputRequests"):
                wants = "asks for input that a plan cannot give" if kind == "input_required" else "answered in a way"
                raise ToolError(f"tool {bare!r} of MCP server {self.link.name!r} {wants}: {shorten(str(kind), 80)}")
            params["requestState"] = result.get("requestState")
            if context.cancel.wait(context.remaining(ROUND_S)):
                context.cancel.check()
        raise ToolError(f"tool {bare!r} of MCP server {self.link.name!r} asked to be called again {MAX_ROUNDS} times")


def _parameter_headers(input_schema, arguments):
    """Return the Mcp-Param-* headers of a call (MCP 2026-07-28, custom headers from tool parameters).

    A property with `x-mcp-header` repeats its argument in a header; null and missing ones do not.
    """
    headers = {}
    for key, declared in _object(input_schema.get("properties")).items():
        value = _object(arguments).get(key)
        name = _object(declared).get("x-mcp-header")
        if isinstance(value, dict):
            headers.update(_parameter_headers(_object(declared), value))
        elif isinstance(name, str) and isinstance(value, (str, int, float)):
            headers[f"Mcp-Param-{name}"] = _header(str(value).lower() if isinstance(value, bool) else str(value))
    return headers


def _header(text):
    """Return text as a header value; what headers cannot hold is wrapped as the protocol says."""
    plain = text.isascii() and text.isprintable() and text == text.strip() and not text.startswith("=?base64?")
    return text if plain else f"=?base64?{base64.b64encode(text.encode('utf-8', 'replace')).decode()}?="


def _shake_hands(link, context, era):
    """Find out which era a server speaks and open the session. RpcError, LinkLost, ToolError, ToolTimeout, Cancelled.

    Era detection as in MCP 2026-07-28, versioning: `server/discover` first; an answer or UNSUPPORTED_VERSION means
    modern, anything else legacy. A server that is still starting misses the probe and refuses `initialize` later on,
    because the probe already told it our era; then it is asked again.
    """
    if era != "legacy":
        probe = context.with_(deadline=_sooner(context, PROBE_S))
        try:
            session = _discover(link, probe)
            if session is not None:
                return session
        except (LinkLost, web.NetworkError):
            raise
        except ToolTimeout:
            context.remaining()  # raises when it is not only the probe's time that has passed
        except ToolError as error:
            _refuse_what_initialize_cannot_help(link.name, error)
    try:
        return _initialize(link, context)
    except RpcError as error:
        session = _discover(link, context) if error.code == UNSUPPORTED_VERSION else None
        if session is None:
            _refuse_what_initialize_cannot_help(link.name, error)
            raise
        return session


def _refuse_what_initialize_cannot_help(name, error):
    """Raise when the probe's error says that we may not enter, or that no version is shared."""
    if getattr(error, "status", None) in (401, 403):
        raise error
    if not isinstance(error, RpcError) or error.code != UNSUPPORTED_VERSION:
        return
    supported = _object(error.data).get("supported")
    if isinstance(supported, list) and not set(LEGACY) & _strings(supported):
        versions = printable(", ".join(sorted(_strings(supported))))
        raise ToolError(f"MCP server {name!r} speaks {versions}, and we speak {MODERN} and {', '.join(LEGACY)}",
                        retryable=False)


def _strings(values):
    return {value for value in values if isinstance(value, str)}


def _discover(link, context):
    """Return a modern session, None when the server prefers to be initialized."""
    link.version = MODERN
    result = link.request("server/discover", {"_meta": _META}, context)
    versions = result.get("supportedVersions")
    if not isinstance(versions, list) or MODERN not in versions:
        return None
    return _Session(link, True, result.get("capabilities"))


def _initialize(link, context):
    link.version = None
    params = {"protocolVersion": LEGACY[0], "capabilities": {}, "clientInfo": _CLIENT}
    result = link.request("initialize", params, context)
    version = result.get("protocolVersion")
    if version not in LEGACY:
        raise ToolError(f"MCP server {link.name!r} speaks protocol version {printable(shorten(str(version), 40))},"
                        f" and we speak {', '.join(LEGACY)}", retryable=False)
    link.version = version
    link.notify("notifications/initialized", context)
    return _Session(link, False, result.get("capabilities"))


# Opening a connection -------------------------------------------------------------------------------------------------


def _open_stdio(server, wire, environ, source):
    context = source.connect_context()
    link = StdioLink(server, wire, environ, source)
    try:
        try:
            session = _shake_hands(link, context, source.era)
        except LinkLost:
            if source.era == "legacy" or not link.was_probed_only:
                raise
            # Some old servers exit over a first message they do not know: start again and greet them as they expect.
            link = StdioLink(server, wire, environ, source)
            session = _shake_hands(link, context, "legacy")
        session.listen()
        return session
    except ToolTimeout:
        link.break_off(f"no handshake within {source.terms[2]:g} s (connect_timeout_s)")
        raise link.lost or ToolError(f"MCP server {server.name!r} did not shake hands in time") from None
    except BaseException:
        link.break_off("the handshake failed")
        raise


def _open_http(server, wire, source):
    context = source.connect_context()
    link = HttpLink(server, wire, source)
    try:
        session = _shake_hands(link, context, source.era)
    except web.NetworkError as error:
        raise ToolError(f"MCP server {server.name!r}: {error.message}", retryable=error.retryable) from None
    session.listen()
    return session
