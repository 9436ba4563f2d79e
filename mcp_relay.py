#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# Copyright (c) 2026 the mcp-relay maintainers
"""mcp_relay: see, hold and steer what an MCP host and a stdio MCP server say to each other.

Put it in front of a server:  python3 mcp_relay.py -- COMMAND ARGS
Look at the conversation:     python3 mcp_relay.py serve
Hide a server that is down:   python3 mcp_relay.py down COMMAND ARGS

One file, the standard library alone, Python 3.8 or newer. It relays every byte unchanged, it never lets the
debugger break a session, and it writes nothing but protocol to stdout.

     host ──stdin──▶ reader ─▶ queue ─▶ gate + writer ──▶ server stdin      lane client->server
     host ◀─stdout── writer + gate ◀─ queue ◀─ reader ◀── server stdout     lane server->client
     host ◀─stderr── mirror ◀─────────────────────────── server stderr
                       │ events, holds      ▲ releases, breakpoints, mode
                       ▼                    │
                    reporter ⇄ one loopback connection, JSON lines ⇄ hub ⇄ page, commands, agents

The file reads as the journey of one frame. Part one is pure: bytes and `now` in, values out, no thread, clock,
descriptor or print (tests/relay/test_core_is_pure.py proves it). Part two moves the bytes. Part three is the hub.

Threads, what each blocks on, and who wakes it:

    main              the note queue of the relay       every other thread
    relay.to_server.read, relay.to_client.read          select on the source and a wake pipe
    relay.to_server.write, relay.to_client.write        its lane's queue, or a hold (releases, deadlines)
    relay.stderr.read, relay.stderr.write               the server's stderr; the mirror's buffer
    relay.child       the end of the server process     the operating system
    relay.reporter    select on the hub's socket and a wake pipe
    hub.accept, hub.request-N, hub.store                sockets; the store's queue
"""

import base64
import codecs
import collections
import errno
import json
import os
import queue
import re
import select
import signal
import subprocess
import sys
import threading
import time

__version__ = "0.1.0"

#: Version of the lines that a relay and a hub exchange. A hub of another version is treated as no hub.
PROTOCOL = 1

# ----------------------------------------------------------------------------------------------------------------
# 1. Limits: each number with its unit, its reason and where it comes from.
# ----------------------------------------------------------------------------------------------------------------

#: Bytes asked of one read. Measured: 64 KiB, the default capacity of a Linux pipe, beats larger reads.
READ_BYTES = 65536
#: Bytes of one frame while it is assembled; above it that direction becomes a raw pipe (seed: 64 MiB).
MAX_FRAME_BYTES = 64 * 1024 * 1024
#: Smallest ceiling that --max-frame-bytes accepts (spec/relay.md 2.2).
MIN_FRAME_BYTES = 1024
#: What an unattached session remembers: frames and bytes (design 3), then the oldest go and a gap is marked.
HISTORY_FRAMES = 5000
HISTORY_BYTES = 8 * 1024 * 1024
#: Bytes of handshake and tools/list frames that outlive the history, so that a late debugger knows the schemas.
KEEPSAKE_BYTES = 2 * 1024 * 1024
#: Requests waiting for an answer per session; the oldest is closed as unanswered above it (spec/relay.md 12).
MAX_PENDING = 10000
#: Tools whose input schema is remembered (spec/relay.md 10, D5).
MAX_TOOLS = 1000
#: Noise lines that become executions of "stdout noise"; the rest are counted (seed).
NOISE_RECORDED = 25
#: Bytes of a noise line that are quoted (seed).
NOISE_QUOTE_BYTES = 200
#: Characters of an error result that are quoted in an error message (spec/relay.md M16).
ERROR_QUOTE_CHARS = 500
#: The server's last stderr lines: kept for the record, and quoted on the terminal after an early exit (seed).
STDERR_TAIL_LINES = 200
STDERR_TAIL_BYTES = 32 * 1024
STDERR_QUOTED_LINES = 40
#: Bytes of stderr kept for a host that does not read them; more are dropped and counted, so that a server can
#: never be blocked by its own log (cases.md, stderr-flood).
STDERR_BUFFER_BYTES = 32 * 1024 * 1024
#: Seconds after the host's end of file before SIGTERM, and from there to SIGKILL. Hosts send SIGTERM to the group
#: 2.0 s after closing stdin (spec/mcp.md 10.3), so the relay must be gone before that.
TERM_AFTER_S = 1.5
KILL_AFTER_S = 1.0
#: Seconds that a grandchild which keeps the pipe open is waited for after the server's own exit (design 3).
LINGER_S = 0.5
#: Seconds the whole end may take once the host has left, whoever still holds a pipe.
END_S = 3.5
#: Seconds without progress after which a host that does not read our last stderr lines is left alone.
STDERR_PATIENCE_S = 10.0
#: Seconds that --wait-for-attach holds the first frame, and that a failure waits to be put on record (seed).
ATTACH_WAIT_S = 3.0
FAILURE_WAIT_S = 1.0
#: Seconds between attempts to attach (a refused loopback connect costs nothing), after a loss the quick ones first.
ATTACH_EVERY_S = 2.0
ATTACH_AGAIN_S = (0.2, 0.4, 0.8)
#: Seconds to connect and to shake hands with a hub, between heartbeats, and of silence that mean a lost hub.
CONNECT_S = 0.3
HANDSHAKE_S = 1.0
HEARTBEAT_S = 5.0
SILENCE_S = 15.0
#: Seconds a hold lasts before it is announced on stderr: a shorter one needs no words (spec/relay.md L3).
HOLD_NOTICE_S = 0.25
#: Bytes of one recorded payload; a longer one is shortened with a visible mark (spec/relay.md 20, N12).
PAYLOAD_BYTES = 512 * 1024
#: Chunks that may wait in a lane: enough to keep the writer busy, few enough that a slow peer stops the reader.
LANE_CHUNKS = 8
#: Identical calls in a row that are held, and rounds or failures for the other two kinds of loop (seed; spec 15).
LOOP_THRESHOLD = 3
LOOP_ROUNDS = 3
#: The code of our own JSON-RPC errors: JSON-RPC leaves -32000..-32099 to implementations and no MCP SDK uses this one.
ABORTED = -32099
#: Default port of the hub (seed).
PORT = 4747

# ----------------------------------------------------------------------------------------------------------------
# 2. Words: a frame is one newline-ended byte string; a message is the JSON-RPC value in it.
# ----------------------------------------------------------------------------------------------------------------

CLIENT_TO_SERVER = "client->server"
SERVER_TO_CLIENT = "server->client"
#: Name of the server's stderr in the history; it is no direction of the protocol.
STDERR = "stderr"
OPPOSITE = {CLIENT_TO_SERVER: SERVER_TO_CLIENT, SERVER_TO_CLIENT: CLIENT_TO_SERVER}

#: Kinds of message. Blank lines and noise are relayed like everything else and never count as a call or an answer.
REQUEST, RESPONSE, NOTIFICATION, BATCH, NOISE, BLANK = "request response notification batch noise blank".split()

#: Gate points: before a request or notification goes on, after its answer came, or when that answer is an error.
BEFORE, AFTER, ERROR = "before", "after", "error"
POINTS = (BEFORE, AFTER, ERROR)

#: What may be done with a held frame.
CONTINUE, INJECT, RETRY, ABORT = "continue", "inject", "retry", "abort"
ACTIONS = (CONTINUE, INJECT, RETRY, ABORT)

SESSION_NODE, PROTOCOL_NODE = "mcp:session", "mcp:protocol"
NOISE_NODE, UNMATCHED_NODE = "mcp:stdout-noise", "mcp:unmatched"

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
MODERN_VERSION = "2026-07-28"


class RelayError(Exception):
    """A failure that ends a command with one sentence on stderr and the exit code `code`."""

    code = 1


class UsageError(RelayError):
    """The command line cannot be understood."""

    code = 2


# ================================================================================================================
# PART ONE. Pure: bytes and `now` in, values out.
# ================================================================================================================

# ----------------------------------------------------------------------------------------------------------------
# 3. Framing: chunks in, frames out.
# ----------------------------------------------------------------------------------------------------------------


class Framer:
    """Assemble frames from the chunks of one direction.

    A frame is what stands between two 0x0A bytes; nothing else ends one, and a CR before it stays (MCP, transports,
    stdio). Time is linear in the bytes, whatever the chunking: pieces are joined only when a frame is complete.
    Owned by one lane.
    """

    def __init__(self, limit):
        #: bytes; a longer frame turns the direction into a raw pipe
        self.limit = limit
        #: True once a frame went over the limit; it never goes back
        self.raw = False
        self._pieces = []
        self._size = 0

    def feed(self, chunk):
        """Take one chunk and return (frames, rest).

        frames: list of complete frames without their newline, in order. rest: bytes that must be relayed as they
        are because the direction became raw; empty before that. Nothing is lost and nothing changes place.
        """
        if self.raw:
            return [], chunk
        cut = chunk.rfind(b"\n")
        if cut < 0:
            self._pieces.append(chunk)
            self._size += len(chunk)
            return [], self._overflow([], b"")[1] if self._size > self.limit else b""
        self._pieces.append(chunk[:cut])
        frames = b"".join(self._pieces).split(b"\n")
        tail = chunk[cut + 1:]
        self._pieces, self._size = ([tail], len(tail)) if tail else ([], 0)
        if self._size > self.limit or any(len(frame) > self.limit for frame in frames):
            return self._overflow(frames, tail)
        return frames, b""

    def _overflow(self, frames, tail):
        """Become raw from the first frame on that is too long."""
        self.raw = True
        fine = 0
        while fine < len(frames) and len(frames[fine]) <= self.limit:
            fine += 1
        rest = b"".join(frame + b"\n" for frame in frames[fine:]) + (tail if frames else b"".join(self._pieces))
        self._pieces, self._size = [], 0
        return frames[:fine], rest

    def tail(self):
        """Return and forget the bytes after the last newline: what is left at the end of the stream."""
        rest = b"".join(self._pieces)
        self._pieces, self._size = [], 0
        return rest


# ----------------------------------------------------------------------------------------------------------------
# 4. JSON-RPC: what a frame says, and the few texts that we write ourselves.
# ----------------------------------------------------------------------------------------------------------------


def _refuse_constant(text):
    raise ValueError("%s is not JSON" % text)


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant)
#: Reads what the strict decoder cannot: NaN, and whole numbers past Python's limit of digits (kept as text).
_LENIENT = json.JSONDecoder(parse_int=str)
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]|[^\s"{}\[\]:,]+', re.S)
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\Z")
_OPENING, _CLOSING = b"{[", b"}]"


class Message:
    """What one frame says. value is the parsed JSON, or None where it could not be parsed as a whole."""

    __slots__ = ("kind", "frame", "value", "method", "key", "flaw", "parts")

    def __init__(self, kind, frame, value=None, method=None, key=None, flaw=None, parts=()):
        self.kind = kind
        self.frame = frame
        self.value = value
        #: str for requests and notifications
        self.method = method
        #: id of a request or response as (JSON type, text); None where there is none
        self.key = key
        #: what is wrong with it although it can be understood ("NaN is not JSON"), or None
        self.flaw = flaw
        #: the members of a batch
        self.parts = parts

    def params(self):
        """Return params as a dict; an empty one where there are none or they are no object."""
        return _dict(self.value.get("params")) if type(self.value) is dict else {}


def _dict(value):
    return value if type(value) is dict else {}


def classify(frame):
    """Say what kind of message one frame holds.

    frame: bytes without the newline; not modified. Returns a Message. Errors: none; what is no JSON-RPC 2.0 message
    is noise, because the relay forwards what it cannot read. A message is an object whose jsonrpc is "2.0" and whose
    shape is that of a request, notification or response (JSON-RPC 2.0 sections 4 and 5), or an array of such.
    """
    try:
        value = _STRICT.decode(frame.decode())
    except (ValueError, RecursionError):
        return _classify_odd(frame)
    return _classify_value(frame, value)


def _classify_odd(frame):
    """Classify a frame that strict parsing refused: a BOM, bad UTF-8, NaN, absurd digits or depth, or no JSON."""
    text = frame.decode("utf-8", "replace").lstrip("\ufeff")
    if not text.strip():
        return Message(BLANK, frame)
    try:
        return _classify_value(frame, _LENIENT.decode(text), "not strict JSON")
    except ValueError:
        return Message(NOISE, frame)
    except RecursionError:
        return _classify_value(frame, _shallow(frame), "nested too deeply to be parsed")


def _shallow(frame):
    """Return the scalar members of a frame's object; containers count as empty objects."""
    try:
        spans = [(key, frame[start:end]) for key, start, end in members(frame)]
        return {key: {} if text[0] in _OPENING else _LENIENT.decode(text.decode("utf-8", "replace"))
                for key, text in spans}
    except ValueError:
        return None


def _classify_value(frame, value, flaw=None):
    if type(value) is list:
        parts = tuple(_classify_value(None, part) for part in value)
        kind = BATCH if any(part.kind != NOISE for part in parts) or not parts else NOISE
        return Message(kind, frame, value, flaw=flaw, parts=parts)
    if type(value) is not dict or value.get("jsonrpc") != "2.0":
        return Message(NOISE, frame, value, flaw=flaw)
    identity = value.get("id")
    method = value.get("method")
    if type(method) is str:
        key = _id_key(identity, frame)
        if key:
            return Message(REQUEST, frame, value, method, key, flaw)
        return Message(NOTIFICATION, frame, value, method, None, "its id is no id" if "id" in value else flaw)
    if "result" in value or "error" in value:
        key = _id_key(identity, frame)
        if key or (identity is None and "error" in value):
            return Message(RESPONSE, frame, value, None, key, flaw)
    return Message(NOISE, frame, value, flaw=flaw)


def _id_key(identity, frame):
    """Return what an id is compared by, (type, text), or None where it is no id.

    Whole numbers are compared exactly, however they are written, and strings by what they say: a peer may write
    "\\u0061" for "a" and 1 for 1.0, and both must still find their request.
    """
    kind = type(identity)
    if kind is int:
        return "number", str(identity)
    if kind is str:
        text = raw_id(frame) if frame is not None else b'"'
        return ("string", identity) if text[:1] == b'"' else ("number", identity)
    if kind is float:
        return "number", _whole_number(raw_id(frame) if frame is not None else repr(identity).encode())
    return None


def _whole_number(text):
    """Write a JSON number that is whole without fraction and exponent; return any other as it is."""
    mantissa, _, exponent = text.decode().lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    shift = int(exponent or 0) - len(fraction) if len(exponent) < 4 else 9999
    digits = whole + fraction
    if 0 <= shift < 400:
        return str(int(digits + "0" * shift))
    if shift < 0 and not digits[shift:].strip("0"):
        return str(int(digits[:shift] or "0"))
    return text.decode()


def members(frame, start=0):
    """Yield (key, start, end) for each member of the JSON object that begins at or after start.

    Spans are byte offsets of the value's text in frame. Nested values are stepped over without recursion, and
    duplicate keys are yielded as often as they stand. The text is expected to be JSON; of anything else it yields
    what it can. Errors: ValueError for a key that is no string.
    """
    depth, key, value_at = 0, None, None
    for token in _TOKEN.finditer(frame, start):
        mark = frame[token.start()]
        if mark in _OPENING:
            depth += 1
            if depth == 2:
                value_at = token.start()
        elif mark in _CLOSING:
            depth -= 1
            if depth == 0:
                return
            if depth == 1:
                yield key, value_at, token.end()
        elif depth == 1:
            if mark == 0x2C:  # a comma: the next token is a key
                key = None
            elif mark != 0x3A and key is None:
                key = json.loads(token.group().decode("utf-8", "replace"))
            elif mark != 0x3A:
                yield key, token.start(), token.end()


def span(frame, *path):
    """Return the (start, end) of the value at path, the last one where a key stands twice, or None."""
    start = 0
    found = None
    for key in path:
        found = None
        for name, value_start, value_end in members(frame, start):
            if name == key:
                found = value_start, value_end
        if found is None:
            return None
        start = found[0]
    return found


def raw_id(frame):
    """Return the text of a frame's id exactly as it was sent; b"null" where it has none."""
    found = span(frame, "id")
    return frame[found[0]:found[1]] if found else b"null"


def id_text(message):
    """Return the text of a message's id for people and records, exactly as sent; None where it has none."""
    if message.key is None:
        return None
    if type(message.value.get("id")) is int and message.value["id"]:
        return message.key[1]
    return raw_id(message.frame).decode("utf-8", "replace") if message.frame is not None else message.key[1]


def encode(value):
    """Return compact JSON as bytes: ASCII alone, so that no lone surrogate can break the wire."""
    return json.dumps(value, separators=(",", ":")).encode()


def one_line(text):
    """Return JSON text without line ends: between tokens they are white space, inside strings JSON forbids them."""
    return text.replace(b"\r", b" ").replace(b"\n", b" ")


def result_frame(id_raw, result_raw):
    """Return a response frame from the texts of an id and a result."""
    return b'{"jsonrpc":"2.0","id":' + id_raw + b',"result":' + result_raw + b"}"


def error_frame(id_raw, code, message):
    """Return an error response frame for the text of an id."""
    return b'{"jsonrpc":"2.0","id":' + id_raw + b',"error":' + encode({"code": code, "message": message}) + b"}"


def with_id(frame, id_raw):
    """Return frame with its id replaced, or put in, by text; every other byte stays."""
    found = span(frame, "id")
    if found:
        return frame[:found[0]] + id_raw + frame[found[1]:]
    return with_member(frame, b'"id":' + id_raw)


def with_member(text, member):
    """Return the text of a JSON object with one more member in front."""
    at = text.index(b"{") + 1
    rest = text[at:]
    return text[:at] + member + (b"" if rest.lstrip()[:1] == b"}" else b",") + rest


def with_arguments(frame, arguments):
    """Return a tools/call frame with its arguments replaced by text, or None where that cannot be done.

    frame, arguments: bytes. Every other byte of the frame stays: big ids, 1e400, 1.50, duplicate keys. Where a key
    stands twice the last one counts, as for every JSON reader that we know of; missing arguments are put in.
    """
    params = span(frame, "params")
    if not params or frame[params[0]:params[0] + 1] != b"{":
        return None
    found = span(frame, "params", "arguments")
    if found:
        return frame[:found[0]] + arguments + frame[found[1]:]
    changed = with_member(frame[params[0]:params[1]], b'"arguments":' + arguments)
    return frame[:params[0]] + changed + frame[params[1]:]


def failure_of(message):
    """Return (name, text) if a response reports a failure, else None.

    Both forms count: a JSON-RPC error, and a result carrying isError: true, which is how a failing tool reports
    itself (MCP, tools, error handling). The text is the peer's.
    """
    error = message.value.get("error")
    if type(error) is dict:
        code = error.get("code")
        text = error.get("message")
        return ("JsonRpcError(%s)" % (code if type(code) is int else 0),
                text if type(text) is str else "unknown error")
    if "error" in message.value and "result" not in message.value:
        return "JsonRpcError(0)", "unknown error"
    result = message.value.get("result")
    if type(result) is dict and result.get("isError") is True:
        quote = json.dumps(result.get("content"), ensure_ascii=False)
        return "McpToolError", quote[:ERROR_QUOTE_CHARS]
    return None


_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]")


