"""JSON-RPC messages over byte streams, for both ends we play: the client of MCP servers and the plan server.

The framing and the question "what is this line?" are mcp_relay's, and this is the only module that imports it. What a
peer sends is never an exception: a line that cannot be used becomes an Incoming whose `problem` says why.
"""

import json
import re
import threading
from dataclasses import dataclass

import mcp_relay

from . import documents
from .errors import DocumentError

#: Bytes of one message. A tool that returns more wants a file; without a limit a peer could take all memory.
MAX_FRAME_BYTES = mcp_relay.MAX_FRAME_BYTES

#: Bytes of a line that is no message which reports may quote.
EXCERPT_BYTES = 200

#: JSON-RPC 2.0, section 5.1.
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603

#: Kinds of Incoming besides those of mcp_relay (request, response, notification, batch, noise).
TOO_LONG = "too long"


@dataclass(frozen=True)
class Incoming:
    """One message as it came.

    kind: "request", "response", "notification", "batch", "noise" (no JSON-RPC message) or "too long".
    value: the parsed JSON, or None where it could not be read strictly. method: of a request or notification.
    id: a key to match requests and responses by (JSON type and exact text), or None. id_text: the bytes of the id as
    sent, b"null" where there is none. parts: the members of a batch, as Incoming.
    problem: why it cannot be used, with `code` as the JSON-RPC error to answer it with; "" and 0 when it can.
    excerpt: the beginning of a line that is noise, for reports.
    """

    kind: str
    value: object = None
    method: str | None = None
    id: tuple | None = None
    id_text: bytes = b"null"
    parts: tuple = ()
    problem: str = ""
    code: int = 0
    excerpt: bytes = b""

    @property
    def params(self):
        """The params object; an empty one where there is none."""
        params = self.value.get("params") if isinstance(self.value, dict) else None
        return params if isinstance(params, dict) else {}


def read_messages(stream, limit=MAX_FRAME_BYTES):
    """Yield an Incoming for every line of a binary stream, until its end.

    stream: unbuffered, or buffered with read1. Blank lines are left out. A line longer than `limit` bytes yields one
    Incoming of kind "too long" as soon as that is known; reading goes on at its end. A last line without newline
    counts if it is a message. OSError and ValueError of the stream (closed under us) count as its end.
    """
    read = getattr(stream, "read1", stream.read)
    framer = mcp_relay.Framer(limit)
    while True:
        try:
            chunk = read(mcp_relay.READ_BYTES)
        except (OSError, ValueError):
            chunk = b""
        if not chunk:
            break
        frames, rest = framer.feed(chunk)
        yield from _incoming(frames)
        while framer.raw:
            yield Incoming(TOO_LONG, problem=f"a line has more than {limit:,} bytes", code=INVALID_REQUEST)
            rest = _after_line(rest, read)
            framer = mcp_relay.Framer(limit)
            frames, rest = framer.feed(rest)
            yield from _incoming(frames)
    yield from (message for message in _incoming([framer.tail()]) if message.kind != mcp_relay.NOISE)


def _after_line(rest, read):
    """Return what follows the end of the line that `rest` begins with, reading on as far as needed."""
    while b"\n" not in rest:
        try:
            rest = read(mcp_relay.READ_BYTES)
        except (OSError, ValueError):
            return b""
        if not rest:
            return b""
    return rest.partition(b"\n")[2]


def _incoming(frames):
    for frame in frames:
        message = mcp_relay.classify(frame)
        if message.kind != mcp_relay.BLANK:
            yield _from_frame(frame, message)


def _from_frame(frame, message):
    try:
        value, problem = documents.read_json(frame, "the message"), ""
    except DocumentError as failure:
        value, problem = None, failure.message
    id_text = mcp_relay.raw_id(frame) if isinstance(message.value, dict) else b"null"
    if id_text[:1] not in b'"-0123456789':
        id_text = b"null"  # an id of another type cannot be echoed
    if message.kind == mcp_relay.NOISE and not problem:
        problem, code = "the line is no JSON-RPC 2.0 message", INVALID_REQUEST
    else:
        code = PARSE_ERROR if problem else 0
    parts = tuple(_from_value(part) for part in message.parts) if not problem else ()
    excerpt = frame[:EXCERPT_BYTES] if message.kind == mcp_relay.NOISE else b""
    return Incoming(message.kind, value, message.method, message.key, id_text, parts, problem, code, excerpt)


def _from_value(part):
    """Return the Incoming of one member of a batch."""
    noise = part.kind == mcp_relay.NOISE
    identity = part.value.get("id") if isinstance(part.value, dict) else None
    id_text = json.dumps(identity).encode() if isinstance(identity, (str, int, float)) else b"null"
    return Incoming(part.kind, part.value, part.method, part.key, id_text,
                    problem="a member of the batch is no JSON-RPC 2.0 message" if noise else "",
                    code=INVALID_REQUEST if noise else 0)


_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def encode(message):
    """Return a message as one line of ASCII JSON with its newline.

    Lone surrogates become U+FFFD: strict peers refuse the whole message over one. ValueError for NaN and Infinity.
    """
    text = json.dumps(message, allow_nan=False, separators=(",", ":"))
    if "\\ud" in text:  # a surrogate, lone or half of a pair
        clean = _LONE_SURROGATE.sub("\ufffd", json.dumps(json.loads(text), ensure_ascii=False))  # loads joins pairs
        text = json.dumps(json.loads(clean), separators=(",", ":"))
    return text.encode() + b"\n"


def request(identity, method, params=None):
    """Return a request; without an identity (None), a notification."""
    message = {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}
    return {key: value for key, value in message.items() if value is not None}


def result(id_text, value):
    """Return the line of a successful response to the request whose id was sent as `id_text`."""
    return mcp_relay.result_frame(id_text, encode(value).rstrip(b"\n")) + b"\n"


def error(id_text, code, message):
    """Return the line of an error response to the request whose id was sent as `id_text`."""
    return mcp_relay.error_frame(id_text, code, message) + b"\n"


class Outgoing:
    """The writing end of a stream, for several threads: whole lines, in the order of the calls.

    `lock` is held while one line is written, so that a second writer never slips between a message and its newline.
    """

    def __init__(self, stream):
        self._stream = stream
        self.lock = threading.Lock()

    def send(self, line):
        """Write a line of bytes and flush it. OSError when the peer is gone, ValueError when the stream is closed."""
        with self.lock:
            view = memoryview(line)
            while view:
                view = view[self._stream.write(view):]
            self._stream.flush()
