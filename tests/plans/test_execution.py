"""Running plans: order, parallel steps, retries, limits, failures, cancelling, plans that call plans."""

import dataclasses
import threading

import pytest

from graphlib_plans import documents, execution, tools
from graphlib_plans.errors import ModelUnavailable, Suspended, ToolError


def fail(message, **options):
    def raising(arguments):
        raise ToolError(message, **options)

    return raising


# Results and finishes ----------------------------------------------------------------------------------------------


def test_results_flow_from_step_to_step_and_keep_their_type(world, step):
    outcome = world.run(
        step("E1", v="{{input.n}}"),
        step("E2", v="{{E1.v}}", text="n={{E1.v}}"),
        output={"all": "{{E2}}"},
        arguments={"n": 9007199254740993},
    )
    assert outcome.output == {"all": {"v": 9007199254740993, "text": "n=9007199254740993"}}
    assert (outcome.kind, outcome.exit_code, outcome.steps_executed) == ("ran", 0, 2)
    assert outcome.body() == {
        "kind": "ran",
        "answer": None,
        "output": outcome.output,
        "plan": "p",
        "steps_executed": 2,
        "exit": None,
        "usage": None,
        "run": None,
    }


def test_a_result_is_stored_as_the_tool_returned_it(world, step):
    world.tool("list", lambda arguments: [1, None, "x"], read_only=True)
    outcome = world.run(
        step("E1", "t__list"), output={"second": "{{E1.1}}", "n": "{{E1.length}}", "deep": [{"a": "{{E1}}"}]}
    )
    assert outcome.output == {"second": None, "n": 3, "deep": [{"a": [1, None, "x"]}]}


def test_a_silent_plan_has_neither_answer_nor_output(world, step):
    outcome = world.run(step("E1"))
    assert (outcome.kind, outcome.answer, outcome.output, outcome.steps_executed) == ("ran", None, None, 1)


def test_an_output_that_cannot_be_made_fails_the_run_and_keeps_what_finished(world, step):
    outcome = world.run(step("E1", v=1), output={"x": "{{E1.nope}}"})
    assert outcome.kind == "step_failed"
    assert outcome.error.startswith("the output cannot be made: ")
    assert outcome.body()["available"] == ["v"]
    assert outcome.body()["finished"] == {"E1": {"v": 1}}


def test_an_output_must_keep_to_its_schema(world, step):
    rule = {"type": "object", "properties": {"n": {"type": "integer"}}}
    outcome = world.run(step("E1", v="x"), output={"n": "{{E1.v}}"}, output_schema=rule)
    assert outcome.kind == "step_failed"
    assert "output_schema" in outcome.error and "n" in outcome.error


# Input and checks before the first step ------------------------------------------------------------------------------

INPUT = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}, "b": {"default": 7}}}


def test_defaults_are_filled_in(world, step):
    outcome = world.run(step("E1", b="{{input.b}}"), input_schema=INPUT, output={"b": "{{E1.b}}"}, arguments={"a": 1})
    assert outcome.output == {"b": 7}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({}, ["a"]), ({"a": "1"}, ["a", "integer"]), ({"a": True}, ["a"]), ({"a": 1, "c": 2}, ["c"])],
)
def test_wrong_input_is_told_before_anything_runs(world, step, arguments, words):
    outcome = world.run(step("E1"), input_schema=INPUT, arguments=arguments)
    assert (outcome.kind, outcome.exit_code, world.calls) == ("needs_input", 3, [])
    body = outcome.body()
    assert body["inputSchema"] == INPUT
    assert all(word in " ".join(body["problems"]) for word in words)


@pytest.mark.parametrize(
    ("steps", "kind", "code"),
    [
        ([("E1", "t__nope")], "unresolved_tools", "tool_unknown"),
        ([("E1", "absent__x")], "unresolved_tools", "server_unconfigured"),
        ([("E1", "plan__absent")], "unresolved_tools", "plan_unknown"),
        ([("E1", "plan__p")], "invalid_plan", "plan_cycle"),
        ([("E1", "nothing")], "invalid_plan", "tool_bare"),
    ],
)
def test_a_plan_that_cannot_run_is_told_before_anything_runs(world, step, steps, kind, code):
    outcome = world.run(step("E0"), *[step(*each) for each in steps])
    assert (outcome.kind, outcome.exit_code, world.calls) == (kind, 1, [])
    assert code in [problem["code"] for problem in outcome.body()["problems"]]


