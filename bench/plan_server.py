#!/usr/bin/env python3
"""Measure the plan server against its goals: listing, calls one by one and many at once, start, memory.

    python3 bench/plan_server.py [list call flight start memory] [--json] [--calls N]

Every piece starts the server on a folder of its own and talks to it over pipes. A table goes to stdout; the exit code
is 1 when a goal is missed. Close other programs first: two busy cores decide. `memory` reads /proc, so it is left out
where there is none.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]

#: piece → (what it measures, unit, goal, whether more is better)
GOALS = {
    "list": ("tools/list with 200 plans, after the first", "ms", 20.0, False),
    "call": ("a plan of five reshape steps, one client", "ms", 5.0, False),
    "flight": ("the same, 16 calls in flight", "calls/s", 300.0, True),
    "start": ('start to first answer, against python3 -c "import json"', "times", 2.5, False),
    "memory": ("growth over the calls, after a tenth of them", "MiB", 8.0, False),
}


def plan(identifier):
    """Return a plan of five steps that reshape."""
    steps = [
        {"id": "s0", "tool": "builtin__reshape", "input": {"shape": {"n": "{{input.n}}", "text": "n is {{input.n}}"}}}
    ]
    for index in range(1, 5):
        shape = {"n": f"{{{{s{index - 1}.n}}}}", "text": f"{{{{s{index - 1}.text}}}}!"}
        steps.append({"id": f"s{index}", "tool": "builtin__reshape", "input": {"shape": shape}})
    rule = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    return {"identifier": identifier, "name": identifier, "description": "Measures.", "steps": steps,
            "input_schema": rule, "output": {"text": "{{s4.text}}"}}


class Server:
    """The server on a folder with some plans, spoken to line by line."""

    def __init__(self, folder, plans=1):
        home = pathlib.Path(tempfile.mkdtemp(dir=folder))
        directory = home / ".config" / "graph" / "plans"
        directory.mkdir(parents=True)
        for index in range(plans):
            (directory / f"p{index}.json").write_text(json.dumps(plan(f"p{index}")))
        self.environment = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT)}
        self.environment.pop("XDG_CONFIG_HOME", None)
        self.environment.pop("XDG_DATA_HOME", None)
        # As installed: byte code is compiled once. A checkout that may not keep it compiles at every start.
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self.environment["PYTHONPYCACHEPREFIX"] = str(pathlib.Path(folder) / "bytecode")
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "graphlib_plans", "mcp", "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=self.environment, cwd=self.environment["HOME"],
        )
        self.send(0, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {},
                                    "clientInfo": {"name": "bench", "version": "1"}})
        self.receive()
        return self

    def send(self, number, method, params=None):
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def receive(self):
        """Return the next answer; notifications are passed over."""
        while True:
            message = json.loads(self.process.stdout.readline())
            if "id" in message:
                return message

    def call(self, number):
        self.send(number, "tools/call", {"name": "plan_p0", "arguments": {"n": number}})

    def check(self, answer):
        assert answer["result"]["structuredContent"]["kind"] == "ran", answer

    def memory_mib(self):
        lines = pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def timed(function):
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


def measure_list(folder, calls):
    server = Server(folder, 200).start()

    def once():
        server.send(1, "tools/list")
        assert len(server.receive()["result"]["tools"]) > 200

    once()
    median = statistics.median(timed(once) for _ in range(50))
    server.stop()
    return median * 1000


def measure_call(folder, calls):
    server = Server(folder).start()

    def once():
        server.call(1)
        server.check(server.receive())

    for _ in range(20):
        once()
    median = statistics.median(timed(once) for _ in range(300))
    server.stop()
    return median * 1000


def in_flight(server, calls, width=16):
    """Make so many calls, `width` at a time."""
    for number in range(1, width + 1):
        server.call(number)
    for number in range(width + 1, calls + 1):
        server.check(server.receive())
        server.call(number)
    for _ in range(width):
        server.check(server.receive())


def measure_flight(folder, calls):
    server = Server(folder).start()
    in_flight(server, 200)
    seconds = timed(lambda: in_flight(server, 2000))
    server.stop()
    return 2000 / seconds


def measure_start(folder, calls):
    """Return the ratio of medians; both are taken in turn, so that a busy machine slows both."""
    server = Server(folder)
    ours, theirs = [], []
    for _ in range(15):
        ours.append(timed(server.start))
        server.stop()
        line = [sys.executable, "-c", "import json"]
        theirs.append(timed(lambda: subprocess.run(line, check=True, env=server.environment)))
    return statistics.median(ours[1:]) / statistics.median(theirs[1:])


def measure_memory(folder, calls):
    if not os.path.isdir("/proc/self"):
        return None
    server = Server(folder).start()
    in_flight(server, calls // 10)
    before = server.memory_mib()
    in_flight(server, calls)
    growth = server.memory_mib() - before
    server.stop()
    return growth


MEASURES = {"list": measure_list, "call": measure_call, "flight": measure_flight, "start": measure_start,
            "memory": measure_memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pieces", nargs="*", choices=[*MEASURES, []], help="default: all of them")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--calls", type=int, default=20000, help="calls of the memory piece (default: 20000)")
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for piece in options.pieces or MEASURES:
            value = MEASURES[piece](folder, options.calls)
            what, unit, goal, more = GOALS[piece]
            met = value is None or (value >= goal if more else value <= goal)
            results[piece] = {"what": what, "value": value, "unit": unit, "goal": goal, "met": met}
            if not options.json:
                shown = "not measured here" if value is None else f"{value:8.2f} {unit}"
                limit = "at least" if more else "at most"
                print(
                    f"{piece:8} {shown:20} goal: {limit} {goal:g} {unit:8} {'ok' if met else 'MISSED'}   {what}",
                    flush=True,
                )
    if options.json:
        print(json.dumps(results, indent=2))
    return 0 if all(result["met"] for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
