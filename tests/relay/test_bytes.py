"""What goes in comes out: every byte, in both directions, however odd and however chunked.

Each test runs the relay as a process in front of a server that returns, stores or pours bytes.
"""

import fcntl
import hashlib
import os
import select
import socket
import subprocess
import sys
import threading

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import support
from support import server

ODD = {
    "spacing": b'{ "jsonrpc" : "2.0" ,\t"id" :  1 , "method":"ping"  }\n',
    "numbers": b'{"jsonrpc":"2.0","id":1,"result":{"a":1.50,"b":1e3,"c":1E400,"d":-0,"e":9007199254740993}}\n',
    "escapes": b'{"jsonrpc":"2.0","id":1,"result":"caf\\u00e9 \\/ \\u0041"}\n',
    "raw unicode": '{"jsonrpc":"2.0","id":1,"result":"✓ 漢字 😀 \u2028 \u0085 \u00a0"}\n'.encode(),
    "unsorted and doubled keys": b'{"id":1,"id":2,"method":"ping","jsonrpc":"2.0","jsonrpc":"2.0"}\n',
    "carriage return": b'{"jsonrpc":"2.0","id":1,"method":"ping"}\r\n',
    "lone carriage returns": b"\r\r\n\r{}\r\n\r",
    "blank lines": b"\n\n  \n\t\n\r\n",
    "invalid utf-8": b'{"jsonrpc":"2.0","id":1,"result":"\xff\xfe\xc3\x28"}\n\xff\n',
    "byte order mark": b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
    "utf-16": '{"jsonrpc":"2.0","id":1,"method":"ping"}\n'.encode("utf-16"),
    "shift-jis": "テスト\n".encode("shift-jis"),
    "batches": b'[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/x"}]\n[]\n[1]\n',
    "not json": b"debug: loading\n42\n\"x\"\nnull\ntrue\nNaN\n{\n}\n",
    "not json-rpc": b'{"level":30,"msg":"hi"}\n{"method":"GET","path":"/","status":200}\n{"jsonrpc":"2.0"}\n',
    "bad shapes": b'{"jsonrpc":"2.0","id":null,"method":"x"}\n{"jsonrpc":"2.0","id":{},"method":5,"params":"x"}\n'
                  b'{"jsonrpc":"2.0","id":[1],"error":7}\n{"jsonrpc":"2.0","id":true,"result":1,"error":1}\n',
    "lone surrogates": b'{"jsonrpc":"2.0","id":"\\ud800","method":"tools/call","params":{"\\ud800":"\\udfff"}}\n',
    "absurd depth": b'{"jsonrpc":"2.0","id":1,"params":' + b"[" * 20000 + b"]" * 20000 + b',"method":"x"}\n',
    "unclosed depth": b'{"a":' * 20000 + b"\n",
    "absurd digits": b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"ping","x":' + b"7" * 20000 + b"}\n",
    "zero bytes": b"\0\0\n\0{}\n",
    "terminal control": b"\x1b[2J\x1b]0;title\x07\x9b31m\n",
    "content-length framing": b'Content-Length: 38\r\n\r\n{"jsonrpc":"2.0","id":1,"method":"x"}',
    "pretty printed": b'{\n  "jsonrpc": "2.0",\n  "id": 1,\n  "method": "ping"\n}\n',
    "two on one line": b'{"jsonrpc":"2.0","id":1,"result":{}}{"jsonrpc":"2.0","id":2,"result":{}}\n',
    "glued log": b'[db] ok {"jsonrpc":"2.0","id":1,"result":{}}\n',
    "no last newline": b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n{"jsonrpc":"2.0","id":2,"method":"ping"}',
    "nothing": b"",
    "one newline": b"\n",
    "line of 132 KB": b'{"jsonrpc":"2.0","id":1,"result":"' + b"x" * 132000 + b'"}\n',
}
EVERYTHING = b"".join(data if data.endswith(b"\n") else data + b"\n" for data in ODD.values())


def frame_of(length, number=1):
    """One valid frame of exactly length bytes, newline included."""
    head, tail = b'{"jsonrpc":"2.0","id":%d,"result":"' % number, b'"}\n'
    return head + b"x" * (length - len(head) - len(tail)) + tail


BOUNDARIES = b"".join(frame_of(length) for length in
                      (4095, 4096, 4097, 8191, 8192, 8193, 65535, 65536, 65537, 131072, 131073, 1048576))


