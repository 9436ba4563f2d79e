"""What a session looks like on record: runs, nodes, kinds, parents, instances, counts, errors, stderr, noise."""

import base64
import json

import pytest

import support
from hubs import INITIALIZE, INITIALIZED, call, request

WORK = [  # method, params, node, kind, name
    ("tools/call", {"name": "echo", "arguments": {"text": "hi"}}, "tool:echo", "tool", "echo"),
    ("resources/read", {"uri": "file:///a"}, "resource:file:///a", "resource", "file:///a"),
    ("prompts/get", {"name": "greet"}, "prompt:greet", "prompt", "greet"),
    ("completion/complete", {"ref": {}}, "mcp:completion/complete", "custom", "completion/complete"),
]
PROTOCOL = ["initialize", "server/discover", "tools/list", "resources/list", "prompts/list", "ping", "logging/setLevel",
            "resources/subscribe", "tasks/get", "no/such/method", ""]


def said_on_stderr(debugged):
    """All stderr text on the record so far."""
    return "".join(event["text"] for event in debugged.watch.events("node.output"))


def by_node(events):
    return {event["node"]: event for event in events}


def test_work_sits_under_the_session_and_the_rest_under_protocol(attach, hub):
    hub.clear_breakpoints()
    debugged = attach(hub)
    frames = [request(n, method, params) for n, (method, params, *_) in enumerate(WORK)]
    frames += [request(100 + n, method) for n, method in enumerate(PROTOCOL)]
    debugged.send(b"".join(frames) + INITIALIZED)
    result, events = debugged.finish()
    assert result.code == 0
    started = by_node(debugged.watch.events("node.started"))
    session = started["mcp:session"]
    assert (session["kind"], session["parent"], session["instance"]) == ("server", None, "mcp:session")
    assert session["input"]["command"] and "--tag" in session["input"]["args"]
    group = started["mcp:protocol"]
    assert (group["kind"], group["name"], group["parent"], group["collapsed"]) == ("custom", "protocol",
                                                                                   "mcp:session", True)
    assert group["input"]["about"]
    for (method, params, node, kind, name), frame in zip(WORK, frames):
        event = started[node]
        assert (event["kind"], event["name"], event["parent"]) == (kind, name, "mcp:session")
        assert (event["method"], event["direction"]) == (method, "client->server")
        assert event["frame"].encode() == frame.rstrip(b"\n")
    for method in PROTOCOL + ["notifications/initialized"]:
        event = started["mcp:" + method]
        assert (event["kind"], event["name"], event["parent"]) == ("custom", method, "mcp:protocol")
    assert started["mcp:notifications/initialized"]["notification"] is True
    # errors: server/discover, prompts/list, resources/subscribe, tasks/get, no/such/method and "" are unknown to it
    assert by_node(debugged.watch.events("node.finished"))["mcp:protocol"]["output"] == {
        "calls": len(PROTOCOL) + 1, "errors": 6, "stdoutNoise": 0}


def test_the_order_of_one_run(attach, hub):
    debugged = attach(hub).handshake()
    debugged.send(call(1, "echo"))
    debugged.answered(b'"id": 1}')
    _, events = debugged.finish()
    shape = [(event["type"], event.get("node")) for event in events if event["type"] != "node.output"]
    assert shape == [
        ("run.started", None), ("node.started", "mcp:session"), ("node.started", "mcp:protocol"),
        ("node.started", "mcp:initialize"), ("node.finished", "mcp:initialize"),
        ("node.started", "mcp:notifications/initialized"), ("node.finished", "mcp:notifications/initialized"),
        ("node.started", "tool:echo"), ("node.finished", "tool:echo"),
        ("node.finished", "mcp:protocol"), ("node.finished", "mcp:session"), ("run.finished", None)]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert {event["run"] for event in events} == {debugged.run}
    for event in events:
        assert isinstance(event["ts"], int) and event["ts"] > 1_500_000_000_000
        assert event["at"] >= 0 and round(event["at"], 2) == event["at"]
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    assert events[0]["transport"] == "stdio" and events[0]["pid"] > 1
    assert events[-1]["status"] == "ok" and events[-1]["unanswered"] == 0
    session = by_node(debugged.watch.events("node.finished"))["mcp:session"]
    assert session["output"] == {"exitCode": 0, "signal": None} and session["status"] == "ok"


