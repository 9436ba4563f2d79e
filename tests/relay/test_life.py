"""Life and death: true exit codes, ends of streams in both directions, signals, and nobody left behind.

Servers hold a lifeline (a FIFO) while they live, so "everybody is gone" is an event and not a guess. That a relay
ends by itself is judged by its end, within support.LIMIT_S; no test measures how long it took.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import threading

import pytest

import mcp_relay
import support
from support import server

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'


def life(lifeline, *flags):
    """Command line of the life server on this lifeline."""
    return server("life", "--lifeline", lifeline.path, *flags)


@pytest.fixture
def let_go(lifeline):
    """A function that waits until the grandchild lives and then lets its parent go on."""
    os.mkfifo(lifeline.path + ".ready")

    def release():
        lifeline.wait_for("alive")
        with open(lifeline.path + ".ready", "wb"):
            pass
        return lifeline.wait_for("alive", 2)

    return release


# Exit codes


@pytest.mark.parametrize("code", [0, 1, 3, 42, 255])
def test_the_childs_code_is_our_code(run, code):
    assert run(server=server("echo", code), data=PING).code == code


@pytest.mark.parametrize("name, code", [("SIGKILL", 137), ("SIGSEGV", 139), ("SIGTERM", 143), ("SIGABRT", 134)])
def test_a_child_killed_by_a_signal_gives_128_plus_its_number(start, name, code):
    """It dies in the middle of a call: the host sees the end of stdout and the code, although stdin stays open."""
    session = start(server=server("raw"))
    session.send(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"die","arguments":{"signal":"%s"}}}\n'
                 % name.encode())
    assert session.wait().code == code


def test_the_host_sees_the_end_although_its_stdin_stays_open(start):
    session = start(server=server("crash", 0, 5, "--read")).send(PING)
    assert session.wait().code == 5


def test_large_output_of_a_child_that_exits_at_once_is_complete(start, tmp_path):
    big = tmp_path / "big"
    big.write_bytes(b"".join(b'{"jsonrpc":"2.0","method":"n/%d"}\n' % n for n in range(60000)))
    session = start(server=["cat", str(big)])
    result = session.wait()
    assert (result.code, result.out == big.read_bytes()) == (0, True)


# End of file from the host


def test_end_of_file_reaches_the_server_and_late_answers_still_arrive(run, tmp_path):
    late = tmp_path / "late"
    late.write_bytes(b"".join(b'{"jsonrpc":"2.0","id":%d,"result":"%s"}\n' % (n, b"x" * 5000) for n in range(1000)))
    result = run(server=server("pour", "--stdout", late, "--after-eof"), data=PING)
    assert (result.code, result.out == late.read_bytes()) == (0, True)


def test_stdin_closed_before_the_first_byte(run, start):
    for session in (start(server=server("raw"), stdin=subprocess.DEVNULL), start(server=server("raw")).close_stdin()):
        result = session.wait()
        assert (result.code, result.out, result.err) == (0, b"", b"")


def test_end_between_initialize_and_initialized(run):
    data = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}\n'
    result = run(server=server("raw"), data=data)
    assert (result.code, result.out.count(b"\n"), result.err) == (0, 1, b"")


@pytest.mark.parametrize("flags, code", [(["--deaf"], 143), (["--deaf", "--ignore", "SIGTERM"], 137)],
                         ids=["ends on SIGTERM", "needs SIGKILL"])
def test_a_server_that_ignores_end_of_file_is_ended(start, lifeline, flags, code):
    session = start(server=life(lifeline, *flags)).send(PING)
    session.wait_out(b"\n")
    assert session.finish().code == code
    lifeline.wait_gone()
    assert "got SIGTERM" in lifeline.text


@pytest.mark.parametrize("own_session", [True, False], ids=["leads its session", "in somebody's group"])
@pytest.mark.parametrize("flags", [[], ["--setsid"]], ids=["same group", "its own session"])
def test_grandchildren_end_with_their_server(start, lifeline, let_go, flags, own_session):
    """A wrapper that waits for a deaf grandchild which holds the pipe: both are gone, and so is the relay."""
    session = start(server=life(lifeline, "--deaf", "--ignore", "SIGTERM", "--grandchild", *flags),
                    start_new_session=own_session)
    let_go()
    session.send(PING).wait_out(b"\n")
    assert session.finish().code == 137
    lifeline.wait_gone()


@pytest.mark.parametrize("ignore, own_session", [([], True), (["--ignore", "SIGTERM"], False)], ids=["soft", "hard"])
def test_a_shell_wrapper_does_not_hide_its_server(start, lifeline, own_session, ignore):
    """`sh -c` with something after the command stays a parent, as npx and uvx do; the real server is its child."""
    command = ["sh", "-c", '"$@"; exit 7', "sh"] + life(lifeline, "--deaf", *ignore)
    session = start(server=command, start_new_session=own_session)
    lifeline.wait_for("alive")
    session.send(PING).wait_out(b"\n")
    session.finish()
    lifeline.wait_gone()


def test_a_wrapper_whose_server_ends_at_end_of_file_keeps_its_code(start, lifeline):
    session = start(server=["sh", "-c", '"$@"; exit 7', "sh"] + life(lifeline))
    session.send(PING).wait_out(b"\n")
    assert session.finish().code == 7
    lifeline.wait_gone()


def test_a_thread_that_goes_on_with_a_lane_is_not_taken_for_the_one_that_it_replaces():
    """The thread that was left in its read may return at any moment, and then only finds out that it was replaced."""
    reader, writer = os.pipe()
    lane = mcp_relay.Lane(None, mcp_relay.SERVER_TO_CLIENT, reader, None)
    replaced = []
    lane.start = lambda: replaced.append(lane._read())
    blocked = threading.Thread(target=lambda: replaced.append(lane._read()))
    blocked.start()
    while not lane._in_read:
        pass
    lane.stop()
    assert replaced == [b""]
    os.write(writer, b"too late")
    blocked.join(support.LIMIT_S)
    assert replaced == [b"", None] and not lane._in_read
    for number in (reader, writer):
        os.close(number)


@pytest.mark.parametrize("flags", [[], ["--setsid"]], ids=["same group", "its own session"])
def test_a_grandchild_that_keeps_the_pipe_open_is_not_waited_for(start, lifeline, let_go, flags):
    """The server is gone while a grandchild still holds its stdout: our exit and the host's end of file do not wait."""
    session = start(server=life(lifeline, "--grandchild", "--leave", "--exit", "6", "--ignore", "SIGTERM", *flags))
    let_go()
    assert session.wait().code == 6
    if not flags:  # the relay leads the session, so whoever is left in it ends with it
        lifeline.wait_gone()