@pytest.mark.parametrize("name", ODD)
def test_odd_input_passes_both_ways_unchanged(run, name):
    result = run(server=server("echo"), data=ODD[name])
    assert (result.code, result.out) == (0, ODD[name])


@pytest.mark.parametrize("options", [["--trace"], ["--mask"], ["--inherit-stderr"], ["--no-report"],
                                     ["--max-frame-bytes", "1024"], ["--trace", "--max-frame-bytes", "1024"],
                                     ["--trace", "--mask", "--hide", "inputs,outputs"]], ids=" ".join)
def test_no_option_changes_a_byte(run, options):
    data = EVERYTHING + BOUNDARIES + ODD["no last newline"]
    result = run(*options, server=server("echo"), data=data)
    assert result.code == 0
    assert result.out == data


@pytest.mark.parametrize("options", [[], ["--trace"]], ids=["plain", "traced"])
def test_one_byte_at_a_time_from_both_sides(start, tmp_path, options):
    said = EVERYTHING[:3000] + b'{"jsonrpc":"2.0","id":1,"result":{}}\r\nno newline'
    source, sink = tmp_path / "source", tmp_path / "sink"
    source.write_bytes(said)
    session = start(*options, server=server("pour", "--stdout", source, "--chunk", 1, "--sink", sink))
    for position in range(len(said)):
        session.send(said[position:position + 1])
    result = session.finish()
    assert (result.code, result.out, sink.read_bytes()) == (0, said, said)


@pytest.mark.parametrize("options", [[], ["--trace"]], ids=["plain", "traced"])
@pytest.mark.parametrize("chunk", [4095, 4096, 4097, 65535, 65536, 65537, 1 << 21])
def test_frames_at_buffer_boundaries_back_to_back(run, tmp_path, chunk, options):
    source, sink = tmp_path / "source", tmp_path / "sink"
    source.write_bytes(BOUNDARIES)
    result = run(*options, server=server("pour", "--stdout", source, "--chunk", chunk, "--sink", sink),
                 data=BOUNDARIES)
    assert (result.code, result.out == BOUNDARIES, sink.read_bytes() == BOUNDARIES) == (0, True, True)


@pytest.fixture(scope="module")
def long_lived(relay_file, nowhere):
    """Two relays (plain and traced) in front of echo servers, shared by the property test."""
    sessions = [support.Session([sys.executable, "-I", "-S", relay_file, *options, "--", *server("echo")],
                                env=support.quiet_environment(*nowhere)) for options in ([], ["--trace"])]
    yield sessions
    for session in sessions:
        session.destroy()


FRAGMENTS = st.one_of(st.binary(max_size=200), st.sampled_from(sorted(ODD.values())[:20]),
                      st.sampled_from([b"\n", b"\r\n", b'{"jsonrpc":"2.0","id":', b"1}", b'"', b"\\", b"\xff", b"[",
                                       b"{"]))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chunks=st.lists(FRAGMENTS, max_size=12))
def test_any_bytes_in_any_chunks(long_lived, chunks):
    plain, traced = long_lived
    whole = b"".join(chunks)
    # A traced relay may keep an unfinished frame until its newline, so this session's bytes end with one.
    for session, expected in ((plain, whole), (traced, whole + b"\n")):
        seen = len(session.out)
        for chunk in chunks:
            session.send(chunk)
        session.send(expected[len(whole):])
        assert session.wait_out(seen + len(expected))[seen:] == expected


@pytest.mark.parametrize("options", [[], ["--trace"]], ids=["plain", "traced"])
def test_a_frame_is_forwarded_as_soon_as_its_last_byte_is_there(start, options):
    session = start(*options, server=server("echo"))
    for number in range(1, 6):
        frame = b'{"jsonrpc":"2.0","id":%d,"method":"ping"}\n' % number
        session.send(frame)
        session.wait_out(frame)  # nothing follows that could push it out
    last = frame_of(40000)  # the tail of a large frame must not wait in a buffer either
    session.send(last)
    session.wait_out(last)
    assert session.finish().code == 0


def test_unattached_bytes_pass_before_the_newline(start):
    session = start(server=server("echo"))
    session.send(b'{"jsonrpc":"2.0","id":1,"meth')
    session.wait_out(b'"meth')
    session.send(b'od":"ping"}')
    session.wait_out(b'"ping"}')
    session.send(b"\nx")
    session.wait_out(b"\nx")
    assert session.finish().out == b'{"jsonrpc":"2.0","id":1,"method":"ping"}\nx'


