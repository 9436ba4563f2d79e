"""The official Python client, line 1.x or 2.x, whichever is installed, driven through a scenario.

A JSON object on stdin: "command" is the server's command line; "mode" is "legacy" (open with initialize) or
"auto" (probe for 2026-07-28 first; only 2.x can); "steps" is a list of [method, params]. Prints one JSON object:
"version" as negotiated; "results", what the handshake told and then one entry per step, {"error": ...} where the
peer refused; "complaints", what the SDK could not parse. typescript.mjs keeps the same contract, and both answer the
server's own requests with the same values.
"""
import asyncio
import contextlib
import json
import sys

import mcp
from mcp import StdioServerParameters, types

IS_LINE_2 = hasattr(mcp, "Client")
PeerError = mcp.MCPError if IS_LINE_2 else mcp.McpError

STEPS = {
    "tools/list": lambda client, params: client.list_tools(),
    "tools/call": lambda client, params: client.call_tool(params["name"], params.get("arguments", {})),
    "resources/list": lambda client, params: client.list_resources(),
    "resources/templates/list": lambda client, params: client.list_resource_templates(),
    "resources/read": lambda client, params: client.read_resource(params["uri"]),
    "prompts/list": lambda client, params: client.list_prompts(),
    "prompts/get": lambda client, params: client.get_prompt(params["name"], params.get("arguments")),
    "completion/complete": lambda client, params: client.complete(
        types.PromptReference(type="ref/prompt", name=params["prompt"]), params["argument"]),
    "ping": lambda client, params: client.send_ping(),
}


async def sample(context, params):
    content = types.TextContent(type="text", text="sampled text, déjà vu")
    return types.CreateMessageResult(role="assistant", model="a-model", content=content)


async def elicit(context, params):
    return types.ElicitResult(action="decline")


async def roots(context):
    return types.ListRootsResult(roots=[types.Root(uri="file:///srv/project")])


def to_json(model):
    """Turn a result of the SDK into the JSON values that stood on the wire."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


@contextlib.asynccontextmanager
async def connect(server, mode, callbacks):
    """Yield (client, negotiated version, what the handshake told)."""
    if IS_LINE_2:
        async with mcp.Client(server, mode=mode, **callbacks) as client:
            yield client, client.protocol_version, {"capabilities": to_json(client.server_capabilities),
                                                    "server": to_json(client.server_info),
                                                    "instructions": client.instructions}
    else:
        from mcp.client.stdio import stdio_client
        async with stdio_client(server) as (read, write), mcp.ClientSession(read, write, **callbacks) as session:
            hello = await session.initialize()
            yield session, hello.protocolVersion, to_json(hello)


async def main(task):
    complaints = []

    async def on_message(message):
        if isinstance(message, Exception):
            complaints.append(repr(message))

    server = StdioServerParameters(command=task["command"][0], args=task["command"][1:])
    callbacks = {"sampling_callback": sample, "elicitation_callback": elicit, "list_roots_callback": roots,
                 "message_handler": on_message}
    async with connect(server, task["mode"], callbacks) as (client, version, hello):
        results = [hello]
        for method, params in task["steps"]:
            try:
                results.append(to_json(await STEPS[method](client, params)))
            except PeerError as error:
                results.append({"error": {"code": error.error.code, "message": error.error.message}})
    return {"version": version, "results": results, "complaints": complaints}


print(json.dumps(asyncio.run(main(json.load(sys.stdin.buffer)))))
