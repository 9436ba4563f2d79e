"""An MCP server that writes its JSON by hand: valid, but with spacing, escapes and numbers no serialiser emits.

raw.py [--log FILE] [--noisy] [--tag WORD]
--log FILE: append every received line, so that a test can prove what reached the server and what did not.
--tag WORD: ignored; makes the command line of this run unique.
--noisy: one stderr line for each received message.

Tools: echo, boom (-32603), softfail (isError), slow (answers at the next notifications/go), never, big, notify,
sample (asks the client first), die, noise, say, flaky (fails a given number of times first), count.
Unknown tool -32602, unknown method -32601. The answer's id is the text of the request's id, as it came.
"""

import argparse
import json
import os
import re
import signal
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--log")
parser.add_argument("--noisy", action="store_true")
parser.add_argument("--tag")
options = parser.parse_args()
log = open(options.log, "ab", 0) if options.log else None
slow = []  # ids of calls of "slow" without an answer so far
sampling = []  # ids of calls of "sample" without an answer so far
calls = {}  # tool -> calls so far

TOOLS = [
    {"name": "echo", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}},
    {"name": "divide", "inputSchema": {
        "type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "integer", "minimum": 1}},
        "required": ["a", "b"], "additionalProperties": False}},
] + [{"name": name, "inputSchema": {"type": "object", "properties": {}}} for name in (
    "boom", "softfail", "slow", "never", "big", "notify", "sample", "die", "noise", "say", "flaky", "count", "twice")]


def write(text):
    data = text.encode("utf-8", "surrogatepass") + b"\n"
    while data:
        data = data[os.write(1, data):]


def result(raw_id, text):
    write('{ "jsonrpc":"2.0" ,"result" : %s,  "id": %s}' % (text, raw_id))


def text_result(raw_id, text, extra=""):
    result(raw_id, '{"content":[{"type":"text", "text":%s}]%s}' % (json.dumps(text), extra))


def error(raw_id, code, message):
    write('{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%s}}' % (raw_id, code, json.dumps(message)))


def call_tool(raw_id, params):
    name, arguments = params.get("name"), params.get("arguments") or {}
    calls[name] = calls.get(name, 0) + 1
    if name == "echo":
        text_result(raw_id, arguments.get("text", ""), ', "price": 1.50, "odd":"caf\\u00e9 \\/ 1e3"')
    elif name == "divide":
        text_result(raw_id, repr(arguments["a"] / arguments["b"]))
    elif name == "boom":
        error(raw_id, -32603, "boom failed: " + str(arguments.get("why", "as asked")))
    elif name == "softfail":
        text_result(raw_id, "softfail failed: " + str(arguments.get("why", "as asked")), ',"isError":true')
    elif name == "flaky":
        failures = arguments.get("failures", 1)
        text_result(raw_id, "attempt %d" % calls[name], ',"isError":true' if calls[name] <= failures else "")
    elif name == "count":
        text_result(raw_id, "call %d" % calls[name])
    elif name == "slow":
        slow.append(raw_id)
    elif name == "never":
        pass
    elif name == "big":
        text_result(raw_id, "x" * arguments.get("bytes", 1 << 20))
    elif name == "notify":
        write('{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"working"}}')
        text_result(raw_id, "notified")
    elif name == "sample":
        sampling.append(raw_id)
        write('{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":'
              '{"messages":[{"role":"user","content":{"type":"text","text":"hi"}}],"maxTokens":10}}')
    elif name == "die":
        if "signal" in arguments:
            os.kill(os.getpid(), getattr(signal, arguments["signal"]))
        os._exit(arguments.get("code", 3))
    elif name == "noise":
        for line in arguments.get("lines", ["debug: noise"]):
            write(line)
        text_result(raw_id, "noise made")
    elif name == "say":
        os.write(2, (arguments.get("text", "") + "\n").encode())
        text_result(raw_id, "said")
    elif name == "twice":
        text_result(raw_id, "first")
        text_result(raw_id, "second")
    else:
        error(raw_id, -32602, "Unknown tool: %s" % name)


def handle(line):
    try:
        message = json.loads(line.decode("utf-8", "replace"))
    except ValueError:
        return  # like the official servers: silent on what is not JSON
    for single in message if isinstance(message, list) else [message]:
        if isinstance(single, dict):
            handle_message(single, line)


def handle_message(message, line):
    method, params = message.get("method"), message.get("params") or {}
    if method is None:
        if message.get("id") == 1 and sampling:
            text_result(sampling.pop(0), "the client said " + json.dumps(message.get("result", message.get("error"))))
        return
    if "id" not in message:
        if method == "notifications/go":
            while slow:
                text_result(slow.pop(0), "slow but done")
        return
    raw_id = json.dumps(message["id"])
    if isinstance(message["id"], (int, float)):  # as it was written: 1.0 and 9007199254740993 stay
        raw_id = re.search(r'"id"\s*:\s*([-+.0-9eE]+)', line.decode("utf-8", "replace")).group(1)
    if isinstance(json.loads(line.decode("utf-8", "replace")), list):
        raw_id = json.dumps(message["id"])
    if method == "initialize":
        result(raw_id, '{"protocolVersion":%s,"capabilities":{"tools":{"listChanged":true},"logging":{}},'
                       '"serverInfo":{"name":"raw","version":"1.50"}}' % json.dumps(params.get("protocolVersion")))
    elif method == "tools/list":
        result(raw_id, json.dumps({"tools": TOOLS}))
    elif method == "tools/call":
        call_tool(raw_id, params)
    elif method == "resources/read":
        result(raw_id, json.dumps({"contents": [{"uri": params.get("uri"), "text": "content"}]}))
    elif method == "prompts/get":
        result(raw_id, '{"messages":[{"role":"user","content":{"type":"text","text":"prompt"}}]}')
    elif method == "completion/complete":
        result(raw_id, '{"completion":{"values":["one"]}}')
    elif method == "resources/list":
        result(raw_id, '{"resources":[]}')
    elif method in ("ping", "logging/setLevel"):
        result(raw_id, "{}")
    else:
        error(raw_id, -32601, "Method not found")


for received in iter(sys.stdin.buffer.readline, b""):
    if log:
        log.write(received)
    if options.noisy:
        os.write(2, b"raw server: received %d bytes\n" % len(received))
    handle(received)
