"""Each row of the action table with a real server, a real hub and a relay: what is held and what the actions do."""

import json

import pytest

from hubs import INITIALIZE, INITIALIZED, call, request

ABORTED = -32099
FAILED_FRAME = {"jsonrpc": "2.0", "id": 999, "error": {"code": -32000, "message": "by hand"}}
MODERN = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
                    "io.modelcontextprotocol/clientCapabilities": {}}}


def text_of(message):
    return message["result"]["content"][0]["text"]


@pytest.fixture
def debugged(attach, hub):
    """A relay in front of the raw server, handshake done, nothing armed."""
    hub.clear_breakpoints()
    return attach(hub).handshake()


# Held requests


@pytest.fixture
def held_request(debugged, hub):
    """(debugged, hold) of tools/call #1 held before the server."""
    hub.set_breakpoint(kind="tool", name="echo")
    debugged.send(call(1, "echo", {"text": "asked"}))
    return debugged, debugged.hold()


def test_a_held_request_has_not_reached_the_server(held_request):
    debugged, hold = held_request
    assert {key: hold[key] for key in ("node", "kind", "name", "point", "direction", "method", "id", "reason",
                                       "editable", "run")} == {
        "node": "tool:echo", "kind": "tool", "name": "echo", "point": "before", "direction": "client->server",
        "method": "tools/call", "id": "1", "reason": "breakpoint", "editable": True, "run": debugged.run}
    assert hold["frame"].encode() + b"\n" == call(1, "echo", {"text": "asked"})
    assert b"asked" not in debugged.seen()
    assert debugged.hub.get("/api/runs/" + debugged.run)["held"] == 1


@pytest.mark.parametrize("action", ["continue", "retry"])
def test_continue_and_retry_forward_a_held_request(held_request, action):
    debugged, hold = held_request
    debugged.release(hold, action)
    debugged.answered(b'"id": 1}')
    assert text_of(debugged.answer_to(1)) == "asked"
    assert debugged.seen().endswith(call(1, "echo", {"text": "asked"}))
    finished = debugged.finished("tool:echo")
    assert finished["status"] == "ok" and not finished.get("injected") and not finished.get("retries")
    released = debugged.watch.wait_event("hold.released")
    assert released["hold"] == hold["hold"] and released["action"] == action and released["heldMs"] >= 0
    assert debugged.hub.get("/api/holds")["holds"] == []


def test_inject_answers_a_held_request_without_the_server(held_request):
    debugged, hold = held_request
    debugged.release(hold, "inject", value="by hand")
    debugged.answered(b"by hand")
    assert debugged.answer_to(1) == {"jsonrpc": "2.0", "id": 1,
                                     "result": {"content": [{"type": "text", "text": "by hand"}]}}
    finished = debugged.finished("tool:echo")
    assert (finished["status"], finished["injected"], finished["gatedAt"]) == ("ok", True, "before")
    assert json.loads(finished["frame"])["result"]["content"][0]["text"] == "by hand"
    debugged.send(request(2, "ping")).answered(b'"id": 2}')
    assert b"asked" not in debugged.seen()


def test_abort_answers_a_held_request_with_an_error(held_request):
    debugged, hold = held_request
    debugged.release(hold, "abort")
    debugged.answered(b"-32099")
    answer = debugged.answer_to(1)
    assert answer["error"]["code"] == ABORTED and "tools/call" in answer["error"]["message"]
    finished = debugged.finished("tool:echo")
    assert (finished["status"], finished["gatedAt"]) == ("aborted", "before")
    assert debugged.watch.wait_event("node.error")["error"]["name"] == "Aborted"
    debugged.send(request(2, "ping")).answered(b'"id": 2}')
    assert b"asked" not in debugged.seen()
    _, events = debugged.finish()
    assert events[-1]["status"] == "ok"  # an abort concerns its call, not the run


@pytest.mark.parametrize("raw_id", ["9007199254740993", '"a\\u0041 b"', "1.0", "-5", '"1"', "0"])
@pytest.mark.parametrize("action, body", [("abort", {}), ("inject", {"value": "x"}), ("inject",
                                                                                      {"value": FAILED_FRAME})])
