"""What a frame says: classification, raw id text, splices into the original text, failures, quoting."""

import json

import pytest
from hypothesis import given, strategies as st

import mcp_relay
from mcp_relay import classify

KINDS = [
    (b'{"jsonrpc":"2.0","id":1,"method":"ping"}', "request"),
    (b'{"jsonrpc":"2.0","id":"a","method":"ping"}', "request"),
    (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', "request"),
    (b'{"jsonrpc":"2.0","id":0,"method":""}', "request"),
    (b' \t{"jsonrpc":"2.0","id":1,"method":"ping"} \r', "request"),
    (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"ping"}', "request"),
    (b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"ping"}', "request"),
    (b'{"jsonrpc":"2.0","id":1,"method":"x","params":' + b"[" * 5000 + b"]" * 5000 + b"}", "request"),
    (b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"\xff"}}', "request"),
    (b'{"jsonrpc":"2.0","method":"n"}', "notification"),
    (b'{"jsonrpc":"2.0","id":null,"method":"n"}', "notification"),
    (b'{"jsonrpc":"2.0","id":true,"method":"n"}', "notification"),
    (b'{"jsonrpc":"2.0","id":{},"method":"n"}', "notification"),
    (b'{"jsonrpc":"2.0","id":1,"result":null}', "response"),
    (b'{"jsonrpc":"2.0","id":"x","result":{}}', "response"),
    (b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}', "response"),
    (b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}', "response"),
    (b'{"jsonrpc":"2.0","error":{"code":1,"message":"m"}}', "response"),
    (b'{"jsonrpc":"2.0","id":1,"result":NaN}', "response"),
    (b'{"jsonrpc":"2.0","id":1,"method":5,"result":1}', "response"),
    (b'[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","method":"b"}]', "batch"),
    (b'[{"jsonrpc":"2.0","id":1,"result":1},7]', "batch"),
    (b"[1]", "noise"), (b"42", "noise"), (b'"x"', "noise"), (b"null", "noise"), (b"{}", "noise"), (b"{", "noise"),
    (b"debug: hi", "noise"), (b'{"level":30}', "noise"), (b'{"method":"GET","status":200}', "noise"),
    (b'{"id":1,"result":{}}', "noise"), (b'{"jsonrpc":"1.0","id":1,"method":"x"}', "noise"),
    (b'{"jsonrpc":2.0,"id":1,"method":"x"}', "noise"), (b'{"jsonrpc":"2.0"}', "noise"),
    (b'{"jsonrpc":"2.0","id":1}', "noise"), (b'{"jsonrpc":"2.0","id":null,"result":1}', "noise"),
    (b'{"jsonrpc":"2.0","result":1}', "noise"), (b'[db] {"jsonrpc":"2.0","id":1,"result":1}', "noise"),
    (b'{"jsonrpc":"2.0","id":1,"result":1}{"jsonrpc":"2.0","id":2,"result":1}', "noise"),
    (b"\x80\x81", "noise"), (b"[" * 100000, "noise"), (b'{"a":' * 100000, "noise"),
    (b"", "blank"), (b"  \t\r", "blank"), (b"\xef\xbb\xbf", "blank"),
]


@pytest.mark.parametrize("frame, kind", KINDS, ids=[ascii(frame[:40]) + str(len(frame)) for frame, _ in KINDS])
def test_classification(frame, kind):
    message = classify(frame)
    assert message.kind == kind and message.frame == frame


def test_members_of_a_batch_are_classified_one_by_one():
    batch = classify(b'[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","method":"b"},3,'
                     b'{"jsonrpc":"2.0","id":"x","result":1}]')
    assert [part.kind for part in batch.parts] == ["request", "notification", "noise", "response"]


@given(st.binary(max_size=300))
def test_no_bytes_make_it_raise(data):
    assert classify(data).kind in ("request", "response", "notification", "batch", "noise", "blank")


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
KEYS = st.text(max_size=5) | st.sampled_from(["id", "method", "jsonrpc", "result", "error", "params"])
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
                    max_leaves=15)


