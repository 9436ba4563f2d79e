"""Gates: which frame is held, in what order, and what a release makes of it. Pure values, time is injected."""

import json

import pytest

import mcp_relay
from mcp_relay import Hold, fits, hold_reason

C2S, S2C = mcp_relay.CLIENT_TO_SERVER, mcp_relay.SERVER_TO_CLIENT
CALL = b'{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{"name":"add","arguments":{"a":1.50}}}'
OK = b'{"jsonrpc":"2.0","id":9007199254740993,"result":{"content":[]}}'
BAD = b'{"jsonrpc":"2.0","id":9007199254740993,"result":{"content":[],"isError":true}}'
ERROR = b'{"jsonrpc":"2.0","id":9007199254740993,"error":{"code":-1,"message":"m"}}'
NOTE = b'{"jsonrpc":"2.0","method":"notifications/n"}'


def passages(request=CALL, answer=None, direction=C2S):
    """The Passage of a request, or of its answer."""
    session = mcp_relay.Session("label", "cmd", [], 0.0, 0.0)
    passage = session.observe(direction, request, 1.0)
    if answer is None:
        return passage
    session.pass_on(passage, 1.0)
    return session.observe(mcp_relay.OPPOSITE[direction], answer, 2.0)


MATCH = [  # breakpoint, does it match add (tool) at: before, after, error
    ({}, True, False, False), ({"kind": "tool"}, True, False, False), ({"name": "add"}, True, False, False),
    ({"kind": "tool", "name": "add"}, True, False, False), ({"kind": "llm", "name": "add"}, False, False, False),
    ({"point": "after"}, False, True, False), ({"point": "error"}, False, False, True),
    ({"kind": "tool", "point": "error"}, False, False, True), ({"name": "tool:add"}, False, False, False),
    ({"name": "Add"}, False, False, False), ({"kind": "tool", "name": "add", "point": "before"}, True, False, False)]


@pytest.mark.parametrize("breakpoint_, before, after, error", MATCH)
def test_a_breakpoint_matches_exactly(breakpoint_, before, after, error):
    assert [fits(breakpoint_, "tool", "add", point) for point in ("before", "after", "error")] == [before, after, error]


REASONS = [  # frame, answer, breakpoints, mode, reason
    (CALL, None, [], "run", None), (CALL, None, [{}], "run", "breakpoint"), (CALL, None, [{"point": "error"}], "run",
                                                                             None),
    (CALL, None, [], "step", "step"), (CALL, OK, [], "step", None), (CALL, OK, [{"point": "after"}], "step",
                                                                     "breakpoint"),
    (CALL, OK, [{}], "run", None), (CALL, OK, [{"point": "error"}], "run", None),
    (CALL, BAD, [{"point": "error"}], "run", "error"), (CALL, ERROR, [{"point": "error"}], "run", "error"),
    (CALL, BAD, [], "run", None), (CALL, BAD, [{"point": "after"}], "run", None),
    (CALL, ERROR, [{"kind": "tool", "point": "error"}], "run", "breakpoint"), (NOTE, None, [{}], "run", "breakpoint"),
    (NOTE, None, [], "step", "step"), (NOTE, None, [{"name": "notifications/n"}], "run", "breakpoint"),
    (b"noise", None, [{}], "step", None), (b"[%s]" % CALL, None, [{}], "step", None), (b"", None, [{}], "step", None),
    (OK, None, [{}, {"point": "after"}], "step", None)]


@pytest.mark.parametrize("request_, answer, breakpoints, mode, reason", REASONS)
def test_why_a_frame_is_held(request_, answer, breakpoints, mode, reason):
    assert hold_reason(passages(request_, answer), breakpoints, mode, None) == reason


def test_step_mode_holds_errors():
    assert hold_reason(passages(CALL, BAD), [], "step", None) in ("error", "step")


def test_a_loop_holds_whatever_is_armed():
    assert hold_reason(passages(), [], "run", {"kind": "repeat"}) == "loop"


