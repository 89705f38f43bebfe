// The server that the conformance suite expects behind Nonet: its tools, prompts and resources have the names that the
// scenarios use, and answer as described there. Speaks MCP on stdin and stdout, with hand-written JSON-RPC, in one era:
//   node server.mjs 2025-11-25     initialize; asks the client by requests of its own
//   node server.mjs 2026-07-28     server/discover; asks the client by unfinished results
import { createHmac } from 'node:crypto';
import { createInterface } from 'node:readline';

const revision = process.argv[2] ?? '2025-11-25';
const modern = revision === '2026-07-28';
const meta = (name) => `io.modelcontextprotocol/${name}`;
const info = { name: 'conformance-fixture', version: '1.0.0' };
const png = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==';
const wav = 'UklGRiQAAABXQVZFZm10IBAAAAABAAEARKwAAIhYAQACABAAZGF0YQAAAAA=';

// ---- Messages ----

const send = (message) => process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`);
const notify = (method, params) => send({ method, params });
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const fail = (code, message, data) => Object.assign(new Error(message), { code, data });

let client = {};
let level = 'info';
let asked = 0;
const waiting = new Map();
const listeners = new Map();
const watched = new Set();

/** Asks the client, in the era in which a server may. */
function ask(method, params) {
    const id = `fixture-${(asked += 1)}`;
    send({ id, method, params });
    return new Promise((resolve, reject) => waiting.set(id, { resolve, reject }));
}

function changed(kind) {
    const method = `notifications/${kind}/list_changed`;
    if (!modern) notify(method);
    for (const [id, wanted] of listeners) {
        if (wanted[`${kind}ListChanged`]) notify(method, { _meta: { [meta('subscriptionId')]: id } });
    }
}

function log(data, request) {
    if (modern && request._meta?.[meta('logLevel')] === undefined) return;
    if (!modern && !['debug', 'info'].includes(level)) return;
    notify('notifications/message', { level: 'info', logger: info.name, data });
}

// ---- Forms and questions ----

const text = (text) => ({ content: [{ type: 'text', text }] });
const image = { type: 'image', data: png, mimeType: 'image/png' };
const object = (properties, required) => ({ type: 'object', properties, ...(required && { required }) });
const string = { type: 'string' };
const form = (message, properties, required = Object.keys(properties)) => ({
    method: 'elicitation/create',
    params: { message, requestedSchema: object(properties, required) },
});
const sample = (prompt, maxTokens = 100) => ({
    method: 'sampling/createMessage',
    params: { messages: [{ role: 'user', content: { type: 'text', text: prompt } }], maxTokens },
});
const roots = { method: 'roots/list', params: {} };

const defaults = {
    name: { type: 'string', default: 'John Doe' },
    age: { type: 'integer', default: 30 },
    score: { type: 'number', default: 95.5 },
    status: { type: 'string', enum: ['active', 'inactive', 'pending'], default: 'active' },
    verified: { type: 'boolean', default: true },
};
const options = ['option1', 'option2', 'option3'];
const titled = (word) => ['First', 'Second', 'Third'].map((nth, n) => ({ const: `value${n + 1}`, title: `${nth} ${word}` }));
const enums = {
    untitledSingle: { type: 'string', enum: options },
    titledSingle: { type: 'string', oneOf: titled('Option') },
    legacyEnum: { type: 'string', enum: ['opt1', 'opt2', 'opt3'], enumNames: ['Option One', 'Option Two', 'Option Three'] },
    untitledMulti: { type: 'array', items: { type: 'string', enum: options } },
    titledMulti: { type: 'array', items: { anyOf: titled('Choice') } },
};

const seal = (state) => `${state}.${createHmac('sha256', 'fixture').update(state).digest('hex')}`;

/** An unfinished result; `state` is sealed. */
const needs = (inputRequests, state) => ({
    resultType: 'input_required',
    inputRequests,
    ...(state && { requestState: seal(state) }),
});

/** What came back for all of `inputRequests`, or an unfinished result that asks for them. */
function given(request, inputRequests, state) {
    const responses = request.inputResponses ?? {};
    const answered = (key) => responses[key] !== null && typeof responses[key] === 'object' && !Array.isArray(responses[key]);
    if (Object.keys(inputRequests).every(answered)) {
        if (state && request.requestState !== seal(state)) throw fail(-32602, 'requestState is not what was given');
        return { responses };
    }
    return { unfinished: needs(inputRequests, state) };
}

/** Asks once, in the way of the era, and shapes the answer. */
async function once(request, capability, key, question, shape) {
    const capabilities = modern ? (request._meta?.[meta('clientCapabilities')] ?? {}) : client;
    if (capabilities[capability] === undefined) {
        if (modern) throw fail(-32021, `The client does not have ${capability}`, { requiredCapabilities: { [capability]: {} } });
        return { ...text(`The client does not have ${capability}`), isError: true };
    }
    if (!modern) return shape(await ask(question.method, question.params));
    const { responses, unfinished } = given(request, { [key]: question });
    return unfinished ?? shape(responses[key]);
}

const completed = (answer) =>
    text(`Elicitation completed: action=${answer.action}, content=${JSON.stringify(answer.content ?? {})}`);

// ---- Tools, prompts and resources ----

const dialect = 'https://json-schema.org/draft/2020-12/schema';
const tools = {
    test_simple_text: { run: () => text('This is a simple text response for testing.') },
    test_image_content: { run: () => ({ content: [image] }) },
    test_audio_content: { run: () => ({ content: [{ type: 'audio', data: wav, mimeType: 'audio/wav' }] }) },
    test_embedded_resource: {
        run: () => ({
            content: [
                {
                    type: 'resource',
                    resource: {
                        uri: 'test://embedded-resource',
                        mimeType: 'text/plain',
                        text: 'This is an embedded resource content.',
                    },
                },
            ],
        }),
    },
    test_multiple_content_types: {
        run: () => ({
            content: [
                { type: 'text', text: 'Multiple content types test:' },
                image,
                {
                    type: 'resource',
                    resource: {
                        uri: 'test://mixed-content-resource',
                        mimeType: 'application/json',
                        text: '{"test":"data","value":123}',
                    },
                },
            ],
        }),
    },
    test_error_handling: {
        run: () => ({ ...text('This tool intentionally returns an error for testing'), isError: true }),
    },
    test_tool_with_logging: {
        async run(request) {
            log('Tool execution started', request);
            await pause(50);
            log('Tool processing data', request);
            await pause(50);
            log('Tool execution completed', request);
            return text('Tool with logging executed');
        },
    },
    test_logging_tool: {
        run(request) {
            log('The logging tool was called', request);
            return text('Logged, if that was wanted');
        },
    },
    test_tool_with_progress: {
        async run(request) {
            const progressToken = request._meta?.progressToken;
            for (const progress of [0, 50, 100]) {
                if (progressToken !== undefined) notify('notifications/progress', { progressToken, progress, total: 100 });
                await pause(50);
            }
            return text('Tool with progress executed');
        },
    },
    test_sampling: {
        inputSchema: object({ prompt: string }, ['prompt']),
        run: (request) =>
            once(request, 'sampling', 'answer', sample(request.arguments.prompt), (answer) =>
                text(`LLM response: ${answer.content?.text ?? JSON.stringify(answer.content)}`),
            ),
    },
    test_missing_capability: {
        run: (request) => once(request, 'sampling', 'answer', sample('Say something'), () => text('The client can sample')),
    },
    test_elicitation: {
        inputSchema: object({ message: string }, ['message']),
        run: (request) =>
            once(
                request,
                'elicitation',
                'answer',
                form(request.arguments.message, {
                    username: { type: 'string', description: "User's response" },
                    email: { type: 'string', description: "User's email address" },
                }),
                (answer) => text(`User response: action=${answer.action}, content=${JSON.stringify(answer.content ?? {})}`),
            ),
    },
    test_streaming_elicitation: {
        run: (request) => once(request, 'elicitation', 'answer', form('Go on?', { ok: { type: 'boolean' } }), completed),
    },
    test_elicitation_sep1034_defaults: {
        run: (request) => once(request, 'elicitation', 'answer', form('Check these values', defaults, []), completed),
    },
    test_elicitation_sep1330_enums: {
        run: (request) => once(request, 'elicitation', 'answer', form('Choose', enums, []), completed),
    },
    test_trigger_tool_change: {
        run() {
            tools[`test_added_${Object.keys(tools).length}`] = { run: () => text('Added while running') };
            changed('tools');
            return text('The list of tools has changed');
        },
    },
    test_trigger_prompt_change: {
        run() {
            prompts[`test_added_${Object.keys(prompts).length}`] = { run: () => says({ type: 'text', text: 'Added' }) };
            changed('prompts');
            return text('The list of prompts has changed');
        },
    },
    test_headers: {
        inputSchema: object({ region: { type: 'string', 'x-mcp-header': 'Region' } }, ['region']),
        run: (request) => text(`Region: ${request.arguments.region}`),
    },
    json_schema_2020_12_tool: {
        inputSchema: {
            $schema: dialect,
            type: 'object',
            $defs: {
                address: { $anchor: 'addressDef', type: 'object', properties: { street: string, city: string } },
            },
            properties: {
                name: string,
                address: { $ref: '#/$defs/address' },
                contactMethod: { type: 'string', enum: ['phone', 'email'] },
                phone: string,
                email: string,
            },
            allOf: [{ anyOf: [{ required: ['phone'] }, { required: ['email'] }] }],
            if: { properties: { contactMethod: { const: 'phone' } }, required: ['contactMethod'] },
            then: { required: ['phone'] },
            else: { required: ['email'] },
            additionalProperties: false,
        },
        run: (request) => text(JSON.stringify(request.arguments)),
    },
};

const name = form('What is your name?', { name: string });
const unfinished = {
    test_input_required_result_elicitation(request) {
        const { responses, unfinished } = given(request, { user_name: name });
        return unfinished ?? text(`Hello, ${responses.user_name.content?.name}!`);
    },
    test_input_required_result_sampling(request) {
        const { responses, unfinished } = given(request, { capital_question: sample('What is the capital of France?') });
        return unfinished ?? text(`The model says: ${responses.capital_question.content?.text}`);
    },
    test_input_required_result_list_roots(request) {
        const { responses, unfinished } = given(request, { client_roots: roots });
        return unfinished ?? text(`Roots: ${JSON.stringify(responses.client_roots.roots)}`);
    },
    test_input_required_result_request_state(request) {
        const confirm = form('Please confirm', { ok: { type: 'boolean' } });
        return given(request, { confirm }, 'confirm').unfinished ?? text('state-ok');
    },
    test_input_required_result_multiple_inputs(request) {
        const inputs = { user_name: name, greeting: sample('Generate a greeting', 50), client_roots: roots };
        const { responses, unfinished } = given(request, inputs, 'several');
        return unfinished ?? text(`All there for ${responses.user_name.content?.name}`);
    },
    test_input_required_result_multi_round(request) {
        const step1 = form('Step 1: What is your name?', { name: string });
        const step2 = form('Step 2: What is your favorite color?', { color: string });
        if (request.requestState === undefined) return needs({ step1 }, 'round-1');
        if (request.requestState === seal('round-1')) {
            return given(request, { step1 }, 'round-1').unfinished ?? needs({ step2 }, 'round-2');
        }
        const { responses, unfinished } = given(request, { step2 }, 'round-2');
        return unfinished ?? text(`The color is ${responses.step2.content?.color}`);
    },
    test_input_required_result_tampered_state(request) {
        const confirm = form('Please confirm', { ok: { type: 'boolean' } });
        return given(request, { confirm }, 'untouched').unfinished ?? text('The state is as it was given');
    },
    test_input_required_result_capabilities(request) {
        const capabilities = request._meta?.[meta('clientCapabilities')] ?? {};
        const inputs = {
            ...(capabilities.elicitation && { user_name: name }),
            ...(capabilities.sampling && { greeting: sample('Generate a greeting') }),
            ...(capabilities.roots && { client_roots: roots }),
        };
        return given(request, inputs).unfinished ?? text('The client can do what was needed');
    },
};
if (modern) for (const [key, run] of Object.entries(unfinished)) tools[key] = { run };

// Tools that take long enough for Nonet to make tasks of their calls.
const slow = {
    greet: (request) => text(`Hello, ${request.arguments.name}!`),
    async slow_compute({ arguments: { seconds = 0, label = '' } }) {
        await pause(seconds * 1000);
        return text(`Computed ${label} in ${seconds} s`);
    },
    async failing_job() {
        await pause(1000);
        return { ...text('The job has failed'), isError: true };
    },
    async protocol_error_job() {
        await pause(1000);
        throw fail(-32603, 'The job has crashed');
    },
    async confirm_delete(request) {
        await pause(1000);
        const confirm = form(`Delete ${request.arguments.filename}?`, { confirm: { type: 'boolean' } });
        const { responses, unfinished } = given(request, { confirm });
        return unfinished ?? text(`Deleted: ${JSON.stringify(responses.confirm.content)}`);
    },
    async multi_input(request) {
        await pause(1000);
        const inputs = { first: form('The first?', { name: string }), second: form('The second?', { name: string }) };
        const { responses, unfinished } = given(request, inputs);
        return unfinished ?? text(`Both: ${JSON.stringify(responses)}`);
    },
    async test_tool_with_task(request) {
        const { responses, unfinished } = given(request, { user_name: name }, 'task');
        if (unfinished) return unfinished;
        await pause(1000);
        return text(`Hello, ${responses.user_name.content?.name}!`);
    },
};
if (modern) for (const [key, run] of Object.entries(slow)) tools[key] = { run };

const says = (...contents) => ({ messages: contents.map((content) => ({ role: 'user', content })) });
const prompts = {
    test_simple_prompt: { run: () => says({ type: 'text', text: 'This is a simple prompt for testing.' }) },
    test_prompt_with_arguments: {
        arguments: ['arg1', 'arg2'],
        run: ({ arg1, arg2 }) => says({ type: 'text', text: `Prompt with arguments: arg1='${arg1}', arg2='${arg2}'` }),
    },
    test_prompt_with_embedded_resource: {
        arguments: ['resourceUri'],
        run: ({ resourceUri }) =>
            says(
                {
                    type: 'resource',
                    resource: { uri: resourceUri, mimeType: 'text/plain', text: 'Embedded resource content for testing.' },
                },
                { type: 'text', text: 'Please process the embedded resource above.' },
            ),
    },
    test_prompt_with_image: { run: () => says(image, { type: 'text', text: 'Please analyze the image above.' }) },
};
if (modern) {
    prompts.test_input_required_result_prompt = {
        run(_, request) {
            const user_context = form('What context should the prompt use?', { context: string });
            const { responses, unfinished } = given(request, { user_context });
            return unfinished ?? says({ type: 'text', text: `Context: ${responses.user_context.content?.context}` });
        },
    };
}

const resources = {
    'test://static-text': { mimeType: 'text/plain', text: 'This is the content of the static text resource.' },
    'test://static-binary': { mimeType: 'image/png', blob: png },
    'test://watched-resource': { mimeType: 'text/plain', text: 'This resource can be watched.' },
};
const template = 'test://template/{id}/data';

function read(uri) {
    if (resources[uri]) return resources[uri];
    const id = /^test:\/\/template\/([^/]+)\/data$/.exec(uri)?.[1];
    if (id === undefined) throw fail(modern ? -32602 : -32002, 'Resource not found', { uri });
    return {
        mimeType: 'application/json',
        text: JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` }),
    };
}

