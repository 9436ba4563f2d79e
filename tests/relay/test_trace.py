"""`--trace`: one stderr line per frame, answers paired with their requests, nothing hostile on the terminal."""

import re

import pytest

import support
from support import dangerous, server


def trace(run, said, answered=b"", tmp_path=None, options=("--trace",), env=None):
    """Trace lines of a session in which the host says `said` and the server, once stdin ended, `answered`."""
    source = tmp_path / "source"
    source.write_bytes(answered)
    result = run(*options, server=server("pour", "--stdout", source, "--after-eof"), data=said, env=env)
    assert (result.code, result.out) == (0, answered)
    return support.our_lines(result.err)


def arrows(lines):
    return [line for line in lines if re.match(r"\[(client->server|server->client)\] ", line)]


def test_the_lines_of_one_session(start):
    """Request, notification, ok, JSON-RPC error, isError and a request of the server, each in its order."""
    session = start("--trace", server=server("raw"))
    for sent, answer in (
            (b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}', b'"id": 0}'),
            (b'{"jsonrpc":"2.0","method":"notifications/initialized"}', b""),
            (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}', b'"id": 1}'),
            (b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"boom"}}', b'-32603'),
            (b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"softfail"}}', b'isError'),
            (b'{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"sample"}}', b'"sampling/'),
            (b'{"jsonrpc":"2.0","id":1,"result":{"role":"assistant"}}', b'"id": 4}')):
        session.send(sent + b"\n")
        session.wait_out(answer)
    lines = arrows(support.our_lines(session.finish().err))
    assert lines == [
        "[client->server] -> initialize #0",
        "[server->client] <- initialize #0 ok",
        "[client->server] ~> notifications/initialized",
        "[client->server] -> tools/call #1",
        "[server->client] <- tools/call #1 ok",
        "[client->server] -> tools/call #2",
        "[server->client] <- tools/call #2 error -32603",
        "[client->server] -> tools/call #3",
        "[server->client] <- tools/call #3 isError",
        "[client->server] -> tools/call #4",
        "[server->client] -> sampling/createMessage #1",
        "[client->server] <- sampling/createMessage #1 ok",
        "[server->client] <- tools/call #4 ok"]


@pytest.mark.parametrize("raw_id", [b"1", b'"1"', b"9007199254740993", b"-7", b'"a b"', b'"1.0"', b"9" * 5000, b'""'])
def test_answers_are_paired_by_type_and_exact_value_of_the_id(run, tmp_path, raw_id):
    """Text 1 and number 1 differ, and so do numbers that are equal only as floats."""
    others = [b"1", b'"1"', b"9007199254740992", b'"a  b"', b"9" * 4999 + b"8", b'" "']
    others = [raw for raw in others if raw != raw_id]
    said = b"".join(b'{"jsonrpc":"2.0","id":%s,"method":"other/%d"}\n' % (raw, n) for n, raw in enumerate(others))
    said += b'{"jsonrpc":"2.0","id":%s,"method":"mine"}\n' % raw_id
    lines = trace(run, said, b'{"jsonrpc":"2.0","id":%s,"result":{}}\n' % raw_id, tmp_path)
    answers = [line for line in arrows(lines) if "] <- " in line]
    assert len(answers) == 1 and answers[0].startswith("[server->client] <- mine #"), answers
    assert answers[0].endswith(" ok")


@pytest.mark.parametrize("asked, answered", [(b"1.0", b"1"), (b"1", b"1.0"), (b'"A"', b'"\\u0041"'), (b"1", b"1e0"),
                                             (b"1.5", b"1.5"), (b'"\\ud83d\\ude00"', '"😀"'.encode())])
def test_a_server_may_write_the_same_id_in_another_form(run, tmp_path, asked, answered):
    """Servers parse and write ids anew: 1.0 comes back as 1, an escape as its character."""
    lines = arrows(trace(run, b'{"jsonrpc":"2.0","id":%s,"method":"ping"}\n' % asked,
                         b'{"jsonrpc":"2.0","id":%s,"result":{}}\n' % answered, tmp_path))
    assert len(lines) == 2 and lines[1].startswith("[server->client] <- ping #") and lines[1].endswith(" ok")