def test_a_solver_plan_without_a_model_fails_before_its_first_step(world, step):
    outcome = world.run(step("E1"), solver={"query_to_answer": "what?"})
    assert (outcome.kind, world.calls) == ("model_unavailable", [])


def test_models_of_nested_plans_are_checked_first_too(world, step):
    class Models:
        def names(self):
            return frozenset({"default"})

        def check(self, name):
            raise ModelUnavailable(f"no {name}", variable="KEY", path="providers.x.api_key")

    world.models = Models()
    world.plan(step("Q", "exit", infer="is it?", status="error"), identifier="inner")
    outcome = world.run(step("E0", "t__write"), step("E1", "plan__inner"))
    assert (outcome.kind, outcome.error, world.calls) == ("model_unavailable", "no judge", [])
    assert outcome.body()["variable"] == "KEY"


# Order -------------------------------------------------------------------------------------------------------------


def test_steps_that_change_the_world_keep_their_file_order(world, step):
    world.run(*[step(f"W{n}", "t__write", n=n) for n in range(8)], concurrency=8)
    assert [arguments["n"] for _, arguments in world.calls] == list(range(8))


@pytest.mark.parametrize("options", [{"read_only": True}, {}], ids=["readers", "writers of a parallel plan"])
def test_independent_steps_run_at_the_same_time(world, step, gate, in_thread, options):
    world.tool("meet", lambda arguments: gate.wait(), **options)
    parallel = {} if options else {"parallel": True}
    join = in_thread(lambda: world.run(step("A", "t__meet"), step("B", "t__meet"), step("C", "t__meet"), **parallel))
    gate.await_arrivals(3)
    gate.open()
    assert join().steps_executed == 3


def test_a_server_says_what_just_reads_before_the_order_is_made(world, step, gate, in_thread):
    world.functions.connected = False
    world.tool("meet", lambda arguments: gate.wait(), read_only=True)
    join = in_thread(lambda: world.run(step("A", "t__meet"), step("B", "t__meet")))
    gate.await_arrivals(2)
    gate.open()
    assert join().steps_executed == 2


def test_a_server_that_cannot_be_reached_is_left_to_its_step(world, step, monkeypatch):
    def unreachable(context):
        raise ToolError("no server")

    world.functions.connected = False
    monkeypatch.setattr(world.functions, "tools", unreachable)
    outcome = world.run(step("A", on_error="continue"), step("B", on_error="{{A.error}}"), output={"b": "{{B}}"})
    assert outcome.output == {"b": "no server"}


def test_no_more_steps_run_at_once_than_the_plan_allows(world, step):
    running, most, lock = [0], [0], threading.Lock()

    def count(arguments):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        with lock:
            running[0] -= 1

    world.tool("count", count, read_only=True)
    plan = world.plan(*[step(f"E{n}", "t__count") for n in range(30)], concurrency=2)
    assert world.run(plan=plan).steps_executed == 30
    assert most[0] <= 2


@pytest.mark.parametrize("barrier", ["exit", "ask"])
def test_nothing_moves_across_an_exit_or_a_question(world, step, barrier):
    options = {
        "exit": {"when": {"value": 1, "op": "eq", "to": 2}, "status": "error"},
        "ask": {
            "prompt": "?",
            "output_schema": {"type": "object", "properties": {"go": {"type": "boolean"}}},
            "when_unanswered": "default",
            "default": {},
        },
    }[barrier]
    world.run(step("A"), step("B"), step("S", barrier, **options), step("C"), step("D"), concurrency=4)
    order = [path for _, path in world.told("step_finished")]
    assert set(order[:2]) == {"A", "B"} and order[2] == "S" and set(order[3:]) == {"C", "D"}


def test_after_orders_steps_that_share_nothing(world, step):
    world.run(step("A", after=["B"]), step("B"), step("C", after=["A"]))
    assert [path for _, path in world.told("step_started")] == ["B", "A", "C"]


def test_only_the_calling_thread_touches_the_sorter(world, step, monkeypatch):
    threads = set()
    make = execution.dependencies.sorter

    def watched(*arguments):
        sorter = make(*arguments)

        class Watched:
            def __getattr__(self, name):
                threads.add(threading.current_thread())
                return getattr(sorter, name)

        return Watched()

    monkeypatch.setattr(execution.dependencies, "sorter", watched)
    assert world.run(*[step(f"E{n}") for n in range(20)], concurrency=8).kind == "ran"
    assert threads == {threading.current_thread()}


