// Drives the live page of a running gateway in Chromium.
//
//     page.mjs LINK CHROMIUM                      checks it; exits with 1 when a check fails
//     page.mjs LINK CHROMIUM --pictures FOLDER    VIEW-WIDTH-THEME.png of each view, at three widths and in both themes
//     page.mjs LINK CHROMIUM --times              first contentful paint beside that of an empty page, and from a key to a new list
//
// LINK is the page's address with its token. playwright-core and axe-core are in $NONET_REAL/node. The gateway has the servers of
// `page.rs`: `weather` is down, `time.get_current_time` takes 30 ms and answers with the id of its process, `time.convert_time`
// fails, `git.git_show` hangs, `memory.read_graph` answers with more than a client gets at once, and
// `filesystem.list_allowed_directories` asks a question. Starts the browser, and a second gateway over stdio from the program $NONET.

import assert from "node:assert/strict";
import fs from "node:fs";
import http from "node:http";
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import path from "node:path";

const require = createRequire(path.join(process.env.NONET_REAL, "node", "here.js"));
const { chromium } = require("playwright-core");
const axe = require("axe-core").source;

const [link, executablePath, option, folder] = process.argv.slice(2);
const { origin } = new URL(link);
const PATIENCE_MS = 120_000;

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** Looks until there is something. */
async function until(what, look) {
  const end = Date.now() + PATIENCE_MS;
  for (;;) {
    const found = await look();
    if (found) return found;
    assert(Date.now() < end, `this did not happen: ${what}`);
    await pause(30);
  }
}

// --- a client of the gateway ---

/** Shakes hands; the function it gives calls a tool and answers with the JSON of the result's text. */
async function client(name) {
  let [session, id] = ["", 0];
  async function post(method, params) {
    const headers = { "content-type": "application/json", accept: "application/json, text/event-stream" };
    if (session) Object.assign(headers, { "mcp-session-id": session, "mcp-protocol-version": "2025-06-18" });
    const message = { jsonrpc: "2.0", method, params, ...(method.startsWith("notifications/") ? {} : { id: ++id }) };
    const answer = await fetch(`${origin}/mcp`, { method: "POST", headers, body: JSON.stringify(message) });
    session ||= answer.headers.get("mcp-session-id");
    const text = await answer.text();
    const messages = text.startsWith("{") ? [text] : [...text.matchAll(/^data: ?(\{.*)$/gm)].map(([, data]) => data);
    return messages.map(JSON.parse).find((one) => "result" in one)?.result;
  }
  await post("initialize", { protocolVersion: "2025-06-18", capabilities: {}, clientInfo: { name, version: "1" } });
  await post("notifications/initialized", {});
  await post("tools/list", {});
  async function ask(name, given) {
    const result = await post("tools/call", { name, arguments: given });
    try { return JSON.parse(result.content[0].text); } catch { return result; }
  }
  return Object.assign((tool, params) => ask("execute_tool", { name: tool, params }), { ask });
}

/** Leaves work of each kind. */
async function leaveWork(call) {
  await call("gateway.background_run", { name: "git.git_show", params: { repo_path: "/srv/shop", revision: "main" } });
  await call("gateway.watch_start", { name: "time.get_current_time", params: { timezone: "Asia/Tokyo" }, interval: 600, label: "The time in Tokyo" });
  await call("gateway.remind", { when: "in 2h", message: "Ask for the review of the release notes" });
  await call("gateway.remember", { content: "The release goes out on the first Tuesday of a month", tags: ["release"] });
  await call("gateway.remember", { content: "The till of the shop speaks UTC", tags: ["shop"] });
  await call("memory.read_graph", {});
}

/** Asks the gateway as the page does. */
const askPage = async (path, method = "GET", body) => (await fetch(`${origin}/ui/api/${path}`, { method, body, headers: { "X-Nonet-Token": link.split("token=")[1] } })).text();

/** Lets the server `notion` change what one of its tools says, as its program would after an update. */
async function changeDefinition() {
  const folder = path.dirname(JSON.parse(await askPage("state")).config);
  const file = path.join(folder, "notion.json");
  const script = JSON.parse(fs.readFileSync(file, "utf8"));
  script.tools[0].description = `${script.tools[0].description} Sends a copy to archive.example first.`;
  fs.writeFileSync(file, JSON.stringify(script));
  await askPage("servers/notion/restart", "POST");
  await until("its change waits", async () => JSON.parse(await askPage("waiting")).definitions?.length);
  return `notion.${script.tools[0].name}`;
}

/** Starts a gateway without servers, on a machine with two clients. Gives its link, its folder, and what ends it. */
async function firstRun() {
  const folder = path.dirname(JSON.parse(await askPage("state")).config);
  const home = path.join(folder, "home");
  const text = fs.readFileSync(path.join(folder, "servers.toml"), "utf8");
  const [, command, script] = /command = "(.*)"\nargs = \["--script-file", "(.*memory.json)"\]/.exec(text);
  const server = (name) => ({ command, args: ["--script-file", script.replace("memory", name)] });
  const write = (file, mcpServers) => {
    fs.mkdirSync(path.dirname(path.join(home, file)), { recursive: true });
    fs.writeFileSync(path.join(home, file), `${JSON.stringify({ mcpServers }, null, 2)}\n`);
  };
  write(".cursor/mcp.json", { git: server("git"), time: server("time"), weather: server("weather") });
  write(".codeium/windsurf/mcp_config.json", { memory: server("memory"), git: server("git") });
  fs.writeFileSync(path.join(home, "servers.toml"), "");
  const environment = { ...process.env, HOME: home };
  delete environment.XDG_STATE_HOME;
  const gateway = spawn(process.env.NONET, ["--config", path.join(home, "servers.toml"), "ui", "--here", "--no-browser"], { env: environment, stdio: ["ignore", "pipe", "ignore"] });
  let printed = "";
  gateway.stdout.on("data", (text) => { printed += text; });
  const at = await until("the link is printed", () => /http:\S+/.exec(printed)?.[0]);
  return { at, home, end: () => gateway.kill("SIGINT") };
}

// --- the browser ---

const browser = await chromium.launch({ executablePath });

/** A page with nobody's cookies. `faults` gets what goes wrong on it, `asked` each address it asks for. */
async function open(address, look = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, reducedMotion: "reduce", ...look });
  const page = await context.newPage();
  const [faults, asked] = [[], []];
  page.on("console", (said) => { if (["error", "warning"].includes(said.type())) faults.push(said.text()); });
  page.on("pageerror", (error) => faults.push(String(error)));
  context.on("request", (request) => asked.push(request.url()));
  await page.addInitScript(() => addEventListener("securitypolicyviolation", (event) => console.error(`CSP: ${event.violatedDirective} ${event.blockedURI}`)));
  page.setDefaultTimeout(PATIENCE_MS);
  await page.goto(address);
  return { page, faults, asked };
}

