#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# Copyright (c) 2026 the mcp-relay maintainers
"""mcp_relay: see, hold and steer what an MCP host and a stdio MCP server say to each other.

Put it in front of a server:  python3 mcp_relay.py -- COMMAND ARGS
Look at the conversation:     python3 mcp_relay.py serve
Hide a server that is down:   python3 mcp_relay.py down COMMAND ARGS

One file, the standard library alone, Python 3.8 or newer. It relays every byte unchanged, it never lets the
debugger break a session, and it writes nothing but protocol to stdout.

     host ──stdin──▶ reader + gate ──▶ server stdin      lane client->server   held: reader ─▶ queue ─▶ writer ─▶
     host ◀─stdout── gate + reader ◀── server stdout     lane server->client   held: ◀─ writer ◀─ queue ◀─ reader
     host ◀─stderr── mirror ◀───────── server stderr
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
    relay.signals     select on the pipe of the signals the interpreter
    relay.reporter    select on the hub's socket and a wake pipe
    hub.accept, hub.request-N, hub.clock                sockets; one second
"""

import base64
import codecs
import collections
import enum
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
#: Seconds that a line of ours waits for the end of the server's line on stderr.
OURS_WAIT_S = 0.25
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
#: Seconds that events are gathered after each batch that went to the hub (measured: it saves a sixth of the CPU time
#: of an attached relay, and two fifths of what it adds to a round trip).
GATHER_S = 0.01
#: Events that go to the hub in one line at most.
EVENTS_PER_LINE = 500
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

#: Kinds of node, as in the seed; a relay itself makes server, tool, resource, prompt, llm and custom.
KINDS = ("agent", "llm", "tool", "chain", "retriever", "server", "resource", "prompt", "custom")

#: What may be done with a held frame.
CONTINUE, INJECT, RETRY, ABORT = "continue", "inject", "retry", "abort"
ACTIONS = (CONTINUE, INJECT, RETRY, ABORT)

SESSION_NODE, PROTOCOL_NODE = "mcp:session", "mcp:protocol"
NOISE_NODE, UNMATCHED_NODE = "mcp:stdout-noise", "mcp:unmatched"

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
MODERN_VERSION = "2026-07-28"


class Exit(enum.IntEnum):
    """The exit codes of the commands; the relay itself ends with the server's code (docs/relay.md lists them all)."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NO_HUB = 3
    UNKNOWN = 4  # no such hold or run
    FORBIDDEN = 5
    REFUSED = 6  # the hold is still open
    TAKEN = 7  # somebody else released it
    TIMED_OUT = 8
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127  # the command cannot be started
    SIGNAL = 128  # plus the number of the signal


class RelayError(Exception):
    """A failure that ends a command with one sentence on stderr and an exit code."""

    def __init__(self, message, code=Exit.FAILED):
        Exception.__init__(self, message)
        self.code = code


class UsageError(RelayError):
    """The command line cannot be understood."""

    def __init__(self, message):
        RelayError.__init__(self, message, Exit.USAGE)


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
        text = frame.decode()
        value, end = _STRICT.raw_decode(text)
    except (ValueError, RecursionError):
        return _classify_odd(frame)
    if end != len(text) and text[end:].strip(" \t\r\n"):
        return Message(NOISE, frame)  # a frame with something glued to it is none
    return _classify_value(frame, value)


def _classify_odd(frame):
    """Classify a frame that strict parsing refused: a BOM, bad UTF-8, NaN, absurd digits or depth, or no JSON."""
    text = frame.decode("utf-8", "replace").lstrip("\ufeff")
    if not text.strip():
        return Message(BLANK, frame)
    try:
        return _classify_value(frame, _STRICT.decode(text), None if frame[:1] != b"\xef" else "it begins with a BOM")
    except (ValueError, RecursionError):
        pass  # the next reader takes more
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


def decode_json(text):
    """Return the value of JSON text (bytes); a whole number past Python's limit of digits becomes its text."""
    try:
        return _STRICT.decode(text.decode())
    except ValueError:
        return _LENIENT.decode(text.decode())


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
        key = ("number", str(identity)) if type(identity) is int else _id_key(identity, frame)
        if key:
            return Message(REQUEST, frame, value, method, key, flaw)
        return Message(NOTIFICATION, frame, value, method, None, "its id is no id" if "id" in value else flaw)
    if "result" in value or "error" in value:
        key = ("number", str(identity)) if type(identity) is int else _id_key(identity, frame)
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
    value = decode_json(raw)
    if method in LIFTS:
        raw = LIFTS[method](value, raw, params)
        value = decode_json(raw)
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
    value = decode_json(raw) if raw is not None else None
    return type(value) is dict and type(value.get("jsonrpc")) is str


# ----------------------------------------------------------------------------------------------------------------
# 7. Hiding and masking: what is recorded; the wire is never touched.
# ----------------------------------------------------------------------------------------------------------------

HIDE_NAMES = ("inputs", "outputs", "tool-args", "tool-results")
#: words that name a secret, alone or as a part of a name: GITHUB_TOKEN, --api-key, accessToken; not max_tokens
_SECRET_WORDS = frozenset("apikey auth authorization bearer cookie credential credentials passphrase passwd password "
                          "pwd secret signature token".split())
_SECRET_PAIRS = frozenset([("api", "key"), ("access", "key"), ("private", "key"), ("secret", "key")])
_NAME = re.compile(r"(?<![\w.-])([\w.-]{1,100})\s{0,3}[=:]\s{0,3}")
_VALUE = re.compile(r"(?:(?:basic|bearer|digest|token)\s+)?[^&\s;,]+", re.I)
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
        is_flag = argument.startswith("-")
        shown.append(MASK if expect and not is_flag else _mask_text(argument))
        expect = is_flag and "=" not in argument and _names_secret(argument)
    return shown


def _mask_text(text):
    text = _URL_LOGIN.sub(r"\1%s@" % MASK, text)
    pieces, done = [], 0
    for found in _NAME.finditer(text):
        value = _VALUE.match(text, found.end())
        if value and found.start() >= done and _names_secret(found.group(1)):
            pieces += [text[done:found.end()], MASK]
            done = value.end()
    return _SECRET_SHAPE.sub(MASK, "".join(pieces) + text[done:])


def _names_secret(name):
    """Say whether a flag, variable, header or parameter has the name of a secret."""
    parts = [part.lower() for part in re.split(r"[-_.]+|(?<=[a-z0-9])(?=[A-Z])", name) if part]
    return any(part in _SECRET_WORDS for part in parts) or any(pair in _SECRET_PAIRS for pair in zip(parts, parts[1:]))


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
            if self.hiding.names:
                self._payload(event, "frame", frame, self.hiding.output_of(instance.kind), "output")
            else:
                event["frame"] = frame
        if marks:
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
        if self.hiding.names:
            self._payload(event, "frame", frame, self.hiding.input_of(instance.kind), "input")
        else:
            event["frame"] = frame
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
        event["at"] = int(elapsed * 100.0) / 100.0
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
        for period in (2, 3, 4):
            length = period * LOOP_ROUNDS
            if len(self._calls) < length:
                break
            oldest = self._calls[-length]
            if oldest[0] != instance.node or not _same(oldest[1], arguments):
                continue
            seen = list(self._calls)[-length:]
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
    if mode != "step" and not (breakpoints and any(each.get("point", BEFORE) == point for each in breakpoints)):
        return None  # the usual case
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
                 "instance": instance.name, "point": passage.point, "direction": instance.direction,
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
            return self._stamp({self.EMPTY[method]: []}, modern)
        if modern:
            if method != "server/discover":
                return None
            return self._stamp({"supportedVersions": [MODERN_VERSION], "capabilities": {},
                                "instructions": self._instructions}, modern)
        if method == "initialize":
            wanted = message.params().get("protocolVersion")
            return {"protocolVersion": wanted if type(wanted) is str else "2025-11-25", "capabilities": {},
                    "serverInfo": self._info, "instructions": self._instructions}
        return {} if method == "ping" else None

    def _stamp(self, result, modern):
        if modern:
            result.update(resultType="complete", ttlMs=0, cacheScope="private",
                          _meta={"io.modelcontextprotocol/serverInfo": self._info})
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
    code, hint = Exit.NOT_FOUND, ""
    is_batch = command.lower().endswith((".cmd", ".bat"))
    if on_windows and (is_batch or number == errno.EINVAL or getattr(error, "winerror", None) == 193):
        hint = ('.cmd and .bat files need an interpreter: use "command": "cmd" with "args": ["/c", "%s", …], or point '
                "at the .exe or the script itself" % printable(command))
    elif number == errno.ENOENT:
        hint = 'the command was not found on PATH; check the "command" in your MCP client config'
        if "/" in command:
            hint = "there is no such file, or the interpreter in its first line is missing"
    elif number in (errno.EACCES, errno.EISDIR):
        code, hint = Exit.NOT_EXECUTABLE, "make the file executable (chmod +x) or name its interpreter"
    elif number == errno.ENOEXEC:
        code, hint = Exit.NOT_EXECUTABLE, "the file has no #! line; name its interpreter"
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

    A chunk is looked into when the history drops it. Requests of that kind come alone or among few, so only short
    chunks of the client are looked into; the server is listened to while one of them waits for its answer. Pure.
    """

    METHODS = ("initialize", "server/discover", "tools/list", "notifications/initialized")
    #: what stands in such a request; "initialize" is in both of its kind
    _WORDS = (b"initialize", b"tools/list", b"server/discover")
    #: bytes of a client's chunk that may hold such a request, and frames after which an answer is given up
    _SHORT = 4096
    _PATIENCE = 1000

    def __init__(self):
        #: (number of the request, direction, seconds, frame); an answer has its request's number
        self._frames = []
        self._bytes = self._asked = 0
        #: key of a request that waits -> its number
        self._awaited = {}
        self._framer = None
        self._patience = 0

    def frames(self):
        """Return what was kept: (direction, seconds, frame)."""
        return [each[1:] for each in self._frames]

    def look(self, direction, chunk, now):
        """Look into one chunk."""
        if direction == CLIENT_TO_SERVER:
            if len(chunk) <= self._SHORT:
                for word in self._WORDS:  # three plain searches cost less than one pattern with three branches
                    if word in chunk:
                        self._ask_each(chunk, now)
                        break
        elif self._awaited and direction == SERVER_TO_CLIENT:
            for frame in self._framer.feed(chunk)[0]:
                self._listen(frame, now)

    def _ask_each(self, chunk, now):
        for frame in chunk.split(b"\n"):
            message = classify(frame)
            if message.method in self.METHODS:
                self._ask(message, frame, now)

    def _ask(self, message, frame, now):
        if message.method == "tools/list" and "cursor" not in message.params():
            self._forget_tools()
        self._asked += 1
        self._keep(self._asked, CLIENT_TO_SERVER, frame, now)
        if message.kind == REQUEST:
            self._framer = self._framer if self._awaited else Framer(KEEPSAKE_BYTES)
            self._awaited[message.key] = self._asked
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
        gone = {number for number, _, _, frame in self._frames if b"tools/list" in frame}
        self._frames = [each for each in self._frames if each[0] not in gone]
        self._bytes = sum(len(each[3]) for each in self._frames)

    def _keep(self, number, direction, frame, now):
        if self._bytes + len(frame) <= KEEPSAKE_BYTES:
            self._frames.append((number, direction, now, frame))
            self._bytes += len(frame)


class History:
    """The newest chunks of both directions and of stderr, in the order in which they were read, and the keepsakes.

    Bounded by HISTORY_FRAMES frames and HISTORY_BYTES of memory. Chunks are kept whole and unread, counted a few at a
    time and dropped many, an eighth of all: remembering costs a frame on its way next to nothing, and what is kept of
    a stream of small frames stays in the processor's cache. The frames of a full chunk are estimated from its
    beginning and its end, by the fewer; they are counted before the first is forgotten. Pure; used under the relay's
    lock.
    """

    #: bytes at either end of a full chunk from which its frames are estimated
    _SAMPLE = 512
    #: chunks that are counted at once; room for them is kept free
    _BATCH = 4
    #: bytes of memory that a chunk takes beside its own: tuple, float, header (measured: 137), and malloc's rounding
    _ENTRY = 192

    def __init__(self):
        #: (direction, seconds, chunk), and with its estimated frames once it is counted
        self._fresh, self._chunks = [], collections.deque()
        self._bytes = self._frames = 0
        self._keepsakes = Keepsakes()
        #: bytes that are gone
        self._dropped = 0
        #: directions whose oldest chunk begins inside a frame
        self._cut = set()

    def add(self, direction, chunk, now):
        """Remember one chunk. It waits for this before it goes on, so most calls only note it."""
        if len(self._fresh) == self._BATCH:
            self._settle()
        self._fresh.append((direction, now, chunk))

    def _settle(self):
        """Count what was added and drop what is too old.

        A chunk is kept as a copy of its own size: the buffer that it was read into is larger, and is needed again;
        kept, it would leave holes in memory that no read fits in.
        """
        size = frames = 0
        for direction, now, chunk in self._fresh:
            if len(chunk) < READ_BYTES:
                chunk = memoryview(chunk).tobytes()
            lines = 0 if direction == STDERR else self._estimate(chunk)
            self._chunks.append((direction, now, chunk, lines))
            size += len(chunk) + self._ENTRY
            frames += lines
        self._fresh.clear()
        self._bytes += size
        self._frames += frames
        if self._frames > HISTORY_FRAMES and not self._dropped:
            self._count()  # nothing is lost to an estimate
        if self._frames > HISTORY_FRAMES or self._bytes > HISTORY_BYTES - self._BATCH * READ_BYTES:
            self._drop(HISTORY_FRAMES * 7 // 8, HISTORY_BYTES * 7 // 8)

    def _estimate(self, chunk):
        """Return how many lines a chunk probably has, rather too few than too many."""
        if len(chunk) < READ_BYTES:
            return chunk.count(b"\n")
        first = chunk.count(b"\n", 0, self._SAMPLE)
        return first and min(first, chunk.count(b"\n", READ_BYTES - self._SAMPLE)) * (READ_BYTES // self._SAMPLE)

    def _count(self):
        """Replace estimated lines by counted ones."""
        self._chunks = collections.deque(
            (direction, now, chunk, 0 if direction == STDERR else chunk.count(b"\n"))
            for direction, now, chunk, _ in self._chunks)
        self._frames = sum(each[3] for each in self._chunks)

    def _drop(self, most_frames, most_bytes):
        """Forget the oldest chunks until no more than this is left."""
        size, frames, gone = self._bytes, self._frames, 0
        while len(self._chunks) > 1 and (frames > most_frames or size > most_bytes):
            direction, now, chunk, lines = self._chunks.popleft()
            self._keepsakes.look(direction, chunk, now)
            size -= len(chunk) + self._ENTRY
            frames -= lines
            gone += len(chunk)
            (self._cut.discard if chunk.endswith(b"\n") else self._cut.add)(direction)
        self._bytes, self._frames = size, frames
        self._dropped += gone

    def replay(self):
        """Return what is remembered: (keepsakes, chunks, dropped).

        keepsakes: (direction, seconds, frame) from before the gap. chunks: (direction, seconds, bytes), where after a
        gap each direction begins at a frame. dropped: how many bytes are missing between the two.
        """
        self._settle()
        self._count()
        self._drop(HISTORY_FRAMES, HISTORY_BYTES)
        cut, chunks = set(self._cut), []
        for direction, now, chunk, _ in self._chunks:
            if direction in cut and direction != STDERR:
                _, newline, chunk = chunk.partition(b"\n")
                if newline:
                    cut.discard(direction)
            if chunk:
                chunks.append((direction, now, chunk))
        return self._keepsakes.frames(), chunks, self._dropped


class NoiseWatch:
    """Find stdout noise in a server's chunks without parsing what is plainly JSON-RPC.

    The first lines of a session are classified, so that "the server answered" is exact. After them a line that begins
    with `{"jsonrpc":"2.0"` is taken for a message, and the lines of a chunk are classified only if one of them begins
    otherwise: one search a chunk is all that this costs. Where even that would hold up the bytes, in a stream that
    has long been clean and fills every read, only one chunk of some is searched. Pure; owned by the server->client
    lane.
    """

    #: lines, and bytes of them, that are classified before a plain beginning is trusted
    _FIRST, _FIRST_BYTES = 100, 256 * 1024

    _PLAIN = b'{"jsonrpc":"2.0"'
    _ODD = re.compile(rb'\n(?!\{"jsonrpc":"2\.0")')
    #: bytes without noise, about 150,000 frames, after which one full chunk of so many is searched
    _TRUSTED_BYTES, _SEARCHED = 32 * 1024 * 1024, 32
    #: bytes of one unfinished line that are kept to be judged; of a longer one only the beginning counts
    _LINE_BYTES = 1024 * 1024

    def __init__(self):
        self.noise = 0
        #: the first noise line
        self.first = None
        #: True once the server sent a JSON-RPC message
        self.answered = False
        #: True once full chunks were passed over: there may be more noise than was counted
        self.is_partial = False
        self._to_judge, self._to_read = self._FIRST, self._FIRST_BYTES
        #: bytes of whole lines since the last noise, and full chunks since these are enough
        self._clean = self._chunks = 0
        #: True while the beginning of the line that is under way is not known
        self._is_lost = False
        #: the line that is under way: what is kept of it, the size of that, and of all of it
        self._pieces = []
        self._size = self._seen = 0

    def feed(self, chunk):
        """Take one chunk and return True if it completed the first noise line."""
        if self._may_pass_over(chunk):
            self.is_partial = self._is_lost = True
            return False
        self._seen += len(chunk)
        first = chunk.find(b"\n")
        if first < 0:
            self._extend(chunk)
            return False
        before = self.noise
        self._clean, self._seen = self._clean + self._seen, 0
        last = chunk.rfind(b"\n")
        if self._pieces or self._is_lost:
            self._extend(chunk[:first])
            self._finish_line()
        elif first:
            self._judge(chunk[:first])
        if last > first and (self._is_exact() or self._ODD.search(chunk, first, last)):
            for line in chunk[first + 1:last].split(b"\n"):
                self._judge(line)
        elif last > first:
            self.answered = True
        self._extend(chunk[last + 1:])
        return before == 0 < self.noise

    def end(self):
        """Judge the last line, which has no newline; return True if it was the first noise."""
        before = self.noise
        self._finish_line()
        return before == 0 < self.noise

    def _may_pass_over(self, chunk):
        """Say whether a chunk need not be searched. A line that began oddly is followed to its end."""
        if self._clean <= self._TRUSTED_BYTES or len(chunk) < READ_BYTES or (
                self._pieces and not self._pieces[0].startswith(self._PLAIN)):
            return False
        self._chunks += 1
        return self._chunks % self._SEARCHED > 0

    def _extend(self, piece):
        if piece and self._size < self._LINE_BYTES:
            self._pieces.append(piece)
            self._size += len(piece)

    def _finish_line(self):
        if self._is_lost:
            self._is_lost = False
        elif self._pieces:
            first = self._pieces[0]
            is_plain = not self._is_exact() and first.startswith(self._PLAIN)
            self._judge(first if is_plain else b"".join(self._pieces))
        self._pieces, self._size = [], 0

    def _is_exact(self, size=0):
        return self._to_judge > 0 and self._to_read > size

    def _judge(self, line):
        if line.startswith(self._PLAIN) and not self._is_exact(len(line)):
            self.answered = True
            return
        self._to_judge -= 1
        self._to_read -= len(line)
        kind = classify(line).kind
        if kind == NOISE:
            self.noise += 1
            self._clean = 0
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
        """Forget all wakes so far; return the bytes that they were."""
        try:
            return self._receive(4096)
        except OSError:
            return b""  # nothing was there

    def take_signals(self):
        """Let the interpreter write the number of each signal here, the moment that it comes."""
        signal.set_wakeup_fd(self._writer.fileno() if WINDOWS else self._writer, warn_on_full_buffer=False)


def catch_signals(tell):
    """Call tell(number) in a thread of its own for each SIGTERM, SIGINT and SIGHUP from now on.

    A signal that comes just before the main thread blocks would not wake it: Python runs handlers between two of its
    own steps. The wake-up descriptor is written at once, whatever any thread does. A signal that we were started with
    as ignored (nohup) stays ignored.
    """
    pipe = WakePipe()

    def listen():
        while True:
            select.select([pipe], [], [])
            for number in pipe.clear():
                tell(number)
    for name in ("SIGTERM", "SIGINT", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)
    pipe.take_signals()
    start_thread("relay.signals", listen)


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
        #: True when what was written last ended a frame
        self.at_boundary = True
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
            self.at_boundary = data.endswith(b"\n")

    def post(self, frame):
        """Put one frame of our own between frames, without making the caller wait for the peer."""
        self._posting.append(start_thread("relay.%s.post" % self.name, self._write_posted, frame + b"\n"))

    def _write_posted(self, data):
        with self.lock:
            if self.at_boundary:
                self._write_all(data)
            else:
                self._waiting.append(data)

    def _write_all(self, data):
        if self._is_broken:
            return
        try:
            while data:
                try:
                    done = os.write(self.fd, data)
                    data = memoryview(data)[done:] if done < len(data) else b""  # copies of what is left would add up
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
        """Write what still waits, then close the descriptor; once, since its number may soon be another's."""
        for thread in self._posting:
            thread.join(patience_s)
        if not self.lock.acquire(timeout=patience_s):
            return  # a write is stuck: its peer does not read and will find the end of file when we exit
        try:
            if self._waiting:
                self._write_all((b"" if self.at_boundary else b"\n") + b"".join(self._waiting))
                self._waiting = []
            self._is_broken = True
            if self.fd is not None:
                close_quietly(self.fd)
                self.fd = None
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
    frame boundary after a debugger attached: the reader assembles frames and asks the gate for each before it goes on.
    The switch is one way. A held frame and what came with it go into a bounded queue to the writer, which waits for
    the release; until the writer has done all its work, everything queues behind it. So a held frame delays what
    follows in its lane, cancels and pings too; the other lane runs on. While a frame is held its source is not read.
    """

    def __init__(self, relay, direction, source, outlet):
        self.relay = relay
        self.direction = direction
        self.name = "to_server" if direction == CLIENT_TO_SERVER else "to_client"
        self.outlet = outlet
        #: set when the relay's session begins; guarded by the relay's lock
        self.framer = None
        #: the open hold of this lane, or None; guarded by the relay's lock
        self.hold = None
        #: counts chunks, so that the end can see whether bytes still move
        self.progress = 0
        self._is_taking = False
        #: the source while the reader is in a read of it; whoever takes it out of here goes on with the lane
        self._in_read = set()
        self.done = threading.Event()
        self._queue = queue.Queue(LANE_CHUNKS)
        self._writer = None
        self._streaming = True
        #: True when there was no thread left to gate with: bytes and record matter more than breakpoints
        self._is_plain = False
        self._hung_up = False
        self._wake = WakePipe()
        self._polls = {}
        self.resume(source)

    def start(self):
        """Start reading."""
        start_thread("relay.%s.read" % self.name, self.relay.guard, self._read_loop, "relay.%s.read" % self.name)

    def stop(self):
        """Make the reader take the end of file for reached.

        Nothing wakes a thread from a read, so one that is in there is left behind and another goes on in its place.
        """
        self._stopped = True
        self._wake.wake()
        if self._leave_read(self.source):
            self.start()

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
            if chunk is None:
                return
            if chunk:
                self.progress += 1
                self._is_taking = True
                self._take(chunk)
                self._is_taking = False
            elif not self.relay.replace_source(self):
                break
        self._finish()

    def _read(self):
        """Return the next chunk, b"" at the end, or None when `stop` made another thread go on with this lane.

        While nothing waits in the queue there is nothing to look for beside the source, so the read itself waits.
        """
        if self._stopped:  # the thread that goes on must not be taken for the one that it replaces
            return b""
        source = self.source
        may_block = self._streaming or not self._queue.unfinished_tasks
        while may_block or self._wait():
            chunk = None
            self._in_read.add(source)  # before the look at _stopped: `stop` sets that before it looks here
            try:
                chunk = b"" if self._stopped else os.read(source, READ_BYTES)
            except BlockingIOError:  # the host's pipe is empty, and somebody made it one that does not block
                may_block = False
            except OSError:  # a closed descriptor, or a terminal that went away: the end, as it is for everybody
                chunk = b""
            if not self._leave_read(source):
                return None
            if chunk is not None:
                return chunk
        return b""

    def _leave_read(self, source):
        """Take the source out of `_in_read`; return False when somebody else did."""
        try:
            self._in_read.remove(source)  # one step of the interpreter, so one thread alone succeeds
        except KeyError:
            return False
        return True

    def _wait(self):
        """Block until there is something to read; False when the lane is stopped.

        While a frame is held, or the queue is full, nothing is read: only the end of the source is waited for. So
        the reader never blocks on its queue, and a peer that leaves is noticed at once.
        """
        if WINDOWS:  # select knows no pipes there: read and let the bounded queue hold the source back
            return not self._stopped
        while not self._stopped:
            is_blocked = not self._streaming and (self.hold is not None or self._queue.full())
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
                is_gating = relay.is_gating and not self._is_plain
                if not is_gating:
                    relay.remember(self, chunk)
            if not is_gating:
                self.outlet.write(chunk)
                relay.look(self, chunk)
                return
            if not self._writer and not self._start_writer():
                return self._take(chunk)
            chunk = self._switch(chunk)
        if chunk:
            self._gate(*relay.assemble(self, chunk))

    def _gate(self, frames, rest):
        """Pass frames on, but leave them to the writer from the first that is held, and all while it has work."""
        hold = None
        if not self._queue.unfinished_tasks:  # the reader alone puts, so it stays at nothing
            hold, frames = self._pass_on(frames)
            if hold is None:
                self._write_rest(rest)
                return
        self._queue.put((hold, frames, rest))

    def _switch(self, chunk):
        """Begin to gate at the next frame boundary; return what comes behind it.

        The frame that is under way has been sent in part: it is put on record and cannot be held any more.
        """
        rest = chunk
        if not self.outlet.at_boundary:
            head, newline, rest = chunk.partition(b"\n")
            head += newline
            with self.relay.lock:
                for frame in self.framer.feed(head)[0]:
                    self.relay.record(self, frame)
            self.outlet.write(head)
        self._streaming = not self.outlet.at_boundary
        return rest

    def _start_writer(self):
        """Start the writing thread; False if the system has none left, and the lane stays a pipe."""
        name = "relay.%s.write" % self.name
        try:
            self._writer = start_thread(name, self.relay.guard, self._write_loop, name)
        except RuntimeError as error:
            self._is_plain = True
            self.relay.tell_once("no thread", "%s cannot be started: %s; nothing is held in that direction"
                                 % (name, error))
        return not self._is_plain

    def _finish(self):
        """Hand on the last bytes, which have no newline, and say that this direction is over."""
        if self._writer:
            self._queue.put(_END)
            self._writer.join()
        with self.relay.lock:
            tail = self.framer.tail() if self.framer else b""
            if tail:
                self.relay.record(self, tail)
        if not self._streaming:
            self._write_rest(tail)
        self.done.set()
        self.relay.note("lane ended", self)

    # -- writing --------------------------------------------------------------------------------------------------

    def _write_loop(self):
        item = self._queue.get()
        while item is not _END:
            if self._queue.qsize() >= LANE_CHUNKS - 1:  # it was full: the reader may wait for room
                self._wake.wake()
            hold, frames, rest = item
            while hold or frames:
                if hold:
                    self._write_released(hold)
                hold, frames = self._pass_on(frames)
            self._write_rest(rest)
            self._queue.task_done()
            item = self._queue.get()

    def _pass_on(self, frames):
        """Ask the gate for each frame and write those that may pass; return (the first hold, the frames behind it)."""
        hold, passing = None, 0
        for frame in frames:
            hold = self.relay.admit(self, frame)
            if hold:
                break
            passing += 1
        if passing:
            self.outlet.write(b"\n".join(frames[:passing]) + b"\n")
        return hold, frames[passing + 1:]

    def _write_released(self, hold):
        """Wait until a hold is released and write what then goes on in its frame's place."""
        self.relay.wake_reporter()
        frame = self.relay.await_release(self, hold)
        if frame is not None:
            self.outlet.write(frame + b"\n")

    def _write_rest(self, rest):
        """Write bytes that are no frames, and let the reporter send what was recorded."""
        if rest:
            self.outlet.write(rest)
        self.relay.wake_reporter()

    def is_idle(self):
        """Say whether nothing is on its way through this lane."""
        return not self._queue.unfinished_tasks and not self._is_taking


class Mirror:
    """Our stderr: the server's bytes as they come, and our own lines, written by a thread of its own.

    `_changed` guards the buffer. Nobody who writes here ever waits: a host that does not read costs memory up to
    STDERR_BUFFER_BYTES, then bytes are dropped and counted. A line of ours waits for the end of the server's line, for
    OURS_WAIT_S at most, so that it does not stand in the middle of it.
    """

    def __init__(self, fd=2):
        self._fd = fd
        self._changed = threading.Condition()
        self._buffer = collections.deque()
        self._size = 0
        self._dropped = 0
        self._at_line_start = True
        #: lines of ours that wait, and the monotonic seconds at which the first of them came
        self._ours, self._ours_since = [], 0.0
        self._written = 0
        self._is_busy = False
        start_thread("relay.stderr.write", self._write_loop)

    def put(self, data):
        """Pass on bytes of the server."""
        with self._changed:
            if self._size + len(data) > STDERR_BUFFER_BYTES:
                self._dropped += len(data)
                return
            head, newline, tail = data.rpartition(b"\n") if self._ours else (data, b"", b"")
            self._append(head + newline)
            if newline:
                self._append_ours()
                self._append(tail)

    def say(self, text):
        """Write one line of our own; text may hold newlines of ours."""
        with self._changed:
            if not self._ours:
                self._ours_since = time.monotonic()
            self._ours.append(("mcp_relay: " + text + "\n").encode("utf-8", "backslashreplace"))
            if self._at_line_start:
                self._append_ours()
            self._changed.notify_all()

    def _append(self, data):
        if data:
            self._buffer.append(data)
            self._size += len(data)
            self._at_line_start = data[-1:] == b"\n"
            self._changed.notify_all()

    def _append_ours(self):
        """Let our lines go, behind a newline of our own if the server's line has none yet."""
        ours, self._ours = self._ours, []
        self._append((b"" if self._at_line_start else b"\n") + b"".join(ours))

    def _write_loop(self):
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                while not self._buffer:
                    wait_s = self._ours_since + OURS_WAIT_S - time.monotonic() if self._ours else None
                    if wait_s is not None and wait_s <= 0:
                        self._append_ours()
                    else:
                        self._changed.wait(wait_s)
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
            if self._ours:
                self._append_ours()
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

    A name without extension is looked up through PATHEXT as a shell would. A .cmd or .bat file runs under COMSPEC in
    one string, every argument in quotes, where & and its like mean nothing; what quotes do not protect is refused.
    Anything else is left to the system. Errors: OSError for an argument that cmd.exe would change.
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
    quoted = ['"%s"' % re.sub(r"(\\+)\Z", r"\1\1", text) for text in [found] + argv[1:]]
    return '"%s" /d /v:off /s /c "%s"' % (environ.get("COMSPEC") or "cmd.exe", " ".join(quoted))


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


def port_words(port):
    """Return what a command line needs to find the hub of a port; nothing for the default one."""
    return "" if port == PORT else " --port %d" % port


class EventLog:
    """The newest events of a session, for a hub that is slow or comes again. Bounded like the history.

    Two views of the same events: all that are remembered, and those that were not taken yet. Used under the relay's
    lock.
    """

    def __init__(self):
        self._events = collections.deque()
        self._fresh = collections.deque()
        self._bytes = 0

    def append(self, event):
        """Add one event; the oldest go when there is no room."""
        frame = event.get("frame")
        size = 200 if frame is None else 200 + len(frame)
        self._bytes += size
        self._events.append((size, event))
        self._fresh.append((size, event))
        if self._bytes > HISTORY_BYTES or len(self._events) > HISTORY_FRAMES:
            self._drop()

    def _drop(self):
        while self._bytes > HISTORY_BYTES and len(self._events) > 1 or len(self._events) > HISTORY_FRAMES:
            oldest = self._events.popleft()
            self._bytes -= oldest[0]
            if self._fresh[0] is oldest:
                self._fresh.popleft()

    def rewind(self, seq):
        """Let all events from sequence number seq on be taken again."""
        self._fresh = collections.deque(pair for pair in self._events if pair[1]["seq"] >= seq)

    def has_fresh(self):
        """Say whether there are events to take."""
        return bool(self._fresh)

    def take(self):
        """Return the oldest events that were not taken yet: at most EVENTS_PER_LINE, or about PAYLOAD_BYTES."""
        taken, size = [], 0
        while self._fresh and len(taken) < EVENTS_PER_LINE and size < PAYLOAD_BYTES:
            part, event = self._fresh.popleft()
            taken.append(event)
            size += part
        return taken


def frame_value(frame):
    """Return how a frame stands in an event: its text, or an object where it is not UTF-8 or too long to keep."""
    if len(frame) > PAYLOAD_BYTES:
        return {"truncated": True, "bytes": len(frame), "text": frame[:4096].decode("utf-8", "ignore")}
    try:
        return frame.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(frame).decode()}


