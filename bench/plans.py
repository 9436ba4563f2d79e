#!/usr/bin/env python3
"""Measure the plan engine and judge it by its goals.

    python3 bench/plans.py [chain wide validate catalog map] [--json] [--rounds N]

chain     1,000 reshape steps in a row: overhead per step, input and document checks included, with and without a record
wide      1,000 independent reading steps of 10 ms, concurrency 32, against the ideal of 1,000 * 10 ms / 32
validate  problems of a plan of 1,000 steps against this catalog, and how the time grows from 1,000 to 4,000 steps
catalog   `graph plan list` of 500 plans, as a process
map       100,000 items: memory beyond the results themselves, per item

Medians of some rounds. A table goes to stdout; the exit code is 1 when a goal is missed. Close other programs first.
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
import tracemalloc

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from graphlib_plans import control, config, documents, execution, records, tools, validation, workspace

#: Goal of each figure: the most it may be.
GOALS = {
    "chain, µs per step": 150,
    "chain with a record, µs per step": 150,
    "wide, times the ideal": 1.25,
    "validate 1,000 steps, s": 0.5,
    "validate 4,000 steps, times 1,000 steps": 5,  # linear would be 4
    "catalog of 500 plans, s": 1.0,
    "map, bytes per item beyond the results": 200,
}
STEP_S = 0.010


class Waiting:
    """A tools.Source with one reading tool that takes 10 ms."""

    prefix = label = "w"

    def __init__(self):
        schema = {"type": "object"}
        self._tools = [
            tools.Tool("w__wait", "w", "wait", schema, self.wait, annotations={"readOnlyHint": True}),
        ]

    def wait(self, arguments, context):
        context.cancel.wait(STEP_S)

    def known(self):
        return self._tools

    def tools(self, context):
        return self._tools

    def notes(self):
        return []

    def close(self):
        pass


def make_plan(*steps, **fields):
    document = {"identifier": "bench", "name": "bench", "description": "", "steps": list(steps), **fields}
    return documents.to_plan(document)


def chain(count):
    """Return a plan whose every step reads the one before it."""
    steps = [{"id": "E0", "tool": "builtin__reshape", "input": {"shape": {"v": "{{input.v}}"}}}]
    for number in range(1, count):
        shape = {"v": f"{{{{E{number - 1}.v}}}}"}
        steps.append({"id": f"E{number}", "tool": "builtin__reshape", "input": {"shape": shape}})
    rule = {"type": "object", "properties": {"v": {"type": "integer"}}}
    return make_plan(*steps, input_schema=rule, output={"v": f"{{{{E{count - 1}.v}}}}"})


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def median(function, rounds):
    function()
    return statistics.median(seconds(function) for _ in range(rounds))


def run(plan, services, arguments, **options):
    outcome = execution.run(plan, arguments, services, **options)
    if outcome.kind != "ran":
        raise SystemExit(f"bench: {outcome.error}")
    return outcome


def measure_chain(space, folder, rounds):
    plan = chain(1000)
    plain = median(lambda: run(plan, space.services, {"v": 1}), rounds)

    def recorded():
        record = records.create(folder / "runs", plan, {"v": 1}, secrets=["a secret text"], now=time.time())
        run(plan, space.services, {"v": 1}, record=record)

    with_record = median(recorded, rounds)
    return {"chain, µs per step": plain * 1e3, "chain with a record, µs per step": with_record * 1e3}


def measure_wide(space, folder, rounds):
    registry = tools.Registry([Waiting()], {name: each.tool for name, each in control.CONTROLS.items()})
    services = execution.Services(
        registry, control.CONTROLS, None, documents.Catalog(), frozenset({"w"}), {}, config.Settings(folder), {}
    )
    plan = make_plan(*[{"id": f"E{n}", "tool": "w__wait", "input": {}} for n in range(1000)], concurrency=32)
    took = median(lambda: run(plan, services, {}), max(1, rounds // 2))
    return {"wide, times the ideal": took / (1000 * STEP_S / 32)}


def measure_validate(space, folder, rounds):
    took = {}
    for count in (1000, 4000):
        document = chain(count).document
        took[count] = median(lambda: space.validate(document), rounds)
        if validation.static_problems(document):
            raise SystemExit("bench: the plan has problems")
    ratio = took[4000] / took[1000]
    return {"validate 1,000 steps, s": took[1000], "validate 4,000 steps, times 1,000 steps": ratio}


def measure_catalog(space, folder, rounds):
    plans = folder / "many/.graph/plans"
    plans.mkdir(parents=True)
    for number in range(500):
        document = {**chain(10).document, "identifier": f"plan_{number:03}"}
        (plans / f"plan_{number:03}.json").write_text(documents.to_text(document))
    command = [sys.executable, "-m", "graphlib_plans", "--dir", str(folder / "many"), "plan", "list"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder)}

    def listing():
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        if len(done.stdout.splitlines()) != 500:
            raise SystemExit(f"bench: {done.stdout}{done.stderr}")

    return {"catalog of 500 plans, s": median(listing, rounds)}


def measure_map(space, folder, rounds):
    body = {"tool": "builtin__reshape", "input": {"shape": "{{item}}"}}
    over = {"over": "{{input.items}}", "do": body, "concurrency": 8}
    plan = make_plan({"id": "M", "tool": "map", "input": over}, output={"n": "{{M.count}}"})
    items = list(range(100_000))
    run(plan, space.services, {"items": items[:100]})
    tracemalloc.start()
    run(plan, space.services, {"items": items})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    results = sys.getsizeof([None] * len(items))  # the items themselves are shared
    return {"map, bytes per item beyond the results": (peak - results) / len(items)}


PIECES = {
    "chain": measure_chain,
    "wide": measure_wide,
    "validate": measure_validate,
    "catalog": measure_catalog,
    "map": measure_map,
}


def main():
    parser = argparse.ArgumentParser(description="Measure the plan engine.")
    parser.add_argument("pieces", nargs="*", metavar="piece", help=", ".join(PIECES))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    unknown = set(arguments.pieces) - set(PIECES)
    if unknown:
        parser.error(f"there is no piece {', '.join(sorted(unknown))}; known: {', '.join(PIECES)}")
    figures = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        space = workspace.open_workspace(folder, {**os.environ, "HOME": name})
        try:
            for piece in arguments.pieces or PIECES:
                figures.update(PIECES[piece](space, folder, arguments.rounds))
        finally:
            space.close()
    missed = [name for name, figure in figures.items() if figure > GOALS[name]]
    if arguments.json:
        print(json.dumps({name: {"figure": figure, "goal": GOALS[name]} for name, figure in figures.items()}, indent=2))
    else:
        for name, figure in figures.items():
            print(f"{name:<42} {figure:>10.3f}   goal {GOALS[name]:<6g} {'MISSED' if name in missed else 'ok'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
