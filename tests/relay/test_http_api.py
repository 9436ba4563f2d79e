"""The hub's HTTP API, asked over a real server: every route, its shapes, its errors."""

import http.client
import json
import socket

import pytest

import support
from hubs import call, request

RUN_KEYS = {"run", "label", "status", "started", "ended", "calls", "errors", "noise", "held", "attached", "client",
            "server",
            "protocolVersion", "error"}
HOLD_KEYS = {"hold", "run", "node", "kind", "name", "instance", "point", "direction", "method", "id", "since", "reason",
             "editable", "frame"}


@pytest.fixture
def recorded(attach, hub):
    """A finished run with one call."""
    debugged = attach(hub).handshake()
    debugged.send(call(1, "echo", {"text": "<script>"})).answered(b'"id": 1}')
    debugged.finish()
    return debugged


def test_health_needs_no_token(hub):
    answer = hub.ask("GET", "/api/health", headers={})
    assert answer.status == 200
    assert answer.json["name"] == "mcp-relay" and answer.json["protocol"] == 1 and answer.json["version"]


def test_the_page_is_served_at_the_root(hub):
    answer = hub.ask("GET", "/", headers={})
    assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/html")
    assert hub.token.encode() not in answer.body


def test_runs_newest_first(attach, hub):
    first, second = attach(hub), attach(hub)
    runs = hub.get("/api/runs")["runs"]
    ids = [run["run"] for run in runs]
    assert ids.index(second.run) < ids.index(first.run)
    assert all(RUN_KEYS <= set(run) for run in runs)
    assert [run["started"] for run in runs] == sorted((run["started"] for run in runs), reverse=True)


def test_one_run_has_its_nodes(recorded, hub):
    run = hub.get("/api/runs/" + recorded.run)
    assert RUN_KEYS <= set(run) and run["status"] == "ok" and run["calls"] >= 1
    nodes = {node["node"]: node for node in run["nodes"]}
    assert set(nodes) >= {"mcp:session", "mcp:protocol", "mcp:initialize", "tool:echo"}
    for node in nodes.values():
        assert {"node", "kind", "name", "parent", "status", "executions", "errors", "durationMs"} <= set(node)


def test_events_are_paged(recorded, hub):
    path = "/api/runs/%s/events" % recorded.run
    everything = hub.get(path)
    assert everything["next"] is None and len(everything["events"]) > 5
    collected, after = [], 0
    while after is not None:
        page = hub.get("%s?after=%d&limit=3" % (path, after))
        assert len(page["events"]) <= 3
        collected += page["events"]
        after = page["next"]
    assert collected == everything["events"]
    assert hub.get(path + "?after=100000") == {"events": [], "next": None}


@pytest.mark.parametrize("query", ["after=-1", "after=x", "limit=-5", "limit=many", "after=1.5",
                                   "limit=" + "9" * 500])
def test_bad_paging_is_one_clear_error(recorded, hub, query):
    answer = hub.ask("GET", "/api/runs/%s/events?%s" % (recorded.run, query))
    assert answer.status == 400 and answer.json["error"]["code"] and answer.json["error"]["message"]


def test_deleting_a_run(recorded, hub):
    answer = hub.ask("DELETE", "/api/runs/" + recorded.run)
    assert (answer.status, answer.body) == (204, b"")
    assert hub.ask("GET", "/api/runs/" + recorded.run).status == 404
    assert hub.ask("GET", "/api/runs/%s/events" % recorded.run).status == 404
    assert recorded.run not in [run["run"] for run in hub.get("/api/runs")["runs"]]


UNKNOWN = [("GET", "/api/runs/nope"), ("GET", "/api/runs/nope/events"), ("DELETE", "/api/runs/nope"),
           ("GET", "/api/runs/nope/export?format=jsonl"), ("GET", "/api/holds/nope"), ("DELETE",
                                                                                       "/api/breakpoints/nope"),
           ("GET", "/api/nothing"), ("GET", "/api"), ("GET", "/favicon.ico"), ("GET", "/../etc/passwd"),
           ("GET", "/api/runs/%00"), ("GET", "/api/runs/../../x"), ("GET", "/api/runs/%ff%fe")]


