"""Streamable HTTP, in both eras, against a local server; how the link to a process ends is in test_mcp_client."""

import threading
import time

import pytest

from graphlib_plans import config, mcp_client, mcp_links, wire
from graphlib_plans.errors import Cancelled, ToolError, ToolTimeout
from graphlib_plans.tools import CancelToken, quiet_context
from tests.plans.http_double import LIMIT_S, Service

MODERN = "2026-07-28"
TOOLS = [
    {"name": "echo", "inputSchema": {"type": "object"}},
    {"name": "route", "inputSchema": {"type": "object", "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "deep": {"type": "object", "properties": {"flag": {"type": "boolean", "x-mcp-header": "Flag"}}},
        "free": {"type": "string"}}}},
    {"name": "grüße", "inputSchema": {"type": "object"}},
]


class Server:
    """An MCP server over HTTP. streams: answers as events. sessions: hands out ids. listen: has notifications."""

    def __init__(self, era="legacy", streams=False, sessions=True, listen=False):
        self.era, self.streams, self.sessions, self.has_listen = era, streams, sessions, listen
        self.known = set()
        self.service = Service(self.handle)
        #: Set by a test: answers a tools/call in its own way.
        self.call = lambda request, message: self.answer(request, message, self.value(message))
        self.listening = threading.Event()
        self.listener = None
        self.gone = threading.Event()

    @property
    def posts(self):
        return [request.json for request in self.service.requests if request.method == "POST"]

    def value(self, message):
        return {"content": [], "structuredContent": message["params"].get("arguments", {})}

    def handle(self, request):
        if request.method == "GET":
            return self.listen(request) if self.has_listen and self.era == "legacy" else request.reply(405)
        if request.method == "DELETE":
            self.known.discard(request.headers["Mcp-Session-Id"])
            return request.reply(200)
        message = request.json
        if "id" not in message or "method" not in message:
            return request.reply(202)
        return self.handle_modern(request, message) if self.era == "modern" else self.handle_legacy(request, message)

    def handle_legacy(self, request, message):
        if message["method"] == "initialize":
            session = {}
            if self.sessions:
                session = {"Mcp_Session_Id": f"session-{len(self.service.requests)}"}
                self.known.add(session["Mcp_Session_Id"])
            return self.answer(request, message, {"protocolVersion": "2025-11-25", "capabilities": self.capabilities()},
                               **session)
        if self.sessions and "Mcp-Session-Id" not in request.headers:
            return request.reply(400, "Bad Request: no session", kind="text/plain")
        if self.sessions and request.headers["Mcp-Session-Id"] not in self.known:
            error = {"code": -32001, "message": "no session"}
            return request.reply(404, {"jsonrpc": "2.0", "id": None, "error": error})
        return self.handle_tools(request, message)

    def handle_modern(self, request, message):
        told = request.headers.get("MCP-Protocol-Version"), request.headers.get("Mcp-Method")
        if told != (MODERN, message["method"]):
            return request.reply(400, {"jsonrpc": "2.0", "id": message["id"], "error": {
                "code": -32020, "message": "header mismatch"}})
        if message["method"] == "server/discover":
            return self.answer(request, message, {"supportedVersions": [MODERN], "capabilities": self.capabilities()})
        if message["method"] == "subscriptions/listen":
            return self.listen(request)
        return self.handle_tools(request, message)

    def capabilities(self):
        return {"tools": {"listChanged": self.has_listen}}

    def handle_tools(self, request, message):
        if message["method"] == "tools/list":
            return self.answer(request, message, {"tools": TOOLS})
        if message["method"] == "tools/call":
            return self.call(request, message)
        self.answer(request, message, error={"code": -32601, "message": "no such method"})

    def listen(self, request):
        request.stream()
        self.listener = request
        self.listening.set()
        request.wait_until_gone()
        self.gone.set()

    def answer(self, request, message, result=None, error=None, **headers):
        body = {"jsonrpc": "2.0", "id": message["id"], **({"error": error} if error else {"result": result})}
        if not self.streams:
            return request.reply(200, body, **headers)
        request.stream(**headers)
        request.event({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "hi"}})
        request.event(body)
        request.end()


class Client:
    def __init__(self, server, **fields):
        self.pool = mcp_client.Pool(wire, {})
        self.changed = threading.Event()
        self.pool.on_change = lambda name: self.changed.set()
        self.pool.sync({"h": config.Server("h", url=server.service.url + "/mcp?key=hidden", **fields)}, {})
        self.source = self.pool.source("h")

    def context(self, limit_s=LIMIT_S, **fields):
        return quiet_context(deadline=time.monotonic() + limit_s, **fields)

    def call(self, bare, arguments=None, context=None):
        tool = next(tool for tool in self.source.tools(self.context()) if tool.name == f"h__{bare}")
        return tool.call(arguments or {}, context or self.context())


