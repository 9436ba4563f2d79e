"""The session never breaks because of the debugger: each way in which a hub can be absent, odd, stuck or gone.

A Wire sits between relay and hub where a test needs to cut, stop or spoil what passes; everything else is real.
"""

import json
import os
import shutil
import signal
import socket
import threading

import pytest

import support
from hubs import INITIALIZE, INITIALIZED, call, request

BURST = INITIALIZE + INITIALIZED + b"".join(call(n, "echo", {"text": "t%d" % n}) for n in range(1, 31))


class Listener:
    """Something on the hub's port: accepts, hands each connection to `treat`, keeps them open until the end."""

    def __init__(self, treat):
        self.socket, self.port = support.reserve_port()
        self.socket.listen(20)
        self.treat, self.connections, self.accepted = treat, [], threading.Event()
        threading.Thread(target=self._accept, name="test.listener", daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return  # closed at the end of the test
            self.connections.append(connection)
            self.accepted.set()
            threading.Thread(target=self._serve, args=(connection,), name="test.peer", daemon=True).start()

    def _serve(self, connection):
        try:
            self.treat(connection)
        except OSError:
            pass  # the relay or the test closed it

    def close(self):
        self.socket.close()
        for connection in self.connections:
            connection.close()


class Wire:
    """A TCP relay between mcp_relay and its hub which can be cut, and whose way to the relay can be spoiled."""

    def __init__(self, hub):
        self.listener = Listener(self._join)
        self.hub, self.pairs = hub, []
        with open(os.path.join(hub.home, "hub-%d.json" % hub.port)) as file:
            address = dict(json.load(file), port=self.listener.port,
                           url="http://127.0.0.1:%d" % self.listener.port)
        self.path = os.path.join(hub.home, "hub-%d.json" % self.listener.port)
        with open(os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            json.dump(address, file)

    def _join(self, connection):
        far = socket.create_connection(("127.0.0.1", self.hub.port))
        self.pairs.append((connection, far))
        threading.Thread(target=self._pump, args=(far, connection), name="test.pump", daemon=True).start()
        self._pump(connection, far)

    @staticmethod
    def _pump(source, sink):
        try:
            while True:
                data = source.recv(65536)
                if not data:
                    break
                sink.sendall(data)
        except OSError:
            pass  # cut
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # already down

    def say_to_relay(self, data):
        """Put bytes of ours between what the hub says."""
        self.pairs[-1][0].sendall(data)

    def cut(self):
        """Break the newest connection."""
        for end in self.pairs[-1]:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # already down

    def close(self):
        self.listener.close()
        os.unlink(self.path)


@pytest.fixture
def listen(tmp_path):
    """listen(treat) -> Listener, with an address file so that the relay believes in it."""
    opened = []

    def start_listener(treat):
        listener = Listener(treat)
        opened.append(listener)
        address = {"port": listener.port, "pid": os.getpid(), "url": "http://127.0.0.1:%d" % listener.port,
                   "token": "t" * 43,
                   "version": "0"}
        with open(os.open(str(tmp_path / ("hub-%d.json" % listener.port)), os.O_WRONLY | os.O_CREAT, 0o600),
                  "w") as file:
            json.dump(address, file)
        return listener

    yield start_listener
    for listener in opened:
        listener.close()


def plain_session(start, home, port, *options):
    """A relay that looks for its hub at home and port, in front of the raw server, which has answered a burst."""
    session = start("--port", port, "--home", home, *options, server=support.server("raw"),
                    env=support.quiet_environment(home, port))
    session.send(BURST)
    session.wait_out(b'"id": 30}\n')
    return session


def check_burst(session):
    """Everything was answered, once, in order, and the relay ends with its server."""
    result = session.finish()
    assert result.code == 0
    assert [json.loads(line)["id"] for line in result.out.splitlines()] == list(range(31))
    assert b"Traceback" not in result.err
    return result


# What may be on the port instead of a hub


def silent(connection):
    while connection.recv(65536):
        pass


def web_server(connection):
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
    connection.close()


def refuser(connection):
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
    connection.close()


def slammer(connection):
    connection.close()


def junk(connection):
    connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n" + os.urandom(20000))
    silent(connection)


def other_version(connection):
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: mcp-relay/99\r\nConnection: Upgrade\r\n\r\n"
                       b'{"type":"welcome","protocol":99}\n')
    silent(connection)


def half_upgrade(connection):
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: mcp-relay/1\r\n")
    silent(connection)


def upgrade_then_junk(connection):
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: mcp-relay/1\r\nConnection: Upgrade\r\n\r\n")
    connection.sendall(b"\xff\xfe\n{}\n[]\nnull\n{\"type\":5}\n{\"type\":\"release\"}\n" + b"[" * 50000 + b"\n")
    silent(connection)


def endless_header(connection):
    while True:
        connection.sendall(b"HTTP/1.1 101 X" * 1000)


def endless_line(connection):
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: mcp-relay/1\r\nConnection: Upgrade\r\n\r\n")
    while True:
        connection.sendall(b"x" * 65536)


STRANGERS = [silent, web_server, refuser, slammer, junk, other_version, half_upgrade, upgrade_then_junk, endless_header]


@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda stranger: stranger.__name__)
@pytest.mark.parametrize("options", [[], ["--trace"]], ids=["plain", "traced"])
def test_something_else_on_the_port(start, listen, tmp_path, stranger, options):
    listener = listen(stranger)
    session = plain_session(start, tmp_path, listener.port, *options)
    assert listener.accepted.wait(support.LIMIT_S)
    session.send(request(31, "ping"))
    session.wait_out(b'"id": 31}\n')
    result = session.finish()
    assert result.code == 0 and b"Traceback" not in result.err
    assert [json.loads(line)["id"] for line in result.out.splitlines()] == list(range(32))


