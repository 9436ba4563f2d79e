"""What an agent does with the server: build a plan and use it, read outcomes, follow progress, cancel, fetch."""

import json
import os
import shutil
import threading

import pytest

import plan_client
from graphlib_plans import errors, mcp_server, mcp_surface
from graphlib_plans.documents import CONTROL_STEPS
from plan_client import MODERN, reshape

BOTH = pytest.mark.parametrize("version", ["2025-06-18", MODERN])


# Build, then use


@BOTH
def test_a_plan_is_built_and_used_in_one_session(served, version):
    client = served.connect(version=version)
    listed = client.call("graph_tools_list")[0]
    assert {"builtin__reshape", *CONTROL_STEPS} <= {tool["name"] for tool in listed["tools"]}
    assert {"source": "(control)", "count": 7} in listed["sources"]
    for name in CONTROL_STEPS:
        shown = client.call("graph_tools_show", name=name)[0]
        assert shown["source"] == "(control)" and shown["inputSchema"]["properties"]
        assert set(shown) == set("name source description readOnly inputSchema outputSchema outputExample".split())
    made, _ = client.call("graph_plan_new", identifier="cards", name="Cards", description="Place cards for guests.")
    assert made["savedTo"] == str(served.plans / "cards.json")
    bad, is_error = client.call(
        "graph_plan_step_add",
        target="cards",
        id="lines",
        tool="map",
        input={"over": "{{E9.items}}", "do": {"tool": "builtin__reshape", "input": {"shape": 1}}},
    )
    assert bad["kind"] == "refused" and bad["problemsIntroduced"][0]["code"] == "reference_unknown" and is_error
    body = {"tool": "builtin__reshape", "input": {"shape": "Guest {{item.first}}"}}
    assert client.call("graph_plan_set", target="cards", attribute="input_schema", value=GUESTS)[0]["ok"]
    added, _ = client.call("graph_plan_step_add", target="cards", id="lines", tool="map",
                           input={"over": "{{input.guests}}", "do": body})
    assert (added["id"], added["index"], added["steps"]) == ("lines", 0, 1)
    assert client.call("graph_plan_set", target="cards", attribute="output", value={"cards": "{{lines.results}}"})[0][
        "ok"
    ]
    assert client.call("graph_plan_validate", target="cards")[0]["ok"]
    tool = client.tools()["plan_cards"]
    assert tool["inputSchema"] == GUESTS and tool["title"] == "Cards"
    body, is_error = client.call("plan_cards", guests=[{"first": "Ida"}])
    assert body["output"] == {"cards": ["Guest Ida"]} and not is_error
    assert client.finish() == 0


GUESTS = {
    "type": "object",
    "properties": {"guests": {"type": "array", "items": {"type": "object"}}},
    "required": ["guests"],
}


def test_every_edit_there_is(served):
    served.plan("p", reshape("a", 1), reshape("b", "{{a}}"), output={"x": "{{b}}"})
    client = served.connect()
    for name, arguments in (
        ("set", {"attribute": "exemplars", "value": ["do it"]}),
        ("set", {"attribute": "description", "value": "@/etc/hostname"}),
        ("set", {"attribute": "name", "value": "-"}),
        ("set", {"attribute": "output", "value": '{"y": "{{b}}"}'}),
        ("unset", {"attribute": "exemplars"}),
        ("step_rename", {"id": "a", "new_id": "first"}),
        ("step_update", {"id": "b", "attribute": "reasoning", "value": "because"}),
        ("step_add", {"id": "c", "tool": "builtin__reshape", "input": {"shape": "@x"}, "before": "b"}),
        ("step_rm", {"id": "c"}),
    ):
        body, is_error = client.call(f"graph_plan_{name}", target="p", **arguments)
        assert body["ok"] and not is_error, body
    shown = client.call("graph_plan_show", target="p")[0]
    assert (shown["description"], shown["name"], shown["output"]) == ("@/etc/hostname", "-", {"y": "{{b}}"})
    assert [step["id"] for step in shown["steps"]] == ["first", "b"]
    assert shown["steps"][1]["input"] == {"shape": "{{first}}"} and shown["path"] == str(served.plans / "p.json")
    moved, _ = client.call("graph_plan_set", target="p", attribute="identifier", value="q")
    assert moved["renamedFrom"] == str(served.plans / "p.json")


