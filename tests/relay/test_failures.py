"""Failures are explained in one plain sentence each, on stderr, and stdout stays protocol only."""

import os
import re
import signal
import sys

import pytest

import support
from support import dangerous, our_lines, server

NOISE = "the MCP server wrote a line to stdout that is not JSON-RPC: "
FRAME = b'{"jsonrpc":"2.0","id":1,"result":{}}\n'


def about(lines, fragment):
    return [line for line in lines if fragment in line]


def chatty(run, tmp_path, said, *options, data=b"", **keywords):
    """Lines of the relay in front of a server that writes said (bytes) to stdout first."""
    source = tmp_path / "said"
    source.write_bytes(said)
    result = run(*options, server=server("chatty", source), data=data, **keywords)
    assert result.out == said + data
    return our_lines(result.err)


# Noise on stdout


def test_the_first_noise_line_is_quoted_and_all_are_counted(run, tmp_path):
    said = b"debug: loading config from ./config.json\n" + FRAME + b'{"level":30,"msg":"pino"}\n3\n4\nfive\n'
    lines = chatty(run, tmp_path, said)
    first = about(lines, NOISE)
    assert len(first) == 1
    assert first[0].startswith(NOISE + '"debug: loading config from ./config.json" ')
    assert "stdout is the MCP wire" in first[0] and "log to stderr" in first[0]
    assert len(about(lines, "5 line(s) the server wrote to stdout were not JSON-RPC")) == 1


@pytest.mark.parametrize("noise", [b"banner", b'{"level":30,"msg":"hi","time":1}', b'{"method":"GET","status":200}',
                                   b'{"jsonrpc":"2.0"}', b'{"jsonrpc":"2.0","id":1}', b"42", b"null", b"[1]",
                                   b'[db] ok {"jsonrpc":"2.0","id":1,"result":{}}',
                                   b'{"jsonrpc":2.0,"id":1,"result":{}}',
                                   b'{"id":1,"result":{}}', b'{"jsonrpc":"2.0","id":1,"result":{}} trailing',
                                   b"\x1b[32mServer running\x1b[0m", "Server läuft ✓".encode(), b"\xff\xfe\x00",
                                   b"Content-Length: 38"])
def test_these_lines_are_noise(run, tmp_path, noise):
    lines = chatty(run, tmp_path, FRAME + noise + b"\n" + FRAME)
    assert len(about(lines, NOISE)) == 1
    assert len(about(lines, "1 line(s) the server wrote to stdout were not JSON-RPC")) == 1
    assert not dangerous("".join(lines))


@pytest.mark.parametrize("fine", [
    FRAME, b"\n", b"\r\n", b"   \n\t\n", b'{"jsonrpc":"2.0","id":1,"result":{}}\r\n',
    b' {"jsonrpc":"2.0","id":1,"result":{}} \n',
    b'{"result":{},"id":1,"jsonrpc":"2.0"}\n', b'{ "jsonrpc" : "2.0" , "method" : "notifications/x" }\n',
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}\n',
    b'{"jsonrpc":"2.0","error":{"code":-32700,"message":"Parse error"}}\n',
    b'[{"jsonrpc":"2.0","id":1,"result":{}}]\n', b'{"jsonrpc":"2.0","id":9,"method":"roots/list"}\n',
    b'{"jsonrpc":"2.0","id":1,"result":{"a":1,"b":"\\n{\\"x\\"}"}}\n',
    b'{"jsonrpc":"2.0","id":1,"result":"' + b"x" * 200000 + b'"}\n'])
def test_these_lines_are_not_noise(run, tmp_path, fine):
    lines = chatty(run, tmp_path, FRAME + fine + FRAME)
    assert not about(lines, NOISE) and not about(lines, "line(s) the server wrote")


@pytest.mark.parametrize("pieces", [
    [b"noise 1\nnoi", b"se 2\n", FRAME],
    [b"{", b'"jsonrpc":"2.0","id":1,"result":1}\nnoise 1', b"\n{", b"\nlast\n"],
    [FRAME + b"n", b"o\nnoise 2\n" + FRAME]])