def printable(text):
    """Escape what could act on a terminal or mislead its reader: control, bidi and invisible characters.

    text: str or bytes from a peer. Returns str on one line, for people.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    return _UNPRINTABLE.sub(lambda found: json.dumps(found.group())[1:-1], text)


def quote(text, limit=NOISE_QUOTE_BYTES):
    """Return (quoted text, whether it was cut) for bytes of a peer, cut on a character boundary."""
    cut = text[:limit]
    while len(text) > limit and cut and text[len(cut)] & 0xC0 == 0x80:
        cut = cut[:-1]
    return '"%s"' % printable(cut).replace('"', '\\"'), len(cut) < len(text)


# ----------------------------------------------------------------------------------------------------------------
# 5. Nodes: where in the graph a frame belongs.
# ----------------------------------------------------------------------------------------------------------------

#: What is work, and in which direction (seed): method -> (direction, kind, params key that names it, node prefix).
WORK = {
    "tools/call": (CLIENT_TO_SERVER, "tool", "name", "tool:"),
    "resources/read": (CLIENT_TO_SERVER, "resource", "uri", "resource:"),
    "prompts/get": (CLIENT_TO_SERVER, "prompt", "name", "prompt:"),
    "completion/complete": (CLIENT_TO_SERVER, "custom", None, "mcp:"),
    "sampling/createMessage": (SERVER_TO_CLIENT, "llm", None, "llm:sampling"),
}


def node_of(direction, method, params):
    """Return (node, kind, name, parent) of a request or notification.

    A work method in its direction sits under the session; everything else, a work method travelling the wrong way
    too, is protocol (seed, table of methods). A missing or odd name becomes "unknown".
    """
    work = WORK.get(method)
    if work and work[0] == direction:
        _, kind, key, prefix = work
        if key:
            name = params.get(key)
            name = name if type(name) is str and name else "unknown"
            return prefix + name, kind, name, SESSION_NODE
        if kind == "llm":
            return prefix, kind, "sampling", SESSION_NODE
        return prefix + method, kind, method, SESSION_NODE
    if direction == SERVER_TO_CLIENT and method.startswith("elicitation/"):
        return "mcp:" + method, "custom", method, SESSION_NODE
    return "mcp:" + method, "custom", method, PROTOCOL_NODE


def meanings(direction, frame):
    """Return every (kind, name) that a frame may mean to a reader of duplicate keys.

    The last value of a key that stands twice counts for most readers and the first for some: a breakpoint must not
    be dodged by writing a name twice (issue: duplicate keys). frame: bytes of a request or notification.
    """
    try:
        pairs = json.loads(frame.decode("utf-8", "replace"), object_pairs_hook=lambda found: found)
    except (ValueError, RecursionError):
        return []
    found = []
    for method in _every(pairs, "method"):
        for params in _every(pairs, "params") or [[]]:
            for key in ("name", "uri"):
                for name in _every(params, key) or [None]:
                    if type(method) is str:
                        found.append(node_of(direction, method, {key: name})[1:3])
    return found


def _every(pairs, key):
    """Return all values of key in a list of pairs; none of anything else."""
    if type(pairs) is not list:
        return []
    return [pair[1] for pair in pairs if type(pair) is tuple and pair[0] == key]


# ----------------------------------------------------------------------------------------------------------------
# 6. Lifting: a bare injected value becomes the result shape that the method has to return.
# ----------------------------------------------------------------------------------------------------------------


def _block(text):
    return b'{"type":"text","text":' + encode(text) + b"}"


def _lift_tool(value, raw, params):
    if type(value) is dict and (type(value.get("content")) is list or "structuredContent" in value):
        return raw
    if type(value) is str:
        return b'{"content":[' + _block(value) + b"]}"
    structured = b',"structuredContent":' + raw if type(value) is dict else b""
    return b'{"content":[' + _block(raw.decode()) + b"]" + structured + b"}"


def _lift_resource(value, raw, params):
    if type(value) is dict and type(value.get("contents")) is list:
        return raw
    uri = params.get("uri")
    head = b'{"contents":[{"uri":' + encode(uri if type(uri) is str else "mcp-relay://injected")
    if type(value) is str:
        return head + b',"text":' + encode(value) + b"}]}"
    return head + b',"mimeType":"application/json","text":' + encode(raw.decode()) + b"}]}"


def _lift_prompt(value, raw, params):
    if type(value) is dict and type(value.get("messages")) is list:
        return raw
    text = value if type(value) is str else raw.decode()
    return b'{"messages":[{"role":"user","content":' + _block(text) + b"}]}"


def _lift_sampling(value, raw, params):
    if type(value) is dict and "content" in value:
        return raw
    text = value if type(value) is str else raw.decode()
    return (b'{"model":"mcp-relay-injected","role":"assistant","content":' + _block(text)
            + b',"stopReason":"endTurn"}')


LIFTS = {"tools/call": _lift_tool, "resources/read": _lift_resource, "prompts/get": _lift_prompt,
         "sampling/createMessage": _lift_sampling}


def lift(method, raw, params, modern):
    """Return the text of the result that an injected value becomes.

    method: of the request. raw: the value's JSON text (bytes, valid), or None for no value at all. params: of the
    request. modern: whether the peers speak 2026-07-28, where a result without resultType (and, for resources, cache
    hints) is refused by the client. Text that already has the right shape keeps its digits and spacing. Source: seed,
    "What you inject".
    """
    if raw is None:
        raw = b'{"content":[]}' if method == "tools/call" else b"null"
    raw = one_line(raw)
    value = _LENIENT.decode(raw.decode())
    if method in LIFTS:
        raw = LIFTS[method](value, raw, params)
        value = _LENIENT.decode(raw.decode())
    if modern and type(value) is dict:
        stamps = [("resultType", b'"complete"')]
        if method == "resources/read":
            stamps += [("cacheScope", b'"private"'), ("ttlMs", b"0")]
        for key, text in stamps:
            if key not in value:
                raw = with_member(raw, b'"%s":%s' % (key.encode(), text))
    return raw


def is_whole_frame(raw):
    """Say whether an injected value is a whole JSON-RPC frame: an object with a string jsonrpc (seed)."""
    value = _LENIENT.decode(raw.decode()) if raw is not None else None
    return type(value) is dict and type(value.get("jsonrpc")) is str


# ----------------------------------------------------------------------------------------------------------------
# 7. Hiding and masking: what is recorded; the wire is never touched.
# ----------------------------------------------------------------------------------------------------------------

HIDE_NAMES = ("inputs", "outputs", "tool-args", "tool-results")
_SECRET_WORD = (r"(?:api[-_]?key|access[-_]?key|auth(?:orization)?|bearer|cookie|credentials?|pass(?:word|wd|phrase)?"
                r"|private[-_]?key|secret|token|signature)")
_SECRET_NAME = re.compile(r"(?:^|[-_.])%s(?:$|[-_.])|(?:api|access|secret|private)key$" % _SECRET_WORD, re.I)
_SECRET_PAIR = re.compile(r"([\w.-]{0,40}%s[\w.-]{0,40}\s{0,4}[=:]\s{0,4})([^&\s;,]+)" % _SECRET_WORD, re.I)
_URL_LOGIN = re.compile(r"(\b\w{1,20}://)[^/@\s]{1,1024}@")
_SECRET_SHAPE = re.compile(r"\b(?:sk-|ghp_|gho_|github_pat_|xox[abp]-|glpat-)[\w-]{6,}")
MASK = "***"


def mask_secrets(arguments):
    """Return a copy of a command line in which what looks like a secret is replaced by ***.

    Masked are the value after a flag with a telling name (--api-key X, --api-key=X), TOKEN=…, logins and telling
    query parameters in addresses, and keys with a well-known prefix (cases.md, secrets-in-logs).
    """
    shown = []
    expect = False
    for argument in arguments:
        if expect and not argument.startswith("-"):
            shown.append(MASK)
        else:
            text = _SECRET_PAIR.sub(r"\1" + MASK, _URL_LOGIN.sub(r"\1%s@" % MASK, argument))
            shown.append(_SECRET_SHAPE.sub(MASK, text))
        expect = argument.startswith("-") and "=" not in argument and bool(_SECRET_NAME.search(argument))
    return shown


def _basename(text):
    return re.split(r"[/\\]", text.rstrip("/\\"))[-1] or text


def label_of(argv, hide_inputs):
    """Return the short name of a session, at most 64 characters, and the arguments that may be recorded.

    argv: the server's command line. Path arguments are reduced to their file name. With hide_inputs only the
    command and the file names of path arguments survive, and no arguments are recorded (None).
    """
    command = _basename(argv[0])
    if hide_inputs:
        kept = [_basename(text) for text in argv[1:]
                if re.search(r"[/\\]", text) and not text.startswith("-") and not re.search(r"://|[?=]", text)]
        arguments = None
    else:
        arguments = mask_secrets(argv[1:])
        kept = [_basename(text) if re.search(r"[/\\]", text) and not text.startswith("-") and "://" not in text
                else text for text in arguments]
    label = " ".join([command] + kept)
    return (label if len(label) <= 64 else "…" + label[-63:]), arguments


class Hiding:
    """Which values are left out of the record. Made from the names of --hide; immutable."""

    def __init__(self, names=()):
        self.names = frozenset(names)
        self.inputs = "inputs" in self.names
        self.outputs = "outputs" in self.names

    def input_of(self, kind):
        """Say whether the input of nodes of this kind is hidden."""
        return self.inputs or (kind == "tool" and "tool-args" in self.names)

    def output_of(self, kind):
        """Say whether the output, and the text of a failure, of nodes of this kind is hidden."""
        return self.outputs or (kind == "tool" and "tool-results" in self.names)


# ----------------------------------------------------------------------------------------------------------------
# 8. The session: correlation, era, schemas, counters. Frames in, events out.
# ----------------------------------------------------------------------------------------------------------------


class Instance:
    """One execution of a node: a request or notification from its first byte to its end."""

    __slots__ = ("name", "node", "kind", "title", "parent", "direction", "message", "params", "frame", "begun",
                 "held_s", "retries", "edited", "is_open", "batched", "token", "failure")

    def __init__(self, name, place, direction, message, frame, now):
        self.name = name
        self.node, self.kind, self.title, self.parent = place
        self.direction = direction
        self.message = message
        self.params = message.params()
        #: bytes that were sent, or are sent again by a retry; an edit replaces them
        self.frame = frame
        #: monotonic seconds
        self.begun = now
        self.held_s = 0.0
        self.retries = 0
        self.edited = False
        self.is_open = True
        self.batched = False
        #: progress token of a request, or None
        self.token = None
        #: (name, text) of its last failed answer, or None
        self.failure = None


class Passage:
    """One frame on its way through a lane: what it says, whose it is, and at which gate point it stands.

    instance and point are None for what is never held: batches, noise, blank lines, answers to nothing.
    """

    __slots__ = ("message", "direction", "instance", "point")

    def __init__(self, message, direction, instance=None, point=None):
        self.message = message
        self.direction = direction
        self.instance = instance
        self.point = point


class Session:
    """Everything that is known of one conversation. Pure: frames and `now` in, events appended to `events`.

    Life of a frame: `observe` names it, opens or finds its instance and returns a Passage; the lane asks the gate;
    `pass_on` (or `finish`) says what became of it. Called under the relay's lock, in the order in which frames pass.
    """

    def __init__(self, label, command, arguments, started, now, hiding=Hiding(), pid=None, events=None):
        """Open the session.

        label, arguments: from label_of. started: epoch seconds at the monotonic time `now`. events: anything with
        `append`, where each event goes as a dict as in design 4; a list by default.
        """
        self.hiding = hiding
        self.events = [] if events is None else events
        self.seq = 0
        self._epoch_ms = started * 1000.0
        self._zero = now
        self._instances = 0
        #: (direction of the request, key) -> instances waiting for an answer, oldest first
        self._pending = {}
        self._pending_count = 0
        #: cancelled and closed, an answer may still come: same key -> Instance, bounded like _pending
        self._cancelled = collections.OrderedDict()
        #: progress token -> instance name
        self._tokens = {}
        #: tool name -> input schema
        self.schemas = {}
        self.era = None
        self.answered = False
        self.noise = 0
        self.client_noise = 0
        self.unmatched = 0
        self._has_gap = False
        self._protocol = None
        self._ended = False
        hidden = {"hidden": ["input"]} if arguments is None else {}
        told = {"command": command} if arguments is None else {"command": command, "args": arguments}
        self._emit("run.started", now, dict(told, label=label, transport="stdio", pid=pid,
                                            version=__version__, **hidden))
        self._emit("node.started", now, dict(node=SESSION_NODE, kind="server", name=label, parent=None,
                                             instance=SESSION_NODE, input=told, **hidden))

    # -- frames ---------------------------------------------------------------------------------------------------

    def observe(self, direction, frame, now):
        """Take note of one frame and return its Passage. frame: bytes without newline. Never raises for peer data."""
        message = classify(frame)
        kind = message.kind
        if self._ended or kind == BLANK:
            return Passage(message, direction)
        if direction == SERVER_TO_CLIENT and kind != NOISE:
            self.answered = True
        if kind == REQUEST or kind == NOTIFICATION:
            return Passage(message, direction, self._open(message, direction, frame, now), BEFORE)
        if kind == RESPONSE:
            return self._answer(message, direction, now)
        if kind == BATCH:
            self._batch(message, direction, now)
        else:
            self._note_noise(frame, direction, now)
        return Passage(message, direction)

    def pass_on(self, passage, now):
        """Say that a frame went on as it came."""
        instance = passage.instance
        if instance is None or self._ended:
            return
        if passage.point != BEFORE:
            self.finish(instance, "error" if instance.failure else "ok", now, passage.message.frame)
        elif passage.message.kind == REQUEST:
            self.sent(instance, now)
        else:
            self.finish(instance, "ok", now)
            if instance.message.method == "notifications/cancelled":
                self._cancel(instance, now)

    def sent(self, instance, now):
        """Say that a request went to its peer: from here on an answer is expected."""
        key = instance.direction, instance.message.key
        self._pending.setdefault(key, collections.deque()).append(instance)
        self._pending_count += 1
        if self._pending_count > MAX_PENDING:
            oldest = next(iter(self._pending))
            self.finish(self._take(oldest), "unanswered", now)
        token = _dict(instance.params.get("_meta")).get("progressToken")
        if type(token) in (str, int):
            instance.token = token
            self._tokens[instance.direction, token] = instance.name

    def finish(self, instance, status, now, frame=None, **marks):
        """Close an instance once. frame: what went to the requester. marks: injected, gatedAt, unanswered, …"""
        if not instance.is_open or self._ended:
            return
        instance.is_open = False
        if instance.token is not None:
            self._tokens.pop((instance.direction, instance.token), None)
        event = {"node": instance.node, "instance": instance.name, "status": status,
                 "durationMs": round((now - instance.begun) * 1000.0, 2), "method": instance.message.method}
        if instance.held_s:
            event["heldMs"] = round(instance.held_s * 1000.0, 2)
        if instance.retries:
            event["retries"] = instance.retries
        if instance.edited:
            event["edited"] = True
        if instance.batched:
            event["batched"] = True
        if instance.message.kind == NOTIFICATION:
            event["notification"] = True
        if frame is not None:
            self._payload(event, "frame", frame, self.hiding.output_of(instance.kind), "output")
        event.update(marks)
        if self._protocol and instance.parent == PROTOCOL_NODE and status == "error" and "unanswered" not in marks:
            self._protocol["errors"] += 1
        self._emit("node.finished", now, event)

    def fail(self, instance, name, text, now):
        """Record a failure of an instance; its end is recorded apart. text may quote the peer and is then hidden."""
        if self.hiding.output_of(instance.kind) and name.startswith(("JsonRpc", "McpTool")):
            text = "the text of this failure is hidden (--hide %s)" % ",".join(sorted(self.hiding.names))
        elif name == "McpToolError":
            text = "%s returned isError: true: %s" % (instance.message.method, text)
        self._emit("node.error", now, {"node": instance.node, "instance": instance.name,
                                       "error": {"name": name, "message": text}})

    def is_modern(self, instance):
        """Say whether a call belongs to the 2026-07-28 era: by its own _meta, else by what was negotiated."""
        version = _dict(instance.params.get("_meta")).get(VERSION_KEY)
        return type(version) is str or self.era == "modern"

    def _open(self, message, direction, frame, now, batched=False):
        place = node_of(direction, message.method, message.params())
        if place[3] == PROTOCOL_NODE:
            self._need_protocol(now)["calls"] += 1
        self._instances += 1
        instance = Instance("mcp_%d" % self._instances, place, direction, message, frame, now)
        instance.batched = batched
        event = {"node": instance.node, "kind": instance.kind, "name": instance.title, "parent": instance.parent,
                 "instance": instance.name, "direction": direction, "method": message.method}
        if message.key is not None:
            event["id"] = id_text(message)
        else:
            event["notification"] = True
            related = self._related(instance)
            if related:
                event["related"] = related
            if direction == SERVER_TO_CLIENT and message.method == "notifications/tools/list_changed":
                self.schemas.clear()
        if batched:
            event["batched"] = True
        if message.flaw:
            event["flaw"] = message.flaw
        self._payload(event, "frame", frame, self.hiding.input_of(instance.kind), "input")
        self._emit("node.started", now, event)
        return instance

    def _related(self, notification):
        """Return the instance that a progress or cancelled notification speaks of, or None."""
        params = notification.params
        if notification.message.method == "notifications/progress":
            token = params.get("progressToken")
            return self._tokens.get((OPPOSITE[notification.direction], token)) if type(token) in (str, int) else None
        if notification.message.method == "notifications/cancelled":
            found = self._cancel_target(notification)
            return found and self._pending[found][0].name
        return None

    def _cancel_target(self, notification):
        """Return the key of the pending request that a cancel names: the sender's own, else a listen of the peer."""
        params = notification.params
        if "requestId" not in params:
            return None
        at = span(notification.frame, "params", "requestId") if notification.frame else None
        text = notification.frame[at[0]:at[1]] if at else encode(params["requestId"])
        identity = _id_key(params["requestId"], b'{"id":' + text + b"}")
        for direction in (notification.direction, OPPOSITE[notification.direction]):
            if (direction, identity) in self._pending:
                return direction, identity
        return None

    def _cancel(self, notification, now):
        found = self._cancel_target(notification)
        if found:
            instance = self._take(found)
            self.finish(instance, "cancelled", now)
            self._cancelled[found] = instance
            if len(self._cancelled) > MAX_PENDING:
                self._cancelled.popitem(last=False)

    def _take(self, key, identity=None):
        """Remove and return a pending request: the one whose id is written like identity, else the oldest.

        Ids that mean the same but are written differently (1 and 1.0) share a key; a peer that keeps them apart
        must get each answer for the right one.
        """
        waiting = self._pending[key]
        instance = waiting[0]
        if len(waiting) > 1 and identity is not None:
            instance = next((each for each in waiting if id_text(each.message) == identity), instance)
        waiting.remove(instance)
        self._pending_count -= 1
        if not waiting:
            del self._pending[key]
        return instance

    def _answer(self, message, direction, now, batched=False):
        """Find the request of a response. An answer to nothing is recorded and never held."""
        key = OPPOSITE[direction], message.key
        if key not in self._pending:
            late = self._cancelled.pop(key, None)
            if late:
                event = {"node": late.node, "instance": late.name, "late": True}
                self._payload(event, "frame", message.frame, self.hiding.output_of(late.kind), "output")
                self._emit("node.output", now, event)
            elif not self._has_gap:  # else its request may be among those that are not on record
                self._note_unmatched(message, direction, now)
            return Passage(message, direction)
        instance = self._take(key, id_text(message) if len(self._pending[key]) > 1 else None)
        self._learn(instance, message)
        instance.failure = failure_of(message)
        if instance.failure:
            self.fail(instance, instance.failure[0], instance.failure[1], now)
        return Passage(message, direction, instance, ERROR if instance.failure else AFTER)

    def _batch(self, message, direction, now):
        """Record the members of a batch: they are relayed as they are and never held."""
        for part in message.parts:
            frame = encode(part.value)
            part.frame = frame
            if part.kind in (REQUEST, NOTIFICATION):
                passage = Passage(part, direction, self._open(part, direction, frame, now, True), BEFORE)
            elif part.kind == RESPONSE:
                passage = self._answer(part, direction, now)
                if passage.instance:
                    passage.instance.batched = True
            else:
                continue
            self.pass_on(passage, now)

    def _learn(self, instance, message):
        """Learn the era and the input schemas from the answers that carry them."""
        method = instance.message.method
        result = _dict(message.value.get("result"))
        if instance.direction == SERVER_TO_CLIENT:
            return
        if method == "initialize" and self.era is None and type(result.get("protocolVersion")) is str:
            self.era = "legacy"
        elif method == "server/discover" and self.era is None and type(result.get("supportedVersions")) is list:
            self.era = "modern"
        elif method == "tools/list" and type(result.get("tools")) is list:
            if instance.params.get("cursor") is None:
                self.schemas.clear()
            for tool in result["tools"]:
                tool = _dict(tool)
                if type(tool.get("name")) is str and len(self.schemas) < MAX_TOOLS:
                    self.schemas[tool["name"]] = _dict(tool.get("inputSchema"))

    # -- what is no call ------------------------------------------------------------------------------------------

    def _need_protocol(self, now):
        """Return the counters of the protocol node, opening it with the first protocol frame."""
        if self._protocol is None:
            self._protocol = {"calls": 0, "errors": 0}
            about = "handshake, listings, pings and notifications of this session"
            self._emit("node.started", now, {"node": PROTOCOL_NODE, "kind": "custom", "name": "protocol",
                                             "parent": SESSION_NODE, "instance": PROTOCOL_NODE,
                                             "collapsed": True, "input": {"about": about}})
        return self._protocol

    def _note_noise(self, frame, direction, now):
        if direction == CLIENT_TO_SERVER:
            self.client_noise += 1
            return
        self.noise += 1
        self._need_protocol(now)
        if self.noise <= NOISE_RECORDED:
            cut = frame[:NOISE_QUOTE_BYTES].decode("utf-8", "replace")
            told = {"text": cut, "bytes": len(frame), "truncated": len(frame) > NOISE_QUOTE_BYTES,
                    "count": self.noise, "hint": "stdout is the MCP wire; log to stderr instead"}
            self._record_oddity(NOISE_NODE, "stdout noise", "StdoutNoise",
                                "the server wrote a line to stdout that is not JSON-RPC", now, told)

    def _note_unmatched(self, message, direction, now):
        self.unmatched += 1
        if self.unmatched <= NOISE_RECORDED:
            self._need_protocol(now)
            self._record_oddity(UNMATCHED_NODE, "unmatched response", "UnmatchedResponse",
                                "a response with id %s, and no request of that id is waiting"
                                % (id_text(message) or "null"), now, None, direction, message.frame)

    def _record_oddity(self, node, title, error, text, now, told, direction=SERVER_TO_CLIENT, frame=None):
        """Record something that is no call as one finished, red execution."""
        self._instances += 1
        name = "mcp_%d" % self._instances
        event = {"node": node, "kind": "custom", "name": title, "parent": PROTOCOL_NODE, "instance": name,
                 "direction": direction}
        if frame is not None:
            self._payload(event, "frame", frame, self.hiding.outputs, "output")
        elif self.hiding.outputs:
            event["hidden"] = ["input"]
        else:
            event["input"] = told
        self._emit("node.started", now, event)
        self._emit("node.error", now, {"node": node, "instance": name, "error": {"name": error, "message": text}})
        self._emit("node.finished", now, {"node": node, "instance": name, "status": "error", "durationMs": 0})

    def note_stderr(self, text, now):
        """Put decoded text of the server's stderr onto the session node."""
        event = {"node": SESSION_NODE, "instance": SESSION_NODE, "stream": "stderr"}
        if self.hiding.outputs:
            event.update(chars=len(text), hidden=["output"])
        else:
            event["text"] = text
        self._emit("node.output", now, event)

    def note_gap(self, dropped_bytes, reason, now):
        """Say that bytes passed which are not on record; how many frames they were was not counted (dropped: null)."""
        self._has_gap = True
        self._emit("gap", now, {"dropped": None, "bytes": dropped_bytes, "reason": reason})

    def note_hold(self, type_, event, now):
        """Record a hold.opened, hold.released or hold.refused."""
        self._emit(type_, now, event)

    # -- the end --------------------------------------------------------------------------------------------------

    def waiting(self):
        """Return the requests that still want an answer; a listen stream is open by design and is none of them."""
        return [instance for waiting in self._pending.values() for instance in waiting
                if instance.message.method != "subscriptions/listen"]

    def end(self, now, words, exit_code, signal_name, failure=None):
        """Close everything that is open, protocol, the session and the run, once.

        words: how the server ended, for error texts. failure: (name, message) if the server failed before it
        answered, else None. Afterwards nothing is recorded any more.
        """
        if self._ended:
            return
        unanswered = len(self.waiting())
        for waiting in list(self._pending.values()):
            for instance in waiting:
                if instance.message.method == "subscriptions/listen":
                    self.finish(instance, "cancelled", now)
                    continue
                self.fail(instance, "McpServerExited",
                          "%s before answering %s" % (words, instance.message.method), now)
                self.finish(instance, "unanswered", now, unanswered=True)
        if self._protocol:
            counts = dict(self._protocol, stdoutNoise=self.noise)
            self._emit("node.finished", now, {"node": PROTOCOL_NODE, "instance": PROTOCOL_NODE, "status": "ok",
                                              "durationMs": self._elapsed(now), "output": counts})
        status = "ok" if exit_code == 0 and not signal_name and not failure else "error"
        if failure:
            text = failure[1]
            if self.hiding.outputs and failure[0] == "McpServerExitedEarly":
                text = text.split("\n")[0] + " (its stderr is hidden)"
            self._emit("node.error", now, {"node": SESSION_NODE, "instance": SESSION_NODE,
                                           "error": {"name": failure[0], "message": text}})
        self._emit("node.finished", now, {"node": SESSION_NODE, "instance": SESSION_NODE, "status": status,
                                          "durationMs": self._elapsed(now),
                                          "output": {"exitCode": exit_code, "signal": signal_name}})
        ending = {"status": "ok" if self.answered and not failure else "error", "exitCode": exit_code,
                  "signal": signal_name, "unanswered": unanswered}
        if ending["status"] == "error":
            ending["error"] = {"name": "McpSessionFailed", "message": failure[1].split("\n")[0] if failure else words}
        self._emit("run.finished", now, ending)
        self._ended = True

    # -- events ---------------------------------------------------------------------------------------------------

    def _elapsed(self, now):
        return round(max(now - self._zero, 0.0) * 1000.0, 2)

    def add_payload(self, event, key, payload, instance, what):
        """Put a payload of an instance into an event under key, or name it in `hidden`. what: "input" or "output"."""
        hides = self.hiding.input_of if what == "input" else self.hiding.output_of
        self._payload(event, key, payload, hides(instance.kind), what)

    def _payload(self, event, key, frame, is_hidden, what):
        if is_hidden:
            event.setdefault("hidden", []).append(what)
        else:
            event[key] = frame

    def _emit(self, type_, now, event):
        """Append one event. Durations and `at` come from the monotonic clock, so a step of the wall clock cannot
        make them negative; `ts` is the start's wall clock plus that."""
        self.seq += 1
        elapsed = (now - self._zero) * 1000.0
        event["seq"] = self.seq
        event["ts"] = int(self._epoch_ms + elapsed)
        event["at"] = round(elapsed, 2)
        event["type"] = type_
        self.events.append(event)