def test_frames_on_record_are_the_exact_text(attach, hub):
    debugged = attach(hub)
    odd = (b'{ "jsonrpc":"2.0",  "params":{"name":"echo","arguments":{"text":"\\u00e9 \\/ \xc3\xa9","n":1.50,'
           b'"big":1e400}} ,"id":9007199254740993,"method":"tools/call" }\r')
    debugged.send(odd + b"\n")
    answer = debugged.answered(b"9007199254740993}\n").splitlines()[-1]
    finished = debugged.finished("tool:echo")
    [started] = debugged.started("tool:echo")
    assert started["frame"].encode() == odd and finished["frame"].encode() == answer
    assert started["id"] == "9007199254740993" and started["instance"] == finished["instance"]
    assert finished["durationMs"] >= 0 and round(finished["durationMs"], 2) == finished["durationMs"]


def test_a_frame_that_is_not_utf8_is_kept_as_base64(attach, hub):
    debugged = attach(hub, server="echo_frames")
    frame = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{"x":"\xff\xfe"}}}'
    debugged.send(frame + b"\n")
    started = debugged.watch.wait_event("node.started", lambda event: event["node"] == "tool:t")
    assert base64.b64decode(started["frame"]["base64"]) == frame


def test_ten_calls_are_ten_instances_of_one_node(attach, hub):
    debugged = attach(hub)
    debugged.send(b"".join(call(n, "echo", {"text": str(n)}) for n in range(10)))
    debugged.finished("tool:echo", 10)
    starts, ends = debugged.started("tool:echo"), debugged.watch.events("node.finished")
    instances = [event["instance"] for event in starts]
    assert instances == ["mcp_%d" % n for n in range(1, 11)]
    assert [event["instance"] for event in ends if event["node"] == "tool:echo"] == instances


@pytest.mark.parametrize("params", ["{}", '{"name":5}', '{"name":""}', '{"name":null}', "[]", '"x"', "7"])
def test_a_call_without_a_name_is_unknown(attach, hub, params):
    hub.clear_breakpoints()
    debugged = attach(hub, server="echo_frames")
    debugged.send(request(1, "tools/call", raw_params=params))
    event = debugged.watch.wait_event("node.started", lambda event: event.get("method") == "tools/call")
    assert (event["node"], event["name"], event["kind"]) == ("tool:unknown", "unknown", "tool")


def test_direction_matters(attach, hub):
    """A server that echoes a tools/call does not make a second tool call; sampling counts as work only from it."""
    debugged = attach(hub, server="echo_frames")
    debugged.send(call(1, "echo") + request(2, "sampling/createMessage") + request(3, "elicitation/create"))
    from_server = [debugged.watch.wait_event("node.started", lambda event, node=node: event["node"] == node and
                                             event.get("direction") == "server->client")
                   for node in ("mcp:tools/call", "llm:sampling", "mcp:elicitation/create")]
    assert [(event["kind"], event["parent"]) for event in from_server] == [
        ("custom", "mcp:protocol"), ("llm", "mcp:session"), ("custom", "mcp:session")]
    from_client = [event for event in debugged.watch.events("node.started")
                   if event.get("direction") == "client->server"]
    assert [(event["node"], event["parent"]) for event in from_client] == [
        ("tool:echo", "mcp:session"), ("mcp:sampling/createMessage", "mcp:protocol"),
        ("mcp:elicitation/create", "mcp:protocol")]


def test_the_same_id_in_both_directions(attach, hub):
    debugged = attach(hub)
    debugged.send(call(1, "sample"))
    debugged.answered(b"sampling/createMessage")
    debugged.send(b'{"jsonrpc":"2.0","id":1,"result":{"role":"assistant","content":{"type":"text","text":"yes"}}}\n')
    tool, model = debugged.finished("tool:sample"), debugged.finished("llm:sampling")
    assert b"the client said" in tool["frame"].encode() and '"role":"assistant"' in model["frame"]
    assert [event["direction"] for event in debugged.started("llm:sampling")] == ["server->client"]


def test_failures_of_a_call_have_names(attach, hub):
    hub.clear_breakpoints()
    debugged = attach(hub)
    debugged.send(call(1, "boom") + call(2, "softfail") + call(3, "nothing like it"))
    for node in ("tool:boom", "tool:softfail", "tool:nothing like it"):
        assert debugged.finished(node)["status"] == "error"
    errors = {event["node"]: event["error"] for event in debugged.watch.events("node.error")}
    assert errors["tool:boom"]["name"] == "JsonRpcError(-32603)" and "boom failed" in errors["tool:boom"]["message"]
    assert errors["tool:softfail"]["name"] == "McpToolError" and "softfail failed" in errors["tool:softfail"]["message"]
    assert errors["tool:nothing like it"]["name"] == "JsonRpcError(-32602)"
    _, events = debugged.finish()
    assert events[-1]["status"] == "ok"  # the conversation did happen
    assert hub.get("/api/runs/" + debugged.run)["errors"] == 3


