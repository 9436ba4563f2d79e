"""The MCP client against servers with every kind of manners, as real processes."""

import dataclasses
import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from graphlib_plans import config, mcp_client, mcp_links, wire
from graphlib_plans.errors import Cancelled, ConfigError, ToolError, ToolTimeout
from graphlib_plans.tools import CancelToken, quiet_context
from tests.plans.doubles import LIMIT_S, wait_for_end

SERVER = Path(__file__).parent / "servers" / "mcp_stdio.py"


def server(name="s", /, *, fields=None, **manners):
    """Return the configuration of a server with these manners."""
    argv = ("-I", str(SERVER), json.dumps(manners))
    return config.Server(name, command=sys.executable, args=argv, **(fields or {}))


class Clock:
    """A clock that stands until it is moved."""

    now = 1000.0

    def __call__(self):
        return self.now


class Client:
    """A pool with servers, and short ways to use it."""

    def __init__(self, *servers, environ=None, deferred=None):
        self.clock = Clock()
        self.pool = mcp_client.Pool(wire, os.environ | (environ or {}), clock=self.clock)
        self.changes = threading.Semaphore(0)
        self.pool.on_change = lambda name: self.changes.release()
        self.pool.sync({each.name: each for each in servers}, deferred or {})
        self.events = []

    def context(self, limit_s=LIMIT_S, **fields):
        return quiet_context(deadline=time.monotonic() + limit_s, emit=self.events.append, **fields)

    def tools(self, name="s"):
        return {tool.name: tool for tool in self.pool.source(name).tools(self.context())}

    def call(self, bare, arguments=None, name="s", context=None):
        source = self.pool.source(name)
        tools = source.known() or source.tools(self.context())
        tool = next(tool for tool in tools if tool.name == f"{name}__{bare}")
        return tool.call(arguments or {}, context or self.context())

    def seen(self, name="s"):
        """Return the messages the server has received."""
        return self.call("seen", name=name)["messages"]

    def wait_for_change(self):
        assert self.changes.acquire(timeout=LIMIT_S), "no notification came"


@pytest.fixture
def client():
    made = []

    def make(*servers, **options):
        made.append(Client(*servers, **options))
        return made[-1]

    yield make
    for each in made:
        each.pool.close()
    for thread in threading.enumerate():
        if thread.name.startswith("mcp."):
            thread.join(LIMIT_S)
            assert not thread.is_alive(), f"{thread.name} was left behind"


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# Eras --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era, expected, first", [
    ("legacy", "legacy", ["server/discover", "initialize", "notifications/initialized"]),
    ("modern", "modern", ["server/discover", "subscriptions/listen"]),
    ("both", "modern", ["server/discover", "subscriptions/listen"]),
    ("dies", "legacy", ["initialize", "notifications/initialized"]),
])
def test_the_era_is_found_out(client, era, expected, first):
    one = client(server(era=era))
    assert one.call("echo", {"word": "ü\u2028"}) == {"word": "ü\u2028"}
    assert one.pool.source("s").era == expected
    assert [message["method"] for message in one.seen()][:len(first)] == first


def test_a_silent_server_is_initialized_after_the_probe(client, monkeypatch):
    monkeypatch.setattr(mcp_client, "PROBE_S", 0.2)
    one = client(server(era="silent"))
    assert one.call("echo", {}) == {} and one.pool.source("s").era == "legacy"
    methods = [message["method"] for message in one.seen()]
    assert methods[:2] == ["server/discover", "initialize"]
    assert "notifications/cancelled" not in methods  # neither of the two may be cancelled


def test_a_modern_server_that_missed_the_probe_is_asked_again(client, monkeypatch):
    monkeypatch.setattr(mcp_client, "PROBE_S", 0.2)
    one = client(server(era="late"))
    assert one.call("echo", {}) == {} and one.pool.source("s").era == "modern"


def test_a_modern_request_says_who_asks(client):
    one = client(server(era="modern"))
    meta = one.seen()[-1]["params"]["_meta"]
    assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert meta["io.modelcontextprotocol/clientCapabilities"] == {}
    assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "graph"