const VIEWS = ["live", "servers", "clients", "work", "setup"];
const LOOKS = [[1440, 900], [1024, 900], [360, 760]].flatMap(([width, height]) => ["light", "dark"].map((colorScheme) => ({ width, height, colorScheme })));

/** Takes a picture of what is shown. */
async function picture(page, name, { width, colorScheme }) {
  await page.evaluate(() => { document.activeElement.blur(); scrollTo(0, 0); });
  await pause(300);
  await page.screenshot({ path: path.join(folder, `${name}-${width}-${colorScheme}.png`) });
}

if (option === "--pictures") {
  const call = await client("claude-desktop");
  await leaveWork(call);
  for (let count = 0; count < 12; count++) {
    await call("time.get_current_time", { timezone: "Asia/Tokyo" });
    if (count % 3 === 0) await call("filesystem.read_text_file", { path: `notes/${count}.md` });
    if (count % 4 === 0) await call("github.search_issues", { q: "is:open label:bug" });
    if (count % 6 === 0) await call("time.convert_time", { source_timezone: "UTC", time: "12:00", target_timezone: "Mars/Olympus" });
  }
  for (const look of LOOKS) {
    const { page } = await open(link, { ...look, viewport: look });
    await until("calls are shown", () => page.locator(".call:visible").count());
    await page.locator("#query").fill("read a file");
    await until("something is found", () => page.locator(".hit:visible").count());
    await page.keyboard.press("ArrowDown");
    await until("the rate is drawn", () => page.locator(".rate .all").count());
    for (const view of ["live", "servers", "clients", "work"]) {
      await page.locator(`#views a[href="#/${view}"]`).click();
      if (view === "work") await until("work is shown", () => page.locator("#work-fact .rows li").count());
      await picture(page, view, look);
    }
    await page.locator('#views a[href="#/live"]').click();
    await page.locator(".call .tool", { hasText: "filesystem.read_text_file" }).first().click();
    await page.locator(".about-call pre").first().waitFor();
    await page.locator("#calls").evaluate((list) => { list.scrollTop = list.querySelector("[aria-expanded=true]").offsetTop - 20; });
    await page.locator("#calls-section").scrollIntoViewIfNeeded();
    await page.evaluate(() => document.activeElement.blur());
    await page.locator("#calls-section").screenshot({ path: path.join(folder, `call-${look.width}-${look.colorScheme}.png`) });
    await page.context().close();
  }
  await changeDefinition();
  await call("memory.delete_entities", { entityNames: ["the old till"] });
  await call.ask("ask_user", { question: "When do we ship?", choices: ["today", "tomorrow", "next week"] });
  for (const look of LOOKS) {
    const { page } = await open(link, { ...look, viewport: look });
    await until("all of it waits", async () => (await page.locator("#waits-list > li").count()) === 3);
    await picture(page, "waiting", look);
    await page.context().close();
  }
  const first = await firstRun();
  for (const look of LOOKS) {
    const { page } = await open(first.at, { ...look, viewport: look });
    await page.getByRole("button", { name: /^Take over/ }).waitFor();
    await picture(page, "first-run", look);
    await page.context().close();
  }
  first.end();
  await browser.close();
  process.exit();
}

if (option === "--times") {
  const spread = (times) => {
    const sorted = times.toSorted((a, b) => a - b);
    return `min ${sorted[0].toFixed(0)}, p50 ${sorted[sorted.length >> 1].toFixed(0)}, max ${sorted.at(-1).toFixed(0)} ms of ${sorted.length}`;
  };
  const empty = http.createServer((_, answer) => answer.setHeader("content-type", "text/html").end("<!doctype html><title>x</title><p>hello</p>"));
  await new Promise((done) => empty.listen(0, "127.0.0.1", done));
  const paints = { empty: [], nonet: [] };
  for (let count = 0; count < 12; count++) {
    for (const [name, address] of [["empty", `http://127.0.0.1:${empty.address().port}/`], ["nonet", link]]) {
      const { page } = await open(address);
      paints[name].push(await until("something is painted", () => page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime)));
      await page.context().close();
    }
  }
  empty.close();
  const { page } = await open(link);
  await until("everything is indexed", async () => (await page.locator("#fact-indexed").textContent()) === "everything is indexed");
  await page.evaluate(() => {
    globalThis.times = [];
    let pressed = 0;
    addEventListener("keydown", () => { pressed = performance.now(); }, true);
    new MutationObserver(() => {
      if (pressed) times.push(performance.now() - pressed);
      pressed = 0;
    }).observe(document.getElementById("results"), { subtree: true, childList: true, attributes: true, characterData: true });
  });
  await page.locator("#query").focus();
  for (const key of "read the contents of a file") {
    await page.keyboard.type(key);
    await pause(250);
  }
  console.log(`first contentful paint, an empty page: ${spread(paints.empty)}`);
  console.log(`first contentful paint, this page: ${spread(paints.nonet)}`);
  console.log(`from a key to a new list: ${spread(await page.evaluate(() => times))}`);
  await browser.close();
  process.exit();
}

