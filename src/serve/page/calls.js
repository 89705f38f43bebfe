// --- calls as they happen ---

const MOST_CALLS = 200;
const ASKED = "needs_approval";
const calls = []; // shown, newest first
const keys = new Set(); // of those shown and those waiting
const outcomesSeen = new Set();
const stream = { abort: null, timer: 0, failed: 0, state: "" };
const filter = $("filter");
let waiting = [];
let paused = false;
let flushing = 0;
let failuresToTell = [];

function unfollow() {
  clearTimeout(stream.timer);
  stream.abort?.abort();
  stream.abort = null;
}

/** Reads the stream until it ends, then again. EventSource would, but cannot send the token in a header. */
async function follow() {
  unfollow();
  if (!running || document.hidden) return;
  const abort = (stream.abort = new AbortController());
  try {
    const reader = (await api("calls", { signal: abort.signal })).body.pipeThrough(new TextDecoderStream()).getReader();
    const opened = performance.now();
    showStreamState("live");
    for (let rest = ""; ;) {
      const { done, value } = await reader.read();
      if (done) break;
      stream.failed = 0;
      const events = (rest + value).split(/\r?\n\r?\n/);
      rest = events.pop();
      if (rest.length > 1e6) break; // an event without an end
      for (const event of events) {
        const data = event.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5)).join("\n");
        if (data) take(data, performance.now() - opened > 1000);
      }
    }
  } catch (error) {
    if (error instanceof Refused) return;
  }
  if (stream.abort !== abort) return;
  abort.abort();
  const wait = Math.min(1000 * 2 ** stream.failed, MOST_WAIT_MS) * (0.8 + 0.4 * Math.random());
  stream.failed += 1;
  showStreamState(`lost; trying again in ${plural(Math.ceil(wait / 1000), "second")}`);
  stream.timer = setTimeout(follow, wait);
}

function showStreamState(state = stream.state) {
  stream.state = state;
  write("stream-state", paused ? `paused, ${waiting.length < MOST_CALLS ? whole(waiting.length) : `${MOST_CALLS} or more`} waiting` : state);
}

/** One event: counted at once, shown with the next frame. */
function take(data, live) {
  let call;
  try { call = JSON.parse(data); } catch { return; }
  if (typeof call?.at !== "number") return;
  // A new connection tells the latest ones again.
  call.key = call.id ?? [call.at, call.session, call.tool, call.outcome, call.bytes_in, call.bytes_out, call.gateway_us, call.server_us].join(" ");
  if (keys.has(call.key)) return;
  keys.add(call.key);
  // What waits for its user has not failed.
  call.failed = !["ok", ASKED].includes(call.outcome);
  call.live = live;
  outcomesSeen.add(call.outcome);
  countInSecond(call);
  waiting.push(call);
  if (waiting.length > MOST_CALLS) keys.delete(waiting.shift().key);
  if (live && call.failed) failuresToTell.push(call);
  if (live && call.server) beat(call.server);
  if (paused) showStreamState();
  else flushing ||= requestAnimationFrame(flush);
}

function flush() {
  flushing = 0;
  const words = wordsWanted();
  for (const call of waiting.sort((a, b) => a.at - b.at)) {
    const older = calls.findIndex((other) => other.at <= call.at);
    const at = older < 0 ? calls.length : older;
    call.node = callItem(call);
    hide(call.node, !matches(call, words));
    $("calls").insertBefore(call.node, calls[at]?.node ?? null);
    calls.splice(at, 0, call);
  }
  waiting = [];
  for (const { node, key } of calls.splice(MOST_CALLS)) {
    node.remove();
    keys.delete(key);
  }
  reachOne();
  showNone();
  showStreamState();
}

function callItem(call) {
  const { at, live, failed, tool, outcome, client, bytes_in, bytes_out, gateway_us = 0, server_us = 0 } = call;
  const when = new Date(Math.min(Math.max(at, 0), 8e15));
  const asked = outcome === ASKED;
  const more = makeButton("tool", "", () => openCall(call, more));
  more.append(make("span.said", {}, said(tool, 120)));
  more.setAttribute("aria-expanded", "false");
  more.tabIndex = -1;
  return make(live ? "li.call.fresh" : "li.call", {},
    make("time.when.small.soft.num", { datetime: when.toISOString() }, clock(call.at, true)), more,
    make("span.took.small.num", {}, micros(gateway_us + server_us)),
    make("div.under.num", {},
      make(`span.state.${failed ? "bad" : asked ? "starting" : "ok"}`, {}, icon(failed ? "down" : asked ? "key" : "ready"), make("span.said", {}, said(outcome, 40))),
      make("span.said", {}, said(client, 40) || "–"),
      make("span", {}, bytes_out == null ? bytes(bytes_in) : `${bytes(bytes_in)} → ${bytes(bytes_out)}`),
      make("span", {}, `Nonet ${micros(gateway_us)}${server_us ? `, server ${micros(server_us)}` : ""}`)));
}

