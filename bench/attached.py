#!/usr/bin/env python3
"""Measure the relay while a debugger watches, and judge it by its goals.

    python3 bench/attached.py [cost latency memory gaps linear] [--json] [--rounds N] [--relay FILE] [--profile]

cost     CPU time of the relay over 20,000 pipelined calls of 200 bytes and their answers, until the debugger has
         recorded them, against json.loads of the same frames in this same Python; and calls per second
latency  the round trip that the attached relay adds, against what the unattached one adds
memory   growth of the relay over 200,000 calls after a warm-up
gaps     what the debugger has of 20,000 pipelined calls: every event, or a gap event that says what was dropped
linear   how much longer a frame of 40 MB takes than one of 10 MB

A debugger records to SQLite, nothing is armed, the server is the leanest there is. No two calls are the same, since
the relay holds a client that repeats itself. Medians of alternating runs; a table goes to stdout; the exit code is 1
when a goal is missed. CPU time and memory are read the Linux way, so `cost` and `memory` are left out elsewhere.
--profile measures nothing: it prints where the relay's threads spend their time during one run of `cost`.
"""
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from relay import HERE, Subject, chosen, command_line, judge, measure

sys.path.insert(0, str(HERE.parent))

from mcp_relay import Client

#: Bytes of a frame, calls of one measurement, calls that come before it, and calls at a time where memory is measured.
FRAME, CALLS, WARM_UP, IN_FLIGHT = 200, 20000, 2000, 200
#: The first id: with seven digits each, all frames are of one length.
FIRST_ID = 1000000
#: Seconds to wait for the debugger, whatever the machine does beside this.
PATIENCE_S = 120


def padded(text):
    """Return a frame of FRAME bytes; text has an @ where it can be stretched."""
    return text.replace("@", "x" * (FRAME - len(text))).encode() + b"\n"


def call(number):
    return padded('{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":{"n":%d,'
                  '"text":"@"}}}' % (FIRST_ID + number, number))


def answer(number):
    return padded('{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"@"}],"isError":false}}'
                  % (FIRST_ID + number))


def calls(first, count):
    return b"".join(map(call, range(first, first + count)))


def build_server(folder):
    """Return (command, what it is) of the tool server: compiled, or in Python where there is no C compiler."""
    binary, template = os.path.join(folder, "answer"), answer(0).decode().rstrip("\n")
    compiler = shutil.which("cc")
    if compiler and subprocess.call([compiler, "-O2", "-o", binary, str(HERE / "answer.c")]) == 0:
        return [binary, template], "C"
    code = ("import sys\nhead, tail = sys.argv[1][:22].encode(), sys.argv[1][29:].encode() + b'\\n'\n"
            "for line in sys.stdin.buffer:\n"
            " sys.stdout.buffer.write(head + line[22:29] + tail)\n sys.stdout.buffer.flush()")
    return [sys.executable, "-I", "-S", "-c", code, template], "Python"


class Debugger:
    """A running `mcp_relay.py serve` with a database in a folder of its own, and what it knows of runs."""

    def __init__(self, relay, folder):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.home = os.path.join(folder, "home")
        self.process = subprocess.Popen(
            [sys.executable, relay, "serve", "--json", "--port", str(self.port), "--home", self.home,
             "--db", os.path.join(folder, "runs.db"), "--unattended-after", "0", "--pause-on-error", "off"],
            stdout=subprocess.PIPE)
        if not self.process.stdout.readline():
            raise SystemExit("bench: the debugger did not start")
        self._client = Client(self.home, self.port)
        self._seen = set()

    def run(self, name):
        return self._client.ask("GET", "/api/runs/" + name, wait_s=PATIENCE_S)

    def events(self, name):
        """Yield every event of a run."""
        after = 0
        while after is not None:
            page = self._client.ask("GET", "/api/runs/%s/events?limit=1000&after=%d" % (name, after), wait_s=PATIENCE_S)
            yield from page["events"]
            after = page["next"]

    def await_attached(self):
        """Return the name of the run that has just attached, once its first events are recorded."""
        def found():
            runs = self._client.ask("GET", "/api/runs", wait_s=PATIENCE_S)["runs"]
            return next((run["run"] for run in runs
                         if run["attached"] and run["events"] and run["run"] not in self._seen), None)
        name = wait_until(found, "the relay did not attach")
        self._seen.add(name)
        return name

    def await_recorded(self, name, count):
        """Wait until so many calls, each with a start and an end, are recorded or told to be dropped."""
        def settled():
            before = self.run(name)["events"]
            time.sleep(0.1)
            return before >= 2 * count and self.run(name)["events"] == before
        wait_until(settled, "the debugger did not record %d calls" % count)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()


