"""The client of MCP servers: one connection per server for the life of the program, over stdio or Streamable HTTP.

A `Pool` owns the servers. Each is a tools.Source that connects when it is first needed and again after its server died;
whoever needs it meanwhile waits, and a server that keeps failing is left alone for a growing while. Both protocol eras
are spoken: `initialize` up to 2025-11-25, per-request metadata from 2026-07-28. We declare no capabilities, so a
server may not ask us anything; one that does is told so.

    Pool ─▶ _ServerSource ─▶ _Session (era, handshake, tools) ─▶ _StdioLink or _HttpLink (one request, one answer)

Threads of a server called `x`:

    mcp.x.connect      one attempt to connect; ends with it. A caller who gives up does not end it: the next one gains
    mcp.x.read         blocks on the server's stdout; ends with it
    mcp.x.write        blocks on its queue of lines, or on the server's stdin; ends when the link closes
    mcp.x.stderr       blocks on the server's stderr; ends with it
    mcp.x.wait         blocks on the process
    mcp.x.listen       (HTTP) blocks on the stream of notifications; ends with the link
    mcp.x.cancel       (HTTP) sends one notifications/cancelled
"""

import base64
import contextlib
import itertools
import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass

from . import __version__, processes, schema, web
from .documents import did_you_mean, read_json, shorten, type_name
from .errors import Cancelled, ConfigError, DocumentError, PlanError, Problem, ToolError, ToolTimeout
from .tools import CancelToken, Tool, printable, quiet_context

MODERN = "2026-07-28"
#: Versions opened by `initialize`, the newest first: that one is offered.
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
_KEY = "io.modelcontextprotocol/"
_CLIENT = {"name": "graph", "version": __version__}
#: What a modern request carries about us (MCP 2026-07-28, per-request metadata).
_META = {_KEY + "protocolVersion": MODERN, _KEY + "clientCapabilities": {}, _KEY + "clientInfo": _CLIENT}
#: MCP 2026-07-28: the version is not supported; data.supported names those that are.
UNSUPPORTED_VERSION = -32022
METHOD_NOT_FOUND, INVALID_PARAMS = -32601, -32602

#: Seconds for connecting, a call and a shutdown message where nothing else is configured. The first two are the
#: defaults of [settings]; the last is what a program that ends may wait for a server that does not care.
CONNECT_S = 30.0
CALL_S = 120.0
GOODBYE_S = 2.0
#: Seconds that a server may be silent on `server/discover` before it is taken for one that only knows `initialize`.
PROBE_S = 5.0
#: Seconds from the end of its input to SIGTERM, and from there to SIGKILL: those of the official clients.
CLOSE_S = 2.0
#: Seconds of the second, third, … pause before a server that keeps failing is tried again; the first retry is at once.
BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
#: A server that lived this many seconds is not taken for one that keeps failing.
STABLE_S = 60.0
#: Seconds that a server may leave a message unread, when a call has timed out, before it counts as hung.
STUCK_S = 10.0
#: Seconds that a process may live on after it closed its output, or its output after the process ended.
LINGER_S = 0.5
#: Bytes of a server's stderr that are kept, and lines of it that a message quotes.
STDERR_BYTES = 32 * 1024
STDERR_LINES = 20
#: Pages of one tools/list. Servers in use have at most a few; a cursor that changes for ever must end somewhere.
MAX_PAGES = 1000
#: Rounds of "ask again later" (2026-07-28, input_required without requests), and the wait before each, in seconds.
MAX_ROUNDS = 10
ROUND_S = 0.25
#: Bytes of one answer over HTTP, as over stdio.
ANSWER_BYTES = web.EVENT_BYTES
#: How many programs of ours may start each other: a configuration that names its own server would never end.
MAX_DEPTH = 8
DEPTH_VARIABLE = "GRAPH_MCP_DEPTH"