@pytest.mark.parametrize("stranger", [silent, half_upgrade], ids=lambda stranger: stranger.__name__)
def test_waiting_for_attach_is_bounded_whatever_is_on_the_port(start, listen, tmp_path, stranger):
    listener = listen(stranger)
    check_burst(plain_session(start, tmp_path, listener.port, "--wait-for-attach"))


def test_no_hub_at_all(start, nowhere):
    check_burst(plain_session(start, *nowhere))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"token":5}', '{"port":1}', "\0" * 1000], ids=range(6))
def test_a_spoiled_address_file(start, listen, tmp_path, content):
    listener = listen(silent)
    (tmp_path / ("hub-%d.json" % listener.port)).write_text(content)
    check_burst(plain_session(start, tmp_path, listener.port))


@pytest.mark.parametrize("how", ["missing", "a file", "unreadable", "a directory as file"])
def test_a_home_that_cannot_be_used(start, tmp_path, nowhere, how):
    home = tmp_path / "home"
    if how == "a file":
        home.write_text("")
    elif how == "unreadable":
        home.mkdir()
        home.chmod(0)
    elif how == "a directory as file":
        (home / ("hub-%d.json" % nowhere[1])).mkdir(parents=True)
    check_burst(plain_session(start, home, nowhere[1]))


# Losing the hub in the middle of a hold


@pytest.fixture
def held(attach, own_hub, tmp_path):
    """(debugged, hold): tools/call #1 is held, with more frames behind it."""
    hub = own_hub()
    hub.set_breakpoint(name="echo")
    debugged = attach(hub)
    debugged.send(INITIALIZE + INITIALIZED + call(1, "echo", {"text": "held"}))
    hold = debugged.hold()
    debugged.send(b"".join(call(n, "count") for n in range(2, 5)))
    return debugged, hold


def check_released(debugged):
    """The held call and what is behind it go on, unchanged and in order."""
    debugged.answered(b'"id": 4}\n')
    debugged.send(call(5, "echo", {"text": "free"}))  # nothing is held any more
    debugged.answered(b"free")
    assert debugged.seen().splitlines(True)[2:] == [call(1, "echo", {"text": "held"})] + [
        call(n, "count") for n in range(2, 5)] + [call(5, "echo", {"text": "free"})]
    result = debugged.session.finish()
    assert result.code == 0 and b"Traceback" not in result.err
    assert [message["id"] for message in debugged.messages()] == [0, 1, 2, 3, 4, 5]


def test_a_killed_hub_releases_everything(held):
    debugged, _ = held
    debugged.hub.session.signal(signal.SIGKILL)
    check_released(debugged)


def test_a_hub_that_ends_in_order_releases_everything(held):
    debugged, _ = held
    debugged.hub.session.signal(signal.SIGTERM)
    check_released(debugged)


@pytest.mark.slow
def test_a_frozen_hub_releases_everything(held):
    """SIGSTOP: the connection stays open and says nothing; 15 s of silence are a lost debugger."""
    debugged, _ = held
    debugged.hub.session.signal(signal.SIGSTOP)
    try:
        check_released(debugged)
    finally:
        debugged.hub.session.signal(signal.SIGCONT)


