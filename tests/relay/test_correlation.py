"""Frames in, events out: pairing, cancellation, progress, batches, era, schemas, noise, counts. Time is injected."""

import json

import pytest
from hypothesis import given, settings, strategies as st

import mcp_relay

C2S, S2C = mcp_relay.CLIENT_TO_SERVER, mcp_relay.SERVER_TO_CLIENT


class Talk:
    """A Session fed like a lane feeds it, one second per frame; with events as plain values."""

    def __init__(self, **hiding):
        self.now = 100.0
        self.session = mcp_relay.Session("label", "cmd", ["a"], 1_700_000_000.0, self.now,
                                         mcp_relay.Hiding(hiding.get("hide", ())), 7)

    def say(self, direction, text, pass_on=True):
        self.now += 1.0
        frame = text if isinstance(text, bytes) else text.encode()
        passage = self.session.observe(direction, frame, self.now)
        if pass_on:
            self.session.pass_on(passage, self.now)
        return passage

    def host(self, text):
        return self.say(C2S, text)

    def server(self, text):
        return self.say(S2C, text)

    def end(self, code=0, failure=None):
        self.now += 1.0
        self.session.end(self.now, "the MCP server exited with code %d" % code, code, None, failure)
        return self.session.events

    def shape(self):
        """Events as "type node [status]" lines, without the opening ones."""
        return [" ".join(filter(None, (each["type"], each.get("node"), each.get("status"))))
                for each in self.session.events[2:]]


def request(raw_id, method, params="{}"):
    return '{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}' % (raw_id, method, params)


def call(raw_id, tool="t"):
    return request(raw_id, "tools/call", '{"name":"%s"}' % tool)


def answer(raw_id, result="{}"):
    return '{"jsonrpc":"2.0","id":%s,"result":%s}' % (raw_id, result)


def test_a_call_and_its_answer():
    talk = Talk()
    talk.host(call(1))
    talk.server(answer(1, '{"content":[]}'))
    started, finished = talk.session.events[2:]
    assert (started["type"], started["node"], started["instance"], started["id"]) == ("node.started", "tool:t",
                                                                                      "mcp_1", "1")
    assert started["frame"] == call(1).encode() and finished["frame"] == answer(1, '{"content":[]}').encode()
    assert (finished["status"], finished["durationMs"], finished["method"]) == ("ok", 1000.0, "tools/call")
    assert (started["at"], finished["at"]) == (1000.0, 2000.0)
    assert started["ts"] == 1_700_000_001_000 and [each["seq"] for each in talk.session.events] == [1, 2, 3, 4]


def test_answers_in_any_order():
    talk = Talk()
    for n in "abc":
        talk.host(call('"%s"' % n, n))
    for n in "cab":
        talk.server(answer('"%s"' % n))
    assert talk.shape()[3:] == ["node.finished tool:%s ok" % n for n in "cab"]


def test_two_requests_with_one_id_are_answered_one_after_the_other():
    """A host that reuses an id in flight: both nodes close, none is lost."""
    talk = Talk()
    talk.host(call(1, "first"))
    talk.host(call(1, "second"))
    talk.server(answer(1))
    talk.server(answer(1))
    assert talk.shape()[2:] == ["node.finished tool:first ok", "node.finished tool:second ok"]


def test_ids_of_the_two_directions_do_not_meet():
    talk = Talk()
    talk.host(call(1))
    talk.server(request(1, "sampling/createMessage"))
    talk.server(answer(1))
    talk.host(answer(1))
    assert talk.shape() == ["node.started tool:t", "node.started llm:sampling", "node.finished tool:t ok",
                            "node.finished llm:sampling ok"]


def test_an_answer_to_nothing():
    talk = Talk()
    talk.server(answer(5))
    assert talk.shape() == ["node.started mcp:protocol", "node.started mcp:unmatched", "node.error mcp:unmatched",
                            "node.finished mcp:unmatched error"]
    assert talk.session.unmatched == 1


@pytest.mark.parametrize("cancelled, hit", [("1", True), ("1.0", True), ('"1"', False), ("2", False), ("null", False),
                                            ("{}", False)])
def test_a_cancel_closes_exactly_its_request(cancelled, hit):
    talk = Talk()
    talk.host(call(1))
    talk.host('{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}' % cancelled)
    assert ("node.finished tool:t cancelled" in talk.shape()) == hit
    note = [each for each in talk.session.events if each.get("node") == "mcp:notifications/cancelled"][0]
    assert note.get("related") == ("mcp_1" if hit else None)
    talk.server(answer(1))
    late = [each for each in talk.session.events if each.get("late")]
    assert len(late) == (1 if hit else 0)
    assert talk.end()[-1]["unanswered"] == 0


