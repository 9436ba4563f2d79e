"""The seven control steps: gates, branches, iterations, questions, agents."""

import types

import pytest

from graphlib_plans import control, tools
from graphlib_plans.errors import ToolError


class Models:
    """A model that says what the test wrote down, one reply after the other, and notes what it was asked."""

    def __init__(self, *replies):
        self.replies = list(replies)
        self.asked = []

    def names(self):
        return frozenset({"default", "chat", "judge", "solver", "repair", "fast"})

    def check(self, name):
        pass

    def complete(self, name, **request):
        self.asked.append((name, request))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        text = reply if isinstance(reply, str) else ""
        fields = {"text": text, "calls": [], "value": None, "stop": "end", "message": {"role": "model", "text": text}}
        fields.update(reply if isinstance(reply, dict) else {})
        if request.get("on_text"):
            request["on_text"](fields["text"])
        return types.SimpleNamespace(**fields)

    def structured(self, name, **request):
        self.asked.append((name, request))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


def yes(reason="because"):
    return {"verdict": True, "reason": reason}


def no(reason="because not"):
    return {"verdict": False, "reason": reason}


# Gates -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "op", "to", "holds"),
    [
        (1, "eq", 1.0, True),
        (1, "eq", True, False),
        ("5", "eq", 5, False),
        ({"a": [1, None]}, "eq", {"a": [1, None]}, True),
        ([True], "eq", [1], False),
        (9007199254740993, "eq", 9007199254740992.0, False),
        (None, "eq", None, True),
        (1, "ne", 2, True),
        ({"a": 1}, "ne", {"a": 1}, False),
        (2, "gt", 1.5, True),
        (1, "lt", 1, False),
        (1, "gte", 1, True),
        (9007199254740993, "gt", 9007199254740992, True),
        (2, "lte", 1, False),
        (None, "empty", None, True),
        ("", "empty", None, True),
        ([], "empty", None, True),
        ({}, "empty", None, True),
        (0, "empty", None, False),
        (False, "empty", None, False),
        ([0], "not_empty", None, True),
        (0, "not_empty", None, True),
        ("", "not_empty", None, False),
        ("abc", "contains", "b", True),
        ("abc", "contains", "", True),
        ([1, "x"], "contains", 1.0, True),
        ([1], "contains", True, False),
        ([{"a": 1}], "contains", {"a": 1}, True),
    ],
)
def test_gates(value, op, to, holds):
    assert control.evaluate({"value": value, "op": op, "to": to}) is holds


@pytest.mark.parametrize(
    ("value", "op", "to"),
    [
        ("5", "gt", 4),
        (5, "lt", None),
        (True, "gte", 0),
        (5, "contains", 5),
        ("abc", "contains", 1),
        ({}, "contains", "a"),
    ],
)
def test_gates_that_cannot_be_decided_name_both_sides(value, op, to):
    with pytest.raises(ToolError) as caught:
        control.evaluate({"value": value, "op": op, "to": to})
    assert not caught.value.retryable
    assert control.to_json(value) in str(caught.value) and control.to_json(to) in str(caught.value)


def test_the_right_side_of_a_gate_is_null_when_it_is_left_out():
    assert control.evaluate({"value": None, "op": "eq"})


# exit --------------------------------------------------------------------------------------------------------------

TRUE = {"value": 1, "op": "eq", "to": 1}
FALSE = {"value": 1, "op": "eq", "to": 2}


def test_an_exit_that_fires_skips_the_rest_and_the_finish(world, step):
    fields = {"status": "error", "message": "lost {{A.v}}", "output": {"v": "{{A.v}}"}}
    outcome = world.run(
        step("A", v=3), step("X", "exit", when=TRUE, **fields), step("B", "t__write"), output={"b": "{{B}}"}
    )
    assert (outcome.kind, outcome.exit_code, outcome.answer) == ("exit_error", 4, "lost 3")
    assert outcome.output == {"v": 3}
    assert outcome.exit == {"status": "error", "message": "lost 3", "reason": None, "output": {"v": 3}, "step": "X"}
    assert [name for name, _ in world.calls] == ["echo"]


def test_an_exit_that_does_not_fire_renders_nothing_of_its_message(world, step):
    fields = {"status": "error", "message": "{{A.list.0}}", "output": {"x": "{{A.nope}}"}}
    outcome = world.run(step("A", list=[]), step("X", "exit", when=FALSE, **fields), output={"x": "{{X}}"})
    assert outcome.output == {"x": {"passed": True, "verdict": False, "reason": None}}
    assert outcome.steps_executed == 2


