"""A small MCP client that drives `graph mcp serve` by hand, and looks at every message the server sends.

Nothing sleeps: waits end on a message, the end of a stream or the end of the process, bounded by support.LIMIT_S, and a
wait that fails prints both sides. Every message is checked against the protocol's own schema for the version in force.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import threading

import pytest

import support
from graphlib_plans import documents, schema

ROOT = pathlib.Path(__file__).resolve().parents[1]
SCHEMAS = ROOT.parent / "shared" / "mcp-schema"
KEY = "io.modelcontextprotocol/"
MODERN = "2026-07-28"

_RESULTS = {
    "initialize": "InitializeResult",
    "server/discover": "DiscoverResult",
    "tools/list": "ListToolsResult",
    "tools/call": "CallToolResult",
    "ping": "EmptyResult",
    "subscriptions/listen": "SubscriptionsListenResult",
}


def _definitions(version):
    path = SCHEMAS / f"{version}.json"
    support.need(path.is_file(), f"{path} is not there; messages cannot be checked against the protocol")
    return json.loads(path.read_text(encoding="utf-8"))


_RULES = {}


def check(value, version, name):
    """Fail unless a value is what the protocol's schema of a version calls `name`."""
    if version not in _RULES:
        _RULES[version] = _definitions(version), {}
    document, rules = _RULES[version]
    place = "$defs" if "$defs" in document else "definitions"
    if name not in rules:
        assert name in document[place], f"{version} has no {name}"
        rules[name] = {**document, "$ref": f"#/{place}/{name}"}
    problems = schema.problems(value, rules[name])
    assert not problems, f"{name} of {version}: {'; '.join(map(str, problems[:5]))}\n{value}"