def test_our_answers_carry_the_raw_text_of_the_id(debugged, hub, raw_id, action, body):
    hub.set_breakpoint(name="echo")
    debugged.send(call(raw_id, "echo"))
    debugged.release(debugged.hold(), action, **body)
    result, _ = debugged.finish()
    [line] = [line for line in result.out.splitlines() if b'"id": 0}' not in line]
    assert json.loads(line)["jsonrpc"] == "2.0"
    after = line.split(b'"id":', 1)[1].lstrip()
    assert after.startswith(raw_id.encode()) and after[len(raw_id):].lstrip()[:1] in (b",", b"}")


# What is behind a held frame waits


def test_nothing_overtakes_a_held_frame(held_request):
    debugged, hold = held_request
    rest = (request(2, "ping") + b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}\n'
            + b"junk\n" + request(3, "ping"))
    before = debugged.seen()
    debugged.send(rest)
    # The other direction is free meanwhile: nothing of the rest has come back, and nothing has gone in.
    debugged.release(hold, "continue")
    debugged.answered(b'"id": 3}')
    assert debugged.seen() == before + call(1, "echo", {"text": "asked"}) + rest
    ids = [message.get("id") for message in debugged.messages()]
    assert ids == [0, 1, 2, 3]


def test_the_other_direction_runs_on(debugged, hub):
    debugged.send(call(1, "slow") + b'{"jsonrpc":"2.0","method":"notifications/x"}\n')
    hub.set_breakpoint(name="ping")
    debugged.watch.wait_event("node.started", lambda event: event["node"] == "mcp:notifications/x")
    debugged.send(b'{"jsonrpc":"2.0","method":"notifications/go"}\n' + request(2, "ping") + request(3, "ping"))
    hold = debugged.hold()
    debugged.answered(b"slow but done")  # server -> client passes while client -> server is held
    assert hold["id"] == "2"
    hub.clear_breakpoints()
    debugged.release(hold)
    debugged.answered(b'"id": 3}')


def test_a_cancel_behind_a_held_request_is_delivered_after_it(held_request):
    debugged, hold = held_request
    cancel = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}\n'
    debugged.send(cancel + request(2, "ping"))
    debugged.release(hold, "continue")
    debugged.answered(b'"id": 2}')
    seen = debugged.seen()
    assert seen.index(call(1, "echo", {"text": "asked"})) < seen.index(cancel)


# Held responses


@pytest.fixture
def held_answer(debugged, hub):
    """(debugged, hold) of the answer to tools/call #1 ("count") held after the server."""
    hub.set_breakpoint(kind="tool", point="after")
    debugged.send(call(1, "count"))
    return debugged, debugged.hold()


def test_a_held_answer_has_not_reached_the_host(held_answer):
    debugged, hold = held_answer
    assert (hold["point"], hold["node"], hold["reason"], hold["id"]) == ("after", "tool:count", "breakpoint", "1")
    assert "call 1" in hold["frame"] and hold["request"].encode() + b"\n" == call(1, "count")
    assert b"call 1" not in debugged.session.out


def test_continue_forwards_a_held_answer_as_it_came(held_answer):
    debugged, hold = held_answer
    debugged.release(hold)
    debugged.answered(b"call 1")
    assert debugged.session.out.splitlines()[-1] == hold["frame"].encode()
    assert debugged.finished("tool:count")["status"] == "ok"


def test_inject_replaces_a_held_answer(held_answer):
    debugged, hold = held_answer
    debugged.release(hold, "inject", value={"answer": 42})
    debugged.answered(b"42")
    answer = debugged.answer_to(1)["result"]
    assert answer["structuredContent"] == {"answer": 42} and json.loads(answer["content"][0]["text"]) == {"answer": 42}
    assert b"call 1" not in debugged.session.out
    finished = debugged.finished("tool:count")
    assert (finished["status"], finished["injected"], finished["gatedAt"]) == ("ok", True, "after")
    assert "call 1" in debugged.watch.wait_event("hold.released")["dropped"]


def test_abort_drops_a_held_answer(held_answer):
    debugged, hold = held_answer
    debugged.release(hold, "abort")
    debugged.answered(b"-32099")
    assert debugged.answer_to(1)["error"]["code"] == ABORTED and b"call 1" not in debugged.session.out
    finished = debugged.finished("tool:count")
    assert (finished["status"], finished["gatedAt"]) == ("aborted", "after")


