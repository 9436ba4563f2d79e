"""Questions of a plan put to an MCP client, in both eras: every answer there is, and every way of giving none."""

import json

import pytest

from plan_client import MODERN, reshape

GO = {"type": "object", "properties": {"go": {"type": "boolean", "description": "Write it?"}}, "required": ["go"]}
FORMS = {"elicitation": {}}


def ask_plan(served, identifier="p", schema=GO, before=(), **given):
    """Write a plan that asks, and falls back to its default when nobody answers."""
    given = {"when_unanswered": "default", "default": {"go": False}, **given}
    served.plan(
        identifier,
        *before,
        ("q", "ask", {"prompt": "Go on with {{input.what}}?", "output_schema": schema, **given}),
        output={"answer": "{{q}}"},
        input_schema={"type": "object", "properties": {"what": {"type": "string", "default": "it"}}},
    )


def strict_plan(served):
    served.plan("strict", ("q", "ask", {"prompt": "Go?", "output_schema": GO}), output={"answer": "{{q}}"})


UNANSWERED = {"answer": {"go": False}, "answered": False, "reason": "unavailable"}
DECLINED = {"answer": {"go": False}, "answered": False, "reason": "declined"}
ANSWERED = {"answer": {"go": True}, "answered": True}

OUTCOMES = [
    ({"action": "accept", "content": {"go": True}}, ANSWERED),
    ({"action": "decline"}, DECLINED),
    ({"action": "cancel"}, DECLINED),
    ({"action": "shrug"}, DECLINED),
    ({"action": "accept"}, UNANSWERED),
    ({"action": "accept", "content": [1]}, UNANSWERED),
    ({}, UNANSWERED),
    ({"action": 5}, UNANSWERED),
]


# Up to 2025-11-25


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
@pytest.mark.parametrize("result, expected", OUTCOMES)
def test_every_answer(served, version, result, expected):
    ask_plan(served)
    client = served.connect(version=version, capabilities=FORMS)
    call = client.begin("plan_p", what="this")
    question = client.server_request()
    assert question["params"] == {"message": "Go on with this?", "requestedSchema": GO}
    assert client.request("ping")["result"] == {}  # the reader is not blocked
    client.send({"jsonrpc": "2.0", "id": question["id"], "result": result})
    assert client.outcome(call)[0]["output"]["answer"] == expected
    assert client.finish() == 0


def test_an_error_is_no_answer(served):
    ask_plan(served)
    strict_plan(served)
    client = served.connect(capabilities=FORMS)
    for number, (plan, kind) in enumerate((("plan_p", "ran"), ("plan_strict", "step_failed")), 1):
        call = client.begin(plan)
        question = client.server_request(number=number)
        client.send({"jsonrpc": "2.0", "id": question["id"], "error": {"code": -32603, "message": "no"}})
        body, _ = client.outcome(call)
        assert body["kind"] == kind
    assert "could not be put to anybody" in body["error"] and body["step"] == "q"


def test_an_answer_that_does_not_fit_fails_the_step(served):
    ask_plan(served)
    client = served.connect(capabilities=FORMS)
    call = client.begin("plan_p")
    question = client.server_request()
    client.send({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"go": "maybe"}}})
    body, is_error = client.outcome(call)
    assert (body["kind"], body["step"], is_error) == ("step_failed", "q", True)


@pytest.mark.parametrize("version, capabilities", [
    ("2025-11-25", {}),
    ("2025-11-25", {"elicitation": {"url": {}}}),
    ("2025-11-25", {"elicitation": None}),
    ("2025-03-26", FORMS),
    (MODERN, {}),
    (MODERN, {"elicitation": {"url": {}}}),
])
def test_a_client_that_cannot_ask_is_not_asked(served, version, capabilities):
    ask_plan(served)
    client = served.connect(version=version, capabilities=capabilities)
    assert client.call("plan_p")[0]["output"]["answer"] == UNANSWERED
    assert client.all(lambda m: "method" in m and "id" in m) == []


@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
def test_a_question_the_protocol_cannot_express_is_not_asked(served, version):
    schema = {"type": "object", "properties": {"go": {"enum": [1, 2]}}}
    ask_plan(served, schema=schema, default={"go": 1})
    client = served.connect(version=version, capabilities=FORMS)
    assert client.call("plan_p")[0]["output"]["answer"]["reason"] == "unavailable"


def test_nobody_answers_in_time(served):
    ask_plan(served)
    served.config("[settings]\nask_timeout_s = 0.05\n")
    client = served.connect(capabilities=FORMS)
    call = client.begin("plan_p")
    question = client.server_request()
    assert client.outcome(call)[0]["output"]["answer"] == UNANSWERED
    told = client.notification("notifications/cancelled")["params"]
    assert told["requestId"] == question["id"] and "0.05 s" in told["reason"]
    client.send({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"go": True}}})
    assert client.request("ping")["result"] == {}


