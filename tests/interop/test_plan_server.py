"""The plan server under the clients that people use: build a plan and use it, progress, cancel, questions.

Official Python client (the installed line, 1.x or 2.x), the two TypeScript clients, MCP Inspector's command line, and
mcp-conform. @modelcontextprotocol/conformance tests servers over HTTP alone, so it has nothing to connect to here.
"""
import importlib.metadata
import importlib.util
import json
import pathlib
import shlex
import shutil
import subprocess
import sys

import pytest

import support

if sys.version_info < (3, 11):
    pytest.skip("the plan server needs Python 3.11", allow_module_level=True)

import plan_client  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
PACKAGES = HERE / "node_modules" / "@modelcontextprotocol"
PYTHON_LINE = importlib.metadata.version("mcp").split(".")[0] if importlib.util.find_spec("mcp") else None
CLIENTS = {
    "python": [sys.executable, str(HERE / "clients" / "plans_official.py")],
    "typescript-sdk": ["node", str(HERE / "clients" / "plans_typescript.mjs"), "sdk"],
    "typescript-client": ["node", str(HERE / "clients" / "plans_typescript.mjs"), "client"],
}
MODES = [("python", "legacy"), ("python", "auto"), ("typescript-sdk", "legacy"),
         ("typescript-client", "legacy"), ("typescript-client", "auto")]
each_client = pytest.mark.parametrize("client, mode", MODES)

GO = {"type": "object", "properties": {"go": {"type": "boolean"}}, "required": ["go"]}


def need_node(package):
    support.need(shutil.which("node"), "Node.js is not installed")
    support.need(
        (PACKAGES / package).is_dir(), f"the npm package {package} is not there; run `npm ci` in tests/interop"
    )


def need_client(client, mode):
    """Skip what this client cannot do, or where it is not installed."""
    if client != "python":
        return need_node("client")
    support.need(PYTHON_LINE, "the official client `mcp` is not installed; tox installs it")
    if (PYTHON_LINE, mode) == ("1", "auto"):
        pytest.skip("line 1.x of the official client has no 2026-07-28")


def drive(served, client, mode, steps, *, capable=True, command=None):
    """Run one client through the steps; return its answers."""
    need_client(client, mode)
    task = {"command": command or plan_client.command(served.folder), "env": plan_client.environment(served.home),
            "mode": mode, "capable": capable, "steps": steps}
    done = subprocess.run(CLIENTS[client], input=json.dumps(task).encode(), capture_output=True,
                          timeout=4 * support.LIMIT_S, cwd=served.home)
    if done.returncode:
        pytest.fail(f"the client ended with {done.returncode}:\n{done.stderr.decode('utf-8', 'replace')[-6000:]}")
    return json.loads(done.stdout)


def edit(verb, **arguments):
    return ["call", f"graph_plan_{verb}", arguments]


@each_client
def test_a_plan_is_built_and_used(client, mode, served):
    rule = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    answers = drive(served, client, mode, [
        ["list"],
        edit("new", identifier="greet", description="Greets."),
        edit("step_add", target="greet", id="a", tool="builtin__reshape", input={"shape": "{{nope}}"}),
        edit("set", target="greet", attribute="input_schema", value=rule),
        edit("step_add", target="greet", id="a", tool="builtin__reshape", input={"shape": "Hello {{input.name}}"}),
        edit("set", target="greet", attribute="output", value={"text": "{{a}}"}),
        edit("set", target="greet", attribute="output_schema",
             value={"type": "object", "properties": {"text": {"type": "string"}}}),
        edit("validate", target="greet"),
        ["list"],
        ["call", "plan_greet", {"name": "Ida"}],
        ["call", "plan_greet", {}],
        ["call", "graph_plan_lst", {}],
    ])
    before, refused, after, ran, needs, misspelled = (answers[n] for n in (0, 2, 8, 9, 10, 11))
    assert len(before) == 17 and after == [*before, "plan_greet"]
    assert refused["isError"] and refused["body"]["problemsIntroduced"]
    assert all(answer["body"]["ok"] for answer in (answers[n] for n in (1, 3, 4, 5, 6, 7)))
    assert ran["body"]["output"] == {"text": "Hello Ida"} and not ran["isError"]
    assert needs["body"]["kind"] == "needs_input" and needs["isError"]
    assert misspelled == {"error": -32602}