def trace_line(passage):
    """Return the --trace line of a frame without the program's name, or None for a blank line (design 3.1)."""
    message = passage.message
    if message.kind == BLANK:
        return None
    if message.kind == REQUEST:
        text = "-> %s #%s" % (_brief(message.method), _brief(id_text(message)))
    elif message.kind == NOTIFICATION:
        text = "~> %s" % _brief(message.method)
    elif message.kind == BATCH:
        names = ", ".join(_brief(part.method or part.kind) for part in message.parts[:10])
        text = "[] batch of %d: %s" % (len(message.parts), names)
    elif message.kind == NOISE:
        quoted, cut = quote(message.frame.rstrip(b"\r"))
        text = "?? not JSON-RPC: %s%s" % (quoted, " (first %d bytes)" % NOISE_QUOTE_BYTES if cut else "")
    else:
        about = passage.instance.message.method if passage.instance else "unmatched response"
        text = "<- %s #%s %s" % (_brief(about), _brief(id_text(message) or "null"), _outcome(message))
    return "[%s] %s" % (passage.direction, text)


def _brief(text):
    """Return text of a peer for one place of a line, escaped and at most 200 characters long."""
    return printable(text if len(text) <= 200 else text[:199] + "…")


def _outcome(message):
    failure = failure_of(message)
    if failure is None:
        return "ok"
    return "isError" if failure[0] == "McpToolError" else "error %s" % failure[0][len("JsonRpcError("):-1]


# ----------------------------------------------------------------------------------------------------------------
# 9. Loops: a client that calls the same thing again and again.
# ----------------------------------------------------------------------------------------------------------------


#: instances named in a loop hold; the newest are enough to show what repeats
WINDOW_SHOWN = 20


class LoopWatch:
    """Notice three kinds of loop among the tool calls of a client (seed, "Loop hold"; spec/relay.md 15).

    repeat: one tool `threshold` times back to back with the same arguments. cycle: 2 to 4 calls, not all alike,
    whose tools, arguments and results were the same in three rounds. error-repeat: a tool that failed three times
    in a row with the same error. Tools in `allow`, by name or node id, are invisible to all three. _meta, where
    clients put a fresh progress token, is ignored.
    """

    #: calls that a cycle can span: three rounds of four
    WINDOW = 4 * LOOP_ROUNDS

    def __init__(self, threshold=LOOP_THRESHOLD, allow=()):
        self.threshold = threshold
        self.allow = frozenset(allow)
        #: how many identical calls came in a row, and the newest of them
        self._repeats = 0
        self._streak = collections.deque(maxlen=WINDOW_SHOWN)
        #: the last calls as [tool, arguments, result or None, instance name]
        self._calls = collections.deque(maxlen=self.WINDOW)
        self._open = {}
        #: tool -> [error, how often in a row, the newest instances]
        self._errors = {}

    def call(self, instance):
        """Take note of a tool call before it goes on; return what loop it is in as a dict, or None.

        The dict is the `loop` of a hold: kind, repeats, instances, and period for a cycle.
        """
        if not self.threshold or instance.node in self.allow or instance.title in self.allow:
            return None
        arguments = _without_meta(instance.params) if b"_meta" in instance.frame else instance.params
        loop = self._errors_of(instance) or self._cycle_with(instance, arguments) or self._repeat(instance, arguments)
        call = [instance.node, arguments, None, instance.name]
        self._calls.append(call)
        self._open[instance.name] = call
        while len(self._open) > MAX_PENDING:
            del self._open[next(iter(self._open))]
        return loop

    def answer(self, instance, message):
        """Take note of the answer to a tool call."""
        call = self._open.pop(instance.name, None)
        if call is None:
            return
        call[2] = message.value.get("result"), message.value.get("error")
        if not instance.failure:
            self._errors.pop(instance.node, None)
            return
        error = instance.failure[0], " ".join(instance.failure[1].split())[:512]
        streak = self._errors.get(instance.node)
        if streak is None or streak[0] != error:
            streak = self._errors[instance.node] = [error, 0, collections.deque(maxlen=WINDOW_SHOWN)]
        streak[1] += 1
        streak[2].append(instance.name)

    def _repeat(self, instance, arguments):
        last = self._calls[-1] if self._calls else None
        if last is None or last[0] != instance.node or not _same(last[1], arguments):
            self._repeats = 0
            self._streak.clear()
        self._repeats += 1
        self._streak.append(instance.name)
        if self._repeats < self.threshold:
            return None
        return {"kind": "repeat", "repeats": self._repeats, "instances": list(self._streak)}

    def _cycle_with(self, instance, arguments):
        calls = list(self._calls)
        for period in (2, 3, 4):
            seen = calls[-period * LOOP_ROUNDS:]
            if len(seen) < period * LOOP_ROUNDS or seen[0][0] != instance.node or not _same(seen[0][1], arguments):
                continue
            first = seen[:period]
            if all(call[:2] == first[0][:2] for call in first):
                continue
            if all(_same_call(call, first[index % period]) for index, call in enumerate(seen)):
                return {"kind": "cycle", "period": period, "repeats": LOOP_ROUNDS,
                        "instances": [call[3] for call in seen]}
        return None

    def _errors_of(self, instance):
        streak = self._errors.get(instance.node)
        if streak is None or streak[1] < LOOP_ROUNDS:
            return None
        return {"kind": "error-repeat", "repeats": streak[1], "instances": list(streak[2])}


def _without_meta(value):
    """Return a copy of JSON params without _meta, at every depth that clients use (64)."""
    def strip(part, depth):
        if depth and type(part) is dict:
            return {key: strip(inner, depth - 1) for key, inner in part.items() if key != "_meta"}
        if depth and type(part) is list:
            return [strip(inner, depth - 1) for inner in part]
        return part
    return strip(value, 64)


def _same(left, right):
    """Say whether two JSON values are the same; Python alone would take true for 1."""
    if left != right:
        return False
    try:
        return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
    except RecursionError:
        return False


def _same_call(left, right):
    return left is right or (left[0] == right[0] and left[2] is not None and left[2] == right[2]
                             and _same(left[1], right[1]))