def test_a_cancel_without_params_harms_nothing():
    talk = Talk()
    talk.host(call(1))
    for params in ("", ',"params":[]', ',"params":{}', ',"params":5'):
        talk.host('{"jsonrpc":"2.0","method":"notifications/cancelled"%s}' % params)
    talk.server(answer(1))
    assert "node.finished tool:t ok" in talk.shape()


@pytest.mark.parametrize("token", ["1", '"1"', '"a"', "9007199254740993"])
def test_progress_names_its_call(token):
    talk = Talk()
    talk.host(request(1, "tools/call", '{"name":"t","_meta":{"progressToken":%s}}' % token))
    for other in ("1", '"1"', '"a"', "9007199254740993"):
        talk.server('{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s}}' % other)
    notes = [each for each in talk.session.events if each["type"] == "node.started"
             and each["node"] == "mcp:notifications/progress"]
    assert [note.get("related") for note in notes] == ["mcp_1" if other == token else None
                                                       for other in ("1", '"1"', '"a"', "9007199254740993")]


def test_counts_of_the_protocol_node():
    talk = Talk()
    talk.host(request(0, "initialize"))
    talk.host('{"jsonrpc":"2.0","method":"notifications/initialized"}')
    talk.host(request(1, "nope"))
    talk.host(call(2))
    talk.server("noise")
    talk.server(answer(0))
    talk.server('{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"m"}}')
    talk.server('{"jsonrpc":"2.0","id":2,"error":{"code":-1,"message":"m"}}')
    events = talk.end()
    [group] = [each for each in events if each["type"] == "node.finished" and each["node"] == "mcp:protocol"]
    assert group["output"] == {"calls": 3, "errors": 1, "stdoutNoise": 1} and group["status"] == "ok"
    assert [each.get("node") for each in events[-3:]] == ["mcp:protocol", "mcp:session", None]


def test_a_failed_server_exit_does_not_count_as_a_protocol_error():
    talk = Talk()
    talk.host(request(0, "initialize"))
    events = talk.end(2, ("McpServerExitedEarly", "the MCP server exited with code 2 before answering anything"))
    [group] = [each for each in events if each["type"] == "node.finished" and each["node"] == "mcp:protocol"]
    assert group["output"]["errors"] == 0
    assert events[-1]["status"] == "error" and events[-1]["exitCode"] == 2
    names = {each["node"]: each["error"]["name"] for each in events if each["type"] == "node.error"}
    assert names == {"mcp:initialize": "McpServerExited", "mcp:session": "McpServerExitedEarly"}


def test_nothing_follows_the_end():
    talk = Talk()
    talk.host(call(1))
    count = len(talk.end())
    talk.server(answer(1))
    talk.host(call(2))
    talk.session.end(talk.now, "again", 1, None)
    assert len(talk.session.events) == count


def test_noise_of_the_server_is_recorded_up_to_a_bound_and_of_the_client_only_counted():
    talk = Talk()
    for n in range(40):
        talk.server("noise %d" % n)
        talk.host("junk")
    assert (talk.session.noise, talk.session.client_noise) == (40, 40)
    assert len([each for each in talk.session.events if each.get("node") == "mcp:stdout-noise"]) == 3 * 25
    assert not talk.session.answered


@pytest.mark.parametrize("text, counts", [("noise", False), ('{"level":30}', False), ('{"method":"GET","status":200}',
                                                                                      False),
                                          ("", False), ('{"jsonrpc":"2.0","method":"n"}', True), (answer(9), True),
                                          ("[" + answer(1) + "]", True), ("[1]", False)])
def test_what_counts_as_an_answer_of_the_server(text, counts):
    talk = Talk()
    talk.server(text)
    assert talk.session.answered == counts


def test_a_batch_closes_calls_wherever_they_came_from():
    talk = Talk()
    talk.host("[%s,%s]" % (call(1, "a"), call(2, "b")))
    talk.host(call(3, "c"))
    talk.server("[%s,%s]" % (answer(3), answer(1)))
    talk.server(answer(2))
    ends = [(each["node"], each.get("batched")) for each in talk.session.events if each["type"] == "node.finished"]
    assert ends == [("tool:c", True), ("tool:a", True), ("tool:b", True)]
    passage = talk.server("[]")
    assert passage.instance is None and passage.point is None


ERAS = [
    ([request(1, "initialize")], [answer(1, '{"protocolVersion":"2025-11-25"}')], False),
    ([request(1, "server/discover")], [answer(1, '{"supportedVersions":["2026-07-28"]}')], True),
    ([request(1, "server/discover")], ['{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"m"}}'], False),
    ([request(1, "initialize")], [answer(1, "{}")], False), ([], [answer(1, '{"protocolVersion":"2026-07-28"}')],
                                                             False),
]


@pytest.mark.parametrize("asked, answered, modern", ERAS)
def test_the_era_is_learned_from_the_handshake(asked, answered, modern):
    talk = Talk()
    for text in asked:
        talk.host(text)
    for text in answered:
        talk.server(text)
    passage = talk.host(call(9))
    assert talk.session.is_modern(passage.instance) == modern