def test_retry_sends_the_original_bytes_again_any_number_of_times(debugged, hub):
    hub.set_breakpoint(kind="tool", point="after")
    odd = (b'{ "method":"tools/call","id":1, "params":{"name":"count","arguments":{"x":1.50,"y":1e400}},'
           b'"jsonrpc":"2.0" }\r\n')
    debugged.send(odd)
    for attempt in range(1, 4):
        hold = debugged.hub.hold(debugged.run)
        assert "call %d" % attempt in hold["frame"]
        if attempt < 3:
            debugged.release(hold, "retry")
            debugged.watch.wait_event("hold.opened", times=attempt + 1)
    debugged.release(hold, "continue")
    debugged.answered(b"call 3")
    assert text_of(debugged.answer_to(1)) == "call 3"  # exactly one answer
    assert debugged.seen().count(odd) == 3
    assert len(debugged.started("tool:count")) == 1
    finished = debugged.finished("tool:count")
    assert finished["retries"] == 2 and finished["status"] == "ok"
    assert b"call 1" not in debugged.session.out and b"call 2" not in debugged.session.out


# The error gate


@pytest.mark.parametrize("tool, fragment", [("boom", b"-32603"), ("softfail", b'"isError":true')])
@pytest.mark.parametrize("action", ["continue", "inject", "abort"])
def test_the_error_gate_is_armed_by_default(attach, hub, tool, fragment, action):
    """The module's hub is in the state of a fresh one: one breakpoint, {"point": "error"}."""
    assert [{key: each[key] for key in each if key != "id"} for each in hub.get("/api/breakpoints")["breakpoints"]] == [
        {"point": "error"}]
    debugged = attach(hub)
    debugged.send(call(1, tool))
    hold = debugged.hold()
    assert (hold["point"], hold["node"]) == ("error", "tool:" + tool) and hold["reason"] in ("error", "breakpoint")
    assert debugged.session.out == b""
    debugged.release(hold, action, **({"value": "repaired"} if action == "inject" else {}))
    expected = {"continue": fragment, "inject": b"repaired", "abort": b"-32099"}[action]
    debugged.answered(expected)
    finished = debugged.finished("tool:" + tool)
    assert finished["status"] == {"continue": "error", "inject": "ok", "abort": "aborted"}[action]
    assert action == "continue" or finished["gatedAt"] == "error"
    assert (fragment in debugged.session.out) == (action == "continue")


def test_retry_until_it_works(attach, hub):
    """A failing attempt is an error of its own; the call ends once, as ok."""
    debugged = attach(hub)
    debugged.send(call(1, "flaky", {"failures": 2}))
    for attempt in (1, 2):
        hold = debugged.hub.hold(debugged.run)
        assert "attempt %d" % attempt in hold["frame"]
        debugged.release(hold, "retry")
        if attempt == 1:
            debugged.watch.wait_event("hold.opened", times=2)
    debugged.answered(b"attempt 3")
    finished = debugged.finished("tool:flaky")
    assert (finished["status"], finished["retries"]) == ("ok", 2)
    assert len([event for event in debugged.watch.events("node.error")]) == 2


def test_a_failing_listing_holds_under_the_fold(attach, hub):
    debugged = attach(hub)
    debugged.send(request(1, "prompts/list"))
    hold = debugged.hold()
    assert (hold["node"], hold["kind"], hold["point"]) == ("mcp:prompts/list", "custom", "error")
    debugged.release(hold)
    debugged.answered(b"-32601")
    debugged.finish()
    assert debugged.finished("mcp:protocol")["output"] == {"calls": 1, "errors": 1, "stdoutNoise": 0}


def test_a_failing_initialize_can_be_repaired(attach, hub):
    debugged = attach(hub, server="modern")
    debugged.send(INITIALIZE)
    hold = debugged.hold()
    assert (hold["node"], hold["point"]) == ("mcp:initialize", "error")
    value = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}
    debugged.release(hold, "inject", value=value)
    debugged.answered(b"serverInfo")
    assert debugged.answer_to(0)["result"] == value


# Notifications


@pytest.fixture
def held_notification(debugged, hub):
    hub.set_breakpoint(name="notifications/hello")
    debugged.send(b'{"jsonrpc":"2.0","method":"notifications/hello","params":{"a":1.50}}\n')
    hold = debugged.hold()
    assert (hold["point"], hold["id"], hold["editable"]) == ("before", None, False)
    return debugged, hold


