"""One call: what on_error, retry and timeout_s do, and what is told and counted."""

import time

import pytest

from graphlib_plans import calls, tools
from graphlib_plans.errors import BadPath, ToolError


def fail(message, **options):
    def raising(arguments):
        raise ToolError(message, **options)

    return raising


# on_error, retry, timeout ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_error", "result"),
    [("continue", {"error": "no"}), ({"v": "{{input.n}}"}, {"v": 5}), (None, None), ([], []), ("{{input.n}}", 5)],
)
def test_on_error_gives_a_failed_step_a_result(world, step, on_error, result):
    world.tool("break", fail("no"))
    failing = {**step("A", "t__break"), "on_error": on_error}
    outcome = world.run(failing, step("B", seen="{{A}}"), output={"seen": "{{B.seen}}"}, arguments={"n": 5})
    assert outcome.kind == "ran"
    assert outcome.output == {"seen": result}
    assert outcome.steps_executed == 2


def test_on_error_covers_templates_and_does_not_cover_the_end_of_a_run(world, step):
    outcome = world.run(step("A", v="{{input.x}}", on_error="continue"), output={"e": "{{A.error}}"})
    assert "{{input.x}}" in outcome.output["e"]
    gate = {"value": 1, "op": "eq", "to": 1}
    stopped = world.run(step("A", "exit", on_error="continue", when=gate, status="error", message="stop"))
    assert stopped.kind == "exit_error"


def test_a_step_is_tried_again_until_it_works(world, step):
    tries = []

    def shaky(arguments):
        tries.append(1)
        if len(tries) < 3:
            raise ToolError("busy")
        return "ok"

    world.tool("shaky", shaky)
    retry = {"attempts": 5, "backoff_s": 0}
    outcome = world.run(step("A", "t__shaky", retry=retry), output={"a": "{{A}}"})
    assert (outcome.output, len(tries)) == ({"a": "ok"}, 3)
    retries = [event for event in world.events if event["event"] == "step_retry"]
    assert [(event["attempt"], event["error"]) for event in retries] == [(2, "busy"), (3, "busy")]


def test_waits_between_tries_double(world, step, monkeypatch):
    waits = []
    monkeypatch.setattr(tools.CancelToken, "wait", lambda self, timeout_s=None: waits.append(timeout_s))
    world.tool("break", fail("no"))
    world.run(step("A", "t__break", retry={"attempts": 4, "backoff_s": 0.5}))
    assert waits == [0.5, 1.0, 2.0]


def test_what_cannot_work_is_not_tried_again(world, step):
    world.tool("break", fail("bad input", retryable=False))
    world.run(step("A", "t__break", retry={"attempts": 5, "backoff_s": 0}))
    assert len(world.calls) == 1


def test_a_limit_reaches_the_tool_as_its_deadline(world, step):
    def slow(arguments, context):
        context.cancel.wait(context.remaining())
        context.remaining()

    world.tool("slow", slow)
    outcome = world.run(step("A", "t__slow", timeout_s=0.01, retry={"attempts": 2, "backoff_s": 0}))
    assert outcome.kind == "step_failed"
    assert "time limit" in outcome.error
    assert len(world.calls) == 2  # each try has the limit for itself


def test_a_limit_holds_for_everything_inside_a_step(world, step):
    world.tool("left", lambda arguments, context: context.remaining())
    world.plan(step("E", "t__left"), identifier="inner", output={"left": "{{E}}"})
    outcome = world.run(step("A", "plan__inner", timeout_s=1000), output={"left": "{{A.left}}"})
    assert 0 < outcome.output["left"] <= 1000


def test_a_run_that_is_out_of_time_starts_nothing_more(world, step):
    outcome = world.run(step("A"), deadline=time.monotonic() - 1)
    assert (outcome.kind, world.calls) == ("step_failed", [])


# The parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (ToolError("no"), True),
        (ToolError("no", retryable=False), False),
        (BadPath("no"), False),
        (calls.StepFailed(ToolError("no"), "E1", "t__x"), True),
        (calls.StepFailed(BadPath("no"), "E1", "t__x"), False),
    ],
)
def test_what_may_be_tried_again(error, answer):
    assert calls.is_retryable(error) is answer


def test_a_failed_step_keeps_what_its_error_said():
    failed = calls.StepFailed(ToolError("no", {"error": "no", "code": 1}, hint="x"), "E1/do.0", "t__x")
    assert (failed.kind, failed.message, failed.payload) == ("step_failed", "no", {"error": "no", "code": 1})
    assert failed.details == {"hint": "x"}


def test_counts_reach_the_enclosing_counters():
    outer = calls.Tally()
    inner = calls.Tally(calls.Tally(outer))
    inner.add(2)
    outer.add(1)
    assert (inner.count, outer.count) == (2, 3)


def test_digests_of_a_step_are_computed_once(monkeypatch):
    computed = []
    monkeypatch.setattr(calls.records, "digest", lambda value: computed.append(value) or len(computed))
    big, item = [1, 2], [3]
    digests = calls.Digests({"E1": big})
    assert [digests.of("E1", big), digests.of("E1", big)] == [1, 1]
    assert [digests.of("item", item), digests.of("item", item), digests.of("E1", [1, 2])] == [2, 3, 4]


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_each_gives_results_in_order_and_the_failure_of_the_lowest_index(world, step, concurrency):
    class Run:
        call, scope, inner, digests = type("Call", (), {"input": {}}), {}, calls.Tally(), None

    each = calls.StepRun(Run, tools.quiet_context(stack=("p",), path="E1")).each
    assert each(lambda index, item: (index, item), ["a", "b", "c"], concurrency) == [(0, "a"), (1, "b"), (2, "c")]

    def picky(index, item):
        if index in (1, 2):
            raise ToolError(f"no {index}")

    with pytest.raises(ToolError, match="no 1"):
        each(picky, list(range(20)), concurrency)