@each_client
def test_progress_is_followed(client, mode, served):
    need_client(client, mode)
    gate = served.gate("gate")
    served.plan("p", plan_client.reshape("a", 1), {"id": "b", "tool": "user__gate", "input": {}, "after": ["a"]})
    # The TypeScript clients drop what arrives in one piece with the answer, so the last message is not theirs; the
    # client itself lets the second step end, once it has heard that it began.
    answer, = drive(served, client, mode, [["progress", "plan_p", {}, 3, str(gate.opening)]])
    told = [(progress, total) for progress, total, _ in answer["progress"]]
    assert told[:3] == [(0.5, 2), (1, 2), (1.5, 2)] and told[3:] in ([(2, 2)], [])
    assert [message for _, _, message in answer["progress"]][:3:2] == ["a builtin__reshape", "b user__gate"]
    assert answer["body"]["kind"] == "ran"


@each_client
def test_a_call_is_cancelled(client, mode, served):
    gate = served.gate("gate")
    served.plan("slow", ("a", "user__gate", {}), ("b", "user__gate", {}))
    answers = drive(served, client, mode, [
        ["cancel", "plan_slow", {}, str(gate.begun)], ["settled", "slow"], ["list"]])
    assert answers[:2] == [{"cancelled": True}, "cancelled"] and "plan_slow" in answers[2]


@each_client
def test_questions_get_every_answer(client, mode, served):
    served.plan("ask", ("q", "ask", {"prompt": "Go?", "output_schema": GO, "when_unanswered": "default",
                                     "default": {"go": False}}), output={"q": "{{q}}"})
    call = ["call", "plan_ask", {}]
    answers = drive(served, client, mode, [
        ["answer", {"action": "accept", "content": {"go": True}}], call,
        ["answer", {"action": "decline"}], call,
        ["answer", {"action": "cancel"}], call,
    ])
    told = [answer["body"]["output"]["q"] for answer in answers[1::2]]
    declined = {"answer": {"go": False}, "answered": False, "reason": "declined"}
    assert told == [{"answer": {"go": True}, "answered": True}, declined, declined]
    answer, = drive(served, client, mode, [call], capable=False)
    assert answer["body"]["output"]["q"]["reason"] == "unavailable"


@pytest.mark.parametrize("client, mode", [each for each in MODES if each[1] == "legacy"])
def test_a_question_whose_handler_fails_is_unavailable(client, mode, served):
    served.plan("ask", ("q", "ask", {"prompt": "Go?", "output_schema": GO, "when_unanswered": "default",
                                     "default": {"go": False}}), output={"q": "{{q}}"})
    answers = drive(served, client, mode, [["answer", None], ["call", "plan_ask", {}]])
    assert answers[1]["body"]["output"]["q"]["reason"] == "unavailable"


# MCP Inspector


def inspect(served, *arguments):
    """Run MCP Inspector's command line on the server and return what it printed, as JSON."""
    need_node("inspector")
    launcher = json.loads((PACKAGES / "inspector" / "package.json").read_text())["bin"]["mcp-inspector"]
    line = ["node", str(PACKAGES / "inspector" / launcher), "--cli"]
    for name, value in plan_client.environment(served.home).items():
        line += ["-e", f"{name}={value}"]
    line += [*plan_client.command(served.folder), *arguments]
    done = subprocess.run(line, capture_output=True, timeout=4 * support.LIMIT_S, cwd=served.home,
                          stdin=subprocess.DEVNULL)
    try:
        return json.loads(done.stdout)
    except ValueError:
        pytest.fail(f"the inspector ended with {done.returncode}:\n{done.stdout.decode()}\n{done.stderr.decode()}")


