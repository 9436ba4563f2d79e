"""What `pip install` makes of the repository: the same file, and two commands that start."""
import hashlib
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys

import pytest

import support

ROOT = pathlib.Path(__file__).resolve().parents[2]


def installed(command):
    """Return the path of a console script of this environment; skips when the project is not installed in it."""
    path = os.path.join(os.path.dirname(sys.executable), command + (".exe" if sys.platform == "win32" else ""))
    support.need(os.path.exists(path), "the project is not installed in this environment; tox installs it")
    return path


def run(*command):
    """Run a command away from the repository, so that only the installed files can be meant."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                          cwd=os.path.dirname(sys.executable), timeout=support.LIMIT_S)
    said = (done.stdout + done.stderr).decode("utf-8", "replace")
    assert "Traceback" not in said, said
    return done.returncode, said


def test_the_installed_relay_is_the_file_of_the_repository():
    code, said = run(installed("mcp-relay"), "--version")
    assert code == 0
    assert hashlib.sha256((ROOT / "mcp_relay.py").read_bytes()).hexdigest() in said
    assert importlib.metadata.version("mcp-relay") in said


def test_the_installed_relay_relays():
    code, said = run(installed("mcp-relay"), "--no-report", "--", sys.executable, "-c", "print('hello'); exit(7)")
    assert code == 7 and "hello" in said


def test_the_plan_command_starts_or_names_the_python_it_needs():
    code, said = run(installed("graph"), "--help")
    if sys.version_info >= (3, 11):
        assert code == 0 and "usage" in said.lower()
    else:
        assert code == 2 and "3.11" in said and said.count("\n") == 1


@pytest.mark.parametrize("folder", ["tests/interop", "tests/browser"])
def test_npm_lock_files_pin_by_digest_and_name_no_download_address(folder):
    packages = json.loads((ROOT / folder / "package-lock.json").read_text("utf-8"))["packages"]
    wanted = json.loads((ROOT / folder / "package.json").read_text("utf-8"))["dependencies"]
    for path, package in packages.items():
        assert "resolved" not in package, path
        assert not path or "integrity" in package, path
    # npm ci refuses a lock file that lacks something another package asks for, optional or not.
    names = {path.rsplit("node_modules/", 1)[-1] for path in packages}
    asked = set(wanted).union(*({**package.get("dependencies", {}), **package.get("optionalDependencies", {})}
                                for path, package in packages.items() if path))
    assert asked <= names
