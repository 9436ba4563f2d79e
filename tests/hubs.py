"""A running hub for the tests, its HTTP API, and a relay attached to it. Everything is a real process."""

import collections
import http.client
import json
import os
import socket
import sys
import threading

import pytest

import support

Answer = collections.namedtuple("Answer", "status headers body json")

INITIALIZE = (b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
              b'"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}\n')
INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'


def request(raw_id, method, params=None, raw_params=None):
    """One request frame (bytes); raw_id and raw_params are JSON text, params a value."""
    text = raw_params if raw_params is not None else json.dumps(params if params is not None else {})
    return ('{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}\n' % (raw_id, method, text)).encode()


def call(raw_id, tool, arguments=None, raw_arguments=None):
    """One tools/call frame."""
    text = raw_arguments if raw_arguments is not None else json.dumps(arguments if arguments is not None else {})
    return request(raw_id, "tools/call", raw_params='{"name":"%s","arguments":%s}' % (tool, text))


class Watch:
    """One open `GET /api/stream`, read by a thread: items is a list of (kind, value) in order of arrival."""

    def __init__(self, hub, path):
        self.items, self.changed, self.ended = [], threading.Condition(), False
        self.connection = http.client.HTTPConnection("127.0.0.1", hub.port)
        self.connection.request("GET", path, headers=hub.headers())
        self.socket = self.connection.sock  # the response takes it over and hides it
        self.response = self.connection.getresponse()
        assert self.response.status == 200, self.response.read()
        self.hub = hub
        threading.Thread(target=self._read, name="test.stream", daemon=True).start()

    def _read(self):
        kind, data = None, []
        try:
            for raw in self.response:
                line = raw.decode("utf-8").rstrip("\r\n")
                if line.startswith("event:"):
                    kind = line[6:].strip()
                elif line.startswith("data:"):
                    data.append(line[5:].strip())
                elif not line and data:
                    with self.changed:
                        self.items.append((kind, json.loads("\n".join(data))))
                        self.changed.notify_all()
                    kind, data = None, []
        except (OSError, ValueError, AttributeError):
            pass  # the test closed the connection, or the hub is gone; both end the stream
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def wait(self, kind, claim=lambda value: True, times=1):
        """Block until `times` items of this kind satisfy claim; return the last of them."""
        found, looked = [], 0
        with self.changed:
            while True:
                found += [value for each, value in self.items[looked:] if each == kind and claim(value)]
                looked = len(self.items)
                if len(found) >= times:
                    return found[times - 1]
                if self.ended or not self.changed.wait(support.LIMIT_S):
                    pytest.fail("no such %r on the stream (ended: %s); it said:\n%s\n%s" % (
                        kind, self.ended, "\n".join(repr(item)[:300] for item in self.items[-25:]),
                        self.hub.session.report()))

    def events(self, *types):
        """All events so far, or those of the given types."""
        with self.changed:
            return [value for kind, value in self.items if kind == "event" and (not types or value["type"] in types)]

    def wait_event(self, type_, claim=lambda value: True, times=1):
        """Block until an event of that type satisfies claim; return it."""
        return self.wait("event", lambda value: value["type"] == type_ and claim(value), times)

    def close(self):
        """Leave: for the hub, this viewer is gone."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)  # wakes the reading thread, which a mere close would wait for
        except OSError:
            pass  # the hub has closed it already
        with self.changed:
            ended = self.changed.wait_for(lambda: self.ended, support.LIMIT_S)
        if ended:  # closing a response that another thread still reads would block
            self.response.close()
            self.connection.close()


class Hub:
    """`mcp_relay.py serve` as a process.

    folder: holds the home and the database. Attributes: port, home, token, session (its process).
    """

    def __init__(self, relay_file, folder, *arguments, port=None, db=None, env=None, python=sys.executable,
                 unattended_after="0", prefix=()):
        """prefix: words of a command that runs the hub, such as a shell that sets limits first."""
        self.relay_file, self.home = relay_file, os.path.join(str(folder), "home")
        if port is None:
            holder, port = support.reserve_port()
            holder.close()
        self.port = port
        self.db = os.path.join(str(folder), "runs.db") if db is None else db
        os.makedirs(str(folder), exist_ok=True)
        program = support.patched(os.path.join(str(folder), "hub.py"))
        argv = [*prefix, python, "-I", "-S", program, relay_file, "serve", "--port", str(self.port), "--db", self.db]
        if unattended_after is not None:
            argv += ["--unattended-after", unattended_after]
        self.environment = dict(support.quiet_environment(self.home, self.port), **(env or {}))
        self.session = support.Session(argv + list(arguments), env=self.environment)
        self.session.wait_until(lambda: b"#token=" in self.session.out + self.session.err or self._answers(),
                                "the address of the page")
        with open(os.path.join(self.home, "hub-%d.json" % self.port)) as address:
            self.token = json.load(address)["token"]
        self.watches = []

    def _answers(self):
        """With --json there is no token on the terminal, only one line."""
        return b"\n" in self.session.out and b'"port"' in self.session.out

    def headers(self, **more):
        """Headers of an authorised request."""
        return dict({"Authorization": "Bearer " + self.token}, **more)

    def ask(self, method, path, body=None, headers=None, timeout=None):
        """One HTTP request -> Answer; body may be bytes or a JSON value; headers=None authorises."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout or support.LIMIT_S + 5)
        if headers is None:
            headers = self.headers()
            if body is not None:
                headers["Content-Type"] = "application/json"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        try:
            value = json.loads(data.decode("utf-8")) if data else None
        except ValueError:
            value = None
        return Answer(response.status, response.headers, data, value)

    def get(self, path):
        """The JSON body of a GET that must succeed."""
        answer = self.ask("GET", path)
        assert answer.status == 200, (path, answer)
        return answer.json

    def watch(self, path="/api/stream"):
        """Open a stream; closed with the hub."""
        self.watches.append(Watch(self, path))
        return self.watches[-1]

    def reset(self):
        """Back to the state of a fresh hub: run mode, one breakpoint at the error point."""
        assert self.ask("PUT", "/api/mode", {"mode": "run"}).status in (200, 204)
        for breakpoint_ in self.get("/api/breakpoints")["breakpoints"]:
            self.ask("DELETE", "/api/breakpoints/%s" % breakpoint_["id"])
        self.set_breakpoint(point="error")

    def set_breakpoint(self, **matcher):
        """Add a breakpoint; return its id."""
        answer = self.ask("POST", "/api/breakpoints", matcher)
        assert answer.status in (200, 201), answer
        return answer.json["id"]

    def clear_breakpoints(self):
        """Remove every breakpoint."""
        for breakpoint_ in self.get("/api/breakpoints")["breakpoints"]:
            assert self.ask("DELETE", "/api/breakpoints/%s" % breakpoint_["id"]).status == 204

    def hold(self, run, wait=30):
        """Block until the run holds something; return that Hold."""
        answer = self.ask("GET", "/api/holds?run=%s&wait=%s" % (run, wait))
        assert answer.status == 200 and answer.json["holds"], (answer, self.session.report())
        return answer.json["holds"][0]

    def release(self, hold, action="continue", **body):
        """Release a hold; return the Answer."""
        return self.ask("POST", "/api/holds/%s" % hold["hold"], dict(body, action=action))

    def destroy(self):
        """End the hub and its streams."""
        for watch in self.watches:
            watch.close()
        self.session.destroy()


