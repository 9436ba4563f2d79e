"""One HTTP request at a time, which a cancelled run can end at any moment, and server-sent events.

`send` returns a Response as soon as its head is there; the body is then read in chunks, as a whole, or as server-sent
events. Redirects are answers like any other: whoever sends decides whether to follow them.

Looking up a name, connecting and reading cannot be interrupted in Python, so a thread `web.<host>` does them and hands
on what it got through a bounded queue. The caller blocks on that queue alone, never longer than its limit; a cancel
wakes it and shuts the socket down, which ends the thread.
"""

import codecs
import contextlib
import http.client
import os
import queue
import re
import socket
import ssl
import struct
import threading
import time
import urllib.parse
from dataclasses import dataclass

from . import __version__
from .errors import ToolError, ToolTimeout

#: Seconds for looking up a name and connecting, per address.
CONNECT_S = 30.0
#: Bytes asked of one read.
READ_BYTES = 65536
#: Pieces of a body that may wait to be read; a slow reader then stops the sender.
QUEUE_PIECES = 16
#: Bytes of one server-sent event. The largest known are tool results; those over stdio may have as many.
EVENT_BYTES = 64 * 1024 * 1024

USER_AGENT = f"graphlib-plans/{__version__}"


class NetworkError(ToolError):
    """A server could not be reached, or the connection ended before the answer did."""


class TooLarge(ToolError):
    """An answer has more bytes than its reader takes."""


def place(url):
    """Return a URL as it may stand in messages: without user, password, query and fragment."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def origin(url):
    """Return (scheme, host, port) of a URL. ValueError for a port that is none."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def redirect(url, location, hosts=()):
    """Return the URL that a Location header leads to. ToolError, not retryable, where it must not be followed.

    Allowed are the same host and port, https in place of http there, and `hosts`; never http in place of https.
    """
    try:
        target = urllib.parse.urljoin(url, location)
        (scheme, host, port), (new_scheme, new_host, new_port) = origin(url), origin(target)
    except ValueError:
        raise ToolError(f"{place(url)} redirects to {location[:100]!r}, which is no URL", retryable=False) from None
    is_upgrade = (scheme, port, new_scheme, new_port) == ("http", 80, "https", 443)
    is_there = (new_host == host and (new_port == port or is_upgrade)) or new_host in hosts
    is_safe = new_scheme in ("http", "https") and (scheme, new_scheme) != ("https", "http")
    if not (is_there and is_safe):
        raise ToolError(f"{place(url)} redirects to {place(target)!r}, which is another host", retryable=False)
    return target


def send(method, url, *, cancel, limit_s, headers=None, body=None):
    """Send a request and return its Response once the head has arrived.

    url: absolute, http or https. headers: name → text. body: bytes or None. cancel: a tools.CancelToken.
    limit_s: seconds until the whole body must have been read, None for no limit.
    ToolError for a URL or header that cannot be sent, NetworkError, ToolTimeout, Cancelled.
    """
    cancel.check()
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ToolError(f"{url!r} is not a URL: {error}", retryable=False) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ToolError(f"{url!r} is not an http or https URL", retryable=False)
    if parts.username is not None:
        raise ToolError("a URL cannot hold a user name; send an Authorization header instead", retryable=False)
    response = Response(place(url), cancel, limit_s)
    request = _Request(method, parts, port, {"User-Agent": USER_AGENT, **(headers or {})}, body)
    threading.Thread(target=response.fetch, args=(request,), name=f"web.{parts.hostname}", daemon=True).start()
    try:
        response.wait_for_head()
    except BaseException:
        response.close()
        raise
    return response


@dataclass(frozen=True)
class _Request:
    method: str
    parts: urllib.parse.SplitResult
    port: int | None
    headers: dict
    body: bytes | None

    @property
    def target(self):
        path = _quoted(self.parts.path) or "/"
        return f"{path}?{_quoted(self.parts.query)}" if self.parts.query else path


def _quoted(text):
    """Percent-encode what may not stand in a request line; what is encoded already stays."""
    return urllib.parse.quote(text, safe="/%:@!$&'()*+,;=?~-._[]", errors="replace")


#: SO_LINGER of zero seconds: closing resets the connection.
_RESET = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)