ENVIRONMENTS = {
    "empty": {},
    "C locale": {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "unknown locale": {"LC_ALL": "xx_YY.nonsense", "LANG": "\udcff"},
    "odd python settings": {"PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1", "PYTHONUNBUFFERED": "", "PYTHONUTF8": "1"},
}


@pytest.mark.parametrize("name, flags", [("empty", ["-I", "-S"]), ("unknown locale", ["-I", "-S"]), ("C locale", []),
                                         ("odd python settings", [])])
def test_no_environment_changes_a_byte(run, name, flags):
    data = EVERYTHING + '{"jsonrpc":"2.0","id":1,"method":"✓ 漢字"}\n'.encode()
    result = run("--trace", server=server("echo"), data=data, env=ENVIRONMENTS[name], flags=flags)
    assert result.code == 0
    assert result.out == data
    assert b"Traceback" not in result.err and b"EncodeError" not in result.err and b"Warning" not in result.err


@pytest.mark.parametrize("options", [[], ["--trace"]], ids=["plain", "traced"])
@pytest.mark.parametrize("closed", ["2>&-", "<&-", "<&- 2>&-", "1>&-", "<&- 1>&- 2>&-"])
def test_closed_descriptors_are_not_mistaken_for_new_ones(relay_file, nowhere, tmp_path, closed, options):
    """A pipe of ours may get the number of a descriptor that was closed at the start; our words must not go there."""
    said = b'{"jsonrpc":"2.0","id":1,"method":"notifications/hello"}\nnoise on purpose\n'
    source, sink = tmp_path / "source", tmp_path / "sink"
    source.write_bytes(said)
    command = [sys.executable, "-I", "-S", relay_file, *options, "--",
               *server("pour", "--stdout", source, "--sink", sink, "--stderr", 200000)]
    session = support.Session(["sh", "-c", 'exec "$@" ' + closed, "sh", *command],
                              env=support.quiet_environment(*nowhere))
    try:
        session.send(said)
        result = session.finish()
    finally:
        session.destroy()
    assert result.out == (b"" if "1>&-" in closed else said), result.err[-2000:]
    assert sink.read_bytes() == (b"" if "<&-" in closed else said)
    assert result.code == 0 or "1>&-" in closed
    assert b"Traceback" not in result.err


@pytest.mark.parametrize("options", [[], ["--trace"]], ids=["plain", "traced"])
def test_a_stderr_reader_that_leaves_changes_nothing(start, tmp_path, options):
    source = tmp_path / "source"
    source.write_bytes(EVERYTHING)
    session = start(*options, server=server("pour", "--stdout", source, "--stderr", 2000000, "--answer", "end\n"),
                    reading=["stdout"])
    session.process.stderr.close()
    del session.streams["stderr"]
    session.wait_out(b"end\n")
    result = session.finish()
    assert (result.code, result.out) == (0, EVERYTHING + b"end\n")


@pytest.mark.parametrize("kind", ["pipe", "socketpair"])
@pytest.mark.parametrize("nonblocking, options", [(False, []), (True, []), (True, ["--trace"]),
                                                  (False, ["--inherit-stderr"])])
def test_inherited_descriptors_keep_their_flags(relay_file, nowhere, tmp_path, kind, nonblocking, options):
    """Hosts hand over pipes or socket pairs, blocking or not (Node: non-blocking pairs); all work, none is changed."""
    ends = [_pair(kind) for _ in range(3)]
    (our_in, its_in), (our_out, its_out), (our_err, its_err) = ends[0][::-1], ends[1], ends[2]
    source = tmp_path / "source"
    source.write_bytes(BOUNDARIES)
    for descriptor in (its_in, its_out, its_err):
        os.set_blocking(descriptor, not nonblocking)
    before = [fcntl.fcntl(descriptor, fcntl.F_GETFL) for pair in ends for descriptor in pair]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", relay_file, *options, "--",
         *server("pour", "--stdout", source, "--stderr", 1000000, "--answer", "end\n")],
        stdin=its_in, stdout=its_out, stderr=its_err, env=support.quiet_environment(*nowhere), start_new_session=True)
    try:
        # Nobody reads yet: the relay meets full pipes, where a descriptor in the wrong mode would lose bytes.
        assert select.select([our_out], [], [], support.LIMIT_S)[0]
        during = [fcntl.fcntl(descriptor, fcntl.F_GETFL) for pair in ends for descriptor in pair]
        collected = {}
        os.close(its_out)
        os.close(its_err)
        readers = [threading.Thread(target=_collect, args=(end, collected)) for end in (our_out, our_err)]
        for reader in readers:
            reader.start()
        os.close(our_in)
        code = process.wait(support.LIMIT_S)
        for reader in readers:
            reader.join(support.LIMIT_S)
    finally:
        process.kill()
        process.wait()
        after = fcntl.fcntl(its_in, fcntl.F_GETFL)
        for descriptor in (our_out, our_err, its_in):
            os.close(descriptor)
    assert (code, collected[our_out]) == (0, BOUNDARIES + b"end\n"), collected[our_err][-2000:]
    assert collected[our_err].count(b"stderr line") == 40000
    assert during == before and after == before[0 if ends[0][0] == its_in else 1]