@pytest.mark.parametrize(("status", "kind"), [("success", "ran"), ("error", "exit_error")])
def test_an_exit_without_a_gate_always_fires_and_has_a_message(world, step, status, kind):
    outcome = world.run(step("X", "exit", status=status), step("B"))
    assert outcome.kind == kind
    assert outcome.exit["message"] and outcome.answer == outcome.exit["message"]


def test_an_inferred_exit_gives_its_reason(world, step):
    world.models = Models(yes("rows are gone"))
    outcome = world.run(
        step("A", v="x"), step("X", "exit", infer="lost {{A.v}}?", status="error", message="bad", model="fast")
    )
    assert outcome.exit["message"] == "bad (rows are gone)"
    assert outcome.exit["reason"] == "rows are gone"
    assert [(name, request["prompt"], request["site"]) for name, request in world.models.asked] == [
        ("fast", "lost x?", "X")
    ]


def test_an_inferred_exit_that_passes_says_why(world, step):
    world.models = Models(no("all rows are there"))
    outcome = world.run(step("X", "exit", infer="lost?", status="error"), output={"x": "{{X}}"})
    assert outcome.output["x"] == {"passed": True, "verdict": False, "reason": "all rows are there"}
    assert world.models.asked[0][0] == "judge"


# decide ------------------------------------------------------------------------------------------------------------

THEN = {"tool": "t__echo", "input": {"branch": "then"}}
ELSE = [{"id": "a", "tool": "t__echo", "input": {"n": 1}}, {"id": "b", "tool": "t__echo", "input": {"n": "{{a.n}}"}}]


@pytest.mark.parametrize(
    ("gate", "branches", "result", "steps"),
    [
        (
            TRUE,
            {"then": THEN, "else": ELSE},
            {"branch": "then", "verdict": True, "reason": None, "result": {"branch": "then"}},
            2,
        ),
        (
            FALSE,
            {"then": THEN, "else": ELSE},
            {"branch": "else", "verdict": False, "reason": None, "result": {"n": 1}},
            3,
        ),
        (FALSE, {"then": THEN}, {"branch": None, "verdict": False, "reason": None, "result": None}, 1),
    ],
)
def test_decide_runs_one_branch(world, step, gate, branches, result, steps):
    outcome = world.run(step("D", "decide", **{"if": gate}, **branches), output={"d": "{{D}}"})
    assert (outcome.output["d"], outcome.steps_executed) == (result, steps)


def test_the_branch_not_taken_is_never_rendered(world, step):
    branches = {"then": THEN, "else": {"tool": "t__echo", "input": {"x": "{{A.nope}}"}}}
    assert world.run(step("A"), step("D", "decide", **{"if": TRUE}, **branches)).kind == "ran"


def test_an_exit_in_a_branch_ends_the_whole_plan(world, step):
    branch = [{"id": "leave", "tool": "exit", "input": {"status": "success", "message": "early"}}]
    outcome = world.run(step("D", "decide", then=branch, **{"if": TRUE}), step("W", "t__write"))
    assert (outcome.exit["step"], outcome.answer) == ("D/then/leave", "early")
    assert world.calls == []


def test_a_failing_branch_names_the_place_and_the_tool(world, step):
    branch = [{"id": "x", "tool": "t__echo", "input": {"v": "{{A.nope}}"}}]
    outcome = world.run(step("A"), step("D", "decide", then=branch, **{"if": TRUE}))
    assert (outcome.step, outcome.tool) == ("D/then/x", "t__echo")


def test_an_inferred_decision_may_choose_its_model_by_a_template(world, step):
    world.models = Models(yes())
    outcome = world.run(
        step("A", m="fast"),
        step("D", "decide", infer="well?", model="{{A.m}}", then=THEN),
        output={"d": "{{D.reason}}"},
    )
    assert (outcome.output["d"], world.models.asked[0][0]) == ("because", "fast")


# filter ------------------------------------------------------------------------------------------------------------


def test_filter_keeps_order_and_counts(world, step):
    gate = {"value": "{{item.n}}", "op": "gt", "to": "{{input.least}}"}
    items = [{"n": 3}, {"n": 1}, {"n": 2}]
    outcome = world.run(step("F", "filter", over=items, where=gate), output={"f": "{{F}}"}, arguments={"least": 1})
    assert outcome.output["f"] == {"items": [{"n": 3}, {"n": 2}], "count": 2, "dropped": [{"n": 1}], "dropped_count": 1}
    assert outcome.steps_executed == 1