def wait_until(found, problem):
    """Ask again and again; return what is found. The pauses leave the processors to what is measured."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        value = found()
        if value:
            return value
        time.sleep(0.05)
    raise SystemExit("bench: %s within %d s" % (problem, PATIENCE_S))


class Session(Subject):
    """One tool server, alone or behind a relay, and the client that calls it."""

    def __init__(self, command, debugger=None):
        super().__init__(command)
        self.debugger = debugger
        self.count = 0
        self.name = debugger.await_attached() if debugger else None

    def call_many(self, count):
        """Make pipelined calls and return the seconds until the last answer; the record may lag behind."""
        data = calls(self.count, count)
        self.count += count
        return self.pipeline(data, 1)

    def await_recorded(self):
        """Wait until the debugger, if there is one, has all of it on record."""
        if self.debugger:
            self.debugger.await_recorded(self.name, self.count)

    def round_trips(self, count):
        """Return the median of so many round trips in seconds, after a warm-up of 500."""
        took = []
        for number in range(count + 500):
            one = call(number)
            begun = time.perf_counter()
            self.write(one)
            self.read(FRAME)
            took.append(time.perf_counter() - begun)
        return statistics.median(took[500:])

    def cpu_s(self):
        """Return the CPU time of this process so far: user and system, all threads, no children (Linux).

        wait4 would add the server's. This clock's number is made as clock_getcpuclockid(3) does.
        """
        return time.clock_gettime(~self.process.pid << 3 | 2)


class Bench:
    """The command lines to compare, how often, and the debugger that watches one of them."""

    def __init__(self, server, relay, debugger, rounds):
        self.server, self.debugger, self.rounds = server, debugger, rounds
        self._relay = [sys.executable, relay, "--home", debugger.home]

    def direct(self):
        return Session(self.server)

    def unattached(self):
        return Session(self._relay + ["--no-report", "--"] + self.server)

    def attached(self, report=None, server=None):
        """report: a file for the profile of the relay's threads, or None. server: another one than usual."""
        command = self._relay + ["--port", str(self.debugger.port), "--"] + (server or self.server)
        if report:
            command[1:1] = [str(HERE / "profiled.py"), report]
        return Session(command, self.debugger)

    def medians(self, *measures):
        """Run each measure in turn, round after round; return the median of each."""
        return [statistics.median(seen) for seen in zip(*([measure() for measure in measures]
                                                          for _ in range(self.rounds)))]


# Each piece returns rows (what, baseline or None, attached, unit, judged value, "at most", goal); without a goal a
# row is told and not judged.

def cost(bench):
    frames = [each(number) for number in range(CALLS) for each in (call, answer)]
    rates = []

    def parse():
        begun = time.thread_time()
        for frame in frames:
            json.loads(frame)
        return time.thread_time() - begun

    def unattached():
        with bench.unattached() as session:
            session.call_many(WARM_UP)
            return CALLS / session.call_many(CALLS)

    def attached():
        with bench.attached() as session:
            session.call_many(WARM_UP)
            session.await_recorded()
            before = session.cpu_s()
            rates.append(CALLS / session.call_many(CALLS))
            session.await_recorded()
            return session.cpu_s() - before
    parsed, free, spent = bench.medians(parse, unattached, attached)
    rate = statistics.median(rates)
    return [("CPU of 20,000 calls (json.loads)", parsed * 1e3, spent * 1e3, "ms", spent / parsed, "at most", 6),
            ("calls per second (unattached)", free, rate, "1/s", None, None, None)]