@pytest.mark.parametrize("action, body, reaches", [
    ("continue", {}, b'{"jsonrpc":"2.0","method":"notifications/hello","params":{"a":1.50}}\n'),
    ("retry", {}, b'{"jsonrpc":"2.0","method":"notifications/hello","params":{"a":1.50}}\n'),
    ("inject", {"value": {"jsonrpc": "2.0", "method": "notifications/other"}}, b"notifications/other"),
    ("abort", {}, None)], ids=["continue", "retry", "inject", "abort"])
def test_actions_on_a_notification(held_notification, action, body, reaches):
    debugged, hold = held_notification
    debugged.release(hold, action, **body)
    debugged.send(request(2, "ping")).answered(b'"id": 2}')
    seen = debugged.seen()
    assert (b"notifications/hello" in seen) == (action in ("continue", "retry"))
    assert reaches is None or seen.count(reaches) == 1
    if action == "inject":
        assert json.loads(seen.splitlines()[-2]) == body["value"]
    finished = debugged.finished("mcp:notifications/hello")
    assert finished["status"] == ("aborted" if action == "abort" else "ok")
    assert bool(finished.get("injected")) == (action == "inject")
    assert [message.get("id") for message in debugged.messages()] == [0, 2]  # nobody answers a notification


@pytest.mark.parametrize("value", ["text", 5, None, [], {"no": "json-rpc"}])
def test_only_a_json_rpc_object_can_replace_a_notification(held_notification, value):
    """Anything else is refused, or the original goes on and stderr says so: nothing malformed reaches the server."""
    debugged, hold = held_notification
    answer = debugged.hub.release(hold, "inject", value=value)
    if answer.status == 422:
        assert answer.json["outcome"] == "refused" and answer.json["message"]
        debugged.release(hold, "continue")
    else:
        assert answer.status == 200 and b"notifications/hello" in debugged.session.wait_err(b"object")
    debugged.send(request(2, "ping")).answered(b'"id": 2}')
    assert debugged.seen().count(b"notifications/hello") == 1


# Requests of the server


def test_sampling_is_gated_like_any_request(debugged, hub):
    hub.set_breakpoint(kind="llm")
    debugged.send(call(1, "sample"))
    hold = debugged.hold()
    assert (hold["node"], hold["direction"], hold["id"]) == ("llm:sampling", "server->client", "1")
    debugged.release(hold, "inject", value="a made-up answer")
    answer = debugged.answered(b"the client said").splitlines()[-1]
    result = json.loads(json.loads(answer)["result"]["content"][0]["text"].split("said ", 1)[1])
    assert result["role"] == "assistant" and result["content"] == {"type": "text", "text": "a made-up answer"}
    assert result["model"] and result["stopReason"] == "endTurn"
    assert b"sampling/createMessage" not in debugged.session.out  # the host never saw the question


def test_an_aborted_request_of_the_server(debugged, hub):
    hub.set_breakpoint(kind="llm")
    debugged.send(call(1, "sample"))
    debugged.release(debugged.hold(), "abort")
    assert b"-32099" in debugged.answered(b"the client said")


# What a value becomes


LIFTS = [
    ("tools/call", {"name": "echo"}, "text", {"content": [{"type": "text", "text": "text"}]}),
    ("tools/call", {"name": "echo"}, {"a": 1}, None),
    ("tools/call", {"name": "echo"}, {"content": []}, {"content": []}),
    ("tools/call", {"name": "echo"}, {"structuredContent": {"x": 1}}, {"structuredContent": {"x": 1}}),
    ("tools/call", {"name": "echo"}, [1, 2], {"content": [{"type": "text", "text": "[1, 2]"}]}),
    ("tools/call", {"name": "echo"}, None, {"content": [{"type": "text", "text": "null"}]}),
    ("tools/call", {"name": "echo"}, True, {"content": [{"type": "text", "text": "true"}]}),
    ("resources/read", {"uri": "mem://a"}, "text", {"contents": [{"uri": "mem://a", "text": "text"}]}),
    ("resources/read", {"uri": "mem://a"}, {"contents": []}, {"contents": []}),
    ("prompts/get", {"name": "p"}, "text",
     {"messages": [{"role": "user", "content": {"type": "text", "text": "text"}}]}),
    ("prompts/get", {"name": "p"}, {"messages": []}, {"messages": []}),
    ("completion/complete", {}, {"completion": {"values": []}}, {"completion": {"values": []}}),
    ("ping", {}, {"odd": [1, "x"]}, {"odd": [1, "x"]}),
    ("ping", {}, "as typed", "as typed"),
]