def _pair(kind):
    """(reading end, writing end) of a fresh pipe, or both ends of a socket pair, as descriptors."""
    if kind == "pipe":
        return os.pipe()
    one, other = socket.socketpair()
    return one.detach(), other.detach()


def _collect(descriptor, collected):
    data = bytearray()
    while True:
        try:
            chunk = os.read(descriptor, 1 << 16)
        except OSError:
            chunk = b""
        if not chunk:
            break
        data += chunk
    collected[descriptor] = bytes(data)


def test_two_megabytes_each_way_with_twenty_on_stderr(start, tmp_path):
    data = os.urandom(1 << 10) * 2048
    source, sink = tmp_path / "source", tmp_path / "sink"
    source.write_bytes(data)
    session = start(server=server("pour", "--stdout", source, "--sink", sink, "--stderr", 20_000_000)).send(data)
    session.wait_err(b"stderr line %012d\n" % 799999)  # at the end of its input the server has 1.5 s to finish
    result = session.finish()
    assert (result.code, result.out == data, sink.read_bytes() == data) == (0, True, True)
    mirrored = b"".join(line for line in result.err.splitlines(True) if not line.startswith(b"mcp_relay: "))
    assert len(mirrored) == 20_000_000
    assert mirrored.splitlines()[-1] == b"stderr line %012d" % 799999


def test_an_answer_arrives_although_nobody_reads_stderr(start):
    """The server writes 20 MB to stderr first; a relay that waited for its own stderr would never answer."""
    session = start(server=server("pour", "--stderr", 20_000_000, "--answer", '{"answer":1}\n'), reading=["stdout"])
    session.wait_out(b'{"answer":1}\n')


def test_a_late_stderr_reader_gets_every_byte(start):
    session = start(server=server("pour", "--stderr", 1_900_000, "--answer", '{"jsonrpc":"2.0","method":"n"}\n'),
                    reading=["stdout"])
    session.wait_out(b'"method":"n"}\n')
    session.close_stdin()
    session.start_reading("stderr")
    assert session.wait().err.count(b"stderr line") == 1_900_000 // 25


def test_bytes_on_stderr_that_are_not_text(run, tmp_path):
    said = bytes(range(256)) * 4000 + b"42%\r43%\r"
    junk = tmp_path / "junk.py"
    junk.write_text("import os\nsaid = bytes(range(256)) * 4000 + b'42%\\r43%\\r'\nos.read(0, 1)\n"
                    "os.write(1, b'{\"jsonrpc\":\"2.0\",\"method\":\"n\"}\\n')\n"
                    "while said:\n    said = said[os.write(2, said[:65536]):]\n")
    result = run(server=[sys.executable, "-I", "-S", str(junk)])
    assert (result.code, result.out) == (0, b'{"jsonrpc":"2.0","method":"n"}\n')
    assert result.err == said