# ----------------------------------------------------------------------------------------------------------------
# 10. Breakpoints and gates: which frame is held, and what a release does with it.
# ----------------------------------------------------------------------------------------------------------------


def fits(breakpoint_, kind, name, point):
    """Say whether a breakpoint {kind?, name?, point?} matches a node at a point; point defaults to before."""
    return (breakpoint_.get("point", BEFORE) == point
            and breakpoint_.get("kind") in (None, kind) and breakpoint_.get("name") in (None, name))


def hold_reason(passage, breakpoints, mode, loop):
    """Return why a frame is to be held ("loop", "breakpoint", "error", "step"), or None if it is not.

    Order: a loop, then what a person asked for by name, then the point. Step mode holds at before and error.
    """
    point, instance = passage.point, passage.instance
    if point is None:
        return None
    if loop:
        return "loop"
    matching = [each for each in breakpoints if fits(each, instance.kind, instance.title, point)]
    if not matching and breakpoints and point == BEFORE and any(len(each) > 1 for each in breakpoints):
        others = meanings(passage.direction, passage.message.frame) if _has_twins(passage.message.frame) else ()
        matching = [each for each in breakpoints for kind, name in others if fits(each, kind, name, point)]
    if point == ERROR:
        named = any(each.get("name") or each.get("kind") for each in matching)
        return "breakpoint" if named else "error" if matching or mode == "step" else None
    if matching:
        return "breakpoint"
    return "step" if mode == "step" and point == BEFORE else None


def _has_twins(frame):
    """Say whether a key that names a node may stand twice in a frame."""
    return b"\\u" in frame or any(frame.count(key) > 1 for key in (b'"method"', b'"params"', b'"name"', b'"uri"'))


class Hold:
    """One frame stopped at a gate. Changed only under the relay's lock; its lane waits until `action` is set."""

    def __init__(self, name, passage, reason, loop, now):
        self.name = name
        self.passage = passage
        self.reason = reason
        self.loop = loop
        #: monotonic seconds
        self.since = now
        self.announced = False
        #: the release, or None while held
        self.action = None
        self.value = None
        self.arguments = None
        self.by = None

    @property
    def editable(self):
        """Whether the arguments can be edited: a client's tools/call, before it runs or when it is to run again."""
        instance = self.passage.instance
        return instance.direction == CLIENT_TO_SERVER and instance.message.method == "tools/call" \
            and type(instance.params.get("arguments", {})) is dict

    def describe(self, since_ms):
        """Return the fields of hold.opened."""
        instance, passage = self.passage.instance, self.passage
        event = {"hold": self.name, "node": instance.node, "kind": instance.kind, "name": instance.title,
                 "instance": instance.name, "point": passage.point, "direction": passage.direction,
                 "method": instance.message.method, "id": id_text(instance.message), "since": since_ms,
                 "reason": self.reason, "editable": self.editable}
        if self.loop:
            event["loop"] = self.loop
        return event

    def title(self):
        """Return what is held, for people: "tools/call #7"."""
        message = self.passage.instance.message
        identity = id_text(message)
        return printable("%s #%s" % (message.method, identity) if identity else "%s (notification)" % message.method)

    def refusal(self, action, value, arguments, schemas):
        """Return (code, sentence) if a release does not fit this hold, else None.

        value, arguments: JSON text as bytes, or None. schemas: tool name -> inputSchema from the last tools/list.
        Sentences name fields and never quote a value. Source: spec/relay.md 10.
        """
        if action not in ACTIONS:
            return "shape", "the action must be one of %s" % ", ".join(ACTIONS)
        if value is not None and not _is_json(value):
            return "shape", "the value is not JSON"
        if arguments is None:
            return None
        wanted = CONTINUE if self.passage.point == BEFORE else RETRY
        if not self.editable:
            return "unsupported", "only the arguments of a client's tools/call can be edited"
        if action != wanted:
            return "shape", "edited arguments go with %s at the point %s" % (wanted, self.passage.point)
        if not _is_json(arguments):
            return "shape", "the arguments are not JSON"
        edited = json.loads(arguments.decode())
        if type(edited) is not dict:
            return "shape", "the arguments must be a JSON object"
        problem = schema_problem(edited, schemas.get(self.passage.instance.title))
        return ("schema", problem) if problem else None


def _is_json(text):
    """Say whether text is JSON that every reader takes: no NaN, no absurd depth."""
    try:
        _STRICT.decode(text.decode())
    except (ValueError, RecursionError):
        return False
    return True


_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def _type_fits(value, name):
    if name == "integer":
        return type(value) is int or (type(value) is float and value.is_integer())
    if name == "number":
        return type(value) in (int, float)
    return type(value) is _TYPES.get(name, type(value))


def _type_name(value):
    for name in ("null", "boolean", "object", "array", "string", "integer", "number"):
        if _type_fits(value, name):
            return name
    return "value"


def schema_problem(value, schema, field=None, depth=16):
    """Return a sentence on the first thing that a schema clearly forbids, or None.

    Conservative on purpose: what it does not know ($ref, anyOf, pattern) it lets pass, the server judges. The
    sentence names the field and never quotes a value. depth bounds the walk, for hostile schemas.
    """
    if type(schema) is not dict or depth == 0:
        return None
    about = 'field "%s"' % printable(field) if field else "the arguments"
    types = schema.get("type")
    types = [types] if type(types) is str else types if type(types) is list else []
    if types and not any(_type_fits(value, name) for name in types if type(name) is str):
        return "%s must be %s, got %s" % (about, " or ".join(map(str, types)), _type_name(value))
    if type(schema.get("enum")) is list and value not in schema["enum"]:
        return "%s must be one of the values that the tool lists" % about
    if type(value) in (int, float):
        return _range_problem(about, value, schema, "minimum", "maximum", "%s")
    if type(value) is str:
        return _range_problem(about, len(value), schema, "minLength", "maxLength", "%s characters long")
    if type(value) is list:
        problem = _range_problem(about, len(value), schema, "minItems", "maxItems", "%s items long")
        for index, item in enumerate(value[:1000]):
            name = "%s[%d]" % (field or "", index)
            problem = problem or schema_problem(item, schema.get("items"), name, depth - 1)
        return problem
    if type(value) is dict:
        return _object_problem(value, schema, field, depth)
    return None


def _range_problem(about, size, schema, least, most, unit):
    low, high = schema.get(least), schema.get(most)
    if type(low) in (int, float) and size < low:
        return "%s must be at least %s" % (about, unit % low)
    if type(high) in (int, float) and size > high:
        return "%s must be at most %s" % (about, unit % high)
    return None


def _object_problem(value, schema, field, depth):
    properties = _dict(schema.get("properties"))
    prefix = field + "." if field else ""
    for name in schema.get("required") if type(schema.get("required")) is list else ():
        if name not in value:
            return 'field "%s" is required' % printable(prefix + str(name))
    if schema.get("additionalProperties") is False and "patternProperties" not in schema:
        for name in value:
            if name not in properties:
                return 'field "%s" is not a parameter of this tool' % printable(prefix + name)
    for name in value:
        problem = schema_problem(value[name], properties.get(name), prefix + name, depth - 1)
        if problem:
            return problem
    return None


def reply_to(hold, modern):
    """Return the frame that an inject or abort sends to the requester of a held request or answer.

    The id is put in by text, so 9007199254740993 survives. A whole frame goes as it was given but for its id.
    """
    message = hold.passage.instance.message
    id_raw = raw_id(message.frame)
    if hold.action == ABORT:
        return error_frame(id_raw, ABORTED, "%s aborted by the mcp-relay debugger" % message.method)
    if is_whole_frame(hold.value):
        return with_id(one_line(hold.value), id_raw)
    return result_frame(id_raw, lift(message.method, hold.value, hold.passage.instance.params, modern))


# ----------------------------------------------------------------------------------------------------------------
# 11. Masking: the answers for a server that could not start.
# ----------------------------------------------------------------------------------------------------------------


class Masked:
    """Answer as a healthy server without tools, in the era of each request (seed, mcp-down-wrapper).

    Pure: `answer` takes a frame and returns the reply or None.
    """

    EMPTY = {"tools/list": "tools", "resources/list": "resources", "prompts/list": "prompts",
             "resources/templates/list": "resourceTemplates"}

    def __init__(self, command, reason):
        """command: the server's command for people. reason: one sentence on why it does not run."""
        self._info = {"name": "mcp-relay (masking %s)" % command, "version": __version__}
        self._instructions = "%s, so this server offers no tools. %s" % (reason, "Its stderr says more.")

    def answer(self, frame):
        """Return the reply to one frame as bytes without newline, or None where none is due."""
        message = classify(frame)
        if message.kind == BATCH:
            replies = [reply for reply in (self._reply(part, encode(part.value)) for part in message.parts) if reply]
            return b"[" + b",".join(replies) + b"]" if replies else None
        return self._reply(message, frame)

    def _reply(self, message, frame):
        if message.kind != REQUEST:
            return None
        version = _dict(message.params().get("_meta")).get(VERSION_KEY)
        result = self._result(message, type(version) is str)
        if result is None:
            return error_frame(raw_id(frame), -32601, "Method not found: %s" % message.method)
        return result_frame(raw_id(frame), encode(result))

    def _result(self, message, modern):
        method = message.method
        if method in self.EMPTY:
            return self._stamp({self.EMPTY[method]: []}, modern, True)
        if modern:
            if method != "server/discover":
                return None
            return self._stamp({"supportedVersions": [MODERN_VERSION], "capabilities": {},
                                "instructions": self._instructions}, modern, True)
        if method == "initialize":
            wanted = message.params().get("protocolVersion")
            return {"protocolVersion": wanted if type(wanted) is str else "2025-11-25", "capabilities": {},
                    "serverInfo": self._info, "instructions": self._instructions}
        return {} if method == "ping" else None

    def _stamp(self, result, modern, cacheable):
        if modern:
            result["resultType"] = "complete"
            result["_meta"] = {"io.modelcontextprotocol/serverInfo": self._info}
            if cacheable:
                result.update(ttlMs=0, cacheScope="private")
        return result


# ----------------------------------------------------------------------------------------------------------------
# 12. Words for failures.
# ----------------------------------------------------------------------------------------------------------------

#: Windows NTSTATUS codes that a crashed process leaves as its exit code (spec/relay.md V19).
NTSTATUS = {
    0xC0000005: "ACCESS_VIOLATION", 0xC0000017: "NO_MEMORY", 0xC000001D: "ILLEGAL_INSTRUCTION",
    0xC0000094: "INTEGER_DIVIDE_BY_ZERO", 0xC00000FD: "STACK_OVERFLOW", 0xC0000135: "DLL_NOT_FOUND",
    0xC0000139: "ENTRYPOINT_NOT_FOUND", 0xC000013A: "CONTROL_C_EXIT", 0xC0000142: "DLL_INIT_FAILED",
    0xC0000374: "HEAP_CORRUPTION", 0xC0000409: "STACK_BUFFER_OVERRUN", 0xC0000417: "INVALID_CRUNTIME_PARAMETER"}


def ntstatus_name(code):
    """Return the name of a Windows crash code, signed or unsigned, or None."""
    if type(code) is not int or not -2 ** 31 <= code < 2 ** 32:
        return None
    name = NTSTATUS.get(code & 0xFFFFFFFF)
    return "STATUS_" + name if name else None


def ending_words(code, signal_name=None):
    """Say how a server ended: "exited with code 2", "was killed by SIGKILL", "crashed with …"."""
    if signal_name:
        return "the MCP server was killed by %s" % signal_name
    name = ntstatus_name(code)
    if name:
        return "the MCP server crashed with %s (exit code %d)" % (name, code)
    return "the MCP server exited with code %d" % (code or 0)


def spawn_failure(command, error, on_windows):
    """Return (exit code, sentence) for a command that cannot be started.

    error: what the attempt raised, an OSError as a rule. 126 means found but not executable, 127 anything else (POSIX
    shells, 2.8.2). The hint says what to do and is left out where we do not know.
    """
    number = getattr(error, "errno", None)
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    code, hint = 127, ""
    is_batch = command.lower().endswith((".cmd", ".bat"))
    if on_windows and (is_batch or number == errno.EINVAL or getattr(error, "winerror", None) == 193):
        hint = ('.cmd and .bat files need an interpreter: use "command": "cmd" with "args": ["/c", "%s", …], or point '
                "at the .exe or the script itself" % printable(command))
    elif number == errno.ENOENT:
        hint = 'the command was not found on PATH; check the "command" in your MCP client config'
        if "/" in command:
            hint = "there is no such file, or the interpreter in its first line is missing"
    elif number in (errno.EACCES, errno.EISDIR):
        code, hint = 126, "make the file executable (chmod +x) or name its interpreter"
    elif number == errno.ENOEXEC:
        code, hint = 126, "the file has no #! line; name its interpreter"
    return code, 'cannot run "%s": %s%s' % (printable(command), printable(reason), " — " + hint if hint else "")


def early_exit_words(words, lines, seen, inherited):
    """Return the report of a server that ended before it answered anything.

    lines: its last stderr lines (bytes). seen: how many lines it wrote in all.
    """
    head = "%s before answering anything" % words
    if inherited:
        return head + " — see its stderr above (--inherit-stderr: it was not captured)"
    if not lines:
        return head + " and wrote nothing to stderr"
    left_out = seen - len(lines)
    note = " (%d earlier line%s left out)" % (left_out, "" if left_out == 1 else "s") if left_out else ""
    return "%s — its last stderr output was%s:\n%s" % (
        head, note, "\n".join("    " + printable(line) for line in lines))


class StderrTail:
    """The last lines of a server's stderr, bounded in lines and bytes. Pure; fed by the mirror."""

    def __init__(self):
        self._lines = collections.deque(maxlen=STDERR_TAIL_LINES)
        self._bytes = 0
        self._partial = b""
        self._complete = 0

    def feed(self, chunk):
        """Take a chunk. An endless line is cut at the byte budget."""
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        self._complete += len(lines)
        for line in lines[-STDERR_TAIL_LINES:]:
            self._add(line)
        self._partial = self._partial[-STDERR_TAIL_BYTES:]

    def _add(self, line):
        line = line.rstrip(b"\r")[:STDERR_TAIL_BYTES]
        if len(self._lines) == STDERR_TAIL_LINES:
            self._bytes -= len(self._lines[0])
        self._lines.append(line)
        self._bytes += len(line)
        while self._bytes > STDERR_TAIL_BYTES:
            self._bytes -= len(self._lines.popleft())

    def lines(self, most=STDERR_TAIL_LINES):
        """Return (the last lines, how many there were in all); a last line without newline counts."""
        rest = [self._partial] if self._partial else []
        return (list(self._lines) + rest)[-most:], self._complete + len(rest)


# ----------------------------------------------------------------------------------------------------------------
# 13. What an unattached session remembers.
# ----------------------------------------------------------------------------------------------------------------

class Keepsakes:
    """The frames that outlive the history: handshake and tools/list, requests and answers.

    Requests of that kind come alone or among few, so only short chunks of the client are looked into; the server is
    listened to while one of them waits for its answer. Pure.
    """

    METHODS = ("initialize", "server/discover", "tools/list", "notifications/initialized")
    _WORDS = tuple(method.encode() for method in METHODS)
    #: bytes of a client's chunk that may hold such a request, and frames after which an answer is given up
    _SHORT = 4096
    _PATIENCE = 1000

    def __init__(self):
        #: (serial, direction, seconds, frame); the serial of an answer is that of its request
        self.frames = []
        self._bytes = 0
        #: key of a request that waits -> its serial
        self._awaited = {}
        self._framer = None
        self._patience = 0

    def look(self, serial, direction, chunk, now):
        """Look into one chunk."""
        if direction == CLIENT_TO_SERVER:
            if len(chunk) <= self._SHORT and any(word in chunk for word in self._WORDS):
                for frame in chunk.split(b"\n"):
                    self._ask(serial, frame, now)
        elif self._awaited and direction == SERVER_TO_CLIENT:
            for frame in self._framer.feed(chunk)[0]:
                self._listen(frame, now)

    def _ask(self, serial, frame, now):
        message = classify(frame)
        if message.method not in self.METHODS:
            return
        if message.method == "tools/list" and "cursor" not in message.params():
            self._forget_tools()
        self._keep(serial, CLIENT_TO_SERVER, frame, now)
        if message.kind == REQUEST:
            self._framer = self._framer if self._awaited else Framer(KEEPSAKE_BYTES)
            self._awaited[message.key] = serial
            self._patience = self._PATIENCE

    def _listen(self, frame, now):
        message = classify(frame)
        if message.kind == RESPONSE and message.key in self._awaited:
            self._keep(self._awaited.pop(message.key), SERVER_TO_CLIENT, frame, now)
        self._patience -= 1
        if self._patience <= 0:
            self._awaited.clear()

    def _forget_tools(self):
        """Only the newest listing counts: drop the pages of the one before."""
        gone = {serial for serial, _, _, frame in self.frames if b"tools/list" in frame}
        self.frames = [each for each in self.frames if each[0] not in gone]
        self._bytes = sum(len(each[3]) for each in self.frames)

    def _keep(self, serial, direction, frame, now):
        if self._bytes + len(frame) <= KEEPSAKE_BYTES:
            self.frames.append((serial, direction, now, frame))
            self._bytes += len(frame)