@pytest.mark.parametrize("method, params, value, expected", LIFTS)
def test_a_bare_value_is_lifted_into_the_result_of_its_method(debugged, hub, method, params, value, expected):
    hub.set_breakpoint()
    debugged.send(request(1, method, params))
    debugged.release(debugged.hold(), "inject", value=value)
    debugged.watch.wait_event("node.finished", lambda event: event.get("injected"))
    result = debugged.answer_to(1)["result"]
    if expected is None:
        assert result["structuredContent"] == value and json.loads(result["content"][0]["text"]) == value
    elif value in ([1, 2],):
        assert list(result) == ["content"] and json.loads(result["content"][0]["text"]) == value
    else:
        assert result == expected


def test_other_values_at_a_resource_are_json_text(debugged, hub):
    hub.set_breakpoint(kind="resource")
    debugged.send(request(1, "resources/read", {"uri": "mem://a"}))
    debugged.release(debugged.hold(), "inject", value={"k": [1]})
    debugged.watch.wait_event("node.finished", lambda event: event.get("injected"))
    [content] = debugged.answer_to(1)["result"]["contents"]
    assert (content["uri"], content["mimeType"], json.loads(content["text"])) == ("mem://a", "application/json",
                                                                                  {"k": [1]})


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_whole_frame_goes_as_given_with_the_held_id(debugged, hub, point):
    hub.set_breakpoint(kind="tool", point=point)
    debugged.send(call(7, "echo"))
    debugged.release(debugged.hold(), "inject", value=FAILED_FRAME)
    debugged.answered(b"by hand")
    assert debugged.answer_to(7) == dict(FAILED_FRAME, id=7)
    assert debugged.finished("tool:echo")["status"] == "error"  # what went to the host is a failure


def test_exact_digits_survive_when_given_as_text(debugged, hub):
    hub.set_breakpoint(kind="tool")
    debugged.send(call(1, "echo"))
    debugged.release(debugged.hold(), "inject",
                     valueText='{"content":[],"structuredContent":{"n":9007199254740993,"m":1.50}}')
    debugged.answered(b"9007199254740993")
    assert b"1.50" in debugged.session.out


def test_inject_without_a_value(debugged, hub):
    """At a tool: an empty content list; elsewhere an explicit null. Never an answer without a result."""
    hub.set_breakpoint()
    debugged.send(call(1, "echo"))
    debugged.release(debugged.hold(), "inject")
    debugged.watch.wait_event("node.finished", lambda event: event.get("injected"))
    debugged.send(request(2, "ping"))
    debugged.release(debugged.hold(), "inject")
    debugged.watch.wait_event("node.finished", lambda event: event.get("injected"), times=2)
    assert debugged.answer_to(1)["result"] == {"content": []}
    assert debugged.answer_to(2)["result"] is None


# The 2026-07-28 era


@pytest.fixture
def modern(attach, hub):
    hub.clear_breakpoints()
    debugged = attach(hub, server="modern")
    debugged.send(request(0, "server/discover", MODERN)).answered(b"supportedVersions")
    debugged.finished("mcp:server/discover")
    return debugged


def test_lifted_values_are_stamped_for_2026(modern, hub):
    hub.set_breakpoint()
    modern.send(request(1, "tools/call", dict(MODERN, name="echo", arguments={})))
    modern.release(modern.hold(), "inject", value="x")
    modern.answered(b'"id":1')
    modern.send(request(2, "resources/read", dict(MODERN, uri="mem://a")))
    modern.release(modern.hold(), "inject", value="y")
    modern.watch.wait_event("node.finished", lambda event: event.get("injected"), times=2)
    assert modern.answer_to(1)["result"] == {"content": [{"type": "text", "text": "x"}], "resultType": "complete"}
    assert modern.answer_to(2)["result"] == {"contents": [{"uri": "mem://a", "text": "y"}], "resultType": "complete",
                                             "ttlMs": 0, "cacheScope": "private"}