@pytest.mark.parametrize("frame", [
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"evil","name":"add"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","name":"evil"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"evil"},"params":{"name":"x"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"},"params":{"name":"evil"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"\\u0065vil","name":"x"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call","params":{"name":"evil"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","method":"ping","params":{"name":"evil"}}'])
def test_doubled_keys_cannot_dodge_a_breakpoint(frame):
    assert hold_reason(passages(frame), [{"name": "evil", "point": "before"}], "run", None) == "breakpoint"
    assert hold_reason(passages(frame), [{"name": "other", "point": "before"}], "run", None) is None


def hold_of(request=CALL, answer=None, action=None, value=None):
    hold = Hold("h1", passages(request, answer), "breakpoint", None, 5.0)
    hold.action, hold.value = action, value
    return hold


def test_what_a_hold_says():
    told = hold_of().describe(1_700_000_000_000)
    assert told == {"hold": "h1", "node": "tool:add", "kind": "tool", "name": "add", "instance": "mcp_1",
                    "point": "before",
                    "direction": C2S, "method": "tools/call", "id": "9007199254740993", "since": 1_700_000_000_000,
                    "reason": "breakpoint", "editable": True}
    assert hold_of().title() == "tools/call #9007199254740993"
    assert hold_of(NOTE).title() == "notifications/n (notification)"


EDITABLE = [(CALL, None, C2S, True), (CALL, OK, C2S, True), (CALL, None, S2C, False), (NOTE, None, C2S, False),
            (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', None, C2S, False),
            (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}', None, C2S, True),
            (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":[]}}', None, C2S, False)]


@pytest.mark.parametrize("request_, answer, direction, editable", EDITABLE)
def test_what_can_be_edited(request_, answer, direction, editable):
    assert Hold("h", passages(request_, answer, direction), "step", None, 0.0).editable == editable


SCHEMA = {"type": "object", "required": ["text"], "additionalProperties": False, "properties": {
    "text": {"type": "string", "minLength": 2, "maxLength": 5}, "times": {"type": "integer", "minimum": 1,
                                                                          "maximum": 9},
    "how": {"enum": ["a", "b"]}, "list": {"type": "array", "items": {"type": "number"}, "minItems": 1},
    "deep": {"type": "object", "properties": {"x": {"type": ["string", "null"]}}, "required": ["x"]},
    "free": {"$ref": "#/x"}, "odd": 7}}

EDITS = [  # arguments, the field named in the refusal or None
    ({"text": "ab"}, None), ({"text": "ab", "times": 3, "how": "a", "list": [1, 2.5], "deep": {"x": None}}, None),
    ({"text": "ab", "times": 3.0}, None), ({"text": "ab", "free": [1], "odd": {}}, None),
    ({}, "text"), ({"text": 5}, "text"), ({"text": "a"}, "text"), ({"text": "abcdef"}, "text"), ({"text": None},
                                                                                                 "text"),
    ({"text": "ab", "times": 0}, "times"), ({"text": "ab", "times": 10}, "times"), ({"text": "ab", "times": "3"},
                                                                                    "times"),
    ({"text": "ab", "times": True}, "times"), ({"text": "ab", "times": 1.5}, "times"), ({"text": "ab", "how": "c"},
                                                                                        "how"),
    ({"text": "ab", "list": []}, "list"), ({"text": "ab", "list": [1, "hush"]}, "list[1]"),
    ({"text": "ab", "deep": {}}, "deep.x"), ({"text": "ab", "deep": {"x": 1}}, "deep.x"), ({"text": "ab", "hush": 1},
                                                                                           "hush")]


@pytest.mark.parametrize("arguments, field", EDITS)
def test_edits_are_checked_against_the_schema(arguments, field):
    refusal = hold_of().refusal("continue", None, json.dumps(arguments).encode(), {"add": SCHEMA})
    if field is None:
        assert refusal is None
    else:
        code, sentence = refusal
        assert code == "schema" and '"%s"' % field in sentence
        for value in ("abcdef", "hush") if field not in ("hush",) else ():
            assert value not in sentence  # a refusal never quotes a value


def test_the_refusals_of_the_specification_word_by_word():
    problem = mcp_relay.schema_problem
    assert problem({"times": 0}, {"properties": {"times": {"minimum": 1}}}) == 'field "times" must be at least 1'
    assert problem({"text": 5}, {"properties": {"text": {"type": "string"}}}) == \
        'field "text" must be string, got integer'
    assert problem({"secret": 1}, {"additionalProperties": False}) == 'field "secret" is not a parameter of this tool'


REFUSED = [
    (CALL, None, "explode", None, None, "shape"), (CALL, None, "inject", b"{", None, "shape"),
    (CALL, None, "inject", b"NaN", None, "shape"), (CALL, None, "inject", b"[" * 100000, None, "shape"),
    (CALL, None, "retry", None, b"{}", "shape"), (CALL, None, "inject", None, b"{}", "shape"), (CALL, OK, "continue",
                                                                                                None, b"{}", "shape"),
    (CALL, None, "continue", None, b"[]", "shape"), (CALL, None, "continue", None, b"{", "shape"),
    (NOTE, None, "continue", None, b"{}", "unsupported"),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', None, "continue", None, b"{}", "unsupported")]


@pytest.mark.parametrize("request_, answer, action, value, arguments, code", REFUSED)
def test_what_is_refused(request_, answer, action, value, arguments, code):
    refusal = hold_of(request_, answer).refusal(action, value, arguments, {})
    assert refusal[0] == code and len(refusal[1]) < 200


@pytest.mark.parametrize("request_, answer, action, arguments", [
    (CALL, None, "continue", b'{"b":1}'), (CALL, OK, "retry", b'{"b":1}'), (CALL, BAD, "retry", b"{}"), (CALL, None,
                                                                                                         "abort",
                                                                                                         None)])
def test_what_is_accepted_when_no_schema_is_known(request_, answer, action, arguments):
    assert hold_of(request_, answer).refusal(action, None, arguments, {}) is None


@pytest.mark.parametrize("schema", [7, [], {"type": 5}, {"type": [7]}, {"properties": 5}, {"required": "x"},
                                    {"required": [5]},
                                    {"enum": 5}, {"items": 5}, {"minimum": "x"}, {"properties": {"b": []}}, True])
def test_hostile_schemas_never_raise(schema):
    mcp_relay.schema_problem({"b": [1, "x", {"c": None}], "s": "t", "n": 1}, schema)


def test_a_deep_schema_is_walked_only_so_far():
    schema, value = {"type": "string"}, 7
    for _ in range(2000):
        schema, value = {"type": "object", "properties": {"a": schema}}, {"a": value}
    assert mcp_relay.schema_problem(value, schema) is None


@pytest.mark.parametrize("value, expected", [
    (b'"x"', {"result": {"content": [{"type": "text", "text": "x"}]}}),
    (b'{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"m"}}', {"error": {"code": -32000, "message": "m"}}),
    (b'{"jsonrpc":"2.0",\n"result":{}}', {"result": {}})])
@pytest.mark.parametrize("answer", [None, OK])
def test_replies_carry_the_raw_id(value, expected, answer):
    reply = mcp_relay.reply_to(hold_of(CALL, answer, "inject", value), False)
    assert json.loads(reply) == dict(expected, jsonrpc="2.0", id=9007199254740993) and b"\n" not in reply


def test_an_abort():
    reply = json.loads(mcp_relay.reply_to(hold_of(CALL, None, "abort"), False))
    assert reply["id"] == 9007199254740993
    assert reply["error"]["code"] == -32099 and "tools/call" in reply["error"]["message"]


# Lifting


LIFTS = [  # method, params, value text, result
    ("tools/call", {}, b'"s"', {"content": [{"type": "text", "text": "s"}]}), ("tools/call", {}, None, {"content": []}),
    ("tools/call", {}, b"null", {"content": [{"type": "text", "text": "null"}]}),
    ("tools/call", {}, b"1.50", {"content": [{"type": "text", "text": "1.50"}]}),
    ("tools/call", {}, b"[1]", {"content": [{"type": "text", "text": "[1]"}]}),
    ("tools/call", {}, b'{"a":1}', {"content": [{"type": "text", "text": '{"a":1}'}], "structuredContent": {"a": 1}}),
    ("tools/call", {}, b'{"content":[]}', {"content": []}),
    ("tools/call", {}, b'{"structuredContent":5}', {"structuredContent": 5}),
    ("tools/call", {}, b'{"content":"x"}', {"content": [{"type": "text", "text": '{"content":"x"}'}],
                                            "structuredContent": {"content": "x"}}),
    ("resources/read", {"uri": "u"}, b'"s"', {"contents": [{"uri": "u", "text": "s"}]}),
    ("resources/read", {"uri": "u"}, b"7", {"contents": [{"uri": "u", "mimeType": "application/json", "text": "7"}]}),
    ("resources/read", {}, b'{"contents":[]}', {"contents": []}),
    ("prompts/get", {}, b'"s"', {"messages": [{"role": "user", "content": {"type": "text", "text": "s"}}]}),
    ("prompts/get", {}, b"[1]", {"messages": [{"role": "user", "content": {"type": "text", "text": "[1]"}}]}),
    ("prompts/get", {}, b'{"messages":[]}', {"messages": []}),
    ("sampling/createMessage", {}, b'{"content":{}}', {"content": {}}),
    ("ping", {}, b'"s"', "s"), ("ping", {}, None, None), ("unknown/method", {}, b'{"a":[1]}', {"a": [1]})]


@pytest.mark.parametrize("method, params, raw, expected", LIFTS)
def test_lifting(method, params, raw, expected):
    assert json.loads(mcp_relay.lift(method, raw, params, False)) == expected


def test_lifting_without_an_address_invents_one_and_sampling_has_its_fields():
    assert json.loads(mcp_relay.lift("resources/read", b'"s"', {}, False))["contents"][0]["uri"]
    message = json.loads(mcp_relay.lift("sampling/createMessage", b'"s"', {}, False))
    assert message["role"] == "assistant" and message["content"] == {"type": "text", "text": "s"}
    assert message["stopReason"] == "endTurn" and message["model"]


@pytest.mark.parametrize("method, params, raw, expected", LIFTS)
def test_lifting_for_2026(method, params, raw, expected):
    lifted = json.loads(mcp_relay.lift(method, raw, params, True))
    if type(expected) is not dict:
        assert lifted == expected
        return
    stamps = {"resultType": "complete"}
    if method == "resources/read":
        stamps.update(ttlMs=0, cacheScope="private")
    assert lifted == dict(expected, **stamps)


def test_given_stamps_win_and_digits_stay():
    assert mcp_relay.lift("x", b'{"resultType":"task","n":9007199254740993,"m":1.50}', {}, True) == \
        b'{"resultType":"task","n":9007199254740993,"m":1.50}'
    assert b"1e400" in mcp_relay.lift("tools/call", b'{"structuredContent":{"n":1e400}}', {}, True)
    assert b"\n" not in mcp_relay.lift("tools/call", b'{\n"a":\r\n"b"\n}', {}, True)