class History:
    """The newest chunks of both directions and of stderr, in the order in which they were read, and the keepsakes.

    Bounded by HISTORY_BYTES while it grows, by HISTORY_FRAMES when it is replayed. Chunks are kept and dropped whole
    and unread, so remembering costs next to nothing. Pure; used under the relay's lock.
    """

    def __init__(self):
        self._chunks = collections.deque()
        self._bytes = 0
        self._serial = 0
        self._keepsakes = Keepsakes()
        #: bytes that are gone
        self._dropped = 0
        #: directions whose oldest chunk begins inside a frame
        self._cut = set()

    def add(self, direction, chunk, now):
        """Remember one chunk."""
        self._serial += 1
        self._keepsakes.look(self._serial, direction, chunk, now)
        self._chunks.append((self._serial, direction, now, chunk))
        self._bytes += len(chunk)
        while self._bytes > HISTORY_BYTES and len(self._chunks) > 1:
            self._drop()

    def _drop(self):
        _, direction, _, chunk = self._chunks.popleft()
        self._bytes -= len(chunk)
        self._dropped += len(chunk)
        (self._cut.discard if chunk.endswith(b"\n") else self._cut.add)(direction)

    def replay(self):
        """Return what is remembered: (keepsakes, chunks, dropped).

        keepsakes: (direction, seconds, frame) from before the gap. chunks: (direction, seconds, bytes), where after a
        gap each direction begins at a frame. dropped: how many bytes are missing between the two.
        """
        spare = sum(chunk.count(b"\n") for _, _, _, chunk in self._chunks) - HISTORY_FRAMES
        while spare > 0 and len(self._chunks) > 1:
            spare -= self._chunks[0][3].count(b"\n")
            self._drop()
        oldest = self._chunks[0][0] if self._chunks else self._serial + 1
        kept = [each[1:] for each in self._keepsakes.frames if each[0] < oldest]
        cut, chunks = set(self._cut), []
        for _, direction, now, chunk in self._chunks:
            if direction in cut and direction != STDERR:
                _, newline, chunk = chunk.partition(b"\n")
                if newline:
                    cut.discard(direction)
            if chunk:
                chunks.append((direction, now, chunk))
        return kept, chunks, self._dropped


class NoiseWatch:
    """Find stdout noise in a server's chunks without parsing what is plainly JSON-RPC.

    A line that begins with `{"jsonrpc":"2.0"` is taken for a message; the lines of a chunk are classified only if
    one of them begins otherwise. One search a chunk is all that this costs. Pure; owned by the server->client lane.
    """

    _PLAIN = b'{"jsonrpc":"2.0"'
    _ODD = re.compile(rb'\n(?!\{"jsonrpc":"2\.0")')
    #: bytes of one unfinished line that are kept to be judged; of a longer one only the beginning counts
    _LINE_BYTES = 1024 * 1024

    def __init__(self):
        self.noise = 0
        #: the first noise line
        self.first = None
        #: True once the server sent a JSON-RPC message
        self.answered = False
        self._pieces = []
        self._size = 0

    def feed(self, chunk):
        """Take one chunk and return True if it completed the first noise line."""
        before = self.noise
        first = chunk.find(b"\n")
        if first < 0:
            self._extend(chunk)
            return False
        last = chunk.rfind(b"\n")
        self._extend(chunk[:first])
        self._finish_line()
        if last > first and self._ODD.search(chunk, first, last):
            for line in chunk[first + 1:last].split(b"\n"):
                self._judge(line)
        self._extend(chunk[last + 1:])
        return before == 0 < self.noise

    def end(self):
        """Judge the last line, which has no newline; return True if it was the first noise."""
        before = self.noise
        self._finish_line()
        return before == 0 < self.noise

    def _extend(self, piece):
        if piece and self._size < self._LINE_BYTES:
            self._pieces.append(piece)
            self._size += len(piece)

    def _finish_line(self):
        if self._pieces:
            first = self._pieces[0]
            self._judge(first if first.startswith(self._PLAIN) else b"".join(self._pieces))
        self._pieces, self._size = [], 0

    def _judge(self, line):
        if line.startswith(self._PLAIN):
            self.answered = True
            return
        kind = classify(line).kind
        if kind == NOISE:
            self.noise += 1
            self.first = self.first or line
        elif kind != BLANK:
            self.answered = True


# ================================================================================================================
# PART TWO. The relay: descriptors, threads, the child process, the link to the hub.
# ================================================================================================================

WINDOWS = os.name == "nt"
#: A peer that closed its end: POLLHUP on a pipe, POLLRDHUP on a socket pair (Linux), data pending or not.
HANG_UP = 0 if WINDOWS else select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


def start_thread(name, target, *arguments):
    """Start a named daemon thread: a thread that is stuck in a write must not keep the process alive."""
    thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
    thread.start()
    return thread


class WakePipe:
    """A descriptor that makes a select or poll return: how a blocked thread is told that something changed.

    A pipe; on Windows, where select takes sockets alone, a pair of sockets.
    """

    def __init__(self):
        if WINDOWS:
            import socket
            self._reader, self._writer = socket.socketpair()
            self._reader.setblocking(False)
            self._writer.setblocking(False)
            self._receive, self._send = self._reader.recv, self._writer.send
        else:
            self._reader, self._writer = os.pipe()
            os.set_blocking(self._reader, False)
            os.set_blocking(self._writer, False)
            self._receive = lambda size: os.read(self._reader, size)
            self._send = lambda data: os.write(self._writer, data)

    def fileno(self):
        """Return the descriptor to wait on."""
        return self._reader.fileno() if WINDOWS else self._reader

    def wake(self):
        """Make the waiting thread return."""
        try:
            self._send(b".")
        except OSError:
            pass  # full, so the reader is awake anyway

    def clear(self):
        """Forget all wakes so far."""
        try:
            self._receive(4096)
        except OSError:
            pass  # nothing was there


# ----------------------------------------------------------------------------------------------------------------
# 14. Lanes: per direction a reader, and once a debugger watches a queue and a writer that asks the gate.
# ----------------------------------------------------------------------------------------------------------------


class Outlet:
    """Where the bytes of one direction go. All writes to one descriptor pass here.

    `lock` makes each write whole, so that what we write ourselves never lands inside a frame. It is held during a
    blocking write and never taken together with the relay's lock. Writing to a peer that has gone is no error: the
    first failure is told to `on_broken`, later bytes are dropped.
    """

    def __init__(self, name, fd, on_broken, while_waiting=None):
        self.name = name
        self.fd = fd
        self.lock = threading.Lock()
        #: all that was written so far, while it may have to be said again to another server; else None
        self.sent = None
        self._is_broken = False
        self._on_broken = on_broken
        #: called every moment that a write has to wait for its peer
        self._while_waiting = while_waiting
        self._at_boundary = True
        #: frames of ours that wait for the end of a frame
        self._waiting = []
        self._posting = []

    def write(self, data):
        """Write bytes in full, blocking as long as the peer does not read."""
        with self.lock:
            if self.sent is not None:
                self.sent.append(data)
            if self._waiting and b"\n" in data:
                cut = data.index(b"\n") + 1
                data = data[:cut] + b"".join(self._waiting) + data[cut:]
                self._waiting = []
            self._write_all(data)
            self._at_boundary = data[-1:] == b"\n"

    def post(self, frame):
        """Put one frame of our own between frames, without making the caller wait for the peer."""
        self._posting.append(start_thread("relay.%s.post" % self.name, self._write_posted, frame + b"\n"))

    def _write_posted(self, data):
        with self.lock:
            if self._at_boundary:
                self._write_all(data)
            else:
                self._waiting.append(data)

    def _write_all(self, data):
        if self._is_broken:
            return
        try:
            while data:
                try:
                    data = data[os.write(self.fd, data):]
                except BlockingIOError:
                    self._wait_writable()
        except OSError:  # the peer has gone, or the descriptor was never open
            self._is_broken = True
            self._on_broken()

    def _wait_writable(self):
        """Wait for room in the pipe, at most 0.1 s: the far end may leave meanwhile, and has to be looked at."""
        select.select([], [self.fd], [], 0.1)
        if self._while_waiting:
            self._while_waiting()

    def redirect(self, fd):
        """Let all later bytes go to another descriptor; return the chunks that were `sent` so far."""
        with self.lock:
            self.fd, self._is_broken = fd, False
            sent, self.sent = self.sent or [], None
        return sent

    def close(self, patience_s=1.0):
        """Write what still waits, then close the descriptor."""
        for thread in self._posting:
            thread.join(patience_s)
        if not self.lock.acquire(timeout=patience_s):
            return  # a write is stuck: its peer does not read and will find the end of file when we exit
        try:
            if self._waiting:
                self._write_all((b"" if self._at_boundary else b"\n") + b"".join(self._waiting))
                self._waiting = []
            self._is_broken = True
            close_quietly(self.fd)
        finally:
            self.lock.release()


def close_quietly(fd):
    """Close a descriptor; one of the three standard ones is replaced, so that its number is never reused."""
    try:
        if fd > 2:
            os.close(fd)
        else:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, fd)
            os.close(null)
    except OSError:
        pass  # it is closed already, which is what was asked for


#: put into a lane's queue behind its last frame
_END = object()


class Lane:
    """One direction of the session.

    Streaming, while nobody watches: the reader writes each chunk on as soon as it is read. Gated, from the first
    frame boundary after a debugger attached: the reader assembles frames into a bounded queue, and the writer asks
    the gate for each frame before it goes on. The switch is one way. A held frame delays everything behind it in its
    lane, cancels and pings too; the other lane runs on. While a frame is held its source is not read.
    """

    def __init__(self, relay, direction, source, outlet):
        self.relay = relay
        self.direction = direction
        self.name = "to_server" if direction == CLIENT_TO_SERVER else "to_client"
        self.source = source
        self.outlet = outlet
        #: set when the relay's session begins; guarded by the relay's lock
        self.framer = None
        #: the open hold of this lane, or None; guarded by the relay's lock
        self.hold = None
        #: counts chunks, so that the end can see whether bytes still move
        self.progress = 0
        self.is_writing = False
        self.done = threading.Event()
        self._queue = queue.Queue(LANE_CHUNKS)
        self._writer = None
        self._streaming = True
        self._at_boundary = True
        self._stopped = False
        self._hung_up = False
        self._wake = WakePipe()
        self._polls = {}

    def start(self):
        """Start reading."""
        start_thread("relay.%s.read" % self.name, self.relay.guard, self._read_loop, "relay.%s.read" % self.name)

    def stop(self):
        """Make the reader take the end of file for reached."""
        self._stopped = True
        self._wake.wake()

    def wake(self):
        """Make the reader look at `hold` again."""
        self._wake.wake()

    def resume(self, source):
        """Read on from another source; called by the reader itself at the end of the first one."""
        self.source = source
        self._stopped = False

    def probe(self):
        """Notice a source that hung up while this lane's writer waits for a peer that does not read."""
        poll = select.poll()
        poll.register(self.source, HANG_UP)
        if not self._hung_up and poll.poll(0):
            self._hung_up = True
            self.relay.source_ended(self)

    # -- reading --------------------------------------------------------------------------------------------------

    def _read_loop(self):
        while True:
            chunk = self._read()
            if chunk:
                self.progress += 1
                self.is_writing = True
                self._take(chunk)
                self.is_writing = False
            elif not self.relay.replace_source(self):
                break
        self._finish()

    def _read(self):
        """Return the next chunk, or b"" at the end.

        The client is read without a look first, which costs a system call less; nothing but its own end ends that.
        """
        while (self._streaming and self.direction == CLIENT_TO_SERVER and not self._stopped) or self._wait():
            try:
                return os.read(self.source, READ_BYTES)
            except BlockingIOError:  # its description was made non-blocking by somebody: leave it, and wait
                select.select([self.source], [], [], 1.0)
            except OSError:
                break  # a closed descriptor, or a terminal that went away: the end, as it is for everybody
        return b""

    def _wait(self):
        """Block until there is something to read; False when the lane is stopped.

        While a frame is held, or the queue is full, nothing is read: only the end of the source is waited for. So
        the reader never blocks on its queue, and a peer that leaves is noticed at once.
        """
        if WINDOWS:  # select knows no pipes there: read and let the bounded queue hold the source back
            return not self._stopped
        while not self._stopped:
            is_blocked = self.hold is not None or self._queue.full()
            if is_blocked and self._hung_up:
                ready = self._poll(None)
            else:
                ready = self._poll(HANG_UP if is_blocked else select.POLLIN | select.POLLHUP)
            if self._wake.fileno() in ready:
                self._wake.clear()
            elif is_blocked:
                self._hung_up = True
                self.relay.source_ended(self)
            else:
                return True
        return False

    def _poll(self, events):
        """Wait for events of the source, or with None for a wake alone; return the ready descriptors."""
        key = self.source, events
        if key not in self._polls:
            self._polls[key] = poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            if events is not None:
                poll.register(self.source, events)
        return [fd for fd, _ in self._polls[key].poll()]

    def _take(self, chunk):
        relay = self.relay
        if self._streaming:
            with relay.lock:
                is_gating = relay.is_gating
                if not is_gating:
                    relay.remember(self, chunk)
            if not is_gating:
                self._at_boundary = chunk[-1:] == b"\n"
                self.outlet.write(chunk)
                relay.look(self, chunk)
                return
            chunk = self._switch(chunk)
        if chunk:
            self._queue.put(relay.assemble(self, chunk) + (b"",))

    def _switch(self, chunk):
        """Begin to gate at the next frame boundary; return what comes behind it.

        The frame that is under way has been sent in part: it is put on record and cannot be held any more.
        """
        rest = chunk
        if not self._at_boundary:
            head, newline, rest = chunk.partition(b"\n")
            head += newline
            with self.relay.lock:
                for frame in self.framer.feed(head)[0]:
                    self.relay.record(self, frame)
            self.outlet.write(head)
            self._at_boundary = bool(newline)
        if self._at_boundary:
            self._streaming = False
            name = "relay.%s.write" % self.name
            self._writer = start_thread(name, self.relay.guard, self._write_loop, name)
        return rest

    def _finish(self):
        """Hand on the last bytes, which have no newline, and say that this direction is over."""
        with self.relay.lock:
            framer = self.framer
            tail = framer.tail() if framer else b""
            if tail and self._streaming:
                self.relay.record(self, tail)
        if self._writer:
            self._queue.put(([], b"", tail))
            self._queue.put(_END)
            self._writer.join()
        self.done.set()
        self.relay.note("lane ended", self)

    # -- writing --------------------------------------------------------------------------------------------------

    def _write_loop(self):
        while True:
            was_full = self._queue.full()
            item = self._queue.get()
            if was_full:
                self._wake.wake()
            if item is _END:
                return
            self.is_writing = True
            frames, rest, tail = item
            self._forward(frames)
            if tail:
                with self.relay.lock:
                    self.relay.record(self, tail)
            if rest or tail:
                self.outlet.write(rest or tail)
            self.is_writing = False

    def _forward(self, frames):
        """Ask the gate for each frame; what it lets pass is written together."""
        ready = []
        for frame in frames:
            hold = self.relay.admit(self, frame)
            if hold is None:
                ready.append(frame)
                continue
            if ready:
                self.outlet.write(b"\n".join(ready) + b"\n")
                ready = []
            frame = self.relay.await_release(self, hold)
            if frame is not None:
                self.outlet.write(frame + b"\n")
        if ready:
            self.outlet.write(b"\n".join(ready) + b"\n")

    def is_idle(self):
        """Say whether nothing is on its way through this lane."""
        return self._queue.empty() and not self.is_writing


class Mirror:
    """Our stderr: the server's bytes as they come, and our own lines, written by a thread of its own.

    `_changed` guards the buffer. Nobody who writes here ever waits: a host that does not read costs memory up to
    STDERR_BUFFER_BYTES, then bytes are dropped and counted.
    """

    def __init__(self, fd=2):
        self._fd = fd
        self._changed = threading.Condition()
        self._buffer = collections.deque()
        self._size = 0
        self._dropped = 0
        self._at_line_start = True
        self._written = 0
        self._is_busy = False
        start_thread("relay.stderr.write", self._write_loop)

    def put(self, data):
        """Pass on bytes of the server."""
        with self._changed:
            if self._size + len(data) > STDERR_BUFFER_BYTES:
                self._dropped += len(data)
                return
            self._append(data)

    def say(self, text):
        """Write one line of our own; text may hold newlines of ours."""
        with self._changed:
            start = "" if self._at_line_start else "\n"
            self._append((start + "mcp_relay: " + text + "\n").encode("utf-8", "backslashreplace"))

    def _append(self, data):
        self._buffer.append(data)
        self._size += len(data)
        self._at_line_start = data[-1:] == b"\n"
        self._changed.notify_all()

    def _write_loop(self):
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                while not self._buffer:
                    self._changed.wait()
                data = b"".join(self._buffer)
                self._buffer.clear()
                self._is_busy = True
            for start in range(0, len(data), READ_BYTES):
                self._write(data[start:start + READ_BYTES])
            with self._changed:
                self._size -= len(data)
                dropped, self._dropped = self._dropped, 0
            if dropped:
                self.say("%d bytes of the server's stderr were dropped: nobody read ours" % dropped)

    def _write(self, data):
        try:
            while data:
                try:
                    done = os.write(self._fd, data)
                    data = data[done:]
                    self._written += done
                except BlockingIOError:  # the host made its end non-blocking: leave the flag, wait for room
                    select.select([], [self._fd], [], 1.0)
        except (OSError, ValueError):
            pass  # nobody listens to our stderr: there is no place left to say so

    def flush(self, patience_s, until):
        """Wait until all is written, no byte moved for patience_s, or the monotonic time `until` is reached."""
        last, moved = self._written, time.monotonic()
        with self._changed:
            while self._buffer or self._is_busy:
                now = time.monotonic()
                if self._written != last:
                    last, moved = self._written, now
                if now >= until or now - moved >= patience_s:
                    return
                self._changed.wait(0.05)