def test_a_cancelled_call_takes_its_question_along(served):
    ask_plan(served)
    client = served.connect(capabilities=FORMS)
    call = client.begin("plan_p")
    question = client.server_request()
    client.notify("notifications/cancelled", requestId=call)
    assert client.outcome(call)[0]["kind"] == "cancelled"
    assert client.notification("notifications/cancelled")["params"]["requestId"] == question["id"]


def test_questions_of_one_call_come_one_at_a_time_and_of_two_calls_side_by_side(served):
    served.plan("p", ("m", "map", {"over": [1, 2], "concurrency": 2, "do": {
        "tool": "ask", "input": {"prompt": "Item {{item}}?", "output_schema": GO}}}), output={"all": "{{m.results}}"})
    client = served.connect(capabilities=FORMS)
    calls = [client.begin("plan_p") for _ in range(2)]
    for number in (1, 2):
        client.server_request(number=number)
    assert len({m["id"] for m in client.all(lambda m: m.get("method") == "elicitation/create")}) == 2
    for number in (1, 2, 3, 4):
        question = client.server_request(number=number)
        client.send({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"go": True}}})
    assert all(client.outcome(call)[0]["kind"] == "ran" for call in calls)


def test_the_end_of_stdin_leaves_a_question_without_an_answer(served):
    ask_plan(served)
    client = served.connect(capabilities=FORMS)
    call = client.begin("plan_p")
    client.server_request()
    assert client.finish() == 0
    assert client.outcome(call)[0]["output"]["answer"] == UNANSWERED


def test_a_tool_that_is_tested_may_ask_too(served):
    ask_plan(served)
    client = served.connect(capabilities=FORMS)
    call = client.begin("graph_tools_test", name="plan__p", input={})
    question = client.server_request()
    client.send({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"go": True}}})
    assert client.outcome(call)[0]["result"] == {"answer": ANSWERED}


# From 2026-07-28


def suspended(served, client, name="plan_p", **arguments):
    """Call a plan that asks; return (key of the question, its request, the state)."""
    result = client.result(client.begin(name, **arguments))
    assert result["resultType"] == "input_required" and "content" not in result
    (key, question), = result["inputRequests"].items()
    return key, question, result["requestState"]


def again(client, name, state, responses=None, **arguments):
    """Call again with an answer; return the id of the call."""
    extra = {"requestState": state, **({} if responses is None else {"inputResponses": responses})}
    return client.begin(name, extra=extra, **arguments)


@pytest.mark.parametrize("result, expected", OUTCOMES)
def test_every_answer_of_a_second_call(served, result, expected):
    ask_plan(served)
    client = served.connect(version=MODERN, capabilities=FORMS)
    key, question, state = suspended(served, client, what="this")
    assert question == {"method": "elicitation/create",
                        "params": {"mode": "form", "message": "Go on with this?", "requestedSchema": GO}}
    body, _ = client.outcome(again(client, "plan_p", state, {key: result, "more": {}}, what="this"))
    assert body["output"]["answer"] == expected
    assert client.finish() == 0
    assert client.all(lambda m: "method" in m and "id" in m) == []


def counting(served):
    """A step that leaves one line per run of it; return the file."""
    log = served.folder / "runs"
    served.tool("count", 'echo run >> "$0"', log)
    return log


@pytest.mark.parametrize("restart", [False, True])
def test_finished_steps_are_not_repeated_also_by_another_server(served, restart):
    log = counting(served)
    ask_plan(served, before=[("c", "user__count", {})])
    client = served.connect(version=MODERN, capabilities=FORMS)
    key, _, state = suspended(served, client)
    assert client.call("graph_run_list")[0]["runs"][0]["status"] == "suspended"
    if restart:
        assert client.finish() == 0
        client = served.connect(version=MODERN, capabilities=FORMS)
    body, _ = client.outcome(again(client, "plan_p", state, {key: {"action": "accept", "content": {"go": True}}}))
    assert body["output"]["answer"] == ANSWERED and log.read_text() == "run\n"
    assert client.call("graph_run_show", run=body["run"])[0]["status"] == "ran"


def test_several_questions_one_after_the_other(served):
    ask = {"prompt": "And {{input.n}}?", "output_schema": GO}
    served.plan("p", ("a", "ask", ask), ("b", "ask", ask), output={"a": "{{a.answer.go}}", "b": "{{b.answer.go}}"},
                input_schema={"type": "object", "properties": {"n": {}}})
    client = served.connect(version=MODERN, capabilities=FORMS)
    key, _, state = suspended(served, client, n=1)
    result = client.result(again(client, "plan_p", state, {key: {"action": "accept", "content": {"go": True}}}, n=1))
    (second, _), = result["inputRequests"].items()
    assert second != key
    answer = {second: {"action": "accept", "content": {"go": False}}}
    body, _ = client.outcome(again(client, "plan_p", result["requestState"], answer, n=1))
    assert body["output"] == {"a": True, "b": False}


def test_a_missing_answer_is_asked_for_again(served):
    ask_plan(served)
    client = served.connect(version=MODERN, capabilities=FORMS)
    key, question, state = suspended(served, client)
    for responses in (None, {}, {"other": {"action": "accept"}}, "wrong"):
        result = client.result(again(client, "plan_p", state, responses))
        assert result["inputRequests"] == {key: question}
    body, _ = client.outcome(again(client, "plan_p", result["requestState"], {key: {"action": "decline"}}))
    assert body["output"]["answer"] == DECLINED