@pytest.mark.parametrize("version", mcp_links.LEGACY)
def test_every_older_version_is_spoken(client, version):
    one = client(server(version=version))
    assert one.call("echo", {"word": "x"}) == {"word": "x"}


@pytest.mark.parametrize("manners, sentence", [
    ({"version": "1999-01-01"}, "speaks protocol version 1999-01-01"),
    ({"era": "modern", "supported": ["2031-01-01"]}, "speaks 2031-01-01"),
])
def test_a_version_nobody_shares_is_an_error(client, manners, sentence):
    report = client(server(**manners)).pool.status("s", quiet_context())
    assert report["ok"] is False and sentence in report["error"]


# Tools -------------------------------------------------------------------------------------------------------------


def test_a_tool_is_what_the_server_says_and_the_configuration_changes(client):
    overrides = {"echo": {"description": "mine", "output_schema": {"type": "object"}, "output_example": {"word": "x"}}}
    one = client(server(fields={"tool_overrides": overrides}))
    echo, seen = one.tools()["s__echo"], one.tools()["s__seen"]
    assert (echo.source, echo.description, echo.read_only, echo.checks_input) == ("s", "mine", True, False)
    assert echo.output_schema == {"type": "object"} and echo.output_example == {"word": "x"}
    assert seen.input_schema == {"type": "object", "properties": {}} and not seen.read_only


def test_every_page_is_read(client):
    one = client(server(pages=[["echo", "result"], ["error"], ["seen"]]))
    assert list(one.tools()) == ["s__echo", "s__result", "s__error", "s__seen"]


def test_an_empty_cursor_is_a_cursor(client):
    assert list(client(server(pages=[["echo"], ["seen"]], cursors=[""])).tools()) == ["s__echo", "s__seen"]


def test_a_cursor_that_repeats_ends_the_list(client):
    one = client(server(pages=[["echo"], ["seen"]], cursors=["x", "x"]))
    assert list(one.tools()) == ["s__echo", "s__seen"]
    assert any("repeats a page" in note for note in one.pool.source("s").notes())


def test_odd_definitions_are_told_about_and_do_not_hide_the_rest(client):
    odd = {"a": {"description": "nameless"}, "b": "text", "c": {"name": "bare", "inputSchema": None}}
    one = client(server(pages=[["a", "echo", "b", "echo", "c"]], odd=odd))
    assert list(one.tools()) == ["s__echo", "s__bare"]
    assert one.tools()["s__bare"].input_schema == {"type": "object", "properties": {}}
    assert len(one.pool.source("s").notes()) == 3


@pytest.mark.parametrize("fields, left", [
    ({"exclude_tools": ("hang", "die")}, False),
    ({"include_tools": ("echo", "seen")}, False),
    ({"include_tools": ("echo", "seen", "die"), "exclude_tools": ("die",)}, False),
    ({}, True),
])
def test_what_is_left_out_is_neither_listed_nor_called(client, fields, left):
    one = client(server(fields=fields))
    assert ("s__die" in one.tools()) is left
    if not left:
        source = one.pool.source("s")
        assert "left out" in source.missing("s__die").text
        with pytest.raises(ToolError, match="left out") as caught:
            source.call("die", {}, one.context(), {}, None)
        assert not caught.value.retryable
        assert "tools/call" not in [message.get("method") for message in one.seen()][:-1]


def test_list_changed_makes_the_list_stale_and_is_passed_on(client):
    one = client(server())
    assert "s__another" not in one.tools()
    one.call("late")
    one.wait_for_change()
    assert "s__another" in one.tools()


def test_a_list_is_asked_for_again_only_when_it_may_have_changed(client):
    announced, silent = client(server()), client(server(listen=False))
    for one, expected in ((announced, 1), (silent, 3)):
        for _ in range(3):
            one.tools()
        assert [message["method"] for message in one.seen()].count("tools/list") == expected