@pytest.mark.parametrize("method, path", UNKNOWN)
def test_unknown_things_are_404_with_a_body(hub, method, path):
    answer = hub.ask(method, path)
    assert answer.status == 404
    assert answer.json["error"]["code"] and answer.json["error"]["message"]


@pytest.mark.parametrize("method, path", [("POST", "/api/runs"), ("PUT", "/api/holds"), ("DELETE", "/api/mode"),
                                          ("POST", "/api/health"), ("PATCH", "/api/mode")])
def test_wrong_methods_are_405(hub, method, path):
    answer = hub.ask(method, path, {})
    assert answer.status == 405 and answer.json["error"]["message"]


def test_breakpoints_are_idempotent(hub):
    hub.clear_breakpoints()
    first = hub.ask("POST", "/api/breakpoints", {"kind": "tool", "name": "x"})
    again = hub.ask("POST", "/api/breakpoints", {"name": "x", "kind": "tool", "point": "before"})
    assert (first.status, again.status) == (201, 200) and first.json["id"] == again.json["id"]
    other = hub.ask("POST", "/api/breakpoints", {})
    assert other.status == 201
    assert hub.get("/api/breakpoints") == {"mode": "run", "breakpoints": [
        {"id": first.json["id"], "kind": "tool", "name": "x", "point": "before"}, {"id": other.json["id"],
                                                                                   "point": "before"}]}
    assert hub.ask("DELETE", "/api/breakpoints/%s" % first.json["id"]).status == 204
    assert hub.ask("DELETE", "/api/breakpoints/%s" % first.json["id"]).status == 404


@pytest.mark.parametrize("body", [{"point": "sometimes"}, {"kind": "nothing"}, {"kind": 5}, {"name": []},
                                  {"nme": "x"}, [], "x",
                                  None, 7, b"{", b"", b"\xff", b'{"name":"\\ud800"}x'])
def test_bad_breakpoints_are_refused(hub, body):
    before = hub.get("/api/breakpoints")
    answer = hub.ask("POST", "/api/breakpoints", body, headers=hub.headers(**{"Content-Type": "application/json"}))
    assert answer.status in (400, 422) and answer.json["error"]["message"]
    assert hub.get("/api/breakpoints") == before


@pytest.mark.parametrize("body", [{"mode": "fast"}, {}, {"mode": 1}, [], b"x"])
def test_bad_modes_are_refused(hub, body):
    answer = hub.ask("PUT", "/api/mode", body, headers=hub.headers(**{"Content-Type": "application/json"}))
    assert answer.status in (400, 422) and hub.get("/api/breakpoints")["mode"] == "run"


def test_mode_is_kept(hub):
    for mode in ("step", "run"):
        assert hub.ask("PUT", "/api/mode", {"mode": mode}).status in (200, 204)
        assert hub.get("/api/breakpoints")["mode"] == mode


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded",
                                          "multipart/form-data",
                                          "application/jsonx", "text/json"])
@pytest.mark.parametrize("method, path", [("POST", "/api/breakpoints"), ("PUT", "/api/mode"), ("POST", "/api/holds/x")])
def test_writes_take_only_json(hub, method, path, content_type):
    headers = hub.headers() if content_type is None else hub.headers(**{"Content-Type": content_type})
    assert hub.ask(method, path, b'{"mode":"step"}', headers=headers).status == 415
    assert hub.get("/api/breakpoints")["mode"] == "run"


def test_json_with_a_charset_is_json(hub):
    headers = hub.headers(**{"Content-Type": "application/json; charset=utf-8"})
    assert hub.ask("PUT", "/api/mode", b'{"mode":"run"}', headers=headers).status in (200, 204)


