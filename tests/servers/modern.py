"""A server of the 2026-07-28 era: server/discover, results with resultType, no initialize. Arguments are ignored,
but for --log FILE: append every received line there."""

import json
import sys

VERSION = "2026-07-28"
META = {"io.modelcontextprotocol/serverInfo": {"name": "modern", "version": "1"}}
LISTS = {"tools/list": ("tools", [{"name": "echo", "inputSchema": {"type": "object", "properties": {}}}]),
         "resources/list": ("resources", []), "prompts/list": ("prompts", [])}


def answer(message):
    method, params = message["method"], message.get("params") or {}
    stamps = {"resultType": "complete", "_meta": META}
    cacheable = dict(stamps, ttlMs=1000, cacheScope="private")
    if method == "server/discover":
        return {"result": dict(cacheable, supportedVersions=[VERSION], capabilities={"tools": {}})}
    if method in LISTS:
        key, value = LISTS[method]
        return {"result": dict(cacheable, **{key: value})}
    if method == "resources/read":
        return {"result": dict(cacheable, contents=[{"uri": params.get("uri"), "text": "content"}])}
    if method == "tools/call" and params.get("name") == "echo":
        text = (params.get("arguments") or {}).get("text", "")
        return {"result": dict(stamps, content=[{"type": "text", "text": text}])}
    if method == "tools/call" and params.get("name") == "softfail":
        return {"result": dict(stamps, content=[{"type": "text", "text": "failed"}], isError=True)}
    if method == "subscriptions/listen":
        return None  # stays open by design
    return {"error": {"code": -32601, "message": "Method not found"}}


log = open(sys.argv[sys.argv.index("--log") + 1], "ab", 0) if "--log" in sys.argv else None
for line in iter(sys.stdin.buffer.readline, b""):
    if log:
        log.write(line)
    request = json.loads(line.decode())
    if "id" in request and "method" in request:
        body = answer(request)
        if body is not None:
            sys.stdout.buffer.write(json.dumps(dict({"jsonrpc": "2.0", "id": request["id"]}, **body)).encode() + b"\n")
            sys.stdout.buffer.flush()