# Results -----------------------------------------------------------------------------------------------------------

PICTURE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}


def text(value):
    return {"type": "text", "text": value}


@pytest.mark.parametrize("result, value", [
    ({"content": [text("ignored")], "structuredContent": {"n": 12345678901234567890}}, {"n": 12345678901234567890}),
    ({"content": []}, {}),
    ({"content": [text('{"a": [1, 2.50]}')]}, {"a": [1, 2.5]}),
    ({"content": [text("12")]}, 12),
    ({"content": [text("NaN")]}, {"text": "NaN"}),
    ({"content": [text("plain")]}, {"text": "plain"}),
    ({"content": [text("a"), text("b")]}, {"text": "a\nb"}),
    ({"content": [text("see"), PICTURE]}, {"text": "see", "content": [PICTURE]}),
    ({"content": [text("12"), PICTURE]}, {"text": "12", "content": [PICTURE]}),
    ({"content": [PICTURE]}, {"content": [PICTURE]}),
    ({"content": [PICTURE], "structuredContent": {"n": 1}}, {"n": 1, "content": [PICTURE]}),
    ({"content": [PICTURE], "structuredContent": {"content": 1}}, {"content": 1}),
    ({"content": [], "structuredContent": [1, "x"]}, [1, "x"]),
])
def test_the_value_of_a_result(client, result, value):
    assert client(server(pages=[["result"]])).call("result", result) == value


def test_is_error_carries_the_value(client):
    result = {"content": [text("no such\x1b[2Jcity")], "isError": True}
    with pytest.raises(ToolError, match=r"s__result failed: no such\\x1b\[2Jcity") as caught:
        client(server()).call("result", result)
    assert caught.value.payload == {"text": "no such\x1b[2Jcity"} and caught.value.retryable


@pytest.mark.parametrize("code, retryable", [(-32602, False), (-32601, False), (-32603, True), (5, True)])
def test_a_json_rpc_error_is_a_tool_error(client, code, retryable):
    with pytest.raises(ToolError, match="refused tools/call: bad thing") as caught:
        client(server()).call("error", {"code": code, "message": "bad thing", "data": [1]})
    assert caught.value.payload == {"error": "bad thing", "code": code, "data": [1]}
    assert caught.value.retryable is retryable


def test_a_broken_output_schema_is_told_and_not_fatal(client):
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    one = client(server(definitions={"result": {"outputSchema": schema}}))
    assert one.call("result", {"content": [], "structuredContent": {"n": "x"}}) == {"n": "x"}
    assert [event["event"] for event in one.events] == ["warning"] and "outputSchema" in one.events[0]["text"]


@pytest.mark.parametrize("line, sentence", [
    ('{"jsonrpc":"2.0","id":{id},"result":{"content":[],"structuredContent":{"n":NaN}}}', "cannot be read"),
    ('{"jsonrpc":"2.0","id":{id},"result":[]}', "an array instead of an object"),
    ('{"jsonrpc":"2.0","id":{id},"error":"odd"}', "no message"),
])
def test_an_answer_that_is_no_answer_fails_the_call_and_nothing_else(client, line, sentence):
    one = client(server())
    with pytest.raises(ToolError, match=sentence):
        one.call("raw", {"line": line})
    assert one.call("echo", {"word": "still here"}) == {"word": "still here"}


@pytest.mark.parametrize("manners", [{"ids": "text"}, {"batch": True}, {"end": "\r\n"}, {"banner": "Server running…"}])
def test_bad_manners_are_put_up_with(client, manners):
    one = client(server(**manners))
    assert one.call("echo", {"word": "x"}) == {"word": "x"}


def test_noise_on_stdout_never_answers(client):
    one = client(server())
    line = '{"level":"info","id":{id}}\n[1,2]\n\n{"jsonrpc":"2.0","id":{id},"result":{"content":[]}}'
    assert one.call("raw", {"line": line}) == {}


