// --- what waits for the user ---

const waits = new Map(); // the shown rows, by what they are about
const KEPT_BLOCKED = "nonet-kept-blocked";
/** The hashes of changed definitions that the user wants to see no more. */
let keptBlocked = [];
try { keptBlocked = JSON.parse(localStorage.getItem(KEPT_BLOCKED)) ?? []; } catch {}

function keepBlocked(hashes) {
  keptBlocked = hashes.slice(-200);
  try { localStorage.setItem(KEPT_BLOCKED, JSON.stringify(keptBlocked)); } catch {}
  poll();
}

/**
 * One thing that waits: its words stay as they are while it is read, and a decision is about those words. `buttons` gives
 * [label, class, path, body] for each, or a function in the place of the path.
 */
function makeWait(title, about, words, next, buttons) {
  const [age, fault] = [make("span.small.soft.num"), make("p.fault.small.said", { role: "alert", hidden: "" })];
  const shown = typeof words === "string" ? make("pre.said", { tabindex: "0" }, words) : words;
  const row = make("li", {}, make("p.line", {}, make("strong.said", {}, title), make("span.small.soft.said", {}, about), age), shown);
  const acts = make("div.tools");
  for (const [label, kind, path, body] of buttons(row)) {
    acts.append(makeButton(kind, label, () => (typeof path === "function" ? path() : decide(acts, fault, path, body))));
  }
  if (next) row.append(make("p.small.soft.said", {}, next));
  row.append(acts, fault);
  row.show = ({ age_s: old, left_s: left, since_ms: since }) => {
    const asked = old ?? (since ? (Date.now() - since) / 1000 : null);
    write(age, [asked == null ? "" : `since ${seconds(asked)}`, left == null ? "" : `ends in ${seconds(left)}`].filter(Boolean).join(" · "));
  };
  return row;
}

async function decide(acts, fault, path, body) {
  if (acts.dataset.busy) return;
  acts.dataset.busy = "yes";
  try {
    await api(path, { method: "POST", body: JSON.stringify(body()) });
    hide(fault, true);
    speak("Done.");
  } catch (failure) {
    if (failure instanceof Refused) return;
    write(fault, `Not done: ${reason(failure)}`);
    hide(fault, false);
  } finally {
    delete acts.dataset.busy;
  }
  await poll();
}

const NEXT_OF_CALL = "Approve: the call runs, and its client gets the result. Deny: the client is told that you said no. Without an answer, nothing runs.";

function makeApproval(one) {
  const path = `approvals/${encodeURIComponent(one.id)}`;
  const about = `${said(one.client, 60)} · nonet approve ${said(one.id, 20)}`;
  const next = one.takes_answer ? "The workflow goes on with your answer. Without one, it stays where it is." : NEXT_OF_CALL;
  return makeWait(said(one.for, 120), about, said(one.question, 20_000), next, (row) => {
    let input = null;
    if (one.takes_answer) row.append(input = make("input", { type: "text", "aria-label": "Your answer", placeholder: "Your answer, in words or as the number of a choice" }));
    const answer = () => (input?.value.trim() ? { decision: "allow", answer: input.value.trim() } : { decision: "allow" });
    const buttons = [[one.takes_answer ? "Answer" : "Approve", "main", path, answer]];
    if (one.for_session) buttons.push(["Approve for the session", "", path, () => ({ decision: "allow_for_session" })]);
    return [...buttons, ["Deny", "deny", path, () => ({ decision: "deny" })]];
  });
}

/** The places in which a definition differs, with the words that differ. */
function markedWords(places, kind) {
  const words = ({ in: of, text }) => ({ before: () => make("del", {}, said(text, 2000)), after: () => make("ins", {}, said(text, 2000)) })[of]?.() ?? said(text, 2000);
  return make("div.marked", { tabindex: "0", role: "group", "aria-label": "What differs" }, make("dl", {}, ...places.flatMap(({ place, words: all }) => [
    make("dt.mono.said", {}, said(place || kind, 200)), make("dd.said", {}, ...all.map(words)),
  ])));
}

