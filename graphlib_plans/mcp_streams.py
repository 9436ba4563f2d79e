"""What is between the plan server and its pipes: the lines that wait, one request with its one answer, the threads.

Nothing here knows what is asked or answered; that is in mcp_server. Each class says which threads use it.
"""

import collections
import os
import queue
import threading

from . import __version__, wire

LEGACY_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSIONS = ("2026-07-28",)
KEY = "io.modelcontextprotocol/"
SERVER_INFO = {"name": "graph", "title": "graph plans", "version": __version__}
#: Bytes that may wait for a client which does not read: above it calls wait before they start, and a reader that has
#: more to answer reads no further.
OUT_BYTES = 16 * 1024 * 1024


# Writing -----------------------------------------------------------------------------------------------------------


class Outbox:
    """Lines for one descriptor, written by a thread of their own, so that nobody waits for a slow reader.

    `put` never blocks. What keeps memory bounded is that callers ask first: `pending` for what may be left out,
    `wait_for_room` for what may not. on_gone is called once when the reader is gone; lines are then dropped.
    """

    def __init__(self, descriptor, name, gather_s=0.0):
        self.descriptor = descriptor
        #: Seconds that a line may wait for others to be written with it; every write costs a turn of the interpreter.
        self.gather_s = gather_s
        self.on_gone = lambda: None
        self.is_gone = False
        #: Bytes that are not yet written.
        self.pending = 0
        # Protects what is above and _lines; wakes the writer when there is a line, the others when there is room.
        self._changed = threading.Condition()
        self._lines = collections.deque()
        self._is_closed = False
        self._thread = threading.Thread(target=self._write, name=name, daemon=True)
        self._thread.start()

    def put(self, line):
        """Add one whole line of bytes."""
        with self._changed:
            if not self.is_gone and not self._is_closed:
                self._lines.append(line)
                self.pending += len(line)
                if len(self._lines) == 1:  # the writer only waits when there is none
                    self._changed.notify_all()

    def wait_for_room(self, limit=OUT_BYTES):
        """Wait until less than `limit` bytes are pending, or nobody reads them any more."""
        with self._changed:
            self._changed.wait_for(lambda: self.pending < limit or self.is_gone or self._is_closed)

    def close(self, timeout_s):
        """Take no more lines; wait at most timeout_s seconds until those there are have been written."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _write(self):
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._is_closed)
                if not self._lines:
                    return
                if self.gather_s:
                    self._changed.wait_for(lambda: self._is_closed, self.gather_s)
                data = b"".join(self._lines) if len(self._lines) > 1 else self._lines[0]
                self._lines.clear()
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(self.descriptor, view):]
            except OSError:  # nobody reads any more
                self._give_up()
                return
            with self._changed:
                self.pending -= len(data)
                self._changed.notify_all()

    def _give_up(self):
        with self._changed:
            self.is_gone = True
            self._lines.clear()
            self.pending = 0
            self._changed.notify_all()
        self.on_gone()


# Requests ----------------------------------------------------------------------------------------------------------


class Exchange:
    """One request from its arrival to its only answer. version: of the protocol in which it is spoken.

    send: takes the answer's line; for a member of a batch that is the batch's. After the answer, or once it is
    hushed, nothing more leaves: progress behind an answer would be for nobody.
    """

    def __init__(self, message, version, send, notify):
        self.message = message
        self.version = version
        self.is_modern = version in MODERN_VERSIONS
        self.cancel = None  # tools.CancelToken of a tools/call
        self._send = send
        self._notify = notify
        # Protects is_over and keeps what is sent before the answer before it; the outbox never blocks under it.
        self._lock = threading.Lock()
        self.is_over = False

    @property
    def params(self):
        return self.message.params

    @property
    def meta(self):
        """The request's `_meta`, an empty object where there is none."""
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}

    def result(self, value):
        """Answer with a result; what only the modern era has is added in it alone."""
        if self.is_modern:
            meta = {**value.get("_meta", {}), KEY + "serverInfo": SERVER_INFO}
            value = {"resultType": "complete", **value, "_meta": meta}
        self.reply(wire.result(self.message.id_text, value))

    def error(self, code, text, data=None):
        """Answer with an error."""
        self.reply(error_line(self.message.id_text, code, text, data))

    def reply(self, line):
        """Send the answer, unless there was one or the request was hushed."""
        with self._lock:
            if not self.is_over:
                self.is_over = True
                self._send(line)

    def notify(self, line):
        """Send something that belongs to the request and must come before its answer."""
        with self._lock:
            if not self.is_over:
                self._notify(line)

    def hush(self):
        """Let nothing more leave for this request."""
        with self._lock:
            was_over, self.is_over = self.is_over, True
            if not was_over:
                self._send(b"")


def error_line(id_text, code, text, data=None):
    if data is None:
        return wire.error(id_text, code, text)
    error = wire.encode({"code": code, "message": text, "data": data}).rstrip(b"\n")
    return b'{"jsonrpc":"2.0","id":' + id_text + b',"error":' + error + b"}\n"


class Batch:
    """The answers to the members of one line, sent as one line when all are there (2025-03-26)."""

    def __init__(self, expected, send):
        self._send = send
        # Protects the two below.
        self._lock = threading.Lock()
        self._missing = expected
        self._lines = []

    def take(self, line):
        """Take the answer of one member; b"" where there is none."""
        with self._lock:
            self._missing -= 1
            if line:
                self._lines.append(line.rstrip(b"\n"))
            is_whole = self._missing == 0 and self._lines
        if is_whole:
            self._send(b"[" + b",".join(self._lines) + b"]\n")


class Crew:
    """Threads that do tasks: started when all are busy, up to a limit, and used again."""

    def __init__(self, limit, waiting):
        self._limit = limit
        self._waiting = waiting
        self._tasks = queue.SimpleQueue()
        # Protects the counts.
        self._lock = threading.Lock()
        self._threads = self._idle = 0

    def do(self, task):
        """Have a thread call task(). Return False when too many tasks wait already."""
        with self._lock:
            if self._idle > self._tasks.qsize():
                pass
            elif self._threads < self._limit:
                self._threads += 1
                # Daemons: a tool that never returns must not keep the program from ending.
                threading.Thread(target=self._work, name=f"mcp.call.{self._threads}", daemon=True).start()
            elif self._tasks.qsize() >= self._waiting:
                return False
            self._tasks.put(task)
        return True

    def _work(self):
        while True:
            with self._lock:
                self._idle += 1
            task = self._tasks.get()
            with self._lock:
                self._idle -= 1
            task()
            del task  # its result must not live until the next one
