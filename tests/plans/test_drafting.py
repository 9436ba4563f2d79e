"""Drafting with a planner that is scripted, and once over the wire with a model service of our own."""

import json

import pytest

from graphlib_plans import drafting, tools, workspace
from graphlib_plans.errors import BadArgument, ModelUnavailable, ToolError, UnknownPlan
from tests.plans.http_double import Service


class Planner:
    """Models whose planner gives the scripted replies in order, and remembers what it was asked."""

    def __init__(self, *replies):
        self.replies = list(replies)
        self.asked = []

    def names(self):
        return frozenset({"default"})

    def check(self, name):
        assert name == "planner"

    def structured(self, name, *, system, prompt, schema, context, site=None):
        self.asked.append((system, prompt))
        context.ledger.add(site, "test", "test", {"input_tokens": 1})
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


def outline(*summaries, **more):
    return {"items": [{"summary": each} for each in summaries], "query_to_answer": "What is {{it}}?", **more}


def step(id, shape, complete=False, tool="builtin__reshape"):
    return {"step": {"id": id, "tool": tool, "input": {"shape": shape}, "reasoning": f"makes {id}"},
            "plan_complete": complete}


CLOSE = {"step": None, "plan_complete": True}


@pytest.fixture
def desk(served):
    opened = workspace.open_workspace(served.folder, {"HOME": str(served.home)})
    yield opened
    opened.close()


def draft(desk, planner, goal="Tell the weather", from_=None):
    """Draft and return (body, events)."""
    events = []
    desk.models = planner
    context = tools.quiet_context(models=planner, emit=events.append, services=desk.services)
    return drafting.draft(desk, goal, from_, context), events


def test_a_plan_is_written_step_by_step_and_saved(desk, served):
    rule = {"type": "object", "properties": {"city": {"type": "string"}}}
    planner = Planner(
        outline("fetch", "shape", input_schema=rule), step("E0", "{{input.city}}"), step("E1", "{{E0}}"), CLOSE
    )
    body, events = draft(desk, planner, "Tell the weather. Call it 'sky report'.")
    assert body["ok"] and body["identifier"] == "sky_report" and body["steps"] == 2 and body["problems"] == []
    assert body["usage"]["calls"] == 4
    document = json.loads((served.plans / "sky_report.json").read_text())
    assert document["name"] == "sky report" and document["input_schema"] == rule
    assert document["solver"]["query_to_answer"] == "What is { {it} }?"
    assert document["solver"]["data"] == {"E0 makes E0": "{{E0}}", "E1 makes E1": "{{E1}}"}
    assert len({system for system, _ in planner.asked}) == 1
    assert [each["event"] for each in events if each["event"].startswith("draft")] == [
        "draft_outline", *["draft_step_started", "draft_step_finished"] * 2, "draft_step_started"]


def test_problems_go_back_to_the_planner(desk):
    planner = Planner(outline("one"), step("E1", 1), step("E0", "{{E7}}"), step("E0", 1, complete=True))
    body, _ = draft(desk, planner)
    assert body["steps"] == 1 and "salvaged" not in body
    assert "the id must be E0" in planner.asked[2][1] and "E7" in planner.asked[3][1]


def test_tools_that_do_not_exist_are_problems(desk):
    planner = Planner(outline("one"), step("E0", 1, tool="builtin__nope"), step("E0", 1, complete=True))
    draft(desk, planner)
    assert "builtin__nope" in planner.asked[2][1]


def test_what_was_accepted_is_kept_when_a_step_stays_wrong(desk, served):
    planner = Planner(outline("one", "two"), step("E0", 1), *[step("E1", "{{E9}}")] * drafting.ATTEMPTS)
    body, _ = draft(desk, planner)
    assert (body["salvaged"], body["failedStep"], body["steps"]) == (True, "E1", 1) and "E9" in body["stepProblems"][0]
    assert (served.plans / f"{body['identifier']}.json").is_file()


def test_without_any_usable_step_there_is_no_plan(desk, served):
    with pytest.raises(ToolError, match="no usable step"):
        draft(desk, Planner(outline("one"), *[step("E0", "{{E9}}")] * drafting.ATTEMPTS))
    assert list(served.plans.iterdir()) == []


def test_a_planner_that_never_ends_is_ended(desk):
    body, _ = draft(desk, Planner(outline("one"), *(step(f"E{n}", n) for n in range(1 + drafting.EXTRA_STEPS))))
    assert body["steps"] == 1 + drafting.EXTRA_STEPS