def latency(bench):
    def trip(start):
        def measure():
            with start() as session:
                return session.round_trips(2500) * 1e6
        return measure
    direct, free, watched = bench.medians(trip(bench.direct), trip(bench.unattached), trip(bench.attached))
    free, watched = free - direct, watched - direct
    return [("added to a round trip (unattached)", free, watched, "us", watched / free, "at most", 4)]


def memory(bench):
    def growth(session):
        def calls_made(count):  # some at a time: how far a burst runs ahead of its answers is chance, and bounded
            for _ in range(count // IN_FLIGHT):
                session.call_many(IN_FLIGHT)
            session.await_recorded()
        calls_made(3 * CALLS)   # the bounded history is full behind them
        before = session.status_kib("VmRSS")
        calls_made(10 * CALLS)
        return (session.status_kib("VmRSS") - before) / 1024
    with bench.unattached() as session:
        free = growth(session)
    with bench.attached() as session:
        watched = growth(session)
    return [("growth over 200,000 calls (unattached)", free, watched, "MiB", watched, "at most", 2)]


def gaps(bench):
    with bench.attached() as session:
        session.call_many(CALLS)
        session.await_recorded()
        arrived = list(bench.debugger.events(session.name))
    told = [event for event in arrived if "fromSeq" in event]
    dropped = sum(event["dropped"] for event in told)
    real = len(arrived) - len(told)
    ended = sum(event["type"] == "node.finished" and event["status"] == "ok" for event in arrived)
    unsaid = arrived[-1]["seq"] - real - dropped
    return [("events that arrived (made)", arrived[-1]["seq"], real, "", None, None, None),
            ("answers among them (calls)", CALLS, ended, "", None, None, None),
            ("events told to be dropped, in gaps", None, dropped, "", None, None, None),
            ("events missing without a word", None, unsaid, "", unsaid, "at most", 0)]


def linear(bench):
    answer = b'{"jsonrpc":"2.0","id":1,"result":{}}\n'
    code = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(%r); sys.stdout.buffer.flush()" % answer
    with bench.attached(server=[sys.executable, "-I", "-S", "-c", code]) as session:
        def seconds(size):
            call = b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"text":"%s"}}\n' % (b"x" * size)
            begun = time.perf_counter()
            session.write(call)
            session.read(len(answer))
            return time.perf_counter() - begun
        short, long = bench.medians(lambda: seconds(10 ** 7), lambda: seconds(4 * 10 ** 7))
    return [("a frame of 40 MB (10 MB)", short, long, "s", long / short, "at most", 6)]


PIECES = {piece.__name__: piece for piece in (cost, latency, memory, gaps, linear)}


def profile(bench, folder):
    """Print where the relay spends its time over one warm-up and one measurement of `cost`."""
    if sys.version_info >= (3, 12):
        raise SystemExit("bench: --profile needs Python 3.11 or older: later ones allow one profiler per process")
    report = os.path.join(folder, "profile")
    with bench.attached(report) as session:
        session.call_many(WARM_UP + CALLS)
        session.await_recorded()
    with open(report) as file:
        print(file.read().strip())


def main():
    parser = command_line("Measure the relay while a debugger watches.", PIECES)
    parser.add_argument("--profile", action="store_true", help="print the relay's dearest functions instead")
    options, pieces = chosen(parser, PIECES)
    if not sys.platform.startswith("linux"):
        pieces = [piece for piece in pieces if piece not in ("cost", "memory")]
    with tempfile.TemporaryDirectory() as folder, Debugger(options.relay, folder) as debugger:
        server, kind = build_server(folder)
        bench = Bench(server, options.relay, debugger, options.rounds)
        if options.profile:
            return profile(bench, folder)
        rows = measure(pieces, PIECES, bench)
    return judge(rows, options, ("server", kind), ("baseline", "attached"))


if __name__ == "__main__":
    sys.exit(main())