class Debugged:
    """A relay in front of a fixture server, attached to a hub.

    session: the relay. run: id of its run. watch: stream of the run's events. log: file of what reached the server.
    """

    def __init__(self, hub, known, session, tag, log):
        """known: names of the runs that were there before the relay was started."""
        self.hub, self.session, self.tag, self.log = hub, session, tag, log
        lobby = hub.watch()
        self.run = lobby.wait("run", lambda run: run["run"] not in known and run["started"])["run"]
        lobby.close()
        self.watch = hub.watch("/api/stream?run=%s&after=0" % self.run)

    def send(self, data):
        """The host says bytes."""
        self.session.send(data)
        return self

    def answered(self, needle):
        """Block until the host has received needle."""
        return self.session.wait_out(needle)

    def handshake(self):
        """initialize and initialized, answered."""
        self.send(INITIALIZE).finished("mcp:initialize")
        self.send(INITIALIZED)
        self.watch.wait_event("node.finished", lambda event: event["node"] == "mcp:notifications/initialized")
        return self

    def hold(self):
        """Block until something is held."""
        return self.hub.hold(self.run)

    def release(self, hold, action="continue", **body):
        """Release and insist that it worked."""
        answer = self.hub.release(hold, action, **body)
        assert answer.status == 200 and answer.json["outcome"] == "released", answer
        return answer

    def seen(self):
        """Bytes that reached the server so far."""
        with open(self.log, "rb") as log:
            return log.read()

    def messages(self):
        """What the host has received in whole lines, as JSON values."""
        lines = self.session.out.rpartition(b"\n")[0].splitlines()
        return [json.loads(line.decode("utf-8", "replace")) for line in lines if line.strip()]

    def answer_to(self, id_):
        """Block until the host has received the answer for this id; return it. It must be the only one."""
        def found():
            return [message for message in self.messages() if isinstance(message, dict) and message.get("id") == id_
                    and "method" not in message]

        self.session.wait_until(found, "an answer to %r" % id_)
        assert len(found()) == 1, found()
        return found()[0]

    def finish(self):
        """The host closes; return (Result, events of the finished run)."""
        result = self.session.finish()
        self.watch.wait_event("run.finished")
        return result, self.watch.events()

    def held_in_all(self):
        """The host closes; return every hold.opened event of the finished run."""
        return [event for event in self.finish()[1] if event["type"] == "hold.opened"]

    def started(self, node):
        """node.started events of one node."""
        return [event for event in self.watch.events("node.started") if event["node"] == node]

    def finished(self, node, times=1):
        """Block until `times` instances of the node are finished; return the last one's event."""
        return self.watch.wait_event("node.finished", lambda event: event["node"] == node, times)
