"""The responder that answers for a server without tools: a pure function from frames to replies."""

import json

import pytest
from hypothesis import given, strategies as st

import mcp_relay

META = ('"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
        '"io.modelcontextprotocol/clientCapabilities":{}}')


@pytest.fixture
def masked():
    return mcp_relay.Masked("my-server", "the MCP server exited with code 2")


def ask(masked, method, params="{}", raw_id="1"):
    reply = masked.answer(('{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}' % (raw_id, method, params)).encode())
    assert b"\n" not in reply
    return json.loads(reply)


LEGACY = [("tools/list", {"tools": []}), ("resources/list", {"resources": []}), ("prompts/list", {"prompts": []}),
          ("resources/templates/list", {"resourceTemplates": []}), ("ping", {})]


@pytest.mark.parametrize("method, result", LEGACY)
def test_legacy_answers_carry_nothing_else(masked, method, result):
    assert ask(masked, method) == {"jsonrpc": "2.0", "id": 1, "result": result}


@pytest.mark.parametrize("method, result", LEGACY[:4])
def test_modern_answers_carry_the_stamps(masked, method, result):
    answer = ask(masked, method, "{%s}" % META)["result"]
    meta = answer.pop("_meta", {})
    assert answer == dict(result, resultType="complete", ttlMs=0, cacheScope="private")
    assert "my-server" in meta.get("io.modelcontextprotocol/serverInfo", {}).get("name", "my-server")


@pytest.mark.parametrize("method", ["tools/call", "server/discover", "logging/setLevel", "", "initialized",
                                    "tools/List"])
def test_everything_else_is_not_found(masked, method):
    assert ask(masked, method)["error"]["code"] == -32601


def test_discover_is_answered_only_in_its_era(masked):
    result = ask(masked, "server/discover", "{%s}" % META)["result"]
    assert result["supportedVersions"] == ["2026-07-28"] and result["capabilities"] == {}
    assert result["resultType"] == "complete" and "ttlMs" in result and "cacheScope" in result


@pytest.mark.parametrize("params, version", [('{"protocolVersion":"2025-06-18"}', "2025-06-18"), ("{}", None), ("[]",
                                                                                                                None),
                                             ('{"protocolVersion":7}', None)])
def test_initialize(masked, params, version):
    result = ask(masked, "initialize", params)["result"]
    assert isinstance(result["protocolVersion"], str) and version in (None, result["protocolVersion"])
    assert result["capabilities"] == {} and "my-server" in json.dumps(result)


@pytest.mark.parametrize("frame", [b"", b"junk", b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
                                   b'{"jsonrpc":"2.0","id":null,"method":"ping"}',
                                   b'{"jsonrpc":"2.0","id":1,"result":{}}',
                                   b'{"id":1,"method":"ping"}', b'[{"jsonrpc":"2.0","method":"n"}]', b"[]",
                                   b"[" * 100000])
def test_what_asks_nothing_gets_nothing(masked, frame):
    assert masked.answer(frame) is None


def test_a_batch_gets_a_batch(masked):
    reply = masked.answer(b'[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"n"},'
                          b'{"jsonrpc":"2.0","id":"b","method":"x"}]')
    assert [message["id"] for message in json.loads(reply)] == [1, "b"]


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(data):
    reply = mcp_relay.Masked("c", "r").answer(data)
    assert reply is None or json.loads(reply)
