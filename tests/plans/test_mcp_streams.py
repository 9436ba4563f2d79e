"""Lines that wait, requests and their one answer, threads that are used again."""

import os
import threading

import pytest

import support
from graphlib_plans import mcp_streams, wire


class Pipe:
    """An Outbox on a pipe nobody reads until the test does."""

    def __init__(self):
        self.read_end, self.write_end = os.pipe()
        self.outbox = mcp_streams.Outbox(self.write_end, "test.write")

    def read(self, size):
        data = b""
        while len(data) < size:
            data += os.read(self.read_end, size - len(data))
        return data


@pytest.fixture
def pipe():
    made = Pipe()
    yield made
    made.outbox.close(support.LIMIT_S)


def test_lines_arrive_whole_and_in_order(pipe):
    lines = [b"%d\n" % number for number in range(1000)]
    for line in lines:
        pipe.outbox.put(line)
    assert pipe.read(sum(map(len, lines))) == b"".join(lines)


def test_nobody_waits_to_put_and_whoever_asks_waits_for_room(pipe):
    line = b"x" * 1_000_000
    for _ in range(3):
        pipe.outbox.put(line)  # far more than a pipe holds
    assert pipe.outbox.pending > 2_000_000
    waited = threading.Event()
    waiter = threading.Thread(target=lambda: (pipe.outbox.wait_for_room(1), waited.set()), daemon=True)
    waiter.start()
    assert not waited.is_set()
    pipe.read(3_000_000)
    assert waited.wait(support.LIMIT_S) and pipe.outbox.pending == 0


def test_a_reader_that_is_gone_is_told_once_and_lines_are_dropped(pipe):
    gone = threading.Event()
    pipe.outbox.on_gone = gone.set
    os.close(pipe.read_end)
    pipe.outbox.put(b"x\n")
    assert gone.wait(support.LIMIT_S) and pipe.outbox.is_gone
    pipe.outbox.put(b"y\n")
    pipe.outbox.wait_for_room(0)
    assert pipe.outbox.pending == 0


def request(line=b'{"jsonrpc":"2.0","id":7,"method":"x"}\n'):
    import io

    return next(wire.read_messages(io.BytesIO(line)))


def test_a_request_has_one_answer_and_nothing_follows_it():
    sent, told = [], []
    exchange = mcp_streams.Exchange(request(), "2025-11-25", sent.append, told.append)
    exchange.notify(b"before\n")
    exchange.result({})
    exchange.error(-1, "second")
    exchange.notify(b"after\n")
    assert sent == [b'{"jsonrpc":"2.0","id":7,"result":{}}\n'] and told == [b"before\n"]


def test_a_hushed_request_is_silent():
    sent = []
    exchange = mcp_streams.Exchange(request(), "2026-07-28", sent.append, sent.append)
    exchange.hush()
    exchange.result({})
    exchange.notify(b"x\n")
    assert b"".join(sent) == b""


def test_results_of_the_modern_era_say_so():
    sent = []
    mcp_streams.Exchange(request(), "2026-07-28", sent.append, sent.append).result({"tools": []})
    assert b'"resultType":"complete"' in sent[0] and b"serverInfo" in sent[0]


def test_a_batch_is_sent_when_all_answers_are_there():
    sent = []
    batch = mcp_streams.Batch(3, sent.append)
    for line in (b"1\n", b"", b"2\n"):
        assert sent == []
        batch.take(line)
    assert sent == [b"[1,2]\n"]
    silent = mcp_streams.Batch(1, sent.append)
    silent.take(b"")
    assert len(sent) == 1


def test_a_crew_uses_its_threads_again_and_refuses_beyond_its_limits():
    crew = mcp_streams.Crew(2, 1)
    go, started, done = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)
    names = set()

    def task():
        names.add(threading.current_thread().name)
        started.release()
        assert go.wait(support.LIMIT_S)
        done.release()

    assert [crew.do(task) for _ in range(2)] == [True, True]
    accepted = 2
    while crew.do(task):  # a thread may not have taken its task yet, then one more fits
        accepted += 1
    assert accepted <= 5
    for _ in range(2):  # both threads hold a task before either may finish one
        assert started.acquire(timeout=support.LIMIT_S)
    go.set()
    for _ in range(accepted):
        assert done.acquire(timeout=support.LIMIT_S)
    assert names == {"mcp.call.1", "mcp.call.2"}