@pytest.mark.parametrize(
    "name, arguments, kind, words",
    [
        ("graph_plan_show", {"target": "nope"}, "unknown_plan", "there is no plan 'nope'"),
        ("graph_plan_show", {"target": "../../../etc/passwd"}, "unknown_plan", "there is no plan"),
        ("graph_plan_show", {}, "bad_argument", "target is required"),
        ("graph_plan_show", {"target": "p", "path": "/x"}, "bad_argument", "path"),
        ("graph_plan_new", {"identifier": "../x"}, "bad_argument", "cannot be an identifier"),
        ("graph_plan_new", {"identifier": "p"}, "bad_argument", "already"),
        ("graph_plan_set", {"target": "p", "attribute": "colour", "value": 1}, "bad_argument", "attribute"),
        (
            "graph_plan_set",
            {"target": "p", "attribute": "description", "value": None},
            "bad_argument",
            "must be a string",
        ),
        (
            "graph_plan_set",
            {"target": "p", "attribute": "output", "value": "@/etc/passwd"},
            "bad_argument",
            "must be an object",
        ),
        ("graph_plan_unset", {"target": "p", "attribute": "solver"}, "refused", "no solver"),
        ("graph_plan_step_rm", {"target": "p", "id": "E7"}, "refused", "there is no step 'E7'"),
        ("graph_plan_step_rm", {"target": "p", "id": "a"}, "refused", "refused"),
        ("graph_tools_show", {"name": "builtin__nope"}, "bad_argument", "builtin__nope"),
        ("graph_tools_test", {"name": "map"}, "bad_argument", "control step"),
        ("graph_run_show", {"run": "../x"}, "bad_argument", "there is no run"),
        ("graph_run_cancel", {"run": "20200101-000000-aaaa"}, "bad_argument", "there is no run"),
        ("graph_plan_draft", {"goal": "a thing"}, "model_unavailable", "no model is configured"),
    ],
)
def test_what_cannot_be_done_is_said_as_data(served, name, arguments, kind, words):
    served.plan("p", reshape("a", 1), output={"x": "{{a}}"})
    client = served.connect()
    body, is_error = client.call(name, **arguments)
    assert (body["kind"], is_error) == (kind, True) and words in body["error"], body
    assert client.call("graph_plan_list")[1] is False


def test_an_invalid_plan_is_data_with_its_problems(served):
    served.plan("p", ("a", "nope", {}))
    body, is_error = served.connect().call("graph_plan_validate", target="p")
    assert (body["kind"], body["ok"], is_error) == ("invalid_plan", False, True) and body["problems"]


@pytest.mark.parametrize("name", ["graph_plan_lst", "plan_grete", "", "plan_", "x" * 5000])
def test_a_misspelled_tool_is_a_protocol_error(served, name):
    served.plan("greet", reshape("a", 1))
    answer = served.connect().request("tools/call", {"name": name, "arguments": {}})
    assert answer["error"]["code"] == -32602 and len(answer["error"]["message"]) < 500


def test_a_plan_that_was_removed_is_explained(served):
    path = served.plan("greet", reshape("a", 1))
    client = served.connect()
    assert "plan_greet" in client.tools()
    path.unlink()
    body, is_error = client.call("plan_greet")
    assert body["kind"] == "unknown_plan" and is_error


def test_a_tool_that_fails_in_a_test_is_a_result(served):
    served.tool("boom", "echo why >&2; exit 2")
    client = served.connect()
    body, is_error = client.call("graph_tools_test", name="user__boom")
    assert (body["tool"], body["isError"], is_error) == ("user__boom", True, False) and body["result"][
        "stderr"
    ] == "why\n"
    assert client.call("graph_tools_test", name="builtin__reshape", input={"shape": [1]})[0]["result"] == [1]


# Outcomes of runs


