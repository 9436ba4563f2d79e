"""`plan_and_execute` with a planner and a solver that are scripted: plans are written, run, mended, or given up."""

import json
import time

import pytest

from graphlib_plans import config, execution, records, schema, tools
from graphlib_plans.errors import ModelUnavailable, Suspended, ToolError, ToolTimeout
from tests.plans.http_double import Service

DONE = {"answer": "all is well", "degraded": False}


class Models:
    """Plans in the order in which they are asked for; the solver says "all is well". Remembers what it was asked."""

    def __init__(self, *plans, absent=()):
        self.plans, self.absent = list(plans), absent
        self.asked, self.solved, self.sites = [], [], []

    def names(self):
        return frozenset({"chat"})

    def check(self, name):
        if name in self.absent:
            raise ModelUnavailable(f"no model for {name}")

    def structured(self, name, *, system, prompt, schema, context, site):
        assert name == "planner"
        self.asked.append((system, prompt))
        self.sites.append(site)
        reply = self.plans.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return checked(reply, schema)

    def complete(self, name, *, system, messages, context, site, on_text=None):
        assert name == "solver"
        self.solved.append((system, messages[0]["text"]))
        self.sites.append(site)
        return type("Reply", (), {"text": "all is well"})


def checked(reply, rule):
    assert schema.problems(reply, rule) == []
    return reply


def written(*steps, query="What came out?"):
    """A planner's reply; steps are (id, tool, input)."""
    return {"steps": [dict(zip(("id", "tool", "input"), step)) for step in steps], "query_to_answer": query}


@pytest.fixture
def ask(world, step):
    """ask(*plans, **options) -> Outcome of a plan with one step Q that plans for "How many?", whose result it gives."""

    def run(*plans, models=None, **options):
        world.models = models or Models(*plans)
        plan = world.plan(step("Q", "plan_and_execute", query="How many?"), output={"q": "{{Q}}"})
        return world.run(plan=plan, **options)

    return run


def result(outcome):
    assert outcome.kind == "ran", outcome
    return outcome.output["q"]


def test_a_plan_is_written_run_and_answered(world, ask, step):
    world.plan(step("a"), identifier="other")
    outcome = ask(written(("E0", "t__write", {"n": 3}), ("E1", "t__echo", {"n": "{{E0.n}}"}), query="Count {{it}}."))
    assert result(outcome) == {**DONE, "steps_executed": 2}
    assert world.calls == [("write", {"n": 3}), ("echo", {"n": 3})]
    ((system, prompt),) = world.models.asked
    assert '"t__echo"' in system and '"plan__other"' in system and "How many?" in prompt
    assert "plan_and_execute" not in system and '"plan__p"' not in system
    ((_, text),) = world.models.solved
    assert text.startswith("Count { {it} }.") and '"n": 3' in text
    assert world.models.sites == ["plan_and_execute/planner", "plan_and_execute/solver"]
    assert [event["stack"] for event in world.events if event["event"] == "planning"] == [["p", "plan_and_execute"]]
    assert world.told("step_started") == [("step_started", "Q"), ("step_started", "E0"), ("step_started", "E1")]


@pytest.mark.parametrize("wrong, sentence", [
    (written(("E0", "t__nope", {})), "there is no tool 't__nope'"),
    (written(("E0", "t__echo", {"a": "{{E7}}"})), "refers to 'E7'"),
    (written(("E0", "t__echo", {"a": "{{input.x}}"}), ("E0", "t__echo", {})), "E0"),
    (written(), "the plan has no step"),
    (written(("E0", "plan_and_execute", {"query": "x"})), "cannot call plan_and_execute"),
    (written(("E0", "map", {"over": [1], "do": {"tool": "plan_and_execute", "input": {"query": "x"}}})), "cannot call"),
    (ToolError("the reply is no JSON"), "the reply is no JSON"),
])
def test_what_is_wrong_with_a_plan_goes_back_and_nothing_of_it_runs(world, ask, wrong, sentence):
    outcome = ask(wrong, written(("E5", "t__echo", {"n": 1})))
    assert result(outcome) == {**DONE, "steps_executed": 1} and world.calls == [("echo", {"n": 1})]
    first, second = (prompt for _, prompt in world.models.asked)
    assert "wrong" not in first and sentence in second.partition("What went wrong so far:")[2]


