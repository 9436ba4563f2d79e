"""The one file, copied alone to an empty folder and run by `python -I -S`, on every Python that is found."""

import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys

import pytest

import support
from support import our_lines, server

CONVERSATION = (b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}\n'
                b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
                b'{ "id":9007199254740993, "jsonrpc":"2.0","method":"tools/call","params":{"name":"echo"} }\r\n'
                b'not json \xff\n'
                b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"boom"}}\n')


def find_pythons():
    """{"3.8": path, ...}: one interpreter of each version from 3.8 on, from PATH and from pyenv."""
    candidates = [shutil.which("python3.%d" % minor) for minor in range(8, 20)] + [shutil.which("python3")]
    root = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    candidates += sorted(glob.glob(os.path.join(root, "versions", "*", "bin", "python3")))
    found = {}
    for candidate in filter(None, candidates):
        try:
            told = subprocess.run([candidate, "-I", "-S", "-c", "import sys; print('%d %d' % sys.version_info[:2])"],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=support.LIMIT_S)
        except OSError:
            continue
        if told.returncode == 0:  # a shim of a version that is not installed fails here
            major, minor = map(int, told.stdout.split())
            if (major, minor) >= (3, 8):
                found.setdefault("%d.%d" % (major, minor), candidate)
    return found


PYTHONS = find_pythons()


ORDER = sorted(PYTHONS, key=lambda text: [int(part) for part in text.split(".")])


@pytest.mark.parametrize("version", ORDER)
class TestOn:
    """Every behaviour that could differ between interpreters, end to end, on one of them."""

    def test_bytes_trace_and_exit_code(self, run, version, tmp_path):
        direct = subprocess.run(server("raw"), input=CONVERSATION, stdout=subprocess.PIPE, check=True).stdout
        log = tmp_path / "log"
        result = run("--trace", server=server("raw", "--log", log), data=CONVERSATION, python=PYTHONS[version])
        assert (result.code, result.out, log.read_bytes()) == (0, direct, CONVERSATION)
        _check_trace(our_lines(result.err))

    def test_mask(self, run, version):
        result = run("--mask", server=["no-such-mcp-server"], data=CONVERSATION, python=PYTHONS[version])
        assert result.code == 0
        assert [json.loads(line)["id"] for line in result.out.splitlines()] == [0, 9007199254740993, 2]

    def test_failures(self, run, version):
        assert run(server=["no-such-mcp-server"], python=PYTHONS[version]).code == 127
        result = run(server=server("crash", 3, 2), python=PYTHONS[version])
        assert result.code == 2 and b"before answering anything" in result.err and b"Traceback" not in result.err

    def test_end_of_a_deaf_server(self, start, version, lifeline):
        if version not in (ORDER[0], ORDER[-1]):
            return  # this costs seconds; the oldest and the newest interpreter stand for those between
        session = start(server=server("life", "--deaf", "--lifeline", lifeline.path), python=PYTHONS[version])
        lifeline.wait_for("alive")
        assert session.finish().code == 143
        lifeline.wait_gone()

    def test_no_warning_in_development_mode(self, run, version):
        flags = ["-I", "-S", "-X", "dev", "-W", "error"]
        result = run("--trace", server=server("echo"), data=b"junk\n", python=PYTHONS[version], flags=flags)
        assert (result.code, result.out) == (0, b"junk\n")
        assert b"Warning" not in result.err and b"Traceback" not in result.err

    def test_version(self, run, version, relay_file):
        with open(relay_file, "rb") as source:
            digest = hashlib.sha256(source.read()).hexdigest()
        assert digest.encode() in run("--version", python=PYTHONS[version]).out


def _check_trace(lines):
    """The two directions are written by two threads, so each direction's own order is what counts."""
    from_client = [line for line in lines if line.startswith("[client->server]")]
    from_server = [line for line in lines if line.startswith("[server->client]")]
    noise = from_client.pop(3)
    assert noise.startswith('[client->server] ?? not JSON-RPC: "not json ')
    assert from_client == ["[client->server] -> initialize #0", "[client->server] ~> notifications/initialized",
                           "[client->server] -> tools/call #9007199254740993", "[client->server] -> tools/call #2"]
    assert from_server == ["[server->client] <- initialize #0 ok",
                           "[server->client] <- tools/call #9007199254740993 ok",
                           "[server->client] <- tools/call #2 error -32603"]


def test_the_folder_of_the_copy_stays_empty(nowhere, tmp_path):
    """Nothing is compiled, cached or written beside the file."""
    copy = shutil.copy(support.RELAY, str(tmp_path))
    subprocess.run([sys.executable, "-I", "-S", copy, "--", *server("raw")], input=CONVERSATION, check=True,
                   env=support.quiet_environment(*nowhere))
    assert os.listdir(tmp_path) == ["mcp_relay.py"]