def test_workers_have_names(world, step):
    names = []
    world.tool("name", lambda arguments: names.append(threading.current_thread().name), read_only=True)
    world.run(step("E1", "t__name"), step("E2", "t__name"))
    assert all(name.startswith("plan.p.worker.") for name in names)


# Failures ----------------------------------------------------------------------------------------------------------


def test_a_failed_step_ends_the_run_and_says_what_is_done(world, step):
    world.tool("break", fail("disk full", payload={"error": "disk full", "code": 28}))
    outcome = world.run(step("A", v=1), step("B", "t__break"), step("C", "t__write", after=["B"]))
    body = outcome.body()
    assert (outcome.kind, outcome.exit_code, outcome.steps_executed) == ("step_failed", 1, 1)
    assert (body["step"], body["tool"], body["payload"]) == ("B", "t__break", {"error": "disk full", "code": 28})
    assert body["error"] == "step B (t__break) failed: disk full"
    assert body["finished"] == {"A": {"v": 1}}
    assert ("write", {}) not in world.calls


def test_steps_that_run_when_another_fails_come_to_their_end(world, step, gate, in_thread):
    world.tool("slow", lambda arguments: gate.wait() or "done", read_only=True)

    def broken(arguments):
        gate.await_arrivals(1)
        gate.open()
        raise ToolError("no")

    world.tool("break", broken, read_only=True)
    outcome = in_thread(lambda: world.run(step("A", "t__slow"), step("B", "t__break"), step("C", after=["A"])))()
    assert outcome.step == "B"
    assert outcome.results == {"A": "done"}


def test_of_several_failures_the_first_in_the_file_is_told(world, step, gate, in_thread):
    def broken(arguments):
        gate.wait()
        raise ToolError("no")

    world.tool("break", broken, read_only=True)
    join = in_thread(lambda: world.run(*[step(f"E{n}", "t__break") for n in range(4)]))
    gate.await_arrivals(4)
    gate.open()
    assert join().step == "E0"


def test_a_bug_in_a_tool_is_told_in_one_sentence(world, step):
    world.tool("bug", lambda arguments: arguments["nope"])
    outcome = world.run(step("A"), step("B", "t__bug"))
    assert (outcome.kind, outcome.step) == ("step_failed", "B")
    assert outcome.error == "step B (t__bug) failed: something broke inside: KeyError: 'nope'"
    assert ("step_finished", "B") in world.told("step_finished")


@pytest.mark.parametrize(
    ("template", "kind"),
    [("{{A.v.x}}", "step_failed"), ("{{A.list.3}}", "empty_data"), ("{{A.none.x}}", "empty_data")],
)
def test_templates_that_lead_nowhere_fail_their_step(world, step, template, kind):
    outcome = world.run(step("A", v=1, list=[], none=None), step("B", x=template))
    assert (outcome.kind, outcome.step) == (kind, "B")
    assert template in outcome.error


def test_long_errors_are_cut_and_the_payload_is_whole(world, step):
    text = "x" * 5000
    world.tool("break", fail(text, payload={"error": text, "more": 1}))
    outcome = world.run(step("A", "t__break"))
    assert len(outcome.error) < 2100
    assert outcome.details["payload"]["error"] == text


# Cancelling --------------------------------------------------------------------------------------------------------


def test_a_cancel_reaches_the_running_tool_and_starts_nothing_more(world, step, in_thread):
    cancel, arrived = tools.CancelToken(), threading.Event()

    def wait(arguments, context):
        arrived.set()
        context.cancel.wait(40)
        context.cancel.check()

    world.tool("wait", wait)
    join = in_thread(lambda: world.run(step("A"), step("B", "t__wait"), step("C", "t__write"), cancel=cancel))
    assert arrived.wait(40)
    cancel.cancel("enough")
    outcome = join()
    assert (outcome.kind, outcome.exit_code, outcome.steps_executed) == ("cancelled", 1, 1)
    assert outcome.error == "plan 'p' was cancelled: enough"
    assert ("write", {}) not in world.calls