@pytest.mark.parametrize("shell", [["sh", "-c"], ["bash", "-m", "-c"]], ids=["script", "job control"])
def test_a_shell_pipeline_around_the_relay_is_never_hit(relay_file, nowhere, tmp_path, lifeline, shell):
    """The relay does not lead its session here: ending the server's tree must not end the rest of the pipeline."""
    survivor, output = tmp_path / "survivor.py", tmp_path / "output"
    survivor.write_text("import sys\nopen(sys.argv[1], 'wb').write(sys.stdin.buffer.read() + b'survived')\n")
    relay = [sys.executable, "-I", "-S", relay_file, "--"] + life(lifeline, "--deaf", "--ignore", "SIGTERM")
    script = 'cat | "$@" | %s %s %s; echo "pipeline ended with $?" >&2' % (sys.executable, survivor, output)
    session = support.Session(shell + [script, "sh"] + relay, env=support.quiet_environment(*nowhere))
    try:
        session.send(PING)
        lifeline.wait_for("answered")
        result = session.finish()
    finally:
        session.destroy()
    assert result.code == 0 and b"pipeline ended with 0" in result.err
    assert output.read_bytes() == b'{"jsonrpc":"2.0","id":1,"result":{}}\nsurvived'
    lifeline.wait_gone()


# Signals