_dumps = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def event_value(event):
    """Return an event as JSON can hold it: its frames as text."""
    frame = event.get("frame")
    if frame is not None:
        event = dict(event, frame=frame_value(frame))
    if type(event.get("dropped")) is bytes:
        event = dict(event, dropped=frame_value(event["dropped"]))
    return event


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

    Sends the session's events as JSON lines (arrays of events), takes releases, breakpoints and mode. Every failure
    means a lost debugger: the relay releases what is held and goes on as a pipe. Never raises into the lanes.
    """

    def __init__(self, relay, home, port):
        self._relay = relay
        self._home = home
        self._port = port
        self._wake = WakePipe()
        self._next = 1
        self._is_ending = False
        self._is_polling = False
        self._filled_at = 0.0
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
        last = welcome.get("last")
        self._next = last + 1 if type(last) is int else 1
        relay.attach(welcome, self._next)
        self._out = encode({"type": "armed", "state": welcome.get("state")}) + b"\n"
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
        """Send and receive until the link is lost or the session is over.

        Events are gathered for a moment after each batch: waking up for every single one would compete with the
        lanes for the interpreter, and nobody sees the difference.
        """
        heard = sent = moved = time.monotonic()
        while True:
            for line in framer.feed(inbox)[0]:
                self._receive(line)
            if framer.raw:
                return  # a hub that sends such a line is none
            now = time.monotonic()
            gather_s = 0 if self._is_ending else self._filled_at + GATHER_S - now
            if gather_s <= 0:
                self._fill(now)
            if now - sent >= HEARTBEAT_S:
                self._out += b'{"type":"ping"}\n'
                sent = now
            if now - heard >= SILENCE_S or (self._out and now - moved >= HEARTBEAT_S):
                return
            if self._is_ending and not self._out:
                return self._say_goodbye(link)
            ready, writable = self._wait(link, gather_s)
            if writable:
                self._out = self._out[link.send(self._out[:READ_BYTES * 4]):]
            if writable or not self._out:
                moved = time.monotonic()
            inbox = b""
            if link in ready:
                inbox = link.recv(READ_BYTES)
                heard = time.monotonic()
                if not inbox:
                    return

    def _wait(self, link, gather_s):
        """Wait for the hub, for room to send, and unless events are being gathered for new ones."""
        if gather_s > 0:
            return select.select([link], [link] if self._out else [], [], gather_s)[:2]
        self._is_polling = True
        wait_s = 0 if not self._out and self._has_more() else 1.0  # an event may have come before is_polling was set
        ready, writable, _ = select.select([link, self._wake], [link] if self._out else [], [], wait_s)
        self._is_polling = False
        if self._wake in ready:
            self._wake.clear()
        return ready, writable

    def _say_goodbye(self, link):
        """End our side and wait until the hub has read all of it: closing at once could take it away again."""
        import socket
        link.shutdown(socket.SHUT_WR)
        link.settimeout(FAILURE_WAIT_S)
        while link.recv(READ_BYTES):
            pass  # what the hub still says concerns nobody
        self.flushed.set()

    def _has_more(self):
        with self._relay.lock:
            return self._relay.log.has_fresh()

    def _fill(self, now):
        """Encode the next events once the last ones are sent; what the log has lost becomes a gap."""
        if self._out:
            return
        with self._relay.lock:
            events = self._relay.log.take()
        if not events:
            return
        self._filled_at = now
        values = list(map(event_value, events))
        first, gone = events[0], events[0]["seq"] - self._next
        if gone > 0:
            values.insert(0, {"type": "gap", "seq": self._next, "ts": first["ts"], "at": first["at"],
                              "dropped": gone, "reason": "the hub did not keep up",
                              "fromSeq": self._next, "toSeq": first["seq"] - 1})
        self._next = events[-1]["seq"] + 1
        self._out = _dumps(values).encode() + b"\n"  # one line: encoding many at once costs a third less

    def _receive(self, line):
        """Carry out one line of the hub. What cannot be read is counted by the relay and left."""
        try:
            told = json.loads(line.decode())
            kind = told["type"]
            if kind == "ping":
                self._out += b'{"type":"pong"}\n'
            elif kind == "breakpoints":
                self._relay.arm(told["breakpoints"], told["mode"])
                self._out += encode({"type": "armed", "state": told.get("state")}) + b"\n"
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
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        # the gate
        #: True from the first attach on: frames are assembled before they go on
        self.is_gating = False
        self.is_attached = False
        self.breakpoints = []
        self.mode = "run"
        self._holds = {}
        self._released = collections.OrderedDict()
        #: holds so far, and those among them whose release has not been carried out yet
        self._hold_count = self._unsettled = 0
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
        catch_signals(lambda number: self.note("signal", number))
        self._start_lanes(failure)
        while not self._is_over():
            self._handle(*self._next_note())
        return self._finish()

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
            self._is_reporting = True
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
        """Tell the main thread that something happened; callable from any thread."""
        self._notes.put((what, about))

    def _next_note(self):
        deadlines = [at for at in (self._term_at, self._kill_at, self._quit_at, self._linger_at) if at is not None]
        try:
            wait_s = max(min(deadlines) - time.monotonic(), 0) if deadlines else None
            return self._notes.get(timeout=wait_s)
        except queue.Empty:
            return "time passed", None

    def _handle(self, what, about):
        """Act on one note. The order of the end is that of the MCP lifecycle: EOF, SIGTERM, SIGKILL (design 3)."""
        now = time.monotonic()
        if what == "signal" and self._signal is None:
            self._signal = about
            if self.child:
                self.child.signal(about)
            self._begin_end(now, "shutdown")
        elif what == "lane ended" and about is self.to_server:
            self._begin_end(now, "host gone")
            self.to_server.outlet.close()
        elif what == "lane ended" and not self._child_runs():
            self._linger_at = None
        elif what == "lane ended":  # the server closed its stdout: the host must see that at once
            self._begin_end(now, "server gone")
            self._close_client()
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
            return Exit.SIGNAL + self._signal
        if self._is_masked:
            return 0
        if self.child.ended is None or "thread died" in self._told:
            return 1
        code, number = self.child.ended
        return code if number is None else Exit.SIGNAL + number

    def _finish(self):
        """Bring everything to its end and say what went wrong."""
        until = time.monotonic() + STDERR_PATIENCE_S if self._quit_at is None else self._quit_at + LINGER_S
        self._mask_decided.set()
        self._release_all("shutdown" if self._child_runs() else "server gone")  # the note of it may not be read yet
        self._close_client()
        if self.child:
            self.child.end_family()
            self._await_last_words(until)
        failed = self._report()
        if self.reporter:
            self.reporter.finish(FAILURE_WAIT_S if failed else 0)
        self.mirror.flush(STDERR_PATIENCE_S, until)
        return self._exit_code()

    def _await_last_words(self, until):
        """Wait until the server's stderr has ended, was silent for LINGER_S, or the monotonic time `until` is reached.

        The server itself has ended; what it wrote last may still be in the pipe, or somebody else may hold the pipe.
        """
        seen = None
        while seen != self._stderr_chunks and not self._stderr_done.is_set() and time.monotonic() < until:
            seen = self._stderr_chunks
            self._stderr_done.wait(LINGER_S)

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
            if not self._is_reporting:
                self.tell_once("raw " + lane.name, words + "; from here on that direction is relayed as raw bytes and "
                               "not recorded (--max-frame-bytes raises the limit)")
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
            return self._open_hold(lane, passage, reason, loop, now) if reason else None

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
        if loop["repeats"] <= max(self.loops.threshold, LOOP_ROUNDS) and not self._is_replaying:
            self.mirror.say("the client seems to loop: %s, %d times (%s); nothing was held"
                            % (printable(instance.title), loop["repeats"], loop["kind"]))
        return None

    def _observer_failed(self, error):
        self.tell_once("observer", "internal error while looking at a frame: %s: %s; frames are relayed unseen"
                       % (type(error).__name__, printable(str(error))))

    def wake_reporter(self):
        """Say that there are events to send; called when a lane has done its work, never before a write."""
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

    _is_replaying = _is_reporting = False

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

    def attach(self, welcome, seq):
        """Begin to be watched: called by the reporter with what the hub said. seq: the first event it has not got."""
        with self.lock:
            if not self.is_gating and not self._is_reporting:  # else the session is over, and on record
                self._open_session()
                self.history = None
                self.is_gating = True
            self.log.rewind(seq)
            self._arm(welcome.get("breakpoints"), welcome.get("mode"))
            self.is_attached = True
        self.tell_once("attached", "attached: this session is shown at http://127.0.0.1:%d/#run=%s"
                       % (self.options.port, self.run))

    def arm(self, breakpoints, mode):
        """Take the hub's breakpoints and mode; they hold from the next frame on."""
        with self.lock:
            self._arm(breakpoints, mode)

    def _arm(self, breakpoints, mode):
        self.breakpoints = [each for each in breakpoints if type(each) is dict] if type(breakpoints) is list else []
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
        self._unsettled += 1
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
        self.wake_reporter()
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
        self.wake_reporter()
        if reply is not None:
            (self.to_server if lane is self.to_client else self.to_client).outlet.post(reply)
        with self.lock:
            self._unsettled -= 1
            self.changed.notify_all()
        return frame

    def _close_client(self):
        """Close our stdout, after what the last releases have to say to the host."""
        with self.lock:
            self.changed.wait_for(lambda: not self._unsettled, LINGER_S)
        self.to_client.outlet.close()

    def _announce(self, hold):
        self.mirror.say(
            "HOLDING %s at the %s gate (%s); resume it in http://127.0.0.1:%d/ or with: mcp_relay.py resume %s%s — "
            "the client is waiting and may time out"
            % (hold.title(), hold.passage.point, hold.reason, self.options.port, hold.name,
               port_words(self.options.port)))

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
            frame = one_line(hold.value or b"")
            if classify(frame).kind == NOTIFICATION:
                self.session.finish(instance, "ok", now, frame, injected=True, gatedAt=BEFORE)
                return frame
            self.mirror.say("a notification can only be replaced by a JSON object that is a JSON-RPC notification; %s "
                            "was relayed as it came" % printable(instance.message.method))
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
            self._await_last_words(time.monotonic() + LINGER_S)
            self._report_early_exit()
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
            self.wake_reporter()
        self._stderr_done.set()

    # -- the report -----------------------------------------------------------------------------------------------

    def _ended_words(self):
        """Return (exit code, signal name) of the server."""
        code, number = self.child.ended if self.child and self.child.ended else (1, None)
        return code, None if number is None else signal_name(number)

    def _report(self):
        """Close the record and say what went wrong in the session; return True if the server failed to start."""
        with self.lock:
            self._is_reporting = True
            if self.session is None:
                self._open_session()
            session = self.session
            for lane in (self.to_server, self.to_client):
                tail = lane.framer.tail()
                if tail and not self.is_gating:
                    session.pass_on(session.observe(lane.direction, tail, time.monotonic()), time.monotonic())
            if self.noise.end():
                self._tell_noise(self.noise.first)
            is_blind = self.to_server.framer.raw or self.to_client.framer.raw
            unanswered = 0 if is_blind else len(session.waiting())
            code, name = self._ended_words()
            early = not session.answered and (code or name or unanswered) and not self._is_masked and not is_blind
            failure = None
            if early:
                lines, seen = self.tail.lines()
                failure = "McpServerExitedEarly", early_exit_words(
                    ending_words(code, name), lines, seen, self.options.inherit_stderr)
            session.noise = max(session.noise, self.noise.noise)
            session.end(time.monotonic(), ending_words(code, name), code, name, failure)
        if early:
            self._report_early_exit()
        self._summarise(session, unanswered)
        return bool(early)

    def _report_early_exit(self):
        with self.lock:
            lines, seen = self.tail.lines(STDERR_QUOTED_LINES)
        words = ending_words(*self._ended_words())
        self.mirror.say(early_exit_words(words, lines, seen, self.options.inherit_stderr))

    def _summarise(self, session, unanswered):
        where = ' (see "stdout noise" on the graph)' if "attached" in self._told else ""
        at_least = "at least " if self.noise.is_partial else ""
        for count, text in (
                (unanswered, "%d request(s) were still unanswered when the server exited"),
                (session.unmatched, "%d response(s) matched no request that was waiting; they were relayed"),
                (session.noise, at_least + "%d line(s) the server wrote to stdout were not JSON-RPC and were relayed "
                                           "verbatim — stdout is the MCP wire; log to stderr" + where),
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
# PART THREE. The hub: what relays tell is kept, shown, and steered.
# ================================================================================================================

#: Runs and days that are kept (seed of the store: newest first, older ones go at start and with each new run).
KEEP_RUNS, KEEP_DAYS = 200, 30
#: Seconds without page, stream or waiting command after which an open hold is released (design 4).
UNATTENDED_S = 30.0
#: Seconds that a relay may be gone before its unfinished run counts as abandoned, and to answer a release.
ABANDON_S = 15.0
ANSWER_S = 5.0
#: Seconds of the longest long-poll, how many may wait at once, and how often a silent stream says that it lives.
WAIT_S, MAX_WAITS, KEEP_ALIVE_S = 120.0, 64, 15.0
#: Bytes of a request's body, and items that may wait for a page that does not read.
BODY_BYTES, STREAM_ITEMS = 16 * 1024 * 1024, 20000


# ----------------------------------------------------------------------------------------------------------------
# 18. Runs: events in, summaries out.
# ----------------------------------------------------------------------------------------------------------------


class Run:
    """What the hub knows of one run beside its events: the summary and the nodes. Pure; used under the hub's lock."""

    def __init__(self, name, summary=None):
        summary = summary or {}
        self.name = name
        #: the fields of the API's Run that are stored
        self.fields = dict({"label": name, "status": "running", "started": None, "ended": None, "calls": 0,
                            "errors": 0, "noise": 0, "client": None, "server": None, "protocolVersion": None,
                            "error": None, "events": 0}, **summary.get("fields", {}))
        #: node -> {node, kind, name, parent, status, executions, errors, durationMs}
        self.nodes = summary.get("nodes", {})
        #: instance -> sequence number of its node.started, while it is open
        self.opened = {}
        self.attached = False
        #: monotonic seconds at which the relay was lost
        self.lost_at = None

    def summary(self):
        """Return what is stored."""
        return {"fields": self.fields, "nodes": self.nodes}

    def describe(self, held):
        """Return the API's Run; held: how many holds are open."""
        return dict(self.fields, run=self.name, attached=self.attached, held=held)

    def apply(self, event):
        """Take note of one event, in order. What is no event of ours changes nothing."""
        self.fields["events"] = max(self.fields["events"], event["seq"])
        update = _UPDATES.get(event["type"])
        if update:
            update(self, event)

    def _run_started(self, event):
        self.fields.update(label=str(event.get("label"))[:200], started=event["ts"], status="running")

    def _run_finished(self, event):
        self.fields.update(status=event.get("status"), ended=event["ts"], error=event.get("error"))

    def _node_started(self, event):
        self.opened[event["instance"]] = event["seq"]
        node = self.nodes.setdefault(event["node"], {
            "node": event["node"], "kind": event.get("kind"), "name": event.get("name"),
            "parent": event.get("parent"), "status": "running", "executions": 0, "errors": 0, "durationMs": None})
        node["executions"] += 1
        node["status"] = "running"
        if event.get("method") and not event.get("notification"):
            self.fields["calls"] += 1
        if event["node"] == NOISE_NODE:
            self.fields["noise"] += 1
        if event.get("method") in ("initialize", "server/discover"):
            params = _dict(_frame_json(event).get("params"))
            meta = _dict(params.get("_meta"))
            self.fields["client"] = _who(params.get("clientInfo") or meta.get("io.modelcontextprotocol/clientInfo"))
            self.fields["protocolVersion"] = self.fields["protocolVersion"] or meta.get(VERSION_KEY)

    def _node_error(self, event):
        self.fields["errors"] += 1
        if event["node"] in self.nodes:
            self.nodes[event["node"]]["errors"] += 1

    def _node_finished(self, event):
        self.opened.pop(event["instance"], None)
        node = self.nodes.get(event["node"])
        if node:
            node.update(status=event.get("status"), durationMs=event.get("durationMs"))
        if event["node"] == PROTOCOL_NODE:
            self.fields["noise"] = _dict(event.get("output")).get("stdoutNoise", self.fields["noise"])
        if event.get("method") in ("initialize", "server/discover"):
            result = _dict(_frame_json(event).get("result"))
            meta = _dict(result.get("_meta"))
            self.fields["server"] = _who(result.get("serverInfo") or meta.get("io.modelcontextprotocol/serverInfo"))
            version = result.get("protocolVersion")
            self.fields["protocolVersion"] = version if type(version) is str else self.fields["protocolVersion"]

    def _hold_opened(self, event):
        if event["node"] in self.nodes:
            self.nodes[event["node"]]["status"] = "held"

    def _hold_released(self, event):
        if event["node"] in self.nodes:
            self.nodes[event["node"]]["status"] = "running"


_UPDATES = {"run.started": Run._run_started, "run.finished": Run._run_finished, "node.started": Run._node_started,
            "node.error": Run._node_error, "node.finished": Run._node_finished, "hold.opened": Run._hold_opened,
            "hold.released": Run._hold_released}


def _frame_json(event):
    """Return the object in an event's frame, an empty one where there is none to read."""
    try:
        return _dict(json.loads(event["frame"]))
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}


def _who(info):
    """Return {name, version} of an Implementation object, or None."""
    if type(info) is not dict:
        return None
    return {key: str(info.get(key))[:100] for key in ("name", "version")}


# ----------------------------------------------------------------------------------------------------------------
# 19. The store: SQLite where it can, memory where it must.
# ----------------------------------------------------------------------------------------------------------------


class Store:
    """Keep runs and events. Lines are stored and given back exactly as they came.

    `lock` protects the connection and the memory. A disk that fails is told once, and from then on new events are
    kept in memory; nothing that is already stored is lost. Methods raise nothing for a broken disk.
    """

    SCHEMA = """
        CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, started REAL, ended REAL, owner INTEGER, summary TEXT);
        CREATE TABLE IF NOT EXISTS events (run TEXT, seq INTEGER, line TEXT, PRIMARY KEY (run, seq)) WITHOUT ROWID;
        CREATE TABLE IF NOT EXISTS settings (key TEXT PRIMARY KEY, value TEXT);
    """

    def __init__(self, path, tell):
        """path: of the database, or ":memory:". tell: called with a sentence when runs cannot be kept on disk."""
        self.lock = threading.RLock()
        self._tell = tell
        self._runs = {}
        self._events = {}
        self._settings = {}
        self._db = None
        if path != ":memory:":
            self._open(path)

    def _open(self, path):
        try:
            import sqlite3
        except ImportError:
            return self._fail("this Python has no sqlite3")
        self._errors = sqlite3.Error, OSError
        try:
            make_private_folder(os.path.dirname(os.path.abspath(path)))
            if not is_database(path):
                return self._fail("%s is there already and is no database" % path)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            os.chmod(path, 0o600)
            self._db = sqlite3.connect(path, timeout=5.0, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")  # a crash of the machine may lose the last moments
            self._db.executescript(self.SCHEMA)
        except self._errors as error:
            self._fail(str(error))

    def _fail(self, reason):
        self._db = None
        self._tell("runs are kept in memory only: %s" % printable(reason))

    def _do(self, sql, rows):
        """Run one statement for each row in one transaction; return False if that went to memory instead."""
        if self._db is None:
            return False
        try:
            self._db.execute("BEGIN")
            self._db.executemany(sql, rows)
            self._db.execute("COMMIT")
            return True
        except self._errors as error:
            self._fail(str(error))
            return False

    def _ask(self, sql, values=()):
        if self._db is None:
            return []
        try:
            return self._db.execute(sql, values).fetchall()
        except self._errors as error:
            self._fail(str(error))
            return []

    def add(self, run, rows):
        """Store events of one run. rows: [(seq, line)], line a str; a sequence number that is there already is kept."""
        with self.lock:
            if not self._do("INSERT OR IGNORE INTO events VALUES (?, ?, ?)",
                            [(run, seq, line) for seq, line in rows]):
                known = self._events.setdefault(run, {})
                for seq, line in rows:
                    known.setdefault(seq, line)

    def events(self, run, after, limit):
        """Return [(seq, line)] of a run behind a sequence number, in order; limit -1 for all."""
        with self.lock:
            found = self._ask("SELECT seq, line FROM events WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?",
                              (run, after, limit))
            kept = self._events.get(run)
            if kept and (limit < 0 or len(found) < limit):
                found = sorted(set(found).union((seq, line) for seq, line in kept.items() if seq > after))
                found = found if limit < 0 else found[:limit]
        return found

    def save(self, run, owner):
        """Store a run's summary. owner: port of the hub that it belongs to."""
        row = run.name, run.fields["started"], run.fields["ended"], owner, json.dumps(run.summary())
        with self.lock:
            if not self._do("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?)", [row]):
                self._runs[run.name] = row

    def runs(self):
        """Return [(Run, owner)], oldest first."""
        with self.lock:
            rows = self._ask("SELECT * FROM runs") + list(self._runs.values())
        return [(Run(row[0], json.loads(row[4])), row[3]) for row in sorted(rows, key=lambda row: row[1] or 0)]

    def delete(self, run):
        """Forget a run and its events."""
        with self.lock:
            self._do("DELETE FROM events WHERE run = ?", [(run,)])
            self._do("DELETE FROM runs WHERE run = ?", [(run,)])
            self._events.pop(run, None)
            self._runs.pop(run, None)

    def setting(self, key):
        """Return a stored JSON value, or None."""
        with self.lock:
            rows = self._ask("SELECT value FROM settings WHERE key = ?", (key,))
            return json.loads(rows[0][0]) if rows else self._settings.get(key)

    def set(self, key, value):
        """Store a JSON value."""
        with self.lock:
            if not self._do("INSERT OR REPLACE INTO settings VALUES (?, ?)", [(key, json.dumps(value))]):
                self._settings[key] = value

    def close(self):
        """Close the database."""
        with self.lock:
            if self._db is not None:
                self._db.close()
                self._db = None


def is_database(path):
    """Say whether a path is free for a database: nothing there, an empty file, or one that SQLite wrote."""
    if not os.path.lexists(path):
        return True
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as source:
        return source.read(16) in (b"", b"SQLite format 3\0")


def make_private_folder(path):
    """Create a folder that only we may enter; one that is there already is left as it is."""
    if not os.path.isdir(path):
        os.makedirs(path, 0o700)


def write_private(path, data):
    """Write a file that only we may read, whole or not at all."""
    draft = "%s.%d" % (path, os.getpid())
    fd = os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o600)
    with os.fdopen(fd, "wb") as sink:
        sink.write(data)
    os.replace(draft, path)


# ----------------------------------------------------------------------------------------------------------------
# 20. The hub itself: relays on one side, viewers on the other.
# ----------------------------------------------------------------------------------------------------------------


class ApiError(Exception):
    """An answer of the API that is no success: HTTP status, stable code, sentence, further fields."""

    def __init__(self, status, code, message, **more):
        Exception.__init__(self, message)
        self.status = status
        self.body = dict(more, error={"code": code, "message": message})


class Link:
    """One attached relay: its socket, written by whoever has something to tell it."""

    def __init__(self, run, sock):
        self.run = run
        #: monotonic seconds: when it last said something, and was last told something
        self.heard = self.told = time.monotonic()
        #: number of the newest state of breakpoints and mode that it has taken
        self.armed = 0
        self._sock = sock
        self._lock = threading.Lock()  # keeps each line whole

    def send(self, message):
        """Send one JSON line; a relay that does not take it is cut off, and comes again if it lives."""
        self.told = time.monotonic()
        try:
            with self._lock:
                self._sock.sendall(encode(message) + b"\n")
        except OSError:
            self.cut()

    def cut(self):
        """End the connection; its reader notices."""
        try:
            self._sock.shutdown(2)
        except OSError:
            pass  # it is gone already


class Stream:
    """One viewer's event stream: items wait here until its handler has sent them.

    An item is (kind, key, text): key is the sequence number of an event and the name of a run, else None.
    """

    def __init__(self, run):
        self.run = run
        self.items = queue.Queue()

    def put(self, item):
        """Add an item; a viewer that does not read is told to come again, rather than kept in memory."""
        if self.items.qsize() < STREAM_ITEMS:
            self.items.put(item)
        elif self.items.qsize() == STREAM_ITEMS:
            self.items.put(None)


class Hub:
    """The debugger's state: runs, open holds, breakpoints, mode, attached relays and viewers.

    `lock` protects all of it; it is never held while something is sent to a relay or a viewer. `changed` wakes the
    long-polls and the releases that wait for a relay's answer.
    """

    def __init__(self, store, port, token, unattended_s=UNATTENDED_S, pause_on_error=None):
        """pause_on_error: the breakpoints on errors to begin with, or None for those that the store remembers."""
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.store = store
        self.port = port
        self.token = token
        self.unattended_s = unattended_s
        self.runs = collections.OrderedDict((run.name, run) for run, _ in self._adopt())
        self.links = {}
        self.streams = []
        #: hold -> {"hold": Hold, "by": who is releasing it or None}
        self.holds = collections.OrderedDict()
        self._closed = collections.OrderedDict()
        self._answers = {}
        self._requests = self._state = 0
        self.waits = 0
        self._watched_at = time.monotonic()
        #: {mode, next id, breakpoints}, as it is stored
        self.gate = self._recall_gate(pause_on_error)

    def _recall_gate(self, pause_on_error):
        gate = self.store.setting("breakpoints")
        if type(gate) is not dict:
            gate = {"mode": "run", "next": 1, "breakpoints": []}
            pause_on_error = [{"point": ERROR}] if pause_on_error is None else pause_on_error
        if pause_on_error is not None:  # it was asked for at this start, and speaks of unnamed errors only
            gate["breakpoints"] = [each for each in gate["breakpoints"] if each["point"] != ERROR or "name" in each]
            for each in pause_on_error:
                self._remember_breakpoint(gate, each)
        return gate

    def _adopt(self):
        """Take over the stored runs: what a hub that has ended left running is abandoned; old runs go."""
        found = self.store.runs()
        for run, owner in found:
            for seq, line in self.store.events(run.name, run.fields["events"], -1):  # a killed hub did not sum them up
                run.apply(json.loads(line))
            if run.fields["status"] == "running" and (owner == self.port or hub_health(owner) is None):
                run.fields["status"] = "abandoned"
                self.store.save(run, self.port)
        oldest = (time.time() - KEEP_DAYS * 86400) * 1000
        kept = [pair for pair in found if (pair[0].fields["started"] or 0) >= oldest][-KEEP_RUNS:]
        for run, _ in found:
            if all(run is not other for other, _ in kept):
                self.store.delete(run.name)
        return kept

    # -- relays ---------------------------------------------------------------------------------------------------

    def join(self, link):
        """Take an attached relay in and return the welcome for it."""
        with self.lock:
            run = self.runs.get(link.run)
            if run is None:
                run = self.runs[link.run] = Run(link.run)
                self._forget_oldest()
            before = self.links.get(link.run)
            self.links[link.run] = link
            run.lost_at = None
            if run.fields["status"] == "abandoned":
                run.fields["status"] = "running"
            welcome = {"type": "welcome", "protocol": PROTOCOL, "last": run.fields["events"], "state": self._state}
            welcome.update(self.breakpoints())
        if before:
            before.cut()
        self.store.save(run, self.port)
        return welcome

    def _armed(self, link, state):
        """Take note that a relay has taken breakpoints and mode; with the first ones it is attached."""
        with self.lock:
            link.armed = state
            run = self.runs.get(link.run)
            is_news = run is not None and not run.attached and self.links.get(link.run) is link
            if is_news:
                run.attached = True
            self.changed.notify_all()
        if is_news:
            self._tell_run(run)

    def _forget_oldest(self):
        names = [name for name in self.runs if name not in self.links]
        for name in names[:max(len(self.runs) - KEEP_RUNS, 0)]:
            del self.runs[name]
            self.store.delete(name)

    def leave(self, link):
        """Take note that a relay has gone: its holds are over, its run is abandoned unless it comes back."""
        with self.lock:
            run = self.runs.get(link.run)
            if self.links.get(link.run) is not link or run is None:
                return
            del self.links[link.run]
            run.attached, run.lost_at = False, time.monotonic()
            gone = [hold for hold in self.holds if self.holds[hold]["hold"]["run"] == link.run]
            for hold in gone:
                self._close_hold(hold, CONTINUE, "debugger lost")
            self.changed.notify_all()
        for hold in gone:
            self._tell("released", {"hold": hold, "run": link.run, "action": CONTINUE, "by": "debugger lost"})
        self.store.save(run, self.port)
        self._tell_run(run)

    def take(self, link, lines):
        """Take lines of a relay: events are stored, applied and passed on to viewers, answers reach their asker."""
        link.heard = time.monotonic()
        events = []
        for line in lines:
            try:
                told = json.loads(line)
                if type(told) is list:
                    events.extend((event, json.dumps(event, separators=(",", ":"))) for event in told
                                  if type(event["seq"]) is int and type(event["type"]) is str)
                    continue
                kind = told["type"]
                if kind == "outcome":
                    with self.lock:
                        self._answers[told["request"]] = told
                        self.changed.notify_all()
                elif kind == "armed" and type(told["state"]) is int:
                    self._armed(link, told["state"])
                elif kind == "ping":
                    link.send({"type": "pong"})
            except (ValueError, KeyError, TypeError, RecursionError):
                continue  # a line that is none of ours says nothing
        if events:
            self._take_events(link.run, events)

    def _take_events(self, name, events):
        notices = []
        with self.lock:
            run = self.runs.get(name)
            if run is None:
                return  # it was deleted meanwhile
            events = [pair for pair in events if pair[0]["seq"] > run.fields["events"]]
            self.store.add(name, [(event["seq"], line) for event, line in events])
            for event, _ in events:
                try:
                    run.apply(event)
                    notices.extend(self._apply_hold(run, event))
                except (KeyError, TypeError, AttributeError):
                    continue  # an event without the fields of its type
            if any(notices) or any(event["type"].startswith("run.") for event, _ in events):
                self.changed.notify_all()
            streams = [stream for stream in self.streams if stream.run == name]
        if any(event["type"] == "run.finished" for event, _ in events):
            self.store.save(run, self.port)
        for stream in streams:
            for event, line in events:
                stream.put(("event", event["seq"], with_run(name, line)))
        for kind, value in notices:
            self._tell(kind, value)
        self._tell_run(run)

    def _apply_hold(self, run, event):
        """Open or close a hold; return what viewers are to be told. The lock is held."""
        if event["type"] == "hold.opened":
            hold = {key: value for key, value in event.items() if key not in ("seq", "ts", "at", "type")}
            hold["run"] = run.name
            request = self._started_frame(run, event["instance"])
            if event.get("point") == BEFORE:
                hold["frame"] = request
            else:
                hold["request"] = request
            self.holds[event["hold"]] = {"hold": hold, "by": None, "at": time.monotonic()}
            return [("hold", hold)]
        if event["type"] == "hold.released":
            self._close_hold(event["hold"], event.get("action"), event.get("by"))
            return [("released", {"hold": event["hold"], "run": run.name, "action": event.get("action"),
                                  "by": event.get("by")})]
        return []

    def _started_frame(self, run, instance):
        """Return the frame with which an open instance started."""
        rows = self.store.events(run.name, run.opened.get(instance, 0) - 1, 1)
        return json.loads(rows[0][1]).get("frame") if rows else None

    def _close_hold(self, name, action, by):
        self.holds.pop(name, None)
        self._closed[name] = action, by
        if len(self._closed) > MAX_PENDING:
            self._closed.popitem(last=False)

    # -- viewers --------------------------------------------------------------------------------------------------

    def _tell(self, kind, value, key=None):
        """Send an item to every viewer."""
        item = kind, key, json.dumps(value)
        with self.lock:
            streams = list(self.streams)
        for stream in streams:
            stream.put(item)

    def _tell_run(self, run):
        with self.lock:
            value = self._describe(run)
        self._tell("run", value, run.name)

    def _describe(self, run):
        return run.describe(sum(1 for each in self.holds.values() if each["hold"]["run"] == run.name))

    def describe_runs(self):
        """Return the API's runs, newest first."""
        with self.lock:
            return [self._describe(run) for run in reversed(list(self.runs.values()))]

    def run(self, name):
        """Return one Run; ApiError 404 if there is none."""
        with self.lock:
            if name not in self.runs:
                raise ApiError(404, "unknown", "there is no run %s" % printable(name))
            return self.runs[name]

    def describe_run(self, name):
        """Return the API's Run with its nodes."""
        run = self.run(name)
        with self.lock:
            return dict(self._describe(run), nodes=list(run.nodes.values()))

    def delete_run(self, name):
        """Forget a run that is not attached."""
        run = self.run(name)
        with self.lock:
            if run.attached:
                raise ApiError(409, "attached", "run %s is still attached; end its session first" % printable(name))
            del self.runs[name]
        self.store.delete(name)
        self._tell("run", {"run": name, "deleted": True}, name)

    def open_stream(self, run):
        """Register a viewer and return (its Stream, the items that it starts with)."""
        if run is not None:
            self.run(run)
        stream = Stream(run)
        with self.lock:
            first = [("breakpoints", None, json.dumps(self.breakpoints()))]
            first += [("run", each.name, json.dumps(self._describe(each)))
                      for each in reversed(list(self.runs.values()))]
            first += [("hold", None, json.dumps(each["hold"])) for each in self.holds.values()]
            self.streams.append(stream)
        return stream, first

    def close_stream(self, stream):
        """Forget a viewer."""
        with self.lock:
            self.streams.remove(stream)
            self._watched_at = time.monotonic()

    # -- breakpoints and mode -------------------------------------------------------------------------------------

    def breakpoints(self):
        """Return {"mode", "breakpoints"}."""
        return {"mode": self.gate["mode"], "breakpoints": list(self.gate["breakpoints"])}

    @staticmethod
    def _remember_breakpoint(gate, each):
        made = dict(each, id=str(gate["next"]))
        gate["next"] += 1
        gate["breakpoints"].append(made)
        return made

    def add_breakpoint(self, wanted):
        """Add a breakpoint; return (it, whether it is new). ApiError 400 for an odd one."""
        each = {"point": wanted.get("point", BEFORE)}
        for key in ("kind", "name"):
            if wanted.get(key) is not None:
                each[key] = wanted[key]
        if set(wanted) - {"kind", "name", "point"} or any(type(value) is not str for value in each.values()) \
                or each["point"] not in POINTS or each.get("kind") not in (None,) + KINDS:
            raise ApiError(400, "bad_request", "a breakpoint has kind (%s), name and point (%s)"
                           % (", ".join(KINDS), ", ".join(POINTS)))
        with self.lock:
            for known in self.gate["breakpoints"]:
                if {key: value for key, value in known.items() if key != "id"} == each:
                    return known, False
            made = self._remember_breakpoint(self.gate, each)
        self._arm_all()
        return made, True

    def remove_breakpoint(self, name):
        """Remove a breakpoint by id."""
        with self.lock:
            left = [each for each in self.gate["breakpoints"] if each["id"] != name]
            if len(left) == len(self.gate["breakpoints"]):
                raise ApiError(404, "unknown", "there is no breakpoint %s" % printable(name))
            self.gate["breakpoints"] = left
        self._arm_all()

    def set_mode(self, mode):
        """Set run or step mode."""
        if mode not in ("run", "step"):
            raise ApiError(400, "bad_request", "the mode is run or step")
        with self.lock:
            self.gate["mode"] = mode
        self._arm_all()
        self._tell("mode", {"mode": mode})

    def _arm_all(self):
        """Tell every relay the new state and wait until it has taken it: what was armed holds the next frame."""
        with self.lock:
            self._state += 1
            number, state = self._state, self.breakpoints()
            links = list(self.links.values())
            self.store.set("breakpoints", self.gate)
        for link in links:
            link.send(dict(state, type="breakpoints", state=number))
        self._tell("breakpoints", state)
        until = time.monotonic() + ANSWER_S
        with self.lock:
            while time.monotonic() < until and any(
                    link.armed < number for link in links if self.links.get(link.run) is link):
                self.changed.wait(until - time.monotonic())

    # -- holds ----------------------------------------------------------------------------------------------------

    def describe_holds(self, run=None):
        """Return the open holds, oldest first."""
        with self.lock:
            return self._open_holds(run)

    def _open_holds(self, run):
        return [each["hold"] for each in self.holds.values() if run in (None, each["hold"]["run"])]

    def hold(self, name):
        """Return one open hold; ApiError 404."""
        with self.lock:
            if name in self.holds:
                return self.holds[name]["hold"]
        raise ApiError(404, "unknown", "no hold %s is open" % printable(name))

    def wait_for_hold(self, run, wait_s):
        """Return (open holds, whether time ran out), waiting until there is one or the run has ended."""
        until = time.monotonic() + wait_s
        with self.lock:
            if self.waits >= MAX_WAITS:
                raise ApiError(429, "too_many", "too many commands wait already; try again later")
            self.waits += 1
        try:
            with self.lock:
                while True:
                    found, left = self._open_holds(run), until - time.monotonic()
                    is_over = run in self.runs and self.runs[run].fields["status"] != "running"
                    if found or is_over or left <= 0:
                        return found, not found and not is_over
                    self.changed.wait(left)
        finally:
            with self.lock:
                self.waits -= 1
                self._watched_at = time.monotonic()

    def release(self, name, action, value=None, arguments=None, by="api"):
        """Ask a hold's relay to release it. The first asker wins.

        value, arguments: JSON text or None. Returns the relay's outcome. ApiError 404, 409 or 504.
        """
        with self.lock:
            entry = self.holds.get(name)
            if entry is None or entry["by"]:
                self._refuse_late(name, entry)
            link = self.links.get(entry["hold"]["run"])
            if link is None:
                raise ApiError(404, "unknown", "the relay of hold %s has gone" % printable(name), outcome="unknown")
            entry["by"], entry["action"] = by, action
            self._requests += 1
            request = self._requests
        message = {"type": "release", "hold": name, "action": action, "by": by, "request": request}
        if value is not None:
            message["value"] = value
        if arguments is not None:
            message["arguments"] = arguments
        link.send(message)
        return self._await_answer(name, entry, request)

    def _refuse_late(self, name, entry):
        if entry is not None:
            raise ApiError(409, "taken", "%s is releasing it already" % entry["by"], outcome="taken",
                           action=entry["action"], by=entry["by"])
        if name in self._closed:
            action, by = self._closed[name]
            raise ApiError(409, "taken", "hold %s was released already: %s by %s" % (printable(name), action, by),
                           outcome="taken", action=action, by=by)
        raise ApiError(404, "unknown", "there is no hold %s" % printable(name), outcome="unknown")

    def _await_answer(self, name, entry, request):
        until = time.monotonic() + ANSWER_S
        with self.lock:
            while request not in self._answers:
                left = until - time.monotonic()
                if left <= 0 or entry["hold"]["run"] not in self.links:
                    entry["by"] = None
                    raise ApiError(504, "no_answer", "the relay of hold %s does not answer" % printable(name))
                self.changed.wait(left)
            answer = self._answers.pop(request)
            if answer.get("outcome") == "released":
                self._close_hold(name, entry["action"], entry["by"])
            else:
                entry["by"] = None  # it is still held, by anybody's leave
        return {key: value for key, value in answer.items() if key not in ("type", "request")}

    # -- the clock ------------------------------------------------------------------------------------------------

    def tick(self, now):
        """Do what time asks for: heartbeats, lost relays, abandoned runs, holds that nobody watches."""
        with self.lock:
            links = list(self.links.values())
            if self.streams or self.waits:
                self._watched_at = now
            lost = [run for run in self.runs.values()
                    if run.lost_at is not None and now - run.lost_at >= ABANDON_S]
            for run in lost:
                run.lost_at = None
                if run.fields["status"] == "running":
                    run.fields["status"] = "abandoned"
            alone = [name for name, entry in self.holds.items() if self.unattended_s and not entry["by"]
                     and now - max(self._watched_at, entry["at"]) >= self.unattended_s]
        for link in links:
            if now - link.heard >= SILENCE_S:
                link.cut()
            elif now - link.told >= HEARTBEAT_S:
                link.send({"type": "ping"})
        for run in lost:
            self.store.save(run, self.port)
            self._tell_run(run)
        for name in alone:
            try:
                self.release(name, CONTINUE, by="unattended")
            except ApiError:
                pass  # somebody was faster, or its relay has gone


