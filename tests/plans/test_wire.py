"""Messages out of bytes and into bytes: no peer's is an exception, none of ours offends a strict peer."""

import io
import json
import threading

import pytest

from graphlib_plans import wire


class Chunks:
    """A stream that delivers given chunks."""

    def __init__(self, *chunks):
        self.chunks = list(chunks)

    def read(self, size):
        return self.chunks.pop(0) if self.chunks else b""


def read(*chunks, **options):
    return list(wire.read_messages(Chunks(*chunks), **options))


REQUEST = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


@pytest.mark.parametrize("line, kind, method, identity, id_text", [
    (REQUEST, "request", "ping", ("number", "1"), b"1"),
    (b'{"jsonrpc":"2.0","id":"1","method":"x"}', "request", "x", ("string", "1"), b'"1"'),
    (b'{"jsonrpc":"2.0","id":9007199254740993,"result":{}}', "response", None, ("number", "9007199254740993"),
     b"9007199254740993"),
    (b'{"jsonrpc":"2.0","method":"notifications/x"}', "notification", "notifications/x", None, b"null"),
    (b'{"jsonrpc":"2.0","error":{"code":1,"message":"m"},"id":null}', "response", None, None, b"null"),
    (b"\xef\xbb\xbf" + REQUEST + b"\r", "request", "ping", ("number", "1"), b"1"),
])
def test_a_message_is_what_it_says(line, kind, method, identity, id_text):
    (message,) = read(line + b"\n")
    assert (message.kind, message.method, message.id, message.id_text) == (kind, method, identity, id_text)
    assert message.problem == "" and message.code == 0 and message.value["jsonrpc"] == "2.0"


@pytest.mark.parametrize("line, kind, code, id_text", [
    (b"not JSON", "noise", wire.PARSE_ERROR, b"null"),
    (b"\xff\xfe", "noise", wire.PARSE_ERROR, b"null"),
    (b"42", "noise", wire.INVALID_REQUEST, b"null"),
    (b'{"method":"GET","id":7}', "noise", wire.INVALID_REQUEST, b"7"),
    (b'{"jsonrpc":"2.0","id":5,"method":5}', "noise", wire.INVALID_REQUEST, b"5"),
    (b'{"jsonrpc":"2.0","id":{},"method":"x","x":NaN}', "notification", wire.PARSE_ERROR, b"null"),
    (b'{"jsonrpc":"2.0","id":3,"method":"x","params":{"n":NaN}}', "request", wire.PARSE_ERROR, b"3"),
    (b'{"jsonrpc":"2.0","id":3,"method":"x","n":' + b"1" * 5000 + b"}", "request", wire.PARSE_ERROR, b"3"),
    (b'{"jsonrpc":"2.0","id":3,"method":"x","params":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}", "request",
     wire.PARSE_ERROR, b"3"),
])
def test_what_cannot_be_used_says_why_and_how_to_answer(line, kind, code, id_text):
    (message, after) = read(line + b"\n" + REQUEST + b"\n")
    assert (message.kind, message.code, message.id_text) == (kind, code, id_text)
    assert message.problem and message.params == {}
    assert message.excerpt == (line[:200] if kind == "noise" else b"")
    assert after.kind == "request"


