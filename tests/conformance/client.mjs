// Nonet as the client of a scenario: starts it with the suite's server as its only server, lists what that offers, and calls
// every tool once, with the arguments that the scenario names, or else with some that fit. Answers forms as a user does who
// leaves everything as it is.
//
//   node client.mjs NONET URL
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

const [nonet, url] = process.argv.slice(2);
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? '{}');
const scenario = process.env.MCP_CONFORMANCE_SCENARIO ?? '';
const patience = Number(process.env.CLIENT_PATIENCE_MS ?? 15_000);

const folder = mkdtempSync(join(tmpdir(), 'nonet-conformance-'));
const config = join(folder, 'servers.toml');
writeFileSync(
    config,
    `[gateway]\nlearn = false\n[embedder]\nmodel = '${folder}/none'\ncache = '${folder}/cache'\n[servers.suite]\nurl = '${url}'\nexpose = 'verbatim'\n`,
);
const child = spawn(nonet, ['serve', '--config', config], {
    env: { ...process.env, XDG_STATE_HOME: folder, XDG_CACHE_HOME: folder },
    stdio: ['pipe', 'pipe', 'inherit'],
});

const waiting = new Map();
let sent = 0;
const send = (message) => child.stdin.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`);
function request(method, params) {
    const id = (sent += 1);
    send({ id, method, params });
    return new Promise((done) => waiting.set(id, done));
}

/** What a user sends who leaves a form as it is. */
function left(schema) {
    const filled = Object.entries(schema?.properties ?? {}).map(([key, of]) => [key, of.default ?? fitting(of)]);
    return Object.fromEntries(filled.filter(([, value]) => value !== undefined));
}

function fitting(schema) {
    if (schema.const !== undefined) return schema.const;
    if (schema.enum) return schema.enum[0];
    switch ([schema.type].flat()[0]) {
        case 'integer':
        case 'number':
            return schema.minimum ?? 1;
        case 'boolean':
            return true;
        case 'array':
            return [];
        case 'object':
            return some(schema);
        default:
            return 'x';
    }
}

function some(schema) {
    const required = schema?.required ?? [];
    return Object.fromEntries(required.map((key) => [key, fitting(schema.properties?.[key] ?? {})]));
}

const answers = {
    'elicitation/create': (params) => ({ action: 'accept', content: left(params.requestedSchema) }),
    'sampling/createMessage': () => ({
        role: 'assistant',
        content: { type: 'text', text: 'Paris' },
        model: 'none',
        stopReason: 'endTurn',
    }),
    'roots/list': () => ({ roots: [{ uri: 'file:///tmp', name: 'tmp' }] }),
    ping: () => ({}),
};

createInterface({ input: child.stdout }).on('line', (line) => {
    const message = JSON.parse(line);
    if (message.method && message.id !== undefined) {
        const answer = answers[message.method];
        const error = { code: -32601, message: 'Method not found' };
        send(answer ? { id: message.id, result: answer(message.params ?? {}) } : { id: message.id, error });
    } else if (message.id !== undefined) {
        waiting.get(message.id)?.(message);
        waiting.delete(message.id);
    }
});

async function run() {
    await request('initialize', {
        protocolVersion: '2025-11-25',
        capabilities: { elicitation: {}, sampling: {}, roots: {} },
        clientInfo: { name: 'conformance-driver', version: '1.0.0' },
    });
    send({ method: 'notifications/initialized' });
    let own = [];
    let ready;
    const until = Date.now() + patience;
    while (Date.now() < until) {
        const asked = await request('tools/call', { name: 'gateway__status', arguments: {} });
        const { servers } = JSON.parse(asked.result.content[0].text);
        const listed = (await request('tools/list', {})).result.tools;
        own = listed.slice(0, listed.findIndex((tool) => tool.name === 'search_tools'));
        // A server without tools looks for a moment like one whose list is not published yet.
        if (servers[0].state === 'ready') ready ??= Date.now();
        if (ready !== undefined && (own.length > 0 || Date.now() - ready > 2_000)) break;
        await new Promise((done) => setTimeout(done, 100));
    }
    console.log(`tools: ${own.map((tool) => tool.name).join(', ')}`);
    const schema = own.find((tool) => tool.name === 'json_schema_2020_12_tool')?.inputSchema;
    const called = context.toolCalls ?? own.map((tool) => ({ name: tool.name, arguments: some(tool.inputSchema) }));
    // One scenario wants a schema back as it was listed.
    for (const call of called) {
        if (scenario === 'json-schema-2020-12-preservation' && call.name !== 'json_schema_2020_12_tool') {
            call.arguments = { schema };
        }
    }
    const results = await Promise.all(called.map((call) => request('tools/call', call)));
    results.forEach((result, n) => console.log(called[n].name, JSON.stringify(result.result ?? result.error)));
    const { prompts } = (await request('prompts/list', {})).result ?? {};
    for (const prompt of prompts ?? []) {
        const given = Object.fromEntries((prompt.arguments ?? []).map((argument) => [argument.name, 'x']));
        await request('prompts/get', { name: prompt.name, arguments: given });
    }
    const { resources } = (await request('resources/list', {})).result ?? {};
    for (const resource of resources ?? []) await request('resources/read', { uri: resource.uri });
}

const limit = setTimeout(() => child.kill(), patience + 10_000);
child.on('exit', () => {
    clearTimeout(limit);
    rmSync(folder, { recursive: true, force: true });
    process.exit(0);
});
await run();
child.stdin.end();