@given(JSON)
def test_no_json_makes_it_raise(value):
    for text in (json.dumps(value), json.dumps({"jsonrpc": "2.0", "id": value, "method": "m", "params": value})):
        message = classify(text.encode())
        message.params()
        mcp_relay.id_text(message)


def keys(*texts):
    return [classify(b'{"jsonrpc":"2.0","id":%s,"method":"m"}' % text).key for text in texts]


@pytest.mark.parametrize("one, other", [(b"1", b'"1"'), (b"9007199254740992", b"9007199254740993"), (b"1", b"1.5"),
                                        (b'"a"', b'"A"'), (b"1", b"-1"), (b"0", b'""'),
                                        (b"9" * 5000, b"9" * 4999 + b"8")])
def test_different_ids_have_different_keys(one, other):
    assert len(set(keys(one, other))) == 2


@pytest.mark.parametrize("forms", [(b"1", b"1.0", b"1e0", b"10e-1"), (b'"A"', b'"\\u0041"'), (b"100", b"1e2", b"1E+2"),
                                   (b"9007199254740993", b"9007199254740993.0"), (b"0", b"-0", b"0.0")])
def test_one_id_in_many_forms_has_one_key(forms):
    assert len(set(keys(*forms))) == 1


@pytest.mark.parametrize("text", [b"7", b'"abc"', b"9007199254740993", b"1.0", b'"\\u0041\\""', b"-5", b"1e400",
                                  b'"]}"'])
def test_the_raw_text_of_an_id(text):
    for frame in (b'{"jsonrpc":"2.0","id":%s,"method":"m"}', b'{"id":1,"jsonrpc":"2.0","id":%s}',
                  b'{ "params":{"id":"no","x":[{"id":2}]},"id" : %s , "z":"\\"id\\":3"}'):
        assert mcp_relay.raw_id(frame % text) == text
    assert mcp_relay.raw_id(b'{"jsonrpc":"2.0","error":{"id":5}}') == b"null"


@given(st.dictionaries(st.text(max_size=6), JSON, max_size=5))
def test_member_spans_are_the_text_of_the_values(value):
    for text in (json.dumps(value, allow_nan=True), json.dumps(value, ensure_ascii=False, indent=1)):
        frame = text.encode("utf-8", "surrogatepass")
        found = {key: frame[start:end] for key, start, end in mcp_relay.members(frame)}
        assert len(found) == len(value)
        for key, part in found.items():
            if key in value:
                assert json.dumps(json.loads(part.decode("utf-8", "surrogatepass"))) == json.dumps(value[key])


FRAME = (b'{ "jsonrpc":"2.0", "id":9007199254740993,"params":{"x":1e400, '
         b'"arguments" : {"a":1.50,"b":[1,{"arguments":0}]} ,"name":"t"},"method":"tools/call" }\r')


def test_new_arguments_are_spliced_into_the_original_text():
    changed = mcp_relay.with_arguments(FRAME, b'{"a":2}')
    assert changed == FRAME.replace(b'{"a":1.50,"b":[1,{"arguments":0}]}', b'{"a":2}')


def test_missing_arguments_are_put_in_and_of_doubled_ones_the_last_is_replaced():
    put_in = mcp_relay.with_arguments(b'{"id":1,"params":{"name":"t"},"method":"m"}', b"{}")
    assert json.loads(put_in) == {"id": 1, "params": {"name": "t", "arguments": {}}, "method": "m"}
    assert json.loads(mcp_relay.with_arguments(b'{"params":{}}', b"{}")) == {"params": {"arguments": {}}}
    doubled = b'{"params":{"arguments":{"a":1},"arguments":{"a":2}}}'
    assert mcp_relay.with_arguments(doubled, b"7") == b'{"params":{"arguments":{"a":1},"arguments":7}}'
    for frame in (b'{"id":1}', b'{"params":[1]}', b'{"params":"x"}', b"[]", b"junk"):
        assert mcp_relay.with_arguments(frame, b"{}") is None


