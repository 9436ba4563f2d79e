#!/usr/bin/env python3
"""Measure the unattached relay against the least a relay in Python can do, and judge it by its goals.

    python3 bench/relay.py [small big latency start memory cached linear growth] [--json] [--rounds N] [--relay FILE]

Each piece runs the relay and the pump (bench/pump.py) alternately in front of an echo, in this same Python, and
compares medians. A table goes to stdout; the exit code is 1 when a goal is missed. Close other programs first: two
busy cores decide. `memory` and `growth` read /proc, so they are left out where there is none.
"""
import argparse
import compileall
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20


def frame(size):
    """Return one JSON-RPC request of exactly size bytes, newline included."""
    head, tail = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","text":"', b'"}}\n'
    return head + b"x" * (size - len(head) - len(tail)) + tail


def build_echo(folder):
    """Return (command, what it is): a compiled echo, or a Python one where there is no C compiler."""
    binary = os.path.join(folder, "echo")
    compiler = shutil.which("cc")
    if compiler and subprocess.call([compiler, "-O2", "-o", binary, str(HERE / "echo.c")]) == 0:
        return [binary], "C"
    code = "import os\nwhile 1:\n c=os.read(0,65536)\n if not c: break\n while c: c=c[os.write(1,c):]"
    return [sys.executable, "-I", "-S", "-c", code], "Python"