class RpcError(ToolError):
    """A server answered a request with a JSON-RPC error. code: integer; data: any JSON or None."""

    def __init__(self, server, method, error):
        error = error if isinstance(error, dict) else {}
        code, text = error.get("code"), error.get("message")
        self.code = code if isinstance(code, int) else 0
        self.data = error.get("data")
        text = shorten(text if isinstance(text, str) else "no message", 2000)
        payload = {"error": text, "code": self.code} | ({} if self.data is None else {"data": self.data})
        message = f"MCP server {server!r} refused {method}: {printable(text)} ({self.code})"
        super().__init__(message, payload, retryable=self.code not in (METHOD_NOT_FOUND, INVALID_PARAMS))


class HttpError(ToolError):
    """A server refused a request with an HTTP status and no JSON-RPC error."""

    def __init__(self, message, status, body):
        retryable = status in (408, 429) or status >= 500
        super().__init__(message, {"error": f"HTTP {status}", "body": body}, retryable)
        self.status = status


class LinkLost(ToolError):
    """The connection to a server ended before the answer came. expired: it forgot our session; nothing was done."""

    def __init__(self, message, payload=None, expired=False):
        super().__init__(message, payload)
        self.expired = expired


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
    links = [link for link in (source.retire() for source in sources) if link is not None]
    for link in links:
        link.hang_up()
    deadline = time.monotonic() + CLOSE_S
    for link in links:
        link.end(deadline)


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
        """Take no more calls and return the link that is left to close, if any."""
        self.closing.cancel(f"the configuration of MCP server {self.prefix!r} changed, or the program ends")
        with self._lock:
            session, self._session = self._session, None
        return session.link if session else None

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
        wait = self._not_before - self._pool.now()
        if wait > 0 and self._attempt is None:
            raise ToolError(
                f"MCP server {self.prefix!r} failed {self._failures} times in a row and is left alone for another"
                f" {wait:.0f} s; the last time: {self._reason}")

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
                notes.append(f"MCP server {self.prefix!r} lists {printable(shorten(bare, 80))!r} twice; the first counts")
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
        limit_s = self.server.timeout_s or (CALL_S if context.deadline is None else None)
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
    """A connection after its handshake. link: _StdioLink or _HttpLink. Used by any thread."""

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


# stdio -------------------------------------------------------------------------------------------------------------


def _open_stdio(server, wire, environ, source):
    context = source.connect_context()
    link = _StdioLink(server, wire, environ, source)
    try:
        try:
            session = _shake_hands(link, context, source.era)
        except LinkLost:
            if source.era == "legacy" or not link.was_probed_only:
                raise
            # Some old servers exit over a first message they do not know: start again and greet them as they expect.
            link = _StdioLink(server, wire, environ, source)
            session = _shake_hands(link, context, "legacy")
        session.listen()
        return session
    except ToolTimeout:
        link.break_off(f"no handshake within {source.terms[2]:g} s (connect_timeout_s)")
        raise link.lost or ToolError(f"MCP server {server.name!r} did not shake hands in time") from None
    except BaseException:
        link.break_off("the handshake failed")
        raise


@dataclass(eq=False)
class _Pending:
    """One request that waits for its answer. The link's lock protects `answer`."""

    woken: threading.Event
    method: str
    answer: object = None


#: A time that is always long to come.
_NEVER = float("inf")


