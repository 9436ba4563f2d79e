"""The official Python client, line 1.x or 2.x, as an agent of the plan server: it runs through a scenario.

A JSON object on stdin: "command" and "env" of the server; "mode" as in official.py; "capable", whether it answers
questions; "steps", a list of [verb, ...]. Prints a JSON array with one entry per step. plans_typescript.mjs keeps the
same contract. The verbs:

    ["list"]                                names of the tools
    ["call", name, arguments]               {"body", "isError"}, or {"error": code}
    ["progress", name, arguments, n, path]  the same with "progress": [[progress, total, message], …]; writes a line to
                                            the named pipe at path when message n arrives
    ["answer", result]                      what questions get from now on; null: the callback fails
    ["cancel", name, arguments, path]       cancels the call once the named pipe at path says something
    ["settled", plan]                       status of the newest run of a plan, once it is not running
"""
import asyncio
import contextlib
import json
import sys

import mcp
from mcp import StdioServerParameters, types

IS_LINE_2 = hasattr(mcp, "Client")
PeerError = mcp.MCPError if IS_LINE_2 else mcp.McpError
ANSWER = {}


async def elicit(context, params):
    if ANSWER["result"] is None:
        raise RuntimeError("nobody is here")
    return types.ElicitResult(**ANSWER["result"])


def outcome(result):
    shown = result.model_dump(mode="json", by_alias=True)
    assert json.loads(shown["content"][0]["text"]) == shown["structuredContent"]
    return {"body": shown["structuredContent"], "isError": shown["isError"]}


async def call(client, name, arguments, **options):
    try:
        return outcome(await client.call_tool(name, arguments, **options))
    except PeerError as error:
        return {"error": error.error.code}


async def progress(client, name, arguments, awaited, path):
    told = []

    async def on_progress(progress, total, message):
        told.append([progress, total, message])
        if len(told) == awaited:
            with open(path, "wb", buffering=0) as pipe:
                pipe.write(b"go\n")

    return {**await call(client, name, arguments, progress_callback=on_progress), "progress": told}


async def cancel(client, name, arguments, path):
    task = asyncio.create_task(client.call_tool(name, arguments))
    with open(path, "rb", buffering=0) as pipe:
        await asyncio.get_running_loop().run_in_executor(None, pipe.read, 1)
    if IS_LINE_2:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return {"cancelled": True}
    # Line 1 does not tell the server when its caller is cancelled; hosts built on it send the notification themselves.
    params = types.CancelledNotificationParams(requestId=client._request_id - 1)
    notification = types.CancelledNotification(method="notifications/cancelled", params=params)
    await client.send_notification(types.ClientNotification(notification))
    return {"cancelled": outcome(await task)["body"]["kind"] == "cancelled"}


async def settled(client, plan):
    while True:
        runs = (await call(client, "graph_run_list", {"plan": plan, "limit": 1}))["body"]["runs"]
        if runs[0]["status"] != "running":
            return runs[0]["status"]


async def step(client, verb, *rest):
    if verb == "list":
        return [tool.name for tool in (await client.list_tools()).tools]
    if verb == "answer":
        ANSWER["result"] = rest[0]
        return None
    return await {"call": call, "progress": progress, "cancel": cancel, "settled": settled}[verb](client, *rest)


@contextlib.asynccontextmanager
async def connect(server, mode, callbacks):
    if IS_LINE_2:
        async with mcp.Client(server, mode=mode, **callbacks) as client:
            yield client
    else:
        from mcp.client.stdio import stdio_client
        async with stdio_client(server) as (read, write), mcp.ClientSession(read, write, **callbacks) as session:
            await session.initialize()
            yield session


async def main(task):
    server = StdioServerParameters(command=task["command"][0], args=task["command"][1:], env=task["env"])
    callbacks = {"elicitation_callback": elicit} if task["capable"] else {}
    async with connect(server, task["mode"], callbacks) as client:
        return [await step(client, *each) for each in task["steps"]]


print(json.dumps(asyncio.run(main(json.load(sys.stdin.buffer)))))
