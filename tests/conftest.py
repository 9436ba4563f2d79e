"""Fixtures for all tests; the helpers themselves are in support.py."""

import shutil
import sys

import pytest

import support


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