# Holds


def test_the_list_of_holds_and_one_hold(attach, hub):
    hub.set_breakpoint(kind="tool")
    debugged = attach(hub)
    assert hub.get("/api/holds?run=" + debugged.run) == {"holds": [], "timedOut": False}
    debugged.send(call(1, "echo"))
    hold = debugged.hold()
    assert HOLD_KEYS <= set(hold)
    assert hub.get("/api/holds/" + hold["hold"]) == hold
    assert hold in hub.get("/api/holds")["holds"]
    assert hub.get("/api/holds?run=other")["holds"] == []
    debugged.release(hold)
    debugged.answered(b'"id": 1}')
    assert hub.ask("GET", "/api/holds/" + hold["hold"]).status == 404


def test_waiting_ends_with_a_time_limit(attach, hub):
    assert hub.get("/api/holds?run=%s&wait=0.2" % attach(hub).run) == {"holds": [], "timedOut": True}


def test_waiting_ends_with_the_run(attach, hub):
    """Nothing will be held any more: there is no point in waiting on."""
    debugged = attach(hub).handshake()
    debugged.finish()
    assert hub.get("/api/holds?run=%s&wait=100" % debugged.run)["holds"] == []


@pytest.mark.parametrize("wait", ["-1", "x", "nan", "121", "1e9"])
def test_bad_waits(hub, wait):
    answer = hub.ask("GET", "/api/holds?wait=" + wait, timeout=support.LIMIT_S)
    assert answer.status == 400, "a wait beyond 120 s must not be accepted"


# Streams


def test_a_stream_starts_with_the_current_state(attach, hub):
    hub.set_breakpoint(kind="tool")
    first, second = attach(hub), attach(hub)
    first.send(call(1, "echo"))
    hold = first.hold()
    watch = hub.watch()
    watch.wait("hold", lambda value: value["hold"] == hold["hold"])
    kinds = [kind for kind, _ in watch.items]
    assert kinds[0] == "breakpoints" and watch.items[0][1] == hub.get("/api/breakpoints")
    runs = [value["run"] for kind, value in watch.items if kind == "run"]
    assert runs.index(second.run) < runs.index(first.run) and len(set(runs)) == len(runs)
    assert kinds == ["breakpoints"] + ["run"] * len(runs) + ["hold"]
    first.release(hold)
    assert watch.wait("released", lambda value: value["hold"] == hold["hold"])["action"] == "continue"


def test_a_stream_tells_of_breakpoints_and_mode(hub):
    watch = hub.watch()
    hub.set_breakpoint(name="anything")
    watch.wait("breakpoints", lambda value: [each for each in value["breakpoints"] if each.get("name") == "anything"])
    hub.ask("PUT", "/api/mode", {"mode": "step"})
    watch.wait("mode", lambda value: value == {"mode": "step"})
    hub.ask("PUT", "/api/mode", {"mode": "run"})
    watch.wait("mode", lambda value: value == {"mode": "run"})


def test_a_stream_of_one_run_replays_then_follows_without_gap_or_double(attach, hub):
    debugged = attach(hub).handshake()
    middle = debugged.watch.events()[2]["seq"]
    late = hub.watch("/api/stream?run=%s&after=%d" % (debugged.run, middle))
    debugged.send(b"".join(request(n, "ping") for n in range(1, 101)))
    debugged.finish()
    late.wait_event("run.finished")
    assert late.events() == [event for event in debugged.watch.events() if event["seq"] > middle]


def test_a_stream_without_a_run_carries_no_events(attach, hub):
    watch = hub.watch()
    debugged = attach(hub).handshake()
    debugged.finish()
    watch.wait("run", lambda run: run["run"] == debugged.run and run["status"] == "ok")
    assert not watch.events()


# Export