# ----------------------------------------------------------------------------------------------------------------
# 15. The child: the server's process and what it started.
# ----------------------------------------------------------------------------------------------------------------


def child_environment():
    """Return the environment for the server: ours as we got it.

    Under the C locale Python itself adds LC_CTYPE to its environment (PEP 538); the server must not inherit that.
    Linux shows what we really got; elsewhere the addition stays.
    """
    environment = dict(os.environb) if os.supports_bytes_environ else dict(os.environ)
    if not WINDOWS and b"LC_CTYPE" in environment:
        try:
            with open("/proc/self/environ", "rb") as source:
                got = source.read()
        except OSError:
            return environment
        if b"\0LC_CTYPE=" not in b"\0" + got:
            del environment[b"LC_CTYPE"]
    return environment


def resolve_command(argv, environ, on_windows=WINDOWS):
    """Return the command line to start. On Windows npx means npx.cmd, which needs cmd.exe to run it.

    A name without extension is looked up through PATHEXT as a shell would; a .cmd or .bat file runs under
    COMSPEC /d /s /c with every argument quoted. Anything else is left to the system, and no shell is ever used.
    """
    if not on_windows:
        return argv
    import shutil
    extensions = environ.get("PATHEXT") or ".COM;.EXE;.BAT;.CMD"
    names = [argv[0]] if re.search(r"\.\w+$", argv[0]) else [argv[0] + end for end in extensions.split(";")]
    found = next((path for path in (shutil.which(name) for name in names) if path), None)
    if not found or not found.lower().endswith((".cmd", ".bat")):
        return [found or argv[0]] + argv[1:]
    if any(re.search(r'[\r\n"%]', text) for text in argv[1:]):
        raise OSError(errno.EINVAL, "an argument holds a quote, percent sign or line end, which cmd.exe would change")
    return [environ.get("COMSPEC") or "cmd.exe", "/d", "/s", "/c", found] + argv[1:]


