"""Loop hold end to end: a client that repeats itself, a real server, a real hub."""

import signal

import pytest

import support
from hubs import call, request


@pytest.fixture
def calm(hub):
    """A hub with nothing armed: what is held here is held for its own reason."""
    hub.clear_breakpoints()
    return hub


def repeat(debugged, times, tool="count", arguments=None, first=1):
    """Send the same call several times, each after the answer of the one before; return the next id."""
    for n in range(first, first + times):
        debugged.send(call(n, tool, arguments)).answered(b'"id": %d}' % n)
    return first + times


def test_the_third_identical_call_is_held_before_the_server_sees_it(attach, calm):
    debugged = attach(calm)
    repeat(debugged, 2)
    debugged.send(call(3, "count"))
    hold = debugged.hold()
    assert (hold["reason"], hold["point"], hold["id"]) == ("loop", "before", "3")
    assert hold["loop"]["kind"] == "repeat" and hold["loop"]["repeats"] == 3
    assert hold["loop"]["instances"] == ["mcp_1", "mcp_2", "mcp_3"]
    assert debugged.seen().count(b"tools/call") == 2
    debugged.release(hold)
    debugged.answered(b"call 3")
    debugged.send(call(4, "count"))
    again = debugged.hold()
    assert again["loop"]["repeats"] == 4
    debugged.release(again, "abort")
    debugged.answered(b"-32099")
    debugged.send(call(5, "count", {"other": 1})).answered(b"call 4")  # the aborted one never reached the server


def test_inject_at_a_loop_hold(attach, calm):
    debugged = attach(calm)
    repeat(debugged, 2)
    debugged.send(call(3, "count"))
    debugged.release(debugged.hold(), "inject", value="stop asking")
    debugged.answered(b"stop asking")
    assert debugged.seen().count(b"tools/call") == 2


def test_a_call_in_between_resets(attach, calm):
    debugged = attach(calm)
    following = repeat(debugged, 2)
    following = repeat(debugged, 1, arguments={"x": 1}, first=following)
    following = repeat(debugged, 2, first=following)
    repeat(debugged, 1, tool="echo", first=following)
    assert debugged.held_in_all() == []


@pytest.mark.parametrize("options, env, held_at", [
    (["--loop-threshold", "5"], {}, 5), (["--loop-threshold", "0"], {}, None), (["--on-loop", "off"], {}, None),
    (["--on-loop", "warn"], {}, None), (["--loop-allow", "x,count"], {}, None), (["--loop-allow", "tool:count"], {},
                                                                                 None),
    ([], {"MCP_RELAY_LOOP_THRESHOLD": "4"}, 4), ([], {"GRAPHMIND_LOOP_ALLOW": "count"}, None),
    ([], {"GRAPHMIND_ON_LOOP": "off"}, None), ([], {"MCP_RELAY_LOOP_ALLOW": " count , y "}, None),
    (["--loop-threshold", "2"], {"MCP_RELAY_LOOP_THRESHOLD": "9"}, 2)], ids=str)
def test_settings_of_the_loop_hold(attach, calm, options, env, held_at):
    debugged = attach(calm, *options, env=env)
    if held_at is None:
        repeat(debugged, 7)
        assert debugged.held_in_all() == []
        if "warn" in options:
            said = [line for line in support.our_lines(debugged.session.finish().err) if "loop" in line]
            assert len(said) == 1 and "count" in said[0]
        return
    repeat(debugged, held_at - 1)
    debugged.send(call(held_at, "count"))
    assert debugged.hold()["loop"]["repeats"] == held_at


def test_a_fresh_progress_token_does_not_hide_a_loop(attach, calm):
    debugged = attach(calm)
    for n in range(1, 4):
        debugged.send(request(n, "tools/call", {"name": "count", "arguments": {}, "_meta": {"progressToken": n}}))
    assert debugged.hold()["id"] == "3"


def test_a_cycle_is_held(attach, calm):
    debugged = attach(calm)
    following = 1
    for _ in range(3):
        following = repeat(debugged, 1, "echo", {"text": "a"}, following)
        following = repeat(debugged, 1, "divide", {"a": 4, "b": 2}, following)
    debugged.send(call(following, "echo", {"text": "a"}))
    hold = debugged.hold()
    assert hold["loop"]["kind"] == "cycle" and hold["loop"]["period"] == 2


def test_three_failures_in_a_row_are_held(attach, calm):
    debugged = attach(calm)
    following = 1
    for n in range(3):
        following = repeat(debugged, 1, "softfail", {"why": "the same", "n": n}, following)
        following = repeat(debugged, 1, "echo", {"text": str(n)}, following)
    debugged.send(call(following, "softfail", {"why": "the same", "n": 9}))
    hold = debugged.hold()
    assert hold["loop"]["kind"] == "error-repeat" and hold["point"] == "before"


def test_detached_nothing_is_held(run):
    data = b"".join(call(n, "count") for n in range(6))
    assert run("--trace", server=support.server("raw"), data=data).out.count(b"\n") == 6


def test_a_loop_hold_is_released_when_the_debugger_goes(attach, own_hub):
    hub = own_hub()
    debugged = attach(hub)
    repeat(debugged, 2)
    debugged.send(call(3, "count"))
    debugged.hold()
    hub.session.signal(signal.SIGKILL)
    debugged.answered(b"call 3")