def test_filter_of_nothing_is_zeros(world, step):
    outcome = world.run(step("F", "filter", over=[], where=TRUE), output={"f": "{{F}}"})
    assert outcome.output["f"] == {"items": [], "count": 0, "dropped": [], "dropped_count": 0}


@pytest.mark.parametrize(("value", "word"), [({}, "an object"), ("x", "a string"), (None, "null"), (3, "an integer")])
@pytest.mark.parametrize("tool", ["filter", "map", "reduce"])
def test_over_must_be_an_array(world, step, tool, value, word):
    rest = {"filter": {"where": TRUE}}.get(tool, {"do": THEN})
    outcome = world.run(step("A", v=value), step("F", tool, over="{{A.v}}", **rest))
    assert outcome.kind == "step_failed" and f"it is {word}" in outcome.error


@pytest.mark.parametrize(
    ("items", "kind", "words"),
    [
        ([{"n": 1}, {}], "step_failed", "item 1"),
        ([{"n": "x"}], "step_failed", "item 0"),
        ([{"n": 1}, None], "empty_data", "item 1"),
    ],
)
def test_a_filter_that_cannot_decide_names_the_item(world, step, items, kind, words):
    outcome = world.run(step("F", "filter", over=items, where={"value": "{{item.n}}", "op": "gt", "to": 0}))
    assert (outcome.kind, outcome.step) == (kind, "F")
    assert words in outcome.error


def test_an_inferred_filter_asks_about_every_item(world, step):
    world.models = Models(yes(), no(), yes())
    outcome = world.run(
        step("F", "filter", over=["a", "b", "c"], infer="is {{item}} good?"), output={"f": "{{F.items}}"}
    )
    assert outcome.output["f"] == ["a", "c"]
    assert [request["prompt"] for _, request in world.models.asked] == [f"is {letter} good?" for letter in "abc"]


# map, reduce -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 3, 50])
def test_map_keeps_the_order_of_its_items(world, step, concurrency):
    body = {"tool": "t__echo", "input": {"v": "{{item}}", "i": "{{index}}"}}
    outcome = world.run(step("M", "map", over=list("abcdef"), do=body, concurrency=concurrency), output={"m": "{{M}}"})
    results = [{"v": letter, "i": index} for index, letter in enumerate("abcdef")]
    assert outcome.output["m"] == {"count": 6, "results": results}
    assert outcome.steps_executed == 7


def test_map_of_nothing(world, step):
    assert world.run(step("M", "map", over=[], do=THEN), output={"m": "{{M}}"}).output["m"] == {
        "count": 0,
        "results": [],
    }


def test_items_of_a_map_run_at_the_same_time(world, step, gate, in_thread):
    world.tool("meet", lambda arguments: gate.wait())
    body = {"tool": "t__meet", "input": {}}
    join = in_thread(lambda: world.run(step("M", "map", over=[1, 2, 3, 4], do=body, concurrency=4)))
    gate.await_arrivals(4)
    gate.open()
    assert join().kind == "ran"


def test_the_first_failing_item_is_told_and_nothing_more_starts(world, step):
    def picky(arguments):
        if arguments["v"] == 2:
            raise ToolError("not two")

    world.tool("picky", picky)
    body = {"tool": "t__picky", "input": {"v": "{{item}}"}}
    outcome = world.run(step("M", "map", over=[1, 2, 3, 4], do=body))
    assert (outcome.step, outcome.tool, outcome.steps_executed) == ("M/do.1", "t__picky", 1)
    assert len(world.calls) == 2


def test_bodies_see_the_step_before_them_in_the_same_body_only(world, step):
    body = [
        {"id": "a", "tool": "t__echo", "input": {"v": "{{item}}"}},
        {"id": "b", "tool": "t__echo", "input": {"v": "{{a.v}}{{index}}"}},
    ]
    outcome = world.run(step("M", "map", over=["x", "y"], do=body, concurrency=2), output={"m": "{{M.results}}"})
    assert outcome.output["m"] == [{"v": "x0"}, {"v": "y1"}]
    assert outcome.steps_executed == 5