def test_noise_is_counted_however_it_is_chunked(start, pieces):
    """The same bytes give the same count whether they come in one piece or several."""
    whole = b"".join(pieces)
    count = sum(1 for line in whole.split(b"\n") if line and b"jsonrpc" not in line)
    session = start(server=server("echo"))
    seen = 0
    for piece in pieces:
        session.send(piece)
        seen += len(piece)
        session.wait_out(seen)
    result = session.finish()
    assert result.out == whole
    # The host said these bytes too; only what came from the server is noise of the server.
    assert about(our_lines(result.err), "%d line(s) the server wrote to stdout were not JSON-RPC" % count)


def test_a_long_noise_line_is_cut_at_200_bytes_and_says_so(run, tmp_path):
    lines = chatty(run, tmp_path, b"y" * (1 << 20) + b"\n")
    [line] = about(lines, NOISE)
    assert '"' + "y" * 200 + '"' in line and "y" * 201 not in line
    assert "(first 200 bytes)" in line and len(line) < 700


@pytest.mark.parametrize("shift", range(4))
def test_the_cut_never_falls_inside_a_character(run, tmp_path, shift):
    [line] = about(chatty(run, tmp_path, b"y" * shift + "😀".encode() * 100 + b"\n"), NOISE)
    assert "(first 200 bytes)" in line and "\ufffd" not in line and "\\ufffd" not in line and "\\x" not in line


def test_exactly_200_bytes_are_not_cut(run, tmp_path):
    [line] = about(chatty(run, tmp_path, b"y" * 200 + b"\n"), NOISE)
    assert '"' + "y" * 200 + '"' in line and "first 200 bytes" not in line


def test_noise_without_a_last_newline_counts(run, tmp_path):
    assert about(chatty(run, tmp_path, b"no newline at the end"), "1 line(s) the server wrote to stdout")