def tools(*names, cursor=None):
    result = {"tools": [{"name": name, "inputSchema": {"type": "object", "title": name}} for name in names]}
    return json.dumps(dict(result, nextCursor=cursor) if cursor else result)


def test_schemas_accumulate_over_pages_and_are_forgotten_when_the_list_changes():
    talk = Talk()
    talk.host(request(1, "tools/list"))
    talk.server(answer(1, tools("a", cursor="2")))
    talk.host(request(2, "tools/list", '{"cursor":"2"}'))
    talk.server(answer(2, tools("b")))
    assert sorted(talk.session.schemas) == ["a", "b"]
    talk.server('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
    assert talk.session.schemas == {}
    talk.host(request(3, "tools/list"))
    talk.server(answer(3, tools("c")))
    talk.host(request(4, "tools/list"))
    talk.server(answer(4, tools("d")))
    assert sorted(talk.session.schemas) == ["d"]


def test_hostile_lists_of_tools():
    talk = Talk()
    for result in ('{"tools":5}', '{"tools":[1,null,{"name":5},{"name":"x","inputSchema":7}]}', "[]", "null",
                   json.dumps({"tools": [{"name": str(n)} for n in range(5000)]})):
        talk.host(request(1, "tools/list"))
        talk.server(answer(1, result))
    assert len(talk.session.schemas) <= 1000


def test_pending_requests_are_bounded_and_the_oldest_is_closed():
    talk = Talk()
    for n in range(10001):
        talk.host(call(n))
    closed = [each for each in talk.session.events if each["type"] == "node.finished"]
    assert [(each["instance"], each["status"]) for each in closed] == [("mcp_1", "unanswered")]


@pytest.mark.parametrize("hide, absent", [(["inputs"], "secret-in"), (["tool-args"], "secret-in"), (["outputs"],
                                                                                                    "secret-out"),
                                          (["tool-results"], "secret-out")])
def test_hidden_values_are_absent_and_named(hide, absent):
    talk = Talk(hide=hide)
    talk.host(request(1, "tools/call", '{"name":"t","arguments":{"a":"secret-in"}}'))
    talk.server(answer(1, '{"content":[{"type":"text","text":"secret-out"}],"isError":true}'))
    talk.server("noise with secret-out") if hide == ["outputs"] else None
    talk.session.note_stderr("stderr with secret-out", talk.now) if hide == ["outputs"] else None
    text = repr(talk.end())
    assert absent not in text and "hidden" in text


def test_tool_switches_do_not_hide_other_nodes():
    talk = Talk(hide=["tool-args", "tool-results"])
    talk.host(request(1, "resources/read", '{"uri":"mem://a"}'))
    talk.server(answer(1, '{"contents":[{"text":"shown"}]}'))
    assert "shown" in repr(talk.session.events)


CLOCKS = [(1.23456, 1234.56), (0.000005, 0.01), (0.000004, 0.0), (0, 0.0)]


@pytest.mark.parametrize("seconds, shown", CLOCKS)
def test_durations_have_two_decimals(seconds, shown):
    talk = Talk()
    start = talk.session.observe(C2S, call(1).encode(), 0.0)
    talk.session.pass_on(start, 0.0)
    end = talk.session.observe(S2C, answer(1).encode(), seconds)
    talk.session.pass_on(end, seconds)
    assert talk.session.events[-1]["durationMs"] == pytest.approx(shown, abs=0.0051)


FRAGMENTS = st.sampled_from([call(1), call(2, "boom"), answer(1), answer(2), request(3, "ping"), answer(3), "noise", "",
                             request('"x"', "sampling/createMessage"), answer('"x"'), "[" + call(1) + "]",
                             "[" + answer(1) + "]",
                             '{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}',
                             '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}',
                             '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1}}'])


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from([C2S, S2C]), FRAGMENTS), max_size=25))
def test_whatever_is_said_the_record_is_well_formed(said):
    """Each instance starts once and finishes once, after its start; sequence numbers have no gap."""
    talk = Talk()
    for direction, text in said:
        talk.say(direction, text)
    events = talk.end()
    assert [each["seq"] for each in events] == list(range(1, len(events) + 1))
    started, finished = set(), set()
    for event in events:
        if event["type"] == "node.started":
            assert event["instance"] not in started
            started.add(event["instance"])
        elif event["type"] in ("node.finished", "node.error", "node.output"):
            assert event["instance"] in started
            if event["type"] == "node.finished":
                assert event["instance"] not in finished
                finished.add(event["instance"])
    assert started == finished and events[-1]["type"] == "run.finished"


@given(st.lists(st.binary(max_size=80), max_size=8))
def test_no_bytes_make_the_observer_raise(frames):
    talk = Talk()
    for frame in frames:
        mcp_relay.trace_line(talk.say(C2S, frame))
        mcp_relay.trace_line(talk.say(S2C, frame))
