"""Official clients and servers with the relay between them: the session is the same as without it, byte for byte.

One recording tee stands between client and relay, another between relay and server. What the client's SDK returned
must equal a direct run, both tees must have seen the same bytes, and the trace must tell what the bytes say.
"""
import importlib.metadata
import importlib.util
import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import support

HERE = pathlib.Path(__file__).resolve().parent
PACKAGES = HERE / "node_modules" / "@modelcontextprotocol"
PYTHON_LINE = importlib.metadata.version("mcp").split(".")[0] if importlib.util.find_spec("mcp") else None

CLIENTS = {
    "python": [sys.executable, str(HERE / "clients" / "official.py")],
    "typescript-sdk": ["node", str(HERE / "clients" / "typescript.mjs"), "sdk"],
    "typescript-client": ["node", str(HERE / "clients" / "typescript.mjs"), "client"],
}
#: How a client opens the session; only these two can speak 2026-07-28.
MODES = [("python", "legacy"), ("python", "auto"), ("typescript-sdk", "legacy"),
         ("typescript-client", "legacy"), ("typescript-client", "auto")]

ODD_TEXT = "tab\t quote\" back\\slash é ü 漢字 🙂 \u2028 \u0085 \u0000 \x7f \\u00e9"

TIME_STEPS = [
    ["tools/list", {}],
    ["tools/call", {"name": "get_current_time", "arguments": {"timezone": "Europe/Vienna"}}],
    ["tools/call", {"name": "convert_time", "arguments": {
        "source_timezone": "UTC", "time": "12:30", "target_timezone": "Asia/Kathmandu"}}],
    ["tools/call", {"name": "convert_time", "arguments": {
        "source_timezone": "Nowhere/Land", "time": "12:30", "target_timezone": "UTC"}}],
    ["tools/call", {"name": "no_such_tool"}],
]
EVERYTHING_STEPS = [
    ["ping", {}],
    ["tools/list", {}],
    ["tools/call", {"name": "echo", "arguments": {"message": ODD_TEXT}}],
    ["tools/call", {"name": "echo", "arguments": {"message": "x" * 300000}}],
    ["tools/call", {"name": "get-sum", "arguments": {"a": 0.1, "b": -7}}],
    ["tools/call", {"name": "get-sum", "arguments": {"a": "not a number"}}],
    ["tools/call", {"name": "get-structured-content", "arguments": {"location": "Chicago"}}],
    ["tools/call", {"name": "get-tiny-image", "arguments": {}}],
    ["tools/call", {"name": "get-annotated-message", "arguments": {"messageType": "error", "includeImage": True}}],
    ["tools/call", {"name": "trigger-long-running-operation", "arguments": {"duration": 0.1, "steps": 3}}],
    ["tools/call", {"name": "trigger-sampling-request", "arguments": {"prompt": "say it", "maxTokens": 10}}],
    ["tools/call", {"name": "trigger-elicitation-request", "arguments": {}}],
    ["tools/call", {"name": "get-roots-list", "arguments": {}}],
    ["tools/call", {"name": "no-such-tool"}],
    ["resources/list", {}],
    ["resources/templates/list", {}],
    ["resources/read", {"uri": "demo://resource/static/document/features.md"}],
    ["resources/read", {"uri": "demo://resource/dynamic/text/1"}],
    ["resources/read", {"uri": "demo://no/such/resource"}],
    ["prompts/list", {}],
    ["prompts/get", {"name": "args-prompt", "arguments": {"city": "Köln"}}],
    ["prompts/get", {"name": "args-prompt", "arguments": {}}],
    ["completion/complete", {"prompt": "completable-prompt", "argument": {"name": "department", "value": "S"}}],
]


def filesystem_steps(folder):
    path = str(folder / "grüße.txt")
    return [
        ["tools/list", {}],
        ["tools/call", {"name": "list_allowed_directories", "arguments": {}}],
        ["tools/call", {"name": "write_file", "arguments": {"path": path, "content": ODD_TEXT + "\r\nend"}}],
        ["tools/call", {"name": "read_text_file", "arguments": {"path": path}}],
        ["tools/call", {"name": "list_directory", "arguments": {"path": str(folder)}}],
        ["tools/call", {"name": "read_media_file", "arguments": {"path": str(folder / "pixel.png")}}],
        ["tools/call", {"name": "read_text_file", "arguments": {"path": "/etc/hostname"}}],
    ]


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    (folder / "pixel.png").write_bytes(bytes(range(256)) * 40)
    return folder


def need_node():
    support.need(shutil.which("node"), "Node.js is not installed")
    support.need(PACKAGES.is_dir(), "the npm packages are not there; run `npm ci` in tests/interop")


def server_and_steps(name, folder):
    """Return (command line, steps) of one real server; skips when it is not installed."""
    if name == "time":
        support.need(importlib.util.find_spec("mcp_server_time"), "mcp-server-time is not installed; tox installs it")
        return [sys.executable, "-m", "mcp_server_time", "--local-timezone=UTC"], TIME_STEPS
    need_node()
    script = str(PACKAGES / ("server-" + name) / "dist" / "index.js")
    if name == "everything":
        return ["node", script, "stdio"], EVERYTHING_STEPS
    return ["node", script, str(folder)], filesystem_steps(folder)


def need_client(name, mode):
    if name != "python":
        return need_node()
    support.need(PYTHON_LINE, "the official client `mcp` is not installed; tox installs it")
    if (PYTHON_LINE, mode) == ("1", "auto"):
        pytest.skip("line 1.x of the official client has no 2026-07-28")