def test_a_filter_inside_a_map_has_its_own_item(world, step):
    gate = {"value": "{{item}}", "op": "gt", "to": 1}
    body = {"tool": "filter", "input": {"over": "{{item.list}}", "where": gate}}
    outcome = world.run(
        step("M", "map", over=[{"list": [1, 2]}, {"list": [0]}], do=body), output={"m": "{{M.results}}"}
    )
    assert [each["items"] for each in outcome.output["m"]] == [[2], []]


def test_steps_of_bodies_have_retry_and_on_error_too(world, step):
    tries = []

    def shaky(arguments):
        tries.append(arguments["v"])
        raise ToolError("no")

    world.tool("shaky", shaky)
    body = {
        "tool": "t__shaky",
        "input": {"v": "{{item}}"},
        "retry": {"attempts": 2, "backoff_s": 0},
        "on_error": "{{index}}",
    }
    outcome = world.run(step("M", "map", over=["a", "b"], do=body), output={"m": "{{M.results}}"})
    assert (outcome.output["m"], tries) == ([0, 1], ["a", "a", "b", "b"])


def test_reduce_folds_from_left_to_right(world, step):
    body = {"tool": "t__echo", "input": {"text": "{{accumulator.text}}{{item}}{{index}}"}}
    outcome = world.run(step("R", "reduce", over=["a", "b"], initial={"text": ">"}, do=body), output={"r": "{{R}}"})
    assert outcome.output["r"] == {"count": 2, "result": {"text": ">a0b1"}}


@pytest.mark.parametrize(("fields", "result"), [({}, None), ({"initial": "{{A.v}}"}, 5)])
def test_reduce_of_nothing_is_its_start(world, step, fields, result):
    outcome = world.run(step("A", v=5), step("R", "reduce", over=[], do=THEN, **fields), output={"r": "{{R}}"})
    assert outcome.output["r"] == {"count": 0, "result": result}


# ask ---------------------------------------------------------------------------------------------------------------

FORM = {"type": "object", "required": ["go"], "properties": {"go": {"type": "boolean"}}}
DEFAULT = {"when_unanswered": "default", "default": {"go": "{{input.go}}"}}


def test_ask_gives_the_answer(world, step):
    asked = []

    def ask(question):
        asked.append(question)
        return tools.Answer("answered", {"go": True})

    outcome = world.run(
        step("Q", "ask", prompt="go, {{input.who}}?", output_schema=FORM),
        output={"q": "{{Q}}"},
        arguments={"who": "Ida"},
        ask=ask,
    )
    assert outcome.output["q"] == {"answer": {"go": True}, "answered": True}
    question = asked[0]
    assert (question.prompt, question.path, question.stack, question.schema) == ("go, Ida?", "Q", ("p",), FORM)


@pytest.mark.parametrize("status", ["declined", "unavailable"])
def test_ask_goes_on_with_its_default(world, step, status):
    outcome = world.run(
        step("Q", "ask", prompt="go?", output_schema=FORM, **DEFAULT),
        output={"q": "{{Q}}"},
        arguments={"go": False},
        ask=lambda question: tools.Answer(status),
    )
    assert outcome.output["q"] == {"answer": {"go": False}, "answered": False, "reason": status}


@pytest.mark.parametrize("status", ["declined", "unavailable"])
def test_ask_without_a_default_fails_and_quotes_the_question(world, step, status):
    outcome = world.run(step("Q", "ask", prompt="go?", output_schema=FORM), ask=lambda question: tools.Answer(status))
    assert (outcome.kind, outcome.details["payload"]["reason"]) == ("step_failed", status)
    assert "'go?'" in outcome.error


def test_answers_and_defaults_must_keep_to_the_schema(world, step):
    answered = world.run(
        step("Q", "ask", prompt="go?", output_schema=FORM), ask=lambda question: tools.Answer("answered", {"go": "yes"})
    )
    assert "the answer" in answered.error and "go" in answered.error
    default = world.run(step("Q", "ask", prompt="go?", output_schema=FORM, **DEFAULT), arguments={"go": 1})
    assert "the default" in default.error


# agent -------------------------------------------------------------------------------------------------------------

WANTED = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


def agent(step, **fields):
    return step("G", "agent", prompt="find {{input.what}}", output_schema=WANTED, **fields)


def calling(*calls):
    return {"calls": [{"id": f"c{n}", "name": name, "arguments": given} for n, (name, given) in enumerate(calls)]}


def run_agent(world, step, *replies, **fields):
    world.models = Models(*replies)
    return world.run(agent(step, **fields), output={"g": "{{G}}"}, arguments={"what": "it"})