def test_a_cancel_ends_the_wait_before_the_next_try(world, step, in_thread):
    cancel, failed = tools.CancelToken(), threading.Event()

    def broken(arguments):
        failed.set()
        raise ToolError("no")

    world.tool("break", broken)
    retry = {"attempts": 3, "backoff_s": 3600}
    join = in_thread(lambda: world.run(step("A", "t__break", retry=retry), cancel=cancel))
    assert failed.wait(40)
    cancel.cancel()
    assert join().kind == "cancelled"
    assert len(world.calls) == 1


def test_a_cancel_does_not_wait_for_a_tool_that_never_listens(world, step, gate, in_thread, monkeypatch):
    monkeypatch.setattr(execution, "CANCEL_GRACE_S", 0.01)
    cancel = tools.CancelToken()
    world.tool("deaf", lambda arguments: gate.wait())
    join = in_thread(lambda: world.run(step("A", "t__deaf"), cancel=cancel))
    gate.await_arrivals(1)
    cancel.cancel()
    assert join().kind == "cancelled"
    gate.open()


def test_a_run_that_is_cancelled_before_it_starts_does_nothing(world, step):
    cancel = tools.CancelToken()
    cancel.cancel()
    assert world.run(step("A"), cancel=cancel).kind == "cancelled"
    assert world.calls == []


def test_on_error_and_retries_never_swallow_a_cancel(world, step):
    cancel = tools.CancelToken()

    def stop(arguments, context):
        cancel.cancel()
        context.cancel.check()

    world.tool("stop", stop)
    outcome = world.run(
        step("A", "t__stop", on_error="continue", retry={"attempts": 3, "backoff_s": 0}),
        step("B", after=["A"]),
        cancel=cancel,
    )
    assert (outcome.kind, len(world.calls)) == ("cancelled", 1)


def test_a_cancel_passes_through_nested_plans_to_the_root(world, step):
    cancel = tools.CancelToken()

    def stop(arguments, context):
        cancel.cancel()
        context.cancel.check()

    world.tool("stop", stop)
    world.plan(step("X", "t__stop"), identifier="inner")
    outcome = world.run(step("A"), step("B", "plan__inner", after=["A"], on_error="continue"), cancel=cancel)
    assert (outcome.kind, outcome.plan, outcome.steps_executed) == ("cancelled", "p", 1)


# Plans that call plans -----------------------------------------------------------------------------------------------


def test_what_a_nested_plan_gives_its_caller(world, step):
    world.plan(step("E", v="{{input.n}}"), identifier="out", output={"v": "{{E.v}}"})
    world.plan(step("E"), step("F"), identifier="silent")
    gate = {"value": 1, "op": "eq", "to": 1}
    leave = {"when": gate, "status": "success", "message": "bye", "output": {"k": 1}}
    world.plan(step("E", "exit", **leave), identifier="leaves")
    outcome = world.run(
        step("A", "plan__out", n=3),
        step("B", "plan__silent"),
        step("C", "plan__leaves"),
        output={"a": "{{A}}", "b": "{{B}}", "c": "{{C}}"},
    )
    assert outcome.output == {
        "a": {"v": 3},
        "b": {"ok": True, "steps_executed": 2},
        "c": {"exited": True, "status": "success", "message": "bye", "output": {"k": 1}},
    }
    assert outcome.steps_executed == 3


NESTED_FAILURES = [
    ({"tool": "t__echo", "input": {"x": "{{input.list.0}}"}}, {"empty_data": True}),
    (
        {"tool": "exit", "input": {"status": "error", "message": "bad"}},
        {"exited": True, "status": "error", "message": "bad"},
    ),
    ({"tool": "t__break", "input": {}}, {}),
]


@pytest.mark.parametrize(("inner", "fields"), NESTED_FAILURES)
def test_how_a_nested_plan_fails_its_caller(world, step, inner, fields):
    world.tool("break", fail("no"))
    world.plan({"id": "E", **inner}, identifier="inner")
    outcome = world.run(step("A", "plan__inner", list=[]))
    assert (outcome.kind, outcome.step, outcome.tool) == ("step_failed", "A", "plan__inner")
    payload = outcome.details.get("payload", {"error": outcome.error})
    assert "error" in payload and fields.items() <= payload.items()