def test_junk_of_the_client_is_counted_not_blamed_on_the_server(run, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(FRAME)
    result = run(server=server("pour", "--stdout", source), data=b"junk\n\n{\n")
    lines = our_lines(result.err)
    assert not about(lines, NOISE) and not about(lines, "the server wrote")
    assert [line for line in about(lines, "client") if re.search(r"\b2\b", line)], lines


@pytest.mark.parametrize("said", [b"\x1b[2Jcleared\n", "left\u202etxt.exe\n".encode(), b"\x9b31m\n",
                                  b"a\x00b\r\x08c\n"])
def test_hostile_noise_is_escaped(run, tmp_path, said):
    lines = chatty(run, tmp_path, said)
    assert about(lines, NOISE) and not dangerous("\n".join(lines))


# A command that cannot be started


def test_a_command_that_does_not_exist(run):
    result = run(server=["no-such-mcp-server", "--flag"])
    assert (result.code, result.out) == (127, b"")
    [line] = our_lines(result.err)
    assert line.startswith('cannot run "no-such-mcp-server": ')
    assert "not found on PATH" in line and 'check the "command" in your MCP client config' in line
    assert b"Traceback" not in result.err and result.err.count(b"\n") == 1


def test_a_path_that_does_not_exist(run, tmp_path):
    result = run(server=[str(tmp_path / "missing" / "server")])
    assert (result.code, result.out) == (127, b"")
    assert len(about(our_lines(result.err), 'cannot run "%s": ' % (tmp_path / "missing" / "server"))) == 1


def test_a_file_that_is_not_executable(run, tmp_path):
    script = tmp_path / "server.py"
    script.write_text("#!/usr/bin/env python3\n")
    script.chmod(0o644)
    result = run(server=[str(script)])
    assert (result.code, result.out) == (126, b"")
    [line] = our_lines(result.err)
    assert line.startswith('cannot run "%s": ' % script) and "executable" in line


def test_a_directory(run, tmp_path):
    result = run(server=[str(tmp_path)])
    assert (result.code, result.out) == (126, b"")
    assert len(our_lines(result.err)) == 1 and result.err.count(b"\n") == 1


@pytest.mark.parametrize("content, codes", [("echo no interpreter line\n", (126,)), ("", (126, 0)),
                                            ("#!/nonexistent/interpreter\n", (126, 127))])
def test_a_script_the_system_cannot_execute(run, tmp_path, content, codes):
    script = tmp_path / "server.sh"
    script.write_text(content)
    script.chmod(0o755)
    result = run(server=[str(script)])
    assert result.code in codes and result.out == b""
    assert result.code == 0 or our_lines(result.err)[0].startswith('cannot run "%s": ' % script)
    assert b"Traceback" not in result.err and result.err.count(b"\n") <= 1


@pytest.mark.parametrize("name", ["evil\x1b[2J", "rtl\u202eexe", "new\nline", "quo\"te", "surro\udcff"], ids=ascii)
def test_a_hostile_command_name_is_escaped(run, name):
    result = run(server=[name])
    assert result.code == 127 and result.err.count(b"\n") == 1
    assert not dangerous(result.err.decode("utf-8"))


# A server that exits before it answered


def early(lines):
    return about(lines, "before answering anything")


def test_a_crash_on_boot_is_quoted(run):
    last = "Error: FATAL: DATABASE_URL is not set\n    at boot (crash-server.mjs:9:11)\n"
    result = run(server=server("crash", 3, 2, "--last", last))
    assert (result.code, result.out) == (2, b"")
    text = result.err.decode()
    expected = ("mcp_relay: the MCP server exited with code 2 before answering anything — "
                "its last stderr output was:\n"
                "    crash-server: line 1 of 3\n    crash-server: line 2 of 3\n    crash-server: line 3 of 3\n"
                "    Error: FATAL: DATABASE_URL is not set\n        at boot (crash-server.mjs:9:11)\n")
    assert expected in text
    assert text.startswith("crash-server: line 1 of 3\n")  # the mirror came first, byte for byte


def test_the_last_forty_lines_are_quoted_and_the_rest_is_counted(run):
    result = run(server=server("crash", 3000, 2))
    text = result.err.decode()
    mirrored, explained = text.split("mcp_relay: ", 1)
    assert mirrored.count("crash-server: line") == 3000
    quoted = re.findall(r"^    crash-server: line (\d+) of 3000$", explained, re.M)
    assert quoted == [str(number) for number in range(2961, 3001)]
    assert "2960" in explained  # how many earlier lines were left out


@pytest.mark.parametrize("code", [1, 3, 255])
def test_without_stderr_output_nothing_is_quoted(run, code):
    result = run(server=server("crash", 0, code))
    assert result.code == code
    [line] = early(our_lines(result.err))
    assert "exited with code %d before answering anything" % code in line
    assert "last stderr output was" not in line


def test_a_server_killed_by_a_signal_is_named(run):
    result = run(server=server("crash", 1, 0, "--signal", int(signal.SIGKILL)))
    assert result.code == 137
    assert "killed by SIGKILL" in early(our_lines(result.err))[0]


def test_exit_zero_with_a_request_waiting_is_explained(run):
    data = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n'
    result = run(server=server("crash", 1, 0, "--read"), data=data)
    assert result.code == 0
    lines = our_lines(result.err)
    assert "exited with code 0 before answering anything" in early(lines)[0]
    assert [line for line in about(lines, "unanswered") if re.search(r"\b1 request", line)]


def test_a_host_that_just_hangs_up_is_silent(run):
    assert run(server=server("raw")).err == b""
    assert run(server=server("echo"), data=b"\n").err == b""


def test_a_json_log_line_is_not_an_answer(run, tmp_path):
    pino = tmp_path / "pino"
    pino.write_bytes(b'{"level":30,"msg":"starting"}\n{"method":"GET","path":"/","status":200,"id":1,"result":1}\n')
    data = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}\n'
    result = run(server=server("crash", 1, 1, "--read", "--stdout", pino), data=data)
    lines = our_lines(result.err)
    assert result.code == 1 and early(lines) and about(lines, "2 line(s) the server wrote to stdout")


def test_a_server_that_answered_once_is_not_an_early_exit(run):
    data = (b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
            b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"die","arguments":{"code":3}}}\n')
    result = run(server=server("raw"), data=data)
    lines = our_lines(result.err)
    assert result.code == 3 and not early(lines)
    assert [line for line in about(lines, "unanswered") if re.search(r"\b1 request", line)]


def test_with_inherited_stderr_the_sentence_points_above(run):
    result = run("--inherit-stderr", server=server("crash", 3, 2))
    lines = our_lines(result.err)
    assert result.code == 2 and result.err.count(b"crash-server: line 1 of 3") == 1
    assert "exited with code 2 before answering anything" in early(lines)[0]
    assert "above" in early(lines)[0] and "--inherit-stderr" in early(lines)[0]