_HEAD, _DATA, _END, _ERROR, _CANCELLED = "head", "data", "end", "error", "cancelled"


class Response:
    """The answer to one request. Use it as a context manager, or close it: an unread body keeps a connection open.

    status: HTTP status code. headers: lower-case name → text; repeated ones are joined by commas.
    Owned by the caller's thread; `fetch` alone runs on the thread of the request.
    """

    def __init__(self, where, cancel, limit_s):
        self.where = where
        self.status = 0
        self.headers = {}
        self._cancel = cancel
        self._limit_s = limit_s
        self._deadline = None if limit_s is None else time.monotonic() + limit_s
        self._pieces = queue.Queue(QUEUE_PIECES)
        #: Set once nobody reads any more; written by the reader, read by both.
        self._closed = threading.Event()
        self._socket = None
        self._remove = cancel.on_cancel(self._abort)

    # The thread of the request

    def fetch(self, request):
        """Do the request and put what comes into the queue; nothing is raised."""
        connection = None
        try:
            connection = _connection(request)
            connection.connect()
            self._socket = connection.sock
            self._socket.settimeout(None)  # the reader watches the time
            if not self._closed.is_set():
                self._exchange(connection, request)
        except Exception as error:  # noqa: whatever it is, the reader must hear of it instead of waiting
            self._put(_ERROR, error)
        finally:
            if connection is not None:
                connection.close()

    def _exchange(self, connection, request):
        connection.request(request.method, request.target, body=request.body, headers=request.headers)
        with connection.getresponse() as answer:
            self._put(_HEAD, answer)
            while (chunk := answer.read1(READ_BYTES)) and not self._closed.is_set():
                self._put(_DATA, chunk)
            if answer.length:
                raise http.client.IncompleteRead(b"", answer.length)
            self._put(_END, None)

    def _put(self, kind, value):
        if not self._closed.is_set():
            self._pieces.put((kind, value))

    # Whoever cancels

    def _abort(self):
        self._closed.set()
        self._shut_down()
        with contextlib.suppress(queue.Full):  # a full queue wakes its reader anyway, which then looks at the token
            self._pieces.put_nowait((_CANCELLED, None))

    def _shut_down(self):
        """Wake the thread that reads the socket, and have it reset the connection when it closes it.

        Without a reset a server with a full pipe may go on waiting for minutes (measured) for a reader that has left.
        """
        if self._socket is not None:
            with contextlib.suppress(OSError):  # closed already
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                # The plain socket's method: an SSLSocket's own would forget its state while the other thread reads.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    # The reader

    def wait_for_head(self):
        """Block until status and headers are there. NetworkError, ToolTimeout, Cancelled."""
        _, answer = self._next()
        self.status = answer.status
        for name, value in answer.headers.items():
            name = name.lower()
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value

    def _next(self):
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        try:
            kind, value = self._pieces.get(timeout=left)
        except queue.Empty:
            raise ToolTimeout(f"{self.where} did not answer completely within {self._limit_s:g} s") from None
        self._cancel.check()
        if kind == _ERROR:
            raise _explained(value, self.where, bool(self.status)) from None
        return kind, value

    def chunks(self):
        """Yield the body as bytes, as it comes. NetworkError, ToolTimeout, Cancelled."""
        while True:
            kind, value = self._next()
            if kind == _END:
                return
            yield value

    def read(self, max_bytes):
        """Return the whole body. TooLarge when it has more than max_bytes; else as `chunks`."""
        body = bytearray()
        for chunk in self.chunks():
            body += chunk
            if len(body) > max_bytes:
                raise TooLarge(f"the answer of {self.where} has more than {max_bytes:,} bytes", retryable=False)
        return bytes(body)

    def events(self):
        """Yield the body as server-sent events. TooLarge for an endless one; else as `chunks`."""
        return events(self.chunks())

    def text(self, body):
        """Decode a body by the charset of its Content-Type; UTF-8 where there is none or an unknown one."""
        found = re.search(r"charset=\"?([\w.:-]+)", self.headers.get("content-type", ""), re.I)
        try:
            return body.decode(found[1] if found else "utf-8", "replace")
        except LookupError:
            return body.decode("utf-8", "replace")

    @property
    def media_type(self):
        """The Content-Type without parameters, lower case; "" when there is none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def close(self):
        """End the request wherever it stands; harmless when it is over."""
        self._remove()
        self._closed.set()
        self._shut_down()
        # Makes room for a piece that the thread may be waiting to put; after it, the thread looks at `_closed`.
        with contextlib.suppress(queue.Empty):
            while True:
                self._pieces.get_nowait()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()


def _explained(error, where, has_head):
    """Return the error to raise for what went wrong on the thread of a request."""
    if isinstance(error, (http.client.InvalidURL, ValueError)) and not isinstance(error, ssl.SSLError):
        return ToolError(f"the request to {where} cannot be sent: {error}", retryable=False)
    if isinstance(error, ssl.SSLCertVerificationError):
        return NetworkError(f"{where} cannot be trusted: {error.verify_message}", retryable=False)
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, socket.gaierror):
        reason = "its host name is not known"
    elif isinstance(error, TimeoutError):
        reason = f"no connection within {CONNECT_S:g} s"
    elif isinstance(error, (http.client.IncompleteRead, http.client.RemoteDisconnected, ConnectionResetError)):
        reason = "the connection was closed before the answer was complete"
    elif isinstance(error, http.client.HTTPException):
        reason = f"its answer is not HTTP ({type(error).__name__})"
    return NetworkError(f"{where} {'broke off' if has_head else 'could not be reached'}: {reason}")


def _connection(request):
    """Return an unconnected connection, through the proxy the environment names for this host, if any."""
    import urllib.request  # slow to import, and needed for its reading of proxy variables alone

    parts, host, port = request.parts, request.parts.hostname, request.port
    proxy = None if host in _LOOPBACK else urllib.request.getproxies_environment().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass_environment(parts.netloc):
        return _proxied(request, urllib.parse.urlsplit(proxy if "//" in proxy else f"http://{proxy}"))
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=CONNECT_S)
    return http.client.HTTPSConnection(host, port, timeout=CONNECT_S, context=_trust())


#: Hosts that no proxy can reach for us.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def _proxied(request, proxy):
    host, port = request.parts.hostname, request.port
    port = port or (443 if request.parts.scheme == "https" else 80)
    kind = http.client.HTTPSConnection if request.parts.scheme == "https" else http.client.HTTPConnection
    trust = {"context": _trust()} if request.parts.scheme == "https" else {}
    connection = kind(proxy.hostname, proxy.port or 80, timeout=CONNECT_S, **trust)
    connection.set_tunnel(host, port)  # also for plain HTTP: one way through every proxy that allows CONNECT
    return connection


def _trust():
    """Return the system's trusted certificates; made once, because reading them takes a while."""
    if not _TRUST:
        _TRUST.append(ssl.create_default_context())
    return _TRUST[0]