# ----------------------------------------------------------------------------------------------------------------
# 21. The API: routes as one table, the server.
# ----------------------------------------------------------------------------------------------------------------


class Request:
    """One HTTP request as the routes see it: names from the path, query, body."""

    def __init__(self, hub, query, body, names):
        self.hub = hub
        self.query = query
        self.body = body
        self.names = names

    def whole(self, key, default, least=0):
        """Return a query value as a whole number; ApiError 400."""
        text = self.query.get(key, str(default))
        if not re.match(r"[0-9]{1,15}\Z", text) or int(text) < least:
            raise ApiError(400, "bad_request", "%s must be a whole number, at least %d" % (key, least))
        return int(text)

    def wait_s(self):
        """Return how long a long-poll may last, 0 without one; ApiError 400."""
        text = self.query.get("wait", "0")
        if not re.match(r"[0-9]{1,9}(\.[0-9]{1,9})?\Z", text) or float(text) > WAIT_S:
            raise ApiError(400, "bad_request", "wait must be a number of seconds, at most %d" % WAIT_S)
        return float(text)

    def json(self):
        """Return the body as an object; ApiError 400."""
        try:
            value = _STRICT.decode(self.body.decode())
        except (ValueError, RecursionError):
            value = None
        if type(value) is not dict:
            raise ApiError(400, "bad_request", "the body must be a JSON object")
        return value

    def text_of(self, value, key):
        """Return the JSON text of a body's member, exact to the digit, or None: `keyText` itself, or `key`'s span."""
        given = value.get(key + "Text")
        if type(given) is str:
            return given
        found = span(self.body, key)
        return self.body[found[0]:found[1]].decode() if found else None


def with_run(run, line):
    """Return the text of a stored event with its run."""
    return '{"run":%s,%s' % (json.dumps(run), line.lstrip()[1:])


def get_health(request):
    return 200, {"name": "mcp-relay", "version": __version__, "protocol": PROTOCOL}


def get_runs(request):
    return 200, {"runs": request.hub.describe_runs()}


def get_run(request):
    return 200, request.hub.describe_run(request.names[0])


def delete_run(request):
    request.hub.delete_run(request.names[0])
    return 204, None


def get_events(request):
    name = request.names[0]
    request.hub.run(name)
    limit = min(request.whole("limit", 1000, 1), 5000)
    rows = request.hub.store.events(name, request.whole("after", 0), limit + 1)
    following = rows[limit - 1][0] if len(rows) > limit else None
    lines = ",".join(with_run(name, line) for _, line in rows[:limit])
    return 200, ('{"events":[%s],"next":%s}' % (lines, json.dumps(following))).encode()


def get_export(request):
    """Return a run as JSON lines, or as one page that needs no network."""
    hub, name = request.hub, request.names[0]
    run = hub.describe_run(name)
    form = request.query.get("format", "jsonl")
    if form not in ("jsonl", "html"):
        raise ApiError(400, "bad_request", "the format is jsonl or html")
    lines = [with_run(name, line) for _, line in hub.store.events(name, 0, -1)]
    if form == "jsonl":
        return 200, ("".join(line + "\n" for line in lines)).encode(), "application/x-ndjson"
    return 200, export_page(hub.page(), run, lines), "text/html; charset=utf-8"


def export_page(page, run, lines):
    """Return the page with a run inside; < is escaped, so that no recorded text can end the element."""
    data = '{"run":%s,"events":[%s]}' % (json.dumps(run), ",".join(lines))
    element = '<script type="application/json" id="recorded-run">%s</script>' % data.replace("<", "\\u003c")
    meta = '<meta http-equiv="Content-Security-Policy" content="%s">' % content_policy(page, "")
    return page.replace("<!--csp-meta-->", meta).replace("<!--recorded-run-->", element).encode()


def get_holds(request):
    run = request.query.get("run")
    wait_s = request.wait_s()
    holds, timed_out = request.hub.wait_for_hold(run, wait_s) if wait_s else (request.hub.describe_holds(run), False)
    return 200, {"holds": holds, "timedOut": timed_out}


def get_hold(request):
    return 200, request.hub.hold(request.names[0])


def post_hold(request):
    body = request.json()
    by = body.get("by", "api")
    if type(by) is not str or not re.match(r"[^\x00-\x1f\x7f-\x9f]{1,64}\Z", by):
        raise ApiError(400, "bad_request", "by is a label of 1 to 64 printable characters")
    if body.get("action") not in ACTIONS:
        raise ApiError(400, "bad_request", "the action is one of %s" % ", ".join(ACTIONS))
    answer = request.hub.release(request.names[0], body["action"], request.text_of(body, "value"),
                                 request.text_of(body, "arguments"), printable(by))
    return {"released": 200, "refused": 422, "taken": 409}.get(answer["outcome"], 404), answer


def get_breakpoints(request):
    return 200, request.hub.breakpoints()


def post_breakpoint(request):
    made, is_new = request.hub.add_breakpoint(request.json())
    return 201 if is_new else 200, made


def delete_breakpoint(request):
    request.hub.remove_breakpoint(request.names[0])
    return 204, None


def put_mode(request):
    request.hub.set_mode(request.json().get("mode"))
    return 200, request.hub.breakpoints()


#: (method, path with {names}, handler, whether the token is needed). A handler is a function of a Request that
#: returns (status, body), or the name of a Handler method that serves the connection itself.
ROUTES = (
    ("GET", "/", "serve_page", False),
    ("GET", "/api/health", get_health, False),
    ("GET", "/api/runs", get_runs, True),
    ("GET", "/api/runs/{run}", get_run, True),
    ("DELETE", "/api/runs/{run}", delete_run, True),
    ("GET", "/api/runs/{run}/events", get_events, True),
    ("GET", "/api/runs/{run}/export", get_export, True),
    ("GET", "/api/holds", get_holds, True),
    ("GET", "/api/holds/{hold}", get_hold, True),
    ("POST", "/api/holds/{hold}", post_hold, True),
    ("GET", "/api/breakpoints", get_breakpoints, True),
    ("POST", "/api/breakpoints", post_breakpoint, True),
    ("DELETE", "/api/breakpoints/{id}", delete_breakpoint, True),
    ("PUT", "/api/mode", put_mode, True),
    ("GET", "/api/stream", "serve_stream", True),
    ("POST", "/api/attach", "serve_attach", True),
)


def find_route(method, path):
    """Return (handler, names, whether a token is needed); ApiError 404 or 405."""
    parts = path.split("/")
    other = False
    for wanted, pattern, handler, is_guarded in ROUTES:
        shape = pattern.split("/")
        if len(shape) == len(parts) and all(a == b or a.startswith("{") for a, b in zip(shape, parts)):
            if wanted == method:
                return handler, [b for a, b in zip(shape, parts) if a.startswith("{")], is_guarded
            other = True
    if other:
        raise ApiError(405, "bad_method", "%s is not allowed here" % printable(method))
    raise ApiError(404, "unknown", "there is nothing at %s" % printable(path))


def content_policy(page, connect="connect-src 'self'; "):
    """Return the page's Content-Security-Policy: nothing but its own inline style and script, named by hash."""
    import hashlib
    hashes = {}
    for tag in ("style", "script"):
        hashes[tag] = " ".join(
            "'sha256-%s'" % base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            for text in re.findall(r"<%s>(.*?)</%s>" % (tag, tag), page, re.S)) or "'none'"
    frame = "; frame-ancestors 'none'" if connect else ""
    return ("default-src 'none'; %simg-src data:; style-src %s; script-src %s; base-uri 'none'; form-action 'none'%s"
            % (connect, hashes["style"], hashes["script"], frame))


def is_local(host):
    """Say whether a Host header names this machine; a foreign name is a page that rebinds its address to ours."""
    name = re.sub(r":[0-9]+\Z", "", host).strip("[]").lower()
    return name in ("localhost", "::1") or bool(re.match(r"127(\.[0-9]{1,3}){3}\Z", name))


def handler_class(hub):
    """Return the http.server handler of a hub; made when it is needed, because importing http.server takes time."""
    import hmac
    import http.server
    import urllib.parse

    class Handler(http.server.BaseHTTPRequestHandler):
        """Parse, guard, dispatch, answer. One thread per connection, named by the server."""

        protocol_version = "HTTP/1.1"
        server_version, sys_version = "mcp-relay", ""
        timeout = 60  # seconds that a connection may be silent between requests

        def log_message(self, *arguments):
            """Write no access log: addresses and headers are nobody's business."""

        def do_GET(self):
            """Answer any method: the routes know which they take."""
            try:
                self._serve()
            except ApiError as error:
                self._answer(error.status, error.body)
            except RelayError as error:
                self._answer(500, {"error": {"code": "failed", "message": str(error)}})
            except OSError:  # the other side has gone, or is silent for too long
                self.close_connection = True

        do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_GET

        def send_error(self, code, message=None, explain=None):
            """Answer what http.server itself refuses in our form instead of HTML."""
            self.close_connection = True
            self._answer(code, {"error": {"code": "bad_request", "message": message or "bad request"}})

        def _serve(self):
            target = urllib.parse.urlsplit(self.path)
            path = urllib.parse.unquote(target.path) if "%" in target.path else target.path
            self._guard_origin()
            body = self._body()
            query = dict(urllib.parse.parse_qsl(target.query, keep_blank_values=True))
            handler, names, is_guarded = find_route(self.command, path)
            if is_guarded:
                self._guard_token()
            request = Request(hub, query, body, names)
            if type(handler) is str:
                getattr(self, handler)(request)
            else:
                self._guard_type()
                self._answer(*handler(request))

        def _guard_origin(self):
            host, origin = self.headers.get("Host"), self.headers.get("Origin")
            if host is not None and not is_local(host):
                self.close_connection = True
                raise ApiError(403, "foreign_host", "this debugger answers to 127.0.0.1 and localhost only")
            if origin is not None and origin.lower() not in [
                    "http://%s:%d" % (name, hub.port) for name in ("127.0.0.1", "localhost", "[::1]")]:
                self.close_connection = True
                raise ApiError(403, "foreign_origin", "pages of other origins may not use this debugger")

        def _guard_token(self):
            scheme, _, token = (self.headers.get("Authorization") or "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode("utf-8", "replace"),
                                                                     hub.token.encode()):
                raise ApiError(401, "no_token", "send the token of this debugger: Authorization: Bearer TOKEN; "
                               "`serve` prints it in the page's address and keeps it in its private file")

        def _guard_type(self):
            kind = (self.headers.get("Content-Type") or "").split(";")[0].strip().lower()
            if self.command in ("POST", "PUT") and kind != "application/json":
                raise ApiError(415, "bad_type", "writes take Content-Type: application/json")

        def _body(self):
            """Read the request's body; without a sane length the connection cannot go on."""
            text = self.headers.get("Content-Length") or "0"
            if self.headers.get("Transfer-Encoding") or not re.match(r"[0-9]{1,12}\Z", text):
                self.close_connection = True
                raise ApiError(411, "no_length", "the request needs a Content-Length")
            if int(text) > BODY_BYTES:
                self.close_connection = True
                raise ApiError(413, "too_large", "the body may have at most %d bytes" % BODY_BYTES)
            return self.rfile.read(int(text))

        def _head(self, status, kind, policy):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Security-Policy", policy or "default-src 'none'; frame-ancestors 'none'")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("X-Frame-Options", "DENY")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("Cache-Control", "no-store")

        def _answer(self, status, body, kind="application/json", policy=None):
            data = b"" if body is None else body if type(body) is bytes else json.dumps(body).encode()
            self._head(status, kind, policy)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        # -- the page, and streams of both kinds ------------------------------------------------------------------

        def serve_page(self, request):
            """Send the page; it holds no token and no data."""
            page = hub.page()
            self._answer(200, page.encode(), "text/html; charset=utf-8", content_policy(page))

        def serve_stream(self, request):
            """Send the state, then what happens, as text/event-stream until the viewer leaves."""
            run = request.query.get("run")
            after = request.whole("after", 0)
            stream, first = hub.open_stream(run)
            try:
                self.close_connection = True
                self._head(200, "text/event-stream", None)
                self.end_headers()
                self._write_items(first)
                while run is not None:
                    rows = hub.store.events(run, after, 1000)
                    self._write_items([("event", seq, with_run(run, line)) for seq, line in rows])
                    if not rows:
                        break
                    after = rows[-1][0]
                while True:
                    items = self._next_items(stream)
                    if items is None:
                        return
                    self._write_items([item for item in items if item[0] != "event" or item[1] > after])
            except OSError:
                pass  # the viewer has left
            finally:
                hub.close_stream(stream)

        def _next_items(self, stream):
            """Wait for items; return those that are there, [] when it is time for a keep-alive, None at the end.

            A viewer says nothing on this connection, so one that can be read has been closed.
            """
            until = time.monotonic() + KEEP_ALIVE_S
            items = []
            while not items and time.monotonic() < until:
                try:
                    items.append(stream.items.get(timeout=1.0))
                except queue.Empty:
                    if select.select([self.connection], [], [], 0)[0]:
                        return None
            while items and len(items) < 1000 and not stream.items.empty():
                items.append(stream.items.get())
            return None if None in items else items

        def _write_items(self, items):
            """Write items, of which only the newest `run` of each run matters, or a keep-alive comment."""
            newest = {key: index for index, (kind, key, _) in enumerate(items) if kind == "run"}
            text = "".join("event: %s\ndata: %s\n\n" % (kind, text) for index, (kind, key, text) in enumerate(items)
                           if kind != "run" or newest[key] == index)
            self.wfile.write(text.encode() if items else b": still here\n\n")
            self.wfile.flush()

        def serve_attach(self, request):
            """Turn the connection into a relay's link and read its lines until it ends."""
            run = self.headers.get("X-Run") or ""
            if self.headers.get("Upgrade") != "mcp-relay/%d" % PROTOCOL:
                raise ApiError(426, "other_protocol", "this hub speaks mcp-relay/%d" % PROTOCOL)
            if not re.match(r"[A-Za-z0-9._-]{1,64}\Z", run):
                raise ApiError(400, "bad_request", "X-Run must name the run")
            self.close_connection = True
            self.connection.settimeout(SILENCE_S)
            link = Link(run, self.connection)
            self.wfile.write(("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: mcp-relay/%d"
                              "\r\n\r\n" % PROTOCOL).encode())
            link.send(hub.join(link))
            framer = Framer(BODY_BYTES)
            try:
                while not framer.raw:
                    chunk = self.rfile.read1(READ_BYTES * 4)
                    if not chunk:
                        break
                    hub.take(link, framer.feed(chunk)[0])
            except OSError:
                pass  # the relay has gone
            finally:
                hub.leave(link)

    return Handler


def start_server(hub, port):
    """Listen on 127.0.0.1 and serve in threads of their own; return the server. Errors: OSError for a taken port."""
    import http.server
    import socketserver

    class Server(http.server.ThreadingHTTPServer):
        """The hub's server: named daemon threads, no name look-up of our own address."""

        daemon_threads = True
        allow_reuse_address = not WINDOWS  # on Windows it would let two hubs share a port
        request_queue_size = 64

        def server_bind(self):
            """Bind without the reverse look-up of http.server, which can take seconds."""
            socketserver.TCPServer.server_bind(self)
            self.server_name, self.server_port = self.server_address[:2]

        def process_request_thread(self, request, address):
            """Name the thread of a connection."""
            threading.current_thread().name = "hub.request-%d" % address[1]
            super().process_request_thread(request, address)

        def handle_error(self, request, address):
            """Say in one line that a request failed inside; the others go on."""
            error = sys.exc_info()[1]
            if not isinstance(error, OSError):
                say("internal error in a request: %s: %s" % (type(error).__name__, printable(str(error))))

    server = Server(("127.0.0.1", port), handler_class(hub))
    hub.port = server.server_address[1]
    start_thread("hub.accept", server.serve_forever, 0.5)
    return server


def say(text):
    """Write one line of ours to stderr."""
    os.write(2, ("mcp_relay: %s\n" % text).encode("utf-8", "backslashreplace"))


def hub_health(port):
    """Return what answers as a hub on a port ({name, version, protocol}), or None."""
    import urllib.error
    import urllib.request
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open("http://127.0.0.1:%d/api/health" % port, timeout=HANDSHAKE_S) as answer:
            found = json.loads(answer.read(4096).decode())
    except (OSError, ValueError, TypeError):
        return None
    return found if type(found) is dict and found.get("name") == "mcp-relay" else None


class Debugger:
    """A running hub with its server, its clock and its address file."""

    def __init__(self, port, home, db, page=None, **settings):
        """Start it. Errors: RelayError with a sentence if the port is taken or home cannot be written."""
        import secrets
        self.home = home
        if page is not None:
            read_page(page)
        store = Store(db, say)
        self.hub = Hub(store, port, secrets.token_urlsafe(24), **settings)
        self.hub.page = (lambda: VIEWER_HTML) if page is None else lambda: read_page(page)
        try:
            self._server = start_server(self.hub, port)
        except OSError as error:
            store.close()
            raise RelayError("port %d cannot be used: %s (%s); choose another with --port"
                             % (port, error.strerror or error, self._who_is_there(port)))
        self.port = self.hub.port
        self._stopped = threading.Event()
        start_thread("hub.clock", self._clock)
        self._write_address()

    def _who_is_there(self, port):
        """Say what has the port; for a debugger of ours, where its page is."""
        found, told = hub_health(port), read_hub_file(self.home, port)
        if found is None:
            return "another program has it"
        where = ", at " + page_address(port, told["token"]) if told else ""
        return "a debugger of version %s is there already%s" % (printable(str(found.get("version"))), where)

    @property
    def address(self):
        """The page's address."""
        return page_address(self.port, self.hub.token)

    def _write_address(self):
        told = {"port": self.port, "pid": os.getpid(), "url": "http://127.0.0.1:%d/" % self.port,
                "token": self.hub.token, "version": __version__}
        try:
            make_private_folder(self.home)
            write_private(hub_file(self.home, self.port), encode(told) + b"\n")
        except OSError as error:
            say("relays cannot find this debugger: its address file in %s cannot be written: %s"
                % (printable(self.home), error.strerror))

    def _clock(self):
        while not self._stopped.wait(min(1.0, HEARTBEAT_S)):
            try:
                self.hub.tick(time.monotonic())
            except Exception as error:  # the outermost frame of a thread: after it there is only silence
                say("internal error in hub.clock: %s: %s" % (type(error).__name__, printable(str(error))))

    def stop(self):
        """Remove the address file and end; attached relays notice and go on by themselves."""
        self._stopped.set()
        found = read_hub_file(self.home, self.port)
        if found and found.get("pid") == os.getpid():
            try:
                os.remove(hub_file(self.home, self.port))
            except OSError:
                pass  # the folder has gone: nobody can be misled
        for run in list(self.hub.runs.values()):
            self.hub.store.save(run, self.port)
        self.hub.store.close()


def page_address(port, token):
    """Return the address of a hub's page; the token stands in the fragment, which no browser sends anywhere."""
    return "http://127.0.0.1:%d/#token=%s" % (port, token)


def read_page(path):
    """Return the page from a file, for those who edit it. Errors: RelayError if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as source:
            return source.read()
    except (OSError, ValueError) as error:
        raise RelayError("the page %s cannot be read: %s" % (printable(path), getattr(error, "strerror", error)))


# ----------------------------------------------------------------------------------------------------------------
# 22. The commands: a hub's client for people, scripts and agents.
# ----------------------------------------------------------------------------------------------------------------

#: HTTP status -> exit code; any other failure is Exit.FAILED
_EXIT_OF = {401: Exit.FORBIDDEN, 403: Exit.FORBIDDEN, 404: Exit.UNKNOWN, 409: Exit.TAKEN, 422: Exit.REFUSED}
#: characters of a value that `wait` prints; the API has it whole
_SHOWN_CHARS = 2000


class Client:
    """Ask a hub on this machine."""

    def __init__(self, home, port):
        """Errors: RelayError with Exit.NO_HUB if no hub left its address."""
        found = read_hub_file(home, port)
        if found is None:
            raise self._no_hub(port)
        self.port = port
        self._token = found["token"]

    @staticmethod
    def _no_hub(port):
        return RelayError("no debugger on port %d; start one with: mcp_relay.py serve%s" % (port, port_words(port)),
                          Exit.NO_HUB)

    def open(self, method, path, body=None, wait_s=30.0):
        """Return the open HTTP answer. Errors: RelayError with the exit code that fits."""
        import urllib.error
        import urllib.request
        request = urllib.request.Request(
            "http://127.0.0.1:%d%s" % (self.port, path), None if body is None else encode(body), method=method,
            headers={"Authorization": "Bearer " + self._token, "Content-Type": "application/json"})
        try:
            return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=wait_s)
        except urllib.error.HTTPError as error:
            raise self._failure(error)
        except OSError:
            raise self._no_hub(self.port)

    @staticmethod
    def _failure(error):
        try:
            told = json.loads(error.read().decode())
        except ValueError:
            told = {}
        message = _dict(told.get("error")).get("message") or told.get("message")
        if not message and told.get("outcome") == "taken":
            message = "it was released already: %s by %s" % (told.get("action"), told.get("by"))
        return RelayError(printable(message or "the debugger answered with status %d" % error.code),
                          _EXIT_OF.get(error.code, Exit.FAILED))

    def ask(self, method, path, body=None, wait_s=30.0):
        """Return the JSON value of an answer, None for an empty one."""
        with self.open(method, path, body, wait_s) as answer:
            data = answer.read()
        return json.loads(data.decode()) if data else None


def _parser(name, about):
    """Return the argument parser of a command, with what all commands take."""
    import argparse

    class Parser(argparse.ArgumentParser):
        """Say what is wrong in one sentence, as everything else here does."""

        def error(self, message):
            raise UsageError("%s: %s; see mcp_relay.py %s --help" % (name, printable(message), name))

    parser = Parser(prog="mcp_relay.py " + name, description=about)
    defaults = Options({}, {key: value for key, value in os.environ.items()
                            if key in ("MCP_RELAY_PORT", "MCP_RELAY_HOME")})
    parser.add_argument("--port", type=_checked(_whole(1, 65535)), default=defaults.port, help="port of the debugger")
    parser.add_argument("--home", default=defaults.home, help="folder where debuggers leave their addresses")
    return parser


def _checked(read):
    """Let argparse say what a reader of values says."""
    import argparse

    def convert(text):
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error))
    return convert


def put(text):
    """Write text to stdout."""
    data = (text + "\n").encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(1, data):]


def _table(rows):
    """Return rows of text in columns; the first row is the head."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def command_runs(words):
    """List the runs."""
    parser = _parser("runs", "List the recorded runs, newest first.")
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.parse_args(words)
    answer = Client(options.home, options.port).ask("GET", "/api/runs")
    if options.json:
        put(json.dumps(answer))
        return Exit.OK
    rows = [("RUN", "STATUS", "CALLS", "ERRORS", "HELD", "SERVER")]
    rows += [(run["run"], run["status"], str(run["calls"]), str(run["errors"]), str(run["held"]),
              printable(run["label"])) for run in answer["runs"]]
    put(_table(rows) if len(rows) > 1 else "no runs yet: put the relay in front of a server and start its host")
    return Exit.OK


def command_show(words):
    """Show the events of a run."""
    parser = _parser("show", "Show what was said in a run.")
    parser.add_argument("run", help="a run's name, or the beginning of it; `last` is the newest")
    parser.add_argument("--follow", action="store_true", help="go on until the run ends")
    parser.add_argument("--json", action="store_true", help="as JSON lines")
    parser.add_argument("--export", metavar="FILE", help="write it to a file: .jsonl, or .html for a page")
    options = parser.parse_args(words)
    client = Client(options.home, options.port)
    name = _find_run(client, options.run)
    if options.export:
        form = "html" if options.export.lower().endswith((".html", ".htm")) else "jsonl"
        with client.open("GET", "/api/runs/%s/export?format=%s" % (name, form), wait_s=300.0) as answer:
            data = answer.read()
        try:
            write_private(options.export, data)
        except OSError as error:
            raise RelayError("%s cannot be written: %s" % (printable(options.export), error.strerror))
        say("wrote %d bytes to %s" % (len(data), printable(options.export)))
        return Exit.OK
    for event in _events(client, name, options.follow):
        line = json.dumps(event) if options.json else event_words(event)
        if line:
            put(line)
    return Exit.OK


def _find_run(client, wanted):
    """Return the full name of a run. Errors: RelayError with Exit.UNKNOWN."""
    names = [run["run"] for run in client.ask("GET", "/api/runs")["runs"]]
    found = names[:1] if wanted == "last" else [name for name in names if name == wanted] or [
        name for name in names if name.startswith(wanted)]
    if len(found) != 1:
        raise RelayError("%s run is called %s; `mcp_relay.py runs` lists them"
                         % ("more than one" if found else "no", printable(wanted)), Exit.UNKNOWN)
    return found[0]


def _events(client, run, follow):
    """Yield the events of a run; with follow until it has ended."""
    after = 0
    while True:
        page = client.ask("GET", "/api/runs/%s/events?after=%d&limit=5000" % (run, after))
        yield from page["events"]
        if page["events"]:
            after = page["events"][-1]["seq"]
        if page["next"] is None:
            break
    if not follow or client.ask("GET", "/api/runs/" + run)["status"] != "running":
        return
    with client.open("GET", "/api/stream?run=%s&after=%d" % (run, after), wait_s=4 * KEEP_ALIVE_S) as stream:
        kind = None
        for line in stream:
            word, _, text = line.decode().rstrip("\n").partition(": ")
            if word == "event":
                kind = text
            elif word == "data" and kind == "event":
                event = json.loads(text)
                yield event
                if event["type"] == "run.finished":
                    return
            elif word == "data" and kind == "run" and json.loads(text).get("run") == run:
                if json.loads(text).get("status") not in (None, "running"):
                    return


def event_words(event):
    """Return one event as a line for people, or None for one that says nothing to them."""
    kind = event["type"]
    head = "%9.3f  " % (event["at"] / 1000.0)
    name = "%s %s" % (event.get("instance"), printable(str(event.get("node"))))
    if kind == "node.started":
        text = "-> %s %s" % (name, "#" + printable(event["id"]) if "id" in event else "")
    elif kind == "node.finished":
        text = "<- %s %s %s ms%s" % (name, event["status"], event.get("durationMs"),
                                     " (held %s ms)" % event["heldMs"] if "heldMs" in event else "")
    elif kind == "node.error":
        text = "!! %s %s: %s" % (name, event["error"]["name"], printable(event["error"]["message"])[:400])
    elif kind == "node.output":
        lines = event.get("text", "").rstrip("\n").split("\n") if "text" in event else ["(late or hidden output)"]
        return "\n".join(head + "|  " + printable(line) for line in lines)
    elif kind == "hold.opened":
        text = "== %s held %s (%s): %s" % (name, event["point"], event["reason"], event["hold"])
    elif kind == "hold.released":
        text = "== %s released: %s by %s" % (name, event["action"], printable(str(event.get("by"))))
    elif kind == "gap":
        text = "?? gap: %s" % printable(str(event.get("reason")))
    elif kind in ("run.started", "run.finished"):
        text = "** %s %s" % (kind, printable(str(event.get("label") or event.get("status"))))
    else:
        text = "   %s %s" % (kind, printable(str(event.get("message", ""))))
    return (head + text).rstrip()


def command_holds(words):
    """List the open holds."""
    parser = _parser("holds", "List what is held now.")
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.parse_args(words)
    answer = Client(options.home, options.port).ask("GET", "/api/holds")
    if options.json:
        put(json.dumps(answer))
    elif answer["holds"]:
        put("\n\n".join(hold_words(hold, options.port) for hold in answer["holds"]))
    else:
        put("nothing is held")
    return Exit.OK


def command_wait(words):
    """Wait until something is held."""
    parser = _parser("wait", "Wait until a frame is held, then say what it is and how to release it.")
    parser.add_argument("--run", help="only holds of this run")
    parser.add_argument("--timeout", type=_checked(_seconds), default=90.0, help="seconds (default 90, 0 = for ever)")
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.parse_args(words)
    client = Client(options.home, options.port)
    run = _find_run(client, options.run) if options.run else None
    until = time.monotonic() + options.timeout if options.timeout else None
    while True:
        left = 30.0 if until is None else min(until - time.monotonic(), 30.0)
        path = "/api/holds?wait=%.3f" % max(left, 0) + ("&run=" + run if run else "")
        answer = client.ask("GET", path, wait_s=max(left, 0) + 15.0)
        if answer["holds"]:
            put(json.dumps(answer) if options.json else
                "\n\n".join(hold_words(hold, options.port) for hold in answer["holds"]))
            return Exit.OK
        if run and not answer["timedOut"]:
            raise RelayError("run %s has ended" % run, Exit.UNKNOWN)
        if until is not None and time.monotonic() >= until:
            raise RelayError("nothing was held within %g seconds" % options.timeout, Exit.TIMED_OUT)


def hold_words(hold, port):
    """Return a hold for people and agents, with commands that are ready to paste."""
    def shown(label, frame):
        text = frame if type(frame) is str else json.dumps(frame)
        rest = "… (%d characters; --json shows all)" % len(text) if len(text) > _SHOWN_CHARS else ""
        return "  %-9s%s" % (label, printable(text[:_SHOWN_CHARS]) + rest)
    lines = ["HELD %s: %s %s at %s (%s), run %s" % (
        hold["hold"], printable(str(hold["method"])), printable(str(hold["name"])), hold["point"], hold["reason"],
        hold["run"])]
    if hold.get("request"):
        lines.append(shown("request", hold["request"]))
    if hold.get("frame"):
        lines.append(shown("frame", hold["frame"]))
    if hold.get("loop"):
        lines.append("  loop     %s, %d times" % (hold["loop"].get("kind"), hold["loop"].get("repeats")))
    base = "  mcp_relay.py resume %s%s" % (hold["hold"], port_words(port))
    lines += [base, base + " --action inject --value '\"text\"'", base + " --action abort"]
    if hold["point"] != BEFORE:
        lines.append(base + " --action retry")
    if hold.get("editable"):
        action = "" if hold["point"] == BEFORE else " --action retry"
        lines.append(base + action + " --arguments '{…}'")
    return "\n".join(lines)


def command_resume(words):
    """Release a hold."""
    parser = _parser("resume", "Release a held frame.")
    parser.add_argument("hold")
    parser.add_argument("--action", type=_checked(_choice(*ACTIONS)), default=CONTINUE, help=", ".join(ACTIONS))
    parser.add_argument("--value", help="what to inject: JSON, @FILE, or - for stdin")
    parser.add_argument("--arguments", help="edited arguments: a JSON object, @FILE, or - for stdin")
    parser.add_argument("--by", default="command", help="a label for the record")
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.parse_args(words)
    body = {"action": options.action, "by": options.by}
    for key in ("value", "arguments"):
        if getattr(options, key) is not None:
            body[key + "Text"] = _json_argument("--" + key, getattr(options, key))
    client = Client(options.home, options.port)
    answer = client.ask("POST", "/api/holds/%s" % re.sub(r"[^\w.-]", "_", options.hold), body)
    put(json.dumps(answer) if options.json else "released: %s" % answer["action"])
    return Exit.OK


def _json_argument(flag, text):
    """Return the JSON text that an argument names: itself, @FILE or - for stdin. Errors: UsageError."""
    try:
        if text == "-":
            text = sys.stdin.buffer.read().decode()
        elif text.startswith("@"):
            with open(text[1:], "rb") as source:
                text = source.read().decode("utf-8-sig")
        _STRICT.decode(text)
    except OSError as error:
        raise UsageError("%s: %s cannot be read: %s" % (flag, printable(text[1:]), error.strerror))
    except (ValueError, RecursionError) as error:
        raise UsageError("%s is not JSON: %s" % (flag, printable(str(error))))
    return text


def command_break(words):
    """List, add or remove breakpoints."""
    parser = _parser("break", "List, add or remove breakpoints.")
    parser.add_argument("verb", nargs="?", type=_checked(_choice("list", "add", "rm")), default="list",
                        help="list, add or rm")
    parser.add_argument("id", nargs="?", help="with rm: the breakpoint's id, else those that match exactly")
    parser.add_argument("--kind", help="kind of node: tool, resource, prompt, llm, custom")
    parser.add_argument("--name", help="name of the tool, resource, prompt or method")
    parser.add_argument("--point", type=_checked(_choice(*POINTS)), default=BEFORE, help=", ".join(POINTS))
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.parse_args(words)
    client = Client(options.home, options.port)
    wanted = {key: value for key, value in
              (("kind", options.kind), ("name", options.name), ("point", options.point)) if value is not None}
    if options.verb == "add":
        made = client.ask("POST", "/api/breakpoints", wanted)
        put(json.dumps(made) if options.json else _breakpoint_words(made))
        return Exit.OK
    if options.verb == "rm" and options.id is None and not (options.kind or options.name):
        raise UsageError("break rm needs a breakpoint's id, or its --kind or --name")
    state = client.ask("GET", "/api/breakpoints")
    if options.verb == "list":
        lines = ["mode %s" % state["mode"]] + [_breakpoint_words(each) for each in state["breakpoints"]]
        put(json.dumps(state) if options.json else "\n".join(lines))
        return Exit.OK
    found = [each for each in state["breakpoints"] if each["id"] == options.id or (
        options.id is None and {key: value for key, value in each.items() if key != "id"} == wanted)]
    if not found:
        raise RelayError("there is no such breakpoint; `mcp_relay.py break` lists them", Exit.UNKNOWN)
    for each in found:
        client.ask("DELETE", "/api/breakpoints/" + each["id"])
    put(json.dumps({"removed": found}) if options.json else "removed %s" % ", ".join(each["id"] for each in found))
    return Exit.OK


def _breakpoint_words(each):
    what = [printable(each[key]) for key in ("kind", "name") if key in each]
    return "%s  %s %s" % (each["id"], each["point"], " ".join(what) or "every node")


def command_mode(words):
    """Set run or step mode."""
    parser = _parser("mode", "Set the mode: run stops at breakpoints alone, step before everything and at errors.")
    parser.add_argument("mode", type=_checked(_choice("run", "step")), help="run or step")
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.parse_args(words)
    state = Client(options.home, options.port).ask("PUT", "/api/mode", {"mode": options.mode})
    put(json.dumps(state) if options.json else "mode %s" % state["mode"])
    return Exit.OK


def command_serve(words):
    """Run the debugger until it is told to stop."""
    parser = _parser("serve", "Run the debugger: a page and an API on 127.0.0.1.")
    parser.add_argument("--db", help="database for the runs, or :memory: (default: runs-PORT.db in --home)")
    parser.add_argument("--pause-on-error", type=_checked(_pause_on_error), metavar="on|off|KIND",
                        help="hold failed answers: all (the default), none, or those of one kind of node")
    parser.add_argument("--unattended-after", type=_checked(_seconds), default=UNATTENDED_S, metavar="S",
                        help="release a hold that nobody watches after S seconds (default 30, 0 = never)")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument("--json", action="store_true", help="print one JSON line about the debugger, without its token")
    parser.add_argument("--page", metavar="FILE", help="serve this page instead of the built-in one, to edit it")
    options = parser.parse_args(words)
    wait_for_signal = until_signal()
    db = options.db or os.path.join(options.home, "runs-%d.db" % options.port)
    debugger = Debugger(options.port, options.home, db, options.page, unattended_s=options.unattended_after,
                        pause_on_error=options.pause_on_error)
    if options.json:
        put(json.dumps({"port": debugger.port, "url": "http://127.0.0.1:%d/" % debugger.port, "pid": os.getpid(),
                        "version": __version__}))
    else:
        put("mcp_relay %s: the debugger is at %s" % (__version__, debugger.address))
    if options.open:
        import webbrowser
        webbrowser.open(debugger.address)
    wait_for_signal()
    debugger.stop()
    return Exit.OK


def _pause_on_error(text):
    if text in ("on", "off"):
        return [{"point": ERROR}] if text == "on" else []
    if text not in KINDS:
        raise ValueError("must be on, off or a kind of node (%s)" % ", ".join(KINDS))
    return [{"kind": text, "point": ERROR}]