def test_an_agent_that_knows_the_answer(world, step):
    outcome = run_agent(world, step, '{"n": 1}')
    assert outcome.output["g"] == {"output": {"n": 1}, "iterations": 1, "tools_called": [], "final": True}
    name, request = world.models.asked[0]
    assert (name, request["messages"], request["site"]) == ("chat", [{"role": "user", "text": "find it"}], "G")
    assert '"n"' in request["system"]
    assert {tool.name for tool in request["tools"]} == {"t__echo", "t__write"}


@pytest.mark.parametrize(
    "text", ['{"n": 1}', 'Here:\n```json\n{"n": 1}\n```\nDone.', 'The result is {"n": 1}, as wanted.', ' \n{"n": 1}\n']
)
def test_the_object_is_found_in_the_reply(world, step, text):
    assert run_agent(world, step, text).output["g"]["output"] == {"n": 1}


def test_an_agent_calls_tools_and_reads_their_results(world, step):
    outcome = run_agent(
        world, step, calling(("t__echo", {"a": "{{not.rendered}}"}), ("t__write", {"b": 2})), '{"n": 2}', tools=["t__*"]
    )
    assert outcome.output["g"] == {
        "output": {"n": 2},
        "iterations": 2,
        "final": True,
        "tools_called": [{"tool": "t__echo", "round": 1}, {"tool": "t__write", "round": 1}],
    }
    assert outcome.steps_executed == 3
    results = world.models.asked[1][1]["messages"][-1]["results"]
    assert [(each["id"], each["text"], each["is_error"]) for each in results] == [
        ("c0", '{"a":"{{not.rendered}}"}', False),
        ("c1", '{"b":2}', False),
    ]
    paths = [path for name, path in world.told("step_started")]
    assert paths[0] == "G" and set(paths[1:]) == {"G/agent.1/t__echo", "G/agent.1/t__write"}
    assert [event["n"] for event in world.events if event["event"] == "iteration"] == [2]


def test_errors_of_tools_go_back_into_the_conversation(world, step):
    def broken(arguments):
        raise ToolError("no", {"error": "no", "code": 7})

    world.tool("break", broken)
    outcome = run_agent(
        world, step, calling(("t__break", {}), ("absent", {}), ("t__echo", "text")), '{"n": 0}', tools=["t__*"]
    )
    results = world.models.asked[1][1]["messages"][-1]["results"]
    assert [each["is_error"] for each in results] == [True, True, True]
    assert results[0]["text"] == '{"error":"no","code":7}'
    assert outcome.kind == "ran"
    assert outcome.steps_executed == 2  # the agent, and the one call that was made


def test_plan_and_execute_is_never_offered_nor_run(world, step):
    outcome = run_agent(world, step, calling(("plan_and_execute", {"query": "x"})), '{"n": 0}')
    assert world.models.asked[1][1]["messages"][-1]["results"][0]["is_error"]
    assert outcome.kind == "ran"


def test_an_answer_that_misses_the_schema_is_repaired_once(world, step):
    outcome = run_agent(world, step, '{"n": "one"}', {"n": 1})
    assert outcome.output["g"]["output"] == {"n": 1}
    assert outcome.output["g"]["iterations"] == 1
    assert [name for name, _ in world.models.asked] == ["chat", "repair"]


def test_what_cannot_be_repaired_costs_a_round(world, step):
    outcome = run_agent(world, step, '{"n": "one"}', ToolError("no"), "", "prose", '{"n": 4}')
    assert outcome.output["g"] == {"output": {"n": 4}, "iterations": 4, "tools_called": [], "final": True}
    texts = [message["text"] for message in world.models.asked[-1][1]["messages"] if message["role"] == "user"]
    assert len(texts) == 4 and "integer" in texts[1] and "empty" in texts[2] and "JSON object" in texts[3]


def test_the_last_round_has_no_tools_and_forces_the_schema(world, step):
    outcome = run_agent(world, step, calling(("t__echo", {})), {"value": {"n": 9}}, max_iterations=2)
    assert outcome.output["g"]["output"] == {"n": 9} and outcome.output["g"]["final"] is True
    request = world.models.asked[-1][1]
    assert (list(request["tools"]), request["schema"]) == ([], WANTED)


def test_an_agent_that_gives_nothing_in_the_end(world, step):
    outcome = run_agent(world, step, {"value": None}, max_iterations=1)
    assert outcome.output["g"] == {"output": {}, "iterations": 1, "tools_called": [], "final": False}


