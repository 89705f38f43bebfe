// Compares the suite's findings with the expected ones.
//
//   node compare.mjs scenarios SUITE REVISION EXPECTED    the client scenarios of a revision that are to be run
//   node compare.mjs await ADDRESS TOOL                   until the gateway at this address lists the tool
//   node compare.mjs results FOLDER EXPECTED              reads FOLDER/REVISION/ROLE/SUITE/SCENARIO-TIME/checks.json
import { execFileSync } from 'node:child_process';
import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';

/** Client scenarios that are not required by the revisions, and passed. */
const MORE = [
    'json-schema-2020-12-preservation',
    'auth/client-credentials-basic',
    ...['no-prefetch', 'verify-digest', 'verify-size', 'verify-frontmatter'].map((what) => `sep-2640-client-${what}`),
];

/** The lines of the file of expectations. */
function expectations(file) {
    const lines = readFileSync(file, 'utf8').split('\n');
    return lines.flatMap((line, n) => {
        if (!line.trim() || line.startsWith('#')) return [];
        const parts = /^(fails|skip) (\S+) (server|client) (\S+): (.+)$/.exec(line);
        if (!parts) throw new Error(`expected.txt:${n + 1}: no expectation: ${line}`);
        const [, verb, revision, role, what, reason] = parts;
        return [{ verb, revision, role, what, reason, line: n + 1, used: false }];
    });
}

/** `*` stands for anything. */
const fits = (pattern, text) =>
    new RegExp(`^${pattern.split('*').map((part) => part.replace(/[.+?^${}()|[\]\\]/g, '\\$&')).join('.*')}$`).test(text);

function scenarios(suite, revision, file) {
    const skipped = expectations(file).filter(({ verb, role }) => verb === 'skip' && role === 'client');
    const listed = execFileSync('node', [suite, 'list', '--requirements', revision], { encoding: 'utf8' });
    const [, clients] = listed.split(/^Client scenarios.*$/m);
    const required = [...clients.split(/^\S/m)[0].matchAll(/^ +- (\S+)/gm)].map(([, scenario]) => scenario);
    for (const scenario of new Set([...required, ...MORE])) {
        if (!skipped.some((entry) => fits(entry.revision, revision) && fits(entry.what, scenario))) console.log(scenario);
    }
}

async function until(address, tool) {
    const method = 'tools/list';
    const revision = '2026-07-28';
    const meta = (name) => `io.modelcontextprotocol/${name}`;
    const _meta = { [meta('protocolVersion')]: revision, [meta('clientCapabilities')]: {} };
    const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method, params: { _meta } });
    const headers = {
        'Content-Type': 'application/json',
        Accept: 'application/json, text/event-stream',
        'MCP-Protocol-Version': revision,
        'Mcp-Method': method,
    };
    for (let attempt = 0; attempt < 150; attempt += 1) {
        const answer = await fetch(address, { method: 'POST', headers, body }).then((reply) => reply.text(), String);
        if (answer.includes(`"${tool}"`)) return;
        await new Promise((done) => setTimeout(done, 200));
    }
    throw new Error(`${tool} is not listed at ${address}`);
}

const folders = (path) => readdirSync(path, { withFileTypes: true }).filter((entry) => entry.isDirectory());

/** Every result of a check: `{revision, role, suite, scenario, id, status, why}`. */
function* checks(root) {
    for (const { name: revision } of folders(root)) {
        for (const { name: role } of folders(join(root, revision))) {
            for (const { name: suite } of folders(join(root, revision, role))) {
                const path = join(root, revision, role, suite);
                for (const name of readdirSync(path, { recursive: true }).filter((name) => name.endsWith('checks.json'))) {
                    const folder = name.replace(/-\d{4}-\d\d-\d\dT[^/]*\/checks\.json$/, '');
                    const scenario = role === 'server' ? folder.replace(/^server-/, '') : folder;
                    for (const check of JSON.parse(readFileSync(join(path, name), 'utf8'))) {
                        yield { revision, role, suite, scenario, id: check.id, status: check.status, why: check.errorMessage ?? '' };
                    }
                }
            }
        }
    }
}

function results(root, file) {
    const expected = expectations(file);
    const counts = new Map();
    const surprises = [];
    for (const check of checks(root)) {
        const group = `${check.revision} ${check.role} ${check.suite}`;
        const count = counts.get(group) ?? { scenarios: new Map(), passed: 0, failed: 0 };
        counts.set(group, count);
        const failed = check.status === 'FAILURE' || check.status === 'WARNING';
        if (failed) count.failed += 1;
        if (check.status === 'SUCCESS') count.passed += 1;
        count.scenarios.set(check.scenario, (count.scenarios.get(check.scenario) ?? true) && !failed);
        if (!failed) continue;
        const fitting = expected.filter(
            ({ verb, revision, role, what }) =>
                verb === 'fails' &&
                fits(revision, check.revision) &&
                role === check.role &&
                (fits(what, check.scenario) || fits(what, `${check.scenario}:${check.id}`)),
        );
        for (const entry of fitting) entry.used = true;
        if (fitting.length === 0) surprises.push(`unexpected failure: ${group} ${check.scenario}:${check.id}: ${check.why}`);
    }
    for (const [group, { scenarios, passed, failed }] of counts) {
        const whole = [...scenarios.values()].filter((good) => good).length;
        console.log(`${group}: ${whole} of ${scenarios.size} scenarios, ${passed} of ${passed + failed} checks`);
    }
    for (const { verb, used, revision, role, what, line } of expected) {
        if (verb === 'fails' && !used) surprises.push(`unexpected success: expected.txt:${line}: ${revision} ${role} ${what} does not fail any more`);
    }
    if (counts.size === 0) surprises.push(`no results in ${root}`);
    for (const surprise of surprises) console.error(surprise);
    if (surprises.length > 0) process.exit(1);
    console.log(`as expected; ${expected.filter(({ verb }) => verb === 'fails').length} lines of expected failures`);
}

const [command, ...given] = process.argv.slice(2);
await { scenarios, results, await: until }[command](...given);
