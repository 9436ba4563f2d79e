"""The sentences for failures, and the bounded memories they quote from."""

import errno

import pytest
from hypothesis import given, strategies as st

import mcp_relay

STATUS = [(3221225477, "STATUS_ACCESS_VIOLATION"), (-1073741819, "STATUS_ACCESS_VIOLATION"), (0xC0000135,
                                                                                              "STATUS_DLL_NOT_FOUND"),
          (0xC00000FD, "STATUS_STACK_OVERFLOW"), (0xC000013A, "STATUS_CONTROL_C_EXIT"), (0xC0000142,
                                                                                         "STATUS_DLL_INIT_FAILED"),
          (0xC0000374, "STATUS_HEAP_CORRUPTION"), (0xC0000409, "STATUS_STACK_BUFFER_OVERRUN"), (0xC0000017,
                                                                                                "STATUS_NO_MEMORY"),
          (0xC000001D, "STATUS_ILLEGAL_INSTRUCTION"), (0xC0000094, "STATUS_INTEGER_DIVIDE_BY_ZERO"),
          (0xC0000139, "STATUS_ENTRYPOINT_NOT_FOUND"), (0xC0000417, "STATUS_INVALID_CRUNTIME_PARAMETER"),
          (1, None), (0, None), (None, None), (2 ** 32, None), (1.5, None), (0xC0000999, None), ("x", None),
          (-2 ** 40, None)]


@pytest.mark.parametrize("code, name", STATUS)
def test_windows_crash_codes_have_names(code, name):
    assert mcp_relay.ntstatus_name(code) == name


@pytest.mark.parametrize("code, signal, words", [
    (0, None, "exited with code 0"), (2, None, "exited with code 2"), (None, None, "exited with code 0"),
    (None, "SIGKILL", "was killed by SIGKILL"), (3221225477, None, "STATUS_ACCESS_VIOLATION"),
    (-1073741819, None, "crashed")])
def test_how_a_server_ended(code, signal, words):
    assert words in mcp_relay.ending_words(code, signal)


class Odd(Exception):
    """An error without errno."""


SPAWN = [  # command, error, on Windows -> code, fragments, absent fragments
    ("no-such", FileNotFoundError(errno.ENOENT, "No such file"), False, 127, ["not found on PATH",
                                                                              'check the "command"'], []),
    ("no-such", FileNotFoundError(errno.ENOENT, "No such file"), True, 127, ["not found on PATH"], ["/c"]),
    ("./x", FileNotFoundError(errno.ENOENT, "No such file"), False, 127, [], ["PATH"]),
    ("x", PermissionError(errno.EACCES, "Permission denied"), False, 126, ["executable"], ["PATH"]),
    ("x", OSError(errno.ENOEXEC, "Exec format error"), False, 126, ["interpreter"], ["PATH"]),
    ("npx.cmd", OSError(errno.EINVAL, "Invalid argument"), True, 127, ['"cmd"', '"/c"', "npx.cmd"], ["PATH"]),
    ("run.BAT", OSError(errno.EINVAL, "Invalid argument"), True, 127, ['"cmd"', '"/c"'], ["PATH"]),
    ("npx", OSError(errno.EINVAL, "Invalid argument"), True, 127, [".cmd"], []),
    ("x", OSError(errno.EMFILE, "Too many open files"), False, 127, ["Too many open files"], ["—"]),
    ("weird", Odd("the spawner said no"), False, 127, ["the spawner said no"], ["—"]),
    ("weird", Odd(), False, 127, ["Odd"], ["—"]),
]


@pytest.mark.parametrize("command, error, windows, code, present, absent", SPAWN)
def test_why_a_command_cannot_be_started(command, error, windows, code, present, absent):
    got, sentence = mcp_relay.spawn_failure(command, error, windows)
    assert got == code and sentence.startswith('cannot run "%s": ' % command) and "\n" not in sentence
    assert all(each in sentence for each in present) and not any(each in sentence for each in absent)


def test_a_hostile_command_and_reason_are_escaped():
    _, sentence = mcp_relay.spawn_failure("a\x1b[2J\u202e\n", Odd("b\x07\n"), False)
    assert sentence.isprintable()


def test_the_report_of_an_early_exit():
    words = mcp_relay.early_exit_words("the MCP server exited with code 2", [b"one", b"\ttwo \x1b[31m"], 5, False)
    head, one, two = words.split("\n")
    assert "before answering anything — its last stderr output was" in head and "3 earlier lines left out" in head
    assert one == "    one" and two.startswith("    ") and "\x1b" not in two
    assert "--inherit-stderr" in mcp_relay.early_exit_words("w", [], 0, True)
    assert mcp_relay.early_exit_words("w", [], 0, False).startswith("w before answering anything")


def tail_of(chunks):
    tail = mcp_relay.StderrTail()
    for chunk in chunks:
        tail.feed(chunk)
    return tail


