"""Programs that are started, fed, cut and ended as whole groups."""

import os
import select
import sys
import threading
import time

import pytest

from graphlib_plans import processes
from graphlib_plans.errors import Cancelled, ToolError, ToolTimeout
from graphlib_plans.tools import CancelToken, quiet_context
from tests.plans.doubles import LIMIT_S, wait_for_end


def run(code, *, limit_s=LIMIT_S, cancel=None, max_bytes=100_000, **options):
    """Run Python code as a program."""
    context = quiet_context(cancel=cancel or CancelToken())
    return processes.run([sys.executable, "-c", code], context, name="prog", limit_s=limit_s, environ=dict(os.environ),
                         max_bytes=max_bytes, **options)


@pytest.fixture
def pids(tmp_path):
    """A FIFO on which programs write their pids: pids() waits for one line of them."""
    path = tmp_path / "pids"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)

    def read():
        ready, _, _ = select.select([descriptor], [], [], LIMIT_S)
        assert ready, "no program started"
        return [int(pid) for pid in os.read(descriptor, 1000).split()]

    read.path = path
    read.are_there = lambda: bool(select.select([descriptor], [], [], 0)[0])
    yield read
    os.close(descriptor)


#: Starts a child that ignores signals which can be ignored, writes both pids, and goes on with {then}.
FAMILY = """
import os, signal, subprocess, sys
deaf = "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE{inherit})
{wait}
with open({path!r}, "w") as stream:
    stream.write(f"{{os.getpid()}} {{child.pid}}")
{then}
"""


def family(path, then, keeps_pipe=False):
    inherit = ", close_fds=True" if not keeps_pipe else ""
    code = FAMILY.format(path=str(path), then=then, inherit=inherit, wait="child.stdout.readline()")
    return code if not keeps_pipe else code.replace("stdout=subprocess.PIPE", "stdout=None").replace(
        "child.stdout.readline()", "pass")


def test_output_and_status():
    finished = run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (finished.out, finished.err, finished.code) == (b"out\n", b"err\n", 3)
    assert finished.ending == "exited with status 3"


def test_a_signal_is_named():
    assert run("import os; os.kill(os.getpid(), 9)").ending == "was killed by SIGKILL"


@pytest.mark.parametrize("size", [0, 1, 1_000_000])
def test_stdin_reaches_the_program(size):
    data = b"x" * size
    assert run("import sys; print(len(sys.stdin.buffer.read()))", stdin=data).out == b"%d\n" % size


def test_a_program_need_not_read_its_stdin():
    assert run("print('done')", stdin=b"x" * 1_000_000).out == b"done\n"


def test_both_pipes_are_drained():
    finished = run("import sys; sys.stderr.write('e' * 500_000); sys.stderr.flush(); print('done')")
    assert finished.out == b"done\n" and finished.err == b"e" * processes.STDERR_BYTES


def test_too_much_output_ends_the_program():
    with pytest.raises(ToolError, match="prog wrote more than 1,000 bytes to stdout and was stopped"):
        run("while True: print('y' * 1000)", max_bytes=1000)


def test_the_rest_can_be_dropped_and_is_counted():
    finished = run("print('y' * 50_000, end='')", max_bytes=10, drop_rest=True)
    assert finished.out == b"y" * 10 and finished.out_total == 50_000


def test_a_late_program_ends_with_its_children(pids):
    for limit_s in (1, 4, 16):  # on a busy machine it may not even have begun within the first
        with pytest.raises(ToolTimeout, match=f"did not end within {limit_s} s and was killed"):
            run(family(pids.path, "signal.pause()"), limit_s=limit_s)
        if pids.are_there():
            break
    for pid in pids():
        wait_for_end(pid)


def test_the_deadline_of_the_run_counts_as_well():
    context = quiet_context(deadline=time.monotonic() + 0.2)
    with pytest.raises(ToolTimeout):
        processes.run([sys.executable, "-c", "import signal; signal.pause()"], context, name="prog", limit_s=LIMIT_S,
                      environ=dict(os.environ), max_bytes=10)


def test_a_cancelled_program_ends_with_its_children(pids):
    token, seen = CancelToken(), []

    def cancel():
        seen.extend(pids())
        token.cancel("enough")

    threading.Thread(target=cancel).start()
    with pytest.raises(Cancelled, match="enough"):
        run(family(pids.path, "signal.pause()"), cancel=token)
    for pid in seen:
        wait_for_end(pid)


def test_what_keeps_the_output_open_does_not_keep_the_caller(pids):
    finished = run(family(pids.path, "print('parent', flush=True); os._exit(0)", keeps_pipe=True))
    assert finished.code == 0 and b"parent" in finished.out
    for pid in pids():
        wait_for_end(pid)


def test_nothing_is_started_for_a_cancelled_run():
    token = CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        run("print(1)", cancel=token)


def make(path, text, mode=0o755):
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("argv, sentence", [
    (["no-such-program"], "not found on PATH"),
    (["./no/such"], "there is no such file"),
    (["{folder}/not-executable"], "Permission denied"),
    (["{folder}/no-interpreter"], "the interpreter in its first line is missing"),
    ([sys.executable, "x" * 3_000_000], "pass large values on stdin"),
    ([sys.executable, "\ud800"], "surrogates not allowed"),
])
def test_what_cannot_start_is_told(tmp_path, argv, sentence):
    make(tmp_path / "not-executable", "#!/bin/sh\n", 0o644)
    make(tmp_path / "no-interpreter", "#!/no/such/interpreter\n")
    argv = [argv[0].format(folder=tmp_path), *argv[1:]]
    with pytest.raises(ToolError, match="prog cannot be started") as caught:
        processes.spawn(argv, name="prog", environ=dict(os.environ))
    assert sentence in caught.value.message and not caught.value.retryable


def test_the_program_is_looked_up_on_the_path_it_is_given(tmp_path):
    make(tmp_path / "mine", "#!/bin/sh\necho found\n")
    finished = processes.run(["mine"], quiet_context(), name="mine", limit_s=LIMIT_S,
                             environ={"PATH": f"{tmp_path}:/bin:/usr/bin"}, max_bytes=100)
    assert finished.out == b"found\n"