def test_an_agent_cut_off_by_its_token_limit_fails(world, step):
    outcome = run_agent(world, step, {"stop": "max_tokens"})
    assert outcome.kind == "step_failed" and "token limit" in outcome.error


def test_a_pattern_that_matches_nothing_fails_the_step(world, step):
    # Two servers' worth of names are only known once they are connected to; here the check before the run finds it.
    outcome = run_agent(world, step, tools=["t__nope*"])
    assert outcome.kind == "unresolved_tools" and "t__nope*" in outcome.error


def test_an_agent_in_a_map_sees_the_item(world, step):
    world.models = Models('{"n": 1}', '{"n": 2}')
    body = {"tool": "agent", "input": {"prompt": "{{item}}", "output_schema": WANTED, "tools": ["t__echo"]}}
    outcome = world.run(step("M", "map", over=["a", "b"], do=body), output={"m": "{{M.results}}"})
    assert [each["output"] for each in outcome.output["m"]] == [{"n": 1}, {"n": 2}]
    assert [request["messages"][0]["text"] for _, request in world.models.asked] == ["a", "b"]
    assert [request["site"] for _, request in world.models.asked] == ["M/do.0", "M/do.1"]


# solver ------------------------------------------------------------------------------------------------------------


def test_a_solver_writes_the_answer_from_the_data(world, step):
    world.models = Models("It is three.")
    solver = {
        "query_to_answer": "how many {{input.what}}?",
        "system_prompt": "Be {{brief}}.",
        "data": {"n": ["{{A.v}}"]},
    }
    outcome = world.run(step("A", v=3), solver=solver, arguments={"what": "apples"})
    assert (outcome.kind, outcome.answer, outcome.output) == ("ran", "It is three.", None)
    name, request = world.models.asked[0]
    message = request["messages"][0]["text"]
    assert name == request["site"] == "solver"
    assert message.startswith("how many apples?") and '"n": [\n    3\n  ]' in message
    assert request["system"].startswith("Be {{brief}}.")
    assert [event["text"] for event in world.events if event["event"] == "solver_delta"] == ["It is three."]


def test_a_solver_without_data_gets_every_result(world, step):
    world.models = Models("ok")
    world.run(step("A", v=3), solver={}, arguments={"x": 1}, name="Count")
    message = world.models.asked[0][1]["messages"][0]["text"]
    assert "Count" in message and '"A"' in message and '"input"' in message


def test_data_that_is_not_there_is_said_to_be_missing(world, step):
    world.models = Models("ok")
    world.run(step("A", v=3), solver={"query_to_answer": "?", "data": {"x": "{{A.nope}}", "y": "{{A.v}}"}})
    message = world.models.asked[0][1]["messages"][0]["text"]
    assert "not available" in message and '"y": 3' in message


def test_large_data_is_cut_for_the_solver(world, step):
    world.models = Models("ok")
    world.run(step("A", v=["x" * 600] * 1000), solver={"query_to_answer": "?"})
    assert len(world.models.asked[0][1]["messages"][0]["text"]) < 20_000


def test_a_nested_solver_gives_its_answer_and_streams_nothing(world, step):
    world.models = Models("forty-two")
    world.plan(step("E"), identifier="inner", solver={"query_to_answer": "?"})
    outcome = world.run(step("A", "plan__inner"), output={"a": "{{A}}"})
    assert outcome.output["a"] == {"answer": "forty-two"}
    assert world.models.asked[0][1]["site"] == "inner/solver"
    assert not [event for event in world.events if event["event"] == "solver_delta"]


# Definitions -------------------------------------------------------------------------------------------------------


def test_the_seven_definitions():
    assert list(control.CONTROLS) == ["agent", "ask", "exit", "decide", "filter", "map", "reduce"]
    for name, each in control.CONTROLS.items():
        definition = each.tool.definition()
        assert set(definition) == {
            "name",
            "source",
            "description",
            "readOnly",
            "inputSchema",
            "outputSchema",
            "outputExample",
        }
        assert (definition["name"], definition["source"]) == (name, "(control)")
        assert definition["inputSchema"]["type"] == "object"
        assert "{{{{" not in definition["description"]
    reads = {name: each.tool.summary()["readOnly"] for name, each in control.CONTROLS.items()}
    assert [name for name, value in reads.items() if value] == ["exit", "filter"]
    assert set(reads.values()) == {True, None}
