"""The server as a process: the handshake of both eras, what is served, configuration that breaks and heals, the end."""

import json
import os
import signal
import sys

import pytest

import plan_client
from plan_client import KEY, MODERN, reshape

LEGACY = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
STATIC = (
    "graph_plan_list graph_plan_show graph_plan_validate graph_plan_new graph_plan_draft graph_plan_set"
    " graph_plan_unset graph_plan_step_add graph_plan_step_update graph_plan_step_rename graph_plan_step_rm"
    " graph_tools_list graph_tools_show graph_tools_test graph_run_list graph_run_show graph_run_cancel"
).split()


def greet(served):
    served.plan(
        "greet", reshape("made", "Hello {{input.name}}"), output={"text": "{{made}}"},
        input_schema={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    )  # fmt: skip


@pytest.mark.parametrize("version", [*LEGACY, MODERN])
def test_every_version_is_spoken(served, version):
    greet(served)
    client = served.connect(version=version, hello=False)
    hello = client.hello()
    assert hello["capabilities"] == {"tools": {"listChanged": True}}
    assert "plan_<name>" in hello["instructions"] and "NOTE" not in hello["instructions"]
    if version == MODERN:
        assert hello["supportedVersions"] == [MODERN]
        assert hello["_meta"][KEY + "serverInfo"]["name"] == "graph"
    else:
        assert hello["protocolVersion"] == version and hello["serverInfo"]["name"] == "graph"
        assert client.request("ping")["result"] == {}
    assert list(client.tools()) == [*STATIC, "plan_greet"]
    body, is_error = client.call("plan_greet", name="Ida")
    assert (body["kind"], body["output"], is_error) == ("ran", {"text": "Hello Ida"}, False)
    assert client.finish() == 0


@pytest.mark.parametrize("asked", ["1999-01-01", "2030-01-01", MODERN])
def test_an_unknown_version_is_answered_with_the_newest_of_initialize(served, asked):
    client = served.connect(hello=False)
    answer = client.request("initialize", {"protocolVersion": asked, "capabilities": {}, "clientInfo": {}})
    assert answer["result"]["protocolVersion"] == "2025-11-25"


def test_both_eras_on_one_pipe(served):
    greet(served)
    client = served.connect()
    client.version = MODERN
    assert client.request("tools/list")["result"]["resultType"] == "complete"
    client.version = "2025-11-25"
    assert "resultType" not in client.request("tools/list")["result"]


def test_a_probe_does_not_keep_a_client_from_initialize(served):
    client = served.connect(hello=False)
    answer = client.request("server/discover", {"x": 1})
    assert answer["error"]["code"] == -32602  # no metadata: what a sloppy probe gets, and it is no crash
    assert client.hello()["protocolVersion"] == "2025-11-25"


def test_calls_before_the_handshake_are_served(served):
    client = served.connect(hello=False)
    assert client.request("ping")["result"] == {}
    assert len(client.tools()) == len(STATIC)


META = {KEY + "protocolVersion": MODERN, KEY + "clientCapabilities": {}}


@pytest.mark.parametrize("meta, code", [
    ({KEY + "protocolVersion": MODERN}, -32602),
    ({KEY + "clientCapabilities": {}}, -32602),
    ({**META, KEY + "protocolVersion": 7}, -32602),
    ({**META, KEY + "protocolVersion": "2031-01-01"}, -32022),
])
def test_metadata_of_the_modern_era_is_checked(served, meta, code):
    client = served.connect(hello=False)
    answer = client.request("tools/list", meta=meta)
    assert answer["error"]["code"] == code
    if code == -32022:
        assert answer["error"]["data"] == {"supported": [MODERN], "requested": "2031-01-01"}


@pytest.mark.parametrize("method", ["ping", "logging/setLevel", "resources/list", "initialized", "x"])
def test_methods_that_are_not_there(served, method):
    client = served.connect(version=MODERN)
    assert client.request(method)["error"]["code"] == -32601


def test_a_cursor_is_one_of_nobody(served):
    assert served.connect().request("tools/list", {"cursor": ""})["error"]["code"] == -32602


# What is loaded, and when


def test_the_working_directory_is_never_a_project(served):
    greet(served)
    served.config('[settings]\ndata_dir = "${NEVER_READ}"\n')
    client = served.connect(project=False, cwd=served.folder, hello=False)
    instructions = client.hello()["instructions"]
    assert "no plans are served" in instructions and "--dir" in instructions
    client.wait_for_error("--dir")
    body, is_error = client.call("graph_plan_new", identifier="made")
    assert not is_error
    assert body["savedTo"] == str(served.home / ".config" / "graph" / "plans" / "made.json")
    assert "plan_greet" not in client.tools()


def test_the_global_layer_is_there_with_and_without_a_project(served):
    folder = served.home / ".config" / "graph" / "plans"
    served.plan("everywhere", reshape("a", 1), output={"a": "{{a}}"}, folder=folder)
    assert "plan_everywhere" in served.connect(project=False).tools()
    assert "plan_everywhere" in served.connect().tools()
    served.config('[plans]\npaths = ["./.graph/plans"]\n')
    assert "plan_everywhere" not in served.connect().tools()


def test_an_empty_project_is_explained_with_its_directory(served):
    client = served.connect(hello=False)
    assert f"The project is {served.folder} (--dir)" in client.hello()["instructions"]


def test_a_project_whose_files_are_all_broken_is_explained(served):
    (served.plans / "a.json").write_text("{")
    client = served.connect(hello=False)
    assert "1 files, none of which can be used" in client.hello()["instructions"]
    body, _ = client.call("graph_plan_list")
    assert body["plans"] == [] and "not well formed" in body["skipped"][0]["reason"]
    body, is_error = client.call("plan_a")
    assert body["kind"] == "unknown_plan" and "not well formed" in body["error"] and is_error


@pytest.mark.parametrize("text, words", [
    ("[settings\n", "is not TOML"),
    ("[nonsense]\n", "nonsense"),
    ('[settings]\ndata_dir = "${DB_DIR}"\n', "DB_DIR"),
])
def test_a_broken_configuration_is_told_and_heals(served, text, words):
    greet(served)
    path = served.config(text)
    client = served.connect(hello=False)
    instructions = client.hello()["instructions"]
    assert "NOTE: the configuration cannot be loaded" in instructions and words in instructions
    client.wait_for_error(words)
    assert list(client.tools()) == STATIC
    for name in ("graph_plan_list", "plan_greet", "graph_tools_list"):
        body, is_error = client.call(name)
        assert body["kind"] == "config_error" and words in body["error"] and is_error
    path.write_text("")
    body, is_error = client.call("plan_greet", name="you")
    assert body["kind"] == "ran" and not is_error
    assert client.finish() == 0


def test_a_wrong_directory_is_told_and_heals(served):
    away = served.folder / "away"
    client = plan_client.Client(served.home, away)
    served.clients.append(client)
    assert "there is no such directory" in client.hello()["instructions"]
    body, _ = client.call("graph_plan_list")
    assert body["kind"] == "config_error" and str(away) in body["error"]
    away.mkdir()
    assert client.call("graph_plan_new", identifier="one")[0]["savedTo"] == str(away / ".graph/plans/one.json")


def test_a_missing_key_of_a_provider_breaks_nothing_else(served):
    greet(served)
    served.config('[providers.a]\ntype = "anthropic"\napi_key = "${ANTHROPIC_API_KEY}"\n'
                   '[models.default]\nprovider = "a"\nmodel = "m"\n')
    served.plan("told", reshape("a", 1), solver={"query_to_answer": "what?"})
    client = served.connect()
    assert client.call("plan_greet", name="x")[0]["kind"] == "ran"
    for body, is_error in (client.call("plan_told"), client.call("graph_plan_draft", goal="something new")):
        assert body["kind"] == "model_unavailable" and is_error
        assert (body["variable"], body["path"]) == ("ANTHROPIC_API_KEY", "providers.a.api_key")


def test_a_plan_that_needs_an_absent_server_is_hidden(served):
    served.plan("far", ("a", "files__read", {}), requires_servers=["files"])
    client = served.connect()
    assert "plan_far" not in client.tools()
    assert client.call("graph_plan_list")[0]["hidden"] == [{"identifier": "far", "missingServers": ["files"]}]
    body, is_error = client.call("plan_far")
    assert body["kind"] == "unknown_plan" and "[mcp.files]" in body["error"] and is_error


# Changes on disk


def test_every_call_sees_the_files_as_they_are(served):
    def inner(text, **fields):
        return served.plan("inner", reshape("a", text), output={"text": "{{a}}"}, **fields)

    def outer(text):
        steps = ("b", "plan__inner", {}), ("c", "user__say", {})
        served.plan("outer", *steps, output={"text": text + " {{b.text}} {{c.text}}"})

    def answer():
        return client.call("plan_outer")[0]

    inner("one")
    outer("first")
    served.tool("say", "printf hello")
    client = served.connect()
    before = answer()
    assert before["output"] == {"text": "first one hello"} and before["run"]
    outer("second")
    assert answer()["output"] == {"text": "second one hello"}
    path = inner("another")
    assert answer()["output"] == {"text": "second another hello"}
    served.tool("say", "printf goodbye")
    assert answer()["output"] == {"text": "second another goodbye"}
    served.config('[storage]\nbackend = "memory"\n')
    assert answer()["run"] is None
    inner("gone", input_schema={"type": "object", "required": ["day"]})
    assert answer()["kind"] == "invalid_plan"
    path.write_text("{")
    assert answer()["kind"] == "unresolved_tools"
    path.unlink()
    assert "there is no plan 'inner'" in answer()["error"]
    inner("back")
    assert answer()["output"] == {"text": "second back goodbye"}
    assert client.finish() == 0


# Changes of the list


def test_an_edit_is_announced_when_it_changes_the_list(served):
    client = served.connect()
    client.tools()
    client.call("graph_plan_new", identifier="fresh")
    assert client.all(lambda m: m.get("method") == "notifications/tools/list_changed") == []  # no steps, not served
    assert client.call("graph_plan_step_add", target="fresh", id="a", tool="builtin__reshape", input={"shape": 1})[0][
        "ok"
    ]
    client.notification("notifications/tools/list_changed")
    assert "plan_fresh" in client.tools()
    assert client.finish() == 0


def test_a_file_that_changes_on_disk_is_announced(served):
    client = served.connect()
    client.tools()
    greet(served)
    client.notification("notifications/tools/list_changed")
    assert "plan_greet" in client.tools()


def test_a_modern_client_hears_of_changes_on_its_subscription(served):
    client = served.connect(version=MODERN)
    client.tools()
    listen = client.start(
        "subscriptions/listen", {"notifications": {"toolsListChanged": True, "promptsListChanged": True}}, id="L1"
    )
    told = client.notification("notifications/subscriptions/acknowledged")["params"]
    assert told == {"notifications": {"toolsListChanged": True}, "_meta": {KEY + "subscriptionId": listen}}
    greet(served)
    assert client.notification("notifications/tools/list_changed")["params"]["_meta"] == {KEY + "subscriptionId": "L1"}
    assert client.finish() == 0
    assert client.answer("L1")["result"]["_meta"][KEY + "subscriptionId"] == "L1"


def test_a_cancelled_subscription_is_silent(served):
    client = served.connect(version=MODERN)
    client.tools()
    client.start("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id=9)
    client.notification("notifications/subscriptions/acknowledged")
    client.notify("notifications/cancelled", requestId=9)
    client.request("server/discover")
    client.call("graph_plan_new", identifier="x")
    client.call("graph_plan_step_add", target="x", id="a", tool="builtin__reshape", input={"shape": 1})
    assert client.finish() == 0
    assert client.all(lambda m: m.get("method") == "notifications/tools/list_changed" or m.get("id") == 9) == []


def test_subscriptions_need_to_say_to_what(served):
    client = served.connect(version=MODERN)
    assert client.request("subscriptions/listen")["error"]["code"] == -32602


# stdout, stdin, the end


def test_nothing_but_protocol_on_stdout_whatever_prints(served):
    served.tool("loud", 'echo "on stdout"; echo "on stderr" >&2', output="text")
    served.plan("loud", ("a", "user__loud", {}), output={"a": "{{a.text}}"})
    client = served.connect()
    assert client.call("plan_loud")[0]["output"] == {"a": "on stdout"}
    assert client.finish() == 0
    client.wait_for_error("user__loud done")


def test_printing_and_reading_inside_the_process_meet_no_protocol(served):
    code = (
        "import os, sys\n"
        "from graphlib_plans import mcp_server\n"
        "take = mcp_server.Server.take\n"
        "def noisy(self, message):\n"
        "    print('printed'); os.write(1, b'written\\n'); os.system('echo from a child')\n"
        "    assert sys.stdin.read() == ''\n"
        "    take(self, message)\n"
        "mcp_server.Server.take = noisy\n"
        "sys.exit(mcp_server.serve())\n"
    )
    client = served.connect(argv=[sys.executable, "-c", code])
    assert list(client.tools()) == STATIC
    assert client.finish() == 0
    for text in ("printed", "written", "from a child"):
        client.wait_for_error(text)


@pytest.mark.parametrize("data", [b"", b"\n\n", b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'])
def test_an_early_end_is_no_failure(served, data):
    client = served.connect(hello=False)
    client.send(data)
    assert client.finish() == 0 and client.messages == []


def test_answers_of_calls_in_flight_are_sent_after_the_end_of_stdin(served):
    gate = served.gate("gate")
    served.plan("slow", ("a", "user__gate", {}), output={"a": "{{a.text}}"})
    client = served.connect()
    call = client.begin("plan_slow")
    gate.await_start()
    client.process.stdin.close()
    gate.let_pass()
    assert client.finish() == 0
    assert client.outcome(call)[0]["output"] == {"a": "passed"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_cancels_what_is_running_and_leaves_no_child(served, number):
    gate = served.gate("gate")
    served.plan("slow", ("a", "user__gate", {}), ("b", "builtin__reshape", {"shape": "{{a}}"}))
    client = served.connect()
    call = client.begin("plan_slow")
    child = gate.await_start()
    client.process.send_signal(number)
    assert client.process.wait(plan_client.support.LIMIT_S) == 0
    client.wait(lambda: client.ended, "the end of stdout")
    body, is_error = client.outcome(call)
    assert body["kind"] == "cancelled" and "told to end" in body["error"] and is_error
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_signal_after_the_end_of_stdin_cancels_at_once(served):
    gate = served.gate("gate")
    served.plan("slow", ("a", "user__gate", {}))
    client = served.connect()
    call = client.begin("plan_slow")
    gate.await_start()
    client.process.stdin.close()
    client.process.send_signal(signal.SIGTERM)
    assert client.finish() == 0
    assert client.outcome(call)[0]["kind"] == "cancelled"


def test_a_client_that_is_gone_ends_the_server(served):
    gate = served.gate("gate")
    served.plan("slow", ("a", "user__gate", {}))
    client = served.connect(reading=False, hello=False)
    client.start("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}})
    client.process.stdout.readline()
    client.begin("plan_slow")
    gate.await_start()
    client.process.stdout.close()
    client.start("ping")  # its answer finds nobody
    assert client.process.wait(plan_client.support.LIMIT_S) == 0


def test_a_server_that_a_graph_started_refuses(served):
    client = served.connect(hello=False, env={"GRAPH_MCP_DEPTH": "1"})
    answer = client.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}})
    assert answer["error"]["code"] == -32600 and "remove that entry" in answer["error"]["message"]
    assert client.request("ping")["result"] == {}
    assert client.finish() == 0


def test_a_configuration_that_names_its_own_server_is_refused_with_a_sentence(served):
    line = plan_client.command(served.folder)
    served.config(f"[mcp.self]\ncommand = {json.dumps(line[0])}\nargs = {json.dumps(line[1:])}\n"
                   f"env = {{ PYTHONPATH = {json.dumps(str(plan_client.ROOT))} }}\n")
    served.plan("loop", ("a", "self__plan_loop", {}))
    client = served.connect()
    body, is_error = client.call("plan_loop")
    assert body["kind"] == "step_failed" and "remove that entry" in body["error"] and is_error
    assert "remove that entry" in client.call("graph_tools_list")[0]["notes"][0]
    assert client.finish() == 0