// ---- Requests ----

const capabilities = {
    tools: { listChanged: true },
    prompts: { listChanged: true },
    resources: { listChanged: true, subscribe: true },
    completions: {},
    logging: {},
};
const cached = modern ? { ttlMs: 0, cacheScope: 'private' } : {};
const about = (key) => `The fixture ${key.replaceAll('_', ' ')}`;

const methods = {
    ...(modern
        ? {
              'server/discover': () => ({ supportedVersions: [revision], capabilities, ...cached }),
              'subscriptions/listen'(params, id) {
                  const wanted = params.notifications ?? {};
                  listeners.set(id, wanted);
                  const _meta = { [meta('subscriptionId')]: id };
                  notify('notifications/subscriptions/acknowledged', { _meta, notifications: wanted });
              },
          }
        : {
              initialize(params) {
                  client = params.capabilities ?? {};
                  return { protocolVersion: revision, capabilities, serverInfo: info };
              },
              ping: () => ({}),
              'logging/setLevel'(params) {
                  level = params.level;
                  return {};
              },
              'resources/subscribe'({ uri }) {
                  watched.add(uri);
                  return {};
              },
              'resources/unsubscribe'({ uri }) {
                  watched.delete(uri);
                  return {};
              },
          }),
    'tools/list': () => ({
        tools: Object.entries(tools).map(([key, tool]) => ({
            name: key,
            description: about(key),
            inputSchema: tool.inputSchema ?? { type: 'object', properties: {} },
        })),
        ...cached,
    }),
    'tools/call'(params) {
        const tool = tools[params.name];
        if (!tool) throw fail(-32602, `Unknown tool: ${params.name}`);
        return tool.run({ ...params, arguments: params.arguments ?? {} });
    },
    'prompts/list': () => ({
        prompts: Object.entries(prompts).map(([key, prompt]) => ({
            name: key,
            description: about(key),
            arguments: (prompt.arguments ?? []).map((name) => ({ name, description: `The ${name}`, required: true })),
        })),
        ...cached,
    }),
    'prompts/get'(params) {
        const prompt = prompts[params.name];
        if (!prompt) throw fail(-32602, `Unknown prompt: ${params.name}`);
        return prompt.run(params.arguments ?? {}, params);
    },
    'resources/list': () => ({
        resources: Object.entries(resources).map(([uri, { mimeType }]) => {
            const name = uri.slice('test://'.length);
            return { uri, name, description: about(name), mimeType };
        }),
        ...cached,
    }),
    'resources/templates/list': () => ({
        resourceTemplates: [
            { uriTemplate: template, name: 'template', description: about('template'), mimeType: 'application/json' },
        ],
        ...cached,
    }),
    'resources/read': ({ uri }) => ({ contents: [{ uri, ...read(uri) }], ...cached }),
    'completion/complete'({ argument }) {
        const values = ['paris', 'park', 'party'].filter((word) => word.startsWith(argument.value));
        return { completion: { values, total: values.length, hasMore: false } };
    },
};

async function answer({ id, method, params = {} }) {
    try {
        if (!methods[method]) throw fail(-32601, `Method not found: ${method}`);
        const result = await methods[method](params, id);
        if (result === undefined) return;
        if (modern) {
            result.resultType ??= 'complete';
            result._meta = { ...result._meta, [meta('serverInfo')]: info };
        }
        send({ id, result });
    } catch (error) {
        send({ id, error: { code: error.code ?? -32603, message: error.message, ...(error.data && { data: error.data }) } });
    }
}

for await (const line of createInterface({ input: process.stdin })) {
    if (!line.trim()) continue;
    const message = JSON.parse(line);
    if (message.method === undefined) {
        const question = waiting.get(message.id);
        waiting.delete(message.id);
        if (message.error) question?.reject(fail(-32603, message.error.message));
        else question?.resolve(message.result);
    } else if (message.id !== undefined) {
        answer(message);
    } else if (message.method === 'notifications/cancelled') {
        listeners.delete(message.params?.requestId);
    }
}