def test_an_answer_after_the_time_is_none(served):
    log = counting(served)
    ask_plan(served, before=[("c", "user__count", {})])
    served.config("[settings]\nask_timeout_s = 0.001\n")
    client = served.connect(version=MODERN, capabilities=FORMS)
    key, _, state = suspended(served, client)
    body, _ = client.outcome(again(client, "plan_p", state, {key: {"action": "accept", "content": {"go": True}}}))
    assert body["output"]["answer"] == UNANSWERED and log.read_text() == "run\n"


def altered(state):
    version, payload, mac = state.split(".")
    return [
        f"{version}.{payload[:-2]}AA.{mac}",
        f"{version}.{payload}.{mac[:-2]}AA",
        f"v2.{payload}.{mac}",
        payload,
        "",
        "x" * 100000,
        "v1.\ud800.\ud800",
        "v1.é.é",
    ]


def test_a_state_that_is_not_ours_is_refused(served):
    ask_plan(served)
    served.plan("q", reshape("a", 1))
    client = served.connect(version=MODERN, capabilities=FORMS)
    key, _, state = suspended(served, client, what="this")
    answer = {key: {"action": "accept", "content": {"go": True}}}
    for wrong in [*altered(state), 5, None, {"a": 1}]:
        if wrong is None:
            continue
        body, is_error = client.outcome(again(client, "plan_p", wrong, answer, what="this"))
        assert (body["kind"], is_error) == ("bad_argument", True) and "call the tool again without it" in body["error"]
    for name, arguments in (("plan_p", {"what": "that"}), ("plan_p", {}), ("plan_q", {"what": "this"})):
        body, is_error = client.outcome(again(client, name, state, answer, **arguments))
        assert (body["kind"], is_error) == ("bad_argument", True) and "another call" in body["error"]
    assert client.outcome(again(client, "plan_p", state, answer, what="this"))[0]["kind"] == "ran"
    body, is_error = client.outcome(again(client, "plan_p", state, answer, what="this"))
    assert body["kind"] == "bad_argument" and "ended well" in body["error"] and is_error


def test_an_answer_is_given_to_the_plan_it_was_asked_for(served):
    ask_plan(served)
    client = served.connect(version=MODERN, capabilities=FORMS)
    key, _, state = suspended(served, client)
    ask_plan(served, before=[reshape("more", 1)])
    body, is_error = client.outcome(
        again(client, "plan_p", state, {key: {"action": "accept", "content": {"go": True}}})
    )
    assert body["kind"] == "refused" and "its plan was changed" in body["error"] and is_error


def test_a_second_call_without_the_capability_is_told_what_is_needed(served):
    ask_plan(served)
    client = served.connect(version=MODERN, capabilities=FORMS)
    _, _, state = suspended(served, client)
    client.capabilities = {}
    error = client.answer(again(client, "plan_p", state, {}))["error"]
    assert error["code"] == -32021 and error["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}


def test_without_records_nobody_can_be_asked_later(served):
    ask_plan(served)
    client = served.connect(version=MODERN, capabilities=FORMS, env={"GRAPH_STORAGE": "memory"})
    assert client.call("plan_p")[0]["output"]["answer"] == UNANSWERED


def test_a_secret_of_a_tool_is_in_no_record_before_and_after_a_question(served):
    served.tool("leak", "echo got $K", env={"K": "${LEAKY_TOKEN}"})
    served.plan("p", ("a", "user__leak", {}), ("q", "ask", {"prompt": "Go?", "output_schema": GO}),
                {"id": "b", "tool": "user__leak", "input": {}, "after": ["q"]},
                output={"said": "{{a.text}}, {{b.text}}"})
    client = served.connect(version=MODERN, capabilities=FORMS, env={"LEAKY_TOKEN": "s3cr3t-of-mine"})
    key, _, state = suspended(served, client)
    answer = {key: {"action": "accept", "content": {"go": True}}}
    body = client.outcome(again(client, "plan_p", state, answer))[0]
    assert body["output"] == {"said": "got s3cr3t-of-mine, got s3cr3t-of-mine"}
    written = "".join(path.read_text() for path in served.home.rglob("*.jsonl"))
    assert written.count("got [hidden]") >= 2 and "s3cr3t" not in written


def test_responses_to_nothing_are_ignored(served):
    ask_plan(served)
    client = served.connect(capabilities=FORMS)
    for response in (
        {"id": "ask-1", "result": {}},
        {"id": 1, "result": {}},
        {"id": None, "error": {}},
        {"id": "x", "error": 1},
    ):
        client.send({"jsonrpc": "2.0", **response})
    call = client.begin("plan_p")
    question = client.server_request()
    client.send(json.dumps({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {}}})
                .replace("{}", '{"go": NaN}').encode() + b"\n")
    assert client.outcome(call)[0]["output"]["answer"] == UNANSWERED
