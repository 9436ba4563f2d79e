// The two TypeScript clients, driven through a scenario; official.py has the contract.
// Usage: node typescript.mjs sdk|client < SCENARIO   (the packages @modelcontextprotocol/sdk 1.x and /client 2.x)

import { readFileSync } from 'node:fs';

// The 2.x package tells of skipped requests by console.debug; our stdout holds the answer and nothing else.
console.debug = console.error;

const INFO = { name: 'interop', version: '1' };
const CAPABILITIES = { sampling: {}, elicitation: {}, roots: {} };

/** Return [client, transport] of the 1.x SDK. */
async function sdkClient(server) {
    const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
    const { StdioClientTransport } = await import('@modelcontextprotocol/sdk/client/stdio.js');
    const types = await import('@modelcontextprotocol/sdk/types.js');
    const client = new Client(INFO, { capabilities: CAPABILITIES });
    answerTheServer(client, types.CreateMessageRequestSchema, types.ElicitRequestSchema, types.ListRootsRequestSchema);
    return [client, new StdioClientTransport(server)];
}

/** Return [client, transport] of the 2.x package; mode is "legacy" or "auto". */
async function packageClient(server, mode) {
    const { Client } = await import('@modelcontextprotocol/client');
    const { StdioClientTransport } = await import('@modelcontextprotocol/client/stdio');
    const client = new Client(INFO, { capabilities: CAPABILITIES, versionNegotiation: { mode } });
    answerTheServer(client, 'sampling/createMessage', 'elicitation/create', 'roots/list');
    return [client, new StdioClientTransport(server)];
}

function answerTheServer(client, sampling, elicitation, roots) {
    const content = { type: 'text', text: 'sampled text, déjà vu' };
    client.setRequestHandler(sampling, () => ({ role: 'assistant', model: 'a-model', content }));
    client.setRequestHandler(elicitation, () => ({ action: 'decline' }));
    client.setRequestHandler(roots, () => ({ roots: [{ uri: 'file:///srv/project' }] }));
}

const STEPS = {
    'tools/list': client => client.listTools(),
    'tools/call': (client, params) => client.callTool({ name: params.name, arguments: params.arguments ?? {} }),
    'resources/list': client => client.listResources(),
    'resources/templates/list': client => client.listResourceTemplates(),
    'resources/read': (client, params) => client.readResource({ uri: params.uri }),
    'prompts/list': client => client.listPrompts(),
    'prompts/get': (client, params) => client.getPrompt({ name: params.name, arguments: params.arguments }),
    'completion/complete': (client, params) =>
        client.complete({ ref: { type: 'ref/prompt', name: params.prompt }, argument: params.argument }),
    ping: client => client.ping(),
};

async function main(which, task) {
    const server = { command: task.command[0], args: task.command.slice(1), stderr: 'inherit' };
    const [client, transport] = which === 'sdk' ? await sdkClient(server) : await packageClient(server, task.mode);
    const complaints = [];
    client.onerror = error => complaints.push(String(error));
    await client.connect(transport);
    const results = [{
        capabilities: client.getServerCapabilities(),
        instructions: client.getInstructions(),
        server: client.getServerVersion(),
    }];
    const version = client.getNegotiatedProtocolVersion?.() ?? null;
    for (const [method, params] of task.steps) {
        try {
            results.push(await STEPS[method](client, params));
        } catch (error) {
            results.push({ error: { code: error.code, message: error.message } });
        }
    }
    await client.close();
    console.log(JSON.stringify({ version, results, complaints }));
}

await main(process.argv[2], JSON.parse(readFileSync(0, 'utf-8')));