def test_export_as_json_lines(recorded, hub):
    answer = hub.ask("GET", "/api/runs/%s/export?format=jsonl" % recorded.run)
    assert answer.status == 200 and "attachment" in answer.headers.get("Content-Disposition", "attachment")
    lines = [json.loads(line) for line in answer.body.decode("utf-8").splitlines()]
    assert [line for line in lines if "seq" in line] == hub.get("/api/runs/%s/events" % recorded.run)["events"]


def test_export_as_one_page(recorded, hub):
    answer = hub.ask("GET", "/api/runs/%s/export?format=html" % recorded.run)
    page = answer.body.decode("utf-8")
    assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/html")
    start = page.index('<script type="application/json" id="recorded-run">')
    data = page[start:page.index("</script>", start)].split(">", 1)[1]
    assert "<" not in data
    recorded_run = json.loads(data)
    assert recorded_run["run"]["run"] == recorded.run
    assert recorded_run["events"] == hub.get("/api/runs/%s/events" % recorded.run)["events"]
    assert 'http-equiv="Content-Security-Policy"' in page and hub.token not in page


@pytest.mark.parametrize("query", ["format=pdf", "", "format="])
def test_an_unknown_export_format(recorded, hub, query):
    answer = hub.ask("GET", "/api/runs/%s/export?%s" % (recorded.run, query))
    assert answer.status in (400, 200) and (answer.status == 400 or query == "")


def test_surrogates_and_bad_text_survive_every_surface(attach, hub):
    debugged = attach(hub, server="echo_frames")
    frames = [b'{"jsonrpc":"2.0","id":"\\ud800","method":"tools/call","params":{"name":"\\udfff",'
              b'"arguments":{"\\ud800":"\\ud800"}}}',
              b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"\xff"}}',
              b'{"jsonrpc":"2.0","id":3,"method":"\\u0000\\u001b[2J\\u202e"}']
    debugged.send(b"\n".join(frames) + b"\n")
    debugged.answered(frames[-1] + b"\n")
    debugged.finish()
    for path in ("/api/runs/%s", "/api/runs/%s/events", "/api/runs/%s/export?format=jsonl",
                 "/api/runs/%s/export?format=html"):
        answer = hub.ask("GET", path % debugged.run)
        assert answer.status == 200
        answer.body.decode("utf-8")


# A server that stays up


def test_several_requests_on_one_connection(hub):
    connection = http.client.HTTPConnection("127.0.0.1", hub.port, timeout=support.LIMIT_S)
    for _ in range(3):
        connection.request("GET", "/api/runs", headers=hub.headers())
        response = connection.getresponse()
        assert response.status == 200 and response.read()
        connection.request("GET", "/api/nothing", headers=hub.headers())
        response = connection.getresponse()
        assert response.status == 404 and response.read()
    connection.close()


@pytest.mark.parametrize("garbage", [b"", b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01",
                                     b"GET / HTTP/9.9\r\n\r\n",
                                     b"GET " + b"/" * 100000 + b" HTTP/1.1\r\n\r\n",
                                     b"POST /api/mode HTTP/1.1\r\nContent-Length: x\r\n\r\n",
                                     b"POST /api/mode HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"\xff" * 5000,
                                     b"PUT /api/mode HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{"],
                                     ids=range(10))
def test_garbage_on_the_port_harms_nobody(hub, garbage):
    with socket.create_connection(("127.0.0.1", hub.port), timeout=support.LIMIT_S) as connection:
        try:
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
        except OSError:
            pass  # the hub hung up on it, which is one right answer to garbage
    assert hub.ask("GET", "/api/health").status == 200
    assert b"Traceback" not in hub.session.err


def test_a_client_that_leaves_in_the_middle_of_an_answer(hub):
    for _ in range(5):
        watch = hub.watch()
        watch.close()
    hub.watches.clear()
    assert hub.ask("GET", "/api/health").status == 200 and b"Traceback" not in hub.session.err