@pytest.fixture
def both():
    """both(era=…, …) → (Server, Client); closed at the end."""
    made = []

    def make(fields=None, **manners):
        server = Server(**manners)
        client = Client(server, **(fields or {}))
        made.append((server, client))
        return server, client

    yield make
    for server, client in made:
        client.pool.close()
        server.service.close()


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("era, sessions", [("legacy", True), ("legacy", False), ("modern", False)])
def test_a_call_over_http(both, era, sessions, streams):
    server, client = both(era=era, sessions=sessions, streams=streams)
    assert client.call("echo", {"word": "ü", "n": 12345678901234567890}) == {"word": "ü", "n": 12345678901234567890}
    assert client.source.era == era
    for request in server.service.requests:
        assert request.headers["Accept"] == "application/json, text/event-stream"
    if era == "legacy":
        assert server.posts[1]["method"] == "initialize"
        assert server.service.requests[-1].headers["MCP-Protocol-Version"] == "2025-11-25"
        client.pool.close()
        assert (server.service.requests[-1].method == "DELETE") is sessions and server.known == set()


def test_configured_headers_are_sent_and_ours_win(both):
    server, client = both(fields={"headers": {"Authorization": "Bearer x", "mcp-session-id": "mine", "accept": "no"}})
    client.call("echo")
    assert all(request.headers.get_all("Authorization") == ["Bearer x"] for request in server.service.requests)
    assert len(server.service.requests[-1].headers.get_all("Accept")) == 1


def test_a_modern_call_repeats_in_headers_what_they_are_for(both):
    server, client = both(era="modern")
    client.call("route", {"region": "eu", "deep": {"flag": True}, "free": "x"})
    headers = server.service.requests[-1].headers
    assert (headers["Mcp-Name"], headers["Mcp-Param-Region"], headers["Mcp-Param-Flag"]) == ("route", "eu", "true")
    client.call("route", {"region": "süd ", "deep": None})
    headers = server.service.requests[-1].headers
    assert headers["Mcp-Param-Region"] == "=?base64?c8O8ZCA=?=" and "Mcp-Param-Flag" not in headers
    client.call("grüße")
    assert server.service.requests[-1].headers["Mcp-Name"] == "=?base64?Z3LDvMOfZQ==?="


def test_a_forgotten_session_is_opened_again_and_the_call_made(both):
    server, client = both()
    client.call("echo")
    for _ in range(5):  # again and again: nothing failed, so nothing is left alone
        server.known.clear()
        assert client.call("echo", {"n": 1}) == {"n": 1}
    assert [message["method"] for message in server.posts].count("initialize") == 6


