"""The command line of the relay: every option and its environment twin, good values and bad ones."""

import hashlib
import os
import re
import subprocess
import sys

import pytest

import support
from support import our_lines, server

HELLO = b'{"jsonrpc":"2.0","method":"notifications/hello"}\n'

GOOD = [["--trace"], ["--inherit-stderr"], ["--no-report"], ["--mask"], ["--max-frame-bytes", "1024"],
        ["--max-frame-bytes=65536"], ["--port", "1"], ["--port=65535"], ["--hold-timeout", "0.5"],
        ["--hold-timeout=30"],
        ["--hide", "inputs"], ["--hide=inputs,outputs,tool-args,tool-results"], ["--loop-threshold", "5"],
        ["--loop-threshold=0"], ["--on-loop", "pause"], ["--on-loop=warn"], ["--on-loop", "off"],
        ["--loop-allow", "poll_job,tool:wait"], ["--home", "relative/folder"], ["--trace", "--mask", "--port", "5151"]]


@pytest.mark.parametrize("options", GOOD, ids=" ".join)
def test_good_options_relay(run, tmp_path, options):
    result = run(*options, server=server("echo"), data=HELLO, cwd=str(tmp_path))
    assert (result.code, result.out) == (0, HELLO)
    assert "--trace" in options or result.err == b""


BAD = [["--max-frame-bytes", "10"], ["--max-frame-bytes", "1023"], ["--max-frame-bytes", "abc"], ["--max-frame-bytes",
                                                                                                  "-1"],
       ["--max-frame-bytes", "1e6"], ["--max-frame-bytes", ""], ["--max-frame-bytes="], ["--max-frame-bytes", "2048.5"],
       ["--port", "0"], ["--port", "65536"], ["--port", "-1"], ["--port", "http"], ["--port="], ["--port", "1 2"],
       ["--port", "9" * 5000], ["--hold-timeout", "-1"], ["--hold-timeout", "soon"], ["--hold-timeout", "nan"],
       ["--hold-timeout", "inf"], ["--hold-timeout="], ["--hide", "everything"], ["--hide", "inputs;outputs"],
       ["--loop-threshold", "-1"], ["--loop-threshold", "1.5"], ["--loop-threshold", "many"], ["--on-loop", "maybe"],
       ["--on-loop="], ["--no-such-option"], ["--mask=yes"], ["--trace=1"], ["-x"], ["--port", "--trace"],
       ["--hide", "--mask"], ["--\x1b[2J\u202e"], ["--port", "\x1b[2J\u202e"], ["--port", "4747\n"]]


@pytest.mark.parametrize("options", BAD, ids=lambda options: ascii(" ".join(options))[:40])
def test_bad_options_are_one_sentence_and_exit_2(run, options):
    result = run(*options, server=server("echo"), data=HELLO)
    assert (result.code, result.out) == (2, b"")
    [line] = our_lines(result.err)
    assert result.err.count(b"\n") == 1 and not support.dangerous(result.err.decode())
    assert options[0].split("=")[0] in line or "\x1b" in options[0]  # it names what is wrong
    assert len(line) < 300


def test_a_missing_value_at_the_end(run):
    for option in ("--port", "--max-frame-bytes", "--hide", "--home", "--hold-timeout"):
        result = run(option)
        assert (result.code, result.out) == (2, b"") and option in our_lines(result.err)[0]


@pytest.mark.parametrize("variable, value", [("MCP_RELAY_PORT", "http"), ("MCP_RELAY_PORT", "70000"),
                                             ("MCP_RELAY_HOLD_TIMEOUT", "soon"), ("MCP_RELAY_LOOP_THRESHOLD", "many"),
                                             ("MCP_RELAY_ON_LOOP", "maybe"), ("GRAPHMIND_ON_LOOP", "maybe")])
