"""Framing: chunks in, frames out. Every case is fed whole, byte by byte, split everywhere, and with bytes behind it."""

import pytest
from hypothesis import given, strategies as st

import mcp_relay

LIMIT = 64

CASES = [  # bytes, frames, tail
    (b"", [], b""),
    (b"\n", [b""], b""),
    (b"\n\nx", [b"", b""], b"x"),
    (b'{"a":1}\n{"b":2}\n', [b'{"a":1}', b'{"b":2}'], b""),
    (b'{"a":1}\r\n', [b'{"a":1}\r'], b""),
    (b"\r\r\n\r", [b"\r\r"], b"\r"),
    (b"abc", [], b"abc"),
    (b"\0\xff\xfe\n", [b"\0\xff\xfe"], b""),
    ("a\u2028b\u0085c\x0b\x0c\n".encode(), ["a\u2028b\u0085c\x0b\x0c".encode()], b""),  # only 0x0A ends a frame
    (b"x" * LIMIT + b"\ny", [b"x" * LIMIT], b"y"),  # exactly at the limit is not over it
]


def feed_all(chunks, limit=LIMIT):
    """(frames, raw bytes, tail) of a Framer fed with chunks."""
    framer = mcp_relay.Framer(limit)
    frames, rest = [], b""
    for chunk in chunks:
        more, raw = framer.feed(chunk)
        assert not (raw and not framer.raw)
        frames += more
        rest += raw
    return frames, rest, framer.tail()


@pytest.mark.parametrize("data, frames, tail", CASES)
def test_whole(data, frames, tail):
    assert feed_all([data]) == (frames, b"", tail)


@pytest.mark.parametrize("data, frames, tail", CASES)
def test_byte_by_byte(data, frames, tail):
    assert feed_all([data[at:at + 1] for at in range(len(data))]) == (frames, b"", tail)


@pytest.mark.parametrize("data, frames, tail", CASES)
def test_split_everywhere(data, frames, tail):
    for cut in range(len(data) + 1):
        assert feed_all([data[:cut], data[cut:]]) == (frames, b"", tail)
        for other in range(cut, len(data) + 1):
            assert feed_all([data[:cut], data[cut:other], data[other:]]) == (frames, b"", tail)


@pytest.mark.parametrize("trailing", [b"", b"\n", b"z", b"\n\n", b"q\nr"])
@pytest.mark.parametrize("data, frames, tail", CASES)
def test_with_trailing_bytes(data, frames, tail, trailing):
    expected = (data + trailing).split(b"\n")
    got, rest, got_tail = feed_all([data, trailing], limit=1000)
    assert (got, rest, got_tail) == (expected[:-1], b"", expected[-1])


@given(st.lists(st.binary(max_size=40)))
def test_any_chunks_give_what_splitting_the_whole_gives(chunks):
    expected = b"".join(chunks).split(b"\n")
    assert feed_all(chunks, limit=10 ** 6) == (expected[:-1], b"", expected[-1])


@given(st.lists(st.sampled_from([b"\n", b"a", b"bb\n", b"c" * 5, b"d" * 20, b"e\nf\n", b""])), st.integers(1, 30))
def test_over_the_limit_nothing_is_lost_or_moved(chunks, limit):
    """Frames first, then the rest as raw bytes: put together again, they are the input."""
    frames, rest, tail = feed_all(chunks, limit)
    assert b"".join(frame + b"\n" for frame in frames) + rest + tail == b"".join(chunks)
    assert all(len(frame) <= limit for frame in frames)


def test_a_frame_over_the_limit_makes_the_direction_raw_for_good():
    framer = mcp_relay.Framer(8)
    assert framer.feed(b"ok\n123") == ([b"ok"], b"")
    assert framer.feed(b"4567890") == ([], b"1234567890")
    assert framer.raw
    assert framer.feed(b"\nshort\n") == ([], b"\nshort\n")
    assert framer.tail() == b""


def test_the_limit_also_counts_for_a_frame_that_ends_inside_one_chunk():
    frames, rest, _ = feed_all([b"a\n" + b"x" * 9 + b"\nb\n"], limit=8)
    assert (frames, rest) == ([b"a"], b"x" * 9 + b"\nb\n")


def test_the_tail_is_given_once():
    framer = mcp_relay.Framer(100)
    framer.feed(b"abc")
    assert (framer.tail(), framer.tail()) == (b"abc", b"")


def test_many_pieces_of_one_frame_are_joined_once():
    """Linear work: the pieces are kept apart until the newline comes."""
    framer = mcp_relay.Framer(1 << 30)
    piece = b"x" * 4096
    for _ in range(5000):
        assert framer.feed(piece) == ([], b"")
    frames, rest = framer.feed(b"\n")
    assert rest == b"" and len(frames) == 1 and len(frames[0]) == 5000 * 4096