def test_missing_input_brings_the_schema_and_a_second_try_works(served):
    served.plan("p", reshape("a", "{{input.n}}"), output={"n": "{{a}}"}, input_schema={
        "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    client = served.connect()
    body, is_error = client.call("plan_p")
    assert body["kind"] == "needs_input" and body["problems"] and body["inputSchema"]["required"] == ["n"] and is_error
    assert client.call("plan_p", n="012")[0]["kind"] == "needs_input"
    assert "m" in client.call("plan_p", n=1, m=2)[0]["error"]
    assert client.call("plan_p", n=1)[0]["output"] == {"n": 1}


def test_gates_of_both_kinds(served):
    for status in ("error", "success"):
        served.plan(
            f"gate_{status}",
            reshape("a", 3),
            ("stop", "exit", {"status": status, "message": "enough", "when": {"value": "{{a}}", "op": "gt", "to": 2}}),
            reshape("never", 1),
            output={"x": "{{never}}"},
        )
    client = served.connect()
    body, is_error = client.call("plan_gate_error")
    assert body["kind"] == "exit_error" and body["exit"]["step"] == "stop" and body["answer"] == "enough" and is_error
    assert set(body) == set("kind answer output plan steps_executed exit usage run".split())
    body, is_error = client.call("plan_gate_success")
    assert body["kind"] == "ran" and body["exit"]["status"] == "success" and not is_error


def test_a_failing_step_is_named_with_what_finished(served):
    served.tool("boom", "echo why >&2; exit 2")
    served.plan("p", reshape("a", {"n": 1}), ("b", "user__boom", {}), ("c", "user__boom", {}), output={"x": "{{a}}"})
    client = served.connect()
    body, is_error = client.call("plan_p")
    assert (body["kind"], body["step"], body["tool"], is_error) == ("step_failed", "b", "user__boom", True)
    assert body["finished"] == {"a": {"n": 1}} and body["payload"]["stderr"] == "why\n" and body["usage"] is None
    assert client.call("graph_run_show", run=body["run"])[0]["outcome"]["kind"] == "step_failed"


@pytest.mark.parametrize("steps, output, kind", [
    ([reshape("a", [])], {"x": "{{a.0.name}}"}, "empty_data"),
    ([("a", "files__read", {})], {"x": "{{a}}"}, "unresolved_tools"),
])
def test_other_kinds_of_failure(served, steps, output, kind):
    served.plan("p", *steps, output=output)
    body, is_error = served.connect().call("plan_p")
    assert (body["kind"], is_error) == (kind, True), body


def test_an_output_schema_is_declared_and_kept_by_errors_too(served):
    served.plan(
        "p",
        reshape("a", "{{input.n}}"),
        ("stop", "exit", {"status": "error", "output": {"other": 1}, "when": {"value": "{{a}}", "op": "eq", "to": 0}}),
        output={"n": "{{a}}"},
        output_schema={"type": "object", "properties": {"n": {"type": "integer"}}},
        input_schema={"type": "object", "properties": {"n": {}}, "required": ["n"]},
    )
    client = served.connect()
    rule = client.tools()["plan_p"]["outputSchema"]
    from graphlib_plans import schema

    for arguments, kind in (
        ({"n": 1}, "ran"),
        ({"n": 0}, "exit_error"),
        ({}, "needs_input"),
        ({"n": "x"}, "step_failed"),
    ):
        body, _ = client.call("plan_p", **arguments)
        assert body["kind"] == kind and schema.problems(body, rule) == []


# Progress


@BOTH
@pytest.mark.parametrize("token", ["t", "0", 0, 7])
def test_progress_comes_with_the_token_as_it_was_sent(served, version, token):
    served.plan("inner", reshape("x", 1), output={"x": "{{x}}"})
    served.plan("p", ("a", "plan__inner", {}), ("b", "map", {"over": [1, 2], "do": {"tool": "builtin__reshape",
                                                                                  "input": {"shape": 1}}}))
    client = served.connect(version=version)
    client.outcome(client.begin("plan_p", meta={"progressToken": token}))
    told = client.progress(token)
    numbers = [each["progress"] for each in told]
    assert numbers == sorted(set(numbers)) and numbers[-1] == 2 and {each["total"] for each in told} == {2}
    messages = [each["message"] for each in told]
    assert (
        "a plan__inner" in messages
        and "inner ▸ x builtin__reshape" in messages
        and "b/do.1 builtin__reshape" in messages
    )
    assert client.finish() == 0
    last = client.all()[-1]
    assert "result" in last  # nothing after the answer


@pytest.mark.parametrize("meta", [None, {"progressToken": None}, {"progressToken": True}, {"progressToken": 1.5}])
def test_without_a_token_there_is_no_progress(served, meta):
    served.plan("p", reshape("a", 1))
    client = served.connect()
    client.outcome(client.begin("plan_p", meta=meta))
    assert client.finish() == 0
    assert client.all(lambda m: m.get("method") == "notifications/progress") == []


def test_a_failing_step_is_told_as_it_fails(served):
    served.tool("boom", "exit 2")
    served.plan("p", ("a", "user__boom", {}))
    client = served.connect()
    client.outcome(client.begin("plan_p", meta={"progressToken": 1}))
    assert "a user__boom failed" in client.progress(1)[-1]["message"]


# Cancellation


def cancelled_run(served, version):
    """Run a plan of two steps, cancel it in the first; return (client, id of the call, marker of the second step)."""
    gate, marker = served.gate("gate"), served.folder / "later"
    served.tool("later", 'touch "$0"', marker)
    served.plan("p", reshape("quick", 1), ("a", "user__gate", {}), ("b", "user__later", {}))
    client = served.connect(version=version)
    call = client.begin("plan_p", meta={"progressToken": "t"})
    child = gate.await_start()
    client.notify("notifications/cancelled", requestId=call, reason="changed my mind")
    client.wait_for_error("plan_p ended")
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    return client, call, marker


def test_a_cancelled_call_stops_and_tells_how_far_it_came(served):
    client, call, marker = cancelled_run(served, "2025-11-25")
    body, is_error = client.outcome(call)
    assert (body["kind"], body["steps_executed"], is_error) == ("cancelled", 1, True)
    assert "changed my mind" in body["error"] and not marker.exists()
    assert client.finish() == 0
    assert len(client.all(lambda m: m.get("id") == call)) == 1


def test_a_cancelled_modern_call_gets_no_further_message(served):
    client, call, marker = cancelled_run(served, MODERN)
    with client.changed:
        told = len(client.messages)
    assert "tools" in client.request("tools/list")["result"]
    assert client.finish() == 0 and not marker.exists()
    assert len(client.messages) == told + 1
    assert client.all(lambda m: m.get("id") == call) == []


def test_a_cancel_of_something_unknown_is_ignored(served):
    client = served.connect()
    for params in ({}, {"requestId": 99}, {"requestId": None}, {"requestId": {"a": 1}}, {"requestId": "1"}):
        client.notify("notifications/cancelled", **params)
    client.send(b'{"jsonrpc":"2.0","method":"notifications/cancelled"}\n')
    client.send(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":[1]}\n')
    assert client.request("ping")["result"] == {}


def test_a_queued_or_finished_call_can_be_cancelled(served):
    served.plan("p", reshape("a", 1))
    client = served.connect()
    call = client.begin("plan_p")
    client.notify("notifications/cancelled", requestId=call)
    assert client.outcome(call)[0]["kind"] in ("ran", "cancelled")
    client.notify("notifications/cancelled", requestId=call)
    assert client.request("ping")["result"] == {}


# Long runs


def test_the_outcome_of_a_call_can_be_fetched_later_and_a_run_be_cancelled(served):
    gate = served.gate("gate")
    served.plan("slow", reshape("a", 1), ("b", "user__gate", {}), output={"b": "{{b.text}}"})
    client, other = served.connect(), served.connect()
    call = client.begin("plan_slow")
    gate.await_start()
    runs = client.call("graph_run_list", plan="slow")[0]
    assert [run["status"] for run in runs["runs"]] == ["running"] and runs["count"] == 1
    run = runs["runs"][0]["run"]
    shown = client.call("graph_run_show", run=run)[0]
    assert shown["outcome"] is None and [step["path"] for step in shown["steps"]] == ["a"]
    refused, is_error = other.call("graph_run_cancel", run=run)
    assert refused["kind"] == "refused" and "another program" in refused["error"] and is_error
    gate.let_pass()
    client.outcome(call)
    assert client.call("graph_run_show", run=run)[0]["outcome"]["output"] == {"b": "passed"}
    assert "not running" in client.call("graph_run_cancel", run=run)[0]["error"]
    call = client.begin("plan_slow")
    gate.await_start()
    second = client.call("graph_run_list", limit=1)[0]["runs"][0]["run"]
    assert client.call("graph_run_cancel", run=second)[0]["ok"]
    body, is_error = client.outcome(call)
    assert body["kind"] == "cancelled" and "graph_run_cancel" in body["error"] and is_error


# Many at once


def test_two_hundred_calls_at_once_and_edits_between_them(served):
    served.plan("p", *(reshape(f"s{n}", "{{input.n}}") for n in range(3)), output={"n": "{{s2}}"},
                input_schema={"type": "object", "properties": {"n": {"type": "integer"}}})
    served.plan("q", reshape("a", 0))
    client = served.connect()
    calls = {client.begin("plan_p", n=n): n for n in range(200)}
    edits = [client.begin("graph_plan_step_add", target="q", id=f"e{n}", tool="builtin__reshape", input={"shape": n})
             for n in range(10)]
    for call, n in calls.items():
        assert client.outcome(call)[0]["output"] == {"n": n}
    assert all(client.outcome(edit)[0]["ok"] for edit in edits)
    assert len(json.loads((served.plans / "q.json").read_text())["steps"]) == 11
    assert client.finish() == 0


def test_two_servers_write_one_folder_without_losing_an_edit(served):
    served.plan("q", reshape("a", 0))
    clients = [served.connect() for _ in range(2)]
    started = [(client, client.begin("graph_plan_step_add", target="q", id=f"c{number}_{n}", tool="builtin__reshape",
                                     input={"shape": n}))
               for n in range(8) for number, client in enumerate(clients)]
    assert all(client.outcome(call)[0]["ok"] for client, call in started)
    assert len(json.loads((served.plans / "q.json").read_text())["steps"]) == 17


def test_a_call_does_not_wait_for_another(served):
    gate = served.gate("gate")
    served.plan("slow", ("a", "user__gate", {}))
    served.plan("quick", reshape("a", 1), output={"a": "{{a}}"})
    client = served.connect()
    slow = client.begin("plan_slow")
    gate.await_start()
    assert client.request("ping")["result"] == {}
    assert client.call("plan_quick")[0]["kind"] == "ran"
    threading.Thread(target=gate.let_pass).start()
    assert client.outcome(slow)[0]["kind"] == "ran"


def test_a_plan_uses_a_real_server_and_its_process_is_used_again(served):
    script = plan_client.ROOT / "tests" / "plans" / "servers" / "mcp_stdio.py"
    served.config(
        f"[mcp.far]\ncommand = {json.dumps(plan_client.sys.executable)}\nargs = [{json.dumps(str(script))}]\n"
    )
    client = served.connect()
    listed = client.call("graph_tools_list")[0]
    assert [each["count"] for each in listed["sources"] if each["source"] == "far"], listed["notes"]


# The examples, and what the guide says


def test_the_examples_are_usable_on_a_fresh_machine(served):
    shutil.copytree(plan_client.ROOT / "examples", served.folder, dirs_exist_ok=True)
    client = served.connect(capabilities={"elicitation": {}})
    assert client.call("graph_plan_list")[0]["skipped"] == []
    plans = sorted(path.stem for path in served.plans.iterdir() if path.suffix in (".json", ".toml"))
    assert [name for name in client.tools() if name.startswith("plan_")] == [f"plan_{name}" for name in plans]
    body, _ = client.call("plan_place_cards", guests=[{"first": "Ida", "seat": 3}])
    assert body["kind"] == "ran"
    assert client.call("plan_check_disks", limit=101)[0]["kind"] == "ran"
    body, is_error = client.call("plan_check_disks", limit=0)
    assert body["kind"] == "exit_error" and body["exit"]["step"] == "alarm" and is_error
    call = client.begin("plan_keep_note", note="remember", file=str(served.home / "notes.txt"))
    question = client.server_request()
    answer = {name: True for name in question["params"]["requestedSchema"]["properties"]}
    client.send({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": answer}})
    assert client.outcome(call)[0]["kind"] == "ran" and "remember" in (served.home / "notes.txt").read_text()


def test_the_guide_names_every_tool_kind_and_version():
    guide = (plan_client.ROOT / "docs" / "plan-server.md").read_text(encoding="utf-8")
    kinds = {
        each.kind for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.PlanError)
    }
    for word in [*mcp_surface.STATIC, *kinds, "ran", "exit_error", "cancelled", *mcp_server.LEGACY_VERSIONS, MODERN]:
        assert f"`{word}`" in guide or word in (*mcp_server.LEGACY_VERSIONS, MODERN) and word in guide, word