def test_an_unanswered_request_stays_open_until_the_server_exits(attach, hub):
    debugged = attach(hub)
    debugged.send(call(1, "never") + call(2, "echo"))
    debugged.finished("tool:echo")
    assert not [event for event in debugged.watch.events("node.finished") if event["node"] == "tool:never"]
    _, events = debugged.finish()
    finished = debugged.finished("tool:never")
    assert finished["status"] == "unanswered"
    [error] = [event["error"] for event in events if event["type"] == "node.error"]
    assert error["name"] == "McpServerExited" and "tools/call" in error["message"]
    assert events[-1]["unanswered"] == 1 and events[-1]["status"] == "ok"


def test_a_cancelled_request_ends_as_cancelled_and_its_late_answer_is_marked(attach, hub):
    debugged = attach(hub)
    debugged.send(call(5, "slow") + b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}\n')
    finished = debugged.finished("tool:slow")
    assert finished["status"] == "cancelled"
    cancel = debugged.watch.wait_event("node.started", lambda event: event["node"] == "mcp:notifications/cancelled")
    assert cancel["related"] == finished["instance"]
    debugged.send(b'{"jsonrpc":"2.0","method":"notifications/go"}\n')
    debugged.answered(b"slow but done")  # relayed all the same
    late = debugged.watch.wait_event("node.output", lambda event: event.get("late"))
    assert late["instance"] == finished["instance"] and "slow but done" in late["frame"]
    _, events = debugged.finish()
    assert events[-1]["unanswered"] == 0


def test_progress_is_tied_to_its_call(attach, hub):
    debugged = attach(hub, server="echo_frames")
    debugged.send(request(1, "tools/call", {"name": "t", "arguments": {}, "_meta": {"progressToken": "p-1"}}))
    [started] = [debugged.watch.wait_event("node.started", lambda event: event["node"] == "tool:t")]
    debugged.send(b'{"jsonrpc":"2.0","method":"notifications/progress",'
                  b'"params":{"progressToken":"p-1","progress":1}}\n')
    progress = debugged.watch.wait_event("node.started", lambda event: event["node"] == "mcp:notifications/progress"
                                         and event["direction"] == "server->client")
    assert progress["related"] == started["instance"]


def test_a_long_subscription_is_not_a_hung_call(attach, hub):
    debugged = attach(hub, server="modern")
    debugged.send(request('"listen-1"', "subscriptions/listen") + request(2, "tools/list"))
    debugged.finished("mcp:tools/list")
    _, events = debugged.finish()
    assert events[-1]["unanswered"] == 0
    assert not [event for event in events if event["type"] == "node.error"]


def test_batches_are_recorded_member_by_member_and_relayed_whole(attach, hub):
    debugged = attach(hub)
    batch = b'[%s, %s,%s]\n' % (call(1, "echo").strip(), request(2, "ping").strip(), INITIALIZED.strip())
    debugged.send(batch)
    debugged.finished("tool:echo")
    debugged.finished("mcp:ping")
    assert debugged.seen() == batch
    for node, parent in (("tool:echo", "mcp:session"), ("mcp:ping", "mcp:protocol"),
                         ("mcp:notifications/initialized", "mcp:protocol")):
        [event] = debugged.started(node)
        assert event["batched"] is True and event["parent"] == parent


def test_answers_to_nothing_are_on_record(attach, hub):
    debugged = attach(hub)
    debugged.send(call(1, "twice"))
    debugged.answered(b"second")
    debugged.watch.wait_event("node.error", lambda event: event["error"]["name"] == "UnmatchedResponse")
    [event] = debugged.started("mcp:unmatched")
    assert (event["kind"], event["name"]) == ("custom", "unmatched response")
    assert "first" in debugged.finished("tool:twice")["frame"]


