"""Whatever arrives, every request gets one answer, notifications get none, and the next request is served."""

import json
import threading

import pytest

from plan_client import MODERN, reshape

PING = b'{"jsonrpc":"2.0","id":"next","method":"ping"}\n'
DEEP = b"[" * 5000 + b"]" * 5000


def errors(client):
    """Return (id, code) of every error so far."""
    return [(m.get("id"), m["error"]["code"]) for m in client.all(lambda m: isinstance(m, dict) and "error" in m)]


@pytest.mark.parametrize(
    "line, expected",
    [
        (b"", []),
        (b"   ", []),
        (b"\r", []),
        (b"42", [(None, -32600)]),
        (b'"x"', [(None, -32600)]),
        (b"null", [(None, -32600)]),
        (b"hello", [(None, -32700)]),
        (b'{"jsonrpc":"2.0","id":1', [(None, -32700)]),
        (b"\xff\xfe\x00", [(None, -32700)]),
        (b'{"jsonrpc":"2.0","id":5,"method":"ping","x":' + b"9" * 5000 + b"}", [(5, -32700)]),
        (b'{"jsonrpc":"2.0","id":5,"method":"ping","params":{"x":NaN}}', [(5, -32700)]),
        (b'{"jsonrpc":"2.0","id":5,"method":"ping","params":{"x":1e400}}', [(5, -32700)]),
        (b'{"jsonrpc":"2.0","id":5,"method":"ping","params":{"x":' + DEEP + b"}}", [(5, -32700)]),
        (b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}', [(None, -32600)]),
        (b'{"jsonrpc":"2.0","id":true,"method":"tools/list"}', [(None, -32600)]),
        (b'{"jsonrpc":"2.0","id":{"a":1},"method":"tools/list"}', [(None, -32600)]),
        (b'{"jsonrpc":"1.0","id":6,"method":"ping"}', [(6, -32600)]),
        (b'{"id":6,"method":"ping"}', [(6, -32600)]),
        (b'{"jsonrpc":"2.0","id":6}', [(6, -32600)]),
        (b'{"jsonrpc":"2.0","id":6,"method":5}', [(6, -32600)]),
        (b'{"jsonrpc":"2.0","id":6,"method":"ping","params":"x"}', [(6, -32602)]),
        (b'{"jsonrpc":"2.0","id":6,"method":"ping","params":[1]}', [(6, -32602)]),
        (b'{"jsonrpc":"2.0","id":6,"method":"nope"}', [(6, -32601)]),
        (b'{"jsonrpc":"2.0","id":6,"method":"tools/call"}', [(6, -32602)]),
        (b'{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":{}}}', [(6, -32602)]),
        (
            b'{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"graph_plan_list","arguments":"x"}}',
            [(6, -32602)],
        ),
        (b'{"jsonrpc":"2.0","id":6,"method":"initialize"}', [(6, -32602)]),
        (
            b'{"jsonrpc":"2.0","id":6,"method":"initialize","params":{"protocolVersion":1,"capabilities":{}}}',
            [(6, -32602)],
        ),
        (b'{"jsonrpc":"2.0","method":"notifications/whatever"}', []),
        (b'{"jsonrpc":"2.0","method":"notifications/initialized","params":[]}', []),
        (b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"graph_plan_list"}}', []),
        (b'{"jsonrpc":"2.0","id":99,"result":{}}', []),
        (b'{"jsonrpc":"2.0","id":99,"error":{}}', []),
        (b"[]", [(None, -32600)]),
        (b"[1]", [(None, -32600)]),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', [(None, -32600)]),
        (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":6,"method":"nope"}', [(6, -32601)]),
        (b'{"jsonrpc":"2.0","id":6,"method":"nope"}\r', [(6, -32601)]),
    ],
)
def test_odd_lines(served, line, expected):
    client = served.connect()
    client.send(line + b"\n" + PING)
    client.answer("next")
    client.send(b'{"jsonrpc":"2.0","id":"list","method":"tools/list"}\n')
    client.answer("list")
    assert client.finish() == 0
    assert errors(client) == expected
    assert len(client.messages) == 3 + len(expected)


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-1",
        "9007199254740993",
        "123456789012345678901234567890",
        '""',
        '"\\u00e9 \\ud83d\\ude42"',
        '"1"',
        '"' + "x" * 10000 + '"',
        "1.0",
    ],
)
def test_an_id_comes_back_as_it_was_sent(served, text):
    client = served.connect()
    for method in ("ping", "tools/list", "nope"):
        client.send(f'{{"jsonrpc":"2.0","id":{text},"method":"{method}"}}\n'.encode())
        client.wait(lambda: any(f'"id":{text},'.encode() in line for line in client.messages), f"an answer to {text}")
        with client.changed:
            client.messages.clear()


def test_an_id_in_use_is_refused_and_the_first_call_answered(served):
    gate = served.gate("gate")
    served.plan("slow", ("a", "user__gate", {}))
    client = served.connect()
    call = client.begin("plan_slow")
    gate.await_start()
    client.start("ping", id=call)
    assert client.answer(call)["error"]["code"] == -32600
    gate.let_pass()
    client.find(lambda m: m.get("id") == call and "result" in m, "the first call's result")


