"""The code paths for Windows, walked without one: its differences are injected (tests/windows_like.py)."""

import errno
import os
import signal
import subprocess
import sys

import pytest

import mcp_relay
import support
from support import our_lines, server

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
DRIVER = os.path.join(support.TESTS, "windows_like.py")


@pytest.fixture
def start_windows(relay_file, nowhere):
    """start_windows(*options, server=[...]) -> Session of a relay that believes to be on Windows."""
    sessions = []

    def start(*options, server, env=None):
        argv = [sys.executable, "-I", "-S", DRIVER, relay_file, *options, "--", *server]
        sessions.append(support.Session(argv, env=env or support.quiet_environment(*nowhere)))
        return sessions[-1]

    yield start
    for session in sessions:
        session.destroy()


@pytest.mark.parametrize("options", [[], ["--trace"], ["--mask"], ["--inherit-stderr"]], ids=" ".join)
def test_bytes_pass_both_ways(start_windows, tmp_path, options):
    data = b'odd \xff\r\n\n{"jsonrpc":"2.0","id":1,"method":"ping"}\r\n' + b"x" * 300000 + b"\nno newline"
    source, sink = tmp_path / "source", tmp_path / "sink"
    source.write_bytes(data * 3)
    session = start_windows(*options, server=server("pour", "--stdout", source, "--sink", sink, "--stderr", 300000))
    result = session.send(data).finish()
    assert (result.code, result.out == data * 3, sink.read_bytes() == data) == (0, True, True), result.err[-2000:]
    assert result.err.count(b"stderr line") == 12000 and b"Traceback" not in result.err


def test_frames_pass_at_once(start_windows):
    session = start_windows(server=server("echo"))
    for number in range(3):
        frame = b'{"jsonrpc":"2.0","id":%d,"method":"ping"}\n' % number
        session.send(frame).wait_out(frame)
    assert session.finish().code == 0


@pytest.mark.parametrize("code", [0, 3, 255])
def test_the_exit_code(start_windows, code):
    assert start_windows(server=server("echo", code)).send(PING).finish().code == code


def test_the_server_ends_while_stdin_is_open(start_windows):
    session = start_windows(server=server("crash", 2, 4, "--read")).send(PING)
    result = session.wait()
    assert result.code == 4 and [line for line in our_lines(result.err) if "before answering anything" in line]


def test_a_deaf_server_is_ended_with_its_tree(start_windows, lifeline):
    session = start_windows(server=server("life", "--deaf", "--ignore", "SIGTERM", "--lifeline", lifeline.path))
    lifeline.wait_for("alive")
    result = session.finish()
    assert result.code != 0 and b"Traceback" not in result.err
    lifeline.wait_gone()


def test_a_grandchild_that_keeps_the_pipe_open_is_not_waited_for(start_windows, tmp_path):
    path = str(tmp_path / "go")
    os.mkfifo(path)
    session = start_windows(server=["sh", "-c", 'read line < "$0" & exit 6', path])
    assert session.wait().code == 6
    pipe = os.open(path, os.O_RDWR)  # lets it go, and waits for nobody if it has been ended
    os.write(pipe, b"go\n")
    os.close(pipe)


def test_ctrl_c(start_windows, lifeline):
    session = start_windows(server=server("life", "--lifeline", lifeline.path)).send(PING)
    session.wait_out(b"\n")
    session.signal(signal.SIGINT)
    assert session.wait().code == 130
    lifeline.wait_gone()


def test_a_failed_start_and_masking(start_windows):
    result = start_windows(server=["no-such-mcp-server"]).finish()
    assert result.code == 127 and "not found on PATH" in our_lines(result.err)[0]
    result = start_windows("--mask", server=["no-such-mcp-server"]).send(PING).finish()
    assert (result.code, result.out) == (0, b'{"jsonrpc":"2.0","id":1,"result":{}}\n')


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder on PATH with npx.cmd, tool.exe and run.bat."""
    for name in ("npx.cmd", "tool.exe", "run.bat", "plain"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_a_name_is_found_through_pathext(tools):
    environ = {"PATHEXT": ".EXE;.CMD;.BAT".lower(), "COMSPEC": "C:\\cmd.exe"}
    assert mcp_relay.resolve_command(["tool", "-x"], environ, True) == [str(tools / "tool.exe"), "-x"]
    line = mcp_relay.resolve_command(["npx", "-y", "server"], environ, True)  # one string: cmd.exe has its own quoting
    assert line.startswith('"C:\\cmd.exe" /d ') and line.endswith('/c ""%s" "-y" "server""' % (tools / "npx.cmd"))
    assert str(tools / "run.bat") in mcp_relay.resolve_command(["run.bat"], environ, True)
    assert mcp_relay.resolve_command(["no-such", "a"], environ, True) == ["no-such", "a"]


def test_without_pathext_and_comspec(tools):
    line = mcp_relay.resolve_command(["npx.cmd"], {}, True)
    assert line.startswith('"cmd.exe" ') and str(tools / "npx.cmd") in line


@pytest.mark.parametrize("argument", ['a"b', "%PATH%", "a\nb", "a\rb"])
def test_what_cmd_would_change_is_refused(tools, argument):
    with pytest.raises(OSError) as caught:
        mcp_relay.resolve_command(["npx.cmd", argument], {}, True)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("argument", ["a&b", "a|b", "a>b", "a^b", "a b&calc", "(x)"])
def test_what_cmd_would_execute_is_quoted_or_refused(tools, argument):
    """An argument never becomes a second command of cmd.exe."""
    try:
        argv = mcp_relay.resolve_command(["npx.cmd", argument], {}, True)
    except OSError:
        return
    line = argv if isinstance(argv, str) else subprocess.list2cmdline(argv)
    assert '"%s' % argument in line.replace('""', '"'), "unquoted for cmd.exe: " + line


def test_elsewhere_nothing_is_resolved(tools):
    assert mcp_relay.resolve_command(["npx", 'a"b'], {}, False) == ["npx", 'a"b']