_TRUST = []


@dataclass(frozen=True)
class Event:
    """One server-sent event. name: "message" when it had none."""

    name: str
    data: str


def events(chunks):
    """Yield an Event for every complete server-sent event of a body.

    chunks: iterable of bytes, cut anywhere. An event that no empty line ends is dropped (HTML standard, server-sent
    events, 9.2.6). TooLarge for an event beyond EVENT_BYTES.
    """
    name, data, size = "", [], 0
    for line in _lines(chunks):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
            size = _within(size + len(value))
        elif field == "event":
            name = value
        elif not line:
            if data:
                yield Event(name or "message", "\n".join(data))
            name, data, size = "", [], 0


def _lines(chunks):
    """Yield the complete lines of a UTF-8 body; LF, CR and CRLF end one, and the bytes may be cut anywhere."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    pieces, size, after_cr = [], 0, False
    for chunk in chunks:
        text = decoder.decode(chunk)
        if not text:
            continue
        if after_cr:
            text = text.removeprefix("\n")
        after_cr = text.endswith("\r")
        *lines, rest = _LINE_END.split(text)
        for line in lines:
            yield "".join(pieces) + line
            pieces, size = [], 0
        pieces.append(rest)
        size = _within(size + len(rest))


def _within(size):
    if size > EVENT_BYTES:
        raise TooLarge(f"a server-sent event has more than {EVENT_BYTES:,} bytes", retryable=False)
    return size


_LINE_END = re.compile(r"\r\n|\n|\r")