@pytest.fixture
def wired(attach, own_hub, relay_file, tmp_path):
    """(debugged, wire): a relay attached through a Wire."""
    hub = own_hub()
    wire = Wire(hub)
    yield attach(hub, port=wire.listener.port), wire
    wire.close()


def test_a_cut_connection_releases_and_the_next_attach_arms_again(wired):
    debugged, wire = wired
    debugged.hub.set_breakpoint(name="echo")
    debugged.send(INITIALIZE + INITIALIZED + call(1, "echo", {"text": "held"}))
    debugged.hold()
    wire.cut()
    debugged.answered(b"held")
    lobby = debugged.hub.watch()
    lobby.wait("run", lambda run: run["run"] == debugged.run and run["attached"])
    debugged.send(call(2, "echo", {"text": "again"}))
    hold = debugged.hold()
    assert hold["id"] == "2"
    debugged.release(hold)
    debugged.answered(b"again")
    result, events = debugged.finish()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))  # replayed without gap or double
    released = [event for event in events if event["type"] == "hold.released"]
    assert [event["by"] for event in released][0] == "debugger lost" and result.code == 0


BAD_LINES = [b"\n\n\n", b"not json\n", b"\xff\xfe\n", b"{}\n", b"[]\n", b"null\n", b"5\n", b'{"type":"no-such-type"}\n',
             b'{"type":"release"}\n', b'{"type":"release","hold":5,"action":[]}\n', b'{"type":"breakpoints"}\n',
             b'{"type":"breakpoints","breakpoints":5}\n', b'{"type":"breakpoints","breakpoints":[5,{"point":[]}]}\n',
             b'{"type":"mode","mode":7}\n', b"[" * 60000 + b"\n", b'{"type":"' + b"x" * 3000000 + b'"}\n']


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: ascii(line[:40]))
def test_a_malformed_line_of_the_hub(wired, line):
    """Ignored, or taken for a lost debugger; in both cases the session goes on and ends well."""
    debugged, wire = wired
    debugged.send(INITIALIZE + INITIALIZED).answered(b'"id": 0}')
    wire.say_to_relay(line)
    debugged.send(BURST[len(INITIALIZE + INITIALIZED):])
    debugged.answered(b'"id": 30}\n')
    check_burst(debugged.session)


# Ends while something is held


def test_the_host_leaves_during_a_hold(held):
    """End of file behind a held frame is noticed at once: the hold is released and the relay ends by itself."""
    debugged, _ = held
    result = debugged.session.finish()
    assert result.code == 0
    assert debugged.seen().count(b"tools/call") == 4  # everything the host said reached the server, in order
    released = debugged.watch.wait_event("hold.released")
    assert (released["action"], released["by"]) == ("continue", "host gone")