/** Everything that is known of a call. */
function openCall(call, more) {
  const yes = more.getAttribute("aria-expanded") !== "true";
  more.setAttribute("aria-expanded", String(yes));
  if (!yes) return call.node.querySelector(".about-call").remove();
  const within = (call.within ?? []).map((app) => said(app, 60)).join(", ");
  const facts = [
    ["Ended", clock(call.at, true)],
    ["Client", `${said(call.client, 80) || "without a name"}, session ${said(call.session, 20)}${call.profile ? `, profile ${said(call.profile, 40)}` : ""}`],
    ["Server", call.server ? said(call.server, 80) : "none: refused before a server was called"],
    ["Definition", said(call.version, 80)],
    ["Part of", within],
    ["Approved by", { form: "you, in a form", chat: "you, in the chat", session: "you, for the session", page: "you, on this page", command: "you, with nonet approve", webhook: "the webhook" }[call.approver] ?? said(call.approver, 40)],
    ["Time", `${micros(call.gateway_us)} in Nonet${call.server_us ? `, ${micros(call.server_us)} at the server` : ""}`],
    ["Size", `params ${bytes(call.bytes_in)}${call.bytes_out == null ? ", no result" : `, result ${bytes(call.bytes_out)}`}`],
    [call.outcome === ASKED ? "Waits" : "Fault", said(call.fault, 700)],
  ].filter(([, value]) => value);
  const only = (label, words) => makeButton("chip", label, () => { filter.value = words; filterCalls(); });
  const content = make("div.content");
  call.node.append(make("div.about-call", {},
    make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd.said", {}, value)])), content,
    make("div.tools", {}, only("Only this tool", said(call.tool, 120)), only("Only this outcome", said(call.outcome, 40)),
      ...(call.client && !/\s/.test(call.client) ? [only("Only this client", said(call.client, 60))] : []))));
  showContent(call, content);
}

/** The params and the result of a call, and the same call again. */
async function showContent(call, content) {
  const path = `calls/${encodeURIComponent(call.id)}`;
  const text = (label, text, isCut) => [make("h4", {}, label + (isCut ? ", the beginning" : "")), make("pre.said", { tabindex: 0, role: "group", "aria-label": label }, said(text, 70_000))];
  try {
    const { kept, params, result, params_cut, result_cut, command } = await (await api(path)).json();
    const acts = make("div.acts.left");
    const [state, output] = [make("span.small.soft", { role: "status" }), make("pre.said.output", { tabindex: 0, role: "group", "aria-label": "Answer to the same call", hidden: "" })];
    if (command) {
      const name = said(call.tool, 120);
      const again = twice("Repeat", name, async () => {
        write(state, "Calling …");
        setTimeout(poll, 300);
        try {
          const answer = await (await api(`${path}/repeat`, { method: "POST" })).json();
          write(state, answer.failed ? said(answer.code ?? "failed", 30) : "ok");
          write(output, said(answer.text, 70_000) || "(nothing)");
          hide(output, false);
        } catch (failure) {
          if (!(failure instanceof Refused)) write(state, reason(failure));
        }
      });
      const copied = makeButton("", "Copy as nonet call", () => copy(command));
      copied.title = command.includes("***") ? "Secrets are masked: put them back in" : "";
      acts.append(again, copied, state);
    }
    content.replaceChildren(...(params ? text("Params", readable(params), params_cut) : []), ...(result ? text("Result", result, result_cut) : []),
      ...(params || result ? [] : [make("p.small.soft", {}, kept ? "Its params and result are no longer in memory." : "Params and results are not kept: `keep_calls = false` is in [gateway].")]), acts, output);
  } catch (failure) {
    if (!(failure instanceof Refused)) content.replaceChildren(make("p.small.said", {}, reason(failure)));
  }
}

/** One of the calls can be reached by Tab, the others by arrows. */
function reachOne(wanted) {
  const shown = calls.filter((call) => !call.node.hidden).map((call) => call.node.querySelector(".tool"));
  const one = wanted ?? shown.find((button) => button === document.activeElement) ?? shown[0];
  for (const { node } of calls) set(node.querySelector(".tool"), { tabIndex: node.contains(one) ? 0 : -1 });
  return shown;
}

$("calls").addEventListener("keydown", (event) => {
  const button = event.target.closest(".tool");
  const step = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
  if (!button || !step) return;
  event.preventDefault();
  const shown = reachOne(button);
  const next = shown[Math.min(Math.max(shown.indexOf(button) + step, 0), shown.length - 1)];
  reachOne(next);
  next.focus();
});

const wordsWanted = () => filter.value.toLowerCase().split(/\s+/).filter(Boolean);