def until_signal():
    """Return a function that blocks until SIGINT, SIGTERM or SIGHUP came; they are caught from now on."""
    stopped = threading.Event()
    catch_signals(lambda number: stopped.set())
    return stopped.wait


# ----------------------------------------------------------------------------------------------------------------
# 23. The demo: a sample server, a scripted client, the relay between them.
# ----------------------------------------------------------------------------------------------------------------

_DEMO_TOOLS = {
    "add": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"]},
    "search": {"type": "object", "properties": {"query": {"type": "string", "minLength": 1}}, "required": ["query"]},
    "poll_job": {"type": "object", "properties": {"job": {"type": "string"}}, "required": ["job"]},
    "deploy": {"type": "object", "properties": {"target": {"type": "string", "enum": ["staging", "production"]}}}}


def command_demo_server(words):
    """Serve a few sample tools over stdio: the server of the demo."""
    def send(message):
        os.write(1, encode(dict(message, jsonrpc="2.0")) + b"\n")

    def text(value, **more):
        return dict({"content": [{"type": "text", "text": value}]}, **more)

    def call(name, arguments):
        if name == "add":
            total = arguments.get("a", 0) + arguments.get("b", 0)
            return text(str(total), structuredContent={"sum": total})
        if name == "search":
            say_demo("searching for %r" % arguments.get("query"))
            time.sleep(0.7)  # a slow tool, to be seen running
            return text("3 results for %s" % arguments.get("query"))
        if name == "poll_job":
            return text("job %s: running" % arguments.get("job"))
        say_demo("deploy failed: no credentials for %s" % arguments.get("target"))
        return text("cannot deploy to %s: no credentials" % arguments.get("target"), isError=True)

    def say_demo(line):
        os.write(2, ("demo-server: %s\n" % line).encode())

    say_demo("ready")
    for line in sys.stdin.buffer:
        message = json.loads(line.decode())
        params = message.get("params", {})
        results = {
            "initialize": lambda: {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "resources": {}},
                                   "serverInfo": {"name": "demo-server", "version": __version__}},
            "tools/list": lambda: {"tools": [{"name": name, "description": "sample tool", "inputSchema": schema}
                                             for name, schema in _DEMO_TOOLS.items()]},
            "tools/call": lambda: call(params["name"], params.get("arguments", {})),
            "resources/read": lambda: {"contents": [{"uri": params["uri"], "text": "a sample resource"}]},
            "ping": dict}
        if "id" not in message:
            continue
        if message["method"] == "resources/read":
            os.write(1, b"debug: reading " + params["uri"].encode() + b"\n")  # the mistake that servers make
        if message["method"] in results:
            send({"id": message["id"], "result": results[message["method"]]()})
        else:
            send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
    return Exit.OK


