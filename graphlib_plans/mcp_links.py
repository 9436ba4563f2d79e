"""The two ways to talk to an MCP server: a process and its pipes, or requests to a URL.

A link sends one request and returns its result, whatever else arrives meanwhile; it knows nothing of eras and tools.
Both kinds have `name`, `version` (set by whoever shakes hands), `lost` (LinkLost once the link has ended by itself),
`request`, `notify`, `listen`, `hang_up` and `end`. What a server does wrong becomes a ToolError of the call it is for.

`owner` is who has to hear of things that belong to no request, on the link's own threads: `owner.notified(method)`,
`owner.was_lost(link, reason, is_failure=True)`, `owner.expire()`.

Threads of a server called `x`:

    mcp.x.read         blocks on the server's stdout; ends with it
    mcp.x.write        blocks on its queue of lines, or on the server's stdin; ends when the link closes
    mcp.x.stderr       blocks on the server's stderr; ends with it
    mcp.x.wait         blocks on the process
    mcp.x.listen       (HTTP) blocks on the stream of notifications; ends with the link
    mcp.x.cancel       (HTTP) sends one notifications/cancelled
"""

import contextlib
import itertools
import queue
import threading
import time
from dataclasses import dataclass

from . import processes, web
from .documents import read_json
from .errors import Cancelled, DocumentError, PlanError, ToolError, ToolTimeout, shorten, type_name
from .tools import CancelToken, printable, quiet_context

MODERN = "2026-07-28"
#: Versions opened by `initialize`, the newest first.
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
METHOD_NOT_FOUND, INVALID_PARAMS = -32601, -32602

#: Seconds of a message at the end: what a program that ends may wait for a server that does not care.
GOODBYE_S = 2.0
#: Seconds from the end of its input to SIGTERM, and from there to SIGKILL: those of the official clients.
CLOSE_S = 2.0
#: Seconds between tries to follow the notifications of a server over HTTP again; the last one repeats.
FOLLOW_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
#: Seconds that a server may leave a message unread, when a call has timed out, before it counts as hung.
STUCK_S = 10.0
#: Seconds that a process may live on after it closed its output, or its output after the process ended.
LINGER_S = 0.5
#: Bytes of a server's stderr that are kept, and lines of it that a message quotes.
STDERR_BYTES = 32 * 1024
STDERR_LINES = 20
#: Bytes of one answer over HTTP, as over stdio.
ANSWER_BYTES = web.EVENT_BYTES


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


# stdio ----------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Pending:
    """One request that waits for its answer. The link's lock protects `answer`."""

    woken: threading.Event
    method: str
    answer: object = None


#: A time that is always long to come.
_NEVER = float("inf")


class StdioLink:
    """A server process and its three pipes. Requests may overlap; each caller blocks on its own answer only."""

    def __init__(self, server, wire, environ, owner):
        self.name = server.name
        self.version = None
        #: LinkLost once the link has ended, with everything known about why.
        self.lost = None
        self.was_probed_only = True
        self._wire = wire
        self._owner = owner
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
            self._owner.notified(message.method)
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
        self._owner.was_lost(self, self.lost.message)

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
            quoted = "\n".join(f"    {printable(shorten(line, 500))}" for line in lines)
            text += f". Its last words on stderr:\n{quoted}"
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


# Streamable HTTP ------------------------------------------------------------------------------------------------------


_JSON = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


class HttpLink:
    """A server at a URL: every request is a POST of its own, answered by JSON or by a stream of events."""

    def __init__(self, server, wire, owner):
        self.name = server.name
        self.version = None
        self.lost = None
        self._url = server.url
        self._headers = dict(server.headers)
        self._wire = wire
        self._owner = owner
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
            self._owner.was_lost(self, self.lost.message, is_failure=False)
            raise LinkLost(self.lost.message, expired=True)
        try:
            value = read_json(body)
        except DocumentError:
            value = None
        if isinstance(value, dict) and isinstance(value.get("error"), dict) and response.status not in (401, 403):
            return value
        hints = {401: "headers", 403: "headers", 404: "url", 405: "url"}
        hint = f"; check the {hints[response.status]} of [mcp.{self.name}]" if response.status in hints else ""
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
                self._owner.notified(message.method)
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

    def _send(self, method, cancel, limit_s, body=None, headers=None, may_move=True):
        ours = {**(headers or {}), "MCP-Protocol-Version": self.version, "Mcp-Session-Id": self._session_id}
        ours = {name: value for name, value in ours.items() if value is not None}
        taken = {name.lower() for name in ours}
        configured = {name: value for name, value in self._headers.items() if name.lower() not in taken}
        headers = {**configured, **ours}
        response = web.send(method, self._url, cancel=cancel, limit_s=limit_s, body=body, headers=headers)
        if response.status in (301, 302, 307, 308) and may_move and "location" in response.headers:
            response.close()
            self._url = web.redirect(self._url, response.headers["location"])  # often but a slash at the end
            return self._send(method, cancel, limit_s, body, headers, may_move=False)
        return response

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
        for pause in itertools.chain(FOLLOW_S, itertools.repeat(FOLLOW_S[-1])):
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
            self._owner.expire()
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
