"""Runs on disk: SQLite in WAL mode, retention, abandoned runs, restarts, big payloads, hubs side by side."""

import json
import os
import signal
import sqlite3
import time

import pytest

from hubs import call, request


def finished_run(attach, hub, **keywords):
    """A finished run with one call; returns (its name, its events)."""
    debugged = attach(hub, **keywords).handshake()
    debugged.send(call(1, "echo", {"text": "kept"})).answered(b"kept")
    debugged.finish()
    return debugged.run, hub.get("/api/runs/%s/events" % debugged.run)["events"]


def stop(hub, how=signal.SIGTERM):
    """End a hub and leave its files."""
    for watch in hub.watches:
        watch.close()
    hub.watches.clear()
    hub.session.signal(how)
    hub.session.wait()


def test_runs_survive_a_restart(attach, own_hub, tmp_path):
    first = own_hub()
    run, events = finished_run(attach, first)
    described = first.get("/api/runs/" + run)
    stop(first)
    second = own_hub()
    assert second.get("/api/runs/%s/events" % run)["events"] == events
    assert second.get("/api/runs/" + run) == dict(described, attached=False)


def test_breakpoints_and_mode_survive_a_restart(own_hub):
    first = own_hub()
    first.clear_breakpoints()
    first.set_breakpoint(kind="tool", name="x", point="after")
    first.ask("PUT", "/api/mode", {"mode": "step"})
    kept = first.get("/api/breakpoints")
    stop(first)
    assert own_hub().get("/api/breakpoints") == kept


def test_breakpoints_survive_a_restart_of_the_relay(attach, own_hub):
    hub = own_hub()
    hub.set_breakpoint(name="echo")
    for _ in range(2):
        debugged = attach(hub)
        debugged.send(call(1, "echo"))
        debugged.release(debugged.hold())
        debugged.finish()


def test_the_database_is_sqlite_in_wal_mode(attach, own_hub):
    hub = own_hub()
    finished_run(attach, hub)
    with sqlite3.connect("file:%s?mode=ro" % hub.db, uri=True) as database:
        assert database.execute("pragma journal_mode").fetchone() == ("wal",)
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)


def test_a_killed_hub_leaves_a_readable_database_and_no_running_runs(attach, own_hub):
    first = own_hub()
    debugged = attach(first)
    debugged.send(call(1, "echo", {"text": "kept"})).answered(b"kept")
    debugged.finished("tool:echo")
    debugged.session.signal(signal.SIGKILL)
    stop(first, signal.SIGKILL)
    second = own_hub()
    run = second.get("/api/runs/" + debugged.run)
    assert run["status"] == "abandoned" and run["attached"] is False
    nodes = [event.get("node") for event in second.get("/api/runs/%s/events" % debugged.run)["events"]]
    assert "tool:echo" in nodes


@pytest.mark.slow
def test_a_relay_that_vanishes_leaves_an_abandoned_run(attach, own_hub):
    hub = own_hub()
    debugged = attach(hub).handshake()
    lobby = hub.watch()
    debugged.session.signal(signal.SIGKILL)
    run = lobby.wait("run", lambda run: run["run"] == debugged.run and run["status"] == "abandoned")
    assert run["attached"] is False


def test_an_old_database_is_pruned_at_the_start(attach, own_hub):
    """200 runs or 30 days: older finished ones go."""
    first = own_hub()
    run, _ = finished_run(attach, first)
    stop(first)
    old = (time.time() - 40 * 86400) * 1000
    with sqlite3.connect(first.db) as database:
        [(text,)] = database.execute("select summary from runs where run = ?", (run,)).fetchall()
        summary = json.loads(text)
        summary["fields"].update(started=old, ended=old + 1)
        database.execute("update runs set started = ?, ended = ?, summary = ?", (old, old + 1, json.dumps(summary)))
    assert run not in [each["run"] for each in own_hub().get("/api/runs")["runs"]]


def test_in_memory_nothing_is_written(attach, own_hub, tmp_path):
    hub = own_hub(db=":memory:")
    run, events = finished_run(attach, hub)
    assert hub.get("/api/runs/%s/events" % run)["events"] == events
    assert not os.path.exists(str(tmp_path / ":memory:")) and not os.path.exists(":memory:")
    assert sorted(os.listdir(hub.home)) == ["hub-%d.json" % hub.port]