def test_a_step_that_has_run_is_not_run_again(world, ask):
    outcome = ask(
        written(("E0", "t__write", {"rows": [7]}), ("E1", "t__echo", {"a": "{{E0.row}}"}), ("E2", "t__echo", {"b": 1})),
        written(("E3", "t__echo", {"a": "{{E0.rows.0}}"}), ("E4", "t__write", {"c": "{{E3.a}}{{E2.b}}"})))
    assert result(outcome)["degraded"] is False and result(outcome)["steps_executed"] == 4
    assert sorted(world.calls, key=str) == [
        ("echo", {"a": 7}), ("echo", {"b": 1}), ("write", {"c": "71"}), ("write", {"rows": [7]})]
    _, prompt = world.models.asked[1]
    assert "Give new steps the ids E3, E4" in prompt
    assert '{"id":"E0","tool":"t__write","input":{"rows":[7]},"result":{"rows":[7]}}' in prompt
    assert "E0 has no key 'row'; it has rows" in prompt.partition("What went wrong so far:")[2]


def test_no_further_step_may_be_needed(world, ask):
    outcome = ask(written(("E0", "t__write", {"n": 1}), ("E1", "t__echo", {"a": "{{E0.x}}"})), written())
    assert result(outcome) == {**DONE, "steps_executed": 1} and len(world.calls) == 1


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_query_that_no_plan_answers_gets_an_honest_answer(world, ask, attempts, tmp_path):
    world.settings = config.Settings(tmp_path, planning_attempts=attempts)
    good = ("E0", "t__echo", {"found": "something"})
    outcome = ask(*[written(*([good] if n == 0 else []), (f"E{n + 1}", "t__echo", {"a": "{{E0.x}}"}))
                    for n in range(attempts)])
    assert result(outcome) == {"answer": "all is well", "degraded": True, "steps_executed": 1}
    assert len(world.models.asked) == attempts
    ((system, text),) = world.models.solved
    assert "could not be found out" in system and text.startswith("How many?") and '"found": "something"' in text
    assert text.count("E0.x") >= attempts


@pytest.mark.parametrize("status, is_degraded", [("success", False), ("error", True)])
def test_an_exit_ends_the_query_with_its_message(world, ask, status, is_degraded):
    gate = {"status": status, "message": "there is nothing"}
    outcome = ask(written(("E0", "exit", gate), ("E1", "t__write", {})))
    assert result(outcome) == {"answer": "there is nothing", "degraded": is_degraded, "steps_executed": 0}
    assert world.calls == [] and world.models.solved == []


def test_data_that_runs_out_is_told_to_the_solver(world, ask):
    outcome = ask(written(("E0", "t__echo", {"rows": []}), ("E1", "t__write", {"a": "{{E0.rows.0}}"})))
    assert result(outcome)["degraded"] is False and "data ran out" in world.models.solved[0][0]


def test_without_models_nothing_begins(world, ask):
    for absent in ("planner", "solver"):
        outcome = ask(models=Models(absent=[absent]))
        assert outcome.kind == "model_unavailable" and absent in outcome.error and world.events == []
    context = tools.quiet_context(services=world.services(models=None))
    with pytest.raises(ModelUnavailable, match="no model is configured"):
        context.services.registry.call("plan_and_execute", {"query": "x"}, context)


@pytest.mark.parametrize("arguments", [{}, {"query": ""}, {"query": 1}, {"query": "x", "more": 1}])
def test_the_input_is_checked(world, arguments):
    world.models = Models()
    context = tools.quiet_context(services=world.services(), models=world.models)
    with pytest.raises(ToolError, match="wrong input for plan_and_execute"):
        context.services.registry.call("plan_and_execute", arguments, context)


def test_it_can_be_called_outside_a_plan(world):
    world.models = Models(written(("E0", "t__echo", {"n": 1})))
    context = tools.quiet_context(services=world.services(), models=world.models)
    found = context.services.registry.call("plan_and_execute", {"query": "x"}, context)
    assert found == {**DONE, "steps_executed": 1} and world.models.sites == ["planner", "solver"]


