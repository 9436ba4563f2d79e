"""`--mask` and `down`: a server that fails before its first byte is answered for; any other is left alone."""

import json
import os
import signal
import sys

import pytest

import support
from support import our_lines, server

P = "io.modelcontextprotocol/"
MISSING = "no-such-mcp-server"
MODERN_META = {P + "protocolVersion": "2026-07-28", P + "clientCapabilities": {}}


def request(raw_id, method, **params):
    """One request frame; raw_id is JSON text."""
    return b'{"jsonrpc":"2.0","id":%s,"method":%s,"params":%s}\n' % (
        raw_id.encode(), json.dumps(method).encode(), json.dumps(params).encode())


def initialize(version="2025-11-25"):
    return request("0", "initialize", protocolVersion=version, capabilities={}, clientInfo={"name": "t",
                                                                                            "version": "1"})


INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'

FAILING = {
    "cannot be spawned": [MISSING],
    "exits at once": server("crash", 2, 3),
    "exits with 0": server("crash", 0, 0),
    "reads initialize and exits": server("crash", 1, 1, "--read"),
    "killed by a signal": server("crash", 0, 0, "--signal", int(signal.SIGKILL)),
    "not executable": [os.path.join(support.SERVERS, "echo.py")],
    "a directory": [support.SERVERS],
}


def answers(out):
    """{id: message} of a responder's output; every line is one JSON-RPC answer with compact framing."""
    messages = [json.loads(line) for line in bytes(out).splitlines()]
    assert all(message["jsonrpc"] == "2.0" for message in messages)
    found = {message["id"]: message for message in messages}
    assert len(found) == len(messages), "an id was answered twice"
    return found


@pytest.mark.parametrize("failure", FAILING)
def test_a_server_that_fails_at_the_start_looks_healthy_and_toolless(run, failure):
    data = (initialize() + INITIALIZED + request("1", "tools/list") + request("2", "resources/list")
            + request("3", "resources/templates/list") + request("4", "prompts/list") + request("5", "ping")
            + request("6", "tools/call", name="x", arguments={}) + request("7", "no/such/method")
            + request('"eight"', "logging/setLevel", level="info") + request("9", "server/discover"))
    result = run("--mask", server=FAILING[failure], data=data)
    assert result.code == 0
    found = answers(result.out)
    assert list(found) == [0, 1, 2, 3, 4, 5, 6, 7, "eight", 9]  # in order, none for the notification
    handshake = found[0]["result"]
    assert handshake["protocolVersion"] == "2025-11-25"
    assert "tools" not in handshake["capabilities"] and "resources" not in handshake["capabilities"]
    assert handshake["serverInfo"]["name"] and handshake["serverInfo"]["version"]
    assert os.path.basename(FAILING[failure][0]) in json.dumps(handshake, ensure_ascii=False)
    assert [found[n]["result"] for n in range(1, 6)] == [
        {"tools": []}, {"resources": []}, {"resourceTemplates": []}, {"prompts": []}, {}]
    for refused in (6, 7, "eight", 9):
        assert found[refused]["error"]["code"] == -32601 and found[refused]["error"]["message"]
    assert b"Traceback" not in result.err


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2099-01-01", "dräft"])
def test_initialize_echoes_the_protocol_version(run, version):
    result = run("--mask", server=[MISSING], data=initialize(version))
    assert answers(result.out)[0]["result"]["protocolVersion"] == version


def test_requests_of_2026_get_answers_of_2026(run):
    data = b"".join(request(str(n), method, _meta=MODERN_META) for n, method in enumerate((
        "server/discover", "tools/list", "resources/list", "resources/templates/list", "prompts/list", "ping", "nope")))
    result = run("--mask", server=[MISSING], data=data)
    assert result.code == 0
    found = answers(result.out)
    discovered = found[0]["result"]
    assert "2026-07-28" in discovered["supportedVersions"] and "tools" not in discovered["capabilities"]
    assert MISSING in json.dumps(discovered)
    for number, key in ((0, "supportedVersions"), (1, "tools"), (2, "resources"), (3, "resourceTemplates"),
                        (4, "prompts")):
        body = found[number]["result"]
        assert body["resultType"] == "complete" and key in body
        assert isinstance(body["ttlMs"], int) and body["ttlMs"] >= 0 and body["cacheScope"] in ("public", "private")
    assert [found[n]["result"][key] for n, key in ((1, "tools"), (2, "resources"), (4, "prompts"))] == [[], [], []]
    assert found[6]["error"]["code"] == -32601