def test_wrong_input_of_a_nested_plan_is_a_tool_error_with_the_schema(world, step):
    world.plan(step("E"), identifier="inner", input_schema=INPUT)
    outcome = world.run(step("A", "plan__inner", a="{{input.a}}"), arguments={"a": "x"})
    payload = outcome.details["payload"]
    assert set(payload) == {"error", "problems", "inputSchema"}
    assert payload["inputSchema"] == INPUT


def test_a_plan_does_not_see_the_input_of_its_caller(world, step):
    world.plan(step("E", v="{{input.secret?}}"), identifier="inner", output={"v": "{{E.v}}"})
    outcome = world.run(step("A", "plan__inner"), output={"v": "{{A.v}}"}, arguments={"secret": 1})
    assert outcome.output == {"v": None}


def test_a_cycle_through_an_agent_like_call_is_stopped_at_the_first_lap(world, step):
    """Validation finds cycles; a call that it cannot see must still not run anything twice."""

    def call_root(arguments, context):
        return context.services.registry.call("plan__p", {}, context)

    world.tool("back", call_root)
    outcome = world.run(step("A", "t__write"), step("B", "t__back"))
    assert "p → p" in outcome.error
    assert [name for name, _ in world.calls] == ["write", "back"]


def test_eight_plans_may_be_nested_the_root_included(world, step):
    """A tool calls the next plan, so that no check before the run sees how long the chain gets."""
    count = [1]

    def call_next(arguments, context):
        count[0] += 1
        if count[0] > arguments["depth"]:
            return "end"
        return context.services.registry.call(f"plan__p{count[0]}", arguments, context)

    world.tool("next", call_next)
    for number in range(2, 10):
        world.plan(step("E", "t__next", depth="{{input.depth}}"), identifier=f"p{number}")
    root = world.plan(step("E", "t__next", depth="{{input.depth}}"), identifier="p1")
    shallow = world.run(plan=root, arguments={"depth": 8})
    assert shallow.kind == "ran", shallow.error
    count[0] = 1
    outcome = world.run(plan=root, arguments={"depth": 9})
    assert outcome.kind == "step_failed"
    assert "deeper than 8" in outcome.error and "p1 → p2" in outcome.error


def test_a_limit_for_everything_holds_in_nested_plans_too(world, step):
    body = {"tool": "t__echo", "input": {}}
    plan = world.plan(
        step("E", "map", over=[1, 2], do=body, concurrency=9), step("F"), identifier="inner", concurrency=7
    )
    seen = []
    world.tool("see", lambda arguments, context: seen.append(context.concurrency))
    world.plan(step("S", "t__see"), identifier="inner2")
    assert world.run(step("A", "plan__inner"), step("B", "plan__inner2"), concurrency=1).kind == "ran"
    order = [path for _, path in world.told("step_started", "step_finished") if path.startswith("E/")]
    assert order == ["E/do.0", "E/do.0", "E/do.1", "E/do.1"] and seen == [1] and plan.concurrency == 7


def test_events_carry_the_call_stack_and_the_path(world, step):
    world.plan(step("X"), identifier="inner")
    world.run(step("A", "plan__inner"))
    assert [(event["stack"], event["path"]) for event in world.events if event["event"] == "step_started"] == [
        (["p"], "A"),
        (["p", "inner"], "X"),
    ]


# Events ------------------------------------------------------------------------------------------------------------


def test_the_transcript_of_a_run(world, step):
    body = {"tool": "t__echo", "input": {"v": "{{item}}"}}
    world.run(step("A", v=1), step("B", "map", over=[1], do=body))
    told = [(event["event"], event["path"], event.get("tool")) for event in world.events]
    assert told[0] == ("steps_total", "", None)
    of_a = [name for name, path, _ in told if path == "A"]
    assert of_a == ["step_started", "tool_started", "tool_finished", "step_finished"]
    of_b = [(name, path, tool) for name, path, tool in told if path.startswith("B")]
    assert of_b == [
        ("step_started", "B", "map"),
        ("step_started", "B/do.0", "t__echo"),
        ("tool_started", "B/do.0", "t__echo"),
        ("tool_finished", "B/do.0", "t__echo"),
        ("step_finished", "B/do.0", "t__echo"),
        ("step_finished", "B", "map"),
    ]
    assert world.events[0]["total"] == 2