@pytest.mark.parametrize("name, code", [("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 129)])
def test_a_signal_during_a_hold(held, name, code):
    debugged, _ = held
    debugged.session.signal(getattr(signal, name))
    assert debugged.session.wait().code == code


def kill_server(debugged):
    """SIGKILL the server of a relay: it is the relay's only child."""
    children = "/proc/%d/task/%d/children" % (debugged.session.pid, debugged.session.pid)
    support.need(os.path.exists(children), "this kernel does not list the children of a process")
    [pid] = open(children).read().split()
    os.kill(int(pid), signal.SIGKILL)


def test_the_server_dies_while_a_request_is_held_before_it(held):
    """One error with the request's id, then end of file and the server's code."""
    debugged, hold = held
    kill_server(debugged)
    result = debugged.session.wait()  # by itself, although stdin is open and nobody released
    assert result.code == 137
    answer = debugged.answer_to(1)
    assert answer["error"]["code"] and answer["error"]["message"]
    assert debugged.hub.release(hold).status in (404, 409)
    debugged.watch.wait_event("run.finished")
    started = {event["instance"] for event in debugged.watch.events("node.started")}
    assert started == {event["instance"] for event in debugged.watch.events("node.finished")}


def test_a_hold_is_released_although_the_end_of_the_server_is_told_late(attach, own_hub, tmp_path):
    """Its stdout may end, and its exit be known, before the note of that exit is read."""
    late = support.patched(tmp_path / "late.py",
                           "note = relay.Relay.note",
                           "def patched(self, what, about=None):",
                           "    if what == 'lane ended' and about is self.to_client:",
                           "        while self.child.ended is None: pass",
                           "    if what != 'child ended':",
                           "        note(self, what, about)",
                           "relay.Relay.note = patched")
    hub = own_hub()
    hub.set_breakpoint(name="echo")
    debugged = attach(hub, flags=("-I", "-S", late))
    debugged.send(INITIALIZE + INITIALIZED + call(1, "echo", {"text": "held"}))
    debugged.hold()
    kill_server(debugged)
    assert debugged.session.wait().code == 137
    assert "the MCP server exited while tools/call was held" in debugged.answer_to(1)["error"]["message"]


def test_the_server_dies_while_its_answer_is_held(attach, own_hub):
    """The answer was given: it is delivered, then end of file and the server's code."""
    hub = own_hub()
    hub.clear_breakpoints()
    hub.set_breakpoint(kind="tool", point="after")
    debugged = attach(hub)
    debugged.send(call(1, "echo", {"text": "last words"}))
    debugged.hold()
    kill_server(debugged)
    result = debugged.session.wait()
    assert result.code == 137 and b"last words" in result.out


def test_an_over_long_frame_behind_a_hold(attach, own_hub):
    """While a frame is held the direction turns raw behind it: released, everything arrives in order."""
    hub = own_hub()
    hub.set_breakpoint(name="held")
    debugged = attach(hub, "--max-frame-bytes", "4096", server="echo_frames")
    debugged.send(call(1, "held"))
    hold = debugged.hold()
    long_one = call(2, "t", {"x": "y" * 70000})
    debugged.send(long_one + call(3, "held"))
    debugged.release(hold)
    whole = call(1, "held") + long_one + call(3, "held")
    debugged.answered(whole)
    assert debugged.session.finish().out == whole and debugged.seen() == whole


def test_an_injected_answer_waits_for_a_frame_boundary_in_raw_mode(attach, own_hub):
    """The server is in the middle of an over-long line when the answer is injected: it comes after that line."""
    hub = own_hub()
    hub.set_breakpoint(name="held")
    debugged = attach(hub, "--max-frame-bytes", "2048", server="echo_frames")
    long_one = b'{"jsonrpc":"2.0","method":"n","params":"' + b"z" * 50000
    debugged.send(call(1, "held"))
    hold = debugged.hold()
    debugged.release(hold)
    debugged.answered(b'"held"')
    debugged.send(long_one + b'"}\n' + call(2, "plain"))
    debugged.answered(b'"plain"')
    for line in debugged.session.finish().out.splitlines():
        json.loads(line)


# Timers


def test_a_hold_can_be_limited_in_time(attach, own_hub):
    hub = own_hub()
    hub.set_breakpoint(name="echo")
    debugged = attach(hub, "--hold-timeout", "0.2")
    debugged.send(call(1, "echo", {"text": "asked"}))
    debugged.answered(b"asked")
    released = debugged.watch.wait_event("hold.released")
    assert (released["action"], released["by"]) == ("continue", "hold-timeout") and released["heldMs"] >= 200


def test_the_time_limit_can_come_from_the_environment(attach, own_hub):
    hub = own_hub()
    hub.set_breakpoint(name="echo")
    debugged = attach(hub, env={"MCP_RELAY_HOLD_TIMEOUT": "0.2"})
    debugged.send(call(1, "echo", {"text": "asked"})).answered(b"asked")
    assert debugged.watch.wait_event("hold.released")["by"] == "hold-timeout"


def test_nobody_watching(start, own_hub, tmp_path):
    """No page, stream or waiting command: an open hold is released after --unattended-after seconds."""
    hub = own_hub(unattended_after="0.5")
    hub.set_breakpoint(name="echo")
    session = start("--port", hub.port, "--home", hub.home, "--wait-for-attach", server=support.server("raw"),
                    env=support.quiet_environment(hub.home, hub.port))
    session.send(call(1, "echo", {"text": "asked"}))
    session.wait_out(b"asked")
    [run] = hub.get("/api/runs")["runs"]
    events = hub.get("/api/runs/%s/events" % run["run"])["events"]
    [released] = [event for event in events if event["type"] == "hold.released"]
    assert (released["action"], released["by"]) == ("continue", "unattended")
    assert session.finish().code == 0


@pytest.mark.slow
def test_a_viewer_keeps_a_hold_open(attach, own_hub):
    """The Watch of this test is a viewer: the hold outlives --unattended-after, and is released when it leaves."""
    hub = own_hub(unattended_after="0.3")
    hub.set_breakpoint(name="echo")
    debugged = attach(hub)
    debugged.send(call(1, "echo", {"text": "asked"}))
    hold = debugged.hold()
    answer = hub.ask("GET", "/api/holds?run=other&wait=1")  # an event that comes well after 0.3 s
    assert answer.json["timedOut"] and b"asked" not in debugged.session.out
    assert hub.get("/api/holds/" + hold["hold"])["hold"] == hold["hold"]
    debugged.watch.close()
    debugged.answered(b"asked")


# The disk


@pytest.mark.parametrize("blocks", [8, 60, 200])
def test_a_full_disk_under_the_hub(attach, own_hub, blocks):
    """A limit on the size of files stands for a full disk: at once, at the schema, or in the middle of a session."""
    hub = own_hub(prefix=["sh", "-c", 'ulimit -f %d; exec "$@"' % blocks, "sh"])
    debugged = attach(hub)
    debugged.send(BURST).answered(b'"id": 30}\n')
    debugged.send(b"".join(call(n, "echo", {"text": "x" * 3000, "n": n}) for n in range(31, 131)))
    debugged.answered(b'"id": 130}\n')
    result = debugged.session.finish()
    assert result.code == 0 and result.out.count(b"\n") == 131
    debugged.watch.wait_event("run.finished")
    assert hub.get("/api/runs/" + debugged.run)["status"] == "ok"
    said = (hub.session.out + hub.session.err).decode()
    assert "memory" in said and "Traceback" not in said


def test_a_database_that_is_removed_while_in_use(attach, own_hub):
    hub = own_hub()
    debugged = attach(hub)
    debugged.send(INITIALIZE + INITIALIZED).answered(b'"id": 0}')
    for suffix in ("", "-wal", "-shm"):
        if os.path.exists(hub.db + suffix):
            os.unlink(hub.db + suffix)
    debugged.send(BURST[len(INITIALIZE + INITIALIZED):]).answered(b'"id": 30}\n')
    check_burst(debugged.session)
    assert hub.ask("GET", "/api/health").status == 200


def test_the_hub_moves_and_the_relay_finds_it_again(start, own_hub, tmp_path):
    """The address file is read anew at every attempt: another hub on the same port has another token."""
    holder, port = support.reserve_port()
    holder.close()
    first = own_hub(port=port)
    session = start("--port", port, "--home", first.home, server=support.server("raw", "--tag", "tag-moves"),
                    env=support.quiet_environment(first.home, port))
    session.send(BURST)
    run = first.watch().wait("run", lambda run: "tag-moves" in run["label"])["run"]
    first.destroy()
    shutil.rmtree(first.home)
    second = own_hub(port=port, db=str(tmp_path / "second.db"))
    assert second.token != first.token
    again = second.watch().wait("run", lambda run: "tag-moves" in run["label"] and run["attached"])["run"]
    assert again == run
    events = second.watch("/api/stream?run=%s&after=0" % run)
    events.wait_event("node.finished", lambda event: event["node"] == "tool:echo", times=30)
    check_burst(session)


# A fault of our own


@pytest.mark.parametrize("method", ["_receive", "_fill"])
def test_a_reporter_that_raises_is_told_once_and_the_session_goes_on(attach, hub, tmp_path, method):
    """The thread of the reporter dies of a bug while a frame is held: the frame goes on, and so does everything."""
    broken = support.patched(tmp_path / "broken.py",
                             "import os",
                             "plain = relay.Reporter.%s" % method,
                             "def fault(*arguments):",
                             "    if os.path.exists(%r):" % str(tmp_path / "now"),
                             "        raise RuntimeError('a bug\\u202e')",
                             "    return plain(*arguments)",
                             "relay.Reporter.%s = fault" % method)
    hub.set_breakpoint(name="echo")
    debugged = attach(hub, flags=("-I", "-S", broken))
    debugged.handshake().send(call(1, "echo", {"text": "one"}))
    debugged.hold()
    (tmp_path / "now").touch()
    hub.clear_breakpoints()
    debugged.send(b"".join(call(n, "echo", {"text": "t"}) for n in range(2, 31)))
    debugged.answered(b'"id": 30}\n')
    result = check_burst(debugged.session)
    assert result.err.count(b"mcp_relay: internal error in relay.reporter: RuntimeError: a bug\\u202e") == 1