def test_params_are_always_an_object():
    lines = (b'{"jsonrpc":"2.0","id":1,"method":"x","params":[1]}\n'
             b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":1}}\n')
    assert [message.params for message in read(lines)] == [{}, {"a": 1}]


def test_a_batch_has_parts():
    (batch,) = read(b"[" + REQUEST + b',{"jsonrpc":"2.0","id":"q","result":{}},7]\n')
    assert batch.kind == "batch" and [part.kind for part in batch.parts] == ["request", "response", "noise"]
    assert [part.id_text for part in batch.parts] == [b"1", b'"q"', b"null"]
    assert [bool(part.problem) for part in batch.parts] == [False, False, True]


STREAM = REQUEST + b"\n\n  \r\nnoise \xe2\x80\xa8 noise\n" + REQUEST + b"\r\n"


@pytest.mark.parametrize("cut", range(len(STREAM)))
def test_cut_anywhere_it_reads_the_same(cut):
    assert [message.kind for message in read(STREAM[:cut] or STREAM, STREAM[cut:] if cut else b"")] == [
        "request", "noise", "request"]


@pytest.mark.parametrize("tail, kinds", [(REQUEST, ["request"]), (b'{"jsonrpc":"2.0","id":1,"me', []), (b"", [])])
def test_a_last_line_without_newline_counts_if_it_is_a_message(tail, kinds):
    assert [message.kind for message in read(REQUEST + b"\n" + tail)] == ["request", *kinds]


@pytest.mark.parametrize("size", [1, 7, 100, 65536])
def test_a_line_that_is_too_long_is_told_and_reading_goes_on(size):
    data = REQUEST + b"\n" + b"x" * 5000 + b"\n" + REQUEST + b"\n" + b"y" * 3000 + b"\n" + b"z" * 101
    chunks = [data[start:start + size] for start in range(0, len(data), size)]
    messages = read(*chunks, limit=100)
    assert [message.kind for message in messages] == ["request", "too long", "request", "too long", "too long"]
    assert "more than 100 bytes" in messages[1].problem and messages[1].code == wire.INVALID_REQUEST


def test_a_stream_that_fails_is_at_its_end():
    class Broken:
        def read(self, size):
            raise OSError("gone")

    assert list(wire.read_messages(Broken())) == []
    closed = io.BytesIO(REQUEST)
    closed.close()
    assert list(wire.read_messages(closed)) == []


def test_a_buffered_stream_is_read_as_it_comes():
    class Buffered(io.BytesIO):
        def read(self, size=-1):
            raise AssertionError("read would wait for a full buffer")

    assert [message.kind for message in wire.read_messages(Buffered(REQUEST + b"\n"))] == ["request"]


@pytest.mark.parametrize("value", [
    {"a": "ü 🙂 \u2028 \x00", "n": 12345678901234567890123, "f": 1.5},
    ["\\ud800", '"\\', None, True],
])
def test_what_is_encoded_reads_back(value):
    line = wire.encode(value)
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and line.isascii() and json.loads(line) == value


@pytest.mark.parametrize("value, sent", [
    ({"\ud800": "\udfff"}, {"\ufffd": "\ufffd"}),
    ("\ud83d\ude42 \ud83d", "🙂 \ufffd"),
    ("\\ud800 \ud800", "\\ud800 \ufffd"),
])
def test_a_lone_surrogate_never_reaches_a_peer(value, sent):
    assert json.loads(wire.encode(value)) == sent


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [-float("inf")]}])
def test_what_is_no_json_is_not_encoded(value):
    with pytest.raises(ValueError):
        wire.encode(value)


def test_the_messages_we_write():
    assert wire.request(1, "m", {"a": 1}) == {"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"a": 1}}
    assert wire.request(0, "m") == {"jsonrpc": "2.0", "id": 0, "method": "m"}
    assert wire.request(None, "m") == {"jsonrpc": "2.0", "method": "m"}
    assert json.loads(wire.result(b"9007199254740993", {})) == {"jsonrpc": "2.0", "id": 9007199254740993, "result": {}}
    assert json.loads(wire.error(b'"a"', -32600, "no")) == {
        "jsonrpc": "2.0", "id": "a", "error": {"code": -32600, "message": "no"}}


def test_lines_of_several_writers_stay_whole():
    class Slow(io.RawIOBase):
        """Takes a few bytes at a time, so that a writer without a lock would be interrupted."""

        def __init__(self):
            self.data = bytearray()

        def writable(self):
            return True

        def write(self, data):
            self.data += data[:7]
            return min(len(data), 7)

    stream = Slow()
    out = wire.Outgoing(stream)
    threads = [threading.Thread(target=lambda name=name: [out.send(wire.encode([name] * 20)) for _ in range(50)])
               for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    lines = bytes(stream.data).splitlines()
    assert len(lines) == 200 and all(len(set(json.loads(line))) == 1 for line in lines)
