"""MCP servers that other people wrote, as tool sources: over stdio and HTTP, from PyPI and npm, in both eras."""

import importlib.metadata
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import support

from graphlib_plans import config, mcp_client, wire
from graphlib_plans.errors import ToolError, ToolTimeout
from graphlib_plans.tools import quiet_context

LIMIT_S = 60
#: Where `npm ci` puts the packages of the tests (see .ci/run).
PACKAGES = Path(__file__).parents[1] / "interop" / "node_modules" / "@modelcontextprotocol"
SDK_LINE = importlib.metadata.version("mcp").partition(".")[0] if importlib.util.find_spec("mcp") else None


def time_server():
    support.need(importlib.util.find_spec("mcp_server_time"), "mcp-server-time is not installed; tox installs it")
    return {"command": sys.executable, "args": ("-m", "mcp_server_time", "--local-timezone=UTC")}


def npm_server(name, *arguments):
    script = PACKAGES / name / "dist" / "index.js"
    support.need(shutil.which("node") and script.is_file(), f"{name} is not installed; run npm ci in tests/interop")
    return {"command": "node", "args": (str(script), *map(str, arguments))}


class Client:
    def __init__(self):
        self.pool = mcp_client.Pool(wire, os.environ)

    def use(self, **fields):
        self.pool.sync({"s": config.Server("s", connect_timeout_s=LIMIT_S, **fields)}, {})

    def context(self, limit_s=LIMIT_S):
        return quiet_context(deadline=time.monotonic() + limit_s)

    def tools(self):
        return {tool.name.removeprefix("s__"): tool for tool in self.pool.source("s").tools(self.context())}

    def call(self, tool, context=None, **arguments):
        tools = {each.name: each for each in self.pool.source("s").known() or self.tools().values()}
        return tools[f"s__{tool}"].call(arguments, context or self.context())

    @property
    def era(self):
        return self.pool.source("s").era


@pytest.fixture
def client():
    made = Client()
    yield made
    made.pool.close()


def test_the_time_server(client):
    client.use(**time_server())
    assert set(client.tools()) == {"get_current_time", "convert_time"}
    assert client.era == ("modern" if SDK_LINE == "2" else "legacy")
    found = client.call("convert_time", source_timezone="UTC", time="12:30", target_timezone="Asia/Kathmandu")
    assert found["target"]["datetime"].partition("T")[2] == "18:15:00+05:45"
    with pytest.raises(ToolError, match="No time zone found with key Nowhere/Land"):
        client.call("get_current_time", timezone="Nowhere/Land")


def test_the_filesystem_server(client, tmp_path):
    client.use(**npm_server("server-filesystem", tmp_path))
    tools = client.tools()
    assert tools["read_text_file"].read_only and not tools["write_file"].read_only
    path, content = str(tmp_path / "grüße.txt"), 'tab\t"quoted" 漢字 🙂 \u2028\r\nend'
    client.call("write_file", path=path, content=content)
    assert Path(path).read_bytes().decode() == content
    assert client.call("read_text_file", path=path) == {"content": content}
    with pytest.raises(ToolError, match="Access denied"):
        client.call("read_text_file", path="/etc/hostname")


def test_the_everything_server(client):
    client.use(**npm_server("server-everything"))
    assert client.call("echo", message="x" * 300_000) == {"text": "Echo: " + "x" * 300_000}
    assert client.call("get-structured-content", location="Chicago")["conditions"]
    picture = client.call("get-tiny-image")["content"][0]
    assert picture["type"] == "image" and picture["data"]
    with pytest.raises(ToolError, match="Invalid arguments|Input validation"):
        client.call("get-sum", a="not a number")


def test_a_slow_operation_is_given_up_and_the_server_goes_on(client):
    client.use(**npm_server("server-everything"))
    client.tools()
    with pytest.raises(ToolTimeout):
        client.call("trigger-long-running-operation", context=client.context(0.5), duration=60, steps=2)
    assert client.call("get-sum", a=2, b=3) == {"text": "The sum of 2 and 3 is 5."}


@pytest.fixture
def serve():
    """serve(argv, **environ) → port: start a server program that listens on PORT, and wait until it does."""
    started = []

    def start(argv, **environ):
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            port = holder.getsockname()[1]
        process = subprocess.Popen(argv, env=os.environ | environ | {"PORT": str(port)}, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        started.append(process)
        said, listening = [], threading.Event()

        def read():
            for line in process.stdout:
                said.append(line)
                if b"listening" in line.lower() or b"running on" in line.lower():
                    listening.set()
            listening.set()

        threading.Thread(target=read, daemon=True).start()
        assert listening.wait(LIMIT_S) and process.poll() is None, b"".join(said).decode()
        return port

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_the_everything_server_over_http(client, serve):
    command = npm_server("server-everything", "streamableHttp")
    port = serve([command["command"], *command["args"]])
    client.use(url=f"http://127.0.0.1:{port}/mcp")
    assert client.call("get-sum", a=2, b=3) == {"text": "The sum of 2 and 3 is 5."}
    assert client.era == "legacy"
    with pytest.raises(ToolTimeout):
        client.call("trigger-long-running-operation", context=client.context(0.5), duration=60, steps=2)
    assert client.call("echo", message="still there") == {"text": "Echo: still there"}


SDK_SERVER = """
import os
try:
    from mcp.server import MCPServer as Server
except ImportError:
    from mcp.server.fastmcp import FastMCP as Server

server = Server("sdk")

@server.tool()
def add(a: int, b: int) -> int:
    return a + b

if hasattr(server, "settings") and hasattr(server.settings, "port"):
    server.settings.port = int(os.environ["PORT"])
    server.run("streamable-http")
else:
    server.run("streamable-http", port=int(os.environ["PORT"]))
"""


def test_a_server_of_the_python_sdk_over_http(client, serve):
    support.need(SDK_LINE, "the Python SDK is not installed; tox installs it")
    port = serve([sys.executable, "-c", SDK_SERVER])
    client.use(url=f"http://127.0.0.1:{port}/mcp")
    assert client.call("add", a=2, b=12345678901234567890) == {"result": 12345678901234567892}
    assert client.era == ("modern" if SDK_LINE == "2" else "legacy")