@pytest.mark.parametrize("status, body, sentence, retryable", [
    (401, {"error": "invalid_token"}, r"HTTP 401: .*invalid_token.*; check the headers of \[mcp.h\]", False),
    (403, "no", "HTTP 403: no; check the headers", False),
    (500, "<h1>oops\x1b</h1>", r"HTTP 500: <h1>oops\\x1b</h1>", True),
    (429, "", "HTTP 429", True),
    (400, {"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "bad name"}}, r"bad name \(-32602\)", False),
])
def test_a_refused_call_says_why(both, status, body, sentence, retryable):
    server, client = both()
    server.call = lambda request, message: request.reply(status, body)
    with pytest.raises(ToolError, match=sentence) as caught:
        client.call("echo")
    assert caught.value.retryable is retryable and "hidden" not in caught.value.message


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_lets_nobody_in_is_asked_once(both, status):
    server, client = both()
    server.handle = server.service.handle = lambda request: request.reply(status, "")
    with pytest.raises(ToolError, match=f"HTTP {status}"):
        client.call("echo")
    assert len(server.service.requests) == 1


def test_a_server_that_is_not_there(both):
    server, client = both()
    server.service.close()
    with pytest.raises(ToolError, match="MCP server 'h': http://127.0.0.1:.*/mcp could not be reached") as caught:
        client.call("echo")
    assert "hidden" not in caught.value.message


@pytest.mark.parametrize("status", [301, 307, 308])
def test_a_server_that_moved_on_its_host_is_followed(both, status):
    server, client = both()
    answer = server.handle
    server.service.handle = lambda request: answer(request) if request.path.endswith("/mcp/") else request.reply(
        status, "", Location=request.path.partition("?")[0] + "/")
    assert client.call("echo", {"n": 1}) == {"n": 1}
    assert [request.path for request in server.service.requests].count("/mcp?key=hidden") == 1


@pytest.mark.parametrize("target", ["http://other.invalid/mcp", "/mcp?again"])
def test_a_server_that_moved_elsewhere_is_an_error(both, target):
    server, client = both()
    server.service.handle = lambda request: request.reply(307, "", Location=target)
    with pytest.raises(ToolError, match="another host|HTTP 307"):
        client.call("echo")


@pytest.mark.parametrize("body, sentence", [
    ('{"jsonrpc":"2.0","id":999,"result":{}}', "something else than its response"),
    ("<html>", "something else than its response"),
    ("", "something else than its response"),
])
def test_an_answer_that_is_none(both, body, sentence):
    server, client = both()
    server.call = lambda request, message: request.reply(200, body)
    with pytest.raises(ToolError, match=sentence):
        client.call("echo")


def test_a_stream_that_ends_without_the_answer(both):
    server, client = both()

    def call(request, message):
        request.stream()
        request.event({"jsonrpc": "2.0", "method": "notifications/progress"})
        request.end()

    server.call = call
    with pytest.raises(ToolError, match="ended its stream before it answered tools/call"):
        client.call("echo")


def test_questions_inside_a_stream_are_answered(both):
    server, client = both()

    def call(request, message):
        request.stream()
        request.event({"jsonrpc": "2.0", "id": "q", "method": "ping"})
        request.event({"jsonrpc": "2.0", "id": message["id"], "method": "roots/list"})
        request.event({"jsonrpc": "2.0", "id": message["id"], "result": server.value(message)})
        request.end()

    server.call = call
    assert client.call("echo", {"n": 1}) == {"n": 1}
    replies = [post for post in server.posts if "method" not in post]
    assert replies[0] == {"jsonrpc": "2.0", "id": "q", "result": {}} and replies[1]["error"]["code"] == -32601


def give_up(both, era, limit_s, cancel):
    """Call a tool that never answers and give up; return (server, the exception)."""
    server, client = both(era=era)
    arrived, gone, told, token = threading.Event(), threading.Event(), threading.Event(), CancelToken()

    def call(request, message):
        arrived.set()
        request.wait_until_gone()
        gone.set()

    handle = server.handle

    def noting(request):
        handle(request)
        if request.method == "POST" and request.json.get("method") == "notifications/cancelled":
            told.set()

    server.call, server.service.handle = call, noting
    client.source.tools(client.context())
    if cancel:
        threading.Thread(target=lambda: (arrived.wait(LIMIT_S), token.cancel("enough"))).start()
    with pytest.raises((Cancelled, ToolTimeout)) as caught:
        client.call("echo", context=client.context(limit_s, cancel=token))
    assert gone.wait(LIMIT_S)
    return server, told, caught.value


@pytest.mark.parametrize("limit_s, cancel, kind", [(LIMIT_S, True, Cancelled), (0.3, False, ToolTimeout)])
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_call_that_is_given_up_closes_its_stream_and_tells_older_servers(both, era, limit_s, cancel, kind):
    server, told, error = give_up(both, era, limit_s, cancel)
    assert isinstance(error, kind)
    if era == "legacy":
        assert told.wait(LIMIT_S)
        *_, called, cancelled = server.posts
        assert cancelled["params"]["requestId"] == called["id"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_list_changed_arrives_on_the_stream_of_notifications(both, era):
    server, client = both(era=era, listen=True)
    client.call("echo")
    assert server.listening.wait(LIMIT_S)
    client.source.tools(client.context())
    before = [message["method"] for message in server.posts].count("tools/list")
    server.listener.event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    assert client.changed.wait(LIMIT_S)
    client.source.tools(client.context())
    assert [message["method"] for message in server.posts].count("tools/list") == before + 1
    client.pool.close()
    assert server.gone.wait(LIMIT_S)


def test_a_broken_stream_of_notifications_is_opened_again_and_the_list_is_stale(both, monkeypatch):
    monkeypatch.setattr(mcp_links, "FOLLOW_S", (0.01,))
    server, client = both(listen=True)
    client.call("echo")
    assert server.listening.wait(LIMIT_S)
    client.source.tools(client.context())
    server.listening.clear()
    server.listener.end()  # the stream ends in order; the double still waits for the connection to close
    assert server.listening.wait(LIMIT_S)
    before = [message["method"] for message in server.posts].count("tools/list")
    client.source.tools(client.context())
    assert [message["method"] for message in server.posts].count("tools/list") == before + 1