def test_every_started_step_finishes(world, step):
    world.tool("break", fail("no"))
    body = {"tool": "t__break", "input": {}}
    world.run(step("A", "map", over=[1, 2], do=body))
    started = [path for _, path in world.told("step_started")]
    assert sorted(started) == sorted(path for _, path in world.told("step_finished"))


# Questions, suspending ---------------------------------------------------------------------------------------------

ASK = {"prompt": "go?", "output_schema": {"type": "object", "properties": {"go": {"type": "boolean"}}}}


def test_questions_of_parallel_steps_come_one_at_a_time(world, step):
    open_now, most, lock = [0], [0], threading.Lock()

    def ask(question):
        with lock:
            open_now[0] += 1
            most[0] = max(most[0], open_now[0])
        with lock:
            open_now[0] -= 1
        return tools.Answer("answered", {"go": True})

    outcome = world.run(
        step("A", "map", over=list(range(20)), concurrency=8, do={"tool": "ask", "input": ASK}), ask=ask
    )
    assert (outcome.steps_executed, most[0]) == (21, 1)


def test_a_host_may_suspend_a_run(world, step):
    def ask(question):
        raise Suspended(question)

    outcome = world.run(step("A"), step("B", "ask", **ASK), step("C", "t__write"), ask=ask)
    assert (outcome.kind, outcome.question.prompt, outcome.question.path) == ("suspended", "go?", "B")
    assert outcome.results == {"A": {}}


# The parts -----------------------------------------------------------------------------------------------------------


def test_plans_are_read_only_when_everything_in_them_is(world, step):
    body = {"tool": "t__write", "input": {}}
    world.plan(step("E"), identifier="reads")
    world.plan(step("E", "map", over=[], do=body), identifier="writes")
    world.plan(step("E", "plan__writes"), identifier="calls")
    world.plan(step("E", "plan__reads"), step("F"), identifier="reads_more")
    is_read_only = execution.read_only_test(world.services())
    names = ("reads", "writes", "calls", "reads_more", "absent")
    assert [is_read_only(f"plan__{name}") for name in names] == [True, False, False, True, False]


def test_a_contradicted_order_is_refused_before_any_step_wherever_it_is(world, step):
    world.plan(step("X", "t__write", after=["Y"]), step("Y", "t__write"), identifier="turned")
    outcome = world.run(step("A", "t__write"), step("B", "plan__turned"))
    assert (outcome.kind, outcome.steps_executed, world.calls) == ("invalid_plan", 0, [])
    assert "plan 'turned', /steps/0: steps wait for each other: X → Y → X" in outcome.error


def test_outcomes_are_told_by_their_kind():
    table = {"ran": 0, "needs_input": 3, "exit_error": 4, "step_failed": 1, "cancelled": 1, "unknown_plan": 1}
    assert {kind: execution.Outcome(kind, "p").exit_code for kind in table} == table


def test_a_plan_tool_carries_name_description_and_exemplars(world, step):
    plan = world.plan(step("E"), identifier="x", name="X", description="does x", exemplars=["do x", "x it"])
    tool = execution.PlanSource(world.services().catalog).known()[0]
    assert (tool.name, tool.title, tool.source) == ("plan__x", "X", "plan")
    assert tool.description == "X — does x Examples: do x; x it"
    assert tool.input_schema == {"type": "object", "properties": {}}
    assert not tool.checks_input and dataclasses.is_dataclass(plan)


def test_many_runs_at_once_do_not_mix(world, step, in_thread):
    plan = world.plan(step("A", v="{{input.n}}"), step("B", v="{{A.v}}"), output={"v": "{{B.v}}"})
    services = world.services()
    joins = [in_thread(lambda n=n: execution.run(plan, {"n": n}, services)) for n in range(10)]
    assert [join().output for join in joins] == [{"v": n} for n in range(10)]


def test_a_large_plan_runs_to_its_end(world, step):
    steps = [step("E0", v=0), *[step(f"E{n}", v=f"{{{{E{n - 1}.v}}}}") for n in range(1, 2000)]]
    assert world.run(*steps, output={"v": "{{E1999.v}}"}).output == {"v": 0}


def test_documents_are_not_changed_by_a_run(world, step):
    plan = world.plan(step("A", v="{{input.x}}"), output={"v": "{{A.v}}"})
    before = documents.to_json(plan.document)
    world.run(plan=plan, arguments={"x": [1]})
    assert documents.to_json(plan.document) == before