def test_whole_frames_and_given_stamps_are_left_alone_in_2026(modern, hub):
    hub.set_breakpoint()
    frame = {"jsonrpc": "2.0", "id": 1, "result": {"content": []}}
    modern.send(request(1, "tools/call", dict(MODERN, name="echo")))
    modern.release(modern.hold(), "inject", value=frame)
    modern.send(request(2, "resources/read", dict(MODERN, uri="m")))
    value = {"contents": [], "resultType": "input_required", "ttlMs": 5, "cacheScope": "public"}
    modern.watch.wait_event("hold.opened", times=2)
    modern.release(modern.hold(), "inject", value=value)
    modern.watch.wait_event("node.finished", lambda event: event.get("injected"), times=2)
    assert modern.answer_to(1) == frame and modern.answer_to(2)["result"] == value


def test_a_failed_discover_is_held_and_the_session_stays_legacy(attach, hub):
    """The default error gate holds the probe; after continue the client falls back, and nothing is stamped."""
    debugged = attach(hub)
    debugged.send(request('"probe"', "server/discover", MODERN))
    hold = debugged.hold()
    assert (hold["node"], hold["point"]) == ("mcp:server/discover", "error")
    debugged.release(hold)
    debugged.answered(b"-32601")
    debugged.handshake()
    hub.set_breakpoint(kind="tool")
    debugged.send(call(1, "echo"))
    debugged.release(debugged.hold(), "inject", value="x")
    debugged.answered(b'"text"')
    assert "resultType" not in debugged.answer_to(1)["result"]


# Breakpoints and modes


def test_a_breakpoint_without_conditions_holds_everything(debugged, hub):
    hub.set_breakpoint()
    debugged.send(request(1, "ping") + b'{"jsonrpc":"2.0","method":"notifications/n"}\n' + call(2, "count"))
    for node in ("mcp:ping", "mcp:notifications/n", "tool:count"):
        hold = debugged.hub.hold(debugged.run)
        assert (hold["node"], hold["point"]) == (node, "before")
        debugged.release(hold)
        debugged.watch.wait_event("hold.released", lambda event, wanted=hold["hold"]: event["hold"] == wanted)
    debugged.answered(b"call 1")


def test_step_mode_holds_before_and_at_errors_but_not_after(debugged, hub):
    assert hub.ask("PUT", "/api/mode", {"mode": "step"}).status in (200, 204)
    debugged.send(call(1, "count"))
    hold = debugged.hold()
    assert (hold["point"], hold["reason"]) == ("before", "step")
    debugged.release(hold)
    debugged.answered(b"call 1")  # not held after
    debugged.send(call(2, "boom"))
    debugged.release(debugged.hold())
    debugged.watch.wait_event("hold.opened", times=3)
    hold = debugged.hold()
    assert hold["point"] == "error" and hold["reason"] in ("error", "step")
    hub.ask("PUT", "/api/mode", {"mode": "run"})
    debugged.release(hold)
    debugged.send(call(3, "count")).answered(b"call 2")


@pytest.mark.parametrize("matcher, held", [
    ({"name": "ping"}, ["mcp:ping before"]), ({"kind": "tool"}, ["tool:count before"]),
    ({"kind": "tool", "point": "after"}, ["tool:count after"]), ({"kind": "custom", "name": "count"}, []),
    ({"kind": "tool", "name": "count", "point": "error"}, []), ({"name": "tool:count"}, []), ({"kind": "llm"}, [])],
    ids=str)
def test_breakpoints_match_kind_name_and_point(debugged, hub, matcher, held):
    hub.set_breakpoint(**matcher)
    debugged.send(request(1, "ping") + call(2, "count"))
    for expected in held:
        hold = debugged.hold()
        assert "%(node)s %(point)s" % hold == expected
        debugged.release(hold)
    debugged.answered(b"call 1")
    assert len(debugged.held_in_all()) == len(held)


def test_a_rule_matches_if_any_of_doubled_keys_does(debugged, hub):
    hub.set_breakpoint(name="count")
    debugged.send(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","name":"count"}}\n')
    debugged.release(debugged.hold())
    debugged.answered(b'"id": 1}')
    debugged.send(b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"count","name":"echo"}}\n')
    debugged.release(debugged.hold())
    debugged.answered(b'"id": 2}')


