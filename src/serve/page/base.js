"use strict";

// --- small things ---

const $ = (id) => document.getElementById(id);

/** An element: `make("td.right", { role: "cell" }, "text", child)`. Text is never read as markup. */
function make(kind, attributes = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function makeButton(kind, label, act) {
  const button = make(`button.${kind}`, { type: "button" }, label);
  button.addEventListener("click", act);
  return button;
}

function makeSvg(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function icon(name) {
  const svg = makeSvg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" });
  svg.append(makeSvg("use", { href: `#i-${name}` }));
  return svg;
}

/** Sets what differs: what did not change is not laid out again, and stays selected. */
function set(node, values) {
  for (const [name, value] of Object.entries(values)) if (node[name] !== value) node[name] = value;
}

const write = (node, text) => set(typeof node === "string" ? $(node) : node, { textContent: text });
const hide = (node, hidden) => set(typeof node === "string" ? $(node) : node, { hidden });

/** Keeps as many rows as there are values, and fills each in place. */
function fill(list, values, build) {
  const made = (list.made ??= []);
  while (made.length < values.length) {
    made.push(build());
    list.append(made.at(-1).node);
  }
  made.forEach((row, at) => {
    hide(row.node, at >= values.length);
    if (at < values.length) row.show(values[at]);
  });
}

const ANSI = /\u001b\[[0-9;?]*[ -/]*[@-~]/g;
// Control characters, those that turn the direction of text, and those that show nothing: a description may carry words for
// the model that its user should not see.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\u{e0000}-\u{e0fff}]+/gu;

/** What somebody else wrote: with what would be invisible made visible, and of a bounded length. */
function said(value, most = 80) {
  const text = String(value ?? "").slice(0, most * 4).replace(UNSEEN, (run) => {
    const count = [...run].length;
    return count > 1 ? `⟨${count} hidden characters⟩` : `⟨U+${run.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
  return text.length > most ? text.slice(0, most) + "…" : text;
}

const whole = (n) => String(Math.round(Number(n) || 0)).replace(/\B(?=(\d{3})+$)/g, ",");
const plural = (n, one) => `${whole(n)} ${one}${n === 1 ? "" : "s"}`;
const short = (n) => (n >= 100 ? whole(n) : n.toFixed(1).replace(/\.0$/, ""));

function bytes(n) {
  if (!(n >= 1000)) return `${whole(n)} B`;
  return n < 1e6 ? `${short(n / 1e3)} kB` : n < 1e9 ? `${short(n / 1e6)} MB` : `${short(n / 1e9)} GB`;
}

function micros(us) {
  if (!(us >= 1000)) return `${whole(us)} µs`;
  return us < 1e6 ? `${short(us / 1e3)} ms` : us < 60e6 ? `${short(us / 1e6)} s` : seconds(us / 1e6);
}

function seconds(given) {
  const s = Math.max(0, Math.floor(Number(given) || 0));
  const [d, h, m] = [Math.floor(s / 86400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60];
  return d ? `${d} d ${h} h` : h ? `${h} h ${m} min` : m > 9 ? `${m} min` : m ? `${m} min ${s % 60} s` : `${s} s`;
}

const MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");
/** The clock of all views: the time, of another day with its date. */
function clock(at, withSeconds = false) {
  const date = new Date(at);
  if (at == null || isNaN(date)) return "";
  const time = [date.getHours(), date.getMinutes(), ...(withSeconds ? [date.getSeconds()] : [])].map((n) => String(n).padStart(2, "0")).join(":");
  return date.toDateString() === new Date().toDateString() ? time : `${date.getDate()} ${MONTHS[date.getMonth()]} ${time}`;
}
/** Text that is JSON, set out in lines. */
function readable(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}
const still = matchMedia("(prefers-reduced-motion: reduce)");

/** Tells a screen reader, one message after the other. */
function speak(text) {
  const waiting = (speak.waiting ??= []);
  if (waiting.length < 4) waiting.push(text);
  speak.timer ||= setTimeout(function next() {
    $("spoken").textContent = waiting.shift();
    speak.timer = waiting.length ? setTimeout(next, 1500) : 0;
  }, 100);
}

// --- the token and the way to the server ---

const KEPT_TOKEN = "nonet-token";
const KEPT_GATEWAY = "nonet-gateway";
const SILENT = "Nonet does not answer.";
let token = "";
/** Who has signed in with this browser, where people do: their name, role, and what goes with each order. */
let user = null;
/** The gateway that is shown, by its id: empty for the one that serves the page, null before anybody has chosen. */
let gateway = null;
try { gateway = sessionStorage.getItem(KEPT_GATEWAY); } catch {}

class Refused extends Error {}

/** The token in a link. */
function tokenIn(text) {
  const given = /[#&?]token=([^&#\s]*)/.exec(text)?.[1] ?? "";
  try { return decodeURIComponent(given); } catch { return given; }
}

/** Takes the token out of the address bar: it is not for the history, nor for a link that is passed on. */
function takeToken() {
  const given = tokenIn(location.hash);
  if (given) history.replaceState(null, "", location.pathname + location.search);
  if (given) keepToken(given);
  // Where there is no storage, the token lives as long as the page.
  else try { token ||= sessionStorage.getItem(KEPT_TOKEN) ?? ""; } catch {}
  return given !== "";
}

function keepToken(given) {
  token = given.replace(/[^\x21-\x7e]/g, "");
  try { sessionStorage.setItem(KEPT_TOKEN, token); } catch {}
}

function keepGateway(id, why = "") {
  try {
    sessionStorage.setItem(KEPT_GATEWAY, id);
    sessionStorage.setItem(`${KEPT_GATEWAY}-why`, why);
  } catch {}
}

/** Whether a choice survives a reload of the page. */
function canKeepGateway() {
  try { sessionStorage.setItem(`${KEPT_GATEWAY}-why`, ""); return true; } catch { return false; }
}

/** Asks the gateway that is shown; `here`: the one that serves the page. */
async function api(path, { here = false, ...options } = {}) {
  const sent = token;
  const headers = user ? { "X-Nonet-Csrf": user.csrf ?? "" } : { "X-Nonet-Token": sent, ...(gateway && !here ? { "X-Nonet-Gateway": gateway } : {}) };
  const answer = await fetch(`/ui/api/${path}`, { ...options, cache: "no-store", credentials: user ? "same-origin" : "omit", redirect: "error", headers });
  if (user && answer.status === 401) {
    user = null;
    signIn();
    throw new Refused();
  }
  if (answer.status === 410 && gateway) chooseGateway("", "The gateway shown here has ended.");
  if (answer.status === 401 || (answer.status === 403 && !user && !(gateway && !here))) {
    if (sent === token) closeGate("Nonet does not accept this tab's token. Nonet may have restarted: each start has a new link, which `nonet ui` opens.");
    throw new Refused();
  }
  if (!answer.ok) {
    const told = await answer.json().catch(() => null);
    throw Object.assign(new Error(said(told?.error?.message ?? `Nonet answered ${answer.status}.`, 1000)), { faults: told?.error?.faults });
  }
  return answer;
}

/** What went wrong with a request, for a person. */
const reason = (error) => (error instanceof TypeError || error.name === "AbortError" ? SILENT : error.message);

function closeGate(why) {
  keepToken("");
  stop();
  write("gate-why", why);
  write("gate-place", location.origin + location.pathname);
  hide("gate", false);
  hide("live", true);
  hide("views", true);
  hide("offline", true);
  showSummary([], "Not connected");
  $("gate-title").focus();
}

const KEPT_SIGN_IN = "nonet-sign-in";

/** Goes to sign in, unless it has just come from there: then a browser keeps no cookies, and would go in circles. */
function signIn() {
  let last = 0;
  try { last = Number(sessionStorage.getItem(KEPT_SIGN_IN)); sessionStorage.setItem(KEPT_SIGN_IN, Date.now()); } catch {}
  if (Date.now() - last > 30000) return location.assign("/ui/login?to=/ui");
  closeGate("This browser has signed in, but Nonet does not know it. It may refuse cookies.");
}

/** Looks who has signed in with this browser. Returns whether the page may open; where people sign in, sends others to it. */
async function knowsUser() {
  const answer = await fetch("/ui/api/user", { cache: "no-store", credentials: "same-origin", redirect: "error" }).catch(() => null);
  const told = await answer?.json().catch(() => null);
  if (told?.error?.sign_in) return signIn(), false;
  if (answer?.status === 403) return closeGate(said(told?.error?.message, 300)), hide("gate-people", false), false;
  user = answer?.ok ? told : null;
  if (!user) return true;
  gateway = "";
  write("user-name", `${said(user.name)} (${user.role})`);
  $("user-csrf").value = user.csrf ?? "";
  hide("user-part", false);
  document.body.dataset.role = user.role;
  return true;
}

async function openGate() {
  if (!token && !user && !(await knowsUser())) return;
  if (!token && !user) return closeGate("The link carries a token, so that no other page and no other user of this machine can read your calls or stop your servers.");
  hide("gate", true);
  hide("live", false);
  hide("views", false);
  running = true;
  showView();
  poll();
  follow();
  if (!user) loadGateways();
}

function stop() {
  running = false;
  clearTimeout(polling.timer);
  clearTimeout(gateways.timer);
  polling.abort?.abort();
  unfollow();
}

$("gate-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = $("gate-token").value.trim();
  $("gate-token").value = "";
  keepToken(tokenIn(given) || given);
  openGate();
});
// A new link pasted into this tab changes the fragment alone, and loads nothing.
addEventListener("hashchange", () => {
  if (takeToken()) {
    stop();
    openGate();
  } else showView();
});

// --- the views ---

/** What a view does when it is opened and, while it is open, with each state. */
const views = new Map([["live", {}], ["servers", {}], ["clients", {}], ["work", {}], ["setup", {}]]);
let view = "live";
/** Whether somebody has chosen a view. */
let isChosen = false;

/** The view that the address names as `#/servers`; the one that is open if it names none. */
function showView() {
  const named = location.hash.slice(2);
  const before = view;
  if (views.has(named)) [view, isChosen] = [named, true];
  if (view !== before || !showView.done) foldWaits(view !== "live");
  showView.done = true;
  for (const name of views.keys()) hide(`view-${name}`, name !== view);
  for (const link of $("views").children) {
    if (link.hash === `#/${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (running) views.get(view).open?.();
}

function goTo(name) {
  if (view === name) return;
  location.hash = `/${name}`;
  showView();
}

// --- the state, every two seconds ---

const EVERY_MS = 2000;
const HIDDEN_MS = 5000;
const MOST_WAIT_MS = 15_000;
const polling = { timer: 0, abort: null, failed: 0 };
let running = false;

async function poll() {
  clearTimeout(polling.timer);
  polling.abort?.abort();
  if (!running) return;
  if (document.hidden) return notifies() ? pollHidden() : undefined;
  const abort = (polling.abort = new AbortController());
  const late = setTimeout(() => abort.abort(), 10_000);
  try {
    const state = await (await api("state", { signal: abort.signal })).json();
    if (polling.abort !== abort) return;
    showState(state);
    showWaiting(await (await api("waiting", { signal: abort.signal })).json());
    if (polling.failed) follow();
    polling.failed = 0;
  } catch (error) {
    if (polling.abort !== abort || error instanceof Refused) return;
    polling.failed += 1;
    if (polling.failed > 1) showSummary([], "Not connected");
    write("offline", `${reason(error)} The page may be out of date; it keeps trying. A gateway without clients ends by itself: \`nonet ui\` starts it again.`);
  } finally {
    clearTimeout(late);
  }
  if (!running) return;
  // One answer that does not come is nothing to alarm anybody with.
  hide("offline", polling.failed < 2);
  $("live").classList.toggle("stale", polling.failed > 1);
  polling.timer = setTimeout(poll, Math.min(EVERY_MS * 2 ** Math.max(0, polling.failed - 1), MOST_WAIT_MS));
}

/** A hidden page asks what waits, if its user wants to be told. */
async function pollHidden() {
  try {
    showWaiting(await (await api("waiting")).json());
  } catch (failure) {
    if (failure instanceof Refused) return;
  }
  if (running && document.hidden) polling.timer = setTimeout(poll, HIDDEN_MS);
}

// A hidden page otherwise asks nothing, and gives its connection back: a browser has six for one origin.
document.addEventListener("visibilitychange", () => {
  if (!running) return;
  poll();
  if (document.hidden) return unfollow();
  follow();
  loadGateways();
});

function showState(state) {
  const servers = state.servers ?? [];
  const wanted = servers.filter((server) => server.state !== "held").length;
  const ready = servers.filter((server) => server.state === "ready").length;
  write("version", said(state.version, 30));
  write("uptime", `up ${seconds(state.uptime_s)}`);
  write("config", said(state.config, 200));
  showSummary(servers, ready === wanted ? `${ready > 1 ? "All " : ""}${plural(ready, "server")} ready` : `${ready} of ${plural(wanted, "server")} ready`);
  document.title = ready === wanted ? "Nonet" : `(${wanted - ready}) Nonet`;
  showSaving(state);
  showFacts(state);
  const off = (state.switched_off ?? []).map((name) => ({ name, state: "disabled" }));
  showServers([...servers, ...off].sort((a, b) => rankOf(a) - rankOf(b) || (a.name < b.name ? -1 : 1)));
  setup.canUndo = state.can_undo_setup;
  // Whoever has no server yet begins with those of their clients.
  const isEmpty = !servers.length && !off.length;
  document.body.classList.toggle("no-servers", isEmpty);
  if (isEmpty && !isChosen) goTo("setup");
  isChosen = true;
  showOutcomes(state.outcomes ?? {});
  showClients(state.clients ?? []);
  views.get(view).show?.(state);
}

/** Each state's icon and words; its class gives the colour. */
const STATES = new Map(Object.entries({
  ready: ["ready", "ready"], starting: ["starting", "starting"], down: ["down", "down"], auth_required: ["key", "sign-in needed"],
  needs_config: ["key", "needs configuration"],
  stopped: ["stopped", "stopped"], disabled: ["disabled", "disabled"], held: ["stopped", "stopped until restart"], running: ["running", "running"],
  completed: ["ready", "completed"], failed: ["down", "failed"], cancelled: ["stopped", "cancelled"], lost: ["lost", "lost"],
}));
const stateWords = (state) => STATES.get(state)?.[1] ?? said(state, 30);

function stateMark(node, state) {
  if (node.state === state) return node;
  node.state = state;
  node.className = `state ${STATES.has(state) ? state : ""}`;
  node.replaceChildren(icon(STATES.get(state)?.[0] ?? "lost"), make("span", {}, stateWords(state)));
  return node;
}

/** Those that need somebody come first. */
const rankOf = ({ state }) => (["down", "auth_required", "needs_config"].includes(state) ? 0 : 1);

/** How many are ready, and a way to each server that needs somebody. */
function showSummary(servers, words) {
  write("ready", words);
  const trouble = servers.filter((server) => rankOf(server) === 0).slice(0, 5);
  const key = JSON.stringify(trouble.map(({ name, state }) => [name, state]));
  if (showSummary.shown === key) return;
  showSummary.shown = key;
  $("trouble").replaceChildren(...trouble.map(({ name, state }) => {
    const button = makeButton("chip", "", () => {
      goTo("servers");
      rows.get(name)?.open();
    });
    button.append(make("span.said", {}, said(name, 40)), " ", stateMark(make("span"), state));
    return button;
  }));
}

/** What clients were spared so far; at first, what they will be. */
function showSaving({ saving, tools }) {
  if (!saving) return;
  const { bytes_of_all_tools: all, bytes_of_the_nine: nine, spared } = saving;
  const key = `${all} ${tools} ${JSON.stringify(spared)}`;
  if (showSaving.shown === key) return;
  showSaving.shown = key;
  const strong = (text) => make("strong", {}, text);
  const tokens = (spared.definitions + spared.results) / 4;
  const repaired = spared.repaired ? [" Nonet repaired ", strong(plural(spared.repaired, "call")), " that would have failed."] : [];
  const parts = Object.entries({ definitions: spared.definitions, results: spared.results }).filter(([, bytes]) => bytes >= 4);
  const told = parts.map(([of, bytes]) => (parts.length > 1 ? `${whole(bytes / 4)} of ${of}` : `of ${of}`)).join(", ");
  $("sentence").replaceChildren(...(tokens >= 1
    ? ["Your clients were spared ", strong(`${whole(tokens)} tokens`), ` since Nonet started: ${told}.`]
    : all > nine
      ? ["Each client will read ", strong(whole(nine / 4)), " tokens of definitions in the place of ", strong(whole(all / 4)), "."]
      : tools ? [strong(plural(tools, "tool")), " within reach. Nonet pays with more servers."] : ["Nonet has no server yet."]), ...repaired);
  hide("saving-part", !(all > nine));
  $("saving-bar").style.width = `${Math.min(100, (100 * nine) / Math.max(all, 1))}%`;
  write("saving-nine", `each client reads ${bytes(nine)}`);
  write("saving-all", `every definition: ${bytes(all)} (a token: 4 bytes)`);
}

function showFacts({ calls, failures, clients, tools, search = {}, latency = {} }) {
  write("fact-calls", whole(calls));
  write("fact-failures", failures ? `${whole(failures)} failed` : "none failed");
  // A mean would tell of the few calls that waited for somebody.
  write("fact-gateway", latency.gateway ? micros(latency.gateway.p50_us) : "–");
  write("fact-server", latency.server ? `median; at servers ${micros(latency.server.p50_us)}` : "to a call, median");
  write("fact-search", search.by_meaning ? "by meaning" : "by words");
  write("fact-indexed", search.indexed < search.of ? `${whole(search.indexed)} of ${whole(search.of)} texts indexed` : "everything is indexed");
  write("fact-clients", whole(clients?.length));
  write("fact-tools", `sharing ${plural(tools, "tool")}`);
}