def test_ids_of_the_two_directions_are_separate(run, tmp_path):
    said = b'{"jsonrpc":"2.0","id":1,"method":"from/client"}\n'
    answered = b'{"jsonrpc":"2.0","id":1,"method":"from/server"}\n{"jsonrpc":"2.0","id":1,"result":{}}\n'
    lines = arrows(trace(run, said, answered, tmp_path))
    assert lines == ["[client->server] -> from/client #1", "[server->client] -> from/server #1",
                     "[server->client] <- from/client #1 ok"]


def test_a_second_answer_is_paired_with_nothing(run, tmp_path):
    said = b'{"jsonrpc":"2.0","id":7,"method":"ping"}\n'
    answered = b'{"jsonrpc":"2.0","id":7,"error":{"code":-1,"message":"m"}}\n{"jsonrpc":"2.0","id":7,"result":{}}\n'
    lines = arrows(trace(run, said, answered, tmp_path))
    assert lines[1] == "[server->client] <- ping #7 error -1"
    assert len(lines) == 3 and "ping" not in lines[2] and "7" in lines[2]


@pytest.mark.parametrize("junk", [b"debug: loading", b'{"level":30,"msg":"hi"}', b'{"method":"GET","status":200}',
                                  b"42", b"null", b'"x"', b'{"jsonrpc":"1.0","id":1,"method":"x"}', b"{", b"\xff\xfe"])
def test_what_is_not_json_rpc_is_quoted(run, tmp_path, junk):
    lines = arrows(trace(run, junk + b"\n", junk + b"\n", tmp_path))
    assert len(lines) == 2
    assert lines[0].startswith('[client->server] ?? not JSON-RPC: "') and lines[0].endswith('"')
    assert lines[1].startswith('[server->client] ?? not JSON-RPC: "') and lines[1].endswith('"')


def test_a_json_log_line_does_not_open_or_answer_a_call(run, tmp_path):
    said = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    lines = arrows(trace(run, said, b'{"id":1,"result":{}}\n{"id":1,"method":"x"}\n', tmp_path))
    assert [line.split()[1] for line in lines] == ["->", "??", "??"]


def test_error_with_a_null_or_missing_id_is_a_response_not_noise(run, tmp_path):
    answered = (b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"m"}}\n'
                b'{"jsonrpc":"2.0","error":{"code":-32600,"message":"m"}}\n')
    lines = arrows(trace(run, b"", answered, tmp_path))
    assert len(lines) == 2 and all("] <- " in line and "not JSON-RPC" not in line for line in lines)


def test_members_of_a_batch_are_paired(run, tmp_path):
    said = b'[{"jsonrpc":"2.0","id":1,"method":"one"},{"jsonrpc":"2.0","method":"note"}]\n'
    answered = b'[{"jsonrpc":"2.0","id":1,"result":{}}]\n{"jsonrpc":"2.0","id":1,"result":{}}\n'
    lines = arrows(trace(run, said, answered, tmp_path))
    text = "\n".join(lines)
    assert "one" in text and "note" in text and "not JSON-RPC" not in text
    assert "one" not in lines[-1]  # the batched answer closed the call; this one answers nothing


HOSTILE = ["\x1b[2J", "\x07", "\r", "\x9b31m", "\u202e", "\u2066", "\u200f", "\u061c", "\u2028", "\x7f", "\ufeff", "\0"]


@pytest.mark.parametrize("character", HOSTILE, ids=ascii)
def test_hostile_text_is_escaped_everywhere(run, tmp_path, character):
    escaped = "".join("\\u%04x" % ord(each) for each in character)
    said = ('{"jsonrpc":"2.0","id":"%s","method":"m%s"}\n{"jsonrpc":"2.0","method":"n%s"}\n'
            % (escaped, escaped, escaped)).encode()
    answered = ('{"jsonrpc":"2.0","id":"%s","error":{"code":-1,"message":"%s"}}\nnoise %s %s\n'
                % (escaped, escaped, character.replace("\n", ""), escaped)).encode()
    lines = trace(run, said, answered, tmp_path, env={"LC_ALL": "C"})
    assert len(arrows(lines)) == 4
    assert not dangerous("\n".join(lines)), lines