const { page, faults, asked } = await open(link);
const call = await client("browser-test");
const { ask } = call;
const text = (selector) => page.locator(selector).textContent();
const focused = (selector) => page.evaluate((selector) => document.activeElement.matches(selector), selector);
const row = (name) => page.locator("#server-table tbody").filter({ has: page.getByRole("rowheader", { name, exact: true, includeHidden: true }) });
const stateOf = (name) => row(name).locator(".state").textContent();
const button = (name) => page.getByRole("button", { name, exact: true });

/** What is in a file of the gateway's home, which is the folder of its configuration. */
const home = async () => path.dirname(await text("#config"));
const toml = async () => fs.readFileSync(path.join(await home(), "servers.toml"), "utf8");

/** Opens the row of a server, in its view. */
async function opened(name) {
  await page.locator("#views a", { hasText: "Servers" }).click();
  const more = row(name).locator("tr.main button.more");
  if ((await more.getAttribute("aria-expanded")) === "false") await more.click();
  return row(name).locator(".details");
}

/** By keyboard, as all of it. A second press within a third of a second is taken for a double click. */
async function pressTwice(label, name) {
  await button(`${label} ${name}`).focus();
  await page.keyboard.press("Enter");
  await until("it asks for a second press", () => focused(`[aria-label="Press again to ${label.toLowerCase()} ${name}"]`));
  await pause(400);
  await page.keyboard.press("Enter");
}

/** Nothing that keeps somebody from reading or using the page, as axe sees it. */
async function accessible(where, on = page) {
  await on.evaluate(axe);
  const { violations } = await on.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const grave = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
  const told = grave.map(({ id, help, nodes }) => `${where}: ${id}, ${help}: ${nodes.map((node) => `${node.target} ${node.failureSummary}`).join("\n  ")}`);
  assert.deepEqual(told, []);
}

/** By Tab through all that is shown. */
async function tabThrough() {
  await page.evaluate(() => {
    globalThis.reached = [];
    // From the top.
    document.body.tabIndex = -1;
    document.body.focus();
    document.body.removeAttribute("tabindex");
  });
  for (let count = 0; count < 200; count++) {
    await page.keyboard.press("Tab");
    const again = await page.evaluate(() => {
      const node = document.activeElement;
      if (node === document.body || globalThis.reached.includes(node)) return true;
      if (getComputedStyle(node).outlineStyle === "none") throw new Error(`no outline: ${node.outerHTML}`);
      globalThis.reached.push(node);
      return false;
    });
    if (again) break;
  }
  const { missing, disorder } = await page.evaluate(() => {
    const { reached } = globalThis;
    const all = [...document.querySelectorAll("a[href], button:not([tabindex='-1']), input, [tabindex='0']")].filter((node) => node.checkVisibility() && node.getClientRects().length);
    const behind = (node, at) => at > 0 && !(reached[at - 1].compareDocumentPosition(node) & Node.DOCUMENT_POSITION_FOLLOWING);
    const tell = (nodes) => nodes.map((node) => node.outerHTML.slice(0, 120));
    return { missing: tell(all.filter((node) => !reached.includes(node))), disorder: tell(reached.filter(behind)) };
  });
  assert.deepEqual([missing, disorder], [[], []]);
}

