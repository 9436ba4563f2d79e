// The two TypeScript clients as agents of the plan server; plans_official.py has the contract.
// Usage: node plans_typescript.mjs sdk|client < SCENARIO

import { readFileSync, writeFileSync } from 'node:fs';
import { open } from 'node:fs/promises';

console.debug = console.error;

const INFO = { name: 'interop', version: '1' };
let answer = null;

function elicit() {
    if (answer === null) throw new Error('nobody is here');
    return answer;
}

async function makeClient(which, task) {
    const capabilities = task.capable ? { elicitation: {} } : {};
    if (which === 'sdk') {
        const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
        const { ElicitRequestSchema } = await import('@modelcontextprotocol/sdk/types.js');
        const client = new Client(INFO, { capabilities });
        if (task.capable) client.setRequestHandler(ElicitRequestSchema, elicit);
        return client;
    }
    const { Client } = await import('@modelcontextprotocol/client');
    const client = new Client(INFO, { capabilities, versionNegotiation: { mode: task.mode } });
    if (task.capable) client.setRequestHandler('elicitation/create', elicit);
    return client;
}

async function makeTransport(which, server) {
    const place = which === 'sdk' ? '@modelcontextprotocol/sdk/client/stdio.js' : '@modelcontextprotocol/client/stdio';
    const { StdioClientTransport } = await import(place);
    return new StdioClientTransport(server);
}

/** Call a tool; arguments of callTool stand in another order in the two lines. */
function callTool(which, client, params, options) {
    return which === 'sdk' ? client.callTool(params, undefined, options) : client.callTool(params, options);
}

async function call(which, client, name, args, options = {}) {
    try {
        const result = await callTool(which, client, { name, arguments: args }, options);
        return { body: result.structuredContent, isError: result.isError };
    } catch (error) {
        return { error: error.code };
    }
}

const VERBS = {
    list: async (which, client) => (await client.listTools()).tools.map(tool => tool.name),
    call,
    progress: async (which, client, name, args, awaited, path) => {
        const told = [];
        const onprogress = each => {
            if (told.push([each.progress, each.total, each.message]) === awaited) writeFileSync(path, 'go\n');
        };
        return { ...(await call(which, client, name, args, { onprogress })), progress: told };
    },
    answer: async (which, client, result) => {
        answer = result;
        return null;
    },
    cancel: async (which, client, name, args, path) => {
        const stop = new AbortController();
        const pending = callTool(which, client, { name, arguments: args }, { signal: stop.signal });
        const ended = pending.then(() => false, () => true);
        const pipe = await open(path, 'r');
        await pipe.read(Buffer.alloc(1), 0, 1);
        await pipe.close();
        stop.abort('changed my mind');
        return { cancelled: await ended };
    },
    settled: async (which, client, plan) => {
        for (;;) {
            const { body } = await call(which, client, 'graph_run_list', { plan, limit: 1 });
            if (body.runs[0].status !== 'running') return body.runs[0].status;
        }
    },
};

async function main(which, task) {
    const server = { command: task.command[0], args: task.command.slice(1), env: task.env, stderr: 'inherit' };
    const client = await makeClient(which, task);
    client.onerror = error => console.error(String(error));
    await client.connect(await makeTransport(which, server));
    const results = [];
    for (const [verb, ...rest] of task.steps) results.push(await VERBS[verb](which, client, ...rest));
    await client.close();
    console.log(JSON.stringify(results));
}

await main(process.argv[2], JSON.parse(readFileSync(0, 'utf-8')));