def environment(home, **extra):
    """The tests' own environment with a home of its own, so that nothing of this machine's user is read."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "SYSTEMROOT", "TMPDIR") if name in os.environ}
    return {**kept, "HOME": str(home), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **extra}


def command(directory=None):
    """Command line of the server."""
    line = [sys.executable, "-m", "graphlib_plans", "mcp", "serve"]
    return line if directory is None else [*line, "--dir", str(directory)]


class Client:
    """One server process and everything it has sent. version: of the requests this client makes."""

    def __init__(self, home, directory=None, *, version="2025-11-25", capabilities=None, env=None, cwd=None, argv=None,
                 reading=True):
        self.version = version
        self.capabilities = capabilities or {}
        self.messages = []
        self.errors = []
        self.asked = {}  # JSON text of an id → (method, version)
        self.ended = False
        self.changed = threading.Condition()
        self.count = 0
        self.process = subprocess.Popen(
            argv or command(directory), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment(home, **(env or {})), cwd=cwd or home,
        )  # fmt: skip
        threading.Thread(target=self._read_errors, daemon=True).start()
        if reading:
            self.start_reading()

    # Sending

    def send(self, message):
        """Send a value as one line, or bytes as they are."""
        line = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def start(self, method, params=None, *, id=None, meta=None):
        """Send a request and return its id."""
        if id is None:
            self.count += 1
            id = self.count
        params = dict(params or {})
        meta = dict(meta or {})
        if self.version == MODERN:
            meta = {KEY + "protocolVersion": MODERN, KEY + "clientCapabilities": self.capabilities,
                    KEY + "clientInfo": {"name": "tests", "version": "1"}, **meta}
        if meta:
            params["_meta"] = meta
        self.asked[json.dumps(id)] = method, self.version
        self.send({"jsonrpc": "2.0", "id": id, "method": method, **({"params": params} if params else {})})
        return id

    def notify(self, method, **params):
        self.send({"jsonrpc": "2.0", "method": method, **({"params": params} if params else {})})

    def request(self, method, params=None, **options):
        """Send a request and return the answer, the whole message."""
        return self.answer(self.start(method, params, **options))

    def hello(self):
        """Open the session as this version does; return the result."""
        if self.version == MODERN:
            return self.request("server/discover")["result"]
        answer = self.request("initialize", {"protocolVersion": self.version, "capabilities": self.capabilities,
                                             "clientInfo": {"name": "tests", "version": "1"}})
        self.notify("notifications/initialized")
        return answer["result"]

    def begin(self, name, /, *, meta=None, extra=None, **arguments):
        """Start a tools/call and return its id."""
        return self.start("tools/call", {"name": name, "arguments": arguments, **(extra or {})}, meta=meta)

    def call(self, name, /, **arguments):
        """Call a tool; return (body, is_error)."""
        return self.outcome(self.begin(name, **arguments))

    def outcome(self, id):
        """Return (body, is_error) of a tools/call that was started."""
        result = self.result(id)
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
        return result["structuredContent"], result["isError"]

    def result(self, id):
        """Return the result of a request; fail on an error."""
        answer = self.answer(id)
        assert "result" in answer, answer
        return answer["result"]

    def tools(self):
        """Return the definitions of tools/list by name."""
        return {tool["name"]: tool for tool in self.request("tools/list")["result"]["tools"]}

    # Receiving

    def start_reading(self):
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.messages.append(line)
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def _read_errors(self):
        for line in self.process.stderr:
            with self.changed:
                self.errors.append(line.decode("utf-8", "replace"))
                self.changed.notify_all()

    def wait(self, test, what):
        """Wait until test() is true and return what it returned; the messages do not change meanwhile."""
        with self.changed:
            if not self.changed.wait_for(lambda: test() or self.ended, support.LIMIT_S) or not test():
                pytest.fail(f"never came: {what}\nsent:\n{self.transcript()}\nstderr:\n{''.join(self.errors)}")
            return test()

    def transcript(self):
        return "\n".join(repr(line[:600]) for line in self.messages[-40:])

    def find(self, test, what, number=1):
        """Wait for the number-th message with test(message) and return it."""
        seen = [0]
        found = []

        def look():
            for line in self.messages[seen[0]:]:
                message = json.loads(line)
                if test(message):
                    found.append(message)
            seen[0] = len(self.messages)
            return len(found) >= number and found[number - 1]

        return self.wait(look, what)

    def answer(self, id):
        """Wait for the answer to a request and return it."""
        return self.find(lambda m: isinstance(m, dict) and "method" not in m and m.get("id") == id
                         and type(m.get("id")) is type(id), f"the answer to {id!r}")

    def server_request(self, method="elicitation/create", number=1):
        """Wait for a request of the server and return it."""
        return self.find(lambda m: isinstance(m, dict) and m.get("method") == method and "id" in m, method, number)

    def notification(self, method, number=1):
        """Wait for a notification and return it."""
        return self.find(lambda m: isinstance(m, dict) and m.get("method") == method and "id" not in m, method, number)

    def all(self, test=lambda message: True):
        """Return the messages so far for which test is true, parsed."""
        with self.changed:
            parsed = [json.loads(line) for line in self.messages]
        return [message for message in parsed if test(message)]

    def progress(self, token):
        """Return the params of the progress notifications for a token so far."""
        found = self.all(lambda m: isinstance(m, dict) and m.get("method") == "notifications/progress")
        return [m["params"] for m in found if m["params"]["progressToken"] == token
                and type(m["params"]["progressToken"]) is type(token)]

    def wait_for_error(self, text):
        """Wait until stderr has a line with this text."""
        self.wait(lambda: any(text in line for line in self.errors), f"{text!r} on stderr")

    # The end

    def finish(self):
        """Close stdin, wait for the end, check every message, and return the exit code."""
        if not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            code = self.process.wait(support.LIMIT_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the server did not end\n{self.transcript()}\nstderr:\n{''.join(self.errors)}")
        self.wait(lambda: self.ended, "the end of stdout")
        return code

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):  # what was still to be sent
            self.process.stdin.close()

    def check_messages(self):
        """Check every message the server has sent against the schema of the version in force."""
        whole = [line for line in self.messages if line.endswith(b"\n")]  # a kill may have cut the last one
        for line in whole:
            assert line.isascii(), line[:200]
            value = documents.read_json(line)
            for message in value if isinstance(value, list) else [value]:
                self.check_message(message)

    def check_message(self, message):
        if "method" in message:
            return check(message, self.version, "ServerRequest" if "id" in message else "ServerNotification")
        if message.get("id") is None and "error" in message:
            # JSON-RPC 2.0, section 5: the id of what could not be read is null. The schemas of MCP have no such case.
            assert isinstance(message["error"]["code"], int) and isinstance(message["error"]["message"], str)
            return None
        method, version = self.asked.get(json.dumps(message.get("id")), (None, self.version))
        if "error" in message:
            is_new = version >= "2025-11-25"
            return check(message, version, "JSONRPCErrorResponse" if is_new else "JSONRPCError")
        name = _RESULTS.get(method, "Result")
        if message["result"].get("resultType") == "input_required":
            name = "InputRequiredResult"
        return check(message["result"], version, name)


# A project of one test ---------------------------------------------------------------------------------------------


class Project:
    """A home and a project folder with plans, tools and configuration, and the clients of their servers."""

    def __init__(self, folder):
        self.home = folder / "home"
        self.folder = folder / "project"
        self.plans = self.folder / ".graph" / "plans"
        self.tools = self.folder / ".graph" / "tools"
        for made in (self.home, self.plans, self.tools):
            made.mkdir(parents=True)
        self.clients = []

    def plan(self, identifier, *steps, folder=None, **fields):
        """Write a plan file; steps are (id, tool, input) or whole step documents."""
        steps = [step if isinstance(step, dict) else dict(zip(("id", "tool", "input"), step)) for step in steps]
        document = {"identifier": identifier, "name": identifier.title(), "description": f"Runs {identifier}.",
                    "steps": steps, **fields}
        path = (folder or self.plans) / f"{identifier}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    def tool(self, name, script, *args, **fields):
        """Write a user tool that runs a shell script; args are its $0, $1, …"""
        document = {"name": name, "description": name, "kind": "exec", "command": "sh",
                    "args": ["-c", script, *map(str, args)], **fields}
        (self.tools / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")

    def gate(self, name):
        """Make a user tool that reports its start and then waits; return its Gate."""
        return Gate(self, name)

    def config(self, text, *, is_global=False):
        path = self.home / ".config" / "graph" / "config.toml" if is_global else self.folder / ".graph" / "config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def connect(self, *, project=True, hello=True, **options):
        """Start a server on the project and a client with it; say hello unless told otherwise."""
        client = Client(self.home, self.folder if project else None, **options)
        self.clients.append(client)
        if hello:
            client.hello()
        return client

    def close(self):
        for client in self.clients:
            client.kill()
        for client in self.clients:
            client.check_messages()


class Gate:
    """A tool user__<name> that stands still until the test lets it go on. Two named pipes, so nobody polls."""

    def __init__(self, project, name):
        self.begun, self.opening = project.folder / f"{name}.begun", project.folder / f"{name}.open"
        for path in (self.begun, self.opening):
            os.mkfifo(path)
        # Opened for reading and writing, so that neither side waits for the other to open it.
        self._begun_end = os.open(self.begun, os.O_RDWR)
        self._open_end = os.open(self.opening, os.O_RDWR)
        project.tool(name, 'echo $$ > "$0"; read line < "$1"; echo passed', self.begun, self.opening)

    def await_start(self):
        """Wait until the tool runs; return the process id of its shell."""
        import select

        ready, _, _ = select.select([self._begun_end], [], [], support.LIMIT_S)
        assert ready, "the tool never started"
        return int(os.read(self._begun_end, 100).split()[0])

    def let_pass(self):
        os.write(self._open_end, b"go\n")


def reshape(id, shape):
    """Return a step that makes a value."""
    return {"id": id, "tool": "builtin__reshape", "input": {"shape": shape}}
