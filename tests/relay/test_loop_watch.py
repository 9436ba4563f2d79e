"""Three kinds of loop among a client's calls, as transcripts without any process."""

import json

import pytest

import mcp_relay

C2S, S2C = mcp_relay.CLIENT_TO_SERVER, mcp_relay.SERVER_TO_CLIENT


class Transcript:
    """A session and its loop watch; call() gives the loop dict or None, the answer follows at once."""

    def __init__(self, **options):
        self.session = mcp_relay.Session("label", "cmd", [], 0.0, 0.0)
        self.watch = mcp_relay.LoopWatch(**options)
        self.count = 0

    def call(self, tool="t", arguments="{}", result='{"content":[]}', meta="", answered=True):
        self.count += 1
        frame = '{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%s","arguments":%s%s}}' % (
            self.count, tool, arguments, meta)
        passage = self.session.observe(C2S, frame.encode(), 0.0)
        loop = self.watch.call(passage.instance)
        self.session.pass_on(passage, 0.0)
        if answered:
            reply = self.session.observe(S2C, b'{"jsonrpc":"2.0","id":%d,"result":%s}' % (self.count,
                                                                                          result.encode()), 0.0)
            self.watch.answer(reply.instance, reply.message)
            self.session.pass_on(reply, 0.0)
        return loop


def kinds(loops):
    return [loop and loop["kind"] for loop in loops]


def test_the_third_identical_call_is_a_loop_and_each_further_one():
    talk = Transcript()
    loops = [talk.call(arguments='{"a":1}') for _ in range(5)]
    assert kinds(loops) == [None, None, "repeat", "repeat", "repeat"]
    assert [loop["repeats"] for loop in loops[2:]] == [3, 4, 5]
    assert loops[2]["instances"] == ["mcp_1", "mcp_2", "mcp_3"]


@pytest.mark.parametrize("other", [{"arguments": '{"a":2}'}, {"tool": "u", "arguments": '{"a":1}'}])
def test_anything_between_starts_anew(other):
    talk = Transcript()
    same = {"arguments": '{"a":1}'}
    assert kinds([talk.call(**each) for each in (same, same, other, same, same)]) == [None] * 5


@pytest.mark.parametrize("forms", [['{"a":1,"b":2}', '{"b":2,"a":1}', '{ "a" : 1, "b":2 }'], ['"A"', '"\\u0041"',
                                                                                              '"A"']])
def test_order_and_spelling_do_not_matter(forms):
    talk = Transcript()
    assert kinds([talk.call(arguments=form) for form in forms]) == [None, None, "repeat"]


def test_true_is_not_one():
    talk = Transcript()
    assert kinds([talk.call(arguments='{"a":%s}' % each) for each in ("1", "true", "1")]) == [None] * 3


def test_a_fresh_progress_token_does_not_hide_a_loop():
    talk = Transcript()
    loops = [talk.call(meta=',"_meta":{"progressToken":%d}' % n) for n in range(3)]
    assert kinds(loops) == [None, None, "repeat"]


def test_a_changing_cursor_is_never_a_loop():
    talk = Transcript()
    assert kinds([talk.call(arguments='{"cursor":"%d"}' % n) for n in range(20)]) == [None] * 20


@pytest.mark.parametrize("allow", [["t"], ["tool:t"]])
def test_allowed_tools_are_invisible(allow):
    """They neither count nor separate."""
    talk = Transcript(allow=allow)
    assert kinds([talk.call("t") for _ in range(6)]) == [None] * 6
    assert kinds([talk.call("u"), talk.call("t"), talk.call("u"), talk.call("t"),
                  talk.call("u")]) == [None] * 4 + ["repeat"]


@pytest.mark.parametrize("threshold, expected", [(0, [None] * 6), (5, [None] * 4 + ["repeat"] * 2), (1,
                                                                                                     ["repeat"] * 6)])
def test_the_threshold(threshold, expected):
    talk = Transcript(threshold=threshold)
    assert kinds([talk.call() for _ in range(6)]) == expected


@pytest.mark.parametrize("period", [2, 3, 4])
def test_a_cycle_of_two_to_four_calls_repeated_three_times(period):
    talk = Transcript()
    loops = [talk.call("tool%d" % (n % period),
                       result='{"content":[%d]}' % (n % period)) for n in range(3 * period + 1)]
    assert kinds(loops) == [None] * (3 * period) + ["cycle"]
    assert loops[-1]["period"] == period and len(loops[-1]["instances"]) == 3 * period


def test_a_cycle_whose_results_change_is_no_loop():
    talk = Transcript()
    assert kinds([talk.call("tool%d" % (n % 2), result='{"content":[%d]}' % n) for n in range(20)]) == [None] * 20


def test_three_failures_in_a_row_with_the_same_error():
    """Arguments may differ, other tools in between do not matter, a success starts anew."""
    talk = Transcript()
    failed = '{"content":[{"type":"text","text":"no  such\\n file"}],"isError":true}'
    loops = []
    for n in range(4):
        loops.append(talk.call("t", '{"n":%d}' % n, failed))
        talk.call("other", '{"n":%d}' % n)
    assert kinds(loops) == [None, None, None, "error-repeat"] and loops[3]["repeats"] == 3
    talk.call("t", '{"n":9}')
    assert kinds([talk.call("t", '{"n":%d}' % n, failed) for n in range(10, 13)]) == [None] * 3


def test_different_errors_are_no_loop():
    talk = Transcript()
    failed = '{"content":[{"type":"text","text":"error %d"}],"isError":true}'
    assert kinds([talk.call("t", '{"n":%d}' % n, failed % n) for n in range(10)]) == [None] * 10


def test_calls_without_answers_do_not_grow_without_bound():
    talk = Transcript()
    for n in range(500):
        talk.call("t", json.dumps({"n": n}), answered=False)
    assert talk.call("t", json.dumps({"n": 499})) is None