def test_both_eras_in_one_session(run):
    """The shape follows each request, not the session."""
    data = (initialize() + request("1", "tools/list", _meta=MODERN_META) + request("2", "tools/list")
            + request("3", "tools/list", _meta={"progressToken": 1}) + request("4", "server/discover"))
    found = answers(run("--mask", server=[MISSING], data=data).out)
    assert found[1]["result"]["resultType"] == "complete"
    assert found[2]["result"] == found[3]["result"] == {"tools": []}
    assert found[4]["error"]["code"] == -32601


@pytest.mark.parametrize("raw_id", ["9007199254740993", '"a\\u0041 b"', "1.0", "-5", "123456789012345678901234567890",
                                    '""'])
def test_ids_come_back_as_they_were_written(run, raw_id):
    result = run("--mask", server=[MISSING], data=request(raw_id, "ping"))
    assert raw_id.encode() in result.out and result.out.count(b"\n") == 1


def test_what_was_sent_before_the_failure_is_answered_once(start):
    """The server has read the first request when it dies; later ones arrive before, during and after."""
    session = start("--mask", server=server("crash", 1, 1, "--read"))
    session.send(initialize())
    session.wait_out(b"\n")
    session.send(INITIALIZED + request("1", "tools/list"))
    session.wait_out(b'"tools"')
    session.send(request("2", "ping"))
    assert list(answers(session.finish().out)) == [0, 1, 2]


def test_half_a_frame_before_the_failure_and_half_after_it(start, tmp_path, lifeline):
    session = start("--mask", server=server("crash", 1, 1, "--read"))
    frame = request("1", "tools/list")
    session.send(initialize() + frame[:20])
    session.wait_out(b"protocolVersion")  # the responder has taken over
    session.send(frame[20:])
    session.wait_out(b'"tools"')
    assert list(answers(session.finish().out)) == [0, 1]


def test_a_large_backlog_is_replayed(run):
    data = initialize() + b"".join(request(str(n), "tools/call", name="x",
                                           arguments={"a": "y" * 2000}) for n in range(1, 700))
    result = run("--mask", server=server("crash", 0, 1, "--read"), data=data)
    assert result.code == 0 and list(answers(result.out)) == list(range(700))


@pytest.mark.parametrize("junk", [b"junk\n", b"\n", b"\r\n", b"[]\n", b"42\n", b"null\n", b"\xff\n",
                                  b"{" * 50000 + b"\n",
                                  b'{"jsonrpc":"2.0","id":null,"method":"x"}\n', b'{"jsonrpc":"2.0","method":5}\n',
                                  b'{"jsonrpc":"2.0","id":1,"result":{}}\n',
                                  b'{"jsonrpc":"2.0","id":"\\ud800","method":"x"}\n',
                                  b'{"jsonrpc":"2.0","id":7,"method":"initialize","params":[1]}\n',
                                  b'{"jsonrpc":"2.0","id":7,"method":"initialize","params":{"protocolVersion":5}}\n',
                                  b'{"jsonrpc":"2.0","id":7,"method":"x","n":' + b"9" * 5000 + b"}\n"], ids=range(15))
def test_the_responder_survives_bad_input(run, junk):
    result = run("--mask", server=[MISSING], data=initialize() + junk + request("99", "ping"))
    assert result.code == 0 and b"Traceback" not in result.err
    assert json.loads(result.out.splitlines()[-1]) == {"jsonrpc": "2.0", "id": 99, "result": {}}