TAILS = [
    ([b"a\nb\n"], [b"a", b"b"], 2), ([b"a\r\nb"], [b"a", b"b"], 2), ([b"a", b"b", b"\n"], [b"ab"], 1), ([], [], 0),
    ([b"\n\n"], [b"", b""], 2), ([b"x" * 100], [b"x" * 100], 1)]


@pytest.mark.parametrize("chunks, lines, seen", TAILS)
def test_the_tail_of_stderr(chunks, lines, seen):
    assert tail_of(chunks).lines() == (lines, seen)


def test_the_tail_is_bounded_in_lines_and_bytes():
    tail = tail_of([b"".join(b"line %d\n" % n for n in range(3000))])
    lines, seen = tail.lines()
    assert (len(lines), lines[-1], seen) == (200, b"line 2999", 3000)
    assert tail.lines(40)[0] == lines[-40:]
    lines, seen = tail_of([b"y" * 1000 + b"\n"] * 100).lines()
    assert sum(map(len, lines)) <= 32 * 1024 and seen == 100
    lines, seen = tail_of([b"z" * 4096] * 1000).lines()
    assert sum(map(len, lines)) <= 32 * 1024 and seen == 1


@given(st.lists(st.binary(max_size=50)))
def test_chunking_does_not_change_the_tail(chunks):
    whole = b"".join(chunks)
    assert tail_of(chunks).lines() == tail_of([whole]).lines()


@given(st.lists(st.sampled_from([b"noise\n", b'{"jsonrpc":"2.0","id":1,"result":{}}\n', b"\n", b'{"level":1}\n', b"a",
                                 b"\xff",
                                 b'{"jsonrpc":"2.0"', b"}\n", b' {"jsonrpc":"2.0","method":"n"}\n', b"\r\n"]),
                                 max_size=12),
       st.lists(st.integers(1, 60), max_size=8))
def test_noise_is_counted_the_same_however_it_is_chunked(pieces, cuts):
    """The quick look at whole chunks and the look at each line agree."""
    data = b"".join(pieces)
    expected = [line for line in data.split(b"\n") if mcp_relay.classify(line).kind == "noise"]
    watch, at = mcp_relay.NoiseWatch(), 0
    for cut in cuts:
        watch.feed(data[at:at + cut])
        at += cut
    watch.feed(data[at:])
    watch.end()
    assert (watch.noise, watch.first) == (len(expected), expected[0] if expected else None)
    assert watch.answered == any(mcp_relay.classify(line).kind in ("request", "response", "notification", "batch")
                                 for line in data.split(b"\n"))


FRAME = b'{"jsonrpc":"2.0","id":7,"result":"%s"}\n' % (b"x" * 91)
assert mcp_relay.READ_BYTES % len(FRAME) == 0