class Child:
    """The server's process. It stays in our process group, because hosts kill the group (design 3)."""

    def __init__(self, argv, stderr):
        """Start it. stderr: None to inherit ours, subprocess.PIPE to capture it. Errors: OSError, ValueError."""
        self._process = subprocess.Popen(
            resolve_command(argv, os.environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
            bufsize=0, env=child_environment(), creationflags=0x08000000 if WINDOWS else 0)  # CREATE_NO_WINDOW
        self.pid = self._process.pid
        self.stdin = os.dup(self._process.stdin.fileno())
        self._process.stdin.close()
        if not WINDOWS:
            os.set_blocking(self.stdin, False)  # our end alone: the child reads from the other
        self.stdout = self._process.stdout.fileno()
        self.stderr = self._process.stderr.fileno() if stderr is not None else None
        #: (exit code, None) or (None, signal number) once it ended
        self.ended = None
        #: pid -> start mark of processes that it started, as far as they were seen
        self._family = {}

    def wait(self):
        """Block until it ends."""
        code = self._process.wait()
        self.ended = (None, -code) if code < 0 else (code, None)

    def signal(self, number):
        """Send a signal to the server."""
        try:
            self._process.send_signal(number)
        except (OSError, ValueError):
            pass  # it has ended, or Windows does not know the signal

    def stop(self, number):
        """Send a signal to the server and to all it started; a stopped process is continued, so that it can end."""
        self.see_family()
        if WINDOWS:
            subprocess.call(["taskkill", "/T", "/F", "/PID", str(self.pid)], stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)
            return
        self.signal(number)
        for pid in self._survivors():
            _kill(pid, number)
        if number == signal.SIGTERM:
            self.signal(signal.SIGCONT)

    def see_family(self):
        """Remember what the server has started: once it has ended they can no longer be told from strangers."""
        if not WINDOWS:
            table = process_table()
            self._family.update((pid, table[pid][1]) for pid in descendants(self.pid, table))

    def _survivors(self):
        """Return the pids that outlived the server and are still the processes that were seen."""
        table = process_table()
        mine = {pid for pid, mark in self._family.items() if pid in table and table[pid][1] == mark}
        if os.getsid(0) == os.getpid():  # the host gave us a session of our own: all in it is ours
            mine.update(pid for pid, row in table.items() if row[2] == os.getpid())
        return mine - {os.getpid(), self.pid}

    def end_family(self):
        """End what the server left behind: SIGTERM, a moment, SIGKILL."""
        if WINDOWS:
            return
        left = self._survivors()
        for pid in left:
            _kill(pid, signal.SIGTERM)
        until = time.monotonic() + LINGER_S
        while left and time.monotonic() < until:
            time.sleep(0.01)  # nothing announces the end of a process that is not our child
            left = self._survivors()
        for pid in left:
            _kill(pid, signal.SIGKILL)


def _kill(pid, number):
    try:
        os.kill(pid, number)
    except OSError:
        pass  # it has ended by itself


def process_table():
    """Return {pid: (parent pid, start mark, session)} of the running processes; zombies are left out.

    From /proc where there is one, else from ps, where start mark and session are 0.
    """
    table = {}
    if os.path.isdir("/proc/self"):
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open("/proc/%s/stat" % name, "rb") as source:
                        fields = source.read().rpartition(b")")[2].split()
                except OSError:
                    continue  # it ended while we looked
                if fields[0] != b"Z":  # proc(5): state, ppid, pgrp, session, … starttime is the 20th from here
                    table[int(name)] = int(fields[1]), fields[19], int(fields[3])
        return table
    try:
        listing = subprocess.check_output(["ps", "-A", "-o", "pid=,ppid="], stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return table
    for row in listing.splitlines():
        pid, parent = row.split()[:2]
        table[int(pid)] = int(parent), 0, 0
    return table


def descendants(pid, table):
    """Return the pids below pid in a process table."""
    found, grew = {pid}, True
    while grew:
        below = {each for each, row in table.items() if row[0] in found} - found
        found |= below
        grew = bool(below)
    return found - {pid}


# ----------------------------------------------------------------------------------------------------------------
# 16. The reporter: the link to the hub.
# ----------------------------------------------------------------------------------------------------------------


class EventLog:
    """The newest events of a session, for a hub that is slow or comes again. Bounded like the history."""

    def __init__(self):
        self._events = collections.deque()
        self._bytes = 0

    def append(self, event):
        """Add one event; the oldest go when there is no room."""
        frame = event.get("frame")
        self._bytes += 200 + (len(frame) if frame is not None else 0)
        self._events.append(event)
        while len(self._events) > HISTORY_FRAMES or (self._bytes > HISTORY_BYTES and len(self._events) > 1):
            frame = self._events.popleft().get("frame")
            self._bytes -= 200 + (len(frame) if frame is not None else 0)

    def since(self, seq, most):
        """Return at most `most` events from sequence number seq on, or from the oldest that is left."""
        if not self._events:
            return []
        skip = max(seq - self._events[0]["seq"], 0)
        if skip == 0 and len(self._events) <= most:
            return list(self._events)
        if skip > len(self._events) // 2:  # near the end: walk from there, the usual case
            tail = []
            for event in reversed(self._events):
                if event["seq"] < seq:
                    break
                tail.append(event)
            return tail[::-1][:most]
        return [self._events[index] for index in range(skip, min(skip + most, len(self._events)))]


def frame_value(frame):
    """Return how a frame stands in an event: its text, or an object where it is not UTF-8 or too long to keep."""
    if len(frame) > PAYLOAD_BYTES:
        return {"truncated": True, "bytes": len(frame), "text": frame[:4096].decode("utf-8", "ignore")}
    try:
        return frame.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(frame).decode()}


_dumps = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def event_line(event):
    """Return one event as a JSON line."""
    frame = event.get("frame")
    if frame is not None:
        event = dict(event, frame=frame_value(frame))
    if "dropped" in event and type(event["dropped"]) is bytes:
        event = dict(event, dropped=frame_value(event["dropped"]))
    return _dumps(event).encode() + b"\n"


def hub_file(home, port):
    """Return the path of the file in which a hub leaves its address and token."""
    return os.path.join(home, "hub-%d.json" % port)


def read_hub_file(home, port):
    """Return {port, pid, url, token, version} of the hub on a port, or None if there is none to trust.

    A file that belongs to somebody else is not trusted: it could lead our traffic to a stranger.
    """
    path = hub_file(home, port)
    try:
        with open(path, "rb") as source:
            if hasattr(os, "getuid") and os.fstat(source.fileno()).st_uid not in (os.getuid(), 0):
                return None
            found = json.loads(source.read().decode())
    except (OSError, ValueError):
        return None
    return found if type(found) is dict and type(found.get("token")) is str else None


class Reporter:
    """Keep one connection to the hub and speak on it; one thread, which owns the socket.

    Sends the session's events as JSON lines, takes releases, breakpoints and mode. Every failure means a lost
    debugger: the relay releases what is held and goes on as a pipe. Never raises into the lanes.
    """

    def __init__(self, relay, home, port):
        self._relay = relay
        self._home = home
        self._port = port
        self._wake = WakePipe()
        self._next = 1
        self._is_ending = False
        self._is_polling = False
        self._out = b""
        #: set while attached, and once there is nothing more to send
        self.attached = threading.Event()
        self.flushed = threading.Event()

    def start(self):
        """Begin to attach in the background."""
        start_thread("relay.reporter", self._relay.guard, self._loop, "relay.reporter")

    def wake(self):
        """Say that there are events to send."""
        if self._is_polling:
            self._is_polling = False
            self._wake.wake()

    def hub_is_near(self):
        """Say whether a hub has left its address."""
        return read_hub_file(self._home, self._port) is not None

    def finish(self, wait_s):
        """Send what is left and close. Waits at most wait_s for a hub to attach, and as long for it to read."""
        if not self.attached.is_set() and wait_s and self.hub_is_near():
            self._is_ending = True
            self._wake.wake()
            self.attached.wait(wait_s)
        if self.attached.is_set():
            self._is_ending = True
            self._wake.wake()
            self.flushed.wait(max(wait_s, FAILURE_WAIT_S))

    def _loop(self):
        delays = []
        while True:
            link = self._connect()
            if link:
                self._converse(*link)
                delays = list(ATTACH_AGAIN_S)
            if self._is_ending and self.flushed.is_set():
                return
            self._pause(delays.pop(0) if delays else ATTACH_EVERY_S)

    def _pause(self, seconds):
        if select.select([self._wake], [], [], seconds)[0]:
            self._wake.clear()

    def _connect(self):
        """Return (socket, bytes that came behind the handshake, welcome), or None where no hub answers as one."""
        import socket
        hub = read_hub_file(self._home, self._port)
        if hub is None:
            return None
        try:
            link = socket.create_connection(("127.0.0.1", self._port), CONNECT_S)
        except OSError:
            return None
        request = ("POST /api/attach HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer %s\r\n"
                   "Connection: Upgrade\r\nUpgrade: mcp-relay/%d\r\nX-Run: %s\r\nContent-Length: 0\r\n\r\n"
                   % (self._port, hub["token"], PROTOCOL, self._relay.run))
        try:
            link.settimeout(HANDSHAKE_S)
            link.sendall(request.encode("latin-1", "replace"))
            head, rest = self._read_until(link, b"", b"\r\n\r\n")
            if b" 101 " in head.split(b"\r\n")[0]:
                line, rest = self._read_until(link, rest, b"\n")
                welcome = json.loads(line.decode())
                if welcome.get("protocol") == PROTOCOL:
                    return link, rest, welcome
        except (OSError, ValueError, AttributeError):
            pass  # something else is on the port, or the hub is going: both mean no hub
        link.close()
        return None

    def _read_until(self, link, data, mark):
        until = time.monotonic() + HANDSHAKE_S
        while mark not in data:
            chunk = link.recv(4096)
            if not chunk or len(data) > READ_BYTES or time.monotonic() > until:
                raise OSError("no handshake")
            data += chunk
        head, _, rest = data.partition(mark)
        return head, rest

    def _converse(self, link, inbox, welcome):
        """Attach, then send and receive until the link is lost or the session is over."""
        link.setblocking(False)
        relay = self._relay
        relay.attach(welcome)
        last = welcome.get("last")
        self._next = last + 1 if type(last) is int else 1
        self._out = b""
        self.attached.set()
        try:
            self._exchange(link, Framer(16 * 1024 * 1024), inbox)
        except (OSError, ValueError):
            pass  # lost, which is what the lines below say
        finally:
            self.attached.clear()
            relay.detach()
            link.close()

    def _exchange(self, link, framer, inbox):
        heard = sent = moved = time.monotonic()
        while True:
            for line in framer.feed(inbox)[0]:
                self._receive(line)
            if framer.raw:
                return  # a hub that sends such a line is none
            self._fill()
            now = time.monotonic()
            if now - sent >= HEARTBEAT_S:
                self._out += b'{"type":"ping"}\n'
                sent = now
            if now - heard >= SILENCE_S or (self._out and now - moved >= HEARTBEAT_S):
                return
            if self._is_ending and not self._out:
                self.flushed.set()
                return
            self._is_polling = True
            writing = [link] if self._out else []
            if not self._out and self._has_more():
                self._is_polling = False
                continue
            ready, writable, _ = select.select([link, self._wake], writing, [], 1.0)
            self._is_polling = False
            if self._wake in ready:
                self._wake.clear()
            if writable:
                self._out = self._out[link.send(self._out[:READ_BYTES * 4]):]
                moved = time.monotonic()
            elif not self._out:
                moved = time.monotonic()
            inbox = b""
            if link in ready:
                inbox = link.recv(READ_BYTES)
                heard = time.monotonic()
                if not inbox:
                    return

    def _has_more(self):
        with self._relay.lock:
            return bool(self._relay.log.since(self._next, 1))

    def _fill(self):
        """Encode the next events once the last ones are sent; what the log has lost becomes a gap."""
        if self._out:
            return
        with self._relay.lock:
            events = self._relay.log.since(self._next, 500)
        lines = []
        if events and events[0]["seq"] > self._next:
            first, gone = events[0], events[0]["seq"] - self._next
            lines.append(event_line({"type": "gap", "seq": self._next, "ts": first["ts"], "at": first["at"],
                                     "dropped": gone, "reason": "the hub did not keep up",
                                     "fromSeq": self._next, "toSeq": first["seq"] - 1}))
        lines.extend(map(event_line, events))
        if events:
            self._next = events[-1]["seq"] + 1
        self._out = b"".join(lines)

    def _receive(self, line):
        """Carry out one line of the hub. What cannot be read is counted by the relay and left."""
        try:
            told = json.loads(line.decode())
            kind = told["type"]
            if kind == "ping":
                self._out += b'{"type":"pong"}\n'
            elif kind == "breakpoints":
                self._relay.arm(told["breakpoints"], told["mode"])
            elif kind == "release":
                answer = self._relay.release(told["hold"], told["action"], told.get("value"),
                                             told.get("arguments"), told.get("by"))
                self._out += encode(dict(answer, type="outcome", request=told["request"])) + b"\n"
            elif kind != "pong":
                raise ValueError("unknown type")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._relay.tell_once("hub lines", "the hub sent a line that is not of our protocol; it was ignored")


# ----------------------------------------------------------------------------------------------------------------
# 17. The relay: the main job.
# ----------------------------------------------------------------------------------------------------------------


class Relay:
    """One relayed session, from the start of the server to the exit code.

    `lock` protects the session, the history, the gate (breakpoints, mode, open holds) and each lane's framer and
    hold. It is never held across a read, a write, a `put` or a `get`; `changed` gives it up while a lane waits.
    """

    def __init__(self, argv, options, mirror):
        self.argv = argv
        self.options = options
        self.mirror = mirror
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.run = time.strftime("%Y%m%d-%H%M%S-") + os.urandom(4).hex()
        self.label, self.arguments = label_of(argv, options.hiding.inputs)
        self.started, self.started_at = time.time(), time.monotonic()
        # what is known of the conversation
        self.history = History()
        self.noise = NoiseWatch()
        self.tail = StderrTail()
        self.log = EventLog()
        #: None until somebody watches; from then on every frame passes through it
        self.session = None
        self.loops = LoopWatch(options.loop_threshold, options.loop_allow)
        self._loop_warned = None
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        # the gate
        #: True from the first attach on: frames are assembled before they go on
        self.is_gating = False
        self.is_attached = False
        self.breakpoints = []
        self.mode = "run"
        self._holds = {}
        self._released = collections.OrderedDict()
        self._hold_count = 0
        # the end
        self._notes = queue.SimpleQueue()
        self._told = set()
        self._signal = None
        self._is_ending = False
        self._term_at = self._kill_at = self._quit_at = self._linger_at = None
        self._seen_progress = -1
        # masking
        self._is_masked = False
        self._stdout_empty = False
        self._mask_source = None
        self._mask_decided = threading.Event()
        # the parts
        self.child = None
        self.to_server = self.to_client = None
        self._stderr_done = threading.Event()
        self._stderr_chunks = 0
        self.reporter = Reporter(self, options.home, options.port) if options.report else None

    # -- the main thread ------------------------------------------------------------------------------------------

    def main(self):
        """Relay until one side has gone, and return the exit code."""
        failure = self._start_child()
        if failure and not self.options.mask:
            return self._give_up(*failure)
        for number in self._signals():
            signal.signal(number, lambda number, frame: self.note("signal", number))
        self._start_lanes(failure)
        while not self._is_over():
            self._handle(*self._next_note())
        return self._finish()

    def _signals(self):
        """Return the signals to forward; one that we were started with as ignored (nohup) stays ignored."""
        numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)]
        return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]

    def _start_child(self):
        """Start the server; return None, or (exit code, sentence) if it cannot be started."""
        try:
            self.child = Child(self.argv, None if self.options.inherit_stderr else subprocess.PIPE)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return spawn_failure(self.argv[0], error, WINDOWS)
        start_thread("relay.child", self.guard, self._wait_child, "relay.child")
        if self.child.stderr is None:
            self._stderr_done.set()
        else:
            start_thread("relay.stderr.read", self.guard, self._read_stderr, "relay.stderr.read")
        return None

    def _give_up(self, code, sentence):
        """Report a server that cannot be started, wait a moment for it to be put on record, return the code."""
        self.mirror.say(sentence)
        with self.lock:
            self._open_session()
            self.session.end(time.monotonic(), sentence, code, None, ("SpawnError", sentence))
        if self.reporter:
            self.reporter.start()
            self.reporter.finish(ATTACH_WAIT_S if self.options.wait_for_attach else FAILURE_WAIT_S)
        self.mirror.flush(STDERR_PATIENCE_S, time.monotonic() + END_S)
        return code

    def _start_lanes(self, failure):
        if self.child:
            sink, source = self.child.stdin, self.child.stdout
        else:
            sink, source = self._start_mask(failure[1], lambda sink: [])
        server = Outlet("to_server", sink, lambda: None, lambda: self.to_server.probe())
        server.sent = [] if self.options.mask and self.child else None
        client = Outlet("to_client", 1, lambda: self.note("host gone"))
        self.to_server = Lane(self, CLIENT_TO_SERVER, 0, server)
        self.to_client = Lane(self, SERVER_TO_CLIENT, source, client)
        if self.options.trace:
            with self.lock:
                self._open_session()
        if self.reporter:
            self.reporter.start()
            if self.options.wait_for_attach:
                self.reporter.attached.wait(ATTACH_WAIT_S)
        self.to_server.start()
        self.to_client.start()

    def note(self, what, about=None):
        """Tell the main thread that something happened; callable from any thread and from a signal handler."""
        self._notes.put((what, about))

    def _next_note(self):
        deadlines = [at for at in (self._term_at, self._kill_at, self._quit_at, self._linger_at) if at is not None]
        try:
            wait_s = max(min(deadlines) - time.monotonic(), 0) if deadlines else (1.0 if WINDOWS else None)
            return self._notes.get(timeout=wait_s)
        except queue.Empty:
            return "time passed", None

    def _handle(self, what, about):
        """Act on one note. The order of the end is that of the MCP lifecycle: EOF, SIGTERM, SIGKILL (design 3)."""
        now = time.monotonic()
        if what == "signal" and self._signal is None:
            self._signal = about
            self._begin_end(now, "shutdown")
            if self.child:
                self.child.signal(about)
        elif what == "lane ended" and about is self.to_server:
            self._begin_end(now, "host gone")
            self.to_server.outlet.close()
        elif what == "lane ended" and not self._child_runs():
            self._linger_at = None
        elif what == "lane ended":  # the server closed its stdout: the host must see that at once
            self.to_client.outlet.close()
            self._begin_end(now, "server gone")
        elif what == "host gone":
            self._begin_end(now, "host gone")
            self._leave_server()
        elif what == "source hung up" and about is self.to_server:
            self._begin_end(now, "host gone")
        elif what == "stdout empty":
            self._stdout_empty = True
        elif what == "child ended":
            self._release_all("server gone")
            self._linger_at = now + LINGER_S
        elif what == "thread died":
            self._quit_at = now
        if self._stdout_empty and not self._child_runs() and not self._mask_decided.is_set():
            self._mask_or_not()
        self._escalate(now)

    def _child_runs(self):
        return self.child is not None and self.child.ended is None

    def _begin_end(self, now, by):
        """Start the clock of the end, once: nothing is held from here on."""
        if self._quit_at is not None:
            return
        self._term_at, self._quit_at = now + TERM_AFTER_S, now + END_S
        self._release_all(by)
        if self._child_runs():
            self.child.see_family()
        if by != "host gone":
            self._leave_server()

    def _leave_server(self):
        """Close the server's stdin although the host has not closed ours."""
        self.to_server.stop()
        self.to_server.outlet.close(0.1)

    def _escalate(self, now):
        """Do what a deadline asks for."""
        if self._term_at is not None and now >= self._term_at:
            self._term_at, self._kill_at = None, now + KILL_AFTER_S
            if self._child_runs():
                self.mirror.say("the host has left and the server still runs; sending it SIGTERM")
                self.child.stop(signal.SIGTERM)
        elif self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            if self._child_runs():
                self.mirror.say("the server ignored SIGTERM; killing it")
                self.child.stop(getattr(signal, "SIGKILL", signal.SIGTERM))
        if self._linger_at is not None and now >= self._linger_at:
            moved = self.to_client.progress != self._seen_progress or not self.to_client.is_idle()
            self._seen_progress = self.to_client.progress
            self._linger_at = now + LINGER_S if moved else None
            if not moved:  # a grandchild keeps the pipe open and says nothing
                self.to_client.stop()

    def _is_over(self):
        """Say whether everything that will come has come."""
        if self._quit_at is not None and time.monotonic() >= self._quit_at:
            return True
        if self._is_masked:
            return self.to_client.done.is_set()
        return not self._child_runs() and self.to_client.done.is_set()

    def _exit_code(self):
        if self._signal is not None:
            return 128 + self._signal
        if self._is_masked:
            return 0
        if self.child.ended is None or "thread died" in self._told:
            return 1
        code, number = self.child.ended
        return code if number is None else 128 + number

    def _finish(self):
        """Bring everything to its end and say what went wrong."""
        until = time.monotonic() + STDERR_PATIENCE_S if self._quit_at is None else self._quit_at + LINGER_S
        self._mask_decided.set()
        self.to_client.outlet.close()
        if self.child:
            self.child.end_family()
            seen = None
            while seen != self._stderr_chunks and not self._stderr_done.is_set():
                seen = self._stderr_chunks
                self._stderr_done.wait(LINGER_S)
        failed = self._report()
        if self.reporter:
            self.reporter.finish(FAILURE_WAIT_S if failed else 0)
        self.mirror.flush(STDERR_PATIENCE_S, until)
        return self._exit_code()

    # -- what is seen ---------------------------------------------------------------------------------------------

    def remember(self, lane, chunk):
        """Take note of a chunk that passes ungated. The lock is held."""
        if self.history is not None:
            self.history.add(lane.direction, chunk, time.monotonic())
        if self.session:
            for frame in self.assemble(lane, chunk)[0]:
                self.record(lane, frame)

    def assemble(self, lane, chunk):
        """Feed a lane's framer and return (frames, rest); say so when it gives up on a frame that is too long."""
        was_raw = lane.framer.raw
        frames, rest = lane.framer.feed(chunk)
        if lane.framer.raw and not was_raw:
            limit = self.options.max_frame_bytes
            words = "a frame of the %s exceeded %d bytes" % (lane.direction.partition("-")[0], limit)
            self.tell_once("raw " + lane.name, words + "; from here on that direction is relayed as raw bytes and not "
                           "recorded (--max-frame-bytes raises the limit)")
            self.session.note_gap(len(rest), words, time.monotonic())
        return frames, rest

    def look(self, lane, chunk):
        """Look at a chunk that has been passed on: the cheap part of watching."""
        if lane.direction == CLIENT_TO_SERVER:
            return
        self.to_server.outlet.sent = None  # the server speaks, so it is not going to be masked
        if self.noise.feed(chunk):
            self._tell_noise(self.noise.first)

    def record(self, lane, frame):
        """Put a frame on record that goes on without being asked for. The lock is held."""
        try:
            now = time.monotonic()
            passage = self.session.observe(lane.direction, frame, now)
            self._notice(passage)
            self.session.pass_on(passage, now)
        except Exception as error:  # whatever a peer sent, the bytes flow
            self._observer_failed(error)
        self._wake_reporter()

    def admit(self, lane, frame):
        """Put a frame on record and return None if it may pass, or the hold that it is stopped by."""
        with self.lock:
            try:
                now = time.monotonic()
                passage = self.session.observe(lane.direction, frame, now)
                loop = self._notice(passage)
                reason = None
                if self.is_attached and not self._is_ending:
                    reason = hold_reason(passage, self.breakpoints, self.mode, loop)
                if reason is None:
                    self.session.pass_on(passage, now)
            except Exception as error:  # whatever a peer sent, the bytes flow
                self._observer_failed(error)
                reason = None
            hold = self._open_hold(lane, passage, reason, loop, now) if reason else None
        self._wake_reporter()
        return hold

    def _notice(self, passage):
        """Trace a frame, tell the first noise, watch for loops; return a loop that is to be held."""
        if self.options.trace and not self._is_replaying:
            line = trace_line(passage)
            if line:
                self.mirror.say(line)
        if passage.message.kind == NOISE and passage.direction == SERVER_TO_CLIENT:
            self._tell_noise(passage.message.frame)
        instance = passage.instance
        if instance is None or instance.kind != "tool":
            return None
        if passage.point != BEFORE:
            self.loops.answer(instance, passage.message)
            return None
        loop = self.loops.call(instance)
        if loop is None or self.options.on_loop == "off":
            return None
        if self.is_attached and self.options.on_loop == "pause":
            return loop
        if loop["repeats"] <= max(self.loops.threshold, LOOP_ROUNDS):
            self.mirror.say("the client seems to loop: %s, %d times (%s); nothing was held"
                            % (printable(instance.title), loop["repeats"], loop["kind"]))
        return None

    def _observer_failed(self, error):
        self.tell_once("observer", "internal error while looking at a frame: %s: %s; frames are relayed unseen"
                       % (type(error).__name__, printable(str(error))))

    def _wake_reporter(self):
        if self.is_attached:
            self.reporter.wake()

    def _tell_noise(self, line):
        quoted, is_cut = quote(line.rstrip(b"\r"))
        self.tell_once("noise", (
            "the MCP server wrote a line to stdout that is not JSON-RPC: %s%s — stdout is the MCP wire; log to stderr "
            "instead (console.error, or your logger pointed at stderr). Relayed verbatim; the client may reject it. "
            "Further lines are counted, not printed."
            % (quoted, " (first %d bytes)" % NOISE_QUOTE_BYTES if is_cut else "")))

    def tell_once(self, key, text):
        """Say something on stderr, the first time that it is to be said."""
        if key not in self._told:
            self._told.add(key)
            self.mirror.say(text)

    _is_replaying = False

    def _open_session(self):
        """Begin to watch: put the session on record from its beginning. The lock is held."""
        self.log = EventLog()
        self.session = Session(self.label, printable(_basename(self.argv[0])), self.arguments, self.started,
                               self.started_at, self.options.hiding, self.child and self.child.pid, self.log)
        lanes = {lane.direction: lane for lane in (self.to_server, self.to_client) if lane}
        for lane in lanes.values():
            lane.framer = Framer(self.options.max_frame_bytes)
        keepsakes, chunks, dropped = self.history.replay()
        self._is_replaying = True
        for direction, at, frame in keepsakes:
            self.session.pass_on(self.session.observe(direction, frame, at), at)
        if dropped:
            self.session.note_gap(dropped, "the history was full before the debugger came",
                                  chunks[0][1] if chunks else time.monotonic())
        for direction, at, chunk in chunks:
            if direction == STDERR:
                self.session.note_stderr(self._decode(chunk), at)
                continue
            for frame in self.assemble(lanes[direction], chunk)[0]:
                passage = self.session.observe(direction, frame, at)
                self._notice(passage)
                self.session.pass_on(passage, at)
        self._is_replaying = False
        self.session.noise = max(self.session.noise, self.noise.noise)
        self.session.answered = self.session.answered or self.noise.answered

    # -- the gate -------------------------------------------------------------------------------------------------

    def attach(self, welcome):
        """Begin to be watched: called by the reporter with what the hub said."""
        with self.lock:
            if not self.is_gating:
                self._open_session()
                self.history = None
                self.is_gating = True
            self.is_attached = True
        self.arm(welcome.get("breakpoints"), welcome.get("mode"))
        self.tell_once("attached", "attached: this session is shown at http://127.0.0.1:%d/#run=%s"
                       % (self.options.port, self.run))

    def arm(self, breakpoints, mode):
        """Take the hub's breakpoints and mode; they hold from the next frame on."""
        good = [each for each in breakpoints if type(each) is dict] if type(breakpoints) is list else []
        with self.lock:
            self.breakpoints = good
            self.mode = "step" if mode == "step" else "run"

    def detach(self):
        """Go on without a debugger: release what is held, forget breakpoints and mode until the next attach."""
        with self.lock:
            self.is_attached = False
            self.breakpoints, self.mode = [], "run"
        self._release_all("debugger lost")

    def _open_hold(self, lane, passage, reason, loop, now):
        """Stop a frame. The lock is held."""
        self._hold_count += 1
        hold = Hold("%s-h%d" % (self.run, self._hold_count), passage, reason, loop, now)
        self._holds[hold.name] = hold
        lane.hold = hold
        lane.wake()
        event = hold.describe(int(time.time() * 1000))
        if passage.point != BEFORE:
            self.session.add_payload(event, "frame", passage.message.frame, passage.instance, "output")
        self.session.note_hold("hold.opened", event, now)
        return hold

    def release(self, name, action, value=None, arguments=None, by=None):
        """Release a hold; the first one wins. value, arguments: JSON text as str, or None.

        Returns the outcome: {"outcome": "released"|"taken"|"unknown"|"refused", …}. A refused hold stays held.
        """
        with self.lock:
            hold = self._holds.get(name)
            if hold is None:
                taken = self._released.get(name)
                return dict(outcome="taken", action=taken[0], by=taken[1]) if taken else {"outcome": "unknown"}
            value = value.encode() if value is not None else None
            arguments = one_line(arguments.encode()) if arguments is not None else None
            refusal = hold.refusal(action, value, arguments, self.session.schemas)
            if refusal:
                code, text = refusal
                about = hold.passage.instance
                self.session.note_hold("hold.refused", {
                    "hold": name, "node": about.node, "instance": about.name, "code": code, "message": text,
                    "by": by or "api"}, time.monotonic())
                answer = {"outcome": "refused", "code": code, "message": text}
            else:
                self._let_go(hold, action, by or "api", value, arguments)
                answer = {"outcome": "released", "action": action}
        self._wake_reporter()
        return answer

    def _let_go(self, hold, action, by, value=None, arguments=None):
        """Decide a hold. The lock is held."""
        hold.action, hold.by, hold.value, hold.arguments = action, by, value, arguments
        del self._holds[hold.name]
        self._released[hold.name] = action, by
        if len(self._released) > MAX_PENDING:
            self._released.popitem(last=False)
        for lane in (self.to_server, self.to_client):
            if lane.hold is hold:
                lane.hold = None
                lane.wake()
        self.changed.notify_all()

    def _release_all(self, by):
        """Release every hold with continue; from the beginning of the end on, nothing is held any more."""
        with self.lock:
            self._is_ending = self._is_ending or by != "debugger lost"
            for hold in list(self._holds.values()):
                self._let_go(hold, CONTINUE, by)

    def source_ended(self, lane):
        """Act on a peer that left while its lane was blocked: called by the lane's reader."""
        by = "host gone" if lane is self.to_server else "server gone"
        with self.lock:
            if lane.hold:
                self._let_go(lane.hold, CONTINUE, by)
        self.note("source hung up", lane)

    def await_release(self, lane, hold):
        """Block until a hold is decided; return the frame that goes on in this lane, or None if none does."""
        with self.lock:
            while hold.action is None:
                now = time.monotonic()
                if not hold.announced and now - hold.since >= HOLD_NOTICE_S:
                    hold.announced = True
                    self._announce(hold)
                limit = self.options.hold_timeout_s
                if limit is not None and now - hold.since >= limit:
                    self._let_go(hold, CONTINUE, "hold-timeout")
                    break
                next_at = [hold.since + HOLD_NOTICE_S] if not hold.announced else []
                next_at += [hold.since + limit] if limit is not None else []
                self.changed.wait(min(next_at) - now if next_at else None)
            frame, reply = self._carry_out(hold, time.monotonic())
            if hold.announced:
                self.mirror.say("released %s (%s%s)" % (hold.title(), hold.action,
                                                        ", by " + printable(hold.by) if hold.by else ""))
        self._wake_reporter()
        if reply is not None:
            (self.to_server if lane is self.to_client else self.to_client).outlet.post(reply)
        return frame

    def _announce(self, hold):
        self.mirror.say(
            "HOLDING %s at the %s gate (%s); resume it in http://127.0.0.1:%d/ or with: mcp_relay.py resume %s — "
            "the client is waiting and may time out"
            % (hold.title(), hold.passage.point, hold.reason, self.options.port, hold.name))

    def _carry_out(self, hold, now):
        """Do what a release asks for (seed, table of actions). The lock is held.

        Returns (frame that goes on in the lane or None, frame that goes to the other side or None).
        """
        passage, session = hold.passage, self.session
        instance = passage.instance
        instance.held_s += now - hold.since
        event = {"hold": hold.name, "node": instance.node, "instance": instance.name, "action": hold.action,
                 "by": hold.by, "heldMs": round((now - hold.since) * 1000.0, 2)}
        if hold.arguments is not None:
            instance.frame = with_arguments(instance.frame, hold.arguments)
            instance.edited = True
            session.add_payload(event, "arguments", hold.arguments.decode(), instance, "input")
        if passage.point != BEFORE and hold.action != CONTINUE:
            session.add_payload(event, "dropped", passage.message.frame, instance, "output")
        session.note_hold("hold.released", event, now)
        if passage.point != BEFORE:
            return self._act_on_answer(hold, instance, now)
        if passage.message.kind == NOTIFICATION:
            return self._act_on_notification(hold, instance, now), None
        return self._act_on_request(hold, instance, now)

    def _act_on_request(self, hold, instance, now):
        session = self.session
        if hold.action in (CONTINUE, RETRY):
            if hold.by == "server gone" and hold.passage.direction == CLIENT_TO_SERVER:
                words = "the MCP server exited while %s was held" % instance.message.method
                session.fail(instance, "McpServerExited", words, now)
                reply = error_frame(raw_id(instance.message.frame), ABORTED, words)
                session.finish(instance, "unanswered", now, reply, unanswered=True)
                return None, reply
            session.sent(instance, now)
            return instance.frame, None
        reply = self._end_by_hand(hold, instance, now)
        return None, reply

    def _act_on_answer(self, hold, instance, now):
        session = self.session
        if hold.action == CONTINUE:
            session.pass_on(hold.passage, now)
            return hold.passage.message.frame, None
        if hold.action == RETRY:
            instance.retries += 1
            instance.failure = None
            session.sent(instance, now)
            return None, instance.frame
        return self._end_by_hand(hold, instance, now), None

    def _end_by_hand(self, hold, instance, now):
        """Close a call with an injected value or an abort; return the frame for its requester."""
        reply = reply_to(hold, self.session.is_modern(instance))
        marks = {"gatedAt": hold.passage.point}
        if hold.action == ABORT:
            self.session.fail(instance, "Aborted", "%s was aborted in the debugger" % instance.message.method, now)
            self.session.finish(instance, "aborted", now, reply, **marks)
        else:
            status = "error" if failure_of(classify(reply)) else "ok"
            self.session.finish(instance, status, now, reply, injected=True, **marks)
        return reply

    def _act_on_notification(self, hold, instance, now):
        if hold.action == ABORT:
            self.session.finish(instance, "aborted", now, gatedAt=BEFORE)
            return None
        if hold.action == INJECT:
            value = _LENIENT.decode(hold.value.decode()) if hold.value is not None else None
            if type(value) is dict:
                frame = one_line(hold.value)
                self.session.finish(instance, "ok", now, frame, injected=True, gatedAt=BEFORE)
                return frame
            self.mirror.say("a notification can only be replaced by a JSON object; %s was relayed as it came"
                            % printable(instance.message.method))
        self.session.pass_on(hold.passage, now)
        return instance.frame

    # -- masking --------------------------------------------------------------------------------------------------

    def replace_source(self, lane):
        """At the end of a lane's source: give it another one and return True, or return False for the end.

        Only the silent stdout of a server that is to be masked is replaced, once it is known that the server ended.
        """
        if lane is not self.to_client or lane.progress or not self.options.mask or self._is_masked:
            return False
        self.note("stdout empty")
        self._mask_decided.wait()
        if self._mask_source is None:
            return False
        lane.resume(self._mask_source)
        return True

    def _mask_or_not(self):
        """Decide on a server that ended without a byte of output: unless a signal ended us, answer in its place."""
        if self._signal is None:
            self._report_early_exit(self.child.ended)
            outlet = self.to_server.outlet
            _, self._mask_source = self._start_mask(ending_words(*self._ended_words()), outlet.redirect)
            self._linger_at = None
            if self.to_server.done.is_set():
                outlet.close()
        self._mask_decided.set()

    def _start_mask(self, reason, redirect):
        """Start the built-in server and return (its stdin, its stdout).

        redirect: lets what the host sends go to the new stdin and returns the chunks that it sent before.
        """
        self._is_masked = True
        self._term_at = self._kill_at = None
        self.mirror.say("%s; answering in its place as a server without tools (--mask)" % reason)
        read_end, sink = os.pipe()
        source, write_end = os.pipe()
        masked = Masked(printable(_basename(self.argv[0])), reason)
        sent = redirect(sink)
        start_thread("relay.masked", self.guard,
                     lambda: self._serve_masked(masked, sent, read_end, write_end), "relay.masked")
        return sink, source

    def _serve_masked(self, masked, sent, read_end, write_end):
        framer = Framer(self.options.max_frame_bytes)
        outlet = Outlet("masked", write_end, lambda: None)
        chunk = b"".join(sent)
        while True:
            chunk = chunk or os.read(read_end, READ_BYTES)
            frames = framer.feed(chunk)[0] if chunk else [framer.tail()]
            for frame in frames:
                reply = masked.answer(frame)
                if reply is not None:
                    outlet.write(reply + b"\n")
            if not chunk:
                break
            chunk = b""
        outlet.close()

    # -- threads --------------------------------------------------------------------------------------------------

    def guard(self, target, name):
        """Run a thread's work; a thread that dies says so once and takes the fail-open path."""
        try:
            target()
        except Exception as error:  # the outermost frame of a thread: after it there is only silence
            self.tell_once("thread " + name, "internal error in %s: %s: %s" % (
                name, type(error).__name__, printable(str(error))))
            if name == "relay.reporter":
                self.detach()
            elif name.startswith(("relay.to_", "relay.child")):
                self._told.add("thread died")
                self.note("thread died")

    def _wait_child(self):
        self.child.wait()
        self.note("child ended")

    def _read_stderr(self):
        """Mirror the server's stderr byte for byte, keep its tail, put it on record."""
        while True:
            chunk = os.read(self.child.stderr, READ_BYTES)
            if not chunk:
                break
            self._stderr_chunks += 1
            self.mirror.put(chunk)
            with self.lock:
                self.tail.feed(chunk)
                if self.history is not None:
                    self.history.add(STDERR, chunk, time.monotonic())
                if self.session:
                    text = self._decode(chunk)
                    if text:
                        self.session.note_stderr(text, time.monotonic())
            self._wake_reporter()
        self._stderr_done.set()

    # -- the report -----------------------------------------------------------------------------------------------

    def _ended_words(self):
        """Return (exit code, signal name) of the server."""
        code, number = self.child.ended if self.child and self.child.ended else (1, None)
        return code, None if number is None else signal_name(number)

    def _report(self):
        """Close the record and say what went wrong in the session; return True if the server failed to start."""
        with self.lock:
            if self.session is None:
                self._open_session()
            session = self.session
            for lane in (self.to_server, self.to_client):
                tail = lane.framer.tail()
                if tail and not self.is_gating:
                    session.pass_on(session.observe(lane.direction, tail, time.monotonic()), time.monotonic())
            if self.noise.end():
                self._tell_noise(self.noise.first)
            unanswered = len(session.waiting())
            code, name = self._ended_words()
            early = not session.answered and (code or name or unanswered) and not self._is_masked
            failure = None
            if early:
                lines, seen = self.tail.lines()
                failure = "McpServerExitedEarly", early_exit_words(
                    ending_words(code, name), lines, seen, self.options.inherit_stderr)
            session.noise = max(session.noise, self.noise.noise)
            session.end(time.monotonic(), ending_words(code, name), code, name, failure)
        if early:
            self._report_early_exit(self.child.ended)
        self._summarise(session, unanswered)
        return bool(early)

    def _report_early_exit(self, ended):
        with self.lock:
            lines, seen = self.tail.lines(STDERR_QUOTED_LINES)
        words = ending_words(*self._ended_words())
        self.mirror.say(early_exit_words(words, lines, seen, self.options.inherit_stderr))

    def _summarise(self, session, unanswered):
        where = ' (see "stdout noise" on the graph)' if "attached" in self._told else ""
        for count, text in (
                (unanswered, "%d request(s) were still unanswered when the server exited"),
                (session.unmatched, "%d response(s) matched no request that was waiting; they were relayed"),
                (session.noise, "%d line(s) the server wrote to stdout were not JSON-RPC and were relayed verbatim — "
                                "stdout is the MCP wire; log to stderr" + where),
                (session.client_noise, "%d line(s) the client sent were not JSON-RPC; they were relayed")):
            if count:
                self.mirror.say(text % count)