def test_a_slow_reader_loses_nothing(start, tmp_path):
    """200 notifications and a 1 MB answer while the host does not read; stderr is drained meanwhile."""
    said = b"".join(b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"n":%d}}\n' % n for n in range(200))
    said += frame_of(1_000_000)
    source, sink = tmp_path / "source", tmp_path / "sink"
    source.write_bytes(said)
    session = start(server=server("pour", "--stdout", source, "--sink", sink, "--stderr", 500000), reading=["stderr"])
    session.send(BOUNDARIES)
    session.wait_err(b"stderr line %012d" % (500000 // 25 - 1))
    session.start_reading("stdout")
    result = session.finish()
    assert (result.out == said, sink.read_bytes() == BOUNDARIES) == (True, True)


def test_a_slow_server_loses_nothing(start, tmp_path, lifeline):
    """The server opens its stdin late; what the host wrote meanwhile waits in order."""
    sink, late = tmp_path / "sink", tmp_path / "late.py"
    late.write_text("import os, shutil, sys\nopen(sys.argv[1], 'rb').read()\n"
                    "shutil.copyfileobj(sys.stdin.buffer, open(sys.argv[2], 'wb'))\n")
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    session = start(server=[sys.executable, "-I", "-S", str(late), gate, str(sink)])
    session.send(BOUNDARIES).close_stdin()
    with open(gate, "wb"):
        pass  # the server goes on when this FIFO was opened and closed
    assert session.wait().code == 0
    assert sink.read_bytes() == BOUNDARIES


def test_the_host_can_leave_its_answers_unread_to_the_end(start, tmp_path):
    """Back-pressure, then end of file with the answer still in the pipes: everything is delivered."""
    source = tmp_path / "source"
    source.write_bytes(BOUNDARIES * 3)
    session = start(server=server("pour", "--stdout", source, "--after-eof", "--say", "ready"), reading=["stderr"])
    session.send(b"x\n").close_stdin()
    session.wait_err(b"ready")
    session.start_reading("stdout")
    assert session.wait().out == BOUNDARIES * 3


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--trace"]], ids=["plain", "traced"])
def test_a_line_of_a_hundred_megabytes(start, tmp_path, options):
    """No cap on the forwarding path, and the relay's own copy is bounded: its memory stays far below the line."""
    block = tmp_path / "block"
    block.write_bytes(b"x" * (1 << 20))
    session = start(*options, server=server("pour", "--stdout", block, "--times", 100, "--answer", "end\n"))
    session.wait_out(100 << 20)
    peak = _peak_memory(session.pid)
    result = session.finish()
    assert result.code == 0 and len(result.out) == 100 * (1 << 20) + 4
    assert hashlib.sha256(result.out).digest() == hashlib.sha256(b"x" * (100 << 20) + b"end\n").digest()
    if not options:
        assert peak is None or peak < 64 << 20


def test_a_line_of_thirty_two_megabytes_to_the_server(run, tmp_path):
    data = frame_of(32 << 20)
    sink = tmp_path / "sink"
    result = run(server=server("pour", "--sink", sink), data=data)
    assert result.code == 0
    assert sink.stat().st_size == len(data) and sink.read_bytes() == data


def _peak_memory(pid):
    """Peak resident bytes of a process, or None where /proc does not tell."""
    try:
        with open("/proc/%d/status" % pid) as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return None


def test_a_direct_run_and_a_relayed_run_are_the_same(run, tmp_path):
    """A conversation of many messages with a server that writes its JSON by hand."""
    said = b"".join(line + b"\n" for line in (
        b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}',
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
        b'{ "method":"tools/list", "jsonrpc":"2.0", "id":9007199254740993 }',
        b'{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"echo",'
        b'"arguments":{"text":"\\ud83d\\ude00"}}}',
        b'garbage', b'',
        b'[{"jsonrpc":"2.0","id":5,"method":"ping"},{"jsonrpc":"2.0","id":6,"method":"ping"}]',
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"big","arguments":{"bytes":2097152}}}',
        b'{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"boom"}}',
        b'{"jsonrpc":"2.0","id":1.0,"method":"nope"}',
        b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"softfail"}}',
        b'{"jsonrpc":"2.0","id":10,"method":"tools/call","params":{"name":"notify"}}'))
    direct_log, relayed_log = tmp_path / "direct", tmp_path / "relayed"
    direct = subprocess.run(server("raw", "--log", direct_log), input=said, stdout=subprocess.PIPE, check=True).stdout
    result = run(server=server("raw", "--log", relayed_log), data=said)
    assert result.code == 0 and direct.count(b"\n") == 11
    assert result.out == direct
    assert relayed_log.read_bytes() == direct_log.read_bytes() == said


def test_answers_pass_in_the_servers_order(run):
    calls = [b'{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"slow"}}',
             b'{"jsonrpc":"2.0","id":"b","method":"tools/call","params":{"name":"echo"}}',
             b'{"jsonrpc":"2.0","method":"notifications/go"}',
             b'{"jsonrpc":"2.0","id":"c","method":"ping"}']
    result = run(server=server("raw"), data=b"\n".join(calls) + b"\n")
    assert [line[-4:-1] for line in result.out.splitlines()] == [b'"b"', b'"a"', b'"c"']