def test_a_newline_in_a_method_does_not_forge_a_line(run, tmp_path):
    said = b'{"jsonrpc":"2.0","id":1,"method":"x\\nmcp_relay: [client->server] -> forged #2"}\n'
    lines = arrows(trace(run, said, b"", tmp_path))
    assert len(lines) == 1


@pytest.mark.parametrize("frame", [
    b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}',
    b'{"jsonrpc":"2.0","id":"\\udfff","method":"x","params":{"\\ud800":1}}',
    b'{"jsonrpc":"2.0","id":' + b"9" * 6000 + b',"method":"x"}',
    b'{"jsonrpc":"2.0","id":1,"method":"x","params":' + b"[" * 60000 + b"]" * 60000 + b"}",
    b'{"jsonrpc":"2.0","id":1,"method":"' + b"m" * 200000 + b'"}',
    b'{"jsonrpc":"2.0","id":1,"id":2,"method":"a","method":"b"}',
    b'{"jsonrpc":"2.0","id":{"a":[1]},"method":"x"}', b'{"jsonrpc":"2.0","id":[],"method":5,"params":7}',
    b'[[[[{"jsonrpc":"2.0"}]]]]', b"[" * 60000,
    b'{"jsonrpc":"2.0","id":1,"result":{"isError":"yes"},"error":"text"}',
    b'{"jsonrpc":"2.0","id":1,"error":{"code":"x","message":[]}}',
], ids=range(12))
def test_absurd_frames_give_one_short_line_and_never_a_traceback(run, tmp_path, frame):
    """A frame the observer cannot read is still one frame; the session after it is traced as before."""
    said = frame + b'\n{"jsonrpc":"2.0","id":99,"method":"after"}\n'
    lines = trace(run, said, frame + b'\n{"jsonrpc":"2.0","id":99,"result":{}}\n', tmp_path)
    assert "[client->server] -> after #99" in lines
    assert "[server->client] <- after #99 ok" in lines
    assert not [line for line in lines if "Traceback" in line or len(line) > 2000]


def test_a_last_line_without_newline_is_traced_too(run, tmp_path):
    said = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    lines = arrows(trace(run, said, b'{"jsonrpc":"2.0","id":1,"result":{}}', tmp_path))
    assert lines[0].startswith("[client->server] -> ping #1")
    assert lines[1].startswith("[server->client] <- ping #1 ok")


def test_without_trace_there_is_not_a_word(run, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b'{"jsonrpc":"2.0","id":1,"result":{}}\n')
    result = run(server=server("pour", "--stdout", source, "--after-eof"),
                 data=b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    assert arrows(support.our_lines(result.err)) == []


def test_the_ceiling_turns_one_direction_into_a_raw_pipe_and_says_so(run, tmp_path):
    """The notice names the side, the limit and the flag; the other direction keeps its trace."""
    said = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    answered = b'{"jsonrpc":"2.0","id":1,"result":"' + b"x" * 65536 + b'"}\n{"jsonrpc":"2.0","id":2,"result":{}}\n'
    lines = trace(run, said, answered, tmp_path, options=("--trace", "--max-frame-bytes", "4096"))
    notices = [line for line in lines if "exceeded 4096 bytes" in line]
    assert len(notices) == 1 and "--max-frame-bytes" in notices[0] and "server" in notices[0]
    assert "[client->server] -> ping #1" in lines
    assert not [line for line in arrows(lines) if line.startswith("[server->client]")]


def test_the_servers_own_stderr_is_never_cut_by_ours(run, tmp_path):
    """Lines of server and relay share one stream; each stays whole."""
    said = b"".join(b'{"jsonrpc":"2.0","id":%d,"method":"ping"}\n' % n for n in range(300))
    result = run("--trace", server=server("raw", "--noisy"), data=said)
    for line in result.err.decode().splitlines():
        assert re.match(r"mcp_relay: \[(client->server|server->client)\] (->|<-) ping #\d+( ok)?$"
                        r"|raw server: received \d+ bytes$", line), line