#: what the demo's client asks, in order; {} is the params of a notification
DEMO_SCRIPT = (
    ("initialize", {"protocolVersion": "2025-11-25", "capabilities": {},
                    "clientInfo": {"name": "demo-client", "version": __version__}}),
    ("notifications/initialized", {}),
    ("tools/list", {}),
    ("tools/call", {"name": "add", "arguments": {"a": 9007199254740993, "b": 1.50}}),
    ("tools/call", {"name": "search", "arguments": {"query": "relay"}}),
    ("resources/read", {"uri": "memo://hello"}),
    ("ping", {}),
    ("tools/call", {"name": "deploy", "arguments": {"target": "staging"}}),
    ("tools/call", {"name": "poll_job", "arguments": {"job": "42"}}),
    ("tools/call", {"name": "poll_job", "arguments": {"job": "42"}}),
    ("tools/call", {"name": "poll_job", "arguments": {"job": "42"}}),
    ("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}))


def command_demo(words):
    """Show the debugger on a sample session."""
    parser = _parser("demo", "Start a debugger and a sample session: a failing call and a loop are held for you.")
    parser.set_defaults(port=0)
    parser.add_argument("--once", action="store_true", help="release what is held, and end when the session does")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    options = parser.parse_args(words)
    import shutil
    import tempfile
    wait_for_signal = until_signal()
    home = tempfile.mkdtemp(prefix="mcp-relay-demo-")
    debugger = Debugger(options.port, home, ":memory:", unattended_s=0)
    try:
        put("mcp_relay %s demo: the debugger is at %s" % (__version__, debugger.address))
        if options.open:
            import webbrowser
            webbrowser.open(debugger.address)
        this = [sys.executable, "-I", os.path.abspath(__file__)]
        relay = subprocess.Popen(this + ["--wait-for-attach", "--home", home, "--port", str(debugger.port), "--"]
                                 + this + ["demo-server"], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        client = start_thread("demo.client", _play, relay)
        if options.once:
            start_thread("demo.operator", _operate, debugger.hub)
            client.join()
            code = relay.wait()
            runs = debugger.hub.describe_runs()
            put("the session ended with %d; recorded %d calls, %d errors" % (
                code, runs[0]["calls"] if runs else 0, runs[0]["errors"] if runs else 0))
            return Exit.OK if code == 0 and runs else Exit.FAILED
        put("a failing call will be held; look at it in the page, or with: %s wait --port %d --home %s\n"
            "Ctrl-C ends the demo." % (_basename(sys.argv[0]), debugger.port, home))
        wait_for_signal()
        relay.terminate()
        return Exit.OK
    finally:
        debugger.stop()
        shutil.rmtree(home, ignore_errors=True)


def _play(relay):
    """Say the demo's script and wait for each answer, as a client does."""
    for number, (method, params) in enumerate(DEMO_SCRIPT, 1):
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        is_request = not method.startswith("notifications/")
        if is_request:
            message["id"] = number
        try:
            relay.stdin.write(encode(message) + b"\n")
        except OSError:
            return  # the relay was ended by Ctrl-C
        while is_request:
            answer = classify(relay.stdout.readline())
            if answer.frame == b"" or (answer.kind == RESPONSE and answer.key == ("number", str(number))):
                break
    relay.stdin.close()
    relay.stdout.read()


def _operate(hub):
    """Release whatever is held: the person in front of `demo --once`."""
    while True:
        for hold in hub.wait_for_hold(None, WAIT_S)[0]:
            try:
                hub.release(hold["hold"], CONTINUE, by="demo")
            except ApiError:
                pass  # it was released by somebody else


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
        return Exit.FAILED
    mirror = Mirror()
    debugger = None
    if options.serve and options.report:
        try:
            debugger = Debugger(options.port, options.home, os.path.join(options.home, "runs-%d.db" % options.port))
            mirror.say("the debugger is at http://127.0.0.1:%d/; `mcp_relay.py serve%s` prints its address with the "
                       "token" % (options.port, port_words(options.port)))
        except RelayError as error:
            if hub_health(options.port) is None:
                mirror.say("%s; the session goes on without a debugger" % error)
    try:
        return Relay(argv, options, mirror).main()
    finally:
        if debugger:
            debugger.stop()


COMMANDS = {"runs": command_runs, "show": command_show, "holds": command_holds, "wait": command_wait,
            "resume": command_resume, "break": command_break, "mode": command_mode, "serve": command_serve,
            "demo": command_demo, "demo-server": command_demo_server}


def main(argv=None):
    """Run the command line and end the process with its exit code. argv: words without the program, or None."""
    words = sys.argv[1:] if argv is None else list(argv)
    if sys.version_info < (3, 8):
        os.write(2, b"mcp_relay: Python 3.8 or newer is needed\n")
        sys.exit(Exit.USAGE)
    open_standard_descriptors()
    try:
        code = dispatch(words)
    except RelayError as error:
        os.write(2, ("mcp_relay: %s\n" % error).encode("utf-8", "backslashreplace"))
        code = error.code
    except BrokenPipeError:  # whoever read our output has seen enough: `show | head`
        code = Exit.FAILED
    except KeyboardInterrupt:
        code = Exit.SIGNAL + signal.SIGINT
    except Exception as error:  # a bug of ours: one sentence and where to look, never a traceback into a host's log
        line = sys.exc_info()[2]
        while line.tb_next:
            line = line.tb_next
        text = "mcp_relay: internal error: %s: %s (line %d); please report it\n" % (
            type(error).__name__, printable(str(error)), line.tb_lineno)
        os.write(2, text.encode("utf-8", "backslashreplace"))
        code = Exit.FAILED
    os._exit(code)  # threads may be stuck in a read or write; there is nothing left to do for them


def dispatch(words):
    """Choose what to do by the first word and return the exit code."""
    first = words[0] if words else ""
    if words in (["--help"], ["-h"], ["help"]):
        put(usage_text().rstrip("\n"))
        return Exit.OK
    if words == ["--version"]:
        put(version_text())
        return Exit.OK
    if first in COMMANDS:
        return COMMANDS[first](words[1:])
    if first == "down":
        if len(words) < 2:
            raise UsageError("down needs the server's command: mcp_relay.py down COMMAND [ARG...]")
        return run_relay(["--mask", "--inherit-stderr", "--no-report", "--"] + words[1:])
    return run_relay(words)


# ================================================================================================================
# The page: one HTML file, edited as viewer/viewer.html.
# ================================================================================================================

# >>> viewer/viewer.html, put here by: python3 viewer/stitch.py
VIEWER_HTML = r'''<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<!--csp-meta-->
<title>mcp-relay</title>
<link rel="icon" id="favicon" href="data:,">
<style>
/* The page of mcp-relay's debugger. One file: style, markup, script; no build, no network but the hub that serves it.
   The hub's Content-Security-Policy names this style and the script by hash, so markup carries no style attribute. */

/* ---- colours, type ---- */
:root {
  color-scheme: light dark;
  --bg: light-dark(#f5f6f8, #11151a); --panel: light-dark(#fff, #191f26); --raised: light-dark(#fff, #1e252d);
  --line: light-dark(#dfe3e8, #2c353f); --line-soft: light-dark(#edf0f3, #232b34); --edge: light-dark(#c3cad2, #435060);
  --ink: light-dark(#18202a, #e5e9ee); --soft: light-dark(#515c68, #aab4bf); --faint: light-dark(#626d79, #929da9);
  --accent: light-dark(#1f52d0, #8fb0ff); --accent-bg: light-dark(#e8eefd, #1c2a49);
    --on-accent: light-dark(#fff, #0c1424);
  --ok: light-dark(#17703f, #71d09a); --ok-bg: light-dark(#e5f4eb, #163124);
  --err: light-dark(#b0231b, #ff8f86); --err-bg: light-dark(#fdeceb, #3a1e1f);
  --hold: light-dark(#7c4f00, #f4c768); --hold-bg: light-dark(#fff2d3, #382d12);
    --hold-line: light-dark(#dda736, #94701f);
  --key: light-dark(#1f52d0, #8fb0ff); --num: light-dark(#17703f, #71d09a); --word: light-dark(#7a3aa8, #cda2f2);
  --shadow: light-dark(0 8px 28px rgb(20 30 45 / .16), 0 8px 28px rgb(0 0 0 / .55));
  --mono: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  --sans: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
}
:root[data-theme=light] { color-scheme: light; }
:root[data-theme=dark] { color-scheme: dark; }
* { box-sizing: border-box; }
[hidden] { display: none !important; }
body { margin: 0; font: 13px/1.45 var(--sans); color: var(--ink); background: var(--bg); }
code, .mono { font: 12px/1.45 var(--mono); }
b { font-weight: 600; }
h1, h2, h3, p, dl, dd, ul, ol { margin: 0; padding: 0; }
h2 { font-size: 11px; letter-spacing: .06em; text-transform: uppercase; color: var(--faint); font-weight: 600; }
.soft { color: var(--soft); } .faint { color: var(--faint); } .grow { flex: 1; }
.is-ok { color: var(--ok); } .is-err { color: var(--err); } .is-held { color: var(--hold); }
.is-run { color: var(--accent); }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
svg.icon { width: 12px; height: 12px; fill: currentColor; stroke: currentColor; stroke-width: 0; flex: none;
  vertical-align: -1.5px; }
.line { fill: none; stroke: currentColor; stroke-width: 1.9; stroke-linecap: round; stroke-linejoin: round; }
.state { display: inline-flex; align-items: center; gap: 5px; white-space: nowrap; }
svg.icon.turn { animation: turn 1.1s linear infinite; }
@keyframes turn { to { transform: rotate(1turn); } }
@media (prefers-reduced-motion: reduce) { * { animation: none !important; transition: none !important; } }

/* ---- controls ---- */
button { font: inherit; white-space: nowrap; border: 1px solid var(--line); background: var(--raised);
  color: var(--ink);
  border-radius: 6px; padding: 4px 10px; min-height: 28px; cursor: pointer; }
button:hover:not(:disabled) { border-color: var(--edge); background: light-dark(#f7f9fb, #252e38); }
button:disabled { color: var(--faint); cursor: default; }
button.primary { background: var(--accent); border-color: var(--accent); color: var(--on-accent); font-weight: 600; }
button.primary:hover:not(:disabled) { background: light-dark(#1a46b3, #a6c0ff); border-color: transparent; }
button.primary:disabled { background: var(--line); border-color: var(--line); color: var(--soft); }
button.danger { color: var(--err); }
button.danger:hover:not(:disabled) { border-color: var(--err); background: var(--err-bg); }
button.quiet { border-color: transparent; background: none; color: var(--soft); padding: 2px 6px; min-height: 24px; }
button.quiet:hover:not(:disabled) { background: var(--line-soft); color: var(--ink); }
button[aria-pressed=true] { background: var(--accent-bg); border-color: var(--accent); color: var(--accent);
  font-weight: 600; }
.pair { display: inline-flex; } .pair button { border-radius: 0; margin-left: -1px; }
.pair button:first-child { border-radius: 7px 0 0 7px; margin: 0; }
.pair button:last-child { border-radius: 0 7px 7px 0; }
.pair button[aria-pressed=true] { position: relative; z-index: 1; }
kbd { font: 10.5px/1.3 var(--mono); color: inherit;
  border: 1px solid color-mix(in srgb, currentColor 45%, transparent); border-radius: 4px; padding: 0 4px;
  margin-left: 6px; }
input, textarea { font: 12px/1.5 var(--mono); padding: 5px 9px; border: 1px solid var(--line); border-radius: 6px;
  background: var(--bg); color: var(--ink); }
input::placeholder { color: var(--faint); opacity: 1; }
.chip { display: inline-flex; align-items: center; gap: 2px; padding: 0 2px 0 9px; border: 1px solid var(--line);
  border-radius: 99px; color: var(--soft); max-width: 300px; }
.chip b { color: var(--ink); overflow: hidden; text-overflow: ellipsis; white-space: nowrap; margin-left: 4px; }
.chip button { border-radius: 99px; padding: 0; width: 24px; }
.tag { display: inline-flex; align-items: center; gap: 4px; border-radius: 4px; padding: 0 6px; font-size: 11px;
  line-height: 18px; background: var(--line-soft); color: var(--soft); white-space: nowrap; }
.tag.is-held { background: var(--hold-bg); color: var(--hold); }
.tag.is-err { background: var(--err-bg); color: var(--err); }
.tag.is-run { background: var(--accent-bg); color: var(--accent); }
.note { padding: 7px 10px; border-radius: 6px; background: var(--line-soft); color: var(--soft); }
.note.is-err { background: var(--err-bg); color: var(--err); }
.note.is-held { background: var(--hold-bg); color: var(--ink); }

/* ---- frame of the page ---- */
body { height: 100vh; display: grid; overflow: hidden;
  grid-template: auto auto auto minmax(0, 1fr) auto / 232px minmax(0, 1fr) auto;
  grid-template-areas: "top top top" "note note note" "hold hold hold" "runs main side" "foot foot foot"; }
header { grid-area: top; display: flex; flex-wrap: wrap; gap: 8px 10px; align-items: center; padding: 8px 14px;
  background: var(--panel); border-bottom: 1px solid var(--line); }
header .name { display: flex; align-items: center; gap: 7px; font-size: 14px; font-weight: 600; }
header .name svg { width: 20px; height: 20px; }
#connection { display: inline-flex; align-items: center; gap: 5px; color: var(--soft); min-width: 52px; }
#filter { width: 250px; min-height: 28px; }
#filter[aria-invalid=true] { border-color: var(--err); }
#chips { display: flex; flex-wrap: wrap; gap: 6px; }
#banner { grid-area: note; padding: 7px 14px; background: var(--err-bg); color: var(--err);
  border-bottom: 1px solid var(--line); }
footer { grid-area: foot; display: flex; flex-wrap: wrap; gap: 2px 18px; align-items: center; padding: 4px 14px;
  min-height: 28px; border-top: 1px solid var(--line); background: var(--panel); color: var(--faint); font-size: 12px; }
footer kbd { margin: 0 3px 0 0; }

/* ---- holds ---- */
#holdbar { grid-area: hold; display: flex; flex-wrap: wrap; align-items: center; gap: 6px 14px; padding: 9px 14px;
  background: var(--hold-bg); border-bottom: 2px solid var(--hold-line); }
#holdbar .age { display: inline-flex; align-items: center; gap: 7px; font: 600 13px var(--mono); color: var(--hold);
  min-width: 58px; }
#holdbar .age svg { width: 15px; height: 15px; }
#holdbar .what { flex: 1 1 300px; min-width: 0; }
#holdbar .what button { border: 0; padding: 0; min-height: 0; background: none; font: 600 13px/1.45 var(--mono);
  text-decoration: underline; text-underline-offset: 3px; text-decoration-color: var(--hold-line); white-space: normal;
  overflow-wrap: anywhere; vertical-align: baseline; }
#holdbar .why { color: var(--soft); }
#holdbar .turns { display: inline-flex; align-items: center; gap: 2px; color: var(--soft); white-space: nowrap; }
.acts { display: flex; flex-wrap: wrap; gap: 6px; }

/* ---- runs ---- */
#runs { grid-area: runs; border-right: 1px solid var(--line); background: var(--panel); padding: 10px 0;
  overflow: auto; }
#runs h2 { padding: 6px 14px 4px; }
#runs ul { list-style: none; margin: 0 0 8px; }
.run { display: block; width: 100%; text-align: left; border: 0; border-left: 3px solid transparent; border-radius: 0;
  background: none; padding: 7px 12px 7px 11px; white-space: normal; }
.run[aria-current=true] { background: var(--accent-bg); border-left-color: var(--accent); }
.run .t { display: flex; justify-content: space-between; gap: 8px; font-weight: 600; }
.run .t > :first-child { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.run .t > :last-child { display: inline-flex; align-items: center; gap: 4px; font-weight: 400; white-space: nowrap;
  flex: none; }
.run .s { display: block; color: var(--soft); font-size: 12px; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; }

/* ---- session ---- */
main { grid-area: main; display: flex; flex-direction: column; min-width: 0; min-height: 0; padding: 12px 16px 0;
  gap: 10px; }
#session { display: flex; flex-wrap: wrap; gap: 2px 16px; align-items: center; color: var(--soft); }
#session h1 { font-size: 16px; font-weight: 600; color: var(--ink); overflow-wrap: anywhere; }
#session code { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; max-width: 420px; }
#session .acts { margin-left: auto; }
#empty { margin: auto; max-width: 620px; display: flex; flex-direction: column; gap: 12px; padding: 24px; }
#empty h1 { font-size: 18px; }
#empty pre, #gate pre { margin: 0; padding: 10px 12px; background: var(--panel); border: 1px solid var(--line);
  border-radius: 6px; font: 12.5px/1.6 var(--mono); overflow: auto; user-select: all; }

/* ---- graph ---- */
#graph { position: relative; overflow: auto; min-height: 96px; flex: 1 1 auto; margin: 0 -6px; padding: 0 6px; }
main[data-view=both] #graph { flex: 0 0 auto; height: var(--graph-height, 316px); max-height: 62%; }
main[data-view=table] #graph, main[data-view=graph] #tablebox, main:not([data-view=both]) #split { display: none; }
#plane { position: relative; margin: 2px 0 8px; }
#plane svg.edges { position: absolute; inset: 0; pointer-events: none; overflow: visible; }
#plane path { fill: none; stroke: var(--edge); stroke-width: 1.5; }
#plane path.is-err { stroke: var(--err); } #plane path.is-held { stroke: var(--hold-line); stroke-width: 2; }
#plane path.is-run { stroke: var(--accent); stroke-dasharray: 5 4; animation: flow .7s linear infinite; }
@keyframes flow { to { stroke-dashoffset: -9; } }
.card { position: absolute; width: 208px; height: 76px; background: var(--panel); border: 1px solid var(--line);
  border-radius: 9px; padding: 7px 10px 6px; transition: left .16s, top .16s; }
.card:hover { border-color: var(--edge); }
.card .k { display: flex; align-items: center; height: 20px; font-size: 10.5px; color: var(--faint);
  text-transform: uppercase; letter-spacing: .05em; }
.card .count { font-size: 11.5px; letter-spacing: 0; color: var(--soft); text-transform: none; margin-left: 6px;
  min-width: 8px; text-align: right; }
.card .n { display: block; width: 100%; text-align: left; border: 0; padding: 0; min-height: 20px;
  background: none !important; font: 600 12.5px/20px var(--mono); overflow: hidden; text-overflow: ellipsis;
  outline: none; }
.card .n::after { content: ""; position: absolute; inset: -1px; border-radius: 9px; }
.card .n:focus-visible::after { outline: 2px solid var(--accent); outline-offset: 2px; }
.card .d { display: flex; justify-content: space-between; gap: 8px; color: var(--soft); font-size: 12px; height: 20px;
  align-items: center; }
.card .state { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.card .some { margin-right: auto; white-space: nowrap; }
.card .some:not(:empty)::before { content: "·"; margin-right: 8px; color: var(--faint); }
.card .took { white-space: nowrap; font-variant-numeric: tabular-nums; }
.card .acts { position: relative; gap: 4px; margin-top: 6px; }
.card .acts button { padding: 0 7px; min-height: 25px; font-size: 11.5px; }
.card .acts kbd { display: none; }
.card.is-idle { background: none; border-style: dashed; }
.card.folds { border-style: dashed; }
.card.selected { border-color: var(--accent); box-shadow: 0 0 0 1px var(--accent); }
.card.failed { border-color: var(--err); color: inherit; }
.card.held { border-color: var(--hold-line); box-shadow: 0 0 0 3px var(--hold-bg); height: 138px; }
.card.tall { height: 167px; }
.card.held.selected { box-shadow: 0 0 0 3px var(--hold-bg), 0 0 0 4.5px var(--accent); }
.card .stop, .card .fold { position: relative; z-index: 1; width: 24px; min-height: 24px; padding: 0; border: 0;
  background: none; color: var(--faint); opacity: 0; }
.card .fold, .card:hover .stop, .card:focus-within .stop, .card .stop[aria-pressed=true] { opacity: 1; }
@media (hover: none) { .card .stop { opacity: 1; } }
.card .stop:hover, .card .fold:hover { color: var(--ink); }
.card .stop[aria-pressed=true] { color: var(--err); }
.card .stop svg { width: 15px; height: 15px; }
.more { position: absolute; color: var(--soft); }
#split, #sidesplit { flex: none; background: none; border: 0; padding: 0; touch-action: none; }
#split { height: 9px; margin: -6px 0; cursor: row-resize; border-radius: 3px; }
#split::after { content: ""; display: block; width: 44px; height: 3px; margin: 3px auto; border-radius: 2px;
  background: var(--line); }
#split:hover::after, #sidesplit:hover { background: var(--accent); }

/* ---- table ---- */
#tablebox { container-type: inline-size; flex: 1 1 0; min-height: 150px; display: flex; flex-direction: column;
  margin: 0 -16px; background: var(--panel); border-top: 1px solid var(--line); position: relative; }
#overview { display: flex; align-items: stretch; height: 38px; border-bottom: 1px solid var(--line); flex: none; }
#overview canvas { flex: 1; min-width: 0; height: 37px; cursor: crosshair; touch-action: none; }
#overview .zoom { display: flex; align-items: center; padding: 0 8px 0 6px; border-left: 1px solid var(--line-soft); }
#overview .zoom button { min-width: 26px; }
#table { flex: 1; overflow: auto; position: relative; outline: none; font: 12px/24px var(--mono); }
.row { display: grid; grid-template-columns: 54px 76px 78px 54px minmax(96px, 172px) minmax(110px,
  1.5fr) 122px 70px minmax(90px, 1.2fr) 68px; column-gap: 10px; padding: 0 14px 0 6px; height: 24px; min-width: 900px;
  border-bottom: 1px solid var(--line-soft); cursor: default; }
.row > * { overflow: hidden; text-overflow: ellipsis; white-space: pre; }
.row > :nth-child(1) { grid-column: 1; } .row > :nth-child(2) { grid-column: 2; }
.row > :nth-child(3) { grid-column: 3; } .row > :nth-child(6) { grid-column: 6; }
.row > :nth-child(9) { grid-column: 9; } .row > :nth-child(10) { grid-column: 10; }
:is(.row.stderr, .row.gap, .row.end) > :is(:nth-child(4), :nth-child(5), :nth-child(7), :nth-child(8)) { display: none;
  }
:is(.row.stderr, .row.gap, .row.end) > :nth-child(6) { grid-column: 4 / 9; }
.row.noise > :nth-child(6) { grid-column: 4 / 7; } .row.noise > :is(:nth-child(4), :nth-child(5)) { display: none; }
.row > .r { text-align: right; font-variant-numeric: tabular-nums; }
.row.head { position: sticky; top: 0; z-index: 2; background: var(--panel); font: 600 11px/26px var(--sans);
  color: var(--faint); height: 27px; border-bottom-color: var(--line); }
#rows { position: relative; min-width: 900px; } #rows .row { position: absolute; left: 0; right: 0; }
.row:hover { background: light-dark(#f4f6f9, #1f2730); }
.row.held, .row.held.selected { background: var(--hold-bg); } .row.failed .state { color: var(--err); }
.row.linked { background: light-dark(#f1f5fe, #182238); } .row.selected:not(.held) { background: var(--accent-bg); }
.row.selected { box-shadow: inset 3px 0 var(--accent); }
.row .num { position: relative; padding-right: 9px; }
.row.linked .num::after { content: ""; position: absolute; right: 0; top: 0; bottom: 0;
  border-right: 2px solid var(--accent); }
.row .state span { overflow: hidden; text-overflow: ellipsis; }
.row.quiet { color: var(--soft); } .row .dir, .row .args { color: var(--faint); }
.row.gap { background: repeating-linear-gradient(135deg, var(--hold-bg) 0 8px, transparent 8px 16px); }
.row .bars { position: relative; overflow: hidden; }
.bars[data-off=left]::before { content: "‹"; color: var(--faint); }
.bars[data-off=right]::after { content: "›"; color: var(--faint); float: right; }
.bars i { position: absolute; top: 7px; height: 10px; min-width: 2px; border-radius: 2px; background: var(--accent); }
.bars i.is-held { border: 1px solid var(--hold-line);
  background: repeating-linear-gradient(135deg, var(--hold-line) 0 2px, transparent 2px 5px); }
.bars i.is-err { background: var(--err); } .bars i.tick { top: 9px; height: 6px; width: 2px; background: var(--faint); }
@container (max-width: 900px) {
  .row { grid-template-columns: 52px 64px 66px 40px minmax(80px, 150px) minmax(96px, 1.4fr) 118px 58px minmax(84px,
    1fr) 0; column-gap: 8px; padding-right: 4px; min-width: 660px; } #rows { min-width: 660px; }
  .row > :nth-child(10) { visibility: hidden; }
}
.axis { position: relative; } .axis span { position: absolute; top: 0; padding-left: 4px;
  border-left: 1px solid var(--line); font-weight: 400; font-variant-numeric: tabular-nums; }
#tablebox:has(#table:focus-visible)::after { content: ""; position: absolute; inset: 38px 0 0;
  border: 2px solid var(--accent); pointer-events: none; z-index: 3; }
#tail { position: absolute; right: 18px; bottom: 14px; box-shadow: var(--shadow); }
#nomatch { position: absolute; left: 0; right: 0; top: 92px; text-align: center; color: var(--soft);
  pointer-events: none; }

/* ---- inspector ---- */
#side { grid-area: side; position: relative; width: var(--side-width, 400px); border-left: 1px solid var(--line);
  background: var(--panel); display: flex; flex-direction: column; min-height: 0; }
#sidesplit { position: absolute; left: -5px; top: 0; bottom: 0; width: 8px; cursor: col-resize; z-index: 3;
  opacity: .6; }
#side .head { padding: 12px 14px 0 16px; display: flex; flex-direction: column; gap: 5px; }
#side .head > div { display: flex; gap: 6px; align-items: center; }
#side .title { font: 600 14px/1.4 var(--mono); overflow-wrap: anywhere; max-height: 5.6em; overflow: auto;
  margin-right: auto; }
#side .tags { flex-wrap: wrap; }
.tabs { display: flex; gap: 2px; padding: 4px 10px 0; border-bottom: 1px solid var(--line); flex: none;
  flex-wrap: wrap; }
.tabs button { border: 0; border-radius: 5px 5px 0 0; background: none; color: var(--soft); padding: 4px 7px 6px; }
.tabs button[aria-selected=true] { color: var(--ink); font-weight: 600; box-shadow: inset 0 -2px var(--accent); }
#detail { flex: 1; overflow: auto; padding: 12px 16px; display: flex; flex-direction: column; gap: 10px; min-height: 0;
  }
#detail > * { flex: none; } #detail > button { align-self: flex-start; }
#facts { padding: 10px 16px 12px; border-top: 1px solid var(--line); flex: none; max-height: 42%; overflow: auto; }
.facts { display: grid; grid-template-columns: auto minmax(0, 1fr); gap: 2px 14px; }
.facts dt { color: var(--faint); } .facts dd { font: 12px/1.55 var(--mono); overflow-wrap: anywhere;
  white-space: pre-wrap; max-height: 9.5em; overflow: auto; }
#facts .acts { margin-top: 9px; } #facts .acts button { padding: 3px 8px; }
pre.text { margin: 0; font: 12px/1.55 var(--mono); background: var(--bg); border: 1px solid var(--line);
  border-radius: 6px; padding: 9px 11px; white-space: pre-wrap; overflow-wrap: anywhere; }
.bar { display: flex; flex-wrap: wrap; align-items: center; gap: 6px; }
.bar h3 { font-size: 12px; font-weight: 600; margin-right: auto; }
.instances { list-style: none; display: flex; flex-direction: column; }
.instances button { width: 100%; display: grid; grid-template-columns: 76px 100px minmax(0, 1fr) auto; gap: 10px;
  text-align: left; border: 0; border-bottom: 1px solid var(--line-soft); border-radius: 0; background: none;
  font: 12px/1.5 var(--mono); padding: 4px 6px; }
.instances button > * { overflow: hidden; text-overflow: ellipsis; }
.instances button[aria-current=true] { background: var(--accent-bg); }
.lines { font: 12px/1.55 var(--mono); display: grid; grid-template-columns: auto minmax(0, 1fr); gap: 0 10px; }
.lines > :nth-child(odd) { color: var(--faint); text-align: right; }
.lines > :nth-child(even) { white-space: pre-wrap; overflow-wrap: anywhere; }
.lines .inside { box-shadow: -4px 0 var(--panel), -6px 0 var(--accent); }

/* ---- JSON tree ---- */
.tree { font: 12px/1.6 var(--mono); background: var(--bg); border: 1px solid var(--line); border-radius: 6px;
  padding: 7px 10px; overflow: auto; }
.tree summary { list-style: none; cursor: pointer; border-radius: 3px; line-height: 24px; }
.tree summary::-webkit-details-marker { display: none; }
.tree summary::before { content: "\25B8"; display: inline-block; width: 14px; margin-left: -2px; color: var(--faint); }
.tree details[open] > summary::before { content: "\25BE"; }
.tree details[open] > summary > .peek { display: none; } .tree details:not([open]) > .close { display: none; }
.tree .kids { padding-left: 14px; border-left: 1px solid var(--line-soft); margin-left: 3px; }
.tree .kids.flat { padding-left: 0; border: 0; margin: 0; }
.tree .leaf { padding-left: 12px; } .tree .leaf, .tree summary { overflow-wrap: anywhere; }
.tree .key { color: var(--key); } .tree .number { color: var(--num); } .tree .word { color: var(--word); }
.tree .peek { color: var(--faint); }
.tree .string { white-space: pre-wrap; } .tree .close { padding-left: 12px; }
.tree .twice { color: var(--err); font: 11px var(--sans); margin-left: 6px; }

/* ---- dialogs ---- */
dialog { border: 1px solid var(--line); border-radius: 10px; background: var(--panel); color: var(--ink);
  box-shadow: var(--shadow); padding: 0; width: min(720px, calc(100vw - 32px)); max-height: calc(100vh - 48px); }
dialog::backdrop { background: rgb(10 16 24 / .45); }
dialog form, dialog .body { padding: 16px 18px; display: flex; flex-direction: column; gap: 10px; }
dialog h2 { font-size: 15px; letter-spacing: 0; text-transform: none; color: var(--ink); overflow-wrap: anywhere; }
dialog textarea { width: 100%; height: min(300px, 38vh); resize: vertical; tab-size: 2; }
dialog .verdict { min-height: 20px; }
dialog .end { display: flex; flex-wrap: wrap; gap: 8px; justify-content: flex-end; align-items: center; }
dialog .end .soft { margin-right: auto; }
#help .keys { display: grid; grid-template-columns: repeat(auto-fit, minmax(250px, 1fr)); gap: 4px 26px; }
#help .keys div { display: flex; gap: 8px; } #help .keys kbd { margin: 0; }
#help .keys div > :first-child { min-width: 76px; flex: none; }
#gate { grid-row: 1 / -1; grid-column: 1 / -1; align-self: center; justify-self: center; max-width: 620px;
  padding: 24px; display: flex; flex-direction: column; gap: 12px; }
#gate h1 { font-size: 18px; } #gate form { display: flex; gap: 8px; } #gate input { flex: 1; min-width: 0; }
#notices { position: fixed; left: 50%; bottom: 42px; transform: translateX(-50%); display: flex;
  flex-direction: column; gap: 8px; z-index: 20; width: max-content; max-width: min(560px, calc(100vw - 32px)); }
.notice { display: flex; align-items: center; gap: 10px; padding: 8px 8px 8px 14px; border-radius: 8px;
  background: light-dark(#202a35, #e5e9ee); color: light-dark(#fff, #11151a); box-shadow: var(--shadow);
  overflow-wrap: anywhere; }
.notice.is-err { background: light-dark(#98201a, #ffb4ad); color: light-dark(#fff, #2b0906); }
.notice button { color: inherit; }
.menu { position: relative; } .menu > div { position: absolute; right: 0; top: calc(100% + 4px); z-index: 10;
  background: var(--panel); border: 1px solid var(--line); border-radius: 8px; box-shadow: var(--shadow); padding: 5px;
  display: flex; flex-direction: column; min-width: 190px; }
.menu > div button { border: 0; background: none; text-align: left; }
.menu > div button:hover { background: var(--line-soft); }
body[data-recorded] #runs, body[data-recorded] #showruns, body[data-recorded] .live-only, body.locked > :not(#gate,
  #live, .sprite, script) { display: none !important; }
body.lost #runs, body.lost main { opacity: .6; }

/* ---- narrow windows and large zoom ---- */
#showruns { display: none; }
body[data-recorded] main { grid-column: 1 / 3; }
@media (max-width: 1180px) { :root { --side-width: 350px; } #filter { width: 200px; } footer .hints { display: none; } }
@media (max-width: 960px) {
  body { height: auto; min-height: 100vh; overflow: visible;
    grid-template: auto auto auto auto 1fr auto auto / minmax(0, 1fr);
    grid-template-areas: "top" "note" "hold" "runs" "main" "side" "foot"; }
  #showruns { display: inline-block; } #runs { display: none; border-right: 0; border-bottom: 1px solid var(--line);
    max-height: 40vh; } #runs.open { display: block; }
  #side { width: auto; border-left: 0; border-top: 2px solid var(--line); max-height: none; }
  #sidesplit { display: none; } #detail { max-height: 60vh; } #facts { max-height: none; }
  #holdbar { position: sticky; top: 0; z-index: 9; } #filter { flex: 1; width: auto; min-width: 150px; }
  header .pair kbd { display: none; }
  #tablebox { height: 60vh; min-height: 280px; flex: none; }
  main[data-view=both] #graph { height: auto; max-height: 60vh; } #split { display: none; }
  header > .grow { display: none; } .chip { max-width: 170px; }
}
</style>
</head>
<body class="locked">
<svg class="sprite" width="0" height="0" aria-hidden="true" hidden>
  <symbol id="i-ok" viewBox="0 0 16 16"><circle cx="8" cy="8" r="5"/></symbol>
  <symbol id="i-error" viewBox="0 0 16 16"><path d="M8 1.6 15.2 14.4H.8z"/></symbol>
  <symbol id="i-held" viewBox="0 0 16 16"><path d="M3 2h4v12H3zM9 2h4v12H9z"/></symbol>
  <symbol id="i-running" viewBox="0 0 16 16"><path class="line" d="M8 2.2a5.8 5.8 0 1 1-5.8 5.8"/></symbol>
  <symbol id="i-idle" viewBox="0 0 16 16"><circle class="line" cx="8" cy="8" r="4.5"/></symbol>
  <symbol id="i-stopped" viewBox="0 0 16 16"><path class="line" d="M3.5 3.5 12.5 12.5M12.5 3.5 3.5 12.5"/></symbol>
  <symbol id="i-lost" viewBox="0 0 16 16"><circle class="line" cx="8" cy="8" r="5.8"/>
    <path class="line" d="M4 12 12 4"/></symbol>
  <symbol id="i-before" viewBox="0 0 16 16"><path d="M1.6 2h2.2v12H1.6z"/><path class="line" d="M7 5h7v6H7z"/></symbol>
  <symbol id="i-after" viewBox="0 0 16 16"><path d="M12.2 2h2.2v12h-2.2z"/><path class="line" d="M2 5h7v6H2z"/></symbol>
  <symbol id="i-folded" viewBox="0 0 16 16"><path class="line" d="M6 3.5 10.5 8 6 12.5"/></symbol>
  <symbol id="i-unfolded" viewBox="0 0 16 16"><path class="line" d="M3.5 6 8 10.5 12.5 6"/></symbol>
  <symbol id="i-close" viewBox="0 0 16 16"><path class="line" d="M4 4 12 12M12 4 4 12"/></symbol>
  <symbol id="i-name" viewBox="0 0 20 20"><path class="line" d="M1.5 10H6M14 10h4.5M8.9 8v4M11.1 8v4"/>
    <rect class="line" x="6" y="4" width="8" height="12" rx="2.5"/></symbol>
</svg>

<header>
  <button id="showruns" aria-expanded="false" aria-controls="runs">Runs</button>
  <span class="name"><svg aria-hidden="true"><use href="#i-name"/></svg>mcp-relay</span>
  <span id="connection" role="status"></span>
  <span class="pair" role="group" aria-label="View">
    <button data-view="graph" aria-pressed="false">Graph<kbd>1</kbd></button><button
      data-view="table" aria-pressed="false">Table<kbd>2</kbd></button><button
      data-view="both" aria-pressed="true">Both<kbd>3</kbd></button></span>
  <input id="filter" type="search" aria-label="Filter" placeholder="tool:search dur:>200 some text" autocomplete="off"
    spellcheck="false" aria-describedby="filternote">
  <button id="errorsonly" aria-pressed="false">Errors only</button>
  <span class="grow"></span>
  <span id="chips" class="live-only" role="group" aria-label="Breakpoints"></span>
  <button id="pauseerror" class="live-only" aria-pressed="false"
    title="Hold every failed answer before the client sees it">Pause on error</button>
  <button id="pauseall" class="live-only" aria-pressed="false"
    title="Hold every request before it is delivered">Pause all</button>
  <span class="pair live-only" role="group" aria-label="Mode">
    <button data-mode="run" aria-pressed="true">Run</button><button data-mode="step" aria-pressed="false"
      title="Hold every request, one after the other">Step</button></span>
  <button id="showhelp" aria-label="Keys and help" title="Keys and help">?</button>
</header>
<div id="banner" role="alert" hidden></div>
<section id="holdbar" aria-label="Held calls" hidden></section>
<nav id="runs" aria-label="Runs"></nav>

<main data-view="both">
  <div id="session" hidden></div>
  <div id="filternote" class="note is-err" hidden></div>
  <div id="empty" hidden>
    <h1>No session yet</h1>
    <p>Put the relay in front of a server's command, in the host's configuration or in a terminal.
      It shows up here as soon as the host starts it.</p>
    <pre>python3 mcp_relay.py -- node build/server.js</pre>
    <p class="soft">To see one at once, run <code>python3 mcp_relay.py demo</code> in another terminal.</p>
  </div>
  <div id="graph" role="region" aria-label="Session graph" tabindex="-1"><div id="plane"></div></div>
  <div id="split" role="separator" aria-orientation="horizontal" aria-label="Height of the graph"
    aria-valuenow="316" tabindex="0"></div>
  <section id="tablebox" aria-label="Frames">
    <div id="overview">
      <canvas role="img" aria-label="Activity over the whole session; drag to zoom" height="37"></canvas>
      <span class="zoom" role="group" aria-label="Time axis">
        <button class="quiet" id="zoomout" aria-label="Zoom out" title="Zoom out">−</button>
        <button class="quiet" id="zoomin" aria-label="Zoom in" title="Zoom in">+</button>
        <button class="quiet" id="zoomfit" title="Show the whole session">All</button>
      </span>
    </div>
    <div id="table" role="grid" aria-label="Frames" tabindex="0">
      <div class="row head" role="row">
        <span role="columnheader" class="r num">#</span><span role="columnheader" class="r">time s</span>
        <span role="columnheader">direction</span><span role="columnheader">id</span>
        <span role="columnheader">method</span><span role="columnheader">name</span>
        <span role="columnheader">status</span><span role="columnheader" class="r">ms</span>
        <span role="columnheader" class="axis" aria-label="time axis"></span>
        <span role="columnheader" class="r">bytes</span>
      </div>
      <div id="rows" role="rowgroup"></div>
    </div>
    <div id="nomatch" hidden>Nothing matches the filter.</div>
    <button id="tail" hidden></button>
  </section>
</main>

<aside id="side" aria-label="Inspector" hidden>
  <div id="sidesplit" role="separator" aria-orientation="vertical" aria-label="Width of the inspector"
    aria-valuenow="400" tabindex="0"></div>
  <div class="head"></div>
  <div class="tabs" role="tablist" aria-label="Inspector"></div>
  <div id="detail" role="tabpanel" tabindex="0" aria-label="Detail"></div>
  <div id="facts" role="region" aria-label="Facts" tabindex="0"></div>
</aside>
<footer>
  <span id="stats"></span><span class="grow"></span>
  <span class="hints"><kbd>/</kbd> filter &ensp;<kbd>J</kbd><kbd>K</kbd> move &ensp;<kbd>H</kbd> held call &ensp;
    <kbd>?</kbd> all keys</span>
</footer>

<div id="gate" hidden>
  <h1>This page needs its token</h1>
  <p id="gatetext"></p>
  <pre>python3 mcp_relay.py serve</pre>
  <form>
    <input name="token" aria-label="Token" placeholder="or paste the token, or the whole address, here"
      autocomplete="off" spellcheck="false"><button class="primary">Open</button>
  </form>
</div>

<dialog id="editor" aria-labelledby="editortitle"><form method="dialog">
  <h2 id="editortitle"></h2>
  <p class="soft" id="editorhint"></p>
  <div class="bar" id="editorstarts"></div>
  <textarea id="editortext" aria-label="JSON" spellcheck="false" autocomplete="off"
    aria-describedby="editorverdict"></textarea>
  <div id="editorverdict" class="verdict" role="status"></div>
  <p id="editorrefused" class="note is-err" role="alert" hidden></p>
  <div class="end">
    <span class="soft"><kbd>Ctrl</kbd> <kbd>Enter</kbd> sends</span>
    <button type="button" id="editortidy">Tidy</button><button type="button" id="editorcancel">Cancel</button>
    <button type="button" class="primary" id="editorsend">Send</button>
  </div>
</form></dialog>
<dialog id="help" aria-labelledby="helptitle"><div class="body">
  <h2 id="helptitle">Keys</h2><div class="keys"></div>
  <h2>Filter</h2>
  <p class="soft"><code>tool: name: method: dir: id: kind: status: dur:</code> and free text over the
    wire text. <code>dir:server</code> is towards the server; <code>dur:&gt;200</code> is in milliseconds,
    <code>dur:&gt;1.5s</code> in seconds; <code>-</code> before a word turns it round; quotes keep blanks together.</p>
  <h2>Signs</h2><div class="keys" id="signs"></div>
  <div class="end"><button class="primary" id="closehelp">Close</button></div>
</div></dialog>
<div id="notices" role="status"></div>
<div id="live" class="unseen" aria-live="assertive"></div>
<!--recorded-run-->
<script>
'use strict';
/* Sections: constants · state · JSON text · formatters · session model · filter · hub · DOM · runs · holds ·
   breakpoints · graph · table · time axis · inspector · JSON tree · editor · keys and links · start.
   Everything that comes from a relay is hostile text: it reaches the document as text and never becomes a link.
   Events change `state`, `touch(part)` says what to repaint, and one animation frame repaints it. */

// ---- constants ----------------------------------------------------------------------------------------------------

const ROW_HEIGHT = 24;               // px, as in the style
const MAX_ROWS = 200000;             // rows kept of one run; a row is about 300 bytes, so about 60 MB
const MAX_CHARS = 48 << 20;          // characters of wire text kept; older text is fetched again for who looks at it
const MAX_CARDS = 300;               // cards drawn; more than that is no picture any more
const SLICE_MS = 12;                 // work between two chances to paint; a frame at 60 Hz is 16 ms
const TREE_ROWS = 120;               // rows of a JSON tree opened at first
const TREE_STEP = 200;               // members shown per "more"
const TEXT_STEP = 20000;             // characters of one text shown before "show all"
const LINES_SHOWN = 400;             // stderr lines in the inspector
const CLIENT_PATIENCE_S = 60;        // after which most MCP clients give a request up (SDK defaults)
const RETRY_MS = [300, 1000, 2000];  // pauses between attempts to reach the hub, the last one for ever
const SETTLE_MS = 1500;              // after a connect, until what the hub did not name counts as gone
const TICK_MS = 200;                 // live timers

const SIGNS = {                      // status -> [icon, class, word]
  idle: ['idle', 'faint', 'not called yet'],
  running: ['running', 'is-run', 'running'],
  held: ['held', 'is-held', 'held'],
  ok: ['ok', 'is-ok', 'ok'],
  sent: ['ok', 'faint', 'sent'],
  error: ['error', 'is-err', 'failed'],
  aborted: ['stopped', 'is-err', 'aborted'],
  cancelled: ['lost', 'soft', 'cancelled'],
  unanswered: ['lost', 'is-err', 'unanswered'],
  abandoned: ['lost', 'is-held', 'abandoned'],
  dropped: ['stopped', 'soft', 'dropped'],
  late: ['error', 'is-held', 'late'],
};

const ACTIONS = [                    // what a person can do with a hold; no key for abort, on purpose
  {id: 'continue', key: 'c', label: 'Continue', look: 'primary', tip: 'Let the frame go on unchanged'},
  {id: 'step', key: 's', label: 'Step', tip: 'Let it go on and hold the next request'},
  {id: 'retry', key: 'r', label: 'Retry', tip: 'Drop this answer and send the request again'},
  {id: 'inject', key: 'i', label: 'Inject…', tip: 'Answer with a value of your own'},
  {id: 'edit', key: 'e', label: 'Edit arguments…', tip: 'Change the arguments and run it'},
  {id: 'abort', label: 'Abort', look: 'danger', tip: 'Answer with error -32099'},
];

const RELEASED_BY = {                // who let a frame go, when it was not this page
  page: 'another page',
  command: 'the command line',
  api: 'the API',
  unattended: 'the hub, as nobody was watching',
  'hold-timeout': 'the hold timeout',
  'debugger lost': 'the relay, which lost the hub',
  'host gone': 'the relay, as the host is gone',
  'server gone': 'the relay, as the server is gone',
  shutdown: 'the relay, at shutdown',
};

const KEYS = [                       // for the help overlay; COMMANDS carries them out
  ['1 2 3', 'graph, table, both'],
  ['/', 'filter'],
  ['J K or arrows', 'next, previous'],
  ['[ ]', 'previous, next run'],
  ['Enter', 'inspect the selection'],
  ['Esc', 'close, deselect'],
  ['H', 'go to the held call; again: the next'],
  ['C', 'continue the held call'],
  ['S', 'step'],
  ['R', 'retry'],
  ['I', 'inject'],
  ['E', 'edit arguments'],
  ['B', 'break before the selected node'],
  ['Shift B', 'break after it'],
  ['P', 'pause all'],
  ['Shift P', 'pause on error'],
  ['M', 'step mode on, off'],
  ['X', 'errors only'],
  ['O', 'open or fold protocol'],
  ['F', 'follow the newest frame'],
  ['+ − 0', 'zoom the time axis'],
  ['A Q W T Y', 'answer, request, wire, stderr, history'],
  ['L', 'copy a link'],
  ['D', 'light, dark'],
  ['?', 'this help'],
];

// ---- state --------------------------------------------------------------------------------------------------------

const state = {
  recorded: false, token: '', connection: 'connecting',
  runs: new Map(), holds: new Map(), breakpoints: [], mode: 'run',         // what the hub says, by id
  stale: {runs: new Set(), holds: new Set()},                              // not named again since the last connect
  session: null,                                                           // the run on screen
  picked: false,                                                           // whether a person chose it
  wanted: {},                                                              // run, node, hold to show once they are here
  selected: {node: null, instance: null, row: null}, tab: 'answer', tabOf: null,
  view: 'both', unfolded: false, follow: true, axis: null, revealed: null,
  filter: null, errorsOnly: false, visible: null, matches: null, applied: '',
  holdTurn: null, busy: new Set(), mine: new Set(), editor: null,
};
const dirty = new Set();
let painting = false;

/** Ask for a repaint of some parts: runs, head, holds, chips, graph, layout, table, axis, side, facts, stats. */
function touch(...parts) {
  parts.forEach(part => dirty.add(part));
  if (painting) return;
  painting = true;
  // A hidden tab gets no animation frames, but its title and favicon must still tell of a hold.
  if (document.hidden) setTimeout(paint, 250);
  else requestAnimationFrame(paint);
}

function paint() {
  painting = false;
  const parts = new Set(dirty);
  dirty.clear();
  for (const [part, painter] of Object.entries(PAINTERS)) if (parts.has(part)) painter();
}

// ---- JSON text: exact digits, duplicate keys, any depth -----------------------------------------------------------
// JSON.parse would round numbers, merge doubled keys and recurse. These functions work on the text itself, by position.

class JsonProblem extends Error {
  constructor(message, at) {
    super(message);
    this.at = at;
  }
}

const CLOSER = {'{': '}', '[': ']'};
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const WORD = /true|false|null/y;
const ESCAPE = /\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})/y;

function skipBlanks(text, at) {
  for (; at < text.length; at++) {
    const code = text.charCodeAt(at);
    if (code !== 32 && code !== 10 && code !== 13 && code !== 9) break;
  }
  return at;
}

function endOfString(text, at) {
  for (let i = at + 1; i < text.length;) {
    const code = text.charCodeAt(i);
    if (code === 34) return i + 1;
    if (code < 32) throw new JsonProblem('a line break or control character inside a string must be escaped', i);
    if (code !== 92) {
      i++;
      continue;
    }
    ESCAPE.lastIndex = i;
    if (!ESCAPE.test(text)) throw new JsonProblem('this escape is not JSON', i);
    i = ESCAPE.lastIndex;
  }
  throw new JsonProblem('this string never ends', at);
}

function endOfScalar(text, at) {
  const first = text[at];
  if (first === undefined) throw new JsonProblem('a value is missing at the end', at);
  if (first === '"') return endOfString(text, at);
  const pattern = first === '-' || (first >= '0' && first <= '9') ? NUMBER : WORD;
  pattern.lastIndex = at;
  if (!pattern.test(text)) throw new JsonProblem('a value was expected here', at);
  return pattern.lastIndex;
}

/** Position of the value that follows the key at `at`. */
function afterKey(text, at) {
  if (text[at] !== '"') throw new JsonProblem('a key in double quotes was expected here', at);
  const colon = skipBlanks(text, endOfString(text, at));
  if (text[colon] !== ':') throw new JsonProblem('a ":" was expected after the key', colon);
  return skipBlanks(text, colon + 1);
}

/** End of the JSON value at `at`, checked strictly, without recursion. Throws JsonProblem. */
function endOfValue(text, at) {
  const open = [];
  at = skipBlanks(text, at);
  for (;;) {
    if (text[at] in CLOSER) {
      open.push(text[at]);
      at = skipBlanks(text, at + 1);
      if (text[at] !== CLOSER[open.at(-1)]) {
        if (open.at(-1) === '{') at = afterKey(text, at);
        continue;
      }
    } else at = endOfScalar(text, at);
    at = closeValues(text, at, open);
    if (!open.length) return at;
  }
}

/** After a value: pass closing brackets, stop at the start of the next value or when nothing is open. */
function closeValues(text, at, open) {
  while (open.length) {
    const inside = open.at(-1);
    const next = skipBlanks(text, at);
    if (text[next] === CLOSER[inside]) {
      open.pop();
      at = next + 1;
      continue;
    }
    if (text[next] !== ',') throw new JsonProblem(`"," or "${CLOSER[inside]}" was expected here`, next);
    at = skipBlanks(text, next + 1);
    return inside === '{' ? afterKey(text, at) : at;
  }
  return at;
}

/** null when `text` is one JSON value, else what is wrong, with line and column. */
function jsonProblem(text) {
  try {
    const end = skipBlanks(text, endOfValue(text, 0));
    if (end < text.length) throw new JsonProblem('there is more text after the value', end);
    return null;
  } catch (problem) {
    if (!(problem instanceof JsonProblem)) throw problem;
    const before = text.slice(0, problem.at).split('\n');
    return {message: problem.message, at: problem.at, line: before.length, column: before.at(-1).length + 1};
  }
}

/** The members of the object or array at `at`: {key (JSON text) or null, start, end}. Lazy: stops where the caller
    stops. */
function* membersOf(text, at) {
  const open = text[at];
  let i = skipBlanks(text, at + 1);
  while (text[i] !== CLOSER[open]) {
    const key = open === '{' ? text.slice(i, endOfString(text, i)) : null;
    const start = key === null ? i : afterKey(text, i);
    const end = endOfValue(text, start);
    yield {key, start, end};
    i = skipBlanks(text, end);
    if (text[i] === ',') i = skipBlanks(text, i + 1);
  }
}

/** JSON text of the value at a path of keys, or undefined. The last of doubled keys counts, as parsers do it. */
function textAt(text, ...path) {
  try {
    let start = skipBlanks(text, 0);
    let end = text.length;
    for (const key of path) {
      if (!(text[start] in CLOSER)) return undefined;
      let found;
      let index = 0;
      for (const member of membersOf(text, start)) if ((member.key === null ? index++
          : decoded(member.key)) === key) found = member;
      if (!found) return undefined;
      ({start, end} = found);
    }
    return text.slice(start, end);
  } catch (problem) {
    if (problem instanceof JsonProblem) return undefined;
    throw problem;
  }
}

const decoded = literal => JSON.parse(literal);
const kindOfJson = text =>
    ({'{': 'object', '[': 'array', '"': 'string', t: 'boolean', f: 'boolean', n: 'null'})[text[skipBlanks(text, 0)]]
    || 'number';

function* jsonTokens(text) {
  for (let i = skipBlanks(text, 0); i < text.length; i = skipBlanks(text, i)) {
    const end = '{}[],:'.includes(text[i]) ? i + 1 : endOfScalar(text, i);
    yield text.slice(i, end);
    i = end;
  }
}

/** Valid JSON text on several lines, every token as it was. Indentation stops at 40 levels, so deep input stays
    linear. */
function pretty(text) {
  const out = [];
  let depth = 0;
  let last = '';
  const line = () => '\n' + '  '.repeat(Math.min(depth, 40));
  for (const token of jsonTokens(text)) {
    if (token === '}' || token === ']') {
      depth--;
      if (last !== '{' && last !== '[') out.push(line());
    } else if (last === '{' || last === '[' || last === ',') out.push(line());
    out.push(token === ':' ? ': ' : token);
    if (token in CLOSER) depth++;
    last = token;
  }
  return out.join('');
}

const compact = text => [...jsonTokens(text)].join('');

// ---- formatters ---------------------------------------------------------------------------------------------------

const INVISIBLE = '\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u200b-\\u200f\\u2028-\\u202e' +
  '\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb';
const LONE_SURROGATE = '[\\ud800-\\udbff](?![\\udc00-\\udfff])|(?<![\\ud800-\\udbff])[\\udc00-\\udfff]';
const HIDDEN_CHARACTERS = new RegExp(`[${INVISIBLE}]|${LONE_SURROGATE}`, 'g');

/** Text of a peer for people: control, bidi and invisible characters and lone surrogates become escapes. Line
    breaks and tabs stay. */
function seen(text) {
  return String(text).replace(HIDDEN_CHARACTERS, c => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'));
}

const oneLine = (text, limit = 160) => seen(cut(String(text), limit)).replace(/[\n\t]+/g, ' ⏎ ');

/** At most `limit` UTF-16 units, never ending inside a surrogate pair. */
function cut(text, limit) {
  if (text.length <= limit) return text;
  const code = text.charCodeAt(limit - 1);
  return text.slice(0, code >= 0xd800 && code < 0xdc00 ? limit - 1 : limit) + '…';
}

const grouped = number => String(Math.round(number)).replace(/\B(?=(\d{3})+$)/g, '\u202f');
const plural = (count, word) => `${grouped(count)} ${word}${count === 1 ? '' : 's'}`;

function duration(ms) {
  if (ms === undefined || ms === null) return '–';
  if (ms < 0.1) return '<0.1 ms';
  if (ms < 9.95) return ms.toFixed(1) + ' ms';
  if (ms < 999.5) return Math.round(ms) + ' ms';
  if (ms < 59950) return (ms / 1000).toFixed(1) + ' s';
  return clock(ms, ['h', 'min', 's']);
}

function clock(ms, [hour, minute, second]) {
  const s = Math.floor(ms / 1000);
  const two = n => String(n).padStart(2, '0');
  if (s >= 3600) return `${Math.floor(s / 3600)} ${hour} ${two(Math.floor(s / 60) % 60)} ${minute}`;
  return `${Math.floor(s / 60)} ${minute} ${two(s % 60)} ${second}`;
}

function minutes(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  return `${Math.floor(s / 60)}:${String(s % 60).padStart(2, '0')}`;
}

function ago(ms) {
  const s = Math.max(0, ms / 1000);
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h`;
  return plural(Math.floor(s / 86400), 'day');
}

function timeOfDay(ms) {
  const date = new Date(ms);
  const today = new Date().toDateString() === date.toDateString();
  return today ? date.toLocaleTimeString([], {hour: '2-digit', minute: '2-digit'})
      : date.toLocaleDateString([], {day: 'numeric', month: 'short'});
}

function bytes(count) {
  if (count < 10000) return `${grouped(count)} bytes`;
  return count < 1e6 ? `${(count / 1000).toFixed(1)} kB` : `${(count / 1e6).toFixed(1)} MB`;
}

function utf8Length(text) {
  let size = text.length;
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    if (code > 0x7f) size += code > 0x7ff && (code < 0xd800 || code > 0xdfff) ? 2 : 1;
  }
  return size;
}

const frameText = frame =>
    (typeof frame === 'string' ? frame
    : (frame?.text ?? (frame?.base64 !== undefined ? fromBase64(frame.base64) : undefined)));
const frameBytes = frame => (typeof frame === 'string' ? utf8Length(frame)
    : (frame?.bytes ?? (frame?.base64 !== undefined ? atob(frame.base64).length : undefined)));
const fromBase64 = text => new TextDecoder().decode(Uint8Array.from(atob(text), c => c.charCodeAt(0)));
const frameChars = frame => (typeof frame === 'string' ? frame.length : (frame?.text ?? frame?.base64 ?? '').length);

// ---- session model: events in, rows and nodes out -----------------------------------------------------------------

/** What the page knows of one run. rows is the table, in order of arrival; nodes and instances the graph. */
function newSession(run) {
  return {
    run, nodes: new Map(), instances: new Map(), rows: [], forgotten: 0, frames: 0, seq: 0, at: 0,
    chars: 0, oldestText: 0, stderr: [], durations: [], open: new Set(),
    calls: 0, errors: 0, noise: 0, missing: 0, gaps: 0, command: null,
  };
}

const REDUCERS = {
  'run.started': (s, e) => {
    s.started = e.ts;
    s.command = [e.command, ...(e.args || [])].filter(part => part !== undefined);
    s.version = e.version;
    s.pid = e.pid;
    touch('head');
  },
  'node.started': startNode,
  'node.finished': finishNode,
  'node.error': failNode,
  'node.output': addOutput,
  'hold.opened': openHold,
  'hold.released': closeHold,
  gap: (s, e) => {
    s.missing += e.dropped || 0;
    s.gaps++;
    addRow(s, e, 'gap', null, {text: gapText(e)});
    touch('head');
  },
  'run.finished': (s, e) => {
    s.finished = e;
    addRow(s, e, 'end', null, {text: endText(e)});
  }
};

/** Take one event. One that is known (a repeated replay) is ignored; a hole in the numbers becomes a visible gap. */
function applyEvent(s, event) {
  if (event.seq <= s.seq) return;
  const hole = s.seq ? event.seq - s.seq - 1 : 0;
  if (hole && event.type !== 'gap') REDUCERS.gap(s, {...event, dropped: hole, reason: 'they did not reach this page'});
  s.seq = event.seq;
  s.at = Math.max(s.at, event.at || 0);
  REDUCERS[event.type]?.(s, event);
}

function gapText(e) {
  const what = e.dropped ? plural(e.dropped, 'event') : e.bytes ? bytes(e.bytes) : 'some events';
  return `${what} missing here: ${e.reason || 'no reason given'}`;
}

function endText(e) {
  const how = e.signal ? `signal ${e.signal}` : Number.isInteger(e.exitCode) ? `exit code ${e.exitCode}` : e.status;
  const unanswered = e.unanswered ? `, ${plural(e.unanswered, 'request')} unanswered` : '';
  return `session ended: ${how}${unanswered}${e.error ? `, ${e.error.name}` : ''}`;
}

function nodeOf(s, e) {
  let node = s.nodes.get(e.node);
  if (!node) {
    node = {id: e.node, kind: e.kind, name: e.name ?? e.node, parent: e.parent ?? null,
        count: 0, errors: 0, running: new Set(), held: new Set(), instances: [], last: null};
    s.nodes.set(e.node, node);
    touch('layout');
  }
  return node;
}

function startNode(s, e) {
  const node = nodeOf(s, e);
  const instance = newInstance(node, e);
  s.instances.set(e.instance, instance);
  node.instances.push(instance);
  node.count++;
  node.last = instance;
  if (!isGroup(node)) openInstance(s, e, instance);
}

/** One execution of a node. rpc is the id's JSON text; version grows with every change that the inspector shows. */
function newInstance(node, e) {
  return {
    id: e.instance, node, seq: e.seq, at: e.at, ts: e.ts, direction: e.direction, method: e.method, rpc: e.id,
    notification: !!e.notification, batched: !!e.batched, flaw: e.flaw, related: e.related, input: e.input,
    hidden: e.hidden || [], status: 'running', holds: [], errors: [], row: null, answer: null, retries: 0, version: 0,
  };
}

function openInstance(s, e, instance) {
  const {node} = instance;
  if (node.id === 'mcp:stdout-noise') {
    s.noise++;
    instance.row = addRow(s, e, 'noise', instance, {text: e.input?.text ?? '', direction: 'server->client'});
    return;
  }
  node.running.add(instance);
  s.open.add(instance);
  if (isWork(node) && !e.notification) s.calls++;
  const type = e.notification ? 'notification' : 'request';
  instance.row = addRow(s, e, type, instance, {frame: e.frame, direction: e.direction});
}

const isGroup = node => node.id === 'mcp:session' || node.id === 'mcp:protocol';
const isWork = node => node.parent === 'mcp:session' && !isGroup(node);
const backwards = direction => (direction === 'client->server' ? 'server->client' : 'client->server');

function finishNode(s, e) {
  const instance = s.instances.get(e.instance);
  if (!instance) return;
  Object.assign(instance, {
    status: e.status, output: e.output, took: e.durationMs, heldMs: e.heldMs, end: e.at, held: null,
    injected: !!e.injected, edited: instance.edited || !!e.edited, retries: e.retries ?? instance.retries,
    hidden: [...new Set([...instance.hidden, ...(e.hidden || [])])],
  });
  instance.version++;
  settle(s, instance);
  if (!e.notification && !isGroup(instance.node)) recordAnswer(s, e, instance);
  touch('graph', 'table', 'stats', 'side');
}

function settle(s, instance) {
  const {node, took} = instance;
  node.running.delete(instance);
  node.held.delete(instance);
  s.open.delete(instance);
  if (FAILED.has(instance.status)) {
    node.errors++;
    if (!isGroup(node)) s.errors++;
  }
  if (isWork(node) && !instance.notification && took !== undefined) s.durations.push(took);
}

const FAILED = new Set(['error', 'aborted', 'unanswered']);

function recordAnswer(s, e, instance) {
  if (e.frame === undefined && !(e.hidden || []).includes('output')) return;
  const held = instance.answer;
  if (held && held.status === undefined) Object.assign(held, {frame: held.frame ?? e.frame, status: instance.status});
  else instance.answer = answerRow(s, e, instance, {status: instance.status});
}

function answerRow(s, e, instance, more) {
  const direction = instance && backwards(instance.direction);
  return addRow(s, e, 'answer', instance, {frame: e.frame, direction, ...more});
}

function failNode(s, e) {
  const instance = s.instances.get(e.instance);
  if (!instance) return;
  instance.errors.push({...e.error, at: e.at});
  instance.version++;
  touch('graph', 'table', 'side');
}

function addOutput(s, e) {
  const instance = s.instances.get(e.instance);
  if (instance) instance.version++;
  if (e.late) {
    answerRow(s, e, instance, {status: 'late'});
    return;
  }
  const text = e.text ?? `(${plural(e.chars || 0, 'character')} hidden by the relay's --hide)`;
  s.stderr.push(addRow(s, e, 'stderr', instance, {text}));
}

function openHold(s, e) {
  const instance = s.instances.get(e.instance);
  if (!instance) return;
  const hold = {id: e.hold, point: e.point, reason: e.reason, loop: e.loop, from: e.at, since: e.since, to: null};
  instance.holds.push(hold);
  instance.held = hold;
  instance.node.held.add(instance);
  instance.version++;
  if (e.point !== 'before') instance.answer = answerRow(s, e, instance);
  touch('graph', 'layout', 'table', 'side');
}

function closeHold(s, e) {
  const instance = s.instances.get(e.instance);
  const hold = instance?.holds.find(h => h.id === e.hold);
  if (!hold) return;
  Object.assign(hold, {to: e.at, action: e.action, by: e.by, ms: e.heldMs});
  instance.held = null;
  instance.node.held.delete(instance);
  instance.version++;
  if (hold.point !== 'before' && e.action !== 'continue' && instance.answer) {
    instance.answer.status = 'dropped';
    instance.answer.frame ??= e.dropped;
  }
  if (e.action === 'retry' && hold.point !== 'before') instance.retries++;
  if (e.arguments !== undefined) {
    instance.edited = true;
    instance.editedArguments = e.arguments;
  }
  touch('graph', 'layout', 'table', 'side');
}

const NUMBERED = new Set(['request', 'answer', 'notification', 'noise']);

/** Append a row to the table. What crossed the wire has a number; index counts all rows, also forgotten ones. */
function addRow(s, e, type, instance, more) {
  const n = NUMBERED.has(type) ? ++s.frames : 0;
  const row = {index: s.forgotten + s.rows.length, n, seq: e.seq, at: e.at, ts: e.ts, type, instance, ...more};
  s.rows.push(row);
  s.chars += frameChars(row.frame) + (row.text || '').length;
  boundMemory(s);
  touch('table', 'graph', 'stats', 'axis');
  return row;
}

/** Forget old wire text above MAX_CHARS (it is fetched again on demand) and old rows above MAX_ROWS. */
function boundMemory(s) {
  for (; s.chars > MAX_CHARS && s.oldestText < s.rows.length - 1; s.oldestText++) letGo(s, s.rows[s.oldestText]);
  if (s.rows.length > MAX_ROWS) forgetRows(s, MAX_ROWS / 10);
}

function letGo(s, row) {
  const before = frameChars(row.frame) + (row.text || '').length;
  if (row.text !== undefined) row.text = cut(row.text, 200);
  if (row.frame !== undefined) {
    row.frame = undefined;
    row.away = true;
  }
  s.chars -= before - (row.text || '').length;
}

function forgetRows(s, count) {
  for (const row of s.rows.splice(0, count)) {
    const {instance} = row;
    s.chars -= frameChars(row.frame) + (row.text || '').length;
    if (instance?.row !== row || s.open.has(instance) || isGroup(instance.node)) continue;
    s.instances.delete(instance.id);
    instance.node.instances.splice(instance.node.instances.indexOf(instance), 1);
  }
  s.forgotten += count;
  s.oldestText = Math.max(0, s.oldestText - count);
  s.stderr = s.stderr.filter(row => row.index >= s.forgotten);
  if (s.durations.length > MAX_ROWS) s.durations.splice(0, MAX_ROWS / 2);
  refilter();
}

const isLive = run => run?.status === 'running';
/** Milliseconds since the run started, on the axis of event.at; stands still when nothing is open. */
const nowAt = s => (isLive(s.run) && s.open.size && s.started ? Math.max(s.at, Date.now() - s.started) : s.at);

/** The word for an instance: held, running, ok, error, … A session that ended leaves nothing running. */
function statusOf(instance, run = state.session?.run) {
  if (instance.held && isLive(run)) return 'held';
  if (instance.status === 'running' && !isLive(run)) return run?.status === 'abandoned' ? 'abandoned' : 'unanswered';
  if (instance.status === 'running' && instance.node.kind === 'server') return 'running';
  return instance.notification && instance.status === 'ok' ? 'sent' : instance.status;
}

function rowStatus(row) {
  if (row.type === 'noise') return 'error';
  if (row.type === 'answer') return row.status ?? (row.instance?.held ? 'held' : row.instance?.status);
  return row.instance && row.type !== 'stderr' ? statusOf(row.instance) : undefined;
}

const HELD_WORDS = {before: 'held before', after: 'held after', error: 'held on error'};

/** A status in a word or two; a failure by its error's name. */
function statusWord(status, instance, type) {
  const error = instance?.errors.at(-1);
  if (type === 'noise') return 'not JSON-RPC';
  if (status === 'error' && error?.name === 'McpToolError') return 'isError';
  if (status === 'error' && error) return error.name.replace(/^JsonRpcError\((.*)\)$/, 'error $1');
  if (status === 'held' && instance?.held) return HELD_WORDS[instance.held.point];
  return SIGNS[status]?.[2] ?? status ?? '';
}

/** Stretches of one exchange on the time axis: {from, to, held}. */
function stretches(instance, now) {
  const end = instance.end ?? (statusOf(instance) === 'running' || instance.held ? now : instance.at);
  const out = [];
  let from = instance.at;
  for (const hold of instance.holds) {
    const to = hold.to ?? end;
    if (hold.from > from) out.push({from, to: hold.from, held: false});
    out.push({from: hold.from, to, held: true});
    from = to;
  }
  if (end > from || !out.length) out.push({from, to: end, held: false});
  return out;
}

const heldTime = (instance, now) => instance.heldMs
    ?? instance.holds.reduce((sum, hold) => sum + ((hold.to ?? now) - hold.from), 0);
const totalTime = (instance, now) => instance.took ?? (instance.end ?? now) - instance.at;

// ---- filter -------------------------------------------------------------------------------------------------------

const TOWARDS = {server: 'client->server', client: 'server->client', 'client->server': 'client->server',
    'server->client': 'server->client'};
const has = (text, part) => text !== undefined && text !== null && String(text).toLowerCase().includes(part);

const TOKENS = {                     // token -> value -> test(row), or a sentence about what is wrong
  tool: value => row => row.instance?.node.kind === 'tool' && has(row.instance.node.name, value),
  name: value => row => has(row.instance?.node.name, value),
  method: value => row => has(row.instance?.method, value),
  kind: value => row => has(row.type, value) || has(row.instance?.node.kind, value),
  id: value => row => [value, `"${value}"`].includes(row.instance?.rpc?.toLowerCase()),
  status: value => row => hasStatus(row, value),
  dir: value => TOWARDS[value] ? row => row.direction === TOWARDS[value]
    : 'dir: takes server, client, client->server or server->client',
  dur: durationTest,
};

function hasStatus(row, value) {
  const status = rowStatus(row);
  return status !== undefined && (status.startsWith(value) || has(statusWord(status, row.instance, row.type), value));
}

const COMPARE = {
  '<': (a, b) => a < b, '<=': (a, b) => a <= b, '=': (a, b) => a === b, '>=': (a, b) => a >= b, '>': (a, b) => a > b,
};

function durationTest(value) {
  const match = /^(<=|>=|<|>|=)?(\d+(?:\.\d+)?)(ms|s)?$/.exec(value);
  if (!match) return 'dur: takes a number of milliseconds, such as dur:>200 or dur:>1.5s';
  const limit = match[2] * (match[3] === 's' ? 1000 : 1);
  const compare = COMPARE[match[1] || '>='];
  const isCall = row => row.instance && !row.instance.notification && ['request', 'answer'].includes(row.type);
  return row => isCall(row) && compare(totalTime(row.instance, nowAt(state.session)), limit);
}

/** Free text is looked for in the wire text, in stderr and noise, in names and in error messages; case does not
    matter. */
function textTest(word) {
  const pattern = new RegExp(word.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'), 'i');
  return row => {
    if (pattern.test(row.text ?? frameText(row.frame) ?? '')) return true;
    const words = row.instance ? [row.instance.node.name, ...row.instance.errors.map(error => error.message)] : [];
    return words.some(word => pattern.test(word));
  };
}

/** Compile the filter box. Returns {test(row), problem (a sentence) or null, empty}. */
function compileFilter(text, errorsOnly) {
  const tests = errorsOnly ? [isTrouble] : [];
  let problem = null;
  for (const [, minus, token, quoted, plain] of text.matchAll(/(-?)(?:([a-z]+):)?(?:"([^"]*)"|(\S+))/gi)) {
    const test = wordTest(token, quoted ?? plain);
    if (typeof test === 'string') problem ??= test;
    else tests.push(minus ? row => !test(row) : test);
  }
  return {test: row => tests.every(test => test(row)), problem, empty: !tests.length};
}

function wordTest(token, value) {
  const make = token && Object.hasOwn(TOKENS, token.toLowerCase()) && TOKENS[token.toLowerCase()];
  return make ? make(value.toLowerCase()) : textTest(token ? `${token}:${value}` : value);
}

function isTrouble(row) {
  if (row.type === 'gap') return true;
  if (row.type === 'end') return state.session.run.status === 'error';
  return FAILED.has(rowStatus(row)) || row.instance?.held?.point === 'error';
}

let filterPass = 0;
let filterTimer = 0;

function setFilter() {
  const filter = compileFilter($('#filter').value, state.errorsOnly);
  state.filter = filter.empty ? null : filter;
  $('#filter').setAttribute('aria-invalid', String(!!filter.problem));
  $('#filternote').textContent = filter.problem || '';
  $('#filternote').hidden = !filter.problem;
  refilter();
}

/** Run the filter over all rows, in slices. Statuses change, so a live filtered run is filtered again now and then. */
function refilter() {
  const pass = ++filterPass;
  const s = state.session;
  clearTimeout(filterTimer);
  state.applied = null;
  if (!s || !state.filter) {
    Object.assign(state, {visible: null, matches: null, applied: $('#filter').value});
    touch('table', 'layout', 'stats');
    return;
  }
  const found = {visible: [], matches: new Map()};
  filterSlice(s, found, 0, pass);
}

function filterSlice(s, found, from, pass) {
  if (pass !== filterPass) return;
  let i = from;
  for (const until = performance.now() + SLICE_MS; i < s.rows.length; i++) {
    if (state.filter.test(s.rows[i])) keepMatch(s.rows[i], found);
    if (i % 500 === 499 && performance.now() > until) break;
  }
  if (i < s.rows.length) {
    setTimeout(() => filterSlice(s, found, i + 1, pass));
    return;
  }
  Object.assign(state, found, {applied: $('#filter').value});
  touch('table', 'layout', 'axis', 'stats');
}

function keepMatch(row, {visible, matches}) {
  visible.push(row);
  const node = row.type !== 'stderr' && row.instance?.node.id;
  if (node) matches.set(node, (matches.get(node) || 0) + 1);
}

function refilterSoon() {
  if (!state.filter || filterTimer) return;
  filterTimer = setTimeout(() => {
    filterTimer = 0;
    refilter();
  }, 400);
}

const shownRows = () => state.visible ?? state.session?.rows ?? [];

// ---- hub ----------------------------------------------------------------------------------------------------------

/** One API call. Returns {status, body}; status 0 means the hub did not answer. */
async function api(method, path, body) {
  const headers = authorised(body && {'Content-Type': 'application/json'});
  try {
    const answer = await fetch(path, {method, headers, body: body && JSON.stringify(body)});
    if (answer.status === 401) lock('refused');
    const text = await answer.text();
    return {status: answer.status, body: text ? JSON.parse(text) : null};
  } catch (problem) {
    return {status: 0, body: {error: {code: 'no-hub', message: `the hub did not answer (${problem.message})`}}};
  }
}

const authorised = more => ({Authorization: `Bearer ${state.token}`, ...more});

const complaint = body => body?.error?.message || body?.message || body?.error || 'the hub refused without a reason';

let stream = null;                   // AbortController of the open stream; a newer one ends the older
let attempts = 0;

/** Follow the hub until another call of follow() takes over. The stream begins with the current state, so nothing
    old survives. */
async function follow() {
  stream?.abort();
  const own = new AbortController();
  stream = own;
  while (!own.signal.aborted) {
    const ended = await readStream(own).catch(problem => problem.message);
    if (own.signal.aborted || document.body.classList.contains('locked')) return;
    lose(ended);
    await new Promise(resolve => setTimeout(resolve, RETRY_MS[Math.min(attempts++, RETRY_MS.length - 1)]));
  }
}

async function readStream(own) {
  const at = state.session ? `?run=${encodeURIComponent(state.session.run.run)}&after=${state.session.seq}` : '';
  const answer = await fetch('/api/stream' + at, {headers: authorised(), signal: own.signal, cache: 'no-store'});
  if (answer.status === 401) lock('refused');
  if (answer.status === 404) openRun(null);
  if (!answer.ok) return `the hub answered ${answer.status}`;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  const context = {fresh: true};
  let rest = '';
  for (let until = performance.now() + SLICE_MS;;) {
    const {done, value} = await reader.read();
    if (done) return 'the hub closed the connection';
    rest = takeItems(rest + value, context, own);
    if (performance.now() < until) continue;
    await breathe();
    until = performance.now() + SLICE_MS;
  }
}

/** Let the browser paint: reads that are already there would otherwise follow each other without a break. */
const breathe = () => new Promise(resolve => setTimeout(resolve));

/** Take the complete items off the front of the stream's text; returns what is left. */
function takeItems(text, context, own) {
  let from = 0;
  for (let end; (end = text.indexOf('\n\n', from)) >= 0 && !own.signal.aborted; from = end + 2) {
    let type = 'message';
    let data = '';
    for (const line of text.slice(from, end).split('\n')) {
      if (line.startsWith('event:')) type = line.slice(6).trim();
      else if (line.startsWith('data:')) data += line.slice(5);
    }
    if (data) takeItem(type, JSON.parse(data), context);
  }
  return text.slice(from);
}

function takeItem(type, item, context) {
  if (context.fresh) {
    context.fresh = false;
    beginAnew();
  }
  ITEMS[type]?.(item);
}

const ITEMS = {
  run: takeRun,
  hold: takeHold,
  released: item => {
    releasedElsewhere(item);
    state.holds.delete(item.hold);
    holdsChanged();
  },
  breakpoints: item => {
    Object.assign(state, {breakpoints: item.breakpoints, mode: item.mode});
    touch('chips', 'graph');
  },
  mode: item => {
    state.mode = item.mode;
    touch('chips');
  },
  event: item => {
    if (item.run !== state.session?.run.run) return;
    applyEvent(state.session, item);
    refilterSoon();
  },
};

function takeHold(hold) {
  state.stale.holds.delete(hold.hold);
  state.holds.set(hold.hold, hold);
  announceHold(hold);
  holdsChanged();
}

function takeRun(run) {
  state.stale.runs.delete(run.run);
  touch('runs');
  if (run.deleted) {
    state.runs.delete(run.run);
    if (state.session?.run.run === run.run) openRun(null);
    return;
  }
  state.runs.set(run.run, run);
  const s = state.session;
  if (s?.run.run === run.run) {
    s.run = run;
    touch('head', 'graph', 'table');
  }
  chooseRunSoon();
}

let sweeping = 0;

/** The stream begins with all runs and holds: what it does not name is gone. */
function beginAnew() {
  attempts = 0;
  state.stale = {runs: new Set(state.runs.keys()), holds: new Set(state.holds.keys())};
  setConnection('live');
  clearTimeout(sweeping);
  sweeping = setTimeout(sweep, SETTLE_MS);
}

/** Once the hub has said what it has: forget the rest, also a run on screen or in a link. */
function sweep() {
  if (state.connection !== 'live') return;
  for (const run of state.stale.runs) state.runs.delete(run);
  for (const hold of state.stale.holds) state.holds.delete(hold);
  if (state.stale.holds.size) holdsChanged();
  touch('runs');
  if (state.session && !state.runs.has(state.session.run.run)) openRun(null);
  if (!state.wanted.run) return;
  notice('The linked run is not kept any more.');
  state.wanted.run = null;
  chooseRun();
}

function lose(why) {
  state.holds.clear();
  setConnection('lost', why);
  holdsChanged();
}

function setConnection(connection, why) {
  state.connection = connection;
  const lost = connection === 'lost';
  document.body.classList.toggle('lost', lost);
  $('#banner').hidden = !lost;
  $('#banner').textContent = !lost ? ''
    : `The hub at ${location.host} is gone (${why}). Held calls were let go. `
      + 'Trying again; relays come back by themselves.';
  $('#connection').replaceChildren(icon(lost ? 'lost' : 'ok', lost ? 'is-err' : 'is-ok'), connection);
  touch('runs', 'head', 'graph', 'table');
}

let choosing = 0;
function chooseRunSoon() {
  if (choosing) return;
  choosing = setTimeout(() => {
    choosing = 0;
    chooseRun();
  });
}

/** Without a choice by a person: the linked run, else one with a hold, else the newest live one, else the newest. A
    session that ended stays on screen until another one starts. */
function chooseRun() {
  const linked = state.wanted.run, shown = state.session?.run;
  if (linked && !state.runs.has(linked)) return;
  if (linked) {
    Object.assign(state, {picked: true, wanted: {...state.wanted, run: null}});
    openRun(linked);
    return;
  }
  if (shown && (state.picked || isLive(shown))) return;
  const runs = sortedRuns(), since = shown?.started ?? 0;
  const isNew = run => isLive(run) && run.attached !== false && run.started > since;
  const best = shown ? runs.find(isNew) : runs.find(run => run.held) || runs.find(isNew) || runs[0];
  if (best) openRun(best.run);
  touch('head');
}

/** Show a run (or none) from its first event on. */
function openRun(id) {
  const run = id && state.runs.get(id);
  const selected = {node: state.wanted.node ?? null, instance: null, row: null};
  Object.assign(state, {
    session: run ? newSession(run) : null, selected, visible: null, matches: null,
    axis: null, follow: true, unfolded: false,
  });
  state.wanted.node = null;
  $('#table').scrollTop = 0;
  cards.clear();
  $('#plane').replaceChildren();
  touch('runs', 'head', 'layout', 'table', 'axis', 'side', 'stats', 'holds');
  refilter();
  writeHash();
  follow();
}

/** The frame of a row; text that was let go to save memory is fetched again. */
async function frameOf(row) {
  if (row.frame !== undefined || !row.away || state.recorded) return row.frame;
  const {body} = await api('GET',
      `/api/runs/${encodeURIComponent(state.session.run.run)}/events?after=${row.seq - 1}&limit=1`);
  return body?.events?.[0]?.frame;
}

// ---- DOM ----------------------------------------------------------------------------------------------------------

const $ = selector => document.querySelector(selector);
const $$ = selector => [...document.querySelectorAll(selector)];
const SVG = 'http://www.w3.org/2000/svg';

/** An element: attributes (onX are listeners, false and null are left out), then children; strings become text,
    never markup. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.flat().filter(child => child !== null && child !== undefined && child !== false));
  return node;
}

function icon(name, look = '') {
  const svg = document.createElementNS(SVG, 'svg');
  const use = document.createElementNS(SVG, 'use');
  svg.setAttribute('class', `icon ${look} ${name === 'running' ? 'turn' : ''}`);
  svg.setAttribute('aria-hidden', 'true');
  use.setAttribute('href', `#i-${name}`);
  svg.append(use);
  return svg;
}

/** A status as sign and word. */
function sign(status, word) {
  const [name, look, plain] = SIGNS[status] || SIGNS.idle;
  return el('span', {class: `state ${look}`}, icon(name), el('span', {}, word ?? plain));
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setSign(node, status, word) {
  const key = `${status} ${word}`;
  if (node.dataset.sign === key) return;
  if (!status) node.replaceChildren();
  else if (node.dataset.sign?.split(' ')[0] === status) setText(node.lastChild, word);
  else node.replaceChildren(...sign(status, word).childNodes);
  node.dataset.sign = key;
  node.className = `state ${SIGNS[status]?.[1] ?? ''}`;
}

function notice(text, look = '') {
  const box = el('div', {class: `notice ${look}`}, el('span', {class: 'grow'}, seen(text)),
      el('button', {class: 'quiet', 'aria-label': 'Dismiss', onclick: () => box.remove()}, icon('close')));
  $('#notices').append(box);
  if ($$('.notice').length > 4) $('.notice').remove();
  setTimeout(() => box.remove(), look ? 15000 : 6000);
}

/** Put text on the clipboard; a page opened from a file may lack the clipboard API. */
async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const box = el('textarea', {class: 'unseen'});
    box.value = text;
    (document.querySelector('dialog[open]') || document.body).append(box);
    box.select();
    document.execCommand('copy');
    box.remove();
  }
  notice(`Copied ${what}.`);
}

/** A handle that drags a size along one axis: `edge` turns a pointer event into pixels, `set` applies them. Arrow
    keys work too. */
function splitter(handle, edge, set) {
  const apply = pixels => {
    handle.setAttribute('aria-valuenow', Math.round(pixels));
    set(Math.round(pixels));
  };
  handle.addEventListener('pointerdown', event => {
    handle.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  handle.addEventListener('pointermove', event => {
    if (handle.hasPointerCapture(event.pointerId)) apply(edge(event));
  });
  handle.addEventListener('keydown', event => {
    const step = {ArrowUp: -24, ArrowDown: 24, ArrowLeft: 24, ArrowRight: -24}[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    apply(Number(handle.getAttribute('aria-valuenow')) + step);
  });
}

// ---- runs ---------------------------------------------------------------------------------------------------------

const sortedRuns = () => [...state.runs.values()].sort((a, b) => isLive(b) - isLive(a) || b.started - a.started);
const runButtons = new Map();

function paintRuns() {
  const runs = sortedRuns();
  for (const id of runButtons.keys()) if (!state.runs.has(id)) runButtons.delete(id);
  const focused = document.activeElement?.closest('#runs .run')?.dataset.run;
  const part = (title, some) => some.length ? [el('h2', {}, title), el('ul', {}, some.map(runItem))] : [];
  const none = runs.length ? [] : [el('h2', {}, 'Runs'), el('p', {class: 'run soft'}, 'none yet')];
  const live = runs.filter(isLive), earlier = runs.filter(run => !isLive(run));
  $('#runs').replaceChildren(...part('Live', live), ...part('Earlier', earlier), ...none);
  if (focused) runButtons.get(focused)?.focus();
}

const runItem = run => el('li', {}, runButton(run));

/** The button of one run; kept while nothing it says changes, so that 200 runs cost nothing when one of them moves. */
function runButton(run) {
  const current = run.run === state.session?.run.run, facts = runFacts(run), name = oneLine(run.label || run.run);
  const words = facts.map(part => part.textContent ?? part).join('');
  const key = JSON.stringify([current, name, run.held, run.status, run.attached, words]);
  const known = runButtons.get(run.run);
  if (known?.dataset.key === key) return known;
  const fresh = el('button', {class: 'run', 'aria-current': String(current), 'data-run': run.run, 'data-key': key,
    title: `${name}, ${words}`, onclick: () => pickRun(run.run)},
    el('span', {class: 't'}, el('span', {}, name), runSign(run)), el('span', {class: 's'}, facts));
  runButtons.set(run.run, fresh);
  return fresh;
}

function runFacts(run) {
  const when = isLive(run) ? ago(Date.now() - run.started) : timeOfDay(run.started);
  const who = run.client?.name ? ` · ${oneLine(run.client.name, 24)}` : '';
  const isDead = /before answering/.test(run.error?.message);
  const calls = isDead ? 'died before answering' : plural(run.calls ?? 0, 'call');
  const errors = run.errors ? el('span', {class: 'is-err'}, `, ${plural(run.errors, 'error')}`) : '';
  return [`${when} · ${calls}`, errors, who];
}

function runSign(run) {
  if (isLive(run) && run.held) return sign('held', String(run.held));
  if (isLive(run)) return run.attached === false ? sign('lost', 'detached') : sign('ok', 'live');
  const status = Object.hasOwn(SIGNS, run.status) ? run.status : 'error';
  return sign(status, SIGNS[status][2]);
}

function pickRun(id) {
  state.picked = true;
  $('#runs').classList.remove('open');
  $('#showruns').setAttribute('aria-expanded', 'false');
  if (id !== state.session?.run.run) openRun(id);
}

function stepRun(by) {
  const runs = sortedRuns();
  const at = runs.findIndex(run => run.run === state.session?.run.run);
  const next = runs[Math.max(0, Math.min(runs.length - 1, at + by))];
  if (next) pickRun(next.run);
}

function paintHead() {
  const s = state.session;
  $('#session').hidden = $('#graph').hidden = $('#tablebox').hidden = $('#split').hidden = !s;
  $('#empty').hidden = !!s || state.connection !== 'live' || state.runs.size > 0;
  if (!s) $('#side').hidden = true;
  else paintSession(s);
}

function paintSession(s) {
  const {run} = s, name = oneLine(run.label || run.run), command = (s.command || []).join(' ');
  const facts = [run.protocolVersion && `protocol ${oneLine(run.protocolVersion, 20)}`,
    run.client?.name && `client ${peerName(run.client)}`, run.server?.name && `server ${peerName(run.server)}`];
  const key = JSON.stringify([run.run, name, command, facts, run.status, run.attached, s.gaps]);
  if ($('#session').dataset.key === key) return;
  $('#session').dataset.key = key;
  $('#session').replaceChildren(...[
    el('h1', {}, name), runSign({...run, held: 0}),
    command && el('code', {title: oneLine(command, 2000)}, oneLine(command, 300)),
    ...facts.map(fact => fact && el('span', {}, fact)),
    s.gaps && el('span', {class: 'tag is-held', title: 'Rows marked “gap” show where'},
      s.missing ? `${plural(s.missing, 'event')} missing` : 'part of the history is missing'),
    !state.recorded && sessionMenu(),
  ].filter(Boolean));
}

const peerName = peer => `${oneLine(peer.name, 40)} ${oneLine(peer.version ?? '', 20)}`.trim();

function sessionMenu() {
  const list = el('div', {hidden: true},
    el('button', {onclick: copyLink}, 'Copy link'),
    el('button', {onclick: () => exportRun('html')}, 'Export as one page'),
    el('button', {onclick: () => exportRun('jsonl')}, 'Export as JSON lines'),
    el('button', {class: 'danger', onclick: deleteRun}, 'Delete this run…'));
  const show = open => {
    list.hidden = !open;
    button.setAttribute('aria-expanded', String(open));
  };
  const button = el('button', {id: 'sessionmenu', 'aria-expanded': 'false'}, 'Export ▾');
  button.addEventListener('click', () => show(list.hidden));
  list.addEventListener('click', () => show(false));
  return el('span', {class: 'menu acts'}, button, list);
}

function closeMenus() {
  for (const list of $$('.menu > div')) list.hidden = true;
  for (const button of $$('.menu > button')) button.setAttribute('aria-expanded', 'false');
}

async function exportRun(format) {
  const {run} = state.session.run;
  const path = `/api/runs/${encodeURIComponent(run)}/export?format=${format}`;
  const answer = await fetch(path, {headers: authorised()}).catch(() => null);
  if (!answer?.ok) {
    notice(`Not exported: the hub ${answer ? `answered ${answer.status}` : 'did not answer'}.`, 'is-err');
    return;
  }
  const url = URL.createObjectURL(await answer.blob());
  el('a', {href: url, download: `mcp-relay-${run.replace(/[^\w.-]+/g, '_').slice(0, 60)}.${format}`}).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

async function deleteRun() {
  const {run} = state.session;
  if (!confirm(`Delete the record of ${oneLine(run.label || run.run, 60)}? This cannot be undone.`)) return;
  const {status, body} = await api('DELETE', `/api/runs/${encodeURIComponent(run.run)}`);
  if (status !== 204) {
    notice(`Not deleted: ${complaint(body)}`, 'is-err');
    return;
  }
  state.runs.delete(run.run);
  state.picked = false;
  openRun(null);
}

// ---- holds --------------------------------------------------------------------------------------------------------

const openHolds = () => [...state.holds.values()].sort((a, b) => a.since - b.since);

/** The hold the bar and the keys act on: the one the person turned to, else the oldest of the run on screen, else
    the oldest. */
function focusedHold() {
  return state.holds.get(state.holdTurn) || openHolds().find(hold => hold.run === state.session?.run.run)
      || openHolds()[0];
}

const applies = (action, hold) => ({retry: hold.point !== 'before', edit: hold.editable})[action.id] ?? true;
const actionButtons = hold => ACTIONS.filter(action => applies(action, hold)).map(action => actionButton(action, hold));

function actionButton(action, hold) {
  return el('button', {class: action.look, title: action.tip, 'data-action': action.id,
    disabled: state.busy.has(hold.hold), onclick: () => act(action.id, hold)},
  action.label, action.key && el('kbd', {}, action.key.toUpperCase()));
}

function holdsChanged() {
  if (state.holdTurn && !state.holds.has(state.holdTurn)) state.holdTurn = null;
  if (state.editor && !state.holds.has(state.editor.hold.hold)) editorLostHold();
  const oldest = openHolds()[0];
  document.title = state.holds.size ? `▮▮ ${state.holds.size} held · mcp-relay`
      : `${state.session ? oneLine(state.session.run.label || '', 40) + ' · ' : ''}mcp-relay`;
  setFavicon(oldest ? '#e09a00' : state.connection === 'lost' ? '#8a94a0' : '#2457d6', !!oldest);
  touch('holds', 'graph', 'layout', 'table', 'side');
}

/** The favicon tells of a hold by shape and colour. It is made here from two known values, never from a peer's
    text. */
function setFavicon(colour, held) {
  const sign = held ? '<path fill="white" d="M4.5 4h2.6v8H4.5zM8.9 4h2.6v8H8.9z"/>'
      : '<path stroke="white" stroke-width="1.6" d="M2 8h3.5M10.5 8H14M5.5 5h5v6h-5z" fill="none"/>';
  const back = `<rect width="16" height="16" rx="4" fill="${colour}"/>`;
  const picture = `<svg xmlns="${SVG}" viewBox="0 0 16 16">${back}${sign}</svg>`;
  const url = 'data:image/svg+xml,' + encodeURIComponent(picture);
  if ($('#favicon').getAttribute('href') !== url) $('#favicon').setAttribute('href', url);
}

const holdName = hold => oneLine(hold.name || hold.method || hold.node, 80);
/** Direction of the request that a hold is about, also when its answer is held. */
const asked = hold => state.session?.instances.get(hold.instance)?.direction ?? hold.direction;
const receiver = hold => (hold.point === 'before') === (asked(hold) === 'client->server') ? 'server' : 'client';
const HOLD_PLACES = {
  before: 'is held before it reaches',
  after: 'has answered; the answer is held before it reaches',
  error: 'has failed; the answer is held before it reaches',
};
const holdWhere = hold => `${HOLD_PLACES[hold.point]} the ${receiver(hold)}`;

const announced = new Set();
function announceHold(hold) {
  if (announced.has(hold.hold)) return;
  announced.add(hold.hold);
  $('#live').textContent = `${holdName(hold)} ${holdWhere(hold)}. ${holdReason(hold)}`;
  if (!state.selected.node && !state.wanted.node) state.wanted.hold ??= hold.hold;
}

const LOOP_REASONS = {
  repeat: loop => `loop: called ${loop.repeats} times in a row with the same arguments`,
  cycle: loop => `loop: the same ${loop.period} calls came round ${loop.repeats} times with the same results`,
  'error-repeat': loop => `loop: failed ${loop.repeats} times in a row with the same error`,
};

/** Why a hold was taken, in words. */
function holdReason(hold) {
  if (hold.reason === 'loop') return LOOP_REASONS[hold.loop?.kind]?.(hold.loop) ?? 'loop: the same call over and over';
  if (hold.reason === 'step') return 'step mode holds every request';
  if (hold.reason === 'error') return `pause on error: ${holdFailure(hold)}`;
  return hold.point === 'before' ? 'a breakpoint holds it' : 'a breakpoint holds the answer';
}

function holdFailure(hold) {
  const text = frameText(hold.frame) ?? '';
  const message = textAt(text, 'error', 'message') ?? textAt(text, 'result', 'content', 0, 'text');
  return message?.startsWith('"') ? oneLine(decoded(message), 140) : 'the call failed';
}

/** Only a request of the client has somebody with a time limit behind it. */
function patience(hold) {
  if (asked(hold) !== 'client->server' || isMessage(hold)) return '';
  return `the client may give up at about ${minutes(CLIENT_PATIENCE_S * 1000)}`;
}

function paintHolds() {
  const bar = $('#holdbar'), hold = focusedHold(), holds = openHolds();
  const isHere = hold && hold.run === state.session?.run.run;
  const ids = holds.map(other => other.hold);
  const key = hold ? JSON.stringify([hold.hold, ids, [...state.busy], isHere]) : '';
  bar.hidden = !hold;
  if (bar.dataset.key === key) return;
  bar.dataset.key = key;
  bar.replaceChildren(...(hold ? holdParts(hold, holds, isHere) : []));
}

function holdParts(hold, holds, isHere) {
  const where = isHere ? '' : `in ${oneLine(state.runs.get(hold.run)?.label || hold.run, 40)}`;
  const why = [where, holdReason(hold), patience(hold)].filter(Boolean).map(part => `· ${part} `).join('');
  return [
    el('span', {class: 'age'}, icon('held'), el('span', {'data-since': hold.since}, minutes(Date.now() - hold.since))),
    el('span', {class: 'what'}, el('button', {title: 'Show it', onclick: () => showHold(hold)}, holdName(hold)),
      ` ${holdWhere(hold)} `, el('span', {class: 'why'}, why)),
    holds.length > 1 ? turns(hold, holds) : '',
    el('span', {class: 'acts'}, actionButtons(hold)),
  ];
}

function turns(hold, holds) {
  const at = holds.findIndex(other => other.hold === hold.hold);
  const turn = (word, by, text) => el('button', {class: 'quiet', 'aria-label': `${word} held call`,
    onclick: () => showHold(holds[(at + by + holds.length) % holds.length])}, text);
  const place = `${at + 1} of ${holds.length} held`;
  return el('span', {class: 'turns'}, turn('Previous', -1, '‹'), place, turn('Next', 1, '›'));
}

/** Turn the bar to a hold and show its call. */
function showHold(hold) {
  state.holdTurn = hold.hold;
  if (hold.run !== state.session?.run.run && state.runs.has(hold.run)) {
    state.wanted.hold = hold.hold;
    pickRun(hold.run);
  } else selectInstance(state.session?.instances.get(hold.instance), true);
  touch('holds');
}

function nextHold() {
  const holds = openHolds();
  const current = focusedHold();
  if (!current) return;
  const shown = state.selected.instance?.id === current.instance && current.run === state.session?.run.run;
  showHold(shown ? holds[(holds.indexOf(current) + 1) % holds.length] : current);
}

/** Carry out one action on one hold: the hold is named, so a later one is never released by mistake. */
function act(id, hold) {
  if (id === 'inject' || id === 'edit') openEditor(id, hold);
  else if (id === 'step') stepOver(hold);
  else release(hold, {action: id});
}

async function stepOver(hold) {
  if (await setMode('step')) release(hold, {action: 'continue'});
}

/** POST a release. Resolves to null when the hold is gone, else to the sentence of a refusal. */
async function release(hold, body) {
  if (state.busy.has(hold.hold)) return null;
  state.busy.add(hold.hold);
  state.mine.add(hold.hold);
  touch('holds', 'graph');
  const answer = await api('POST', `/api/holds/${encodeURIComponent(hold.hold)}`, {...body, by: 'page'});
  state.busy.delete(hold.hold);
  touch('holds', 'graph');
  return released(hold, answer);
}

function released(hold, {status, body}) {
  if (status === 200) {
    state.holds.delete(hold.hold);
    holdsChanged();
    return null;
  }
  state.mine.delete(hold.hold);
  if (status === 409 && body.outcome === 'taken') {
    notice(`${holdName(hold)} was already released by ${whoReleased(body.by)} (${body.action}).`);
    return null;
  }
  if (status === 404) {
    notice(`${holdName(hold)} is not held any more.`);
    return null;
  }
  const message = complaint(body);
  if (!state.editor) notice(`${holdName(hold)} is still held: ${message}`, 'is-err');
  return message;
}

function releasedElsewhere(item) {
  const hold = state.holds.get(item.hold);
  if (!hold || state.mine.delete(item.hold)) return;
  notice(`${holdName(hold)} was released by ${whoReleased(item.by)} (${item.action}).`);
}

// ---- breakpoints --------------------------------------------------------------------------------------------------

const sameBreakpoint = (a, b) => (a.kind ?? null) === (b.kind ?? null) && (a.name ?? null) === (b.name ?? null)
    && a.point === b.point;
const findBreakpoint = wanted => state.breakpoints.find(breakpoint => sameBreakpoint(breakpoint, wanted));
const nodeBreakpoint = (node, point) => ({kind: node.kind, name: node.name, point});
const isBreakable = node => node && !isGroup(node) && !['mcp:stdout-noise', 'mcp:unmatched'].includes(node.id);

/** Set a breakpoint, or remove it when it is set. The stream tells every tab. */
async function toggleBreakpoint(wanted) {
  const there = findBreakpoint(wanted);
  const {status, body} = there ? await api('DELETE', `/api/breakpoints/${encodeURIComponent(there.id)}`)
    : await api('POST', '/api/breakpoints', wanted);
  if (status >= 200 && status < 300) return;
  notice(`The breakpoint was not ${there ? 'removed' : 'set'}: ${complaint(body)}`, 'is-err');
}

/** Resolves to whether the hub took the mode. */
async function setMode(mode) {
  const {status, body} = await api('PUT', '/api/mode', {mode});
  const isSet = status >= 200 && status < 300;
  if (!isSet) notice(`The mode was not changed: ${complaint(body)}`, 'is-err');
  return isSet;
}

function toggleStop(node, point) {
  if (state.recorded || !isBreakable(node)) return;
  toggleBreakpoint(nodeBreakpoint(node, point));
}

function chip(breakpoint) {
  const place = [breakpoint.kind, breakpoint.name].filter(part => part ?? false).join(':') || 'every call';
  const words = {before: 'before', after: 'after', error: 'on error of'}[breakpoint.point], name = oneLine(place, 60);
  return el('span', {class: 'chip', title: oneLine(`${words} ${place}`)}, words, el('b', {}, name),
    el('button', {class: 'quiet', 'aria-label': `Remove breakpoint ${words} ${name}`,
      onclick: () => toggleBreakpoint(breakpoint)}, icon('close')));
}

function paintChips() {
  const all = {point: 'before'}, errors = {point: 'error'};
  $('#pauseall').setAttribute('aria-pressed', String(!!findBreakpoint(all)));
  $('#pauseerror').setAttribute('aria-pressed', String(!!findBreakpoint(errors)));
  for (const button of $$('[data-mode]')) {
    button.setAttribute('aria-pressed', String(button.dataset.mode === state.mode));
  }
  const others = state.breakpoints.filter(one => !sameBreakpoint(one, all) && !sameBreakpoint(one, errors));
  $('#chips').replaceChildren(...others.map(chip));
  touch('side', 'facts');
}

// ---- graph --------------------------------------------------------------------------------------------------------
// Session and protocol stand in the left column, work nodes in columns right of it. Edges run in the gutters between
// columns and in the strip above them, so they cannot cross a card.

const CARD = {width: 208, height: 76, held: 138, tall: 167, gapX: 40, gapY: 18, top: 18};
const cards = new Map();             // node id -> {element, parts}

/** Status of a card: what is going on now, else how the last call ended. */
function nodeStatus(node) {
  if (!state.recorded && [...node.held].some(instance => instance.held && isLive(state.session.run))) return 'held';
  if (isGroup(node)) return groupStatus(node);
  if (node.running.size && isLive(state.session.run)) return 'running';
  return node.last ? statusOf(node.last) : 'idle';
}

function groupStatus(node) {
  const {run} = state.session;
  if (node.id === 'mcp:session') {
    if (isLive(run)) return 'running';
    return run.status === 'ok' && node.last?.status === 'error' ? 'error' : run.status;
  }
  const children = childrenOf(node.id);
  if (children.some(child => nodeStatus(child) === 'held')) return 'held';
  return children.some(child => child.errors) ? 'error' : 'ok';
}

const childrenOf = id => [...state.session.nodes.values()].filter(node => node.parent === id);
const passes = node => !state.matches || state.matches.has(node.id);

/** The nodes to draw, by place: {session, protocol, work, calls (protocol's children when unfolded), more}. */
function graphNodes() {
  const all = [...state.session.nodes.values()].filter(node => !isGroup(node) && passes(node));
  const work = all.filter(node => node.parent !== 'mcp:protocol');
  const calls = state.unfolded ? all.filter(node => node.parent === 'mcp:protocol') : [];
  const most = nodes => nodes.length <= MAX_CARDS ? nodes : urgentFirst(nodes).slice(0, MAX_CARDS);
  return {
    session: state.session.nodes.get('mcp:session'), protocol: state.session.nodes.get('mcp:protocol'),
    work: most(work), calls: most(calls),
    more: Math.max(0, work.length - MAX_CARDS) + Math.max(0, calls.length - MAX_CARDS),
  };
}

const URGENCY = {held: 0, running: 1, error: 2};
const urgency = node => URGENCY[nodeStatus(node)] ?? 3;
const urgentFirst = nodes => [...nodes].sort((a, b) => urgency(a) - urgency(b) || b.count - a.count);

/** Rectangles of nodes in columns whose top left corner is (x, y); a tall card pushes only its own column down. */
function placeGrid(nodes, x, y, columns) {
  const places = new Map();
  const bottoms = Array(columns).fill(y);
  nodes.forEach((node, i) => {
    const column = i % columns;
    const h = cardHeight(node);
    places.set(node, {x: x + column * (CARD.width + CARD.gapX), y: bottoms[column], w: CARD.width, h});
    bottoms[column] += h + CARD.gapY;
  });
  return {places, bottom: Math.max(...bottoms)};
}

/** A held answer of a tool can be retried and edited as well: its buttons need a third line. */
const isTall = node => node.kind === 'tool' && [...node.held][0]?.held?.point !== 'before';

function cardHeight(node) {
  if (nodeStatus(node) !== 'held') return CARD.height;
  return isTall(node) ? CARD.tall : CARD.held;
}

/** Path of one edge: out of the parent's right side, up its gutter to the strip, along it, down, into the child. */
function edgePath(parent, child, strip) {
  const x0 = parent.x + parent.w;
  const y0 = parent.y + 27;
  const first = x0 + CARD.gapX / 2;
  const last = child.x - CARD.gapX / 2;
  const y1 = child.y + 27;
  const r = Math.min(6, Math.abs(y1 - (first === last ? y0 : strip)) / 2);
  const from = first === last ? y0 : strip;
  const turn = y1 > from ? r : -r;
  const lead = first === last ? `M${x0} ${y0}H${last}` : `M${x0} ${y0}H${first}V${strip}H${last}`;
  return y1 === from ? `${lead}H${child.x}` : `${lead}V${y1 - turn}Q${last} ${y1} ${last + r} ${y1}H${child.x}`;
}

const edgeStub = child => `M${child.x - CARD.gapX / 2 + 6} ${child.y + 27}H${child.x}`;

/** Positions of all cards and the paths of all edges, for a width. */
function layoutGraph(nodes, width) {
  const across = CARD.width + CARD.gapX, right = 2 + across;
  const columns = Math.max(1, Math.floor((width - CARD.width - 8) / across));
  const session = {x: 2, y: CARD.top, w: CARD.width, h: CARD.height};
  const work = placeGrid(nodes.work, right, CARD.top, columns);
  const below = session.y + session.h + CARD.gapY, bottom = Math.max(work.bottom, below);
  const protocol = {x: 2, y: nodes.calls.length ? bottom + 14 : below, w: CARD.width, h: CARD.height};
  const calls = placeGrid(nodes.calls, right, protocol.y, columns);
  const places = new Map([[nodes.session, session], ...work.places]), edges = edgesTo(work, session, 8);
  if (nodes.protocol) {
    for (const [node, place] of [[nodes.protocol, protocol], ...calls.places]) places.set(node, place);
    const down = `M${session.x + 22} ${session.y + session.h}V${protocol.y}`;
    edges.push([nodes.protocol, down, down], ...edgesTo(calls, protocol, protocol.y - 12));
  }
  const used = Math.min(columns, Math.max(nodes.work.length, nodes.calls.length));
  const height = Math.max(bottom, calls.bottom, protocol.y + CARD.height + CARD.gapY);
  return {places, edges, width: right + used * across, height};
}

/** [node, path, coloured last stretch] for each card of a grid. */
function edgesTo({places}, parent, strip) {
  return [...places].map(([node, place]) => [node, edgePath(parent, place, strip), edgeStub(place)]);
}

function paintLayout() {
  if (!state.session?.nodes.has('mcp:session') || state.view === 'table') {
    $('#plane').replaceChildren();
    cards.clear();
    return;
  }
  const nodes = graphNodes(), layout = layoutGraph(nodes, $('#graph').clientWidth - 16);
  const kept = new Set([...layout.places.keys()].map(node => node.id));
  for (const [id, card] of cards) {
    if (kept.has(id)) continue;
    card.element.remove();
    cards.delete(id);
  }
  for (const [node, place] of layout.places) placeCard(node, place);
  paintEdges(layout);
  paintMore(nodes.more, layout.height);
  paintGraph();
  if (state.revealed) revealCard(state.revealed);
  state.revealed = null;
}

function paintEdges(layout) {
  $('#plane svg.edges')?.remove();
  $('#plane').prepend(edgesSvg(layout));
  $('#plane').style.height = `${layout.height}px`;
  $('#plane').style.width = `${layout.width}px`;
}

function paintMore(more, y) {
  $('#plane .more')?.remove();
  if (!more) return;
  const note = el('p', {class: 'more'}, `${plural(more, 'more node')} not drawn; use the filter to see them.`);
  note.style.top = `${y}px`;
  $('#plane').append(note);
  $('#plane').style.height = `${y + 28}px`;
}

function edgesSvg(layout) {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('class', 'edges');
  svg.setAttribute('width', layout.width);
  svg.setAttribute('height', layout.height);
  svg.setAttribute('aria-hidden', 'true');
  svg.append(...layout.edges.map(([, path]) => edgeLine(path)),
      ...layout.edges.map(([node, , stub]) => edgeLine(stub, node.id)));
  return svg;
}

/** A neutral line, or the last stretch into a card, which takes the colour of the card's state. */
function edgeLine(path, node) {
  const line = document.createElementNS(SVG, 'path');
  line.setAttribute('d', path);
  if (node) line.dataset.node = node;
  return line;
}

function placeCard(node, place) {
  const card = cards.get(node.id) || makeCard(node);
  Object.assign(card.element.style, {left: `${place.x}px`, top: `${place.y}px`});
  card.place = place;
}

/** What a card is, in a word: the kind, and for kind "custom" what the method says. */
function kindWord(node) {
  if (node.kind !== 'custom') return oneLine(node.kind, 20);
  if (isGroup(node)) return 'protocol';
  if (node.id === 'mcp:stdout-noise') return 'noise';
  return /^(notifications|elicitation|completion)\//.exec(node.name)?.[1].replace(/s$/, '') ?? 'request';
}

function makeCard(node) {
  const label = oneLine(node.name, node.id === 'mcp:session' ? 60 : 200);
  const part = look => el('span', {class: look});
  const parts = {
    count: part('count'), state: part('state'), failed: part('some is-err'), took: part('took'), acts: part('acts'),
    name: el('button', {class: 'n', title: oneLine(node.name, 500), tabindex: cards.size ? '-1' : '0',
      onclick: () => selectNode(node)}, label),
  };
  if (node.id === 'mcp:protocol') parts.fold = el('button', {class: 'fold', onclick: toggleFold});
  const points = isBreakable(node) && !state.recorded ? ['before', 'after'] : [];
  for (const point of points) parts[point] = stopButton(node, point);
  const kind = kindWord(node), {fold, before, after, count} = parts;
  const element = el('div', {class: 'card', 'data-node': node.id, role: 'group', 'aria-label': `${kind} ${label}`},
    el('div', {class: 'k'}, el('span', {class: 'grow'}, kind), fold, before, after, count),
    parts.name,
    el('div', {class: 'd'}, parts.state, parts.failed, parts.took), parts.acts);
  const card = {element, parts, node};
  cards.set(node.id, card);
  $('#plane').append(element);
  return card;
}

function stopButton(node, point) {
  return el('button', {class: 'stop', 'data-point': point, title: `Break ${point}`, 'aria-pressed': 'false',
    'aria-label': `Break ${point} ${oneLine(node.name, 60)}`, onclick: () => toggleStop(node, point)}, icon(point));
}

function toggleFold() {
  state.unfolded = !state.unfolded;
  touch('layout');
}

function paintGraph() {
  if (!state.session || state.view === 'table') return;
  for (const card of cards.values()) paintCard(card);
  for (const stub of $$('#plane path[data-node]')) {
    stub.setAttribute('class', edgeLook(state.session.nodes.get(stub.dataset.node)));
  }
}

const EDGE_LOOKS = {held: 'is-held', running: 'is-run', error: 'is-err', aborted: 'is-err', unanswered: 'is-err'};

const edgeLook = node => (node && EDGE_LOOKS[nodeStatus(node)]) || '';

function paintCard({element, parts, node}) {
  const status = nodeStatus(node);
  element.className = cardLook(node, status);
  setText(parts.count, cardCount(node));
  setSign(parts.state, status, cardWord(node, status));
  setText(parts.failed, failedWord(node, status));
  setText(parts.took, cardTook(node, status));
  for (const point of ['before', 'after']) {
    parts[point]?.setAttribute('aria-pressed', String(!!findBreakpoint(nodeBreakpoint(node, point))));
  }
  if (parts.fold) paintFold(parts.fold);
  paintCardActions(element, parts, node, status);
}

const looks = words => Object.keys(words).filter(word => words[word]).join(' ');

function cardLook(node, status) {
  return looks({card: true, 'is-idle': status === 'idle', folds: node.id === 'mcp:protocol',
      failed: FAILED.has(status), held: status === 'held' && !isGroup(node), tall: status === 'held' && isTall(node),
      selected: state.selected.node === node.id});
}

function paintFold(button) {
  button.replaceChildren(icon(state.unfolded ? 'unfolded' : 'folded'));
  button.setAttribute('aria-expanded', String(state.unfolded));
  button.setAttribute('aria-label', state.unfolded ? 'Fold protocol' : 'Open protocol');
}

function paintCardActions(element, parts, node, status) {
  const isItsHold = hold => hold.run === state.session.run.run && hold.node === node.id;
  const hold = status === 'held' && openHolds().find(isItsHold);
  const key = hold ? `${hold.hold} ${state.busy.has(hold.hold)}` : '';
  if (parts.acts.dataset.key === key) return;
  parts.acts.dataset.key = key;
  parts.acts.replaceChildren(...(hold ? actionButtons(hold) : []));
}

function cardCount(node) {
  if (node.id === 'mcp:session') return '';
  const inside = node.id === 'mcp:protocol' ? childrenOf(node.id) : [node];
  return grouped(inside.reduce((sum, child) => sum + child.count, 0));
}

function cardWord(node, status) {
  if (node.id === 'mcp:session') return status === 'running' ? 'running' : sessionEnd();
  if (node.id === 'mcp:protocol') return protocolWord(node, status);
  const held = status === 'held' && [...node.held][0];
  const others = node.held.size > 1 ? ` +${node.held.size - 1}` : '';
  if (held) return `held ${minutes(Date.now() - held.held.since)}${others}`;
  return statusWord(status, node.last, node.id === 'mcp:stdout-noise' ? 'noise' : '');
}

/** How many calls of a node failed, where its state alone does not say so. */
function failedWord(node, status) {
  if (isGroup(node) || node.errors <= (FAILED.has(status) ? 1 : 0)) return '';
  return `${grouped(node.errors)} failed`;
}

function protocolWord(node, status) {
  const failed = childrenOf(node.id).reduce((sum, child) => sum + child.errors, 0);
  if (status === 'held') return 'held inside';
  return failed ? `${grouped(failed)} failed` : 'handshake, lists';
}

function sessionEnd() {
  const s = state.session;
  const end = s.finished;
  const early = s.nodes.get('mcp:session')?.last?.errors.at(-1)?.name;
  if (s.run.status === 'abandoned') return 'relay vanished';
  if (end?.signal) return `signal ${oneLine(end.signal, 12)}`;
  if (early === 'SpawnError') return 'cannot start';
  return Number.isInteger(end?.exitCode) ? `exit ${end.exitCode}` : (SIGNS[s.run.status]?.[2] ?? s.run.status);
}

function cardTook(node, status) {
  const s = state.session;
  const now = nowAt(s);
  if (node.id === 'mcp:session') return s.started ? duration(isLive(s.run) ? Date.now() - s.started : s.at) : '';
  if (node.id === 'mcp:protocol') return '';
  if (status === 'running') return duration(totalTime([...node.running][0], now));
  if (status === 'held') return [...node.held][0]?.held?.point ?? '';
  return node.last?.notification || node.id === 'mcp:stdout-noise' ? '' : duration(node.last?.took);
}

/** Move among the cards with the arrow keys: the nearest one in that direction. */
function moveCard(key) {
  const from = [...cards.values()].find(card => card.element.contains(document.activeElement))
      || cards.get(state.selected.node);
  if (!from) {
    cards.values().next().value?.parts.name.focus();
    return;
  }
  const [dx, dy] = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[key];
  const near = card => {
    const x = card.place.x - from.place.x, y = card.place.y - from.place.y;
    const along = x * dx + y * dy, across = Math.abs(x * dy) + Math.abs(y * dx);
    return along > 0 ? along + across * 3 : Infinity;
  };
  const best = [...cards.values()].reduce((a, b) => (near(b) < near(a) ? b : a));
  if (near(best) < Infinity) focusCard(best);
}

function focusCard(card) {
  for (const other of cards.values()) other.parts.name.tabIndex = other === card ? 0 : -1;
  card.parts.name.focus();
  revealCard(card.node.id);
}

// ---- table --------------------------------------------------------------------------------------------------------
// Only the rows in sight exist as elements; they are filled again while scrolling.

const pool = [];
const CELLS = ['r num', 'r', 'dir', '', 'method', 'name', 'state', 'r', 'bars', 'r'];

function poolRow(slot) {
  if (pool[slot]) return pool[slot];
  const cells = CELLS.map(look => el('span', {class: look, role: 'gridcell'}));
  const choose = () => selectRow(pool[slot].row);
  const element = el('div', {class: 'row', role: 'row', onclick: choose, ondblclick: openSide}, cells);
  cells[5].append(el('b'), el('span', {class: 'args'}));
  $('#rows').append(element);
  pool[slot] = {element, cells, row: null};
  return pool[slot];
}

function paintTable() {
  if (!state.session || state.view === 'graph') return;
  const box = $('#table'), rows = shownRows(), fits = Math.ceil(box.clientHeight / ROW_HEIGHT) + 2;
  $('#rows').style.height = `${rows.length * ROW_HEIGHT}px`;
  box.setAttribute('aria-rowcount', rows.length + 1);
  if (state.follow) box.scrollTop = rows.length * ROW_HEIGHT;
  const first = Math.max(0, Math.min(Math.floor(box.scrollTop / ROW_HEIGHT), rows.length - fits + 1));
  const span = axisSpan(), now = nowAt(state.session);
  for (let slot = 0; slot < Math.max(fits, pool.length); slot++) {
    const row = slot < fits ? rows[first + slot] : undefined;
    paintRow(poolRow(slot), row, first + slot, span, now);
  }
  $('#nomatch').hidden = rows.length > 0 || !state.filter;
  paintTail(rows);
  paintActiveRow();
}

function paintTail(rows) {
  const below = rows.length - Math.floor(($('#table').scrollTop + $('#table').clientHeight - 27) / ROW_HEIGHT);
  $('#tail').hidden = state.follow || below < 2 || state.recorded;
  setText($('#tail'), `${plural(Math.max(0, below), 'row')} below ↓`);
}

function paintActiveRow() {
  const active = pool.find(slot => slot.row && slot.row === state.selected.row);
  if (active) $('#table').setAttribute('aria-activedescendant', active.element.id);
  else $('#table').removeAttribute('aria-activedescendant');
}

function paintRow(slot, row, position, span, now) {
  slot.row = row;
  slot.element.hidden = !row;
  if (!row) {
    slot.element.id = '';
    return;
  }
  const status = rowStatus(row);
  slot.element.style.top = `${position * ROW_HEIGHT}px`;
  slot.element.id = `row-${row.index}`;
  slot.element.className = rowLook(row, status);
  slot.element.setAttribute('aria-rowindex', position + 2);
  slot.element.setAttribute('aria-selected', String(state.selected.row === row));
  fillCells(slot.cells, row, status, now);
  paintBars(slot.cells[8], row, status, span, now);
}

function rowLook(row, status) {
  const chosen = state.selected.row;
  return looks({
    row: true, [row.type]: true, held: status === 'held', failed: FAILED.has(status), quiet: QUIET.has(row.type),
    selected: chosen === row, linked: chosen && chosen !== row && areLinked(row, chosen),
  });
}

const QUIET = new Set(['answer', 'stderr', 'notification', 'end']);

/** Whether two rows speak of the same call: request and answer, or a progress or cancel notification and its call. */
function areLinked(row, other) {
  const a = row.instance;
  const b = other.instance;
  if (!a || !b || isGroup(a.node) || isGroup(b.node)) return false;
  return a === b || a.related === b.id || b.related === a.id;
}

const ARROWS = {'client->server': '→ server', 'server->client': '← client'};
const ROW_WORDS = {stderr: 'stderr', noise: 'stdout', gap: 'gap', end: 'end'};

function fillCells(cells, row, status, now) {
  const {instance, type} = row, isCall = instance && (type === 'request' || type === 'answer');
  setText(cells[0], row.n ? String(row.n) : '–');
  setText(cells[1], (row.at / 1000).toFixed(3));
  setText(cells[2], ARROWS[row.direction] || ROW_WORDS[type] || '');
  setText(cells[3], isCall ? oneLine(instance.rpc ?? '', 40) : '');
  setText(cells[4], isCall || type === 'notification' ? methodWord(row) : '');
  const isNamed = type === 'request' && isWork(instance.node);
  setText(cells[5].firstChild, isNamed ? `${oneLine(instance.node.name, 120)} ` : '');
  setText(cells[5].lastChild, snippet(row));
  setSign(cells[6], status ?? '', status ? statusWord(status, instance, type) : '');
  setText(cells[7], type === 'request' ? milliseconds(totalTime(instance, now)) : '');
  setText(cells[9], rowBytes(row));
}

function methodWord({type, instance}) {
  const method = oneLine(instance.method ?? instance.node.name, 80);
  return type === 'answer' ? `↳ ${method}` : method;
}

const milliseconds = ms => (ms < 9.95 ? ms.toFixed(1) : grouped(ms));

function rowBytes(row) {
  row.size ??= sizeOf(row) ?? '';
  return row.size === '' ? '' : grouped(row.size);
}

function sizeOf(row) {
  if (row.type === 'noise') return row.instance.input?.bytes;
  return row.type === 'stderr' ? utf8Length(row.text) : frameBytes(row.frame);
}

/** One line about what a frame says; made when the row comes in sight, kept on the row. */
function snippet(row) {
  if (row.text !== undefined) row.snippet ??= oneLine(row.text.trimEnd(), 200);
  else if (row.frame !== undefined) row.snippet ??= frameSnippet(row, cut(frameText(row.frame) ?? '', 200000));
  return row.snippet ?? (row.instance?.hidden.length ? 'hidden' : '');
}

const ANSWER_PLACES = [['error', 'message'], ['result', 'content', 0, 'text'], ['result', 'contents', 0, 'text'],
  ['result', 'content', 'text'], ['result']];
const REQUEST_PLACES = [['params', 'arguments'], ['params', 'message'], ['params', 'data'],
  ['params', 'clientInfo', 'name'], ['params']];

function frameSnippet(row, text) {
  for (const place of row.type === 'answer' ? ANSWER_PLACES : REQUEST_PLACES) {
    const found = textAt(text, ...place);
    if (found === undefined) continue;
    return oneLine(found.startsWith('"') ? cut(decoded(found), 400) : cut(found, 400).replace(/\s+/g, ' '), 200);
  }
  return '';
}

function paintBars(cell, row, status, span, now) {
  const marks = row.type === 'request' ? stretches(row.instance, now) : [{from: row.at, to: row.at, tick: true}];
  marks.splice(12); // a call held more often than that is no picture in a column
  while (cell.children.length > marks.length) cell.lastChild.remove();
  while (cell.children.length < marks.length) cell.append(el('i'));
  marks.forEach((mark, i) => paintBar(cell.children[i], mark, span, FAILED.has(status)));
  cell.dataset.off = marks.at(-1).to < span.from ? 'left' : marks[0].from > span.to ? 'right' : '';
}

function paintBar(bar, mark, span, failed) {
  const place = at => ((at - span.from) / (span.to - span.from)) * 100;
  const left = place(mark.from);
  const right = place(mark.to);
  bar.className = mark.tick ? 'tick' : mark.held ? 'is-held' : failed ? 'is-err' : '';
  bar.hidden = right < 0 || left > 100;
  bar.style.left = `${Math.max(-1, Math.min(99.4, left))}%`;
  bar.style.width = mark.tick ? '' : `${Math.min(102, right) - Math.max(-1, left)}%`;
}

/** Scroll so that a row of the shown list is in sight. */
function revealRow(row) {
  const at = placeOf(row), box = $('#table'), top = at * ROW_HEIGHT, height = box.clientHeight - 27;
  if (at < 0) return;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top + ROW_HEIGHT > box.scrollTop + height) box.scrollTop = top + ROW_HEIGHT - height;
}

function moveRow(by) {
  const rows = shownRows(), at = placeOf(state.selected.row);
  const from = at < 0 ? Math.floor($('#table').scrollTop / ROW_HEIGHT) - by : at;
  const next = rows[Math.max(0, Math.min(rows.length - 1, from + by))];
  if (!next) return;
  state.follow = false;
  selectRow(next);
  revealRow(next);
}

/** Position of a row among those shown, -1 when it is not among them. */
function placeOf(row) {
  if (!row) return -1;
  return state.visible ? state.visible.indexOf(row) : row.index - state.session.forgotten;
}

// ---- time axis ----------------------------------------------------------------------------------------------------

/** The stretch of time shown by the waterfall, in ms since the run started. */
function axisSpan() {
  return state.axis || {from: 0, to: Math.max(1, nowAt(state.session))};
}

/** Narrow (factor < 1) or widen the axis around a moment: the given one, else the selected call, else the middle. */
function zoom(factor, around = state.selected.row?.at) {
  if (!state.session) return;
  const {from, to} = axisSpan();
  const whole = Math.max(1, nowAt(state.session));
  const inside = around >= from && around <= to ? around : around === undefined ? (from + to) / 2 : null;
  const width = Math.min(whole, Math.max(0.05, (to - from) * factor));
  const wanted = inside === null ? around - width / 2 : inside - ((inside - from) * width) / (to - from);
  const start = Math.max(0, Math.min(whole - width, wanted));
  state.axis = width >= whole ? null : {from: start, to: start + width};
  touch('table', 'axis');
}

/** Move a zoomed axis so that a moment is on it. */
function panTo(at) {
  if (!state.axis || (at >= state.axis.from && at <= state.axis.to)) return;
  const width = state.axis.to - state.axis.from;
  const start = Math.max(0, at - width / 4);
  state.axis = {from: start, to: start + width};
  touch('table', 'axis');
}

function zoomFit() {
  state.axis = null;
  touch('table', 'axis');
}

const STEPS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400];

/** Distance between two labels of the axis, in ms: a round number, with about 60 px for each label. */
function tickStep(ms, width) {
  const wanted = ms / 1000 / Math.max(1.5, width / 60);
  if (wanted < 1) {
    const power = 10 ** Math.floor(Math.log10(wanted));
    return power * ([1, 2, 5].find(n => n * power >= wanted) || 10) * 1000;
  }
  return (STEPS.find(step => step >= wanted) || 86400) * 1000;
}

function tickWord(ms, step) {
  if (step < 1000) return `${(ms / 1000).toFixed(Math.min(6, Math.ceil(-Math.log10(step / 1000))))} s`;
  return step < 60000 && ms < 600000 ? `${Math.round(ms / 1000)} s` : minutes(ms);
}

function paintAxis() {
  const s = state.session;
  if (!s || state.view === 'graph') return;
  const {from, to} = axisSpan(), width = $('.axis').clientWidth, step = tickStep(to - from, width), marks = [];
  const end = from + (to - from) * (1 - 36 / Math.max(60, width));      // a label is about 36 px wide
  for (let at = Math.ceil(from / step) * step; at < end && marks.length < 8; at += step) {
    const mark = el('span', {}, tickWord(at, step));
    mark.style.left = `${(at - from) / (to - from) * 100}%`;
    marks.push(mark);
  }
  $('.axis').replaceChildren(...marks);
  paintOverview(s);
}

/** Activity of the whole session: a column per pixel, its height by calls, failed and held time in their colours. */
function paintOverview(s) {
  const canvas = $('#overview canvas'), width = canvas.clientWidth, height = 37, ratio = devicePixelRatio || 1;
  if (!width) return;
  const context = canvas.getContext('2d'), whole = Math.max(1, nowAt(s)), place = at => at / whole * width;
  const bins = binActivity(s, whole, width), most = Math.max(1, ...bins.calls), colours = canvasColours();
  Object.assign(canvas, {width: width * ratio, height: height * ratio});
  context.scale(ratio, ratio);
  const {from, to} = state.axis ?? {};
  context.fillStyle = colours.wash;
  if (state.axis) context.fillRect(place(from), 0, Math.max(2, place(to) - place(from)), height);
  for (let x = 0; x < width; x++) paintBin(context, x, height, bins, most, colours);
  context.fillStyle = colours.accent;
  if (state.axis) for (const edge of [from, to]) context.fillRect(place(edge), 0, 1, height);
}

/** The style's colours as a canvas wants them: only a real element resolves light-dark(). */
function canvasColours() {
  const probe = $('#live'), resolved = name => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  return {accent: resolved('--accent'), err: resolved('--err'), hold: resolved('--hold-line'),
    faint: resolved('--faint'), wash: resolved('--accent-bg')};
}

function paintBin(context, x, height, bins, most, colours) {
  const draw = (colour, top, width, tall, alpha = 1) => {
    context.fillStyle = colour;
    context.globalAlpha = alpha;
    context.fillRect(x, top, width, tall);
  };
  const calls = bins.calls[x] && 4 + (height - 10) * Math.log1p(bins.calls[x]) / Math.log1p(most);
  if (calls) draw(colours.accent, height - calls - 1, 1, calls, 0.6);
  else if (bins.other[x]) draw(colours.faint, height - 3, 1, 2);
  if (bins.held[x] && x % 4 < 3) draw(colours.hold, 0, 1, 5);
  if (bins.failed[x]) draw(colours.err, height - calls - 1, 2, Math.max(6, calls));
  context.globalAlpha = 1;
}

function binActivity(s, whole, width) {
  const bins = {calls: new Uint32Array(width), failed: new Uint8Array(width), held: new Uint8Array(width),
    other: new Uint8Array(width)};
  const now = nowAt(s), column = at => Math.max(0, Math.min(width - 1, Math.floor(at / whole * width)));
  for (const {type, at, instance} of s.rows) {
    const x = column(at);
    if (type === 'noise' || (type === 'request' && FAILED.has(instance.status))) bins.failed[x] = 1;
    if (type !== 'request') { bins.other[x] = 1; continue; }
    const last = column(instance.end ?? (instance.status === 'running' ? now : at));
    for (let i = x; i <= last; i++) bins.calls[i]++;
    for (const hold of instance.holds) bins.held.fill(1, column(hold.from), column(hold.to ?? now) + 1);
  }
  return bins;
}

function wireOverview() {
  const canvas = $('#overview canvas');
  const at = event => (event.offsetX / canvas.clientWidth) * Math.max(1, nowAt(state.session));
  let start = null;
  canvas.addEventListener('pointerdown', event => {
    if (state.session) {
      start = at(event);
      canvas.setPointerCapture(event.pointerId);
    }
  });
  canvas.addEventListener('pointermove', event => {
    if (start === null) return;
    const [from, to] = [start, at(event)].sort((a, b) => a - b);
    if (to - from > nowAt(state.session) / 500) {
      state.axis = {from: Math.max(0, from), to: Math.min(nowAt(state.session), to)};
      touch('table', 'axis');
    }
  });
  canvas.addEventListener('pointerup', () => {
    if (state.axis) revealTime(state.axis);
    start = null;
  });
  canvas.addEventListener('dblclick', zoomFit);
}

/** Scroll the table to the first row of a stretch of time. */
function revealTime({from}) {
  const rows = shownRows();
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle].at < from) low = middle + 1;
    else high = middle;
  }
  state.follow = false;
  $('#table').scrollTop = low * ROW_HEIGHT;
}

// ---- inspector ----------------------------------------------------------------------------------------------------

const TABS = [['answer', 'Answer', 'a'], ['request', 'Request', 'q'], ['wire', 'Wire', 'w'],
    ['stderr', 'stderr', 't'], ['history', 'History', 'y']];
let sideKey = [];                    // what the inspector shows: place, version, length of its list

function selectNode(node) {
  state.selected = {node: node.id, instance: null, row: null};
  $('#side').hidden = false;
  touch('graph', 'table', 'side', 'layout');
  writeHash();
}

function selectInstance(instance, reveal = false) {
  if (!instance) return;
  state.selected = {node: instance.node.id, instance, row: instance.row};
  $('#side').hidden = false;
  if (reveal && instance.row) {
    state.follow = false;
    revealRow(instance.row);
  }
  if (reveal) state.revealed = instance.node.id;       // once the layout has made room for it
  touch('graph', 'table', 'side', 'layout');
  writeHash();
}

function selectRow(row) {
  if (!row) return;
  state.selected = {node: row.type === 'stderr' || !row.instance ? null : row.instance.node.id,
      instance: row.instance, row};
  $('#side').hidden = false;
  panTo(row.at);
  touch('graph', 'table', 'side');
  writeHash();
}

function deselect() {
  state.selected = {node: null, instance: null, row: null};
  $('#side').hidden = true;
  touch('graph', 'table', 'side', 'layout');
  writeHash();
}

/** Scroll the graph, not the page, so that a card is in sight. */
function revealCard(id) {
  const box = $('#graph');
  const place = cards.get(id)?.place;
  const bottom = place && place.y + place.h;
  if (!place) return;
  if (place.y < box.scrollTop) box.scrollTop = place.y - 12;
  else if (bottom > box.scrollTop + box.clientHeight) box.scrollTop = bottom + 16 - box.clientHeight;
}

const openSide = () => {
  $('#side').hidden = false;
  $('#detail').focus();
};

/** The instance the inspector shows: the chosen one, else the newest of the chosen node. */
const shownInstance = () => state.selected.instance ?? state.session?.nodes.get(state.selected.node)?.last ?? null;

function paintSide() {
  const s = state.session, instance = shownInstance(), row = state.selected.row;
  $('#side').hidden = !s || (!instance && !row);
  if ($('#side').hidden) {
    sideKey = [];
    return;
  }
  paintSideHead(instance, row);
  paintFacts();
  const tab = tabToShow(instance, row), place = [s.run.run, instance?.id, row?.index, tab].join();
  const key = [place, instance?.version, listed(tab, instance, s)];
  if (key.every((part, i) => part === sideKey[i])) return;
  const scroll = place === sideKey[0] ? $('#detail').scrollTop : 0;
  sideKey = key;
  paintTabs(instance, row, tab);
  $('#detail').replaceChildren(...DETAILS[tab](instance, row).filter(Boolean));
  $('#detail').scrollTop = scroll;
}

/** Length of the list that a tab shows; when it grows, the tab is painted again. */
function listed(tab, instance, s) {
  if (tab === 'history') return instance.node.id === 'mcp:protocol' ? s.nodes.size : instance.node.count;
  return tab === 'stderr' ? s.stderr.length : 0;
}

/** The tab last chosen, where it exists; while there is no answer yet, the request says more. */
function tabToShow(instance, row) {
  const tabs = tabsFor(instance, row), tab = tabs.includes(state.tab) ? state.tab : tabs[0];
  if (tab !== 'answer' || isGroup(instance.node) || state.tabOf === instance.id) return tab;
  return instance.answer || instance.errors.length ? tab : 'request';
}

function tabsFor(instance, row) {
  if (!instance) return ['stderr'];
  if (row?.type === 'stderr') return ['stderr', 'history'];
  if (instance.node.id === 'mcp:session') return ['answer', 'request', 'stderr'];
  if (instance.node.id === 'mcp:protocol') return ['history', 'answer'];
  if (instance.node.id === 'mcp:stdout-noise') return ['request', 'stderr', 'history'];
  return TABS.map(([id]) => id).filter(id => id !== 'answer' || !instance.notification);
}

/** Words of the first two tabs, which mean something else for what is no call. */
function tabWords(instance) {
  if (instance?.node.id === 'mcp:session') return {answer: 'End', request: 'Command'};
  if (instance?.node.id === 'mcp:protocol') return {answer: 'Totals'};
  if (instance?.node.id === 'mcp:stdout-noise') return {request: 'Line'};
  return instance?.notification ? {request: 'Message'} : {};
}

function paintTabs(instance, row, tab) {
  const tabs = tabsFor(instance, row), words = tabWords(instance);
  const button = ([id, word]) => el('button', {role: 'tab', id: `tab-${id}`, 'aria-selected': String(id === tab),
    'aria-controls': 'detail', tabindex: id === tab ? '0' : '-1', onclick: () => chooseTab(id),
    onkeydown: event => turnTab(event, tabs, id)}, words[id] ?? word);
  $('.tabs').replaceChildren(...TABS.filter(([id]) => tabs.includes(id)).map(button));
  $('#detail').setAttribute('aria-labelledby', `tab-${tab}`);
}

function turnTab(event, tabs, id) {
  const by = {ArrowRight: 1, ArrowLeft: tabs.length - 1}[event.key];
  if (!by) return;
  event.stopPropagation();
  const next = tabs[(tabs.indexOf(id) + by) % tabs.length];
  chooseTab(next);
  paintSide();
  $(`#tab-${next}`)?.focus();
}

function chooseTab(id) {
  state.tab = id;
  state.tabOf = shownInstance()?.id;
  touch('side');
}

function paintSideHead(instance, row) {
  const {title, subtitle, status, word, tags} = instance && row?.type !== 'stderr' ? headOf(instance)
      : headOfRow(row);
  const key = JSON.stringify([title, subtitle, status, word, instance?.version]);
  const head = $('#side .head');
  if (head.dataset.key === key) return;
  head.dataset.key = key;
  const close = el('button', {class: 'quiet', 'aria-label': 'Close the inspector', title: 'Close (Esc)',
      onclick: deselect}, icon('close'));
  head.replaceChildren(el('div', {}, el('span', {class: 'title'}, title), status ? sign(status, word) : '', close),
      el('div', {class: 'tags'}, el('span', {class: 'soft'}, oneLine(subtitle, 120)), tags));
}

const headOfRow = row => ({title: ROW_WORDS[row.type], subtitle: `at ${(row.at / 1000).toFixed(3)} s`, tags: []});

function headOf(instance) {
  const node = instance.node;
  const title = oneLine(node.name, 300);
  if (isGroup(node)) {
    const status = nodeStatus(node);
    return {title, subtitle: node.id, status, word: cardWord(node, status), tags: marks(instance)};
  }
  const status = statusOf(instance);
  const word = statusWord(status, instance, node.id === 'mcp:stdout-noise' ? 'noise' : '');
  const number = node.instances.indexOf(instance) + 1 + node.count - node.instances.length;
  const what = `${instance.notification ? 'message' : 'call'} ${grouped(number)} of ${grouped(node.count)}`;
  return {title, subtitle: `${kindWord(node)} · ${what} · ${instance.id}`, status, word, tags: marks(instance)};
}

function marks(instance) {
  const tag = (word, look = '') => el('span', {class: `tag ${look}`}, word), {retries} = instance;
  return [
    instance.injected && tag('injected', 'is-run'),
    instance.edited && tag('edited', 'is-run'),
    retries > 0 && tag(retries === 1 ? '1 retry' : `${retries} retries`, 'is-run'),
    instance.batched && tag('batched'),
    instance.flaw && tag(oneLine(instance.flaw, 80), 'is-held'),
    ...instance.hidden.map(what => tag(`${what} hidden`)),
    instance.related && tag(`about ${instance.related}`),
  ].filter(Boolean);
}

const DETAILS = {                    // tab -> (instance, row) -> elements
  answer: instance => isGroup(instance.node) ? groupAnswer(instance) : answerDetail(instance),
  request: instance => instance.input !== undefined ? inputDetail(instance) : requestDetail(instance),
  wire: wireDetail,
  stderr: stderrDetail,
  history: instance => instance.node.id === 'mcp:protocol' ? protocolDetail(instance) : [instanceList(instance)],
};

function groupAnswer(instance) {
  if (instance.output === undefined) return [el('p', {class: 'note'}, 'Still running.'), ...errorNotes(instance)];
  return [...errorNotes(instance), jsonView('', JSON.stringify(instance.output))];
}

const errorNotes = instance => instance.errors.map(error => el('p', {class: 'note is-err'},
  el('b', {}, oneLine(error.name, 80)), ': ', el('span', {class: 'mono'}, seen(cut(error.message ?? '', 40000)))));

function answerDetail(instance) {
  const held = heldNote(instance);
  const shown = state.selected.row?.type === 'answer' ? state.selected.row : instance.answer;
  if (!shown) return [held, ...errorNotes(instance), el('p', {class: 'note'}, noAnswer(instance))];
  const make = frame => payload(frame, ['result'], 'Result', instance) ?? payload(frame, ['error'], 'Error', instance);
  const injected = instance.injected && el('p', {class: 'note'}, 'This answer was injected from the debugger.');
  return [held, injected, later(shown, make)];
}

function heldNote(instance) {
  const hold = instance.held && isLive(state.session.run) ? instance.held : null;
  if (!hold) return null;
  const where = {before: 'before it is delivered', after: 'after it was answered', error: 'as it failed'}[hold.point];
  return el('div', {class: 'note is-held'}, `Held ${where}: ${holdReason({...hold, frame: instance.answer?.frame})}.`,
      hold.loop?.instances ? loopEvidence(hold.loop) : null);
}

function noAnswer(instance) {
  const status = statusOf(instance);
  if (instance.hidden.includes('output') && status !== 'held') return 'The answer is hidden by the relay.';
  return NO_ANSWER[status] ?? 'No answer was recorded.';
}

const NO_ANSWER = {
  held: 'No answer yet.',
  running: 'No answer yet.',
  unanswered: 'The server ended without answering.',
  cancelled: 'It was cancelled; no answer was delivered.',
  abandoned: 'The relay vanished before an answer came.',
};

function loopEvidence(loop) {
  const visit = id => selectInstance(state.session.instances.get(id), true);
  const calls = loop.instances.slice(-12).map(id => el('button', {onclick: () => visit(id)}, oneLine(id, 20)));
  return el('div', {class: 'bar'}, el('span', {class: 'soft'}, 'the same calls:'), calls);
}

function inputDetail({input}) {
  const record = jsonView(input?.text === undefined ? '' : 'Record', JSON.stringify(input));
  if (typeof input?.text !== 'string') return [record];
  const hint = input.hint ? seen(input.hint) : 'This line on stdout is not JSON-RPC.';
  return [el('p', {class: 'note'}, hint), el('pre', {class: 'text'}, seen(input.text)), record];
}

function requestDetail(instance) {
  if (instance.hidden.includes('input')) return [el('p', {class: 'note'}, 'The request is hidden by the relay.')];
  const edited = instance.editedArguments, title = edited === undefined ? 'Parameters' : 'Asked for';
  const asked = later(instance.row, frame => payload(frame, ['params'], title, instance));
  return [heldNote(instance), asked, edited !== undefined && jsonView('Ran with these arguments', edited)];
}

/** What a frame carries at a path, as a tree; undefined when there is nothing at that path. */
function payload(frame, path, title, instance) {
  const gone = instance.hidden.length ? 'Hidden by the relay.' : 'The text is no longer kept.';
  if (frame === undefined || frame === null) return el('p', {class: 'note'}, gone);
  const text = frameText(frame), problem = jsonProblem(text);
  if (typeof frame === 'object' || problem) return brokenFrame(frame, text, problem);
  const part = textAt(text, ...path);
  if (part !== undefined) return jsonView(title, part);
  return path[0] === 'result' ? undefined : jsonView('Message', text);
}

function brokenFrame(frame, text, problem) {
  return el('div', {}, el('p', {class: 'note is-err'}, brokenWord(frame, problem)), longText(text));
}

function brokenWord(frame, problem) {
  if (frame.truncated) return `The record holds the first part of ${bytes(frame.bytes)}; the wire carried all of it.`;
  if (frame.base64 !== undefined) return 'Not valid UTF-8; shown with replacement characters.';
  return `Not valid JSON: ${problem.message} (line ${problem.line}, column ${problem.column}).`;
}

/** An element that fills itself with what `make` makes of a row's frame, at once or after fetching it. */
function later(row, make) {
  if (!row) return el('p', {class: 'note'}, 'Nothing was recorded.');
  if (row.frame !== undefined || !row.away) return make(row.frame);
  const place = el('div', {}, el('p', {class: 'note'}, 'Fetching…'));
  frameOf(row).then(frame => place.replaceChildren(make(frame)));
  return place;
}

function wireDetail(instance) {
  const rows = state.session.rows.filter(row => row.instance === instance && row.type !== 'stderr').slice(-20);
  return rows.map(row => later(row, frame => wireBlock(row, frame)));
}

function wireBlock(row, frame) {
  const text = frameText(frame);
  const what = `frame ${row.n}`;
  if (text === undefined) return el('p', {class: 'note'}, `${what}: hidden or no longer kept`);
  const words = [`${what} ${ARROWS[row.direction] || ''}`, bytes(frameBytes(frame)), frame.truncated && 'cut here',
      ['dropped', 'late'].includes(row.status) && row.status];
  return el('div', {}, el('div', {class: 'bar'}, el('h3', {}, words.filter(Boolean).join(' · ')),
      el('button', {class: 'quiet', onclick: () => copy(text, what)}, 'Copy')), longText(text));
}

/** Text of any length: its start, and a button for the rest. */
function longText(text) {
  const box = el('pre', {class: 'text'}, seen(cut(text, TEXT_STEP)));
  if (text.length <= TEXT_STEP) return box;
  const all = el('button', {}, `Show all ${grouped(text.length)} characters`);
  all.addEventListener('click', () => {
    box.textContent = seen(text);
    all.remove();
  });
  return el('div', {}, box, all);
}

/** Lines of stderr around the selected moment; those inside the call are marked. */
function stderrDetail(instance, row) {
  const s = state.session, call = instance && !isGroup(instance.node) ? instance : null;
  const from = call ? call.at : row?.at ?? 0, to = call ? call.end ?? nowAt(s) : row?.at ?? Infinity;
  const lines = s.stderr.filter(line => line.at >= from - 2000 && line.at <= to + 2000).slice(-LINES_SHOWN);
  const where = call ? ' around this call' : '';
  if (!lines.length) return [el('p', {class: 'note'}, `The server wrote nothing to stderr${where}.`)];
  const isInside = line => call && line.at >= from && line.at <= to;
  return [el('p', {class: 'soft'}, stderrTitle(call, row, lines.length)),
    el('div', {class: 'lines'}, lines.flatMap(line => stderrLine(line, isInside(line)))),
    el('button', {class: 'quiet', onclick: () => copy(lines.map(line => line.text).join(''), 'stderr')}, 'Copy')];
}

function stderrTitle(call, row, count) {
  if (call) return 'From two seconds before this call to two after; a bar marks what fell inside it:';
  return row ? 'Around this moment:' : `Newest ${plural(count, 'piece')}:`;
}

function stderrLine(line, isInside) {
  const text = seen(cut(line.text.trimEnd(), 8000));
  return [el('span', {}, (line.at / 1000).toFixed(3)), el('span', {class: isInside ? 'inside' : ''}, text)];
}

function instanceList(instance) {
  const all = instance.node.instances, list = el('ol', {class: 'instances'});
  const older = count => `${plural(all.length - count, 'older call')}…`;
  const more = count => el('button', {onclick: () => fill(count + 500)}, older(count));
  const fill = count => {
    list.replaceChildren(...all.slice(-count).reverse().map(instanceButton));
    if (all.length > count) list.append(el('li', {}, more(count)));
  };
  fill(100);
  return list;
}

function instanceButton(instance) {
  const status = statusOf(instance), current = String(instance === shownInstance());
  return el('li', {}, el('button', {'aria-current': current, onclick: () => selectInstance(instance, true)},
    el('span', {}, `${(instance.at / 1000).toFixed(3)} s`),
    sign(status, statusWord(status, instance)),
    el('span', {class: 'soft'}, instance.row ? snippet(instance.row) : ''),
    el('span', {}, duration(instance.took))));
}

function protocolDetail({input}) {
  const list = el('ol', {class: 'instances'}, childrenOf('mcp:protocol').map(protocolItem));
  return [list, input?.about && el('p', {class: 'soft'}, seen(input.about))];
}

function protocolItem(node) {
  const visit = () => {
    state.unfolded = true;
    selectNode(node);
  };
  return el('li', {}, el('button', {onclick: visit},
    el('span', {}, plural(node.count, 'time')),
    sign(nodeStatus(node), node.errors ? `${node.errors} failed` : undefined),
    el('span', {}, oneLine(node.name, 80)),
    el('span', {}, duration(node.last?.took))));
}

/** Durations, ids and marks below the tabs; repainted by the ticking clock, so it touches text only. */
function paintFacts() {
  const box = $('#facts'), instance = shownInstance(), s = state.session;
  box.hidden = !s || !instance || state.selected.row?.type === 'stderr';
  if (box.hidden) return;
  const facts = factsOf(instance, s), names = facts.map(([name]) => name);
  const key = JSON.stringify([names, instance.id, s.run.run, state.breakpoints]);
  if (box.dataset.key === key) {
    const values = $$('.facts dd');
    facts.forEach(([, value], i) => setText(values[i], value));
    return;
  }
  box.dataset.key = key;
  const look = name => name === 'error' ? 'is-err' : '';
  const items = facts.flatMap(([name, value]) => [el('dt', {}, name), el('dd', {class: look(name)}, value)]);
  box.replaceChildren(el('dl', {class: 'facts'}, items), factButtons(instance));
}

function factsOf(instance, s) {
  if (isGroup(instance.node)) return groupFacts(s);
  const {answer} = instance, error = instance.errors.at(-1), hold = instance.holds.at(-1);
  const size = answer?.frame === undefined ? '' : `, ${bytes(frameBytes(answer.frame))}`;
  return [
    ...timeFacts(instance, s),
    ['started', `${(instance.at / 1000).toFixed(3)} s · ${new Date(instance.ts).toLocaleTimeString()}`],
    (instance.rpc ?? false) && ['id', seen(instance.rpc)],
    ['node', seen(cut(instance.node.id, 300))],
    answer && ['answer', `frame ${answer.n}${size}`],
    hold && hold.to !== null && ['released', `${hold.action} by ${hold.by === 'page' ? 'page' : whoReleased(hold.by)}`],
    instance.retries > 0 && ['retries', String(instance.retries)],
    error && ['error', `${seen(error.name)}: ${seen(cut(error.message ?? '', 600))}`],
  ].filter(Boolean);
}

const whoReleased = by => RELEASED_BY[by] ?? seen(by ?? 'somebody');

function groupFacts(s) {
  const facts = [['since', s.started ? new Date(s.started).toLocaleString() : '–'], ['run', s.run.run]];
  if (s.pid) facts.push(['relay', `pid ${s.pid}, version ${seen(s.version ?? '?')}`]);
  return facts;
}

function timeFacts(instance, s) {
  if (instance.notification || instance.node.id === 'mcp:stdout-noise') return [];
  const now = nowAt(s), held = heldTime(instance, now), total = totalTime(instance, now);
  const ran = Math.max(0, total - held);
  return [['total', duration(total)], ['held', held ? duration(held) : '–'], ['ran', duration(ran)]];
}

function factButtons({node, row}) {
  const stop = point => el('button', {'aria-pressed': String(!!findBreakpoint(nodeBreakpoint(node, point))),
    onclick: () => toggleStop(node, point)}, `Break ${point}`);
  const hasFrame = row && node.id !== 'mcp:stdout-noise';
  return el('div', {class: 'acts'},
    isBreakable(node) && !state.recorded && [stop('before'), stop('after')],
    hasFrame && el('button', {onclick: () => copyFrame(row)}, 'Copy frame'),
    !state.recorded && el('button', {onclick: copyLink}, 'Link'));
}

async function copyFrame(request) {
  const row = state.selected.row?.frame !== undefined ? state.selected.row : request;
  const text = frameText(await frameOf(row));
  if (text === undefined) notice('This frame is hidden or no longer kept.');
  else copy(text, `frame ${row.n}`);
}

// ---- JSON tree ----------------------------------------------------------------------------------------------------
// Members become elements when their parent is opened, a step at a time: deep and huge values cost what is looked at.

function jsonView(title, text) {
  const problem = jsonProblem(text), value = text.trim();
  const wrong = problem && el('p', {class: 'note is-err'}, `Not valid JSON: ${problem.message}.`);
  if (problem) return el('div', {}, wrong, longText(text));
  const tree = el('div', {class: 'tree', role: 'group', 'aria-label': title || 'JSON', tabindex: '0'});
  tree.append(treeNode(null, value, '', 0));
  openSome(tree, TREE_ROWS);
  const button = (word, onclick) => el('button', {class: 'quiet', onclick}, word);
  const openAll = button('Open all', () => openSome(tree, 2000)), fold = button('Fold', () => foldAll(tree));
  const folds = value[0] in CLOSER && [openAll, fold];
  const bar = el('div', {class: 'bar'}, el('h3', {}, title), folds, button('Copy', () => copy(value, title || 'JSON')));
  return el('div', {}, bar, tree);
}

function foldAll(tree) {
  for (const branch of tree.querySelectorAll('details')) branch.open = false;
}

/** Open branches level by level until about so many rows are shown. */
function openSome(tree, rows) {
  const queue = [...tree.querySelectorAll('details')];
  while (queue.length && rows > 0) {
    const branch = queue.shift(), kids = branch.children[1];
    if (!kids.childElementCount) branch.fill();
    branch.open = true;
    rows -= kids.childElementCount;
    queue.push(...[...kids.children].filter(child => child.matches('details')));
  }
}

function treeNode(key, text, comma, depth) {
  const kind = kindOfJson(text);
  if (kind === 'object' || kind === 'array') return treeBranch(key, text, comma, depth);
  const look = kind === 'number' ? 'number' : 'word';
  const value = kind === 'string' ? stringLeaf(text) : el('span', {class: look}, cut(text, 4000));
  return el('div', {class: 'leaf'}, keyLabel(key), value, comma);
}

const keyLabel = key => (key === null ? [] : [el('span', {class: 'key'}, seen(cut(key, 500))), ': ']);

function treeBranch(key, text, comma, depth) {
  const open = text[0], close = CLOSER[open] + comma;
  if (text[skipBlanks(text, 1)] === CLOSER[open]) return el('div', {class: 'leaf'}, keyLabel(key), open + close);
  const kids = el('div', {class: depth > 14 ? 'kids flat' : 'kids'});
  const summary = el('summary', {}, keyLabel(key), open, el('span', {class: 'peek'}, ` ${sizeWord(text)} ${close}`));
  const branch = el('details', {}, summary, kids, el('div', {class: 'close'}, close));
  branch.fill = () => fillKids(kids, membersOf(text, 0), text, depth, new Set());
  branch.addEventListener('toggle', () => {
    if (branch.open && !kids.childElementCount) branch.fill();
  });
  return branch;
}

/** "3 keys", or the size where counting would mean reading a huge value. */
function sizeWord(text) {
  if (text.length > 200000) return bytes(text.length);
  let count = 0;
  for (const member of membersOf(text, 0)) count += member.end > 0 ? 1 : 0;
  return plural(count, text[0] === '{' ? 'key' : 'item');
}

/** Show the next members of a container; "more" goes on where the generator stopped. */
function fillKids(kids, members, text, depth, keys) {
  for (let shown = 0; shown < TREE_STEP; shown++) {
    const {done, value} = members.next();
    if (done) return;
    const {key, start, end} = value, comma = text[skipBlanks(text, end)] === ',' ? ',' : '';
    const node = treeNode(key, text.slice(start, end), comma, depth + 1);
    if (keys.has(key)) (node.querySelector('summary') ?? node).append(el('span', {class: 'twice'}, 'doubled key'));
    if (key !== null) keys.add(key);
    kids.append(node);
    if (!comma) return;
  }
  const more = el('button', {class: 'quiet'}, `${TREE_STEP} more…`);
  more.addEventListener('click', () => {
    more.remove();
    fillKids(kids, members, text, depth, keys);
  });
  kids.append(more);
}

/** A string, decoded; long ones are cut with a button, and text that is itself JSON can be opened as such. */
function stringLeaf(text) {
  const value = decoded(text), box = el('span', {class: 'string'}, `"${seen(cut(value, 2000))}"`);
  const once = (word, act) => {
    const button = el('button', {class: 'quiet'}, word);
    button.addEventListener('click', () => act(button));
    return button;
  };
  const showAll = button => {
    box.textContent = `"${seen(value)}"`;
    button.remove();
  };
  const isJson = /^\s*[[{]/.test(value) && value.length < 500000 && !jsonProblem(value);
  return [box, value.length > 2000 && once(`all ${grouped(value.length)} characters`, showAll),
    isJson && once('as JSON', button => button.replaceWith(jsonView('The text as JSON', value)))];
}

// ---- editor: inject a value, edit arguments -----------------------------------------------------------------------

/** Text of the request that a hold is about; under --hide there is none. */
function heldRequest(hold) {
  const recorded = state.session?.instances.get(hold.instance)?.row?.frame;
  return frameText((hold.point === 'before' ? hold.frame : hold.request) ?? recorded) ?? '';
}

const tidied = text => (jsonProblem(text) ? text : pretty(text));
const isMessage = hold => hold.id === undefined || hold.id === null;

function openEditor(kind, hold) {
  if (kind === 'edit' && !hold.editable) return;
  const starts = kind === 'inject' ? injectStarts(hold) : editStarts(hold);
  state.editor = {kind, hold, live: starts[0][1], gone: false};
  $('#editortitle').textContent = editorTitle(kind, hold);
  $('#editorhint').textContent = kind === 'inject' ? injectHint(hold) : EDIT_HINTS[hold.point === 'before' ? 0 : 1];
  const button = ([word, text]) => el('button', {type: 'button', onclick: () => fillEditor(text)}, word);
  const choices = starts.length > 1 ? [el('span', {class: 'soft'}, 'start from'), ...starts.map(button)] : [];
  $('#editorstarts').replaceChildren(...choices);
  fillEditor(starts[0][1]);
  if (!$('#editor').open) $('#editor').showModal();
  $('#editortext').focus();
  $('#editortext').setSelectionRange(0, 0);
}

const EDIT_HINTS = ['The server gets these arguments; every other byte of the request stays.',
  'The answer is dropped and the request sent again with these arguments.'];

function editorTitle(kind, hold) {
  if (kind === 'edit') return `Edit the arguments of ${holdName(hold)}`;
  if (isMessage(hold)) return `Send another message instead of ${holdName(hold)}`;
  return `Answer ${holdName(hold)} with a value`;
}

function fillEditor(text) {
  $('#editortext').value = text;
  checkEditor();
}

/** Texts an injection can start from, the likeliest first: [label, JSON text]. */
function injectStarts(hold) {
  const request = heldRequest(hold);
  if (isMessage(hold)) return [['the message', tidied(request)]];
  const answer = hold.point === 'before' ? lastAnswer(hold) : (frameText(hold.frame) ?? '');
  const starts = [];
  const result = textAt(answer, 'result');
  const params = textAt(request, 'params', 'arguments') ?? textAt(request, 'params');
  const whose = hold.point === 'before' ? 'the last answer' : 'the recorded answer';
  if (result !== undefined) starts.push([whose, tidied(result)]);
  else if (textAt(answer, 'error') !== undefined) starts.push(['the recorded answer', tidied(answer)]);
  if (params !== undefined) starts.push(['the request', tidied(params)]);
  const error = `{"jsonrpc":"2.0","id":${hold.id},"error":{"code":-32000,"message":"injected failure"}}`;
  return [...starts, ['text', '"text"'], ['an error', tidied(error)]];
}

/** The newest answer to another call of the same node, as a model for an answer that does not exist yet. */
function lastAnswer(hold) {
  const s = state.session;
  if (s?.run.run !== hold.run) return '';
  const others = s.nodes.get(hold.node)?.instances.filter(other => other.id !== hold.instance && other.status === 'ok'
      && other.answer?.frame !== undefined) ?? [];
  return frameText(others.at(-1)?.answer.frame) ?? '';
}

function injectHint(hold) {
  const to = receiver(hold);
  const from = asked(hold) === 'client->server' ? 'client' : 'server';
  if (isMessage(hold)) return `Your JSON object goes to the ${to} in place of the held message.`;
  if (hold.point !== 'before') return `The ${to} gets this in place of the real answer.`;
  return `The ${to} never sees the request; the ${from} gets this as its answer.`;
}

function editStarts(hold) {
  const live = textAt(heldRequest(hold), 'params', 'arguments');
  return [['the live arguments', live === undefined ? '{}' : tidied(live)]];
}

const LIFTS = {                      // method -> [key that means "already shaped", what a bare value becomes]
  'tools/call': ['content', 'a tool result with one text block'],
      'resources/read': ['contents', 'resource contents with one text'],
  'prompts/get': ['messages', 'a prompt with one user message'],
      'sampling/createMessage': ['content', 'an assistant message'],
};

/** How the relay will lift an injected value, in words: `text` is valid JSON. Source: spec/relay.md section 11. */
function liftWords(hold, text) {
  const kind = kindOfJson(text);
  const lift = LIFTS[hold.method];
  if (isMessage(hold)) return kind === 'object' ? 'sent as the whole message' : null;
  if (kind === 'object' && textAt(text,
      'jsonrpc')?.startsWith('"')) return 'a whole JSON-RPC frame: sent as it is, with the request’s own id';
  if (!lift) return 'sent unchanged as the result';
  const shaped = kind === 'object'
      && (isList(text, lift[0]) || (hold.method === 'tools/call' && textAt(text, 'structuredContent') !== undefined)
      || (hold.method === 'sampling/createMessage' && textAt(text, 'content') !== undefined));
  if (shaped) return 'already shaped like a result: sent as it is';
  const how = kind === 'string' ? 'holding your text' : 'holding your JSON';
  const twin = kind === 'object' && hold.method === 'tools/call' ? ', and structuredContent with your object' : '';
  return `lifted into ${lift[1]} ${how}${twin}`;
}

const isList = (text, key) => textAt(text, key)?.startsWith('[') ?? false;

/** Top-level differences between two JSON objects: [word, key], compared by their exact text. */
function argumentChanges(before, after) {
  const read = text => new Map([...membersOf(text, skipBlanks(text, 0))].map(member =>
      [decoded(member.key), compact(text.slice(member.start, member.end))]));
  const old = read(before);
  const fresh = read(after);
  const changes = [];
  for (const [key, value] of fresh)
    if (!old.has(key)) changes.push(['added', key]);
    else if (old.get(key) !== value) changes.push(['changed', key]);
  for (const key of old.keys()) if (!fresh.has(key)) changes.push(['removed', key]);
  return changes;
}

/** Check the text in the editor: verdict, preview, and whether it can be sent. */
function checkEditor() {
  const {kind, hold, live} = state.editor;
  const text = $('#editortext').value;
  const problem = jsonProblem(text);
  $('#editorrefused').hidden = true;
  if (problem) {
    setVerdict(`Line ${problem.line}, column ${problem.column}: ${problem.message}.`, false);
    return;
  }
  if (kind === 'inject') {
    const words = liftWords(hold, text);
    setVerdict(words ? `Valid JSON: ${words}.` : 'A message must be a JSON object.', !!words, 'Inject');
    return;
  }
  if (kindOfJson(text) !== 'object') {
    setVerdict('Arguments must be a JSON object.', false, 'Run');
    return;
  }
  checkEdit(hold, argumentChanges(live, text));
}

function checkEdit(hold, changes) {
  const verb = hold.point === 'before' ? 'Run' : 'Retry';
  if (!changes.length) { setVerdict('Nothing changed yet.', false, verb); return; }
  const list = changes.map(([word, key]) => `${word} ${oneLine(key, 60)}`).join(' · ');
  setVerdict(list[0].toUpperCase() + list.slice(1), true, `${verb} with ${plural(changes.length, 'change')}`);
}

function setVerdict(text, good, label) {
  $('#editorverdict').className = `verdict ${good ? 'is-ok' : text === 'Nothing changed yet.' ? 'soft' : 'is-err'}`;
  $('#editorverdict').textContent = seen(text);
  $('#editorsend').disabled = !good || state.editor.gone;
  if (label) $('#editorsend').textContent = label;
  $('#editortidy').disabled = !!jsonProblem($('#editortext').value);
}

/** The hold went away while its editor was open: say who took it, keep the text. */
function editorLostHold() {
  state.editor.gone = true;
  $('#editorrefused').textContent = 'Somebody else released this call. Your text stays here until you close this.';
  $('#editorrefused').hidden = false;
  $('#editorsend').disabled = true;
}

async function sendEditor() {
  const {editor} = state;
  if (!editor || $('#editorsend').disabled) return;
  $('#editorsend').disabled = true;
  state.editor = null;       // else the release of this very hold would count as somebody else's
  const refusal = await release(editor.hold, editorRelease(editor, compact($('#editortext').value)));
  if (refusal === null) { $('#editor').close(); return; }
  state.editor = editor;
  $('#editorsend').disabled = false;
  $('#editorrefused').textContent = `Refused, still held: ${seen(refusal)}`;
  $('#editorrefused').hidden = false;
}

function editorRelease({kind, hold}, text) {
  if (kind === 'inject') return {action: 'inject', valueText: text};
  return {action: hold.point === 'before' ? 'continue' : 'retry', argumentsText: text};
}

function wireEditor() {
  $('#editortext').addEventListener('input', checkEditor);
  $('#editortext').addEventListener('keydown', event => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) sendEditor();
  });
  $('#editorsend').addEventListener('click', sendEditor);
  $('#editorcancel').addEventListener('click', () => $('#editor').close());
  $('#editortidy').addEventListener('click', () => fillEditor(pretty($('#editortext').value)));
  $('#editor').addEventListener('close', () => {
    state.editor = null;
  });
}

// ---- keys and links -----------------------------------------------------------------------------------------------

function setView(view) {
  state.view = view;
  $('main').dataset.view = view;
  for (const button of $$('header [data-view]')) {
    button.setAttribute('aria-pressed', String(button.dataset.view === view));
  }
  touch('layout', 'table', 'axis');
}

function toggleErrors() {
  state.errorsOnly = !state.errorsOnly;
  $('#errorsonly').setAttribute('aria-pressed', String(state.errorsOnly));
  setFilter();
}

function cycleTheme() {
  const themes = ['', 'light', 'dark'];
  const next = themes[(themes.indexOf(document.documentElement.dataset.theme ?? '') + 1) % 3];
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem('mcp-relay-theme', next);
  } catch {
    // A page opened from a file may have no storage; the theme then lasts as long as the page.
  }
  notice(`Colours: ${next || 'as the system'}.`);
  touch('axis');
}

function toggleFollow() {
  state.follow = !state.follow;
  touch('table');
}

const withSelectedNode = use => () => {
  const node = state.session?.nodes.get(state.selected.node);
  if (node) use(node);
};
const withHold = id => () => {
  const hold = focusedHold();
  const action = ACTIONS.find(one => one.id === id);
  if (hold && applies(action, hold)) act(id, hold);
};

const COMMANDS = {                   // key -> command; a capital letter means Shift
  1: () => setView('graph'),
  2: () => setView('table'),
  3: () => setView('both'),
  '/': () => $('#filter').focus(),
  '?': () => $('#help').showModal(),
  j: () => move(1),
  k: () => move(-1),
  ArrowDown: () => move(1, 'ArrowDown'),
  ArrowUp: () => move(-1, 'ArrowUp'),
  ArrowLeft: () => moveCard('ArrowLeft'),
  ArrowRight: () => moveCard('ArrowRight'),
  '[': () => stepRun(-1),
  ']': () => stepRun(1),
  Escape: escape,
  Enter: openSide,
  h: nextHold,
  b: withSelectedNode(node => toggleStop(node, 'before')),
  B: withSelectedNode(node => toggleStop(node, 'after')),
  p: () => live(() => toggleBreakpoint({point: 'before'})),
  P: () => live(() => toggleBreakpoint({point: 'error'})),
  m: () => live(() => setMode(state.mode === 'step' ? 'run' : 'step')),
  x: toggleErrors,
  o: toggleFold,
  f: toggleFollow,
  '+': () => zoom(0.5),
  '=': () => zoom(0.5),
  '-': () => zoom(2),
  0: zoomFit,
  l: copyLink,
  d: cycleTheme,
  ...Object.fromEntries(ACTIONS.filter(action => action.key).map(action => [action.key, withHold(action.id)])),
  ...Object.fromEntries(TABS.map(([id, , key]) => [key, () => chooseTab(id)]))
};

const live = run => {
  if (!state.recorded) run();
};

function move(by, arrow) {
  const isAmongCards = state.view === 'graph' || (arrow && document.activeElement?.closest('#graph'));
  if (isAmongCards) moveCard(arrow ?? (by > 0 ? 'ArrowDown' : 'ArrowUp'));
  else moveRow(by);
}

function escape() {
  if ($$('.menu > div').some(list => !list.hidden)) closeMenus();
  else deselect();
}

function onKey(event) {
  const {key, target} = event, isBusy = document.body.classList.contains('locked') || $('dialog[open]');
  if (event.ctrlKey || event.metaKey || event.altKey || isBusy) return;
  if (target.matches('input, textarea') && !target.closest('dialog')) {   // a dialog that has closed may keep the focus
    if (key === 'Escape') target.blur();
    return;
  }
  const command = COMMANDS[key], isOwn = (key === 'Enter' || key === ' ') && target.closest('button, summary');
  const scrolls = key.startsWith('Arrow') && target.closest('#detail, #facts, #runs');
  const isHeldDown = event.repeat && ACTIONS.some(action => action.key === key);
  if (!command || isOwn || scrolls || isHeldDown) return;
  event.preventDefault();
  command();
}

const TOKEN_KEY = 'mcp-relay-token';

/** Take run, node and token from the address; the token leaves the address bar. Returns whether there was one. */
function readHash(isRecorded) {
  const hash = new URLSearchParams(location.hash.slice(1)), token = hash.get('token');
  Object.assign(state.wanted, {run: isRecorded ? null : hash.get('run'), node: hash.get('node')});
  if (isRecorded) return false;
  if (token) sessionStorage.setItem(TOKEN_KEY, token);
  state.token = sessionStorage.getItem(TOKEN_KEY) ?? '';
  hash.delete('token');
  if (token) history.replaceState(null, '', location.pathname + (hash.size ? `#${hash}` : ''));
  return !!token;
}

function linkHash() {
  const link = new URLSearchParams({run: state.session.run.run});
  if (state.selected.node) link.set('node', state.selected.node);
  return `#${link}`;
}

function writeHash() {
  if (state.recorded || !state.session || state.wanted.run) return;
  history.replaceState(null, '', location.pathname + linkHash());
}

function copyLink() {
  if (state.recorded || !state.session) return;
  copy(location.origin + location.pathname + linkHash(), 'the link; it carries no token');
}

const GATE_TEXTS = {
  refused: 'The hub does not accept this token; it was probably started anew. '
    + 'Open the address that “serve” prints, or run it now:',
  missing: 'The token is in the address that “serve” prints, after #token=. Open that address, or run it now:',
};

/** Without a good token there is nothing to show but how to get one. */
function lock(why) {
  stream?.abort();
  document.body.classList.add('locked');
  $('#gate').hidden = false;
  $('#gatetext').textContent = GATE_TEXTS[why];
}

function unlock() {
  document.body.classList.remove('locked');
  $('#gate').hidden = true;
}

function onHashChange() {
  if (readHash()) {
    unlock();
    follow();
  } else if (state.runs.has(state.wanted.run) && state.wanted.run !== state.session?.run.run) chooseRun();
}

function tokenPasted(event) {
  event.preventDefault();
  const text = event.target.elements.token.value.trim();
  const token = /token=([^&\s]+)/.exec(text)?.[1] ?? text;
  if (!token) return;
  state.token = token;
  sessionStorage.setItem(TOKEN_KEY, token);
  unlock();
  follow();
}

// ---- start --------------------------------------------------------------------------------------------------------

function paintStats() {
  const s = state.session;
  const parts = s ? [plural(s.calls, 'call'), plural(s.errors, 'error'),
    plural(Math.max(s.noise, s.run.noise || 0), 'noise line'), plural(s.frames, 'frame'), percentiles(s)] : [];
  if (state.visible) parts.push(`${plural(state.visible.length, 'row')} match`);
  setText($('#stats'), parts.filter(Boolean).join(' · '));
}

/** p50 and p95 of the calls' durations; sorted again only when a tenth of them is new. */
function percentiles(s) {
  const count = s.durations.length;
  if (!count) return '';
  if (!s.sorted || s.sorted.length < count * 0.9 || count < 1000) s.sorted = Float64Array.from(s.durations).sort();
  const at = share => duration(s.sorted[Math.min(s.sorted.length - 1, Math.floor(share * s.sorted.length))]);
  return `p50 ${at(0.5)}, p95 ${at(0.95)}`;
}

const PAINTERS = {                   // in this order: cards are placed before they are painted
  runs: paintRuns, head: paintHead, holds: paintHolds, chips: paintChips, layout: paintLayout, graph: paintGraph,
  axis: paintAxis, table: paintTable, side: paintSide, facts: paintFacts, stats: paintStats,
};

/** Live timers: ages of holds, and what is open in the run on screen. */
function tick() {
  for (const age of $$('[data-since]')) setText(age, minutes(Date.now() - age.dataset.since));
  const s = state.session;
  if (document.hidden || !s || !isLive(s.run)) return;
  touch(...(s.open.size ? ['graph', 'table', 'axis', 'facts'] : ['graph']));
  if (state.wanted.hold) showWantedHold();
}

/** A hold of the run on screen is shown by itself when nothing else is selected, as soon as its events are here. */
function showWantedHold() {
  const hold = state.holds.get(state.wanted.hold), isTurnedTo = hold && hold.hold === state.holdTurn;
  const isElsewhere = hold && hold.run !== state.session.run.run && !isTurnedTo;
  const instance = hold && state.session.instances.get(hold.instance);
  if (!hold || instance || isElsewhere) state.wanted.hold = null;
  if (instance && (!state.selected.node || isTurnedTo)) selectInstance(instance, true);
}

function fillHelp() {
  const item = (first, words) => el('div', {}, first, words && el('span', {class: 'soft'}, words));
  $('#help .keys').replaceChildren(...KEYS.map(([keys, words]) => item(el('span', {}, el('kbd', {}, keys)), words)));
  const points = ['before', 'after'].map(point => el('span', {class: 'state soft'}, icon(point), `break ${point}`));
  const signs = Object.entries(SIGNS).map(([status, [, , word]]) => sign(status, word));
  $('#signs').replaceChildren(...[...signs, ...points].map(one => item(one)));
}

function wire() {
  const click = (selector, act) => $(selector).addEventListener('click', act);
  for (const button of $$('header [data-view]')) button.addEventListener('click', () => setView(button.dataset.view));
  for (const button of $$('[data-mode]')) button.addEventListener('click', () => setMode(button.dataset.mode));
  click('#pauseall', () => toggleBreakpoint({point: 'before'}));
  click('#pauseerror', () => toggleBreakpoint({point: 'error'}));
  click('#errorsonly', toggleErrors);
  click('#showhelp', () => $('#help').showModal());
  click('#closehelp', () => $('#help').close());
  click('#showruns', () => $('#showruns').setAttribute('aria-expanded', $('#runs').classList.toggle('open')));
  click('#zoomin', () => zoom(0.5));
  click('#zoomout', () => zoom(2));
  click('#zoomfit', zoomFit);
  click('#tail', toggleFollow);
  $('#gate form').addEventListener('submit', tokenPasted);
  for (const part of [wireFilter, wireTable, wireWindow, wireOverview, wireEditor]) part();
}

function wireFilter() {
  let timer = 0;
  $('#filter').addEventListener('input', () => {
    clearTimeout(timer);
    timer = setTimeout(setFilter, 120);
  });
}

function wireTable() {
  const box = $('#table');
  box.addEventListener('scroll', () => {
    const fromEnd = box.scrollHeight - box.scrollTop - box.clientHeight;
    if (!state.follow || fromEnd > ROW_HEIGHT) state.follow = fromEnd <= 2;
    touch('table');
  }, {passive: true});
  box.addEventListener('wheel', event => {
    if (!event.ctrlKey && !event.altKey) return;
    event.preventDefault();
    const cell = $('.axis').getBoundingClientRect(), {from, to} = axisSpan();
    const share = Math.max(0, Math.min(1, (event.clientX - cell.left) / cell.width));
    zoom(event.deltaY > 0 ? 1.25 : 0.8, from + share * (to - from));
  }, {passive: false});
}

function wireWindow() {
  addEventListener('keydown', onKey);
  addEventListener('hashchange', onHashChange);
  addEventListener('click', event => {
    if (!event.target.closest('.menu')) closeMenus();
  });
  document.addEventListener('visibilitychange', () => touch(...Object.keys(PAINTERS)));
  new ResizeObserver(() => touch('layout', 'table', 'axis')).observe($('main'));
  splitter($('#split'), event => event.clientY - $('#graph').getBoundingClientRect().top, setGraphHeight);
  splitter($('#sidesplit'), event => innerWidth - event.clientX, setSideWidth);
}

function setGraphHeight(pixels) {
  $('main').style.setProperty('--graph-height', `${Math.max(96, pixels)}px`);
  touch('table', 'axis');
}

function setSideWidth(pixels) {
  const width = Math.max(260, Math.min(innerWidth - 420, pixels));
  document.documentElement.style.setProperty('--side-width', `${width}px`);
  touch('layout', 'table', 'axis');
}

/** A page with the run inside: no hub, no controls, the same views. */
async function playRecorded({run, events}) {
  state.recorded = true;
  document.body.dataset.recorded = '';
  state.connection = 'recorded';
  $('#connection').replaceChildren('recorded, read only');
  state.runs.set(run.run, run);
  state.session = newSession(run);
  state.selected.node = state.wanted.node;
  state.follow = false;
  for (let i = 0; i < events.length; i++) {
    applyEvent(state.session, events[i]);
    if (i % 2000 === 1999) await breathe();
  }
  document.title = `${oneLine(run.label || run.run, 60)} · mcp-relay`;
  touch(...Object.keys(PAINTERS));
}

function start() {
  document.documentElement.dataset.theme = storedTheme();
  fillHelp();
  wire();
  setInterval(tick, TICK_MS);
  setInterval(() => touch('runs'), 5000);      // ages in the list
  const recorded = document.getElementById('recorded-run');
  readHash(!!recorded);
  if (!recorded && !state.token) { lock('missing'); return; }
  unlock();
  if (recorded) playRecorded(JSON.parse(recorded.textContent));
  else follow();
}

/** The chosen colours; a page opened from a file may have no storage. */
function storedTheme() {
  try {
    return localStorage.getItem('mcp-relay-theme') ?? '';
  } catch {
    return '';
  }
}

start();
</script>
</body>
</html>
'''
# <<< viewer/viewer.html


if __name__ == "__main__":
    main()