def watch_after(chunk):
    """A NoiseWatch that has seen 33 MiB of clean chunks like this one."""
    watch = mcp_relay.NoiseWatch()
    for _ in range(33 * 1024 * 1024 // len(chunk)):
        watch.feed(chunk)
    assert watch.noise == 0 and watch.answered
    return watch


@pytest.mark.parametrize("clean", [0, 1, 7, 30, 31, 32])
def test_a_fast_stream_that_was_clean_for_long_is_searched_in_part_until_noise_is_found(clean):
    full = FRAME * (mcp_relay.READ_BYTES // len(FRAME))
    watch = watch_after(full)
    for _ in range(clean):
        watch.feed(full)
    assert watch.is_partial
    noisy = FRAME + b"oops\n" + full[len(FRAME) + 5:]
    assert any(watch.feed(noisy) for _ in range(32))
    assert watch.first == b"oops" and watch.noise == 2  # the word, and what is left of the frame that it stands in
    watch.feed(noisy)
    assert watch.noise == 4


def test_a_slow_stream_is_searched_in_full_however_long_it_was_clean():
    watch = watch_after(FRAME * 300)  # no full read: the reader keeps up
    assert watch.feed(FRAME + b"oops\n" + FRAME)
    assert watch.noise == 1 and not watch.is_partial


@pytest.mark.parametrize("clean", [b"", FRAME * 300000], ids=["at once", "after a long clean stream"])
@pytest.mark.parametrize("head, noise", [(FRAME[:60], 0), (b"oops", 1)], ids=["message", "noise"])
def test_a_line_that_is_longer_than_what_is_trusted_is_judged_by_its_beginning(clean, head, noise):
    watch = mcp_relay.NoiseWatch()
    watch.feed(clean)
    watch.feed(head)
    for _ in range(40 * 1024 * 1024 // mcp_relay.READ_BYTES):
        watch.feed(b"x" * mcp_relay.READ_BYTES)
    watch.feed(b'"}\n' + FRAME)
    assert (watch.noise, watch.answered) == (noise, True)
    assert (watch.first or b"")[:4] == b"oops"[:4 * noise]


@pytest.mark.parametrize("head, answered", [(FRAME[:60], True), (b"oops", False)], ids=["message", "noise"])
def test_one_line_that_is_longer_than_what_is_trusted_tells_whether_the_server_answered(head, answered):
    watch = mcp_relay.NoiseWatch()
    watch.feed(head)
    for _ in range(40 * 1024 * 1024 // mcp_relay.READ_BYTES):
        watch.feed(b"x" * mcp_relay.READ_BYTES)
    watch.feed(b'"}\n')
    assert (watch.answered, watch.noise, watch.is_partial) == (answered, int(not answered), False)


# What an unattached session remembers


def replayed(history):
    """Frames of each direction that a history gives back, and how many bytes it dropped."""
    keepsakes, chunks, dropped = history.replay()
    return keepsakes, {direction: b"".join(chunk for each, _, chunk in chunks if each == direction)
                       for direction in (mcp_relay.CLIENT_TO_SERVER, mcp_relay.SERVER_TO_CLIENT)}, dropped


def test_a_short_history_is_complete():
    history = mcp_relay.History()
    for direction in (mcp_relay.CLIENT_TO_SERVER, mcp_relay.SERVER_TO_CLIENT):
        for chunk in (b'{"a"', b":1}\n{", b"}\n"):
            history.add(direction, chunk, 1.0)
    assert replayed(history) == ([], {mcp_relay.CLIENT_TO_SERVER: b'{"a":1}\n{}\n',
                                      mcp_relay.SERVER_TO_CLIENT: b'{"a":1}\n{}\n'}, 0)


NOTE = b'{"jsonrpc":"2.0","method":"notifications/x"}\n'
LONG = b'{"jsonrpc":"2.0","id":1,"result":"%s"}\n' % (b"x" * 60000)


@pytest.mark.parametrize("chunk, count", [
    (NOTE * 20 + LONG, 100), (LONG + NOTE * 20, 100),
    (NOTE * 40 + LONG + (NOTE * 99)[:mcp_relay.READ_BYTES - 40 * len(NOTE) - len(LONG)], 40),
    (LONG * 2 + NOTE * 100, 45), (NOTE, 5000), (b"log: a line of stderr\n" * 50, 1000)])
def test_no_more_than_its_bounds_is_forgotten(chunk, count):
    """However frames and lines of stderr share the chunks: 5,000 frames or 8 MiB are remembered to the last byte."""
    history = mcp_relay.History()
    direction = mcp_relay.STDERR if chunk.startswith(b"log") else mcp_relay.SERVER_TO_CLIENT
    history.add(mcp_relay.CLIENT_TO_SERVER, b"" if chunk is NOTE else FRAME, 1.0)
    for _ in range(count):
        history.add(direction, chunk, 2.0)
    _, chunks, dropped = history.replay()
    assert dropped == 0 and b"".join(each for where, _, each in chunks if where == direction) == chunk * count


def test_a_history_of_many_small_pieces_is_bounded_too():
    """What a chunk takes beside its bytes counts: a peer that writes byte by byte does not fill the memory."""
    history = mcp_relay.History()
    for _ in range(100000):
        history.add(mcp_relay.SERVER_TO_CLIENT, b"x", 1.0)
    _, chunks, dropped = history.replay()
    assert dropped + len(chunks) <= 100000 and len(chunks) * 144 <= mcp_relay.HISTORY_BYTES


@pytest.mark.parametrize("size, count", [(100, 6000), (20000, 1000), (70000, 300)])
def test_a_long_history_is_bounded_and_keeps_the_handshake(size, count):
    history = mcp_relay.History()
    c2s, s2c = mcp_relay.CLIENT_TO_SERVER, mcp_relay.SERVER_TO_CLIENT
    initialize = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}'
    answer = b'{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25"}}'
    tools = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
    listed = b'{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"t","inputSchema":{}}]}}'
    for direction, frame in ((c2s, initialize), (s2c, answer), (c2s, tools), (s2c, listed)):
        history.add(direction, frame + b"\n", 1.0)
    total = 0
    for n in range(count):
        frame = b'{"jsonrpc":"2.0","id":%d,"result":"%s"}\n' % (n + 10, b"x" * size)
        for at in range(0, len(frame), 65536):
            history.add(s2c, frame[at:at + 65536], 2.0)
        total += len(frame)
    keepsakes, chunks, dropped = replayed(history)
    assert [frame for _, _, frame in keepsakes] == [initialize, answer, tools, listed]
    assert sum(map(len, chunks.values())) <= mcp_relay.HISTORY_BYTES
    frames = chunks[s2c].split(b"\n")
    assert frames.pop() == b"" and len(frames) <= 5000
    assert 0 < dropped <= total + 1000  # bytes that are missing between the two
    assert all(frame.startswith(b'{"jsonrpc":"2.0","id":') for frame in frames)  # it begins at a frame
