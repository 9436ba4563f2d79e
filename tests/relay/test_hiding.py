"""Hidden values are in no record and on no surface; the peers exchange the real bytes."""

import json

import pytest

import support
from hubs import call, request

IN, OUT = "hush-input", "hush-output"


def surfaces(hub, run):
    """Everything a reader of a run can get at, as one text."""
    paths = ["/api/runs/%s", "/api/runs/%s/events", "/api/runs/%s/export?format=jsonl",
             "/api/runs/%s/export?format=html"]
    return "".join(hub.ask("GET", path % run).body.decode() for path in paths)


def session(attach, hub, *options, env=None):
    """A finished session that says IN in a request and OUT in answers, noise, errors and stderr."""
    hub.clear_breakpoints()
    debugged = attach(hub, *options, arguments=["--noisy"], env=env)
    debugged.send(call(1, "echo", {"text": IN}) + call(2, "softfail", {"why": OUT}) + call(3, "boom", {"why": OUT})
                  + call(4, "noise", {"lines": [OUT]}) + call(5, "say", {"text": OUT})
                  + request(6, "resources/read", {"uri": "mem://x"}))
    debugged.answered(b'"id": 6}')
    result, events = debugged.finish()
    assert result.code == 0 and IN.encode() in result.out and result.out.count(OUT.encode()) == 3
    return debugged, events, surfaces(hub, debugged.run)


def test_by_default_everything_is_recorded(attach, hub):
    _, _, text = session(attach, hub)
    assert IN in text and OUT in text


@pytest.mark.parametrize("options, env", [(["--hide", "inputs,outputs"], {}), (["--hide=outputs", ],
                                                                               {"MCP_RELAY_HIDE_INPUTS": "1"}),
                                          ([], {"GRAPHMIND_HIDE_INPUTS": "yes", "GRAPHMIND_HIDE_OUTPUTS": "on"}),
                                          ([], {"MCP_RELAY_HIDE_INPUTS": "typo", "MCP_RELAY_HIDE_OUTPUTS": "TRUE"})],
                                          ids=str)
def test_with_inputs_and_outputs_hidden_nothing_is_left(attach, hub, options, env):
    debugged, events, text = session(attach, hub, *options, env=env)
    assert IN not in text and OUT not in text and "mem://x" in text  # names survive
    [start] = [event for event in events if event["type"] == "run.started"]
    assert "args" not in start and start["command"] and start["hidden"]
    assert "--noisy" not in json.dumps(events)
    started = [event for event in events if event["type"] == "node.started" and event["node"] == "tool:echo"][0]
    assert "frame" not in started and started["hidden"] == ["input"]
    outputs = [event for event in events if event["type"] == "node.output"]
    assert outputs and all("text" not in event and event["chars"] > 0 for event in outputs)
    assert all(event["hidden"] == ["output"] for event in outputs)


@pytest.mark.parametrize("value", ["0", "false", "off", "no", "", " NO "])
def test_a_switch_that_is_off(attach, hub, value):
    _, _, text = session(attach, hub, env={"MCP_RELAY_HIDE_OUTPUTS": value})
    assert OUT in text


def test_tool_results_alone(attach, hub):
    """Also the text of a failed result; what is no tool stays visible."""
    debugged, events, _ = session(attach, hub, "--hide", "tool-results")
    tools = [event for event in events if (event.get("node") or "").startswith("tool:")]
    assert OUT not in json.dumps([event for event in tools if event["type"] != "node.started"])
    assert "content" in json.dumps([event for event in events if event.get("node") == "resource:mem://x"])
    errors = [event["error"] for event in tools if event["type"] == "node.error"]
    assert len(errors) == 2 and all("hidden" in error["message"] for error in errors)


def test_tool_args_alone(attach, hub):
    _, events, _ = session(attach, hub, "--hide", "tool-args")
    assert IN not in json.dumps([event for event in events if event["type"] == "node.started"])
    assert IN in json.dumps([event for event in events if event["type"] == "node.finished"])  # the echo


def test_a_hidden_call_can_still_be_held_and_edited(attach, hub):
    hub.clear_breakpoints()
    hub.set_breakpoint(kind="tool")
    debugged = attach(hub, "--hide", "inputs,outputs")
    debugged.send(call(1, "echo", {"text": IN}))
    hold = debugged.hold()
    assert IN not in json.dumps(hold)
    debugged.release(hold, "continue", arguments={"text": "hush-edited"})
    debugged.answered(b"hush-edited")
    debugged.finish()
    text = surfaces(hub, debugged.run)
    assert IN not in text and "hush-edited" not in text


def test_an_early_exit_keeps_hidden_stderr_out_of_its_error(start, hub):
    relay = start("--port", hub.port, "--home", hub.home, "--hide", "outputs,inputs",
                  server=support.server("crash", 3, 2, "--read", "--last", OUT),
                  env=support.quiet_environment(hub.home, hub.port))
    relay.send(request(1, "initialize", {"x": IN}))
    lobby = hub.watch()
    run = lobby.wait("run", lambda run: run["status"] == "error" and "crash.py" in run["label"])
    assert relay.wait().code == 2 and OUT.encode() in relay.err  # the terminal is the host's own
    text = surfaces(hub, run["run"])
    assert OUT not in text and IN not in text and "McpServerExitedEarly" in text