def test_hostile_stderr_is_mirrored_raw_but_quoted_escaped(run):
    last = "\x1b[31mred\x1b[0m \u202eevil\u202c\n"
    result = run(server=server("crash", 0, 2, "--last", last))
    mirrored, explained = result.err.decode().split("mcp_relay: ", 1)
    assert mirrored == last
    assert "red" in explained and not dangerous(explained)


def test_a_stderr_line_of_a_megabyte_is_shortened_in_the_explanation(run):
    result = run(server=server("crash", 1, 2, "--last", "z" * 131000))
    explained = result.err.decode().split("mcp_relay: ", 1)[1]
    assert len(explained) < 40000 and "zzz" in explained


# Requests without answers, answers without requests


def unanswered(lines):
    return about(lines, "unanswered")


def test_unanswered_requests_are_counted_at_exit(run):
    data = (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"never"}}\n'
            b'{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"never"}}\n'
            b'{"jsonrpc":"2.0","id":2,"method":"ping"}\n')
    result = run(server=server("raw"), data=data)
    [line] = unanswered(our_lines(result.err))
    assert result.code == 0 and re.search(r"\b2 request", line)
    assert result.out.count(b"\n") == 1  # the ping was answered


def test_a_cancelled_request_is_not_called_unanswered(run):
    data = (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"never"}}\n'
            b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}\n'
            b'{"jsonrpc":"2.0","id":2,"method":"ping"}\n')
    assert unanswered(our_lines(run(server=server("raw"), data=data).err)) == []


def test_an_open_subscription_is_not_called_unanswered(run):
    """subscriptions/listen of 2026-07-28 stays open by design; ending with it open is not a server bug."""
    data = (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}\n'
            b'{"jsonrpc":"2.0","id":"listen-1","method":"subscriptions/listen","params":{}}\n')
    assert unanswered(our_lines(run(server=server("modern"), data=data).err)) == []


def test_responses_to_nothing_are_counted(run, tmp_path):
    said = FRAME + b'{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":"m"}}\n'
    lines = chatty(run, tmp_path, said)
    [line] = about(lines, "response")
    assert re.search(r"\b2 response", line)


def test_a_server_that_answers_with_the_wrong_id(run, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b'{"jsonrpc":"2.0","id":0,"result":{}}\n')
    result = run(server=server("pour", "--stdout", source, "--after-eof"),
                 data=b'{"jsonrpc":"2.0","id":7,"method":"ping"}\n')
    lines = our_lines(result.err)
    assert [line for line in about(lines, "response") if re.search(r"\b1 response", line)]
    assert [line for line in unanswered(lines) if re.search(r"\b1 request", line)]


# What the relay says stays readable and off stdout


@pytest.mark.parametrize("command, code", [
    (server("crash", 5, 2), 2), (["no-such-mcp-server"], 127), (server("raw"), 0), (["sh", "-c", "kill -9 $$"], 137)])
@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full"])
def test_a_dead_stderr_changes_no_exit_code(relay_file, nowhere, command, code, closed):
    if "full" in closed:
        support.need(os.path.exists("/dev/full"), "this system has no /dev/full")
    session = support.Session(["sh", "-c", 'exec "$@" ' + closed, "sh", sys.executable, "-I", "-S", relay_file,
                               "--trace", "--",
                               *command], env=support.quiet_environment(*nowhere))
    try:
        session.send(b"junk\n")
        result = session.finish()
    finally:
        session.destroy()
    assert (result.code, result.out) == (code, b"")


def test_every_line_of_ours_carries_our_name_and_none_is_empty(run, tmp_path):
    """With everything going wrong at once: noise, wrong ids, unanswered calls, junk of the client, an early end."""
    said = tmp_path / "said"
    said.write_bytes(b"noise\n" + FRAME)
    result = run("--trace", server=server("crash", 0, 4, "--read", "--stdout", said),
                 data=b'{"jsonrpc":"2.0","id":3,"method":"ping"}\njunk\n')
    assert result.code == 4 and result.out == b"noise\n" + FRAME
    for line in result.err.decode().splitlines():
        assert re.match(r"mcp_relay: \S", line), line