class Subject:
    """One running relay or pump. pid is its own, not the echo's."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.source, self.target = self.process.stdin.fileno(), self.process.stdout.fileno()

    def write(self, data, block=65536):
        for start in range(0, len(data), block):
            view = memoryview(data)[start:start + block]
            while view:
                view = view[os.write(self.source, view):]

    def read(self, count):
        """Read exactly count bytes and drop them."""
        while count:
            chunk = os.read(self.target, min(count, 65536))
            if not chunk:
                raise SystemExit("bench: %r ended early" % (self.process.args,))
            count -= len(chunk)

    def pipeline(self, data, times, block=65536):
        """Write data so many times while reading it back; return seconds until the last byte is back."""
        def write():
            for _ in range(times):
                self.write(data, block)
        writer = threading.Thread(target=write)
        begun = time.perf_counter()
        writer.start()
        self.read(len(data) * times)
        took = time.perf_counter() - begun
        writer.join()
        return took

    def status_kib(self, name):
        """Return one memory figure of /proc/PID/status in KiB: VmHWM (peak) or VmRSS (at present)."""
        with open("/proc/%d/status" % self.process.pid) as file:
            return next(int(line.split()[1]) for line in file if line.startswith(name + ":"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


class Bench:
    """The commands to compare and how often. relay and pump are whole command lines in front of the echo."""

    def __init__(self, relay, pump, rounds):
        self.relay, self.pump, self.rounds = relay, pump, rounds

    def medians(self, measure):
        """Run measure(command) alternately on both; return (relay's median, pump's median)."""
        seen = {"relay": [], "pump": []}
        for _ in range(self.rounds):
            seen["relay"].append(measure(self.relay))
            seen["pump"].append(measure(self.pump))
        return statistics.median(seen["relay"]), statistics.median(seen["pump"])


# Each piece returns rows (what, relay, pump or None, unit, judged value, "at least" or "at most", goal).

def throughput(bench, label, size, total, goal):
    block = frame(size) * (16 * MIB // size)      # long, so that only its end is a short write
    times = total // len(block)

    def rate(command):
        with Subject(command) as subject:
            subject.pipeline(block, 1)      # warm-up
            return times * len(block) / MIB / subject.pipeline(block, times)
    relay, pump = bench.medians(rate)
    return [(label, relay, pump, "MiB/s", relay / pump, "at least", goal)]


def small(bench):
    return throughput(bench, "200-byte frames, pipelined", 200, 256 * MIB, 0.7)


def big(bench):
    return throughput(bench, "1 MiB frames", MIB, 1024 * MIB, 0.8)


def latency(bench):
    one = frame(200)

    def round_trip(command):
        with Subject(command) as subject:
            took = []
            for _ in range(3000):
                begun = time.perf_counter()
                subject.write(one)
                subject.read(len(one))
                took.append(time.perf_counter() - begun)
            return statistics.median(took[500:]) * 1e6
    relay, pump = bench.medians(round_trip)
    return [("round trip of one 200-byte frame", relay, pump, "us", relay / pump, "at most", 1.3)]


def start(bench):
    one = frame(200)

    def first_byte(command):
        begun = time.perf_counter()
        with Subject(command) as subject:
            subject.write(one)
            subject.read(1)
            took = time.perf_counter() - begun
            subject.read(len(one) - 1)
            return took * 1e3
    bench = Bench(bench.relay, bench.pump, bench.rounds * 3)
    relay, pump = bench.medians(first_byte)
    return [("start to first byte", relay, pump, "ms", relay / pump, "at most", 2.2)]


def memory(bench):
    def peak(command, size, total):
        with Subject(command) as subject:
            data = frame(size) * max(1, 65536 // size)
            subject.pipeline(data, total // len(data))
            return subject.status_kib("VmHWM") / 1024
    rows = []
    for label, size, goal in (("200-byte", 200, 24), ("1 MiB", MIB, 48)):
        relay, pump = peak(bench.relay, size, 128 * MIB), peak(bench.pump, size, 128 * MIB)
        rows.append(("peak memory, %s frames" % label, relay, pump, "MiB", relay, "at most", goal))
    return rows


def cached(bench):
    """Start and memory of the relay as an imported module: `mcp-relay`, `python3 -m mcp_relay`.

    Python keeps the bytecode of a module and compiles a script anew at every start, which is what the difference to
    `start` and `memory` shows.
    """
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(bench.relay[1], os.path.join(folder, "mcp_relay.py"))
        compileall.compile_dir(folder, quiet=1)
        code = "import sys; sys.path.insert(0, %r); import mcp_relay; mcp_relay.main()" % folder
        module = Bench([sys.executable, "-c", code] + bench.relay[2:], bench.pump, bench.rounds)
        rows = start(module) + memory(module)[:1]
    return [("as a module: " + row[0],) + row[1:] for row in rows]


def linear(bench):
    """A frame four times as long may take four times as long, and a quarter more for noise."""
    quarter, whole = 25 * 10**6, 100 * 10**6

    def seconds(command, size):
        def once():
            with Subject(command) as subject:
                subject.pipeline(frame(200), 1)     # so that the start is not measured
                return subject.pipeline(frame(size), 1, block=4096)
        return statistics.median(once() for _ in range(3))
    pump, rows = seconds(bench.pump, whole), []
    # Twice: above the default ceiling, where the relay becomes a raw pipe on the way, and below a raised one.
    for label, options in (("100 MB frame in 4 KB writes", []),
                           ("the same under a ceiling of 200 MB", ["--max-frame-bytes", "200000000"])):
        command = bench.relay[:2] + options + bench.relay[2:]
        took = seconds(command, whole)
        rows.append((label, took, pump, "s", took / seconds(command, quarter), "at most", 5.0))
    return rows


def growth(bench):
    """Resident memory after 200,000 more frames than the bounded history could need."""
    def rss(command):
        with Subject(command) as subject:
            subject.pipeline(frame(200) * 250, 400)
            warm = subject.status_kib("VmRSS")
            subject.pipeline(frame(200) * 250, 800)
            return (subject.status_kib("VmRSS") - warm) / 1024
    relay, pump = rss(bench.relay), rss(bench.pump)
    return [("growth over 200,000 frames", relay, pump, "MiB", relay, "at most", 1.0)]


PIECES = {piece.__name__: piece for piece in (small, big, latency, start, memory, cached, linear, growth)}


def holds(value, relation, goal):
    return value >= goal if relation == "at least" else value <= goal


def is_met(row):
    """Say whether a row meets its goal; one without a goal does."""
    return row[-1] is None or holds(*row[4:])


def judge(rows, options, ground, columns):
    """Print the rows as a table or as JSON; return the exit code, 1 when a goal is missed.

    ground: (word, what the measured commands stood in front of). columns: names of the second and third figure; an
    unmeasured figure and a goal that is not set are None.
    """
    version = sys.version.split()[0]
    if options.json:
        keys = ("what", *columns, "unit", "judged", "relation", "goal")
        print(json.dumps({"python": version, ground[0]: ground[1],
                          "rows": [dict(zip(keys, row), ok=is_met(row)) for row in rows]}, indent=1))
    else:
        print("Python %s, %s in %s, medians of %d" % (version, *ground, options.rounds))
        print("%-40s %10s %10s %-7s %7s  %-13s" % ("", *columns, "", "judged", "goal"))
        for row in rows:
            what, first, second, unit, value, relation, goal = row
            figures = ["" if figure is None else "%.2f" % figure for figure in (first, second)]
            line = "%-40s %10s %10s %-7s" % (what, *figures, unit)
            if goal is not None:
                verdict = "ok" if is_met(row) else "MISSED"
                line += " %7.2f  %-13s %s" % (value, "%s %g" % (relation, goal), verdict)
            print(line.rstrip())
    return 0 if all(map(is_met, rows)) else 1


def command_line(description, pieces):
    """Return the argument parser that the benchmarks share; read it with chosen()."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("pieces", nargs="*", metavar="PIECE", help="of: %s (default: all)" % " ".join(pieces))
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--rounds", type=int, default=5, help="alternating runs per comparison (default 5)")
    parser.add_argument("--relay", default=str(HERE.parent / "mcp_relay.py"), help="another relay file to measure")
    return parser


def chosen(parser, pieces):
    """Read the command line; return (options, names of the pieces to measure)."""
    options = parser.parse_args()
    unknown = [piece for piece in options.pieces if piece not in pieces]
    if unknown:
        parser.error("no such piece: %s" % ", ".join(unknown))
    return options, options.pieces or list(pieces)


def measure(names, pieces, bench):
    """Run the named pieces one after the other; return the rows of all."""
    rows = []
    for name in names:
        print("measuring: %s" % name, file=sys.stderr)
        rows += pieces[name](bench)
    return rows


def main():
    parser = command_line("Measure the unattached relay against a two-thread byte pump.", PIECES)
    options, pieces = chosen(parser, PIECES)
    if not os.path.exists("/proc/self/status"):
        pieces = [piece for piece in pieces if piece not in ("memory", "growth")]
    with tempfile.TemporaryDirectory() as folder:
        echo, kind = build_echo(folder)
        relay = [sys.executable, options.relay, "--home", folder, "--port", "1", "--"] + echo
        bench = Bench(relay, [sys.executable, str(HERE / "pump.py")] + echo, options.rounds)
        rows = measure(pieces, PIECES, bench)
    return judge(rows, options, ("echo", kind), ("relay", "pump"))


if __name__ == "__main__":
    sys.exit(main())