const ON_CHANGE = new Map(Object.entries({
  hold: ["Calls of it fail until you trust it.", "Keep blocked"], deny: ["Clients do not see it until you trust it.", "Keep blocked"],
  tell: ["Clients use it already (on_change = \"tell\"); trusting it ends this notice.", "Leave it"],
}));

function makeDefinition(one) {
  const what = { instructions: "instructions", prompt: "prompt" }[one.kind] ?? "tool";
  const about = one.state === "new" ? `new ${what}, not trusted yet` : `${what} changed`;
  const [next, leave] = ON_CHANGE.get(one.on_change) ?? ["", "Leave it"];
  const words = one.marked?.length ? markedWords(one.marked, what) : said(one.difference, 20_000);
  return makeWait(said(one.name, 120), about, words, next, () => [
    ["Trust", "main", "trust", () => [{ name: one.name, hash: one.hash }]],
    [leave, "deny", () => keepBlocked([...keptBlocked, one.hash])],
  ]);
}

/** The fields of a form, put into a row, and what reads them. */
function formFields(row, form) {
  const required = requiredOf(form);
  const fields = Object.entries(form?.properties ?? {}).map(([name, of]) => [name, paramField(name, of, required.has(name), true)]);
  row.append(...fields.map(([, field]) => field.node));
  return () => paramsOf(fields, required);
}

/** A question of a server, during a call that was made on the page. */
function makeQuestion(one) {
  const path = `questions/${encodeURIComponent(one.id)}`;
  const next = "The call goes on with your answer; if you decline, its server decides what to do.";
  return makeWait(said(one.for, 120), one.url ? "asks you to open an address" : "asks you", said(one.message, 20_000), next, (row) => {
    if (one.url) row.append(make("p.small.mono.said", {}, said(one.url, 2000)));
    const params = formFields(row, one.form);
    const accept = () => {
      if (!one.url) return { action: "accept", content: params() };
      if (!/^https?:/.test(one.url)) throw new Error("This is not a web address.");
      window.open(one.url, "_blank", "noopener,noreferrer");
      return { action: "accept" };
    };
    return [[one.url ? "Open it" : "Send", "main", path, accept], ["Decline", "deny", path, () => ({ action: "decline" })]];
  });
}

const MOST_BUTTONS = 12;

/** A question that a client has put to its user. The answer counts here as it does in the chat. */
function makeClientQuestion(one) {
  const path = `client-questions/${encodeURIComponent(one.token)}`;
  const say = (answer) => () => ({ answer: typeof answer === "function" ? answer() : answer });
  const next = one.kind === "call" ? NEXT_OF_CALL : "The client gets your answer, here or in its chat: the first one counts.";
  return makeWait(said(one.tool ?? one.client, 120), one.tool ? said(one.client, 60) : "asks you", said(one.message, 20_000), next, (row) => {
    if (one.kind === "call") {
      return [["Approve", "main", path, say("allow")], ...(one.for_session ? [["Approve for the session", "", path, say("allow_for_session")]] : []), ["Deny", "deny", path, say("deny")]];
    }
    if (one.kind === "form") return [["Send", "main", path, say(formFields(row, one.form))], ["Decline", "deny", path, say({ action: "decline" })]];
    if (one.kind === "choices" && !one.several && one.choices.length <= MOST_BUTTONS) {
      return one.choices.map((choice) => [said(choice, 200), "choice", path, say(choice)]);
    }
    if (one.kind === "choices") {
      const choice = paramField("Your answer", one.several ? { type: "array", items: { enum: one.choices } } : { enum: one.choices }, true);
      row.append(choice.node);
      return [["Send", "main", path, say(() => choice.value() ?? "")]];
    }
    const input = lines(2, { placeholder: one.kind === "content" ? "What to change, if you deny" : "" });
    row.append(field("Your answer", input));
    if (one.kind === "free") return [["Send", "main", path, say(() => input.value)]];
    return [["Approve", "main", path, say("approve")], ["Deny", "deny", path, say(() => ({ decision: "deny", ...(input.value.trim() ? { feedback: input.value.trim() } : {}) }))]];
  });
}

