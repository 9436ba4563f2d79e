"""What every test of the relay needs: real processes, pumped without deadlock, waited for by events.

Nothing here sleeps and nothing measures time. Each wait ends on an event (bytes, end of a stream, end of a
process); LIMIT_S only bounds a test that would otherwise hang, and running into it fails loudly with what both
sides said.
"""

import collections
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import unicodedata

import pytest

TESTS = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(TESTS)
#: The file under test; the variable points the tests at another copy (an installed or vendored one).
RELAY = os.environ.get("MCP_RELAY_UNDER_TEST") or os.path.join(ROOT, "mcp_relay.py")
SERVERS = os.path.join(TESTS, "servers")

#: Seconds until a wait gives up. Generous: a loaded machine must not turn a correct relay red.
LIMIT_S = float(os.environ.get("MCP_RELAY_TEST_LIMIT_S", "40"))

Result = collections.namedtuple("Result", "code out err")


def server(name, *args):
    """Command line of the fixture server tests/servers/NAME.py under the Python that runs the tests."""
    return [sys.executable, "-I", "-S", os.path.join(SERVERS, name + ".py")] + [str(arg) for arg in args]


def need(present, sentence):
    """Skip with a sentence when something a test needs is absent; under CI=true that is a failure instead."""
    if present:
        return
    if os.environ.get("CI") == "true":
        pytest.fail("needed under CI: " + sentence)
    pytest.skip(sentence)


def our_lines(err):
    """Lines of the relay itself in its stderr (bytes), as text without their prefix."""
    prefix = "mcp_relay: "
    return [line[len(prefix):] for line in err.decode("utf-8", "replace").split("\n") if line.startswith(prefix)]


def dangerous(text):
    """Characters of text that act on a terminal: controls except newline, bidi and other invisible formats."""
    return [hex(ord(each)) for each in text
            if each != "\n" and unicodedata.category(each) in ("Cc", "Cf", "Zl", "Zp", "Cs")]


def quiet_environment(home, port):
    """The tests' own environment without relay settings; home and port point where no hub can answer."""
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith(("MCP_RELAY_", "GRAPHMIND_", "PYTEST_"))}
    environment.update(MCP_RELAY_HOME=str(home), MCP_RELAY_PORT=str(port))
    return environment


def patched(path, *lines):
    """Write a program that runs the relay after these lines of Python, which see its module as `relay`; return path.

    It takes the relay's file as its first argument and imports it, so that it is compiled once and not at each start.
    """
    with open(path, "w") as program:
        program.write("\n".join(["import importlib.util, sys",
                                 "spec = importlib.util.spec_from_file_location('mcp_relay', sys.argv[1])",
                                 "relay = importlib.util.module_from_spec(spec)",
                                 "spec.loader.exec_module(relay)",
                                 *lines,
                                 "relay.main(sys.argv[2:])\n"]))
    return str(path)


def reserve_port():
    """Return (socket, port): bound to 127.0.0.1 but not listening, so that nobody else gets the port and a
    connection to it is refused. Listen on the socket to let a hub double appear there."""
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    return holder, holder.getsockname()[1]


class Stream:
    """Everything one descriptor has delivered so far, collected by a thread of its own.

    Attributes: data (bytearray, grows), ended (True after end of file). Guarded by the session's condition.
    """

    def __init__(self, session, descriptor, name):
        self.session, self.descriptor, self.name = session, descriptor, name
        self.data, self.ended = bytearray(), False
        self.thread = threading.Thread(target=self._read, name="test." + name, daemon=True)

    def _read(self):
        while True:
            try:
                chunk = os.read(self.descriptor, 1 << 18)
            except OSError:  # the test closed its end: for the test that is the end of the stream
                chunk = b""
            with self.session.changed:
                self.data += chunk
                self.ended = not chunk
                self.session.changed.notify_all()
            if not chunk:
                return

    def finder(self, needle):
        """A function that says whether needle (bytes) has arrived; it looks at each byte once."""
        looked = [0]

        def found():
            start, looked[0] = max(0, looked[0] - len(needle)), len(self.data)
            return self.data.find(needle, start) >= 0

        return found