def test_noise_is_on_record_up_to_twenty_five_lines(attach, hub):
    debugged = attach(hub)
    lines = ["debug: %d é %s" % (n, "x" * (300 if n == 1 else 0)) for n in range(35)]
    debugged.send(call(1, "noise", {"lines": lines}))
    debugged.finished("tool:noise")
    result, events = debugged.finish()
    noise = debugged.started("mcp:stdout-noise")
    assert len(noise) == 25
    assert noise[0]["name"] == "stdout noise" and noise[0]["parent"] == "mcp:protocol"
    first = noise[0]["input"]
    assert (first["text"], first["bytes"], first["truncated"], first["count"]) == ("debug: 0 é ", 12, False, 1)
    assert first["hint"]
    assert noise[1]["input"]["truncated"] is True and len(noise[1]["input"]["text"].encode()) == 200
    assert noise[1]["input"]["bytes"] == 312
    errors = [event for event in events if event["type"] == "node.error"]
    assert {event["error"]["name"] for event in errors} == {"StdoutNoise"} and len(errors) == 25
    assert debugged.finished("mcp:protocol")["output"] == {"calls": 0, "errors": 0, "stdoutNoise": 35}
    assert hub.get("/api/runs/" + debugged.run)["noise"] == 35


def test_only_work_makes_no_protocol_group(attach, hub):
    debugged = attach(hub)
    debugged.send(call(1, "echo"))
    debugged.finished("tool:echo")
    debugged.finish()
    assert debugged.started("mcp:protocol") == []


def test_stderr_streams_onto_the_session_node(attach, hub):
    debugged = attach(hub)
    debugged.send(call(1, "say", {"text": "loading é 漢字"}))
    debugged.watch.wait_event("node.output", lambda event: "loading é 漢字\n" in said_on_stderr(debugged))
    assert all(event["node"] == "mcp:session" and event["stream"] == "stderr"
               for event in debugged.watch.events("node.output"))


def test_stderr_is_decoded_incrementally(attach, hub, tmp_path):
    """Half a character at a time: the record shows characters, not replacement marks."""
    script = tmp_path / "halves.py"
    script.write_text("import os, sys\nfor line in sys.stdin.buffer:\n"
                      "    os.write(2, '漢'.encode()[:1] if line == b'1\\n' else '漢'.encode()[1:] + b'!\\n')\n"
                      "    os.write(1, b'{\"jsonrpc\":\"2.0\",\"method\":\"n\"}\\n')\n")
    debugged = attach(hub, server=str(script)[:-3])
    debugged.send(b"1\n").answered(b"\n")
    debugged.send(b"2\n")
    debugged.watch.wait_event("node.output", lambda event: "!" in event["text"])
    assert said_on_stderr(debugged) == "漢!\n"


def test_a_failed_start_is_on_record(start, hub):
    session = start("--port", hub.port, "--home", hub.home, server=["no-such-mcp-server", "tag-spawn"],
                    env=support.quiet_environment(hub.home, hub.port))
    lobby = hub.watch()
    run = lobby.wait("run", lambda run: "tag-spawn" in run["label"] and run["status"] == "error")
    assert session.finish().code == 127
    watch = hub.watch("/api/stream?run=%s&after=0" % run["run"])
    ended = watch.wait_event("run.finished")
    assert ended["status"] == "error"
    [error] = watch.events("node.error")
    assert error["node"] == "mcp:session" and error["error"]["name"] == "SpawnError"
    finished = watch.wait_event("node.finished", lambda event: event["node"] == "mcp:session")
    assert finished["status"] == "error" and finished["output"]["exitCode"] == 127
    assert [event["type"] for event in watch.events()] == [
        "run.started", "node.started", "node.error", "node.finished", "run.finished"]


def test_an_early_exit_is_on_record_with_its_stderr(start, hub):
    session = start("--port", hub.port, "--home", hub.home, server=support.server("crash", 500, 2, "--read", "--last",
                                                                                  "tag-early"),
                    env=support.quiet_environment(hub.home, hub.port)).send(INITIALIZE)
    lobby = hub.watch()
    run = lobby.wait("run", lambda run: "tag-early" in run["label"] and run["status"] == "error")
    assert session.finish().code == 2
    watch = hub.watch("/api/stream?run=%s&after=0" % run["run"])
    assert watch.wait_event("run.finished")["status"] == "error"
    errors = {event["node"]: event["error"] for event in watch.events("node.error")}
    early = errors["mcp:session"]
    assert early["name"] == "McpServerExitedEarly" and "exited with code 2" in early["message"]
    assert "crash-server: line 500 of 500" in early["message"] and "line 1 of 500" not in early["message"]
    assert early["message"].count("crash-server: line") <= 200 and len(early["message"]) < 40 * 1024
    assert errors["mcp:initialize"]["name"] == "McpServerExited"


