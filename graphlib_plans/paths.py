"""Where files live, and how they are written so that neither a crash nor a second process loses anything."""

import contextlib
import os
import re
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
    import msvcrt

#: What a plan's identifier and a tool's bare name are made of.
IDENTIFIER = re.compile(r"[A-Za-z0-9_-]+\Z", re.ASCII)
#: Longest identifier, in characters: `plan__` + 58 = 64, the longest tool name MCP hosts and model APIs take.
IDENTIFIER_MAX = 58
#: Pause between two tries for a lock another process holds, in seconds; the wait is bounded by the caller's limit.
LOCK_RETRY_S = 0.02


def config_home(environ):
    """Return the directory of per-user configuration: $XDG_CONFIG_HOME when absolute, else ~/.config."""
    return _xdg(environ, "XDG_CONFIG_HOME", ".config")


def data_home(environ):
    """Return the directory of our data: $XDG_DATA_HOME/graph, else ~/.local/share/graph."""
    return _xdg(environ, "XDG_DATA_HOME", ".local/share") / "graph"


def global_config(environ):
    """Return the path of the global configuration file, whether it exists or not."""
    return config_home(environ) / "graph" / "config.toml"


def project_config(directory):
    """Return the path of a project's configuration file, whether it exists or not."""
    return Path(directory) / ".graph" / "config.toml"


def _xdg(environ, variable, fallback):
    # The XDG base directory specification says that relative values are to be ignored.
    value = environ.get(variable, "")
    return Path(value) if os.path.isabs(value) else home(environ) / fallback


def home(environ):
    """Return the user's home directory as this environment says, else as the system does."""
    value = environ.get("HOME") or environ.get("USERPROFILE")
    return Path(value) if value else Path(os.path.expanduser("~"))


def expand(text, base, environ):
    """Return the path a configuration names: `~/` is the home directory, relative ones start at `base`."""
    if text == "~" or text.startswith("~/"):
        return home(environ) / text[2:]
    return Path(base) / text


def make_private_dir(path):
    """Create a directory and its missing parents; what is created is the user's alone (0700). OSError."""
    path = Path(path)
    if path.is_dir():
        return
    make_private_dir(path.parent)
    with contextlib.suppress(FileExistsError):  # another process was quicker
        path.mkdir(mode=0o700)
    if not path.is_dir():
        raise NotADirectoryError(20, "Not a directory", str(path))


def write_private(path, data, *, mode=None):
    """Replace a file's content in one step: a crash leaves the old bytes or the new ones, never a mix.

    data: bytes. An existing file keeps its mode and a symbolic link stays a link to the file that is
    written; a created file gets `mode`, by default 0600. The data is on disk when this returns. OSError.
    """
    target = Path(os.path.realpath(path))
    with contextlib.suppress(FileNotFoundError):
        mode = target.stat().st_mode & 0o7777
    temporary = target.parent / f".{target.name}.{os.urandom(8).hex()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            if mode is not None and hasattr(os, "fchmod"):
                os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):  # the original error is the one to tell
            os.unlink(temporary)
        raise
    _sync_directory(target.parent)


def _sync_directory(directory):
    """Make a rename inside a directory durable, where the system can open directories."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError:  # Windows cannot; the rename itself is still atomic there
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems refuse; the content itself is synced
    finally:
        os.close(descriptor)


class FileLock:
    """A lock file between processes and between threads, used as a context manager.

    path: the lock file; it is created (0600) and stays. timeout_s: how long to wait, in seconds, before
    TimeoutError. The system drops the lock when the process ends, however it ends.
    """

    def __init__(self, path, timeout_s=30.0):
        self.path = Path(path)
        self.timeout_s = timeout_s
        self._descriptor = None

    def acquire(self):
        """Take the lock, waiting at most timeout_s. TimeoutError, OSError."""
        deadline = time.monotonic() + self.timeout_s
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # A blocking flock could not be bounded: signals reach the main thread only.
            while not _try_lock(descriptor):
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"{self.path} has been locked by another process for {self.timeout_s:g} s")
                time.sleep(LOCK_RETRY_S)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self):
        """Give the lock back; harmless when it is not held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self):
        self.acquire()
        return self

    def __exit__(self, *exc_info):
        self.release()


def _try_lock(descriptor):
    """Take an exclusive lock on an open file if nobody else has it; say whether it worked."""
    try:
        if fcntl:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    except (BlockingIOError, PermissionError):
        return False
    return True