class Session:
    """One running command with its three pipes pumped by threads, so that no test can deadlock on a full pipe.

    argv: the whole command. reading: names of the streams to read from the start ("stdout", "stderr"); the
    others are read from start_reading() on. Further keywords go to subprocess.Popen. The command leads a
    session of its own unless start_new_session=False, as under the official clients.
    """

    def __init__(self, argv, reading=("stdout", "stderr"), **popen):
        popen.setdefault("start_new_session", True)
        for name in ("stdin", "stdout", "stderr"):
            popen.setdefault(name, subprocess.PIPE)
        self.argv = argv
        self.changed = threading.Condition()
        self.process = subprocess.Popen(argv, bufsize=0, **popen)
        self.pid = self.process.pid
        self.leads_group = popen["start_new_session"]
        self.streams = {}
        for name in ("stdout", "stderr"):
            pipe = getattr(self.process, name)
            if pipe is not None:
                self.streams[name] = Stream(self, pipe.fileno(), name)
        self._outgoing = queue.Queue()
        if self.process.stdin is not None:
            threading.Thread(target=self._feed, name="test.stdin", daemon=True).start()
        for name in reading:
            self.start_reading(name)

    def _feed(self):
        descriptor = self.process.stdin.fileno()
        while True:
            data = self._outgoing.get()
            if data is None:
                break
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(descriptor, view):]
            except OSError:  # the other side is gone; what it did is judged by its output and its exit
                break
        self.process.stdin.close()

    def start_reading(self, name):
        """Begin to drain stdout or stderr."""
        if name in self.streams:
            self.streams[name].thread.start()

    @property
    def out(self):
        """stdout so far, as bytes."""
        return bytes(self.streams["stdout"].data)

    @property
    def err(self):
        """stderr so far, as bytes."""
        return bytes(self.streams["stderr"].data)

    def send(self, data):
        """Queue bytes for the command's stdin; never blocks."""
        self._outgoing.put(bytes(data))
        return self

    def close_stdin(self):
        """Close stdin after everything sent so far was written."""
        self._outgoing.put(None)
        return self

    def wait_until(self, claim, what):
        """Block until claim() holds; checked whenever bytes arrive or a stream ends."""
        deadline = time.monotonic() + LIMIT_S
        with self.changed:
            while not claim():
                over = all(stream.ended for stream in self.streams.values())
                left = deadline - time.monotonic()
                if over or left <= 0:
                    pytest.fail("%s: %s\n%s" % (what, "the process ended first" if over else "did not happen",
                                                self.report()), pytrace=True)
                self.changed.wait(left)

    def wait_out(self, needle):
        """Block until stdout holds needle (bytes, or a number of bytes)."""
        if isinstance(needle, int):
            data = self.streams["stdout"].data
            self.wait_until(lambda: len(data) >= needle, "%d bytes on stdout" % needle)
        else:
            self.wait_until(self.streams["stdout"].finder(needle), "%r on stdout" % needle)
        return self.out

    def wait_err(self, needle):
        """Block until stderr holds needle (bytes)."""
        self.wait_until(self.streams["stderr"].finder(needle), "%r on stderr" % needle)
        return self.err

    def wait(self):
        """Block until the command ended by itself and its pipes are drained; return Result(code, out, err)."""
        try:
            code = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            pytest.fail("the process did not end by itself\n" + self.report(), pytrace=True)
        for stream in self.streams.values():
            if stream.thread.ident is None:
                stream.thread.start()
            stream.thread.join(LIMIT_S)
            if not stream.ended:
                pytest.fail("%s was not closed although the process ended\n%s" % (stream.name, self.report()))
        return Result(code, *(bytes(self.streams[name].data) if name in self.streams else b""
                              for name in ("stdout", "stderr")))

    def finish(self):
        """Close stdin and wait()."""
        return self.close_stdin().wait()

    def signal(self, number):
        """Send a signal to the command itself (not to its group)."""
        self.process.send_signal(number)

    def report(self):
        """What both sides said, for a failing test: the relay mirrors its server's stderr into its own."""
        parts = ["command: %s" % " ".join(map(str, self.argv)), "exit code so far: %s" % self.process.poll()]
        for name, stream in self.streams.items():
            tail = bytes(stream.data[-3000:]).decode("utf-8", "backslashreplace")
            parts.append("%s (%d bytes, last ones):\n%s" % (name, len(stream.data), tail))
        return "\n".join(parts)

    def destroy(self):
        """Kill what is left of this session; for the end of a test only."""
        if self.leads_group:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass  # nobody is left
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT_S)
        self.close_stdin()


class Lifeline:
    """A FIFO that fixture servers and their descendants hold open for as long as they live.

    Each holder writes words into it ("alive 4711", "got SIGTERM"); when the last holder is gone the reader
    sees end of file. That is an event, which a process id is not.
    """

    def __init__(self, path):
        self.path = str(path)
        os.mkfifo(self.path)
        self.descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self.text = ""

    def _read(self, what):
        ready, _, _ = select.select([self.descriptor], [], [], LIMIT_S)
        if not ready:
            pytest.fail("%s did not happen; the processes said:\n%s" % (what, self.text))
        chunk = os.read(self.descriptor, 65536)
        self.text += chunk.decode("utf-8", "replace")
        return chunk

    def wait_for(self, word, times=1):
        """Block until the holders have written word that many times."""
        while self.text.count(word) < times:
            if not self._read("%d x %r" % (times, word)) and self.text:
                pytest.fail("all holders ended before %r; they said:\n%s" % (word, self.text))
        return self

    def wait_gone(self):
        """Block until the last holder is gone."""
        while self._read("the end of every process on the lifeline"):
            pass

    def pids(self):
        """Process ids of all holders so far."""
        return [int(line.split()[1]) for line in self.text.splitlines() if line.startswith("alive ")]

    def destroy(self):
        """Kill holders that are still there (known by the ids they wrote) and remove the FIFO."""
        ready, _, _ = select.select([self.descriptor], [], [], 0)
        still_held = not ready or os.read(self.descriptor, 65536)
        for pid in self.pids() if still_held else []:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # this holder is gone, another one is not
        os.close(self.descriptor)