def test_a_hub_started_late_still_sees_the_session_from_its_beginning(start, own_hub, tmp_path):
    holder, port = support.reserve_port()
    home = tmp_path / "home"
    session = start("--port", port, "--home", home, server=support.server("raw", "--tag", "tag-late"),
                    env=support.quiet_environment(home, port))
    session.send(INITIALIZE + INITIALIZED + call(1, "echo") + call(2, "never"))
    session.wait_out(b'"id": 1}')
    holder.close()
    hub = own_hub(port=port)
    run = hub.watch().wait("run", lambda run: "tag-late" in run["label"])["run"]
    watch = hub.watch("/api/stream?run=%s&after=0" % run)
    watch.wait_event("node.started", lambda event: event["node"] == "tool:never")
    nodes = [event["node"] for event in watch.events("node.started")]
    assert nodes == ["mcp:session", "mcp:protocol", "mcp:initialize", "mcp:notifications/initialized", "tool:echo",
                     "tool:never"]
    assert watch.wait_event("node.finished", lambda event: event["node"] == "tool:echo")["frame"]
    assert hub.get("/api/runs/" + run)["client"] == {"name": "test", "version": "1"}
    session.finish()
    assert watch.wait_event("run.finished")["status"] == "ok"
    assert [event["seq"] for event in watch.events()] == list(range(1, len(watch.events()) + 1))


def test_history_beyond_its_bound_is_replaced_by_a_gap_and_the_handshake_stays(start, own_hub, tmp_path):
    holder, port = support.reserve_port()
    home = tmp_path / "home"
    session = start("--port", port, "--home", home, server=support.server("raw", "--tag", "tag-gap"),
                    env=support.quiet_environment(home, port))
    session.send(INITIALIZE).wait_out(b'"id": 0}')
    session.send(INITIALIZED + request('"list"', "tools/list")).wait_out(b'"inputSchema"')
    session.send(b"".join(request(n, "ping") for n in range(1, 6001)))
    session.wait_out(b'"id": 6000}')
    holder.close()
    hub = own_hub(port=port)
    run = hub.watch().wait("run", lambda run: "tag-gap" in run["label"])["run"]
    watch = hub.watch("/api/stream?run=%s&after=0" % run)
    gap = watch.wait_event("gap")
    assert (gap["dropped"] or gap["bytes"]) > 0 and gap["reason"]
    session.send(request(9999, "ping"))
    watch.wait_event("node.started", lambda event: event.get("id") == "9999")
    nodes = [event["node"] for event in watch.events("node.started")]
    assert nodes[2:5] == ["mcp:initialize", "mcp:notifications/initialized", "mcp:tools/list"]
    described = hub.get("/api/runs/" + run)
    assert described["server"] == {"name": "raw", "version": "1.50"} and described["protocolVersion"] == "2025-11-25"


def test_the_run_as_a_whole(attach, hub):
    debugged = attach(hub).handshake()
    debugged.send(call(1, "echo"))
    debugged.finished("tool:echo")
    run = hub.get("/api/runs/" + debugged.run)
    assert run["status"] == "running" and run["attached"] is True and run["ended"] is None
    assert run["client"] == {"name": "test", "version": "1"} and run["server"] == {"name": "raw", "version": "1.50"}
    assert run["protocolVersion"] == "2025-11-25" and run["label"].endswith(debugged.tag)
    nodes = {node["node"]: node for node in run["nodes"]}
    assert nodes["tool:echo"]["executions"] == 1 and nodes["tool:echo"]["errors"] == 0
    assert nodes["tool:echo"]["parent"] == "mcp:session" and nodes["tool:echo"]["durationMs"] >= 0
    debugged.finish()
    run = hub.get("/api/runs/" + debugged.run)
    assert run["status"] == "ok" and run["ended"] >= run["started"] > 1_500_000_000_000
    assert json.dumps(run)


def test_every_instance_that_started_is_finished_at_the_end(attach, hub):
    """Whatever a session leaves open, its record is closed, and nothing follows run.finished."""
    hub.clear_breakpoints()
    debugged = attach(hub).handshake()
    debugged.send(call(1, "never") + call(2, "boom") + call(3, "noise") + call(4, "sample") + request(5, "ping")
                  + call(6, "never"))
    debugged.finished("mcp:ping")
    debugged.send(call(7, "die", {"code": 3}))
    result, events = debugged.finish()
    assert result.code == 3 and events[-1]["type"] == "run.finished" and events[-1]["exitCode"] == 3
    started = [event["instance"] for event in events if event["type"] == "node.started"]
    finished = [event["instance"] for event in events if event["type"] == "node.finished"]
    assert sorted(started) == sorted(finished) and len(set(started)) == len(started)
