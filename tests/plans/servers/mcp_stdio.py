"""A small MCP server over stdio whose manners are chosen by its only argument, a JSON object:

    era      "legacy" (default), "modern", "both", "silent" (never answers server/discover), "dies" (exits over it)
    pages    tool names by page; default one page of every tool. cursors: nextCursor of each page
    ids      "text": answers 7 with "7"
    banner   text printed to stdout first; moan: text written to stderr first
    version  protocol version of the answer to initialize
    listen   false: announces no listChanged
    exit     code to exit with at once

The tool `seen` returns every message received so far: what comes before it on the pipe has been received.
"""

import json
import os
import signal
import subprocess
import sys

MANNERS = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
ERA = MANNERS.get("era", "legacy")
MODERN = "2026-07-28"
KEY = "io.modelcontextprotocol/"
SEEN = []
EXTRA = []


def send(message):
    sys.stdout.buffer.write(json.dumps(message).encode() + MANNERS.get("end", "\n").encode())
    sys.stdout.buffer.flush()


def answer(request, result=None, error=None):
    identity = str(request["id"]) if MANNERS.get("ids") == "text" else request["id"]
    body = {"result": result} if error is None else {"error": error}
    message = {"jsonrpc": "2.0", "id": identity, **body}
    send([message] if MANNERS.get("batch") else message)


def complete(**result):
    return {"resultType": "complete", **result} if ERA == "modern" else result


def notify(method, **params):
    send({"jsonrpc": "2.0", "method": method, "params": params})


def receive():
    line = sys.stdin.buffer.readline()
    if not line:
        sys.exit(0)
    message = json.loads(line)
    SEEN.append(message)
    return message


def ask_client(method):
    """Send a request with an id the client uses as well, and return the response."""
    send({"jsonrpc": "2.0", "id": 1, "method": method})
    return receive()


# The tools: each gets (request, arguments) and answers


def echo(request, arguments):
    answer(request, complete(content=[], structuredContent=arguments))


def result(request, arguments):
    answer(request, complete(**arguments))


def error(request, arguments):
    answer(request, error=arguments)


def hang(request, arguments):
    notify("notifications/tools/list_changed")  # says that the call has arrived


def hang_up(request, arguments):
    notify("notifications/tools/list_changed")
    notify("notifications/cancelled", requestId=request["id"], reason="shutting down")


def die(request, arguments):
    sys.stderr.write("about to die\n" + arguments.get("stderr", ""))
    sys.stderr.flush()
    os._exit(7)


def close_output(request, arguments):
    os.close(1)
    receive()


def stop(request, arguments):
    answer(request, complete(content=[], structuredContent={}))
    os.kill(os.getpid(), signal.SIGSTOP)


def grandchild(request, arguments):
    """Start a process that would outlive the server; it tells its end by closing the inherited descriptor."""
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], stdin=subprocess.DEVNULL)
    answer(request, complete(content=[], structuredContent={"pid": child.pid}))


def late(request, arguments):
    EXTRA.append("another")
    notify("notifications/tools/list_changed")
    answer(request, complete(content=[]))


def questions(request, arguments):
    replies = [ask_client(method) for method in ("ping", "roots/list", "sampling/createMessage")]
    answer(request, complete(content=[], structuredContent={"replies": replies}))


def environment(request, arguments):
    found = {name: os.environ.get(name) for name in arguments["names"]}
    answer(request, complete(content=[], structuredContent={**found, "cwd": os.getcwd(), "pid": os.getpid()}))


def later(request, arguments):
    state = request["params"].get("requestState", "")
    if len(state) < arguments["rounds"]:
        answer(request, {"resultType": "input_required", "requestState": state + "."})
    else:
        answer(request, complete(content=[], structuredContent={"state": state}))


def wants_input(request, arguments):
    ask = {"q": {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {"type": "object"}}}}
    answer(request, {"resultType": "input_required", "inputRequests": ask})


def raw(request, arguments):
    """Write a line as it is, {id} replaced."""
    sys.stdout.buffer.write(arguments["line"].replace("{id}", str(request["id"])).encode() + b"\n")
    sys.stdout.buffer.flush()


def seen(request, arguments):
    answer(request, complete(content=[], structuredContent={"messages": SEEN}))


TOOLS = {tool.__name__: tool for tool in (
    echo, result, error, hang, hang_up, die, close_output, stop, grandchild, late, questions, environment, later,
    wants_input, raw, seen)}


def definition(name):
    fields = {"readOnlyHint": True} if name == "echo" else {}
    schema = {"type": "object", "properties": {"word": {"type": "string"}}} if name == "echo" else {"type": "object"}
    return {"name": name, "description": f"the tool {name}", "inputSchema": schema, "annotations": fields,
            **MANNERS.get("definitions", {}).get(name, {})}


def list_tools(request):
    pages = MANNERS.get("pages") or [[*TOOLS, *EXTRA]]
    cursors = MANNERS.get("cursors") or [str(number) for number in range(1, len(pages))]
    cursor = request.get("params", {}).get("cursor")
    index = 0 if cursor is None else min(cursors.index(cursor) + 1, len(pages) - 1)
    more = {"nextCursor": cursors[index]} if index < len(cursors) else {}
    cached = {"ttlMs": 0, "cacheScope": "private"} if ERA == "modern" else {}
    tools = [MANNERS.get("odd", {}).get(name, definition(name)) for name in pages[index]]
    answer(request, complete(tools=tools, **more, **cached))


def capabilities():
    return {"tools": {"listChanged": MANNERS.get("listen", True)}}


def discover(request):
    answer(request, complete(supportedVersions=MANNERS.get("supported", [MODERN]), capabilities=capabilities(), ttlMs=0,
                             cacheScope="private"))


def initialize(request):
    answer(request, {"protocolVersion": MANNERS.get("version", request["params"]["protocolVersion"]),
                     "capabilities": capabilities(), "serverInfo": {"name": "double", "version": "1"}})


def handle(message):
    method, meta = message.get("method"), message.get("params", {}).get("_meta", {})
    if "id" not in message or method == "subscriptions/listen":
        return
    if method == "server/discover" and ERA in ("modern", "both"):
        return discover(message)
    if method == "server/discover" and ERA == "dies":
        sys.exit(9)
    if method == "server/discover" and ERA == "silent":
        return
    if method == "server/discover" and ERA == "late":  # locked to modern by the probe, which it answers with silence
        MANNERS["era"] = "modern"
        globals()["ERA"] = "modern"
        return
    if ERA == "modern" and meta.get(KEY + "protocolVersion") != MODERN:
        return answer(message, error={"code": -32022, "message": "Unsupported protocol version",
                                      "data": {"supported": MANNERS.get("supported", [MODERN])}})
    if method == "initialize":
        return initialize(message)
    if method == "tools/list":
        return list_tools(message)
    if method == "tools/call" and message["params"]["name"] in TOOLS:
        return TOOLS[message["params"]["name"]](message, message["params"].get("arguments", {}))
    answer(message, error={"code": -32601 if method != "tools/call" else -32602, "message": f"unknown: {method}"})


if "banner" in MANNERS:
    print(MANNERS["banner"], flush=True)
if "moan" in MANNERS:
    print(MANNERS["moan"], file=sys.stderr, flush=True)
if "exit" in MANNERS:
    sys.exit(MANNERS["exit"])
while True:
    handle(receive())