def test_a_batch_is_answered(run):
    data = b"[%s,%s,%s]\n" % (request("1", "ping").strip(), INITIALIZED.strip(), request("2", "tools/list").strip())
    result = run("--mask", server=[MISSING], data=data + request("3", "ping"))
    members = [message for line in result.out.splitlines() for parsed in [json.loads(line)]
               for message in (parsed if isinstance(parsed, list) else [parsed])]
    assert [message["id"] for message in members] == [1, 2, 3]


def test_a_last_request_without_newline_is_answered(run):
    result = run("--mask", server=[MISSING], data=request("1", "ping").rstrip(b"\n"))
    assert list(answers(result.out)) == [1]


def test_the_failure_is_still_explained(run):
    """Masking smooths over the protocol signal only; the log says what happened."""
    result = run("--mask", server=[MISSING])
    assert (result.code, result.out) == (0, b"")
    assert [line for line in our_lines(result.err) if line.startswith('cannot run "%s": ' % MISSING)]
    result = run("--mask", server=server("crash", 3, 2))
    assert result.err.startswith(b"crash-server: line 1 of 3\n")
    assert [line for line in our_lines(result.err) if "exited with code 2 before answering anything" in line]


def test_the_last_words_are_waited_for(run, tmp_path):
    """The thread that reads the server's stderr may come to it only after the server has ended."""
    late = support.patched(tmp_path / "late.py",
                           "import threading",
                           "deciding = threading.Event()",
                           "read, decide = relay.Relay._read_stderr, relay.Relay._mask_or_not",
                           "relay.Relay._read_stderr = lambda self: (deciding.wait(), read(self))",
                           "relay.Relay._mask_or_not = lambda self: (deciding.set(), decide(self))")
    result = run("--mask", server=server("crash", 3, 2), flags=("-I", "-S", late))
    assert (result.code, result.err.startswith(b"crash-server: line 1 of 3\n")) == (0, True)
    assert b"line 3 of 3" in result.err.partition(b"exited with code 2 before answering anything")[2]


def test_a_silent_end_is_masked_although_a_grandchild_keeps_the_pipe_open(start, tmp_path):
    """What the grandchild says later is said to nobody: the pipe was given up together with the server."""
    go, said = str(tmp_path / "go"), str(tmp_path / "said")
    for path in (go, said):
        os.mkfifo(path)
    speak_late = '{ read line < "$0"; echo "too late"; echo said > "$1"; } & exit 3'
    session = start("--mask", server=["sh", "-c", speak_late, go, said]).send(initialize())
    session.wait_out(b"protocolVersion")
    with open(go, "wb") as pipe:
        pipe.write(b"go\n")
    with open(said, "rb") as pipe:
        assert pipe.read() == b"said\n"
    session.send(request("1", "ping"))
    session.wait_out(b'"id":1')
    result = session.finish()
    assert result.code == 0 and list(answers(result.out)) == [0, 1]


def test_a_healthy_server_is_left_alone(run):
    data = initialize() + b"odd \xff bytes\r\n" + request("1", "tools/list")
    assert run("--mask", server=server("echo"), data=data) == (0, data, b"") or \
        run("--mask", server=server("echo"), data=data).out == data
    result = run("--mask", server=server("raw"), data=data)
    assert result.code == 0 and b'"echo"' in result.out and result.out.count(b"\n") == 2


def test_a_server_that_hears_end_of_file_and_leaves_without_a_word_is_no_failure(run):
    result = run("--mask", server=server("pour", "--stderr", 25))
    assert (result.code, result.out) == (0, b"")


@pytest.mark.parametrize("said", [b"x", b"\n", b'{"jsonrpc":"2.0","method":"n"}\n', b"\0"], ids=repr)
@pytest.mark.parametrize("code", [0, 3])
def test_a_crash_after_real_output_is_a_crash(start, tmp_path, said, code):
    source = tmp_path / "source"
    source.write_bytes(said)
    session = start("--mask", server=server("crash", 1, code, "--stdout", source, "--read"))
    session.send(initialize() + request("1", "tools/list"))
    result = session.wait()  # by itself, although stdin is open
    assert (result.code, result.out) == (code, said)