const CHECKS = {
  async "its first view is small"() {
    await until("servers are shown", () => row("time").count());
    const loaded = await page.evaluate(() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
      .reduce((sum, entry) => sum + entry.transferSize, 0));
    assert(loaded > 10_000 && loaded < 150_000, `${loaded} bytes`);
  },

  async "the token leaves the address bar"() {
    assert.equal(page.url(), `${origin}/ui`);
  },

  async "servers are shown with their state"() {
    for (const name of ["filesystem", "git", "github", "memory", "notion", "time"]) {
      await until(`${name} is ready`, async () => (await stateOf(name)) === "ready");
    }
    await until("the others are counted", async () => (await text("#ready")) === "6 of 7 servers ready");
    assert.equal(await row("git").locator(".tools-count").textContent(), "12");
  },

  async "a server that is down tells why, in its own last words"() {
    await until("weather is down", async () => (await stateOf("weather")) === "down");
    assert.match(await row("weather").locator(".error").textContent(), /exit code 3/);
    await button("weather down").click();
    assert.match(await row("weather").locator(".details").textContent(), /Last error: .*exit code 3/);
    const tail = await row("weather").locator("pre").textContent();
    // A server's output is text, not markup.
    assert(tail.startsWith("reading stations.json\n<img src=//example.com/x onerror=alert(1)>no station answers"), tail);
  },

  async "search as you type shows what is found, and why each ranks"() {
    await until("everything is indexed", async () => (await text("#fact-indexed")) === "everything is indexed");
    assert.equal(await text("#fact-search"), "by meaning");
    await page.keyboard.press("/");
    assert(await focused("#query"), "/ goes to the search");
    await page.keyboard.type("read");
    const before = await until("the first word finds something", async () => (await page.locator(".hit:visible").count()) && text("#found"));
    assert.match(before, /^\d+ tools of \d+; confidence \w+/);
    await page.keyboard.type(" a text file");
    await until("the words count that came later", async () => /text/.test(await text("#hit-0 .because")));
    assert.match(await text("#hit-0 .name"), /^filesystem\.read_/);
    for (const hit of await page.locator(".hit:visible").all()) {
      const why = await hit.locator(".because").textContent();
      assert.match(why, /(meaning|words|letters|learned) \d\.\d\d/);
      assert((await hit.locator(".why i").count()) > 0, why);
    }
    assert.match(await text("#hit-0 .because"), /meaning \d\.\d\d/);
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowDown");
    assert.equal(await page.locator("[aria-selected=true] .name").textContent(), await text("#hit-1 .name"));
    assert.equal(await page.locator("#query").getAttribute("aria-activedescendant"), "hit-1");
  },

  async "a call is shown as it happens, with its times"() {
    await until("the stream is open", async () => (await text("#stream-state")) === "live");
    const before = await page.locator(".call").count();
    await call("time.get_current_time", { timezone: "Asia/Tokyo" });
    await until("the call is there", async () => (await page.locator(".call").count()) === before + 1);
    const shown = page.locator(".call").first();
    assert.equal(await shown.locator(".tool").textContent(), "time.get_current_time");
    const under = await shown.locator(".under").textContent();
    assert.match(under, /^okbrowser-test\d+ B → \d+ BNonet [\d.,]+ (µs|ms), server [\d.]+ ms$/);
    const server = Number(/server ([\d.]+) ms/.exec(under)[1]);
    assert(server >= 30 && server < 5_000, `its server takes 30 ms: ${under}`);
    await call("time.convert_time", { source_timezone: "UTC", time: "12:00", target_timezone: "Mars/Olympus" });
    await until("a failure is there too", async () => (await page.locator(".call .state.bad").allTextContents()).join() === "tool_error");
    await call("time.get_current_time", {});
    await until("so is a call that no tool was called for", async () => /^invalid_paramsbrowser-test\d+ BNonet /.test(await page.locator(".call .under").first().textContent()));
    await until("the client has its name", async () => /browser-test/.test(await text("#clients")));
  },

  async "single keys pause and filter the calls"() {
    await page.keyboard.press("Escape"); // empties the search
    await page.keyboard.press("Escape"); // leaves it
    await page.keyboard.press("p");
    await call("time.get_current_time", { timezone: "UTC" });
    await until("the call waits", async () => (await text("#stream-state")) === "paused, 1 waiting");
    await page.keyboard.press("p");
    await until("it goes on", async () => (await text("#stream-state")) === "live");
    await page.keyboard.press("f");
    await page.keyboard.type("-ok");
    await until("the others go", async () => (await page.locator(".call:visible .tool").allTextContents()).join() === "time.get_current_time,time.convert_time");
    await page.keyboard.press("Escape");
    await page.keyboard.press("Escape");
    await page.keyboard.press("s");
    assert(await focused("#server-table button.more"), "s goes to the servers");
    await page.keyboard.press("?");
    assert(await page.locator("dialog#keys").isVisible(), "? shows the keys");
    await accessible("the keys");
    await page.keyboard.press("Escape");
    assert(!(await page.locator("dialog#keys").isVisible()), "Esc takes them away");
  },

  async "a call opens with everything that is known, and is made again"() {
    await page.keyboard.press("f");
    await page.keyboard.type("convert_time");
    await page.keyboard.press("ArrowDown");
    assert(await focused(".call .tool"), "the arrow goes into the list");
    await page.keyboard.press("Enter");
    const about = await page.locator(".about-call").textContent();
    assert.match(about, /Clientbrowser-test, session \d+Servertime/);
    assert.match(about, /Size.*params \d+ B.*Faultthere is no such zone/);
    const content = page.locator(".about-call .content");
    await until("its params and its result are there", async () => /Params.*Mars\/Olympus.*Result.*there is no such zone/s.test(await content.textContent()));
    await accessible("an open call");
    await pressTwice("Repeat", "time.convert_time");
    await until("it has failed again", async () => /there is no such zone/.test(await content.locator(".output").textContent()));
    await content.getByRole("button", { name: "Copy as nonet call" }).waitFor();
    await page.locator(".call .tool[aria-expanded=true]").focus();
    await page.keyboard.press("Enter");
    assert.equal(await page.locator(".about-call").count(), 0);
    await page.keyboard.press("f");
    await page.keyboard.press("Escape");
    await page.keyboard.press("Escape");
  },

  async "what clients left is seen, opened, ended and forgotten in the view of work"() {
    await leaveWork(call);
    await page.keyboard.press("w");
    assert(await focused("#work-task-title"), "w goes to the work");
    const item = (kind, name) => page.locator(`#work-${kind} li`).filter({ hasText: name });
    const openOne = async (kind, name, part) => {
      await item(kind, name).locator("button.more").focus();
      await page.keyboard.press("Enter");
      await until(`${name} shows ${part}`, async () => (await item(kind, name).locator(".details").textContent()).includes(part));
    };
    const gone = (kind, name) => until(`${name} is gone`, async () => (await item(kind, name).count()) === 0);
    await until("the task is there", () => item("task", "git.git_show").count());
    await openOne("task", "git.git_show", "staterunning");
    await openOne("watch", "The time in Tokyo", "Asia/Tokyo");
    await openOne("schedule", "Ask for the review", "next run");
    await openOne("result", "B · kept", "xxxx");
    const kept = item("result", "B · kept");
    const shown = async () => (await kept.locator(".details pre").textContent()).length;
    const before = await shown();
    await kept.getByRole("button", { name: "Read on" }).click();
    await until("more of it is there", async () => (await shown()) > before + 5_000);
    await openOne("fact", "first Tuesday", "release");
    await accessible("work");
    await tabThrough();
    await pressTwice("Cancel", "git.git_show");
    await until("it is cancelled", async () => (await item("task", "git.git_show").locator(".state").textContent()) === "cancelled");
    await pressTwice("Delete", "git.git_show");
    await gone("task", "git.git_show");
    for (const [label, state] of [["Pause", "paused"], ["Resume", "active"]]) {
      await button(`${label} The time in Tokyo`).focus();
      await page.keyboard.press("Enter");
      await until(`it is ${state}`, async () => (await item("watch", "The time in Tokyo").locator(".state").textContent()) === state);
    }
    await pressTwice("Delete", "The time in Tokyo");
    await gone("watch", "The time in Tokyo");
    await pressTwice("Delete", "Ask for the review of the release notes");
    await gone("schedule", "Ask for the review");
    await page.getByLabel("Find a fact").focus();
    await page.keyboard.type("first Tuesday");
    await until("the best fact is the first", async () => /first Tuesday/.test(await page.locator("#work-fact li").first().textContent()));
    await pressTwice("Delete", "The till of the shop speaks UTC");
    await gone("fact", "The till");
    await page.getByLabel("Find a fact").focus();
    await page.keyboard.press("Escape");
    await until("the other stays", () => item("fact", "first Tuesday").count());
    await page.locator('#views a[href="#/live"]').click();
  },

  async "Tab reaches everything, in the order of the page, and shows where it is"() {
    await tabThrough();
  },

  async "a server is restarted, held and let go"() {
    const process = async () => (await call("time.get_current_time", { timezone: "UTC" })).pid;
    const before = await process();
    assert(before > 0);
    await page.keyboard.press("s");
    await opened("time");
    await pressTwice("Restart", "time");
    await until("another process answers", async () => ![before, undefined].includes(await process()));
    await pressTwice("Stop until restart", "time");
    await until("it is held", async () => (await stateOf("time")) === "stopped until restart");
    const fault = await call("time.get_current_time", { timezone: "UTC" });
    assert.equal(fault.error?.code, "server_down");
    await button("Start time").focus();
    await page.keyboard.press("Enter");
    await until("it is ready again", async () => (await stateOf("time")) === "ready");
    assert((await process()) > 0);
  },

  async "a server is added from a form once it starts"() {
    await page.locator("#views a", { hasText: "Servers" }).click();
    await page.locator("#add-open").click();
    const form = page.getByRole("form", { name: "Add a server" });
    await form.getByText("Program").click();
    await form.getByLabel("Name", { exact: true }).fill("extra");
    await form.getByLabel("Command line").fill("no-such-program-of-nonet --flag");
    await form.getByLabel("Tags").fill("one, two");
    await page.keyboard.press("Enter");
    await until("it tells why it does not start", async () => /no-such-program-of-nonet/.test(await form.locator(".outcome").textContent()));
    assert(!(await toml()).includes("servers.extra"), "nothing is written");
    await accessible("a server that does not start");
    const [, fake, script] = /command = "(.*)"\nargs = \["--script-file", "(.*memory.json)"\]/.exec(await toml());
    await form.getByLabel("Command line").fill(`'${fake}' --script-file '${script}'`);
    await page.keyboard.press("Enter");
    await until("it is added", async () => /Added to servers.toml: extra/.test(await text("#news")));
    await until("it is ready", async () => (await stateOf("extra")) === "ready");
    assert.match(await toml(), /\[servers.extra\]\ncommand = [^\n]*\nargs = [^\n]*\ntags = \["one", "two"\]/);

    await page.locator("#add-open").click();
    await form.getByText("Paste from a README").click();
    const servers = { second: { command: fake, args: ["--script-file", script] }, broken: { command: "no-such-program-of-nonet" } };
    await form.getByLabel("What its README says").fill(JSON.stringify({ mcpServers: servers }));
    await form.getByRole("button", { name: "Start it, then add it" }).click();
    await until("one of them does not start", async () => (await form.locator(".outcome .state.down").count()) === 1);
    await form.getByRole("button", { name: "Add the others" }).click();
    await until("the other is ready", async () => (await row("second").count()) && (await stateOf("second")) === "ready");
    assert(!(await toml()).includes("broken"), "only the other is written");
  },

  async "a server of the registry is found as one types, and added with its values"() {
    const key = { name: "Authorization", value: "Bearer {key}", variables: { key: { description: "Key of the till", isRequired: true, isSecret: true } } };
    const till = { name: "io.github.acme/till", description: "Sells <b>things</b>", version: "1.2.0" };
    const registry = http.createServer(({ url }, answer) => {
      const asked = decodeURIComponent(url);
      till.remotes = [{ type: "streamable-http", url: `http://${registry.address().address}:${registry.address().port}/mcp`, headers: [key] }];
      const found = { server: till, _meta: { "io.modelcontextprotocol.registry/official": { status: "deprecated", statusMessage: "use another", isLatest: true } } };
      const told = /versions\/latest$/.test(asked) ? found : /servers\?.*search=till/.test(asked) ? { servers: [found] } : /servers\?/.test(asked) ? { servers: [] } : null;
      answer.writeHead(told ? 200 : 404, { "content-type": "application/json" }).end(JSON.stringify(told ?? { error: "Server not found" }));
    });
    await new Promise((done) => registry.listen(0, "127.0.0.1", done));
    registry.unref();
    fs.appendFileSync(path.join(await home(), "servers.toml"), `\n[registry]\nurl = "http://127.0.0.1:${registry.address().port}"\n`);
    await page.locator("#views a", { hasText: "Servers" }).click();
    await page.locator("#add-open").click();
    const form = page.getByRole("form", { name: "Add a server" });
    await form.getByText("Registry", { exact: true }).click();
    const words = form.getByLabel("Find servers in the registry");
    const offers = form.getByRole("list", { name: "Servers of the registry" });
    await until("the file is read", async () => {
      await words.fill("");
      await words.pressSequentially("nothing");
      await pause(1500);
      return /has no such server/.test(await offers.textContent());
    });
    await words.fill("");
    await words.pressSequentially("till", { delay: 60 });
    await until("it is found", async () => /1\.2\.0 · remote · Sells <b>things<\/b>/.test(await offers.textContent()));
    await accessible("servers of the registry");
    await offers.getByRole("button", { name: "io.github.acme/till" }).focus();
    await page.keyboard.press("Enter");
    const value = form.getByLabel("key (needed)");
    await until("it asks for the key", async () => value.isVisible());
    assert.equal(await value.getAttribute("type"), "password");
    assert.match(await form.locator(".values").textContent(), /deprecated: use another/);
    assert.equal(await form.locator(".values").getByLabel("Name", { exact: true }).inputValue(), "till");
    await accessible("a server of the registry");
    await value.fill("s3cret-of-the-till");
    await page.keyboard.press("Enter");
    await until("it does not start", async () => (await form.locator(".outcome .state.down").count()) === 1);
    assert(!(await toml()).includes("servers.till"), "nothing is written");
    await form.getByRole("button", { name: "Add without starting" }).click();
    await until("it is added", async () => /Added to servers.toml: till/.test(await text("#news")));
    assert.match(await toml(), /registry = "io.github.acme\/till@1.2.0"/);
    assert(!(await toml()).includes("s3cret-of-the-till"), "the secret is elsewhere");
    await until("it is listed", async () => (await row("till").count()) === 1);
    await opened("till");
    await pressTwice("Remove", "till");
    await until("it is gone", async () => (await row("till").count()) === 0);
    registry.close();
  },

  async "the text of a server is edited, and a fault shows its line"() {
    const details = await opened("extra");
    await button("Edit extra").click();
    const area = details.getByLabel("The lines of extra in servers.toml");
    await until("the text is there", async () => /\[servers.extra\]/.test(await area.inputValue()));
    const before = await area.inputValue();
    await area.fill(`${before.trimEnd()}\ntimeout = "soon"\n`);
    await details.getByRole("button", { name: "Save" }).click();
    await until("the fault is there", async () => /Line \d+: `timeout`: `soon` must be a time/.test(await details.locator(".fault:visible").textContent()));
    assert.equal(await area.evaluate((area) => area.value.slice(area.selectionStart, area.selectionEnd)), 'timeout = "soon"');
    await accessible("a fault in the editor");
    await area.fill(`${before.trimEnd()}\ntimeout = "30s"\n`);
    await details.getByRole("button", { name: "Save" }).click();
    await until("it is saved", async () => /extra is changed/.test(await text("#news")));
    assert((await toml()).includes('timeout = "30s"'));
  },

  async "disabling is kept in the file, and removing too"() {
    await opened("extra");
    await pressTwice("Disable", "extra");
    await until("it is disabled", async () => (await stateOf("extra")) === "disabled");
    assert.match(await toml(), /\[servers.extra\]\nenabled = false/);
    await button("Enable extra").focus();
    await page.keyboard.press("Enter");
    await until("it is ready again", async () => (await stateOf("extra")) === "ready");
    for (const name of ["extra", "second"]) {
      await opened(name);
      await pressTwice("Remove", name);
      await until("it is gone", async () => (await row(name).count()) === 0);
    }
    assert(!/servers.(extra|second)/.test(await toml()));
  },

  async "a tool is looked at and tried"() {
    const details = await opened("time");
    await until("its tools are listed", async () => (await details.locator(".tool-row").count()) === 2);
    await details.getByRole("button", { name: "convert_time" }).click();
    const card = details.locator(".tool-card:visible");
    await card.getByText("Input as JSON Schema").click();
    assert.match(await card.locator("details pre").textContent(), /"source_timezone"/);
    const form = card.getByRole("form", { name: "Try time.convert_time" });
    await form.getByRole("button", { name: "Call it" }).click();
    assert.match(await form.getByRole("status").textContent(), /source_timezone is required/);
    for (const [param, value] of [["source_timezone", "UTC"], ["time", "12:00"], ["target_timezone", "Mars/Olympus"]]) {
      await form.getByLabel(`${param} required`).fill(value);
    }
    await form.getByRole("button", { name: "Call it" }).click();
    await until("it has answered", async () => /there is no such zone/.test(await form.locator(".output").textContent()));
    await accessible("a tool");
  },

  async "a tool gets a policy, which is kept in the file"() {
    const details = await opened("git");
    await details.getByRole("button", { name: "git_commit" }).click();
    const form = details.getByRole("form", { name: "Policy of git.git_commit" });
    await form.getByLabel("Policy in servers.toml").selectOption("approve");
    await form.getByRole("button", { name: "Save" }).click();
    await until("its tag says so", async () => /asks you first/.test(await details.locator(".tool-row").filter({ hasText: "git_commit" }).locator(".tags").textContent()));
    assert.match(await toml(), /\[servers.git.tools.git_commit\]\npolicy = "approve"/);
    await accessible("a policy");
    await form.getByLabel("Policy in servers.toml").selectOption("");
    await form.getByRole("button", { name: "Save" }).click();
    await until("it is gone", async () => !(await toml()).includes("git_commit"));
  },

  async "a server has a history"() {
    const details = await opened("weather");
    await details.getByText("History: states").click();
    await until("it went down", async () => /down: .*exit code 3/.test(await details.locator(".history").textContent()));
    assert.match(await details.locator(".history").textContent(), /\d\d:\d\d:\d\d reading stations.json/);
    await accessible("a history");
  },

  async "a question of a server that is tried is answered on the page"() {
    const details = await opened("filesystem");
    await details.getByRole("button", { name: "list_allowed_directories" }).click();
    const form = details.getByRole("form", { name: "Try filesystem.list_allowed_directories" });
    await form.getByRole("button", { name: "Call it" }).click();
    const asked = page.locator("#waits-list li").filter({ hasText: "`filesystem` asks: Which folders?" });
    // One line on every view but the first.
    await page.locator("#waits-names").filter({ hasText: "filesystem.list_allowed_directories" }).waitFor();
    await page.locator("#waits-toggle").click();
    await asked.waitFor();
    assert.equal(await asked.getByLabel("Folders").evaluate((select) => select.selectedOptions[0].textContent), "mine");
    await accessible("a question");
    await asked.getByLabel("depth").fill("none");
    await asked.getByRole("button", { name: "Send" }).click();
    await until("what is wrong is shown", async () => /depth is not a number/.test(await asked.locator(".fault").textContent()));
    await asked.getByLabel("depth").fill("3");
    await asked.getByRole("button", { name: "Send" }).click();
    await until("it has answered", async () => /"depth": ?3/.test(await form.locator(".output").textContent()));
    assert.match(await form.locator(".output").textContent(), /"which": ?"mine"/);
  },

  async "a question that a client has put to its user is answered on the page"() {
    const asked = await ask("ask_user", { question: "When do we ship?", choices: ["today", "tomorrow"] });
    await page.locator("#views a", { hasText: "Live" }).click();
    const question = page.locator("#waits-list li").filter({ hasText: "When do we ship?" });
    await question.waitFor();
    assert.match(await question.textContent(), /since \d+ s · ends in (1 h|59 min)/);
    await accessible("a client's question");
    await question.getByRole("button", { name: "tomorrow", exact: true }).click();
    await until("it is gone", async () => (await question.count()) === 0);
    assert.equal((await ask("ask_user", { token: asked.token })).answer, "tomorrow");
  },

  async "the page shows the gateway of another client, until that ends"() {
    const folder = await home();
    const environment = { ...process.env, HOME: folder };
    delete environment.XDG_STATE_HOME;
    const other = spawn(process.env.NONET, ["--config", path.join(folder, "servers.toml")], { env: environment, stdio: ["pipe", "pipe", "ignore"] });
    other.stdout.resume();
    const send = (message) => other.stdin.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);
    send({ id: 1, method: "initialize", params: { protocolVersion: "2025-06-18", capabilities: {}, clientInfo: { name: "an-editor", version: "1" } } });
    send({ method: "notifications/initialized" });
    send({ id: 2, method: "tools/call", params: { name: "list_categories", arguments: {} } });
    const { page } = await open(link);
    const choice = page.getByLabel("Gateway to show");
    const option = choice.locator("option").filter({ hasText: "an-editor" });
    await until("both gateways are there", () => option.count());
    await accessible("two gateways", page);
    await choice.selectOption(await option.getAttribute("value"));
    await until("the other one is shown", async () => /an-editor/.test(await page.locator("#clients").textContent()));
    assert.match(await choice.evaluate((select) => select.selectedOptions[0].textContent), /an-editor/);
    other.stdin.end();
    await until("the page goes back to its own", async () => /has ended/.test(await page.locator("#ended").textContent()));
    await until("it shows its own client", async () => /browser-test/.test(await page.locator("#clients").textContent()));
    await page.context().close();
  },

  async "words that changed are marked, and a definition is trusted or kept blocked"() {
    await page.locator("#views a", { hasText: "Live" }).click();
    const name = await changeDefinition();
    const row = page.locator("#waits-list li").filter({ hasText: name });
    await row.waitFor();
    assert.match(await row.locator(".marked ins").first().textContent(), /archive\.example/);
    assert.match(await row.textContent(), /Calls of it fail until you trust it/);
    await accessible("a changed definition");
    await row.getByRole("button", { name: "Keep blocked" }).click();
    await until("it is out of the way", async () => (await row.count()) === 0);
    await page.locator("#views a", { hasText: "Servers" }).click();
    await page.getByRole("button", { name: "Show 1 definition kept blocked" }).click();
    await page.locator("#views a", { hasText: "Live" }).click();
    await row.getByRole("button", { name: "Trust" }).click();
    await until("it is trusted", async () => (await row.count()) === 0);
    await until("and everywhere", async () => JSON.parse(await askPage("waiting")).definitions.length === 0);
  },

  async "the first run takes over the servers of clients, and gives them back"() {
    const first = await firstRun();
    const { page, faults } = await open(first.at);
    await page.getByRole("heading", { name: "2 clients, 5 servers found" }).waitFor();
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      for (const width of [1280, 360]) {
        await page.setViewportSize({ width, height: 800 });
        await accessible(`the first run, ${colorScheme}, ${width} pixels wide`, page);
        assert((await page.evaluate(() => document.documentElement.scrollWidth)) <= width);
      }
    }
    const before = fs.readFileSync(path.join(first.home, ".cursor/mcp.json"), "utf8");
    await page.getByText(/^Cursor: /).click();
    assert.match(await page.locator("#setup details[open] .plus").allTextContents().then((all) => all.join("")), /"nonet"/);
    // What is not ticked stays where it is.
    await page.locator(".setup-client", { hasText: "Cursor" }).getByLabel("time", { exact: true }).uncheck();
    await page.getByRole("button", { name: "Take over 4 servers" }).click();
    await page.getByRole("heading", { name: "Nonet has taken over" }).waitFor();
    assert.match(await page.locator("#setup").textContent(), /weather stays with Cursor: .*exit code 3/);
    await accessible("after the first run", page);
    const now = Object.keys(JSON.parse(fs.readFileSync(path.join(first.home, ".cursor/mcp.json"), "utf8")).mcpServers);
    assert.deepEqual(now, ["time", "weather", "nonet"]);
    await page.getByRole("button", { name: "Undo the setup" }).click();
    await pause(400);
    await page.getByRole("button", { name: "Press again to undo the setup" }).click();
    await until("it is undone", async () => /Undone/.test(await page.locator("#setup").textContent()));
    assert.equal(fs.readFileSync(path.join(first.home, ".cursor/mcp.json"), "utf8"), before);
    assert.deepEqual(faults, []);
    await page.context().close();
    first.end();
  },

  async "a call that a rule wants approved waits on the page"() {
    const details = await opened("memory");
    await details.getByRole("button", { name: "delete_entities" }).click();
    const form = details.getByRole("form", { name: "Try memory.delete_entities" });
    await form.getByLabel("entityNames").fill('["one"]');
    await form.getByRole("button", { name: "Call it" }).click();
    await form.getByRole("button", { name: /Waiting for you/ }).click();
    const asked = page.locator("#waits-list li").filter({ hasText: "memory.delete_entities" });
    await asked.waitFor();
    assert.match(await asked.textContent(), /ends in 1[45] min.*Without an answer, nothing runs/s);
    const [yes, no] = ["Approve", "Deny"].map((name) => asked.getByRole("button", { name, exact: true }));
    const look = (button) => button.evaluate((button) => getComputedStyle(button).backgroundColor);
    assert.notEqual(await look(yes), await look(no));
    await accessible("an approval");
    await yes.click();
    await until("it has answered", async () => /"pid": \d+/.test(await form.locator(".output").textContent()));
  },

  async "whoever looks elsewhere is told by the system, if they want it"() {
    const { page } = await open(link);
    await page.evaluate(() => {
      globalThis.told = [];
      globalThis.Notification = class {
        static permission = "granted";
        constructor(title) { globalThis.told.push(title); }
      };
      document.hasFocus = () => false;
    });
    const asked = await ask("ask_user", { question: "Does the system tell you?", choices: ["yes", "no"] });
    await until("it is told", () => page.evaluate(() => globalThis.told.some((title) => /Does the system tell you/.test(title))));
    await ask("ask_user", { token: asked.token, answer: "yes" });
    await page.context().close();
  },

  async "Nonet is put into the file of a client and taken out"() {
    const folder = path.join(await home(), ".cursor");
    const file = path.join(folder, "mcp.json");
    const before = '{\n  "mcpServers": {}\n}\n';
    fs.mkdirSync(folder);
    fs.writeFileSync(file, before);
    await page.locator("#views a", { hasText: "Clients" }).click();
    const host = page.locator(".host").filter({ has: page.getByText("Cursor", { exact: true }) });
    await button("Install Nonet in Cursor").click();
    await until("the change is shown", async () => /\+ *"nonet"/.test(await host.locator(".diff").textContent()));
    assert.equal(fs.readFileSync(file, "utf8"), before);
    await accessible("a change of a client's file");
    await host.getByRole("button", { name: "Apply" }).click();
    await until("it is there", async () => (await host.locator(".tag").textContent()) === "uses this Nonet");
    assert.match(fs.readFileSync(file, "utf8"), /"nonet": \{/);
    await button("Entry to copy for Cursor").click();
    assert.match(await host.locator(".entry pre:visible").textContent(), /"mcpServers"/);
    await button("Uninstall Nonet from Cursor").click();
    await host.getByRole("button", { name: "Apply" }).click();
    await until("it is gone", async () => (await host.locator(".tag").textContent()) === "without Nonet");
    assert.equal(fs.readFileSync(file, "utf8"), before);
  },

  async "light and dark are both readable"() {
    await page.keyboard.press("/");
    await page.keyboard.type("read a file");
    await until("something is found", () => page.locator(".hit:visible").count());
    await page.keyboard.press("ArrowDown");
    const paper = {};
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      paper[colorScheme] = await page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
      for (const view of ["Servers", "Clients", "Work", "Set up", "Live"]) {
        await page.locator("#views a", { hasText: view }).click();
        await accessible(`${view}, ${colorScheme}`);
      }
    }
    assert.notEqual(paper.light, paper.dark);
  },

  async "nothing sticks out on a small screen"() {
    for (const wide of [1280, 360]) {
      await page.setViewportSize({ width: wide, height: 740 });
      for (const view of VIEWS) {
        await page.locator(`#views a[href="#/${view}"]`).click();
        const width = await page.evaluate(() => document.documentElement.scrollWidth);
        assert(width <= wide, `${view}: ${width} pixels of ${wide}`);
        await accessible(`${view}, ${wide} pixels wide`);
      }
    }
  },

  async "it asks nobody but its gateway, and nothing goes wrong on it"() {
    assert.deepEqual(asked.filter((url) => !url.startsWith(`${origin}/ui`) && !url.startsWith("data:")), []);
    // Browsers log each refused request, here for the faults in the editor.
    assert.deepEqual(faults.filter((fault) => !/status of 422/.test(fault)), []);
  },

  async "a wrong token shows the way in"() {
    const { page } = await open(`${origin}/ui#token=guess`);
    await page.locator("#gate").waitFor();
    assert(!(await page.locator("#live").isVisible()));
    await accessible("the gate", page);
    await page.locator("#gate-token").fill(link);
    await page.keyboard.press("Enter");
    await page.locator("#live").waitFor();
  },
};

let failed = 0;
for (const [name, check] of Object.entries(CHECKS)) {
  try {
    await check();
    console.log(`ok      ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}\n${error.stack}`);
  }
}
await browser.close();
process.exitCode = failed ? 1 : 0;
