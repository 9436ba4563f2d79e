"""Where a frame belongs in the graph, and what a session is called."""

import pytest

import mcp_relay

C2S, S2C = mcp_relay.CLIENT_TO_SERVER, mcp_relay.SERVER_TO_CLIENT

WORK = [  # direction, method, params -> node, kind, name
    (C2S, "tools/call", {"name": "add"}, "tool:add", "tool", "add"),
    (C2S, "tools/call", {}, "tool:unknown", "tool", "unknown"),
    (C2S, "tools/call", {"name": 5}, "tool:unknown", "tool", "unknown"),
    (C2S, "tools/call", {"name": ""}, "tool:unknown", "tool", "unknown"),
    (C2S, "resources/read", {"uri": "file:///a"}, "resource:file:///a", "resource", "file:///a"),
    (C2S, "resources/read", {"name": "x"}, "resource:unknown", "resource", "unknown"),
    (C2S, "prompts/get", {"name": "p"}, "prompt:p", "prompt", "p"),
    (C2S, "completion/complete", {}, "mcp:completion/complete", "custom", "completion/complete"),
    (S2C, "sampling/createMessage", {}, "llm:sampling", "llm", "sampling"),
    (S2C, "elicitation/create", {}, "mcp:elicitation/create", "custom", "elicitation/create"),
    (S2C, "elicitation/anything", {}, "mcp:elicitation/anything", "custom", "elicitation/anything"),
]


@pytest.mark.parametrize("direction, method, params, node, kind, name", WORK)
def test_work(direction, method, params, node, kind, name):
    assert mcp_relay.node_of(direction, method, params) == (node, kind, name, "mcp:session")


PROTOCOL = [(direction, method) for direction in (C2S, S2C) for method in (
    "initialize", "server/discover", "tools/list", "resources/list", "resources/templates/list", "prompts/list", "ping",
    "logging/setLevel", "resources/subscribe", "subscriptions/listen", "tasks/get", "notifications/initialized",
    "notifications/elicitation/x", "unknown/method", "", "toString", "elicitation")]
WRONG_WAY = [(S2C, "tools/call"), (S2C, "resources/read"), (S2C, "prompts/get"), (S2C, "completion/complete"),
             (C2S, "sampling/createMessage"), (C2S, "elicitation/create")]


@pytest.mark.parametrize("direction, method", PROTOCOL + WRONG_WAY)
def test_protocol(direction, method):
    assert mcp_relay.node_of(direction, method, {"name": "x", "uri": "y"}) == (
        "mcp:" + method, "custom", method, "mcp:protocol")


LABELS = [
    (["node", "server.js"], "node server.js"),
    (["/usr/bin/node", "/home/me/cli.mjs", "/x/server.ts"], "node cli.mjs server.ts"),
    (["C:\\Tools\\node.exe", "C:\\me\\server.js"], "node.exe server.js"),
    (["npx", "-y", "@scope/server", "--config=/etc/a/b.toml"], "npx -y server --config=/etc/a/b.toml"),
    (["uvx"], "uvx"),
    (["run", "https://host/path"], "run https://host/path"),
]


@pytest.mark.parametrize("argv, label", LABELS)
def test_the_label_of_a_session(argv, label):
    assert mcp_relay.label_of(argv, False)[0] == label


def test_a_long_label_is_cut_from_the_left():
    label, _ = mcp_relay.label_of(["command"] + ["argument-%02d" % n for n in range(20)], False)
    assert len(label) == 64 and label.startswith("…") and label.endswith("argument-18 argument-19")


HIDDEN_LABELS = [
    (["node", "/a/server.mjs", "--token", "x"], "node server.mjs"), (["npx", "@modelcontextprotocol/server-github"],
                                                                     "npx server-github"),
    (["uvx", "tool"], "uvx"), (["node", "--path=/a/b", "https://h/x?t=1", "a/b?c", "K=/v"], "node"),
]


@pytest.mark.parametrize("argv, label", HIDDEN_LABELS)
def test_with_hidden_inputs_only_file_names_survive(argv, label):
    assert mcp_relay.label_of(argv, True) == (label, None)


@pytest.mark.parametrize("arguments, masked", [
    (["--api-key", "sk-1", "x"], ["--api-key", "***", "x"]), (["--api-key=sk-1"], ["--api-key=***"]),
    (["TOKEN=abc"], ["TOKEN=***"]), (["https://u:p@h/x"], ["https://***@h/x"]), (["https://h/?token=t&a=1"],
                                                                              ["https://h/?token=***&a=1"]),
    (["--header", "Authorization: Bearer hush"], ["--header", "Authorization: ***"]), (["--verbose", "x"],
                                                                                       ["--verbose", "x"]),
    (["--max-tokens", "5"], ["--max-tokens", "5"]), (["tokenizer=gpt"], ["tokenizer=gpt"]), (["--port", "80"],
                                                                                             ["--port", "80"])])
def test_secrets_of_a_command_line(arguments, masked):
    assert mcp_relay.mask_secrets(arguments) == masked


def test_masking_is_linear_in_long_arguments():
    """Quadratic patterns would make the start hang; finishing at all is the proof, there is no clock here."""
    for argument in ("z" * 40000, "a.b-" * 10000, "token" * 8000, "x://" * 10000, '{"k":"' + "v" * 40000 + '"}'):
        assert len(mcp_relay.mask_secrets([argument])) == 1