def test_bad_environment_values_name_their_variable(run, nowhere, variable, value):
    environment = dict(support.quiet_environment(*nowhere), **{variable: value})
    result = run(server=server("echo"), data=HELLO, env=environment)
    assert (result.code, result.out) == (2, b"")
    [line] = our_lines(result.err)
    assert variable in line


@pytest.mark.parametrize("value", ["", "0", "1"])
@pytest.mark.parametrize("variable", ["MCP_RELAY_HIDE_INPUTS", "GRAPHMIND_HIDE_TOOL_RESULTS", "MCP_RELAY_DISABLED",
                                      "MCP_RELAY_LOOP_THRESHOLD", "GRAPHMIND_LOOP_ALLOW", "MCP_RELAY_HOME"])
def test_environment_values_that_relay(run, nowhere, variable, value):
    if (variable, value) == ("MCP_RELAY_LOOP_THRESHOLD", ""):
        value = "3"
    environment = dict(support.quiet_environment(*nowhere), **{variable: value})
    assert run(server=server("echo"), data=HELLO, env=environment) == (0, HELLO, b"")


# The boundary between our options and the command


def told(result):
    """Arguments (as bytes) that the args server got."""
    return [bytes.fromhex(each) for each in re.findall(r'"([0-9a-f]*)"', result.out.split(b'"pid"')[0].decode())]


def test_everything_after_the_dashes_is_the_commands(run):
    arguments = ["--help", "--port", "x", "--trace", "--", "--version", "down", "serve"]
    result = run(server=server("args", *arguments))
    assert result.code == 0 and told(result) == [each.encode() for each in arguments]


def test_the_first_positional_starts_the_command_without_dashes(run):
    result = run("--trace", *server("args", "--mask", "--port", "x", "--", "y"))
    assert told(result) == [b"--mask", b"--port", b"x", b"--", b"y"]
    assert [line for line in our_lines(result.err) if "notifications/facts" in line]


def test_a_command_named_like_one_of_ours_can_be_relayed(run, tmp_path, nowhere):
    for name in ("serve", "runs", "down", "demo"):
        script = tmp_path / name
        script.write_text("#!/bin/sh\nexec cat\n")
        script.chmod(0o755)
        environment = dict(support.quiet_environment(*nowhere), PATH="%s:%s" % (tmp_path, os.environ["PATH"]))
        assert run(server=[name], data=HELLO, env=environment)[:2] == (0, HELLO)


