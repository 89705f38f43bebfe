// Nonet as the client of a scenario: starts Nonet with the suite's server as its only server, lists what the server offers,
// and calls every tool once, with the scenario's arguments or else with fitting ones. Accepts forms unchanged, and signs in
// with the command that Nonet suggests.
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

// Nonet's client data without registration: a fixed client, or the address of its metadata document.
const METADATA_DOCUMENT = 'https://conformance-test.local/client-metadata.json';
const own_client = {
    client_id: context.client_id ?? METADATA_DOCUMENT,
    ...(context.client_secret && { client_secret: context.client_secret }),
    ...(scenario.includes('client-credentials') && { grant: 'client_credentials' }),
};
const oauth = Object.entries(own_client).map(([key, value]) => `${key} = '${value}'`);
/** How often the user signs in again for the same thing. */
const SIGN_INS = 3;

const folder = mkdtempSync(join(tmpdir(), 'nonet-conformance-'));
const config = join(folder, 'servers.toml');
writeFileSync(
    config,
    `[gateway]\nlearn = false\n[embedder]\nmodel = '${folder}/none'\ncache = '${folder}/cache'\n[servers.suite]\nurl = '${url}'\nexpose = 'verbatim'\noauth = { ${oauth.join(', ')} }\n`,
);
const env = { ...process.env, XDG_STATE_HOME: folder, XDG_CACHE_HOME: folder };
const child = spawn(nonet, ['serve', '--config', config], {
    env,
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

/** Runs `nonet ... login ...` and goes where it says. Whether the user is signed in then. */
async function signIn(command) {
    console.log(`user: ${command}`);
    const login = spawn('sh', ['-c', `${command.replace(/^nonet/, `'${nonet}'`)} --no-browser --timeout 10s`], {
        env,
        stdio: ['ignore', 'inherit', 'pipe'],
    });
    createInterface({ input: login.stderr }).on('line', (line) => {
        console.log(`login: ${line}`);
        if (line.trim().startsWith('http')) fetch(line.trim()).then((page) => page.text(), console.log);
    });
    const code = await new Promise((done) => login.on('exit', done));
    // The gateway checks twice a second.
    await new Promise((done) => setTimeout(done, 1_000));
    return code === 0;
}

/** Calls a tool, and again after each sign-in that it asks for. */
async function call(params) {
    for (let signIns = 0; ; signIns += 1) {
        const answer = await request('tools/call', params);
        const text = JSON.stringify(answer.result ?? answer.error);
        console.log(params.name, text);
        const command = text.includes('auth_required') && /run `(nonet [^`]*)`/.exec(text)?.[1];
        if (!command || signIns === SIGN_INS || !(await signIn(command))) return;
    }
}

/** Uses each skill, and its files if it is as its server has announced it. */
async function useSkills() {
    const use = async (args) => (await request('tools/call', { name: 'use_skill', arguments: args })).result;
    const { skills } = JSON.parse((await use({})).content[0].text);
    for (const { name } of skills) {
        const skill = await use({ command: name });
        const text = skill.content[0].text;
        console.log('use_skill', name, text);
        const files = /each read with use_skill [^:]*:[^:]*: (.*)/.exec(text)?.[1].split(', ') ?? [];
        for (const file of skill.isError ? [] : files) console.log(file, JSON.stringify(await use({ command: name, file })));
    }
}

async function run() {
    await request('initialize', {
        protocolVersion: '2025-11-25',
        capabilities: { elicitation: {}, sampling: {}, roots: {} },
        clientInfo: { name: 'conformance-driver', version: '1.0.0' },
    });
    send({ method: 'notifications/initialized' });
    let own = [];
    let ready;
    let signIns = 0;
    const until = Date.now() + patience;
    while (Date.now() < until) {
        const asked = await request('tools/call', { name: 'gateway__status', arguments: {} });
        const { servers } = JSON.parse(asked.result.content[0].text);
        const listed = (await request('tools/list', {})).result.tools;
        own = listed.slice(0, listed.findIndex((tool) => tool.name === 'search_tools'));
        if (servers[0].state === 'auth_required') {
            if (signIns === SIGN_INS || !servers[0].login || !(await signIn(servers[0].login))) break;
            signIns += 1;
        }
        // A server without tools briefly looks like one whose list is not published yet.
        if (servers[0].state === 'ready') ready ??= Date.now();
        if (ready !== undefined && (own.length > 0 || Date.now() - ready > 2_000)) break;
        await new Promise((done) => setTimeout(done, 100));
    }
    console.log(`tools: ${own.map((tool) => tool.name).join(', ')}`);
    const schema = own.find((tool) => tool.name === 'json_schema_2020_12_tool')?.inputSchema;
    const called = context.toolCalls ?? own.map((tool) => ({ name: tool.name, arguments: some(tool.inputSchema) }));
    // One scenario expects a schema back exactly as listed.
    for (const call of called) {
        if (scenario === 'json-schema-2020-12-preservation' && call.name !== 'json_schema_2020_12_tool') {
            call.arguments = { schema };
        }
    }
    await Promise.all(called.map(call));
    const { prompts } = (await request('prompts/list', {})).result ?? {};
    for (const prompt of prompts ?? []) {
        const given = Object.fromEntries((prompt.arguments ?? []).map((argument) => [argument.name, 'x']));
        await request('prompts/get', { name: prompt.name, arguments: given });
    }
    const { resources } = (await request('resources/list', {})).result ?? {};
    for (const resource of resources ?? []) await request('resources/read', { uri: resource.uri });
    if (scenario.startsWith('sep-2640-client-verify-')) await useSkills();
}

const limit = setTimeout(() => child.kill(), patience + 10_000);
child.on('exit', () => {
    clearTimeout(limit);
    rmSync(folder, { recursive: true, force: true });
    process.exit(0);
});
await run();
child.stdin.end();