def test_an_id_is_replaced_or_put_in_by_text():
    assert mcp_relay.with_id(b'{"jsonrpc":"2.0","id" : 5,"result":{"id":1}}', b"1.0") == \
        b'{"jsonrpc":"2.0","id" : 1.0,"result":{"id":1}}'
    assert json.loads(mcp_relay.with_id(b'{"result":1}', b'"x"')) == {"id": "x", "result": 1}
    assert json.loads(mcp_relay.with_id(b"{ }", b"3")) == {"id": 3}


def test_our_own_frames():
    assert json.loads(mcp_relay.result_frame(b"7", b'{"ok":1}')) == {"jsonrpc": "2.0", "id": 7, "result": {"ok": 1}}
    error = json.loads(mcp_relay.error_frame(b'"x"', mcp_relay.ABORTED, "no"))
    assert error == {"jsonrpc": "2.0", "id": "x", "error": {"code": -32099, "message": "no"}}
    assert mcp_relay.ABORTED not in (-32000, -32001, -32042)
    assert mcp_relay.encode({"\ud800": "é"}).isascii()


FAILURES = [
    (b'{"code":-32603,"message":"boom"}', ("JsonRpcError(-32603)", "boom")),
    (b'{"code":"x","message":[]}', ("JsonRpcError(0)", "unknown error")), (b"{}", ("JsonRpcError(0)", "unknown error")),
]


@pytest.mark.parametrize("error, expected", FAILURES)
def test_json_rpc_errors_are_failures(error, expected):
    assert mcp_relay.failure_of(classify(b'{"jsonrpc":"2.0","id":1,"error":%s}' % error)) == expected


@pytest.mark.parametrize("result, fails", [(b'{"isError":true,"content":[]}', True), (b'{"isError":false}', False),
                                           (b'{"isError":"true"}', False), (b'{"isError":1}', False), (b"null", False),
                                           (b'[{"isError":true}]', False), (b'{"x":{"isError":true}}', False)])
def test_is_error_counts_only_as_true_in_a_result_object(result, fails):
    failure = mcp_relay.failure_of(classify(b'{"jsonrpc":"2.0","id":1,"result":%s}' % result))
    assert (failure is not None) == fails and (not fails or failure[0] == "McpToolError")


def test_the_text_of_a_failed_result_is_quoted_up_to_500_characters():
    content = json.dumps([{"type": "text", "text": "x" * 5000}]).encode()
    frame = b'{"jsonrpc":"2.0","id":1,"result":{"isError":true,"content":%s}}' % content
    _, text = mcp_relay.failure_of(classify(frame))
    assert len(text) == 500


@pytest.mark.parametrize("code", list(range(0x20)) + [0x7f, 0x80, 0x9b, 0x61c, 0x200b, 0x200e, 0x200f, 0x2028, 0x2029,
                                                      0x202a,
                                                      0x202e, 0x2066, 0x2069, 0xfeff, 0xd800, 0xdfff])
def test_printable_escapes_what_acts_on_a_terminal(code):
    shown = mcp_relay.printable("a" + chr(code) + "b")
    assert chr(code) not in shown and shown.startswith("a\\") and shown.endswith("b")
    shown.encode("utf-8")


def test_printable_leaves_text_alone():
    assert mcp_relay.printable("é 漢字 😀 \\ \" '") == "é 漢字 😀 \\ \" '"


@given(st.binary(max_size=600), st.integers(1, 300))
def test_a_quote_is_bounded_and_on_one_line(data, limit):
    text, was_cut = mcp_relay.quote(data, limit)
    assert text.startswith('"') and text.endswith('"') and "\n" not in text
    assert was_cut == (len(data) > limit)