def tee(folder, command):
    return [sys.executable, "-I", "-S", str(HERE / "tee.py"), str(folder), "--"] + command


def drive(client, mode, command, steps):
    """Run one client through its steps; return what it printed, as JSON values."""
    task = json.dumps({"command": command, "mode": mode, "steps": steps})
    done = subprocess.run(CLIENTS[client], input=task.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=4 * support.LIMIT_S)
    if done.returncode:
        pytest.fail("the client ended with %d:\n%s" % (done.returncode, done.stderr.decode("utf-8", "replace")[-6000:]))
    return json.loads(done.stdout)


def without_times(value):
    """Replace what the clock decides in a result: ISO times, clock times and names of days."""
    text = json.dumps(value, sort_keys=True)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)?", "TIME", text)
    text = re.sub(r"\d{1,2}:\d\d:\d\d( [AP]M)?", "TIME", text)
    return json.loads(re.sub(r"(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day", "DAY", text))


def recordings(folder):
    """Return what one tee kept, one (stdin, stdout, stderr) per start of its command, in a stable order."""
    return sorted(tuple((start / name).read_bytes() for name in ("stdin", "stdout", "stderr"))
                  for start in pathlib.Path(folder).iterdir())


def expected_trace(requests, answers):
    """Return the trace lines that the recorded bytes of both directions call for, one list per direction."""
    directions = {"client->server": requests, "server->client": answers}
    frames = {name: [json.loads(line) for line in data.split(b"\n") if line] for name, data in directions.items()}
    asked = {(name, json.dumps(frame["id"])): frame["method"]
             for name in frames for frame in frames[name] if "method" in frame and "id" in frame}
    opposite = dict(zip(frames, reversed(list(frames))))
    return {name: ["[%s] %s" % (name, trace_line(frame, opposite[name], asked)) for frame in frames[name]]
            for name in frames}


def trace_line(frame, asker, asked):
    if "method" in frame and "id" not in frame:
        return "~> " + frame["method"]
    number = json.dumps(frame["id"])
    if "method" in frame:
        return "-> %s #%s" % (frame["method"], number)
    if "error" in frame:
        outcome = "error %d" % frame["error"]["code"]
    else:
        outcome = "isError" if frame["result"].get("isError") is True else "ok"
    return "<- %s #%s %s" % (asked[asker, number], number, outcome)


@pytest.mark.parametrize("server", ["time", "everything", "filesystem"])
@pytest.mark.parametrize("client, mode", MODES)
def test_a_session_is_the_same_through_the_relay(client, mode, server, shared_folder, relay_file, nowhere, tmp_path):
    need_client(client, mode)
    command, steps = server_and_steps(server, shared_folder)
    relay = [sys.executable, relay_file, "--trace", "--home", str(nowhere[0]), "--port", str(nowhere[1]), "--"]
    for name in ("outside", "inside"):
        (tmp_path / name).mkdir()

    direct = drive(client, mode, command, steps)
    relayed = drive(client, mode, tee(tmp_path / "outside", relay + tee(tmp_path / "inside", command)), steps)

    assert relayed["complaints"] == direct["complaints"] == []
    assert relayed["version"] == direct["version"]
    for step, seen, expected in zip(["handshake"] + steps, relayed["results"], direct["results"]):
        assert without_times(seen) == without_times(expected), step
    assert len(relayed["results"]) == len(direct["results"]) == 1 + len(steps)
    outside, inside = recordings(tmp_path / "outside"), recordings(tmp_path / "inside")
    assert [start[:2] for start in outside] == [start[:2] for start in inside]
    for requests, answers, errors in outside:
        trace = [line for line in support.our_lines(errors) if line.startswith("[")]
        for direction, lines in expected_trace(requests, answers).items():
            assert [line for line in trace if line.startswith("[%s]" % direction)] == lines
    for (_, _, seen), (_, _, written) in zip(outside, inside):
        lines = [line for line in seen.splitlines(True) if not line.startswith(b"mcp_relay: ")]
        assert b"".join(lines) == written


@pytest.mark.parametrize("client, mode", MODES)
def test_both_eras_are_really_spoken(client, mode, shared_folder, relay_file):
    need_client(client, mode)
    command, steps = server_and_steps("time", shared_folder)
    answer = drive(client, mode, [sys.executable, relay_file, "--no-report", "--"] + command, steps[:1])
    if client == "typescript-sdk":
        assert answer["version"] is None    # this SDK does not tell
    elif mode == "auto" and PYTHON_LINE == "2":
        assert answer["version"] == "2026-07-28"
    else:
        assert answer["version"] == "2025-11-25"


@pytest.mark.parametrize("arguments", [["down"], ["--mask", "--no-report", "--"]])
@pytest.mark.parametrize("client, mode", MODES)
def test_a_masked_server_has_no_tools_and_makes_no_error(client, mode, arguments, relay_file, tmp_path):
    need_client(client, mode)
    absent = str(tmp_path / "no-such-command")
    answer = drive(client, mode, [sys.executable, relay_file] + arguments + [absent], [
        ["tools/list", {}], ["resources/list", {}], ["resources/templates/list", {}], ["prompts/list", {}]])
    assert answer["complaints"] == []
    lists = [list(result.get(key, [])) if "error" not in result else result
             for result, key in zip(answer["results"][1:], ("tools", "resources", "resourceTemplates", "prompts"))]
    assert lists == [[], [], [], []]
    assert "tools" not in answer["results"][0]["capabilities"]