def test_a_crash_in_the_middle_of_a_call_is_a_crash(start):
    session = start("--mask", server=server("raw"))
    session.send(initialize())
    session.wait_out(b"\n")
    session.send(request("1", "tools/call", name="die", arguments={"signal": "SIGKILL"}))
    result = session.wait()
    assert result.code == 137 and result.out.count(b"\n") == 1


def test_without_mask_nothing_is_answered(run):
    assert run(server=[MISSING], data=initialize()).out == b""
    assert run(server=server("crash", 0, 3, "--read"), data=initialize())[:2] == (3, b"")


@pytest.mark.parametrize("name, code", [("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 129)])
def test_a_signal_ends_the_responder(start, name, code):
    session = start("--mask", server=[MISSING]).send(initialize())
    session.wait_out(b"\n")
    session.signal(getattr(signal, name))
    result = session.wait()
    assert result.code == code and b"Traceback" not in result.err


def test_a_host_that_vanishes_ends_the_responder(start):
    session = start("--mask", server=[MISSING], reading=["stderr"])
    session.process.stdout.close()
    del session.streams["stdout"]
    session.send(request("1", "ping") * 3).close_stdin()
    assert b"Traceback" not in session.wait().err


def test_trace_shows_masked_answers_too(run):
    lines = our_lines(run("--mask", "--trace", server=[MISSING], data=initialize() + request("1", "ping")).err)
    assert "[client->server] -> initialize #0" in lines and "[server->client] <- ping #1 ok" in lines


def test_a_hostile_command_name_is_escaped_in_the_handshake(run):
    result = run("--mask", server=["evil\x1b[2J\u202e\udcff"], data=initialize())
    assert result.code == 0
    assert not support.dangerous(result.out.decode("utf-8").replace("\n", ""))
    json.loads(result.out.decode("utf-8"))


# down


def test_down_takes_everything_after_it_as_the_command(start):
    session = start("down", *server("args", "--trace", "--port", "1", "--", "--help", "-x"))
    facts = session.wait_out(b"\n")
    session.finish()
    expected = [argument.encode().hex() for argument in ("--trace", "--port", "1", "--", "--help", "-x")]
    assert json.loads(facts)["params"]["argv"] == expected


@pytest.mark.parametrize("failure", FAILING)
def test_down_masks(run, failure):
    result = run("down", *FAILING[failure], data=initialize() + request("1", "tools/list") + request("2", "ping"))
    assert result.code == 0 and list(answers(result.out)) == [0, 1, 2]


def test_down_gives_the_child_the_real_stderr(relay_file, nowhere):
    """The same file, not a copy of its text: the server sees what we were given."""
    reader, writer = os.pipe()
    session = support.Session([sys.executable, "-I", "-S", relay_file, "down", *server("args")], stderr=writer,
                              env=support.quiet_environment(*nowhere))
    try:
        facts = json.loads(session.wait_out(b"\n"))["params"]
        assert facts["stderr"] == os.fstat(writer).st_ino
        session.finish()
    finally:
        session.destroy()
        os.close(reader)
        os.close(writer)


def test_down_passes_a_healthy_server_through(run):
    data = b"odd \xff\r\n\n" + initialize()
    assert run("down", *server("echo"), data=data)[:2] == (0, data)
    assert run("down", *server("echo", 4), data=data)[:2] == (4, data)


def test_down_shows_the_crash_log_once(run):
    result = run("down", *server("crash", 2, 1), data=initialize())
    assert result.code == 0 and result.err.count(b"crash-server: line 1 of 2") == 1


def test_down_without_a_command(run):
    result = run("down")
    assert result.code in (1, 2) and result.out == b"" and b"down" in result.err and b"Traceback" not in result.err