def signal_name(number):
    """Return the name of a signal number, "signal N" if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


# ================================================================================================================
# The command line.
# ================================================================================================================

RECIPE = """\
{program}: nothing to run. Put a server's command line behind --:

    python3 {program} -- node build/server.js
    python3 {program} --trace -- npx -y @modelcontextprotocol/server-everything

In a host's configuration the server's command moves behind this file:

    before  {{ "command": "node", "args": ["server.js"] }}
    after   {{ "command": "python3", "args": ["/absolute/path/to/{program}", "--", "node", "server.js"] }}

    claude mcp add my-server-debug -- python3 /absolute/path/to/{program} -- node /absolute/path/to/server.js

Then run `python3 {program} serve` in another terminal, open http://127.0.0.1:{port}, and restart the host so that it
starts the server again. All options: python3 {program} --help
"""

USAGE = """\
usage: mcp_relay.py [options] -- COMMAND [ARG...]     relay a stdio MCP server
       mcp_relay.py down COMMAND [ARG...]             relay it, and answer for it if it cannot start
       mcp_relay.py serve [--port N] [--open] ...     the debugger: page and API on 127.0.0.1
       mcp_relay.py runs | show | holds | wait | resume | break | mode | demo     (each with --help)

options:
"""


class Option:
    """One flag of the relay: how its value is read, what it means, and its environment twins."""

    def __init__(self, flag, name, help_, read=None, default=None, env=(), value=None):
        self.flag = flag
        self.name = name
        self.help = help_
        #: text -> value, ValueError with a sentence; None for a switch
        self.read = read
        self.default = default
        #: read in this order, the first that is set counts
        self.env = env
        self.value = value


def _whole(least, most):
    def read(text):
        if not re.match(r"[0-9]+\Z", text) or not least <= int(text[:20]) <= most:
            raise ValueError("must be a whole number from %d to %d" % (least, most))
        return int(text)
    return read


def _seconds(text):
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise ValueError("must be a number of seconds, 0 or more")
    return value


def _names(allowed):
    def read(text):
        names = [name.strip() for name in text.split(",") if name.strip()]
        wrong = [name for name in names if allowed and name not in allowed]
        if wrong:
            raise ValueError("must be a comma-separated list of %s" % ", ".join(allowed))
        return tuple(names)
    return read


def _choice(*allowed):
    def read(text):
        if text not in allowed:
            raise ValueError("must be one of %s" % ", ".join(allowed))
        return text
    return read


def _twins(name):
    return "MCP_RELAY_" + name, "GRAPHMIND_" + name


OPTIONS = (
    Option("--trace", "trace", "one line per frame on stderr; works with nothing else running"),
    Option("--wait-for-attach", "wait_for_attach", "hold the first frame until the debugger attaches, at most 3 s"),
    Option("--inherit-stderr", "inherit_stderr", "give the server the real stderr; it is then not captured"),
    Option("--mask", "mask", "answer for a server that fails before its first byte on stdout"),
    Option("--no-report", "no_report", "never attach to a debugger", env=_twins("DISABLED")),
    Option("--serve", "serve", "host the debugger in this process if its port is free"),
    Option("--max-frame-bytes", "max_frame_bytes", "ceiling while a frame is assembled; a longer one turns its "
           "direction into a raw pipe", _whole(MIN_FRAME_BYTES, 2 ** 40), MAX_FRAME_BYTES, value="N"),
    Option("--port", "port", "port of the debugger", _whole(1, 65535), PORT, ("MCP_RELAY_PORT",), "N"),
    Option("--hold-timeout", "hold_timeout_s", "release any hold with continue after so many seconds",
           _seconds, None, ("MCP_RELAY_HOLD_TIMEOUT",), "S"),
    Option("--hide", "hide", "leave values out of the record: a list of inputs, outputs, tool-args, tool-results",
           _names(HIDE_NAMES), (), (), "LIST"),
    Option("--loop-threshold", "loop_threshold", "identical calls in a row that are held; 0 holds no loop",
           _whole(0, 10 ** 6), LOOP_THRESHOLD, _twins("LOOP_THRESHOLD"), "N"),
    Option("--on-loop", "on_loop", "what to do about a loop: pause, warn or off",
           _choice("pause", "warn", "off"), "pause", _twins("ON_LOOP"), "ACTION"),
    Option("--loop-allow", "loop_allow", "tools that may loop, by name or node id, separated by commas",
           _names(()), (), _twins("LOOP_ALLOW"), "NAMES"),
    Option("--home", "home", "folder where debuggers leave their addresses and tokens",
           str, None, ("MCP_RELAY_HOME",), "DIR"),
)


def is_on(text):
    """Say whether a switch in the environment is on: anything but empty, 0, false, off and no."""
    return text.strip().lower() not in ("", "0", "false", "off", "no")


class Options:
    """The relay's settings. Attributes are named by OPTIONS; `hiding` and `report` are made from them."""

    def __init__(self, given, environ):
        """given: {name: value} from the command line. Errors: UsageError for a bad value in the environment."""
        for option in OPTIONS:
            setattr(self, option.name, given[option.name] if option.name in given
                    else self._from_environment(option, environ))
        hidden = [name for name in HIDE_NAMES for twin in _twins("HIDE_" + name.upper().replace("-", "_"))
                  if is_on(environ.get(twin, ""))]
        self.hiding = Hiding(tuple(self.hide) + tuple(hidden))
        self.report = not self.no_report
        self.home = self.home or os.path.join(os.path.expanduser("~"), ".mcp-relay")

    @staticmethod
    def _from_environment(option, environ):
        for name in option.env:
            text = environ.get(name)
            if text is None or not text.strip():
                continue
            if option.read is None:
                return is_on(text)
            try:
                return option.read(_SPELLINGS.get((option.name, text.strip().lower()), text.strip()))
            except ValueError as error:
                raise UsageError("%s %s, not %s" % (name, error, quote(text.encode())[0]))
        return False if option.read is None else option.default


#: other spellings that the environment of the seed allows
_SPELLINGS = {("on_loop", "0"): "off", ("on_loop", "false"): "off", ("on_loop", "none"): "off"}


def parse_relay(words):
    """Split the relay's command line into (given options, command line of the server).

    Everything behind a bare -- is the server's; without one, everything from the first word that is no option.
    Errors: UsageError with one sentence.
    """
    by_flag = {option.flag: option for option in OPTIONS}
    given, rest = {}, list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        flag, equals, text = word.partition("=")
        option = by_flag.get(flag)
        if option is None:
            raise UsageError("unknown option %s; see --help, and put the server's command behind --"
                             % printable(flag))
        if option.read is None:
            if equals:
                raise UsageError("%s takes no value" % flag)
            given[option.name] = True
            continue
        if not equals:
            if not rest or rest[0].startswith("-"):
                raise UsageError("%s needs a value: %s %s" % (flag, flag, option.value))
            text = rest.pop(0)
        try:
            given[option.name] = option.read(text)
        except ValueError as error:
            raise UsageError("%s %s, not %s" % (flag, error, quote(os.fsencode(text))[0]))
    return given, rest


def usage_text():
    """Return the text of --help."""
    lines = []
    for option in OPTIONS:
        head = option.flag + (" " + option.value if option.value else "")
        twins = " [%s]" % ", ".join(option.env) if option.env else ""
        default = " (default %s)" % option.default if option.default not in (None, (), "") else ""
        lines.append("  %-24s %s%s%s" % (head, option.help, default, twins))
    lines.append("  %-24s %s" % ("--version", "version and the sha256 of this file"))
    return USAGE + "\n".join(lines) + "\n"


def version_text():
    """Return version and digest of this file: a copied file can say which one it is."""
    import hashlib
    try:
        with open(__file__, "rb") as source:
            return "mcp_relay %s (sha256 %s)" % (__version__, hashlib.sha256(source.read()).hexdigest())
    except (NameError, OSError):  # read from a pipe: there is no file to ask
        return "mcp_relay %s" % __version__


def open_standard_descriptors():
    """Open what of descriptors 0, 1 and 2 is closed, so that no pipe of ours gets one of these numbers."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is fd


def run_relay(words):
    """Relay one session; return the exit code."""
    given, argv = parse_relay(words)
    options = Options(given, os.environ)
    if not argv or not argv[0]:
        program = _basename(sys.argv[0]) or "mcp_relay.py"
        os.write(2, RECIPE.format(program=program, port=options.port).encode("utf-8", "replace"))
        return 1
    return Relay(argv, options, Mirror()).main()


COMMANDS = {}


def main(argv=None):
    """Run the command line and end the process with its exit code. argv: words without the program, or None."""
    words = sys.argv[1:] if argv is None else list(argv)
    if sys.version_info < (3, 8):
        os.write(2, b"mcp_relay: Python 3.8 or newer is needed\n")
        sys.exit(2)
    open_standard_descriptors()
    try:
        code = dispatch(words)
    except RelayError as error:
        os.write(2, ("mcp_relay: %s\n" % error).encode("utf-8", "backslashreplace"))
        code = error.code
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # a bug of ours: one sentence and where to look, never a traceback into a host's log
        line = sys.exc_info()[2]
        while line.tb_next:
            line = line.tb_next
        text = "mcp_relay: internal error: %s: %s (line %d); please report it\n" % (
            type(error).__name__, printable(str(error)), line.tb_lineno)
        os.write(2, text.encode("utf-8", "backslashreplace"))
        code = 1
    os._exit(code)  # threads may be stuck in a read or write; there is nothing left to do for them


def dispatch(words):
    """Choose what to do by the first word and return the exit code."""
    first = words[0] if words else ""
    if words in (["--help"], ["-h"], ["help"]):
        os.write(1, usage_text().encode())
        return 0
    if words == ["--version"]:
        os.write(1, version_text().encode() + b"\n")
        return 0
    if first in COMMANDS:
        return COMMANDS[first](words[1:])
    if first == "down":
        if len(words) < 2:
            raise UsageError("down needs the server's command: mcp_relay.py down COMMAND [ARG...]")
        return run_relay(["--mask", "--inherit-stderr", "--no-report", "--"] + words[1:])
    return run_relay(words)


if __name__ == "__main__":
    main()
