"""Where files live, atomic writes, and the lock between processes."""

import os
import pathlib
import stat
import subprocess
import sys
import threading

import pytest

from graphlib_plans import paths
from graphlib_plans.paths import FileLock, write_private

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "environ, config, data",
    [
        ({"HOME": "/h"}, "/h/.config/graph/config.toml", "/h/.local/share/graph"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": "/c", "XDG_DATA_HOME": "/d"}, "/c/graph/config.toml", "/d/graph"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": "relative", "XDG_DATA_HOME": ""}, "/h/.config/graph/config.toml",
         "/h/.local/share/graph"),
    ],
)  # fmt: skip
def test_homes(environ, config, data):
    assert str(paths.global_config(environ)) == config
    assert str(paths.data_home(environ)) == data
    assert str(paths.project_config("/p")) == "/p/.graph/config.toml"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("~/x", "/h/x"),
        ("~", "/h"),
        ("x/y", "/base/x/y"),
        ("./x", "/base/x"),
        ("/abs", "/abs"),
        ("~user", "/base/~user"),
    ],
)
def test_paths_of_a_configuration(text, expected):
    assert str(paths.expand(text, "/base", {"HOME": "/h"})) == expected


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_created_file_is_private_and_a_written_one_keeps_its_mode(tmp_path):
    path = tmp_path / "x.json"
    write_private(path, b"one")
    assert path.read_bytes() == b"one" and mode_of(path) == 0o600
    path.chmod(0o644)
    write_private(path, b"two")
    assert path.read_bytes() == b"two" and mode_of(path) == 0o644
    write_private(tmp_path / "open", b"", mode=0o640)
    assert mode_of(tmp_path / "open") == 0o640
    assert sorted(os.listdir(tmp_path)) == ["open", "x.json"]


def test_a_symbolic_link_stays_one(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "real" / "x.json")
    write_private(link, b"one")
    assert link.is_symlink() and (tmp_path / "real" / "x.json").read_bytes() == b"one"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_private(path, b"old")

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_private(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["x.json"]


def test_created_directories_are_private(tmp_path):
    paths.make_private_dir(tmp_path / "a" / "b")
    paths.make_private_dir(tmp_path / "a" / "b")
    assert mode_of(tmp_path / "a") == mode_of(tmp_path / "a" / "b") == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        paths.make_private_dir(tmp_path / "file" / "c")


def test_the_lock_keeps_another_process_out_until_it_dies(tmp_path):
    lock = tmp_path / "lock"
    code = (f"from graphlib_plans.paths import FileLock; FileLock({str(lock)!r}).acquire(); "
            "print('held', flush=True); input()")
    holder = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(TimeoutError, match="locked by another process"):
            FileLock(lock, timeout_s=0.05).acquire()
    finally:
        holder.kill()
        holder.communicate()
    with FileLock(lock, timeout_s=10):
        assert mode_of(lock) == 0o600


def test_the_lock_counts_between_threads(tmp_path):
    counter, path = [0], tmp_path / "lock"

    def add():
        for _ in range(20):
            with FileLock(path):
                value = counter[0]
                os.stat(path)  # lets another thread run
                counter[0] = value + 1

    threads = [threading.Thread(target=add, name=f"add.{n}") for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert counter == [80]