def test_a_batch_in_the_version_that_has_them(served):
    client = served.connect(version="2025-03-26")
    parts = [
        {"jsonrpc": "2.0", "id": 11, "method": "ping"},
        {"jsonrpc": "2.0", "method": "notifications/x"},
        {"jsonrpc": "2.0", "id": 12, "method": "tools/call", "params": {"name": "graph_plan_list", "arguments": {}}},
        {"jsonrpc": "2.0", "id": 13, "method": "nope"},
        7,
        {"jsonrpc": "2.0", "id": 14, "method": "initialize", "params": {}},
    ]
    client.send(parts)
    answers = client.find(lambda m: isinstance(m, list), "the array of answers")
    assert sorted(str(part.get("id")) for part in answers) == ["11", "12", "13", "14", "None"]
    client.send([{"jsonrpc": "2.0", "method": "notifications/x"}])
    client.send([])
    client.find(lambda m: isinstance(m, dict) and m.get("id") is None and "error" in m, "the answer to an empty array")
    assert client.request("ping")["result"] == {}
    assert len(client.all(lambda m: isinstance(m, list))) == 1


def test_surrogates_and_odd_characters_go_round(served):
    served.plan("p", reshape("a", "{{input}}"), output={"a": "{{a}}"}, input_schema={"type": "object"})
    client = served.connect()
    text = "tab\t \u2028 \u0085 \u0000 \U0001f642 é"
    assert client.call("plan_p", **{text: text})[0]["output"] == {"a": {text: text}}
    client.send(
        b'{"jsonrpc":"2.0","id":"s","method":"tools/call",'
        b'"params":{"name":"plan_p","arguments":{"\\ud800":"\\udfff"}}}\n'
    )
    body, is_error = client.outcome("s")
    assert body["output"] == {"a": {"\ufffd": "\ufffd"}} and not is_error
    for name in ("\ud800", "plan_\ud800", "graph_\ud800"):
        assert client.request("tools/call", {"name": name})["error"]["code"] == -32602
    body, is_error = client.call("graph_plan_new", identifier="\ud800")
    assert body["kind"] == "bad_argument" and is_error
    body, is_error = client.call("graph_plan_new", identifier="ok", description="\ud800")
    assert not is_error and client.call("graph_plan_show", target="ok")[1] is False
    assert client.finish() == 0


@pytest.mark.parametrize("name", ["plan_p", "graph_tools_test", "graph_plan_set"])
def test_deep_and_large_values_are_data(served, name):
    served.plan("p", reshape("a", 1), input_schema={"type": "object"})
    client = served.connect()
    deep = b"[" * 99 + b"]" * 99
    client.send(b'{"jsonrpc":"2.0","id":"d","method":"tools/call","params":{"name":"' + name.encode()
                + b'","arguments":{"value":' + deep + b"}}}\n")
    answer = client.answer("d")
    assert "error" in answer or answer["result"]["isError"] in (True, False)
    large = [0] * 100_000
    client.call(name, value=large)
    assert client.request("ping")["result"] == {}


def test_a_large_result_arrives_whole(served):
    served.plan("p", reshape("a", "{{input.text}}"), output={"a": "{{a}}"})
    client = served.connect()
    text = "é" * 3_000_000
    assert client.call("plan_p", text=text)[0]["output"]["a"] == text


def memory_kib(process):
    with open(f"/proc/{process.pid}/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def test_a_client_that_stops_reading_does_not_make_memory_grow(served):
    served.plan("p", reshape("a", "{{input.text}}"), output={"a": "{{a}}"})
    client = served.connect(hello=False, reading=False)
    text = "x" * 1_000_000
    line = json.dumps({"jsonrpc": "2.0", "id": "ID", "method": "tools/call",
                       "params": {"name": "plan_p", "arguments": {"text": text}}}).encode() + b"\n"
    done = threading.Event()

    def pour():
        for number in range(200):  # 200 MB of requests, and twice as much of answers
            client.send(line.replace(b'"ID"', str(number).encode()))
        done.set()

    threading.Thread(target=pour, daemon=True).start()
    # What is said on stderr stops when the calls in hand are done and nothing more is read.
    client.wait_for_error("plan_p ended")
    done.wait(3)  # a quick machine takes all of it, a slow one stops on the way: what counts is what is kept
    assert memory_kib(client.process) < 600 * 1024
    client.start_reading()
    assert done.wait(120)
    for number in (0, 99, 199):
        client.asked[json.dumps(number)] = "tools/call", client.version
        client.answer(number)
    assert client.finish() == 0


def test_more_requests_than_there_are_threads(served):
    served.plan("p", reshape("a", 1), output={"a": "{{a}}"})
    client = served.connect()
    calls = [client.begin("plan_p") for _ in range(600)]
    assert all(client.outcome(call)[0]["kind"] in ("ran", "refused") for call in calls)
    assert client.request("ping")["result"] == {}
    assert client.finish() == 0


def test_modern_requests_of_wrong_shapes(served):
    client = served.connect(version=MODERN)
    for params in ({"name": 5}, {"name": "graph_plan_list", "arguments": []}, {}):
        assert client.request("tools/call", params)["error"]["code"] == -32602
    client.send(b'{"jsonrpc":"2.0","id":50,"method":"tools/list","params":{"_meta":5}}\n')
    client.asked["50"] = "tools/list", "2025-11-25"
    assert "tools" in client.answer(50)["result"]  # no metadata of the modern era, so it is a request of the older one
