"""Programs we start: each leads a process group of its own, which ends as a whole.

`spawn` starts one, `end_group` ends it with everything it started, `run` does both around one call: it feeds stdin,
captures a bounded part of stdout and stderr, and never outlives its deadline or a cancelled run. There is no shell.

Threads of `run`: `<name>.stdout`, `<name>.stderr` block on a pipe and end at its end of file; `<name>.stdin` blocks on
a full pipe and ends with it; `<name>.wait` blocks on the process. The caller blocks on one event that the end of the
process and a cancel set.
"""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import threading
from dataclasses import dataclass

from .errors import ToolError, ToolTimeout

#: Bytes asked of one read: the default capacity of a Linux pipe.
READ_BYTES = 65536
#: Bytes of stderr that `run` keeps, from its end: enough for a traceback.
STDERR_BYTES = 64 * 1024
#: Seconds that what a program left behind may keep its output open after the program's own end.
LINGER_S = 0.5

_WINDOWS = os.name == "nt"


@dataclass(frozen=True)
class Finished:
    """How a program ended. out, err: captured bytes. out_total: how many bytes stdout had in all."""

    code: int
    out: bytes
    err: bytes
    out_total: int

    @property
    def ending(self):
        """How it ended, for the end of a sentence: "exited with status 2", "was killed by SIGKILL"."""
        return ending(self.code)


def ending(code):
    """Say how a program with this return code (negative: a signal) ended."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def spawn(argv, *, name, environ, cwd=None, stdin=subprocess.PIPE):
    """Start a program in a process group of its own, its standard streams as unbuffered pipes.

    argv: list of str, the program first; it is looked up on the PATH of `environ`. name: what messages call it.
    stdin: as for Popen. Returns the Popen. ToolError with a sentence that names both; retryable only where the system
    is short of processes, memory or files.
    """
    program = shutil.which(argv[0], path=environ.get("PATH")) or argv[0]
    group = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP} if _WINDOWS else {"start_new_session": True}
    try:
        return subprocess.Popen(
            [program, *argv[1:]], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            env=dict(environ), cwd=cwd, **group)
    except (OSError, ValueError) as error:  # ValueError: a NUL, or text that no file system name can hold
        is_short_of = getattr(error, "errno", None) in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
        reason = f"{name} cannot be started: {argv[0]!r}: {_why(error, program, cwd)}"
        raise ToolError(reason, retryable=is_short_of) from None


def _why(error, program, cwd):
    if cwd is not None and not os.path.isdir(cwd):
        return f"its working directory {str(cwd)!r} does not exist"
    number = getattr(error, "errno", None)
    if number == errno.ENOENT:
        absent = "there is no such file" if os.path.dirname(program) else "the command was not found on PATH"
        return "the interpreter in its first line is missing" if os.path.exists(program) else absent
    if number == errno.E2BIG:
        return "its arguments are too long; pass large values on stdin"
    return getattr(error, "strerror", None) or str(error)


def end_group(process):
    """Kill a program and everything in its process group; harmless when there is nothing left."""
    signal_group(process, "SIGKILL")


def signal_group(process, name):
    """Send a signal, by name, to a program's process group; on Windows, end its process tree."""
    if _WINDOWS:
        if process.poll() is None:
            subprocess.run(["taskkill", "/T", "/F", "/PID", str(process.pid)], capture_output=True, check=False)
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):  # gone; or, on macOS, only a zombie is left
        os.killpg(process.pid, getattr(signal, name))


class _Capture(threading.Thread):
    """Reads a pipe to its end and keeps a bounded part of it: the first `limit` bytes, or the last ones."""

    def __init__(self, stream, limit, name, *, last=False, overflow=None):
        super().__init__(name=name, daemon=True)
        self._stream, self._limit, self._last, self._overflow = stream, limit, last, overflow
        self.kept = bytearray()
        self.total = 0

    def run(self):
        with self._stream:
            while chunk := self._stream.read(READ_BYTES):
                self.total += len(chunk)
                self.kept += chunk
                if len(self.kept) > self._limit:
                    del self.kept[slice(None, -self._limit) if self._last else slice(self._limit, None)]
                    if self._overflow:
                        self._overflow()


def run(argv, context, *, name, limit_s, environ, cwd=None, stdin=b"", max_bytes, drop_rest=False):
    """Run a program to its end and return Finished.

    context: anything with `cancel` and `remaining(limit_s)` as in tools.CallContext. name: for threads and messages.
    stdin: bytes the program reads. max_bytes: of stdout that are kept; a program that writes more is killed, unless
    drop_rest is set: then the rest is read, counted and dropped. Whatever the program left running in its group is
    killed LINGER_S after it ended, should it keep stdout open.
    ToolError when it cannot start or writes too much, ToolTimeout after limit_s or at the context's deadline,
    Cancelled; in each case the whole group is gone.
    """
    context.cancel.check()
    limit = context.remaining(limit_s)
    process = spawn(argv, name=name, environ=environ, cwd=cwd, stdin=subprocess.PIPE if stdin else subprocess.DEVNULL)
    changed, overflown = threading.Event(), threading.Event()

    def overflow():
        overflown.set()
        changed.set()

    out = _Capture(process.stdout, max_bytes, f"{name}.stdout", overflow=None if drop_rest else overflow)
    err = _Capture(process.stderr, STDERR_BYTES, f"{name}.stderr", last=True)
    waiter = threading.Thread(target=_wait, args=(process, changed), name=f"{name}.wait", daemon=True)
    for thread in (out, err, waiter):
        thread.start()
    if stdin:
        threading.Thread(target=_feed, args=(process.stdin, stdin), name=f"{name}.stdin", daemon=True).start()
    ended = _await_end(process, waiter, (out, err), changed, context, limit)
    context.cancel.check()
    if overflown.is_set():
        raise ToolError(f"{name} wrote more than {max_bytes:,} bytes to stdout and was stopped",
                        {"error": f"more than {max_bytes:,} bytes on stdout", "stderr": _text(err.kept)})
    if not ended:
        raise ToolTimeout(f"{name} did not end within {limit:g} s and was killed",
                          {"error": f"no end within {limit:g} s", "stderr": _text(err.kept)})
    return Finished(process.returncode, bytes(out.kept), bytes(err.kept), out.total)


def _await_end(process, waiter, readers, changed, context, limit):
    """Wait for the end of a program, a cancel, an overflow or the limit; say whether it ended by itself.

    Whatever happens, nothing of its group is left that could keep the readers.
    """
    remove = context.cancel.on_cancel(changed.set)
    try:
        changed.wait(limit)
        ended = process.returncode is not None
        if ended:
            for reader in readers:
                reader.join(LINGER_S)
        return ended
    finally:
        remove()
        # Also after an orderly end: what the program left behind would keep the pipes, and their threads, for ever.
        if process.returncode is None or any(reader.is_alive() for reader in readers):
            end_group(process)
        waiter.join(LINGER_S)
        for reader in readers:
            reader.join(LINGER_S)  # only a process that left the group can still hold the pipe; its thread is a daemon


def _wait(process, changed):
    process.wait()
    changed.set()


def _feed(stream, data):
    with contextlib.suppress(OSError), stream:  # a program need not read its stdin
        view = memoryview(data)
        while view:
            view = view[stream.write(view):]


def _text(data):
    return bytes(data).decode("utf-8", "replace")