/** Each word must be there, and none of those with a minus. The word of an outcome means the outcome. */
function matches(call, words) {
  const text = (call.text ??= `${call.tool} ${call.server ?? ""} ${call.outcome} ${call.client}`.toLowerCase());
  return words.every((given) => {
    const without = given.length > 1 && given.startsWith("-");
    const word = without ? given.slice(1) : given;
    return without !== (outcomesSeen.has(word) ? call.outcome === word : text.includes(word));
  });
}

function filterCalls() {
  const words = wordsWanted();
  for (const call of calls) hide(call.node, !matches(call, words));
  reachOne();
  for (const button of $("outcomes").children) button.setAttribute("aria-pressed", String(words.length === 1 && words[0] === button.value));
  showNone();
}

function showNone() {
  const none = calls.every((call) => call.node.hidden);
  hide("no-calls", !none);
  hide("calls", none);
  write("no-calls", calls.length ? "None of the latest calls matches." : "No calls yet. Your clients' calls appear here.");
}

/** A button for each outcome, which filters the calls by it. */
function showOutcomes(outcomes) {
  const entries = Object.entries(outcomes).sort((a, b) => b[1] - a[1]).slice(0, 12);
  for (const [name] of entries) outcomesSeen.add(name);
  const box = $("outcomes");
  const order = entries.map(([name]) => name).join(" ");
  if (showOutcomes.order !== order && !box.contains(document.activeElement)) {
    showOutcomes.order = order;
    box.replaceChildren(...entries.map(([name]) => {
      const button = makeButton("chip", "", () => {
        filter.value = filter.value.trim() === name ? "" : name;
        filterCalls();
      });
      button.value = name;
      return button;
    }));
    filterCalls();
  }
  for (const button of box.children) write(button, `${said(button.value, 40)} ${whole(outcomes[button.value])}`);
}

function pause() {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  speak(paused ? "Calls are paused." : "Calls resume.");
  paused ? showStreamState() : flush();
}

filter.addEventListener("input", filterCalls);
filter.addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown") {
    event.preventDefault();
    return reachOne()[0]?.focus();
  }
  if (event.key !== "Escape") return;
  event.preventDefault();
  emptied(filter, filterCalls);
});
$("pause").addEventListener("click", pause);

// Failures are told aloud, at most every five seconds.
setInterval(() => {
  if (paused || failuresToTell.length === 0) return;
  const [{ tool, outcome }, ...others] = failuresToTell;
  failuresToTell = [];
  speak(others.length ? `${others.length + 1} calls failed, ${said(tool)} among them.` : `${said(tool)} failed: ${said(outcome, 40)}`);
}, 5000);

// --- the last minute, and the nine dots ---

const SECONDS = 60;
const perSecond = new Map();
const bar = (className, at) => $("rate").appendChild(makeSvg("rect", { class: className, x: at * 5, width: 4 }));
const bars = [];

function countInSecond({ at, failed }) {
  const second = Math.floor(at / 1000);
  const sum = perSecond.get(second) ?? { all: 0, failed: 0 };
  sum.all += 1;
  sum.failed += Number(failed);
  perSecond.set(second, sum);
}

function showRate() {
  if (!running || document.hidden) return;
  for (let at = bars.length; at < SECONDS; at++) bars.push({ all: bar("all", at), failed: bar("failed", at) });
  const first = Math.floor(Date.now() / 1000) - SECONDS;
  for (const second of perSecond.keys()) if (second < first) perSecond.delete(second);
  const sums = bars.map((_, at) => perSecond.get(first + at) ?? { all: 0, failed: 0 });
  const most = Math.max(4, ...sums.map((sum) => sum.all));
  const total = { all: 0, failed: 0 };
  sums.forEach((sum, at) => {
    for (const which of ["all", "failed"]) {
      const height = (40 * sum[which]) / most;
      bars[at][which].setAttribute("y", (40 - height).toFixed(1));
      bars[at][which].setAttribute("height", height.toFixed(1));
      total[which] += sum[which];
    }
  });
  write("rate-words", total.all ? `${plural(total.all, "call")} in the last minute, ${total.failed || "none"} failed` : "no calls in the last minute");
}
setInterval(showRate, 1000);

/** Each server has one of the nine dots, which lights up with its calls. */
function beat(server) {
  if (still.matches || document.hidden) return;
  let sum = 0;
  for (const letter of String(server).slice(0, 64)) sum = (sum * 31 + letter.codePointAt(0)) % 9973;
  const dot = $("mark").children[sum % 9];
  const now = performance.now();
  if (now - (dot.lit ?? 0) < 150) return;
  dot.lit = now;
  dot.animate([{ opacity: 1 }, { opacity: 0.5 }], { duration: 700, easing: "ease-out" });
}