def test_a_time_limit_is_no_defect_of_the_plan(world, ask):
    outcome = ask(ToolTimeout("too long"))
    assert outcome.kind == "step_failed" and "too long" in outcome.error and len(world.models.asked) == 1


def test_a_cancel_ends_it_at_once(world, ask):
    cancel = tools.CancelToken()
    world.tool("stop", lambda arguments: cancel.cancel("enough"))
    outcome = ask(written(("E0", "t__stop", {}), ("E1", "t__write", {"a": "{{E0}}"})), cancel=cancel)
    assert outcome.kind == "cancelled" and [name for name, _ in world.calls] == ["stop"]
    assert len(world.models.asked) == 1 and world.models.solved == []


def test_plans_that_plan_may_be_nested_but_not_without_end(world, step):
    inner = world.plan(step("Q", "plan_and_execute", query="inner"), identifier="inner")
    nested = written(("E0", "plan__inner", {}))
    world.models = Models(nested, written(("E0", "t__echo", {"n": 1})))
    context = tools.quiet_context(services=world.services(), models=world.models)
    found = context.services.registry.call("plan_and_execute", {"query": "x"}, context)
    assert found["steps_executed"] == 1 and [name for name, _ in world.calls] == ["echo"]
    deep = context.with_(stack=tuple("abcdefgh"))
    with pytest.raises(ToolError, match="nested deeper than 8"):
        execution.run_nested(inner, {}, deep)
    with pytest.raises(ToolError, match="nested deeper than 8"):
        context.services.registry.call("plan_and_execute", {"query": "x"}, deep)


def test_a_run_that_is_resumed_asks_the_planner_for_nothing_twice(world, ask, tmp_path):
    """A question is answered later, over a restart: the plan that asked it is the one that goes on."""
    question = {"prompt": "Go?", "output_schema": {"type": "object", "properties": {"go": {"type": "boolean"}}}}
    plan = written(("E0", "t__write", {"n": 1}), ("E1", "ask", question), ("E2", "t__echo", {"go": "{{E1.answer.go}}"}))
    seen = []

    def suspend(asked):
        seen.append(asked)
        raise Suspended(asked)

    world.models = Models(plan)
    record = records.create(tmp_path, world.plan({"id": "Q", "tool": "plan_and_execute", "input": {"query": "?"}}), {},
                            now=time.time())
    assert ask(plan, ask=suspend, record=record).kind == "suspended"
    assert [name for name, _ in world.calls] == ["write"]
    again, _, finished = records.reopen(tmp_path, record.run, now=time.time())
    world.calls.clear()
    outcome = ask(ask=lambda asked: tools.Answer("answered", {"go": True}), record=again, finished=finished)
    assert result(outcome)["degraded"] is False and world.calls == [("echo", {"go": True})]
    assert world.models.asked == [] and len(seen) == 1
    lines = [json.loads(line) for line in (tmp_path / f"{record.run}.jsonl").read_text().splitlines()]
    assert [line["key"] for line in lines if line["type"] == "model"] == ["Q/planner.1"]


def test_an_agent_gets_the_answer_over_the_wire(served):
    """The whole way: MCP client, our server, a plan, a model service, the plan that it writes, and its progress."""
    replies = [json.dumps(written(("E0", "builtin__reshape", {"shape": {"total": 12}}))), "Twelve."]

    def answer(request):
        request.reply(200, {"choices": [{"index": 0, "finish_reason": "stop", "message": {
            "role": "assistant", "content": replies.pop(0)}}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})

    served.plan("count", ("a", "plan_and_execute", {"query": "How many?"}), output={"told": "{{a.answer}}"})
    with Service(answer) as service:
        served.config(f'[providers.here]\ntype = "openai_compat"\nbase_url = "{service.url}"\napi_key = "x"\n'
                      '[models.default]\nprovider = "here"\nmodel = "m"\n')
        client = served.connect()
        call = client.begin("plan_count", meta={"progressToken": "c"})
        body, is_error = client.outcome(call)
    assert body["output"] == {"told": "Twelve."} and body["usage"]["calls"] == 2 and not is_error
    assert any("builtin__reshape" in each["message"] for each in client.progress("c"))
    body, is_error = client.call("graph_tools_test", name="plan_and_execute", input={})
    assert body["isError"] and "query is required" in body["result"]["error"] and not is_error
    assert client.finish() == 0