@pytest.mark.parametrize("goal, from_, error", [
    ("   ", None, BadArgument),
    ("a plan called taken", None, BadArgument),
    ("improve it", "nope", UnknownPlan),
])
def test_what_cannot_be_saved_is_refused_before_a_model_is_asked(desk, served, goal, from_, error):
    served.plan("taken")
    planner = Planner()
    with pytest.raises(error):
        draft(desk, planner, goal, from_)
    assert planner.asked == []


def test_a_planner_that_cannot_be_used_is_named_first(desk):
    with pytest.raises(ModelUnavailable):
        draft(desk, desk.models)


def test_a_name_taken_meanwhile_loses_nothing(desk, served):
    planner = Planner(outline("one"), step("E0", 1, complete=True))
    ask = planner.structured

    def slow(*args, **keywords):
        served.plan("tell_the_weather")
        return ask(*args, **keywords)

    planner.structured = slow
    body, _ = draft(desk, planner)
    assert body["identifier"] == "tell_the_weather_2" and "tell_the_weather_2" in body["note"]


def test_a_draft_from_a_plan_keeps_what_it_is(desk, served):
    path = served.plan("mine", {"id": "old", "tool": "builtin__reshape", "input": {"shape": 1}}, exemplars=["do it"],
                       output={"x": "{{old}}"})
    planner = Planner(outline("one"), step("E0", 2, complete=True))
    body, _ = draft(desk, planner, "make it better", "mine")
    document = json.loads(path.read_text())
    assert body["savedTo"] == str(path) and document["exemplars"] == ["do it"] and "output" not in document
    assert [each["id"] for each in document["steps"]] == ["E0"] and "solver" in document
    assert '"old"' in planner.asked[0][0]


def test_an_output_that_still_holds_is_kept(desk, served):
    path = served.plan("mine", {"id": "E0", "tool": "builtin__reshape", "input": {"shape": 1}}, output={"x": "{{E0}}"})
    draft(desk, Planner(outline("one"), step("E0", 2, complete=True)), "better", "mine")
    document = json.loads(path.read_text())
    assert document["output"] == {"x": "{{E0}}"} and "solver" not in document


@pytest.mark.parametrize("goal, identifier", [
    ("Tell the weather", "tell_the_weather"),
    ("A plan named \"Sprint Report\" for us", "sprint_report"),
    ("Make one called digest.", "digest"),
    ("do it, name it `x-1`", "x_1"),
    ("天気", "plan"),
    ("w" * 200, "w" * 40),
])
def test_identifiers_come_from_the_goal(goal, identifier):
    assert drafting.identifier_of(goal) == identifier


def answers(replies):
    """Return a handler of chat completions that gives the replies in order."""
    remaining = list(replies)

    def handle(request):
        text = json.dumps(remaining.pop(0))
        request.reply(body={"choices": [{"message": {"content": text}, "finish_reason": "stop"}],
                            "usage": {"prompt_tokens": 3, "completion_tokens": 4}})

    return handle


def test_a_draft_over_mcp_reports_progress_and_is_served(served):
    with Service(answers([outline("one"), step("E0", "{{input}}", complete=True)])) as service:
        served.config(f'[providers.here]\ntype = "openai_compat"\nbase_url = "{service.url}"\napi_key = "x"\n'
                      '[models.planner]\nprovider = "here"\nmodel = "m"\n')
        client = served.connect(version="2026-07-28")
        call = client.begin("graph_plan_draft", goal="Greet people, called greeting", meta={"progressToken": "d"})
        body, is_error = client.outcome(call)
    assert body["ok"] and not is_error and body["usage"]["calls"] == 2
    told = client.progress("d")
    numbers = [each["progress"] for each in told]
    assert numbers == sorted(set(numbers)) and "outline of 1 steps" in [each["message"] for each in told]
    assert "plan_greeting" in client.tools()
    assert client.finish() == 0


def test_a_cancelled_draft_closes_its_connection(served):
    with Service(lambda request: request.wait_until_gone()) as service:
        served.config(f'[providers.here]\ntype = "openai_compat"\nbase_url = "{service.url}"\napi_key = "x"\n'
                      '[models.planner]\nprovider = "here"\nmodel = "m"\n')
        client = served.connect()
        call = client.begin("graph_plan_draft", goal="Greet people")
        client.wait_for_error("graph_plan_draft started")
        client.notify("notifications/cancelled", requestId=call)
        body, is_error = client.outcome(call)
        assert body["kind"] == "cancelled" and is_error
        assert client.finish() == 0