def test_arguments_that_are_not_text_arrive_as_they_are(run):
    arguments = ["\udcff\udcfe", "漢字 😀", "", "a\nb", " "]
    for environment in (None, {"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}):
        for flags in (["-I", "-S"], []):
            result = run(server=server("args") + [os.fsencode(each) for each in arguments], env=environment,
                         flags=flags)
            assert told(result) == [os.fsencode(each) for each in arguments]


# No command, help, version


@pytest.mark.parametrize("arguments", [[], ["--"], ["--trace"], ["--trace", "--"], ["--", ""], [""]], ids=str)
def test_no_command_prints_a_working_recipe(run, arguments):
    result = run(*arguments)
    text = result.err.decode()
    assert (result.code, result.out) == (1, b"")
    assert "mcp_relay.py" in text and " -- " in text and "usage:" not in text.lower()


def test_the_recipe_names_the_port_in_effect(run, nowhere):
    environment = dict(support.quiet_environment(*nowhere), MCP_RELAY_PORT="5152")
    assert b"127.0.0.1:5152" in run(env=environment).err
    assert b"127.0.0.1:5151" in run("--port", "5151", env=environment).err
    environment = {"PATH": os.environ["PATH"]}
    assert b"127.0.0.1:4747" in run(env=environment).err


def test_the_recipe_works(run, relay_file):
    """The command it prints, run as it is by a shell, relays."""
    text = run().err.decode()
    commands = [line.strip() for line in text.splitlines() if " -- " in line and "mcp_relay.py" in line
                and not line.strip().startswith(("claude", "{", '"'))]
    assert commands, text
    recipe = commands[0].split(" -- ")[0].split()
    assert recipe[0].startswith("python") or os.path.exists(recipe[0])
    done = subprocess.run(["sh", "-c", " ".join(recipe) + ' -- "$@"', "sh"] + server("echo"), input=HELLO,
                          cwd=os.path.dirname(relay_file), stdout=subprocess.PIPE, timeout=support.LIMIT_S)
    assert (done.returncode, done.stdout) == (0, HELLO)


def test_version_and_digest_of_the_file_itself(run, relay_file):
    result = run("--version")
    with open(relay_file, "rb") as source:
        digest = hashlib.sha256(source.read()).hexdigest()
    assert result.code == 0
    assert re.match(r"mcp_relay \d+\.\d+\.\d+\S* \(sha256 %s\)\n$" % digest, result.out.decode())


def test_version_without_a_file(relay_file):
    """Piped into the interpreter there is no file to hash: the version alone."""
    with open(relay_file, "rb") as source:
        done = subprocess.run([sys.executable, "-I", "-S", "-", "--version"], stdin=source, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=support.LIMIT_S)
    assert done.returncode == 0 and re.match(rb"mcp_relay \d+\.\d+\.\d+", done.stdout) and not done.stderr


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_option(run, flag):
    result = run(flag)
    text = (result.out + bytes(result.err)).decode()
    assert result.code == 0 and "Traceback" not in text
    for option in ("--trace", "--wait-for-attach", "--inherit-stderr", "--max-frame-bytes", "--port", "--serve",
                   "--no-report",
                   "--mask", "--hold-timeout", "--hide", "--loop-threshold", "--on-loop", "--loop-allow", "--home",
                   "--version", "down"):
        assert option in text


# What the options do without a hub


def test_wait_for_attach_gives_up_and_relays_everything_in_order(start):
    session = start("--wait-for-attach", server=server("echo"))
    data = b"".join(b'{"jsonrpc":"2.0","id":%d,"method":"ping"}\n' % n for n in range(50))
    session.send(data)
    session.wait_out(data)
    assert session.finish().code == 0


def test_wait_for_attach_does_not_delay_the_end(run):
    """A server that crashes while we wait is reported, and its code is ours."""
    result = run("--wait-for-attach", server=server("crash", 3000, 2), data=HELLO)
    assert result.code == 2 and result.err.count(b"crash-server: line") == 3000 + 40
    result = run("--wait-for-attach", server=["no-such-mcp-server"], data=HELLO)
    assert (result.code, result.out) == (127, b"")


@pytest.fixture
def listener():
    """A socket that listens where the relay expects a hub."""
    listening, port = support.reserve_port()
    listening.listen(5)
    listening.setblocking(False)
    yield listening, port
    listening.close()


def connected(listening):
    try:
        connection, _ = listening.accept()
    except BlockingIOError:
        return False
    connection.close()
    return True


@pytest.mark.parametrize("options, variables", [
    (["--no-report"], {}), ([], {"MCP_RELAY_DISABLED": "1"}), ([], {"GRAPHMIND_DISABLED": "true"}),
    ([], {"MCP_RELAY_DISABLED": "TYPO"}), (["down"], {})], ids=str)
def test_disabled_means_no_connection_at_all(run, listener, tmp_path, options, variables):
    listening, port = listener
    environment = dict(support.quiet_environment(tmp_path, port), **variables)
    result = run(*options, *server("echo"), data=HELLO, env=environment)
    assert result[:2] == (0, HELLO) and not connected(listening)


def test_extra_variables_of_ours_reach_the_child_unchanged(run, nowhere):
    environment = dict(support.quiet_environment(*nowhere), MCP_RELAY_ON_LOOP="warn", GRAPHMIND_HIDE_INPUTS="1")
    out = run(server=["env"], env=environment).out
    assert b"MCP_RELAY_ON_LOOP=warn\n" in out and b"GRAPHMIND_HIDE_INPUTS=1\n" in out