def test_questions_of_the_server_are_answered_in_their_own_id_space(client):
    ping, roots, sampling = client(server()).call("questions")["replies"]
    assert ping == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert (roots["id"], roots["error"]["code"], sampling["error"]["code"]) == (1, -32601, -32601)


def test_ask_again_later_is_done(client):
    one = client(server(era="modern"))
    assert one.call("later", {"rounds": 2}) == {"state": ".."}
    states = [message["params"].get("requestState") for message in one.seen() if message["method"] == "tools/call"]
    assert states[:3] == [None, ".", ".."]


def test_a_server_that_wants_input_is_told_so(client):
    with pytest.raises(ToolError, match="asks for input that a plan cannot give"):
        client(server(era="modern")).call("wants_input")


# Time and cancelling -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_cancelled_call_tells_the_server_and_ends(client, era):
    one = client(server(era=era))
    one.tools()
    token = CancelToken()
    failures = []

    def call():
        try:
            one.call("hang", context=one.context(cancel=token))
        except Cancelled as stop:
            failures.append(stop.reason)

    thread = threading.Thread(target=call)
    thread.start()
    one.wait_for_change()  # the server has the call
    token.cancel("enough")
    thread.join(LIMIT_S)
    assert failures == ["enough"]
    *_, hung, cancelled, _ = one.seen()
    assert cancelled["method"] == "notifications/cancelled"
    assert cancelled["params"] == {"requestId": hung["id"], "reason": "enough"}
    assert one.call("echo", {"word": "x"}) == {"word": "x"}


@pytest.mark.parametrize("fields, limit_s", [({"timeout_s": 0.2}, LIMIT_S), ({}, 0.2)])
def test_a_call_that_takes_too_long_is_cancelled_at_the_server(client, fields, limit_s):
    one = client(server(fields=fields))
    one.tools()
    with pytest.raises(ToolTimeout, match="did not answer tools/call within 0"):
        one.call("hang", context=one.context(limit_s))
    one.wait_for_change()
    assert one.seen()[-2]["method"] == "notifications/cancelled"


def test_calls_overlap(client):
    one = client(server())
    one.tools()
    token = CancelToken()
    ended = threading.Event()

    def hang():
        with pytest.raises(Cancelled):
            one.call("hang", context=one.context(cancel=token))
        ended.set()

    threading.Thread(target=hang).start()
    one.wait_for_change()
    assert [one.call("echo", {"word": str(n)})["word"] for n in range(50)] == [str(n) for n in range(50)]
    token.cancel()
    assert ended.wait(LIMIT_S)


