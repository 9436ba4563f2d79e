"""Editing a held tool call: a splice into the original text, checked by schema, refused by the field's name."""

import json

import pytest

from hubs import call, request

ODD = (b'{ "id":9007199254740993, "jsonrpc":"2.0","params":{"x":1e400, "arguments" : {"a":6.50,"b":2} ,'
       b'"name":"divide"},"method":"tools/call" }\r\n')


@pytest.fixture
def debugged(attach, hub):
    """A relay whose session has listed the server's tools, with tool calls held before they run."""
    hub.clear_breakpoints()
    hub.set_breakpoint(kind="tool")
    debugged = attach(hub).handshake()
    debugged.send(request('"list"', "tools/list"))
    debugged.finished("mcp:tools/list")
    return debugged


def test_only_the_arguments_change_in_the_frame(debugged):
    debugged.send(ODD)
    hold = debugged.hold()
    assert hold["editable"] is True
    debugged.release(hold, "continue", argumentsText='{"a":7.00,"b":2}')
    debugged.answered(b"3.5")
    assert debugged.seen().endswith(ODD.replace(b'{"a":6.50,"b":2}', b'{"a":7.00,"b":2}'))
    finished = debugged.finished("tool:divide")
    assert finished["edited"] is True
    released = debugged.watch.wait_event("hold.released")
    assert json.loads(released["arguments"]) == {"a": 7.0, "b": 2}
    [started] = debugged.started("tool:divide")
    assert started["frame"].encode() + b"\n" == ODD  # the record keeps what the client asked


def test_frames_before_and_after_an_edit_stay_as_they_were(debugged):
    before, after = request(1, "ping"), b'{ "jsonrpc" : "2.0","method":"notifications/x" , "n":1.50}\r\n'
    debugged.send(before + call(2, "divide", {"a": 1, "b": 1}) + after)
    debugged.release(debugged.hold(), "continue", arguments={"a": 4, "b": 2})
    debugged.answered(b"2.0")
    debugged.watch.wait_event("node.finished", lambda event: event["node"] == "mcp:notifications/x")
    debugged.finish()
    lines = debugged.seen().splitlines(True)
    assert lines[-3] == before and lines[-1] == after and json.loads(lines[-2])["params"]["arguments"] == {"a": 4,
                                                                                                           "b": 2}


REFUSED = [({"a": "hush", "b": 2}, "a"), ({"a": 1}, "b"), ({"a": 1, "b": 0}, "b"), ({"a": 1, "b": 1.5}, "b"),
           ({"a": 1, "b": 2, "hush": 3}, "hush")]


@pytest.mark.parametrize("arguments, field", REFUSED)
def test_what_the_schema_forbids_is_refused_and_stays_held(debugged, arguments, field):
    debugged.send(call(1, "divide", {"a": 6, "b": 2}))
    hold = debugged.hold()
    answer = debugged.hub.release(hold, "continue", arguments=arguments)
    assert (answer.status, answer.json["outcome"], answer.json["code"]) == (422, "refused", "schema")
    assert '"%s"' % field in answer.json["message"] and "hush" not in answer.json["message"].replace('"hush"', "")
    refused = debugged.watch.wait_event("hold.refused")
    assert refused["hold"] == hold["hold"] and refused["code"] == "schema" and refused["message"]
    assert debugged.hub.get("/api/holds/" + hold["hold"])["hold"] == hold["hold"]
    debugged.release(hold, "continue", arguments={"a": 9, "b": 3})
    debugged.answered(b"3.0")


@pytest.mark.parametrize("body", [{"action": "abort", "arguments": {"a": 1, "b": 1}}, {"action": "retry",
                                                                                       "arguments": {}},
                                  {"action": "inject", "arguments": {}}, {"action": "continue", "argumentsText": "{"},
                                  {"action": "continue", "argumentsText": "[]"}, {"action": "continue",
                                                                                  "arguments": "x"},
                                  {"action": "continue", "arguments": None, "argumentsText": "NaN"}], ids=str)
def test_edits_that_do_not_fit_are_refused(debugged, body):
    debugged.send(call(1, "divide", {"a": 6, "b": 2}))
    hold = debugged.hold()
    answer = debugged.hub.ask("POST", "/api/holds/" + hold["hold"], body)
    assert answer.status in (400, 422)
    assert debugged.hub.get("/api/holds/" + hold["hold"])["hold"] == hold["hold"]
    debugged.release(hold)
    debugged.answered(b"3.0")


def test_missing_arguments_can_be_supplied(debugged):
    debugged.send(request(1, "tools/call", {"name": "divide"}))
    debugged.release(debugged.hold(), "continue", arguments={"a": 1, "b": 2})
    debugged.answered(b"0.5")


def test_without_a_schema_the_server_judges(debugged):
    debugged.send(call(1, "nobody knows it", {}))
    hold = debugged.hold()
    debugged.release(hold, "continue", arguments={"anything": [1]})
    debugged.answered(b"Unknown tool")
    assert b'{"anything":[1]}' in debugged.seen().replace(b" ", b"")


def test_a_changed_list_forgets_the_schemas(debugged):
    debugged.hub.clear_breakpoints()
    line = '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
    debugged.send(call(1, "noise", {"lines": [line]})).answered(b"noise made")
    debugged.hub.set_breakpoint(kind="tool")
    debugged.send(call(2, "divide", {"a": 1, "b": 1}))
    debugged.release(debugged.hold(), "continue", arguments={"a": 8, "b": 2, "c": 3})
    debugged.answered(b"4.0")


@pytest.mark.parametrize("frame", [request(1, "resources/read", {"uri": "x"}),
                                   b'{"jsonrpc":"2.0","method":"notifications/n"}\n',
                                   request(1, "ping")], ids=["resource", "notification", "ping"])
def test_only_tool_calls_can_be_edited(attach, hub, frame):
    hub.clear_breakpoints()
    debugged = attach(hub).handshake()
    hub.set_breakpoint()
    debugged.send(frame)
    hold = debugged.hold()
    assert hold["editable"] is False
    answer = hub.release(hold, "continue", arguments={})
    assert (answer.status, answer.json["code"]) == (422, "unsupported")
    debugged.release(hold)


def test_retry_with_other_arguments_and_a_plain_retry_repeats_them(attach, hub):
    hub.clear_breakpoints()
    hub.set_breakpoint(point="error")
    debugged = attach(hub)
    debugged.send(call(1, "softfail", {"why": "first"}))
    first = debugged.hold()
    assert first["editable"] is True
    debugged.release(first, "retry", arguments={"why": "second"})
    debugged.watch.wait_event("hold.opened", times=2)
    second = debugged.hold()
    assert "second" in second["frame"]
    debugged.release(second, "retry")
    debugged.watch.wait_event("hold.opened", times=3)
    third = debugged.hold()
    assert "second" in third["frame"]
    debugged.release(third)
    debugged.answered(b"isError")
    finished = debugged.finished("tool:softfail")
    assert finished["retries"] == 2 and finished["edited"] is True
    assert [json.loads(line)["params"]["arguments"]["why"] for line in debugged.seen().splitlines()] == [
        "first", "second", "second"]


def test_edited_arguments_keep_exact_digits_only_as_text(debugged):
    debugged.send(call(1, "echo", {"text": "x"}))
    debugged.release(debugged.hold(), "continue", argumentsText='{"text":"y","n":9007199254740993,"m":1.50}')
    debugged.answered(b'"id": 1}')
    assert b'{"text":"y","n":9007199254740993,"m":1.50}' in debugged.seen()