@pytest.mark.parametrize("own_session", [True, False], ids=["leads its session", "in somebody's group"])
@pytest.mark.parametrize("name, code", [("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 129)])
def test_a_signal_reaches_the_server_and_is_our_code(start, lifeline, name, code, own_session):
    session = start(server=life(lifeline), start_new_session=own_session).send(PING)
    session.wait_out(b"\n")
    session.signal(getattr(signal, name))
    result = session.wait()
    assert result.code == code and b"Traceback" not in result.err
    lifeline.wait_gone()
    assert lifeline.text.count("got ") == 1 and "got " + name in lifeline.text


@pytest.mark.parametrize("name, code", [("SIGTERM", 143), pytest.param("SIGINT", 130, marks=pytest.mark.slow)])
def test_a_deaf_server_does_not_survive_a_signal(start, lifeline, name, code):
    session = start(server=life(lifeline, "--deaf", "--ignore", name, "--ignore", "SIGTERM")).send(PING)
    session.wait_out(b"\n")
    session.signal(getattr(signal, name))
    lifeline.wait_for("got " + name)
    session.signal(getattr(signal, name))  # an impatient host repeats itself; that must not orphan the server
    assert session.wait().code == code
    lifeline.wait_gone()


def test_a_server_that_ends_cleanly_on_sigterm_does_not_hide_the_signal(start, lifeline):
    session = start(server=life(lifeline, "--exit-on-term", "0")).send(PING)
    session.wait_out(b"\n")
    session.signal(signal.SIGTERM)
    assert session.wait().code == 143
    lifeline.wait_gone()


def test_a_signal_to_the_whole_group_as_hosts_send_it(start, lifeline):
    session = start(server=life(lifeline, "--deaf")).send(PING)
    session.wait_out(b"\n")
    os.killpg(session.pid, signal.SIGTERM)
    assert session.wait().code == 143
    lifeline.wait_gone()


def test_a_background_job_can_be_ended(relay_file, nowhere, lifeline):
    """Shells start background jobs with SIGINT ignored, nohup with SIGHUP ignored; SIGTERM works all the same."""
    argv = [sys.executable, "-I", "-S", relay_file, "--"] + life(lifeline)
    session = support.Session(["sh", "-c", 'trap "" INT HUP; exec "$@"', "sh"] + argv,
                              env=support.quiet_environment(*nowhere))
    try:
        session.send(PING).wait_out(b"\n")
        session.signal(signal.SIGTERM)
        assert session.wait().code == 143
    finally:
        session.destroy()
    lifeline.wait_gone()


def test_a_relay_killed_hard_leaves_its_server_with_end_of_file(start, lifeline):
    session = start(server=life(lifeline)).send(PING)
    session.wait_out(b"\n")
    session.signal(signal.SIGKILL)
    assert session.wait().code == -signal.SIGKILL
    lifeline.wait_gone()
    assert "eof" in lifeline.text


def test_the_child_stays_in_our_process_group(start):
    """Hosts signal the group; a server outside it would survive them."""
    session = start(server=server("args"))
    facts = session.wait_out(b"\n")
    assert b'"group": %d' % session.pid in facts and b'"session": %d' % session.pid in facts
    assert session.finish().code == 0


# A host that vanishes, a server that half leaves


@pytest.mark.parametrize("keep_stdin, flags", [(True, []), (False, []), (True, ["--deaf", "--ignore", "SIGTERM"])],
                         ids=str)
def test_a_host_that_stops_listening_ends_server_and_relay(start, lifeline, keep_stdin, flags):
    session = start(server=life(lifeline, "--talk", *flags), reading=["stderr"]).send(PING)
    lifeline.wait_for("alive")
    session.process.stdout.close()
    del session.streams["stdout"]
    if not keep_stdin:
        session.close_stdin()
    result = session.wait()
    assert b"Traceback" not in result.err
    lifeline.wait_gone()


def test_a_host_that_leaves_while_an_error_answer_is_on_its_way(start):
    session = start(server=server("raw"), reading=["stderr"])
    session.process.stdout.close()
    del session.streams["stdout"]
    session.send(b'{"jsonrpc":"2.0","id":1,"method":"no/such/method"}\n').close_stdin()
    result = session.wait()
    assert b"Traceback" not in result.err


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_host_on_socket_pairs_that_vanishes(relay_file, nowhere, lifeline, how):
    """Node gives its children socket pairs: closing one with unread data makes the other side's read fail."""
    ours, its = socket.socketpair()
    argv = [sys.executable, "-I", "-S", relay_file, "--"] + life(lifeline, "--deaf")
    session = support.Session(argv, reading=["stderr"], stdin=its, stdout=its, env=support.quiet_environment(*nowhere))
    try:
        its.close()
        ours.sendall(PING)
        lifeline.wait_for("answered")
        if how == "close":
            assert ours.recv(1000)
        ours.close()
        result = session.wait()
    finally:
        session.destroy()
    assert b"Traceback" not in result.err
    lifeline.wait_gone()


def test_a_stopped_server_is_ended_although_it_reads_nothing(start, lifeline):
    """SIGSTOP: the pipe to the server is full, the host leaves; end of file is noticed behind the unsent bytes."""
    reader, writer = os.pipe()
    session = start(server=life(lifeline, "--stop"), stdin=reader)
    os.close(reader)
    lifeline.wait_for("alive")
    os.set_blocking(writer, False)
    sent = 0
    while sent < 1 << 20:
        try:
            sent += os.write(writer, b"x" * 65536)
        except BlockingIOError:
            if sent > 1 << 17:  # the pipes on both sides of the relay are full
                break
            select.select([], [writer], [], support.LIMIT_S)
    os.close(writer)
    assert session.wait().code in (137, 143)
    lifeline.wait_gone()


def test_a_server_that_closes_stdout_but_lives_on(start, lifeline):
    """The host gets end of file at once, and the server is ended although stdin stays open and it ignores that."""
    session = start(server=life(lifeline, "--close-stdout")).send(PING)
    session.wait_out(b"\n")
    session.send(PING)
    lifeline.wait_for("closed stdout")
    session.wait_until(lambda: session.streams["stdout"].ended, "end of file on stdout")
    session.wait()
    lifeline.wait_gone()


def test_a_server_that_closes_stderr_is_alive(start, lifeline):
    session = start(server=life(lifeline, "--close-stderr"))
    for number in range(1, 4):
        session.send(PING)
        session.wait_out(b'"id":%d,' % number)
    assert session.finish().code == 0


def test_a_descriptor_is_closed_once():
    """The end of the host and the end of the server both close the same one, whose number may be another's by then."""
    reader, writer = os.pipe()
    outlet = mcp_relay.Outlet("to_server", writer, lambda: None)
    outlet.close()
    os.dup2(reader, writer)
    outlet.close()
    os.fstat(writer)
    for number in (reader, writer):
        os.close(number)


def test_a_server_that_closes_its_stdin_still_speaks(start, tmp_path):
    """Writing to it fails; what it says is delivered to the end and its code is ours."""
    script = tmp_path / "half.py"
    script.write_text("import os, sys\nos.close(0)\nos.write(2, b'closed\\n')\n"
                      "open(sys.argv[1]).read()\nos.write(1, b'{\"jsonrpc\":\"2.0\",\"method\":\"n\"}\\n')\n"
                      "sys.exit(9)\n")
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    session = start(server=[sys.executable, "-I", "-S", str(script), gate])
    session.wait_err(b"closed\n")
    session.send(PING * 1000)
    with open(gate, "wb"):
        pass
    result = session.wait()
    assert (result.code, result.out) == (9, b'{"jsonrpc":"2.0","method":"n"}\n')
    assert b"Traceback" not in result.err


def test_two_relays_with_the_same_arguments_do_not_disturb_each_other(start, lifeline, tmp_path):
    one, other = (start(server=life(lifeline), cwd=str(tmp_path)) for _ in range(2))
    for session in (one, other):
        session.send(PING).wait_out(b'"id":1,')
    one.signal(signal.SIGTERM)
    assert one.wait().code == 143
    for number in (2, 3):
        other.send(PING)
        other.wait_out(b'"id":%d,' % number)
    assert other.finish().code == 0
    lifeline.wait_gone()


# Where and in what the child runs


@pytest.mark.parametrize("environment", [
    {"LC_ALL": "C", "FOO": "1"}, {},
    dict({"VAR_%03d" % n: "x" * n for n in range(200)}, LC_ALL="C.UTF-8", NEWLINE="a\nb", BYTES="\udcff\udc80",
         EMPTY="")],
    ids=["one", "empty", "two hundred"])
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/environ")
def test_the_childs_environment_is_ours_unchanged(run, environment):
    result = run(server=["/bin/cat", "/proc/self/environ"], env=environment)
    assert result.code == 0
    assert sorted(result.out.split(b"\0")[:-1]) == sorted(
        os.fsencode(name) + b"=" + os.fsencode(value) for name, value in environment.items())


def test_the_child_runs_in_our_directory(start, tmp_path):
    facts = start(server=server("args"), cwd=str(tmp_path)).wait_out(b"\n")
    assert str(tmp_path).encode() in facts
    assert os.listdir(str(tmp_path)) == []  # nothing of ours is left where the host happened to be


def test_a_deleted_directory_is_no_obstacle(relay_file, nowhere, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    argv = [sys.executable, "-I", "-S", relay_file, "--"] + server("echo")
    session = support.Session(["sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', str(gone)] + argv,
                              env=support.quiet_environment(*nowhere))
    try:
        result = session.send(PING).finish()
    finally:
        session.destroy()
    assert (result.code, result.out) == (0, PING)


def test_a_command_is_found_on_path_and_by_relative_path(run, tmp_path, nowhere):
    script = tmp_path / "my-server"
    script.write_text("#!/bin/sh\nexec cat\n")
    script.chmod(0o755)
    environment = dict(support.quiet_environment(*nowhere), PATH="%s:%s" % (tmp_path, os.environ["PATH"]))
    assert run(server=["my-server"], data=PING, env=environment).out == PING
    assert run(server=["./my-server"], data=PING, cwd=str(tmp_path)).out == PING


def test_no_shell_reads_the_arguments(run):
    hostile = ["$(echo x)", "`id`", "a;b", "*", "'", '"', "\\", "", " ", "é", "\udcff", "%PATH%", "-n", "--",
               "--trace"]
    result = run(server=server("args", *hostile))
    for argument in hostile:
        assert b'"%s"' % os.fsencode(argument).hex().encode() in result.out