def test_many_callers_each_get_their_own_answer(client):
    one = client(server())
    one.tools()
    wrong = []

    def caller(name):
        for number in range(25):
            value = {"word": f"{name}.{number}", "pad": "x" * (number * 1000)}
            if one.call("echo", value) != value:
                wrong.append(value["word"])

    threads = [threading.Thread(target=caller, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert wrong == []


def test_a_server_that_cancels_our_call_fails_it_at_once(client):
    with pytest.raises(ToolError, match="cancelled tools/call: shutting down"):
        client(server()).call("hang_up")


def test_a_server_that_stops_reading_counts_as_hung_and_is_replaced(client, monkeypatch):
    monkeypatch.setattr(mcp_links, "STUCK_S", 0)
    one = client(server())
    before = one.call("environment", {"names": []})["pid"]
    one.call("stop")
    with pytest.raises(ToolTimeout):
        one.call("echo", {"word": "x" * 1_000_000}, context=one.context(0.5))
    assert one.call("environment", {"names": []})["pid"] != before


# Death and back-off ------------------------------------------------------------------------------------------------


def test_a_death_in_mid_call_is_told_with_its_last_words_and_the_next_call_reconnects(client):
    one = client(server())
    before = one.call("environment", {"names": []})["pid"]
    with pytest.raises(ToolError, match="exited with status 7") as caught:
        one.call("die", {"stderr": "x" * 100_000 + "\nlast \x1b[31mwords\n"})
    assert caught.value.retryable
    assert "last \\x1b[31mwords" in caught.value.message and len(caught.value.message) < 3000
    assert caught.value.payload["stderr"].endswith("last \x1b[31mwords")
    after = one.call("environment", {"names": []})["pid"]
    assert after != before and not is_alive(before)


def test_one_process_serves_all_calls(client):
    one = client(server())
    assert len({one.call("environment", {"names": []})["pid"] for _ in range(20)}) == 1


def test_a_server_that_keeps_dying_is_left_alone_for_a_growing_while(client):
    one = client(server(exit=3, moan="no database"))
    source = one.pool.source("s")

    def attempt():
        with pytest.raises(ToolError) as caught:
            source.tools(one.context())
        return caught.value.message

    starts = 0
    for pause in (0, *mcp_client.BACKOFF_S, mcp_client.BACKOFF_S[-1]):
        message = attempt()
        assert "exited with status 3" in message and "no database" in message
        starts += 1
        if pause:
            assert f"failed {starts} times in a row" in attempt()
            one.clock.now += pause - 0.001
            assert "left alone" in attempt()
            one.clock.now += 0.002


def test_a_long_life_ends_the_back_off(client):
    one = client(server())
    for _ in range(5):
        one.tools()
        one.clock.now += mcp_client.STABLE_S + 1
        with pytest.raises(ToolError, match="exited with status 7"):
            one.call("die")
    assert one.call("echo", {}) == {}


def test_a_closed_output_is_an_end_even_if_the_process_lives_on(client):
    one = client(server())
    pid = one.call("environment", {"names": []})["pid"]
    with pytest.raises(ToolError, match="it closed its output"):
        one.call("close_output")
    assert not is_alive(pid)


def test_callers_share_one_attempt_and_one_that_gives_up_does_not_spoil_it(client, monkeypatch):
    monkeypatch.setattr(mcp_client, "PROBE_S", 0.5)
    one = client(server(era="silent"))
    with pytest.raises(ToolTimeout, match="not ready in time"):
        one.pool.source("s").tools(one.context(0.1))
    token = CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        one.pool.source("s").tools(one.context(cancel=token))
    results = []
    threads = [threading.Thread(target=lambda: results.append(len(one.tools()))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert results == [len(one.tools())] * 5
    assert [message["method"] for message in one.seen()].count("server/discover") == 1


def test_no_handshake_in_time_is_told_and_ends_the_process(client):
    program = ("-c", "import sys; print('thinking', file=sys.stderr, flush=True); sys.stdin.read()")
    one = client(config.Server("s", command=sys.executable, args=program, connect_timeout_s=1.0))
    with pytest.raises(ToolError, match=r"no handshake within 1 s \(connect_timeout_s\)(?s:.*)thinking"):
        one.tools()


@pytest.mark.parametrize("fields, sentence", [
    ({"command": "no-such-command"}, "'no-such-command': the command was not found on PATH"),
    ({"command": "/no/such/file"}, "there is no such file"),
    ({"command": "/"}, "Permission denied"),
    ({"command": sys.executable, "cwd": "/no/such/folder"}, "working directory '/no/such/folder' does not exist"),
    ({"command": sys.executable, "args": ("a\0b",)}, "null byte"),
])
def test_a_server_that_cannot_start_is_told(client, fields, sentence):
    with pytest.raises(ToolError, match="MCP server 's' cannot be started") as caught:
        client(config.Server("s", **fields)).tools()
    assert sentence in caught.value.message


# The pool ----------------------------------------------------------------------------------------------------------


def test_the_environment_is_ours_with_what_is_configured(client):
    one = client(server(fields={"env": {"B": "2"}, "cwd": "/"}), environ={"A": "1", "GRAPH_MCP_DEPTH": "2"})
    found = one.call("environment", {"names": ["A", "B", "GRAPH_MCP_DEPTH", "PATH"]})
    assert (found["A"], found["B"], found["GRAPH_MCP_DEPTH"], found["cwd"]) == ("1", "2", "3", "/")
    assert found["PATH"] == os.environ["PATH"]


def test_programs_that_start_each_other_come_to_an_end(client):
    with pytest.raises(ToolError, match="started each other"):
        client(server(), environ={"GRAPH_MCP_DEPTH": "8"}).tools()


def test_a_missing_variable_is_named(client):
    deferred = {"mcp.s": config.Deferred("mcp.s.env.TOKEN", "TRACKER_TOKEN")}
    with pytest.raises(ToolError, match=r"mcp\.s\.env\.TOKEN needs the environment variable TRACKER_TOKEN") as caught:
        client(server(), deferred=deferred).tools()
    assert caught.value.details == {"variable": "TRACKER_TOKEN", "path": "mcp.s.env.TOKEN"}


def test_nothing_is_started_before_it_is_needed(client):
    one = client(server())
    assert one.pool.source("s").known() is None
    assert [thread for thread in threading.enumerate() if thread.name.startswith("mcp.s.")] == []


def test_sync_keeps_what_did_not_change_and_ends_the_rest(client):
    same, other, gone = server("same"), server("other"), server("gone")
    one = client(same, other, gone)
    pids = {name: one.call("environment", {"names": []}, name)["pid"] for name in ("same", "other", "gone")}
    changed = dataclasses.replace(other, env={"A": "1"})
    one.pool.sync({"same": dataclasses.replace(same), "other": changed}, {})
    assert is_alive(pids["same"]) and not is_alive(pids["other"]) and not is_alive(pids["gone"])
    assert one.call("environment", {"names": []}, "same")["pid"] == pids["same"]
    assert one.call("environment", {"names": ["A"]}, "other")["A"] == "1"
    with pytest.raises(ConfigError, match="not configured"):
        one.pool.source("gone")


def test_a_source_that_was_replaced_says_so(client):
    one = client(server())
    old = one.pool.source("s")
    old.tools(one.context())
    one.pool.sync({}, {})
    with pytest.raises(ToolError, match="is closed"):
        old.tools(one.context())


def test_closing_a_registry_does_not_end_a_server(client):
    one = client(server())
    pid = one.call("environment", {"names": []})["pid"]
    one.pool.source("s").close()
    assert is_alive(pid) and one.call("echo", {}) == {}


def test_close_ends_the_process_and_what_it_started(client):
    one = client(server())
    pid, child = one.call("environment", {"names": []})["pid"], one.call("grandchild")["pid"]
    one.pool.close()
    assert not is_alive(pid)
    wait_for_end(child)


def test_close_ends_a_server_that_does_not_listen(client, monkeypatch):
    monkeypatch.setattr(mcp_client, "CLOSE_S", 0.2)
    monkeypatch.setattr(mcp_links, "CLOSE_S", 0.2)
    one = client(server())
    pid = one.call("environment", {"names": []})["pid"]
    one.call("stop")
    one.pool.close()
    assert not is_alive(pid)


def test_close_ends_an_attempt_that_is_under_way(client, tmp_path):
    os.mkfifo(tmp_path / "pid")
    code = f"import os, sys; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); sys.stdin.read()"
    one = client(config.Server("s", command=sys.executable, args=("-c", code)))
    failures = []

    def connect():
        with pytest.raises(ToolError) as caught:
            one.tools()
        failures.append(caught.value.message)

    thread = threading.Thread(target=connect)
    thread.start()
    pid = int((tmp_path / "pid").read_text())  # it has started, and will never answer
    one.pool.close()
    assert not is_alive(pid)
    thread.join(LIMIT_S)
    assert "or the program ends" in failures[0]


def test_status_says_how_it_went(client):
    one = client(server(pages=[["echo", "seen"]]), server("bad", exit=1))
    good, bad = (one.pool.status(name, one.context()) for name in ("s", "bad"))
    assert (good["server"], good["ok"], good["tools"], good["declareOutputSchema"]) == ("s", True, 2, 0)
    assert bad["ok"] is False and "exited with status 1" in bad["error"] and bad["elapsedMs"] >= 0