def test_batches_are_never_held(debugged, hub):
    hub.set_breakpoint()
    debugged.send(b"[%s,%s]\n" % (request(1, "ping").strip(), call(2, "boom").strip()))
    debugged.answered(b"boom failed")
    assert debugged.held_in_all() == []


def test_removing_a_breakpoint_takes_effect_at_once_but_releases_nothing(held_request, hub):
    debugged, hold = held_request
    hub.clear_breakpoints()
    assert hub.get("/api/holds?run=" + debugged.run)["holds"]
    debugged.release(hold)
    debugged.send(call(2, "echo", {"text": "free"})).answered(b"free")


# Races and wrong actions


def test_two_releases_race_and_the_first_wins(held_request):
    debugged, hold = held_request
    assert debugged.release(hold, "continue").json["action"] == "continue"
    second = debugged.hub.release(hold, "abort")
    assert second.status == 409 and second.json["outcome"] == "taken" and second.json["action"] == "continue"
    debugged.answered(b'"id": 1}')


def test_an_unknown_hold(hub):
    answer = hub.release({"hold": "no-such-hold"})
    assert answer.status == 404 and answer.json["outcome"] == "unknown"


@pytest.mark.parametrize("body", [{"action": "explode"}, {}, {"action": 5}, [], "text", {"action": "continue",
                                                                                         "arguments": []}])
def test_a_malformed_release_is_refused_and_stays_held(held_request, body):
    debugged, hold = held_request
    answer = debugged.hub.ask("POST", "/api/holds/" + hold["hold"], body)
    assert 400 <= answer.status < 500 and (answer.json.get("message") or answer.json["error"]["message"])
    assert debugged.hub.get("/api/holds/" + hold["hold"])["hold"] == hold["hold"]
    debugged.release(hold)
    debugged.answered(b'"id": 1}')


def test_a_stale_view_cannot_release_the_next_attempt(debugged, hub):
    """After a retry the same call is held again under another hold: the action names the hold it saw."""
    hub.set_breakpoint(kind="tool", point="after")
    debugged.send(call(1, "count"))
    first = debugged.hold()
    debugged.release(first, "retry")
    debugged.watch.wait_event("hold.opened", times=2)
    second = debugged.hold()
    assert second["hold"] != first["hold"]
    assert debugged.hub.release(first, "abort").status in (404, 409)
    debugged.release(second)
    debugged.answered(b"call 2")


# Telling the person at the terminal


def test_a_long_hold_is_announced_on_stderr_and_so_is_its_release(held_request):
    debugged, hold = held_request
    text = debugged.session.wait_err(b"HOLDING tools/call").decode()
    [line] = [line for line in text.splitlines() if "HOLDING" in line]
    assert line.startswith("mcp_relay: ") and "#1" in line and "before" in line
    assert "127.0.0.1:%d" % debugged.hub.port in line
    assert debugged.hub.token not in text
    debugged.release(hold)
    debugged.session.wait_err(b"released tools/call #1 (continue")


# Many at once


def test_forty_calls_in_flight_two_viewers_three_relays(attach, hub):
    viewers = [hub.watch() for _ in range(2)]
    relays = [attach(hub) for _ in range(3)]
    for debugged in relays:
        debugged.send(b"".join(call(n, "slow", {"n": n}) for n in range(40)))
        debugged.send(b'{"jsonrpc":"2.0","method":"notifications/go"}\n')
    for debugged in relays:
        debugged.finished("tool:slow", 40)
        assert sorted(message["id"] for message in debugged.messages()) == list(range(40))
        result, events = debugged.finish()
        finished = [event for event in events if event["type"] == "node.finished" and event["node"] == "tool:slow"]
        assert (result.code, len(finished)) == (0, 40)
    for viewer in viewers:
        for debugged in relays:
            viewer.wait("run", lambda run, wanted=debugged.run: run["run"] == wanted and run["status"] == "ok"
                        and run["calls"] == 40)


def test_initialize_itself_can_be_held_with_wait_for_attach(attach, hub):
    hub.set_breakpoint(name="initialize")
    debugged = attach(hub, "--wait-for-attach")
    debugged.send(INITIALIZE + INITIALIZED)
    hold = debugged.hold()
    assert hold["node"] == "mcp:initialize" and debugged.seen() == b""
    debugged.release(hold)
    debugged.answered(b'"id": 0}')