def test_the_inspector_lists_and_calls(served):
    served.plan("greet", plan_client.reshape("a", "Hello {{input.name}}"), output={"text": "{{a}}"},
                input_schema={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
    names = [tool["name"] for tool in inspect(served, "--method", "tools/list")["tools"]]
    assert len(names) == 18 and names[-1] == "plan_greet"
    result = inspect(served, "--method", "tools/call", "--tool-name", "plan_greet", "--tool-arg", "name=Ida")
    assert result["structuredContent"]["output"] == {"text": "Hello Ida"} and result["isError"] is False


# mcp-conform


@pytest.mark.parametrize("is_relayed", [False, True], ids=["direct", "relayed"])
def test_mcp_conform_finds_nothing(served, relay_file, nowhere, is_relayed):
    support.need(importlib.util.find_spec("mcp_probe"), "mcp-conform is not installed; tox installs it")
    served.plan("greet", plan_client.reshape("a", "Hello {{input.name}}"), output={"text": "{{a}}"},
                input_schema={"type": "object", "properties": {"name": {"type": "string"}}})
    home, port = nowhere
    relay = [sys.executable, relay_file, "--port", str(port), "--home", str(home), "--"] if is_relayed else []
    done = subprocess.run([sys.executable, "-m", "mcp_probe", "server", "--transport", "stdio", "--format", "json",
                           "--command", shlex.join([*relay, *plan_client.command(served.folder)])],
                          capture_output=True, timeout=4 * support.LIMIT_S, cwd=served.home,
                          env=plan_client.environment(served.home))
    report = json.loads(done.stdout)
    assert done.returncode == 0, report
    checks = {check["name"]: check["passed"] for check in report["checks"]}
    assert all(checks.values()) and checks["tools_list"] and checks["method_not_found"]
    assert checks["tool[17](plan_greet)_input_schema"]


# Together with our own relay, and with a real server


def test_the_server_behind_our_relay_with_a_breakpoint_on_a_plan(served, own_hub, relay_file):
    served.plan("greet", plan_client.reshape("a", "Hello {{input.name}}"), output={"text": "{{a}}"},
                input_schema={"type": "object", "properties": {"name": {"type": "string"}}})
    hub = own_hub()
    hub.set_breakpoint(kind="tool", name="plan_greet", point="before")
    line = [sys.executable, relay_file, "--wait-for-attach", "--port", str(hub.port), "--home", str(hub.home), "--"]
    client = served.connect(argv=[*line, *plan_client.command(served.folder)])
    call = client.begin("plan_greet", name="Ida")
    hold, = hub.get("/api/holds?wait=30")["holds"]
    assert hold["name"] == "plan_greet" and hold["editable"]
    assert hub.release(hold, arguments={"name": "Edited"}).status == 200
    assert client.outcome(call)[0]["output"] == {"text": "Hello Edited"}
    assert client.finish() == 0


def test_a_plan_calls_a_real_server(served):
    support.need(importlib.util.find_spec("mcp_server_time"), "mcp-server-time is not installed; tox installs it")
    served.config(f"[mcp.time]\ncommand = {json.dumps(sys.executable)}\n"
                  'args = ["-m", "mcp_server_time", "--local-timezone=UTC"]\n')
    served.plan("clock", ("there", "time__convert_time", {
        "source_timezone": "UTC", "time": "{{input.at}}", "target_timezone": "Asia/Kathmandu"}),
        output={"difference": "{{there.time_difference}}"}, requires_servers=["time"],
        input_schema={"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]})
    client = served.connect(env={"PYTHONPATH": ":".join([str(plan_client.ROOT), *filter(None, sys.path)])})
    assert client.tools()["plan_clock"]["annotations"]["openWorldHint"]
    for _ in range(2):
        body, is_error = client.call("plan_clock", at="12:00")
        assert body["output"] == {"difference": "+5.75h"} and not is_error, body
    assert client.finish() == 0