class _StdioLink:
    """A server process and its three pipes. Requests may overlap; each caller blocks on its own answer only."""

    def __init__(self, server, wire, environ, source):
        self.name = server.name
        self.version = None
        #: LinkLost once the link has ended, with everything known about why.
        self.lost = None
        self.was_probed_only = True
        self._wire = wire
        self._source = source
        self._ids = itertools.count(1)
        # Protects _pending, lost and _cause; never held while something blocks.
        self._lock = threading.Lock()
        self._pending = {}
        self._cause = ""
        self._noise = ""
        self._command = server.command
        self._outbox = queue.SimpleQueue()
        #: time.monotonic() when the line that is being written was begun; written by one thread, read by others.
        self._writing_since = _NEVER
        self._exited = threading.Event()
        self._process = processes.spawn(
            [server.command, *server.args], name=f"MCP server {self.name!r}", environ=environ, cwd=server.cwd)
        self._stderr = bytearray()
        self._threads = {
            name: threading.Thread(target=target, name=f"mcp.{self.name}.{name}", daemon=True)
            for name, target in (("read", self._read), ("write", self._write), ("stderr", self._read_stderr),
                                 ("wait", self._wait))
        }
        for thread in self._threads.values():
            thread.start()

    # Requests

    def request(self, method, params, context, headers=None):
        """Send a request, wait for the answer and return its result. RpcError, LinkLost, ToolTimeout, Cancelled."""
        limit = context.remaining()
        identity = str(next(self._ids))
        pending = _Pending(threading.Event(), method)
        self.was_probed_only = self.was_probed_only and method == "server/discover"
        with self._lock:
            if self.lost is not None:
                raise LinkLost(self.lost.message, self.lost.payload)
            self._pending[identity] = pending
        self._outbox.put(self._wire.encode(self._wire.request(int(identity), method, params)))
        remove = context.cancel.on_cancel(pending.woken.set)
        try:
            pending.woken.wait(limit)
        finally:
            remove()
            with self._lock:
                del self._pending[identity]
        if pending.answer is None:
            self._give_up(identity, pending, context, limit)
        if isinstance(pending.answer, ToolError):
            raise pending.answer
        return _result(self.name, method, pending.answer)

    def _give_up(self, identity, pending, context, limit):
        """Tell the server that nobody waits any more, and raise Cancelled, LinkLost or ToolTimeout."""
        if self.lost is not None:
            raise LinkLost(self.lost.message, self.lost.payload)
        reason = context.cancel.reason if context.cancel.cancelled else f"timed out after {limit:g} s"
        if pending.method not in ("initialize", "server/discover"):  # MCP: these are never cancelled
            params = {"requestId": int(identity), "reason": reason}
            self._outbox.put(self._wire.encode(self._wire.request(None, "notifications/cancelled", params)))
        context.cancel.check()
        if time.monotonic() - self._writing_since > STUCK_S:
            self.break_off("it stopped reading its input")
        raise ToolTimeout(f"MCP server {self.name!r} did not answer {pending.method} within {limit:g} s")

    def notify(self, method, context):
        """Send a notification without parameters."""
        self._outbox.put(self._wire.encode(self._wire.request(None, method)))

    def listen(self, method, params):
        """Open the subscription of a modern server; its answer, should one come, belongs to nobody."""
        if method is not None:
            identity = f"listen-{next(self._ids)}"
            self._outbox.put(self._wire.encode(self._wire.request(identity, method, params)))

    # Threads

    def _write(self):
        out = self._wire.Outgoing(self._process.stdin)
        # A server that closed its input is no news: that it ended, if it did, the other threads notice.
        with contextlib.suppress(OSError, ValueError), self._process.stdin:
            while (line := self._outbox.get()) is not None:
                self._writing_since = time.monotonic()
                out.send(line)
                self._writing_since = _NEVER

    def _read(self):
        try:
            with self._process.stdout as stream:
                for message in self._wire.read_messages(stream):
                    self._take(message)
        except Exception as bug:  # noqa: a reader that died unseen would leave every caller waiting
            self.break_off(f"what it sent could not be handled ({type(bug).__name__}: {bug})")
        finally:
            if not self._exited.wait(LINGER_S):
                self.break_off("it closed its output")
            self._exited.wait(LINGER_S)
            self._end()

    def _take(self, message):
        if message.kind == "response":
            self._answer(message)
        elif message.kind == "request":
            self._outbox.put(_reply_to_server(self._wire, message))
        elif message.kind == "notification" and message.method == "notifications/cancelled":
            self._cancelled_by_server(message)
        elif message.kind == "notification":
            self._source.notified(message.method)
        elif message.kind == "batch":
            for part in message.parts:
                self._take(part)
        elif message.kind == self._wire.TOO_LONG:
            self._fail_all(f"MCP server {self.name!r} sent {message.problem}")
        elif not self._noise:
            self._noise = printable(shorten(message.excerpt.decode("utf-8", "replace"), 200))

    def _answer(self, message):
        # By the text of the id alone: some servers answer 7 with "7", and no text of ours stands for two requests.
        with self._lock:
            pending = self._pending.get(message.id[1]) if message.id else None
            if pending is not None and pending.answer is None:
                pending.answer = message.value if not message.problem else ToolError(
                    f"the answer of MCP server {self.name!r} to {pending.method} cannot be read: {message.problem}")
                pending.woken.set()

    def _cancelled_by_server(self, message):
        with self._lock:
            pending = self._pending.get(str(message.params.get("requestId")))
            if pending is not None and pending.answer is None:
                reason = printable(shorten(str(message.params.get("reason", "no reason")), 200))
                pending.answer = ToolError(f"MCP server {self.name!r} cancelled {pending.method}: {reason}")
                pending.woken.set()

    def _fail_all(self, text):
        with self._lock:
            for pending in self._pending.values():
                pending.answer = pending.answer or ToolError(text)
                pending.woken.set()

    def _read_stderr(self):
        with self._process.stderr as stream:
            while chunk := stream.read(processes.READ_BYTES):
                self._stderr += chunk
                del self._stderr[:-STDERR_BYTES]

    def _wait(self):
        self._process.wait()
        self._exited.set()
        self._threads["read"].join(LINGER_S)
        processes.end_group(self._process)  # what it started serves nobody, and may hold its output open
        self._end()

    def _end(self):
        """Take note that the link is over and wake everybody who waits. Called by two threads, once each at most."""
        self._threads["stderr"].join(LINGER_S)
        with self._lock:
            if self.lost is not None:
                return
            self.lost = LinkLost(*self._obituary())
            for pending in self._pending.values():
                pending.woken.set()
        self._outbox.put(None)
        self._source.was_lost(self, self.lost.message)

    def _obituary(self):
        """Return (sentence, payload) about how the server ended."""
        code = self._process.returncode
        how = self._cause or ("is still running" if code is None else processes.ending(code))
        lines = bytes(self._stderr).decode("utf-8", "replace").replace("\r", "\n").split("\n")
        lines = [line for line in lines if line.strip()][-STDERR_LINES:]
        text = f"MCP server {self.name!r} ({self._command}) ended: {how}"
        if self._noise:
            text += f"; it wrote to its output what is no MCP message: {self._noise!r}"
        if lines:
            text += ". Its last words on stderr:\n" + "\n".join(f"    {printable(shorten(line, 500))}" for line in lines)
        return text, {"error": f"server ended: {how}", "stderr": "\n".join(lines)}

    # The end

    def break_off(self, cause):
        """End the process at once; `cause` becomes the reason of the loss unless there is one already."""
        with self._lock:
            self._cause = self._cause or cause
        processes.end_group(self._process)
        if threading.current_thread() is not self._threads["read"]:
            self._threads["read"].join(CLOSE_S)

    def hang_up(self):
        """Close the server's input once what waits to be written is written; it should end by itself."""
        with self._lock:
            self._cause = self._cause or "we closed the connection"
        self._outbox.put(None)

    def end(self, deadline):
        """Wait for the end of the process until `deadline` (time.monotonic), then terminate it, then kill it."""
        if not self._exited.wait(max(0.0, deadline - time.monotonic())):
            processes.signal_group(self._process, "SIGTERM")
            self._exited.wait(CLOSE_S)
        processes.end_group(self._process)  # also what a wrapper such as npx or sh left behind
        for name in ("wait", "read", "stderr"):
            self._threads[name].join(CLOSE_S)