@pytest.mark.parametrize("kind", ["a directory", "no database", "no such folder"])
def test_a_database_that_cannot_be_used(attach, own_hub, tmp_path, kind):
    """It says so in a sentence and keeps runs in memory; nothing is overwritten."""
    path = tmp_path / "broken.db"
    if kind == "a directory":
        path.mkdir()
    elif kind == "no database":
        path.write_bytes(b"precious notes\n" * 500)
    else:
        path = tmp_path / "no" / "such" / "folder" / "runs.db"
    hub = own_hub(db=str(path))
    run, events = finished_run(attach, hub)
    assert hub.get("/api/runs/%s/events" % run)["events"] == events
    said = (hub.session.out + hub.session.err).decode()
    assert "Traceback" not in said
    if kind == "no database":
        assert path.read_bytes() == b"precious notes\n" * 500
    assert kind == "no such folder" or "memory" in said


def test_two_hubs_on_two_ports_with_one_home(attach, own_hub, tmp_path):
    one, other = own_hub(db=str(tmp_path / "one.db")), own_hub(db=str(tmp_path / "other.db"))
    assert one.home == other.home
    run, _ = finished_run(attach, one)
    twin, _ = finished_run(attach, other)
    assert [each["run"] for each in one.get("/api/runs")["runs"]] == [run]
    assert [each["run"] for each in other.get("/api/runs")["runs"]] == [twin]
    stop(one)
    assert os.path.exists(os.path.join(other.home, "hub-%d.json" % other.port))


def test_two_hubs_on_one_database(attach, own_hub, tmp_path):
    one, other = own_hub(db=str(tmp_path / "shared.db")), own_hub(db=str(tmp_path / "shared.db"))
    run, events = finished_run(attach, one)
    twin, more = finished_run(attach, other)
    assert one.get("/api/runs/%s/events" % run)["events"] == events
    assert other.get("/api/runs/%s/events" % twin)["events"] == more
    assert b"Traceback" not in one.session.err + other.session.err


def test_a_payload_over_512_kb_is_shortened_with_a_mark_and_its_true_size(attach, own_hub):
    hub = own_hub()
    debugged = attach(hub)
    size = 700_000
    debugged.send(call(1, "big", {"bytes": size}))
    debugged.answered(b'"id": 1}')
    finished = debugged.finished("tool:big")
    line = debugged.session.out.splitlines()[-1]
    frame = finished["frame"]
    if isinstance(frame, dict):
        assert frame["truncated"] is True and frame["bytes"] == len(line) and line.decode().startswith(frame["text"])
        assert len(frame["text"]) <= 512 * 1024
    else:
        assert frame.encode() == line
    result, _ = debugged.finish()
    assert b"x" * size in result.out  # the host got all of it


def test_a_shortened_payload_does_not_cut_a_character(attach, own_hub):
    hub = own_hub()
    debugged = attach(hub, server="echo_frames")
    for shift in range(4):
        frame = call(shift, "t", raw_arguments='{"x":"%s%s"}' % ("a" * shift, "😀" * 150000))
        debugged.send(frame).answered(frame)
    debugged.watch.wait_event("node.started", lambda event: event["node"] == "tool:t", times=4)
    for event in debugged.started("tool:t"):
        text = event["frame"]["text"] if isinstance(event["frame"], dict) else event["frame"]
        assert "\ufffd" not in text


def test_an_edit_or_retry_of_a_shortened_call_still_uses_the_original_bytes(attach, own_hub):
    hub = own_hub()
    hub.clear_breakpoints()
    hub.set_breakpoint(kind="tool")
    debugged = attach(hub)
    frame = call(1, "echo", {"text": "z" * 600_000})
    debugged.send(frame)
    hold = debugged.hold()
    debugged.release(hold)
    debugged.answered(b'"id": 1}')
    assert debugged.seen() == frame


def test_deleting_a_run_removes_it_from_the_disk(attach, own_hub):
    hub = own_hub()
    run, _ = finished_run(attach, hub)
    assert hub.ask("DELETE", "/api/runs/" + run).status == 204
    stop(hub)
    assert own_hub().get("/api/runs")["runs"] == []


@pytest.mark.slow
def test_many_calls_reach_the_record_without_a_gap(attach, own_hub):
    hub = own_hub()
    debugged = attach(hub)
    total = 3000
    debugged.send(b"".join(request(n, "ping") for n in range(total)))
    debugged.answered(b'"id": %d}' % (total - 1))
    result, _ = debugged.finish()
    assert result.code == 0
    run = hub.get("/api/runs/" + debugged.run)
    events, after = [], 0
    while after is not None:
        page = hub.get("/api/runs/%s/events?after=%d&limit=1000" % (debugged.run, after))
        events += page["events"]
        after = page["next"]
    gaps = sum(event.get("dropped") or 0 for event in events if event["type"] == "gap")
    pings = [event for event in events if event["type"] == "node.finished" and event["node"] == "mcp:ping"]
    assert len(pings) + gaps >= total and (gaps or len(pings) == total) and run["status"] == "ok"
