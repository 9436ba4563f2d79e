"""The worked examples of the semantics: templates, counting, and which failure becomes what."""

import types

import pytest

from graphlib_plans import authoring, errors, templates, tools
from graphlib_plans.errors import BadPath, EmptyData, MissingStep, TemplateSyntax, ToolError

SCOPE = {
    "input": {"n": 3, "tags": ["a", "b"], "who": None},
    "E0": {"rows": [{"t": "x", "k": 1}, {"t": "y"}], "meta": {}, "zero": 0, "empty": []},
}
PRETTY_INPUT = '{\n  "n": 3,\n  "tags": [\n    "a",\n    "b"\n  ],\n  "who": null\n}'


@pytest.mark.parametrize(
    ("template", "result"),
    [
        ("{{input.n}}", 3),
        ("n={{input.n}}", "n=3"),
        ("{{ input.tags }}", ["a", "b"]),
        (" {{input.n}}", " 3"),
        ("{{input.tags.length}}", 2),
        ("{{input.who}}", None),
        ("[{{input.who}}]", "[]"),
        ("{{#E0.rows}}{{@index}}{{t}}{{k}};{{/E0.rows}}", "0x1;1y;"),
        ("{{#E0.rows}}{{t}}{{^@last}},{{/@last}}{{/E0.rows}}", "x,y"),
        ("{{#E0.zero}}yes{{/E0.zero}}", "yes"),
        ("{{#E0.meta}}yes{{/E0.meta}}", "yes"),
        ("{{^E0.missing}}none{{/E0.missing}}", "none"),
        ("{{#E0.rows}}{{input}}{{/E0.rows}}", PRETTY_INPUT * 2),
    ],
)
def test_templates(template, result):
    rendered = templates.render(template, SCOPE)
    assert rendered == result and type(rendered) is type(result)


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{{input.who.name}}", EmptyData),
        ("{{input.nope}}", BadPath),
        ("{{E0.rows.5.t}}", EmptyData),
        ("{{E0.empty.0}}", EmptyData),
        ("{{E0.rows.t}}", BadPath),
        ("{{E0.meta.length}}", BadPath),
        ("{{E9}}", MissingStep),
        ("{{^E9.x}}none{{/E9.x}}", MissingStep),
        ("{{> x}}", TemplateSyntax),
        ("{{! c}}", TemplateSyntax),
        ("{{}}", TemplateSyntax),
        ("{{x", TemplateSyntax),
        ("{{E0.}}", TemplateSyntax),
    ],
)
def test_templates_that_fail(template, error):
    with pytest.raises(error) as caught:
        templates.render(template, SCOPE)
    assert type(caught.value) is error
    if template == "{{input.nope}}":
        assert caught.value.details["available"] == ["n", "tags", "who"]


# The guard ---------------------------------------------------------------------------------------------------------

E1 = {"id": "E1", "tool": "t__a", "input": {}}
E2 = {"id": "E2", "tool": "t__b", "input": {"x": "{{E1.x}}"}}


def plan(*steps, **fields):
    return {"identifier": "p", "name": "p", "description": "", "steps": list(steps), **fields}


def codes(problems):
    return [problem["code"] if isinstance(problem, dict) else problem.code for problem in problems]


def guarded(document, change):
    after, _ = change(document)
    return codes(authoring.guard(document, after))


def test_an_edit_of_a_plan_that_is_not_finished_is_accepted():
    left = guarded(authoring.scaffold("p"), lambda document: authoring.set_attribute(document, "description", "d"))
    assert left == ["no_steps"]


REFUSED = [
    (authoring.scaffold("p"), lambda d: authoring.add_step(d, "A", "t__a", {"x": "{{E9}}"}), ["reference_unknown"]),
    (plan(E1, E2), lambda d: authoring.remove_step(d, "E1"), ["reference_unknown"]),
    (plan(E1, output={"x": "{{E1.x}}"}), lambda d: authoring.remove_step(d, "E1"), None),
    (plan(E1, E2), lambda d: authoring.add_step(d, "E0", "t__a", {"x": "{{E1}}"}, before="E1"), ["reference_unknown"]),
]


@pytest.mark.parametrize(("document", "change", "introduced"), REFUSED)
def test_an_edit_that_would_break_the_plan_is_refused(document, change, introduced):
    with pytest.raises(errors.Refused) as caught:
        guarded(document, change)
    told = codes(caught.value.details["problemsIntroduced"])
    assert told == introduced if introduced else "reference_unknown" in told


def test_fixing_one_of_two_problems_is_accepted():
    document = plan({**E1, "tool": "foo"}, {"id": "B", "tool": "bar", "input": {}})
    assert guarded(document, lambda d: authoring.update_step(d, "E1", "tool", "t__a")) == ["tool_bare"]


def test_solver_and_output_replace_each_other():
    changed, _ = authoring.set_attribute(plan(E1, output={"x": 1}), "solver", {"query_to_answer": "?"})
    assert "output" not in changed and "solver" in changed
    with pytest.raises(errors.Refused):
        authoring.unset_attribute(plan(E1, output={"x": 1}), "solver")


# Counting ----------------------------------------------------------------------------------------------------------

CALL = {"tool": "t__echo", "input": {}}
TWO = [{"id": "a", **CALL}, {"id": "b", **CALL}]
TRUE = {"value": 1, "op": "eq", "to": 1}
FALSE = {"value": 1, "op": "eq", "to": 2}