function showWaiting(found) {
  const rows = new Map();
  const names = [];
  // A form that cannot be shown costs its own row only.
  const put = (key, one, name, makeRow) => {
    let row = waits.get(key);
    try {
      row ??= makeRow(one);
    } catch (fault) {
      row = make("li", {}, make("p.small.said", {}, `A question cannot be shown here (${said(fault.message, 200)}); answer it in its client.`));
    }
    row.show?.(one);
    if (!waits.has(key)) notify(name, one);
    rows.set(key, row);
    names.push(name);
  };
  for (const one of found.client_questions ?? []) put(`client ${one.token}`, one, one.tool ?? one.message, makeClientQuestion);
  for (const one of found.questions ?? []) put(`question ${one.id}`, one, one.for, makeQuestion);
  for (const one of found.approvals ?? []) put(`approval ${one.id}`, one, one.for, makeApproval);
  const blocked = (found.definitions ?? []).filter(({ hash }) => keptBlocked.includes(hash));
  for (const one of found.definitions ?? []) {
    if (!blocked.includes(one)) put(`definition ${one.name} ${one.hash}`, one, one.name, makeDefinition);
  }
  hide("kept-blocked", !blocked.length);
  write("kept-blocked", `Show ${plural(blocked.length, "definition")} kept blocked`);
  for (const [key, row] of waits) if (!rows.has(key)) row.remove();
  waits.clear();
  for (const [key, row] of rows) {
    waits.set(key, row);
    if (!row.isConnected) $("waits-list").append(row);
  }
  const all = rows.size + Math.max(0, (found.total ?? 0) - (found.definitions ?? []).length);
  if ($("waits").hidden && all > 0) speak(`${plural(all, "item")} waiting for you.`);
  write("waits-count", String(all));
  write("waits-names", names.slice(0, 3).map((name) => said(String(name).split("\n")[0], 60)).join(" · ") + (all > 3 ? " …" : ""));
  hide("waits", all === 0);
}
$("kept-blocked").addEventListener("click", () => keepBlocked([]));

/** On its own view everything that waits is shown; on others it is one line, until its user opens it. */
function foldWaits(folded) {
  hide("waits-list", folded);
  hide("waits-names", !folded);
  $("waits-toggle").setAttribute("aria-expanded", String(!folded));
  write("waits-toggle", folded ? "Show" : "Hide");
}
$("waits-toggle").addEventListener("click", () => foldWaits(!$("waits-list").hidden));

function goToWaits() {
  foldWaits(false);
  $("waits").scrollIntoView({ block: "center", behavior: still.matches ? "auto" : "smooth" });
  $("waits-list").querySelector("button")?.focus({ preventScroll: true });
}

// --- notifications of the system, asked for by a click ---

const notifies = () => globalThis.Notification?.permission === "granted";

function offerNotifications() {
  hide("notify", globalThis.Notification?.permission !== "default");
}
$("notify").addEventListener("click", async () => {
  await Notification.requestPermission();
  offerNotifications();
  speak(notifies() ? "The system tells you when something waits." : "The browser does not allow notifications.");
});
offerNotifications();

/** Tells a user who looks at something else. */
function notify(name, { question, message, difference }) {
  if (!notifies() || (!document.hidden && document.hasFocus())) return;
  const note = new Notification(`Nonet: ${said(String(name).split("\n")[0], 80)} waits for you`, { body: said(question ?? message ?? difference, 200) });
  note.onclick = () => {
    window.focus();
    goToWaits();
  };
}