def _reply_to_server(wire, message):
    """Return the line that answers a request of the server. We declared no capability, so only ping is due."""
    if message.method == "ping":
        return wire.result(message.id_text, {})
    return wire.error(message.id_text, METHOD_NOT_FOUND, "this client answers no requests")


def _result(name, method, answer):
    """Return the result object of a response value. RpcError for an error, ToolError for what is neither."""
    if "error" in answer:
        raise RpcError(name, method, answer["error"])
    result = answer.get("result")
    if not isinstance(result, dict):
        raise ToolError(f"MCP server {name!r} answered {method} with {type_name(result)} instead of an object")
    return result


# Streamable HTTP ---------------------------------------------------------------------------------------------------


def _open_http(server, wire, source):
    context = source.connect_context()
    link = _HttpLink(server, wire, source)
    try:
        session = _shake_hands(link, context, source.era)
    except web.NetworkError as error:
        raise ToolError(f"MCP server {server.name!r}: {error.message}", retryable=error.retryable) from None
    session.listen()
    return session


_JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


class _HttpLink:
    """A server at a URL: every request is a POST of its own, answered by JSON or by a stream of events."""

    def __init__(self, server, wire, source):
        self.name = server.name
        self.version = None
        self.lost = None
        self._url = server.url
        self._headers = dict(server.headers)
        self._wire = wire
        self._source = source
        self._ids = itertools.count(1)
        self._session_id = None
        #: Ends the stream of notifications.
        self._closing = CancelToken()

    def request(self, method, params, context, headers=None):
        """Send a request, wait for the answer and return its result. RpcError, LinkLost, ToolTimeout, Cancelled."""
        identity = next(self._ids)
        message = self._wire.request(identity, method, params)
        try:
            with self._post(message, context, headers) as response:
                answer = self._answer(response, identity, method)
                if method == "initialize":
                    self._session_id = response.headers.get("mcp-session-id")
        except (Cancelled, ToolTimeout) as stop:
            # Closing the stream is the cancel of 2026-07-28; older servers keep working unless they are told.
            if self.version in LEGACY and method != "initialize":
                self._tell_cancelled(identity, str(stop))
            raise
        return _result(self.name, method, answer)

    def _answer(self, response, identity, method):
        if response.status >= 400:
            return self._error_answer(response, method)
        if response.media_type == "text/event-stream":
            for event in response.events():
                answer = self._take(event.data, identity)
                if answer is not None:
                    return answer
            raise LinkLost(f"MCP server {self.name!r} ended its stream before it answered {method}")
        answer = self._find(self._parsed(response.read(ANSWER_BYTES)), identity)
        if answer is None:
            raise ToolError(f"MCP server {self.name!r} answered {method} with something else than its response"
                            f" (HTTP {response.status}, {response.media_type or 'no content type'})")
        return answer

    def _error_answer(self, response, method):
        """Return the JSON-RPC error a refused request carries. LinkLost for a forgotten session, ToolError."""
        body = response.read(ANSWER_BYTES)
        if response.status == 404 and self._session_id is not None:
            self.lost = LinkLost(f"MCP server {self.name!r} has forgotten our session", expired=True)
            self._closing.cancel()
            self._source.was_lost(self, self.lost.message, is_failure=False)
            raise LinkLost(self.lost.message, expired=True)
        try:
            value = read_json(body)
        except DocumentError:
            value = None
        if isinstance(value, dict) and isinstance(value.get("error"), dict) and response.status not in (401, 403):
            return value
        hint = "; check the headers of [mcp.%s]" % self.name if response.status in (401, 403) else ""
        text = printable(shorten(" ".join(response.text(body).split()), 300))
        refusal = f"MCP server {self.name!r} refused {method} with HTTP {response.status}"
        raise HttpError(f"{refusal}{f': {text}' if text else ''}{hint}", response.status, text)

    def _parsed(self, body):
        return list(self._wire.read_messages(_Bytes(body.replace(b"\n", b" ").replace(b"\r", b" "))))

    def _take(self, data, identity):
        """Take one message of a stream; return the response value if it is the awaited one."""
        messages = self._parsed(data.encode("utf-8", "replace"))
        for message in messages:
            if message.kind == "notification":
                self._source.notified(message.method)
            elif message.kind == "request":
                self._reply(message)
        return self._find(messages, identity)

    def _find(self, messages, identity):
        for message in messages:
            for each in message.parts or (message,):
                if each.kind == "response" and (each.id is None or each.id[1] == str(identity)):
                    if each.problem:
                        raise ToolError(f"the answer of MCP server {self.name!r} cannot be read: {each.problem}")
                    return each.value
        return None

    def _post(self, message, context, headers=None):
        return self._send("POST", context.cancel, context.remaining(), self._wire.encode(message), {
            **_JSON, **({"Mcp-Method": message["method"]} if self.version == MODERN else {}), **(headers or {})})

    def _send(self, method, cancel, limit_s, body=None, headers=None):
        ours = {"MCP-Protocol-Version": self.version, "Mcp-Session-Id": self._session_id}
        ours = {key: value for key, value in ours.items() if value is not None}
        return web.send(method, self._url, cancel=cancel, limit_s=limit_s, body=body,
                        headers={**self._headers, **(headers or {}), **ours})

    def _reply(self, message):
        line = _reply_to_server(self._wire, message)
        with self._send("POST", self._closing, GOODBYE_S, line, _JSON):
            pass

    def notify(self, method, context):
        """Send a notification without parameters. ToolError when it is refused."""
        with self._post(self._wire.request(None, method), context) as response:
            if response.status >= 400:
                self._error_answer(response, method)

    def _tell_cancelled(self, identity, reason):
        """Send notifications/cancelled from a thread of its own: the caller has no time left."""
        params = {"requestId": identity, "reason": reason}
        message = self._wire.request(None, "notifications/cancelled", params)

        def tell():
            try:
                with self._post(message, quiet_context(deadline=time.monotonic() + GOODBYE_S)):
                    pass
            except PlanError:
                pass  # a courtesy: the caller has its error already

        threading.Thread(target=tell, name=f"mcp.{self.name}.cancel", daemon=True).start()

    def listen(self, method, params):
        """Follow the server's notifications on a thread of its own, for as long as the server offers them."""
        target, name = self._follow, f"mcp.{self.name}.listen"
        threading.Thread(target=target, args=(method, params), name=name, daemon=True).start()

    def _follow(self, method, params):
        for pause in itertools.chain(BACKOFF_S, itertools.repeat(BACKOFF_S[-1])):
            try:
                with self._open_stream(method, params) as response:
                    if response.status >= 400:
                        return  # 405: it offers none; anything else: it will not be better a second later
                    for event in response.events():
                        self._take(event.data, None)
            except ToolError:
                pass  # it broke off; what changed meanwhile is not known
            except Cancelled:
                return
            self._source.expire()
            if self._closing.wait(pause):
                return

    def _open_stream(self, method, params):
        if method is None:
            return self._send("GET", self._closing, None, headers={"Accept": "text/event-stream"})
        message = self._wire.request(f"listen-{next(self._ids)}", method, params)
        return self._post(message, quiet_context(cancel=self._closing))

    def hang_up(self):
        """End the stream of notifications."""
        self._closing.cancel()

    def end(self, deadline):
        """Tell a server that keeps sessions that ours is over."""
        if self._session_id is not None and self.lost is None:
            try:
                with self._send("DELETE", CancelToken(), GOODBYE_S):
                    pass
            except ToolError:
                pass  # it may be gone already


class _Bytes:
    """A body as the stream that read_messages takes."""

    def __init__(self, body):
        self._body = body

    def read(self, size):
        body, self._body = self._body, b""
        return body
