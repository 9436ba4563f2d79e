"""Fixtures for all tests; the helpers themselves are in support.py."""

import itertools
import os
import shutil
import signal
import sys

import pytest

import hubs
import support

# A runner that was started in the background or under nohup ignores these, and every process that a test starts would
# inherit that: the relay, too, leaves a signal ignored that it was started with as ignored.
for name in ("SIGINT", "SIGHUP", "SIGTERM"):
    if signal.getsignal(getattr(signal, name)) is signal.SIG_IGN:
        signal.signal(getattr(signal, name), signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)


@pytest.fixture(scope="session")
def relay_file(tmp_path_factory):
    """A copy of mcp_relay.py alone in an empty folder, as people copy it onto other machines."""
    folder = tmp_path_factory.mktemp("alone")
    return shutil.copy(support.RELAY, str(folder / "mcp_relay.py"))


@pytest.fixture(scope="session")
def nowhere(tmp_path_factory):
    """(home, port) of no hub at all: an empty folder, and a port that refuses connections."""
    holder, port = support.reserve_port()
    yield tmp_path_factory.mktemp("home"), port
    holder.close()


@pytest.fixture
def start(relay_file, nowhere):
    """start(*arguments, server=[...], **keywords) -> Session of a relay, killed at the end of the test.

    arguments are the relay's own; server is the command after "--" (omitted when None). env=None gives the
    tests' environment without any setting of the relay; python= chooses the interpreter; flags= its flags.
    """
    sessions = []

    def start_relay(*arguments, server=None, python=sys.executable, flags=("-I", "-S"), env=None, **keywords):
        argv = [python, *flags, relay_file, *map(_plain, arguments)]
        if server is not None:
            argv += ["--", *server]
        if env is None:
            env = support.quiet_environment(*nowhere)
        sessions.append(support.Session(argv, env=env, **keywords))
        return sessions[-1]

    yield start_relay
    for session in sessions:
        session.destroy()


@pytest.fixture
def run(start):
    """run(*arguments, server=[...], data=b"") -> Result: send data, close stdin, wait for the end."""

    def run_relay(*arguments, data=b"", **keywords):
        return start(*arguments, **keywords).send(data).finish()

    return run_relay


@pytest.fixture
def lifeline(tmp_path):
    """A Lifeline for the servers of one test."""
    line = support.Lifeline(tmp_path / "lifeline")
    yield line
    line.destroy()


def _plain(argument):
    return argument if isinstance(argument, (str, bytes)) else str(argument)


@pytest.fixture(scope="module")
def module_hub(relay_file, tmp_path_factory):
    """One hub for all tests of a module that do not kill it; the fixture `hub` resets it for each test."""
    shared = hubs.Hub(relay_file, tmp_path_factory.mktemp("hub"))
    yield shared
    shared.destroy()


@pytest.fixture
def hub(module_hub):
    """The module's hub in the state of a fresh one."""
    module_hub.reset()
    yield module_hub
    for watch in module_hub.watches:
        watch.close()
    module_hub.watches.clear()


@pytest.fixture
def own_hub(relay_file, tmp_path):
    """own_hub(*arguments, **keywords) -> a hub of this test's own, for tests that hurt it."""
    started = []

    def start_hub(*arguments, folder=tmp_path, **keywords):
        started.append(hubs.Hub(relay_file, folder, *arguments, **keywords))
        return started[-1]

    yield start_hub
    for each in started:
        each.destroy()


@pytest.fixture
def attach(start, tmp_path):
    """attach(hub, *options, server="raw") -> Debugged: a relay in front of that fixture server, attached.

    port: where the relay looks for the hub, if not at the hub's own port. arguments: further ones of the server.
    """
    count = itertools.count(1)

    def start_attached(hub, *options, server="raw", arguments=(), env=None, port=None, flags=None, **keywords):
        number = next(count)
        tag = "tag-%d-%s" % (number, os.path.basename(str(tmp_path)))[-40:]
        log = tmp_path / ("log-%d" % number)
        log.touch()
        known = {run["run"] for run in hub.get("/api/runs")["runs"]}
        session = start("--port", port or hub.port, "--home", hub.home, *options,
                        flags=flags or ("-I", "-S", support.patched(tmp_path / "relay.py")),
                        server=support.server(server, "--log", log, *arguments, "--tag", tag),
                        env=dict(support.quiet_environment(hub.home, hub.port), **(env or {})), **keywords)
        return hubs.Debugged(hub, known, session, tag, log)

    return start_attached


@pytest.fixture
def served(tmp_path):
    """A plan_client.Project of this test: plans, tools, and clients of servers on them, which are killed at its end."""
    import plan_client  # needs what the plans need; the relay is tested on older Pythons too

    made = plan_client.Project(tmp_path)
    yield made
    made.close()