@pytest.mark.parametrize(
    ("steps", "count"),
    [
        ([("M", "map", {"over": [1, 2, 3], "do": TWO})], 7),
        ([("D", "decide", {"if": TRUE, "then": TWO})], 3),
        ([("F", "filter", {"over": [1, 2], "where": TRUE})], 1),
        ([("A", "t__echo", {}), ("B", "t__echo", {}), ("X", "exit", {"when": TRUE, "status": "success"})], 2),
        ([("A", "t__echo", {}), ("X", "exit", {"when": FALSE, "status": "success"})], 2),
        ([("S", "plan__two", {})], 1),
        ([("R", "reduce", {"over": [1, 2], "do": CALL})], 3),
    ],
)
def test_counting(world, step, steps, count):
    world.plan(step("E1"), step("E2"), identifier="two")
    outcome = world.run(*[step(name, tool, **fields) for name, tool, fields in steps])
    assert (outcome.kind, outcome.steps_executed) == ("ran", count)


class FourCalls:
    """A model that asks for four calls in its first turn and answers in its second."""

    def names(self):
        return frozenset({"chat"})

    def check(self, name):
        pass

    def complete(self, name, messages, **request):
        calls = [{"id": str(n), "name": "t__echo", "arguments": {}} for n in range(4)] if len(messages) == 1 else []
        text = "" if calls else "{}"
        return types.SimpleNamespace(text=text, calls=calls, value=None, stop="end", message={"role": "model"})


def test_an_agent_with_four_calls_counts_five(world, step):
    world.models = FourCalls()
    outcome = world.run(step("G", "agent", prompt="go", output_schema={"type": "object"}, tools=["t__echo"]))
    assert (outcome.kind, outcome.steps_executed) == ("ran", 5)


# Which failure becomes what ----------------------------------------------------------------------------------------


class Solver:
    """A model that answers every request with the same text, and remembers what it was told."""

    def __init__(self):
        self.system = None

    def names(self):
        return frozenset({"solver", "default"})

    def check(self, name):
        pass

    def complete(self, name, system, **request):
        self.system = system

        class Reply:
            text = "told"

        return Reply


def _broken(arguments):
    raise ToolError("no")


def _cancelling(arguments, context):
    context.cancel.cancel()
    context.cancel.check()


EVENTS = {
    "bad path": ("t__echo", {"x": "{{input.nope}}"}),
    "tool error": ("t__break", {}),
    "empty data": ("t__echo", {"x": "{{input.list.0}}"}),
    "error exit": ("exit", {"status": "error", "message": "bad"}),
    "success exit": ("exit", {"status": "success", "message": "good"}),
    "cancelled": ("t__cancel", {}),
}
#: event → kind of an output plan, of a solver plan, and the field a `plan__x` step's error carries (None: a result).
ROUTES = [
    ("bad path", "step_failed", "step_failed", "error"),
    ("tool error", "step_failed", "step_failed", "error"),
    ("empty data", "empty_data", "ran", "empty_data"),
    ("error exit", "exit_error", "exit_error", "exited"),
    ("success exit", "ran", "ran", None),
    ("cancelled", "cancelled", "cancelled", "abort"),
]


@pytest.fixture
def failing(world, step):
    """failing(event, **finish) -> the plan `inner` in which the event happens in the second step."""
    world.tool("break", _broken)
    world.tool("cancel", _cancelling)
    world.models = Solver()

    def make(event, identifier="inner", **finish):
        tool, fields = EVENTS[event]
        return world.plan(step("A"), step("B", tool, **fields), step("C"), identifier=identifier, **finish)

    return make


@pytest.mark.parametrize(("event", "kind", "solver_kind", "field"), ROUTES)
def test_an_event_in_an_output_plan(world, failing, event, kind, solver_kind, field):
    outcome = world.run(plan=failing(event, output={"c": "{{C}}"}), arguments={"list": []})
    assert outcome.kind == kind


@pytest.mark.parametrize(("event", "kind", "solver_kind", "field"), ROUTES)
def test_an_event_in_a_solver_plan(world, failing, event, kind, solver_kind, field):
    outcome = world.run(plan=failing(event, solver={"query_to_answer": "?"}), arguments={"list": []})
    assert outcome.kind == solver_kind
    assert outcome.answer == {"empty data": "told", "error exit": "bad", "success exit": "good"}.get(event)
    assert (world.models.system is not None) == (event == "empty data")
    if event == "empty data":
        assert "{{input.list.0}}" in world.models.system


@pytest.mark.parametrize(("event", "kind", "solver_kind", "field"), ROUTES)
def test_an_event_in_a_nested_plan(world, step, failing, event, kind, solver_kind, field):
    failing(event, output={"c": "{{C}}"})
    outcome = world.run(step("S", "plan__inner", list=[]), step("T"), output={"s": "{{S}}"})
    if field is None:
        assert outcome.output["s"] == {"exited": True, "status": "success", "message": "good"}
    elif field == "abort":
        assert (outcome.kind, outcome.plan) == ("cancelled", "p")
    else:
        assert (outcome.kind, outcome.step) == ("step_failed", "S")
        assert field in outcome.details.get("payload", {"error": 1})


def test_a_nested_solver_plan_answers_when_data_runs_out(world, step, failing):
    failing("empty data", solver={"query_to_answer": "?"})
    outcome = world.run(step("S", "plan__inner", list=[]), output={"s": "{{S}}"})
    assert outcome.output["s"] == {"answer": "told"}


def test_nobody_to_ask_is_an_answer_of_its_own():
    assert tools.unavailable(None).status == "unavailable"
