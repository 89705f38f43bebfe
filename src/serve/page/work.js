// --- work: what clients left to be done, and what they keep ---

{
for (const [state, look] of Object.entries({
  active: ["running", "active"], paused: ["stopped", "paused"], finished: ["ready", "finished"], waiting: ["key", "waits for an answer"],
})) STATES.set(state, look);

const taskTook = (task) => (task.state === "running" ? `for ${seconds(task.elapsed_ms / 1000)}` : micros(task.elapsed_ms * 1000));

/** Each kind: where its list is, and how one of it is shown. `about` is a line of facts, `acts` what its user may do. */
const WORK = [
  {
    kind: "task", list: "tasks", title: "Tasks", hint: "calls that continue in the background",
    none: "No tasks. A call that outlives the soft deadline continues here.",
    id: (one) => one.task_id, name: (one) => one.tool, state: (one) => one.state,
    about: (one) => [taskTook(one), one.progress?.message ?? one.message],
    acts: (one) => [one.state === "running" ? "Cancel" : "Delete"],
  },
  {
    kind: "workflow", list: "workflows", title: "Questions of workflows", hint: "answered in their clients",
    none: "No workflow is waiting for an answer.",
    id: (one) => one.id, name: (one) => one.app_id, state: () => "waiting",
    about: (one) => [one.question, `since ${clock(one.since_ms)}`], acts: () => ["Delete"],
  },
  {
    kind: "watch", list: "watches", title: "Watches", hint: "calls that repeat to detect changes",
    none: "No watches. A client starts one with gateway.watch_start.",
    id: (one) => one.watcher_id, name: (one) => one.label ?? one.tool, state: (one) => one.state,
    about: (one) => [one.label && one.tool, `every ${seconds(one.interval)}`, one.next_check_at && `next ${clock(one.next_check_at)}`,
      `${plural(one.counts?.checks ?? 0, "check")}, ${plural(one.counts?.changes ?? 0, "change")}`, one.error?.message],
    acts: (one) => [...({ active: ["Pause"], paused: ["Resume"] }[one.state] ?? []), "Delete"],
  },
  {
    kind: "schedule", list: "schedules", title: "Schedules and reminders", hint: "calls and messages for later",
    none: "Nothing is scheduled.",
    id: (one) => one.job_id, name: (one) => one.label ?? one.tool ?? one.app_id ?? one.message,
    about: (one) => [one.label && (one.tool ?? one.app_id ?? one.message), one.when, one.next_run ? `next ${clock(one.next_run)}` : "no further runs",
      one.runs ? plural(one.runs, "run") : "", one.last_run?.success === false ? "the last run failed" : one.last_run?.outcome ? "the last run was cut off" : ""],
    acts: () => ["Delete"],
  },
  {
    kind: "result", list: "results", title: "Kept results", hint: "", none: "No kept results. A result that is too large for an answer is kept here.",
    id: (one) => one.id, name: (one) => one.id, about: (one) => [bytes(one.bytes), `kept ${clock(one.at_ms)}`], acts: () => ["Delete"],
  },
  {
    kind: "fact", list: "facts", title: "Memory", hint: "", none: "No facts.",
    id: (one) => one.id, name: (one) => one.text, about: (one) => [(one.tags ?? []).map((tag) => `#${said(tag, 40)}`).join(" "), clock(one.at_ms)],
    acts: () => ["Delete"],
  },
];
const work = { rows: new Map(), busy: false, late: 0 };
/** The most of one result that is shown, in characters. */
const MOST_READ = 400_000;

for (const part of WORK) {
  const title = `work-${part.kind}-title`;
  const of = (part.node = {
    count: make("span.soft.num"), hint: make("span.small.soft", {}, part.hint), list: make("ul.rows.work", { "aria-labelledby": title }), none: make("p.none", { hidden: "" }),
  });
  const section = make("section.card", { "aria-labelledby": title, id: `work-${part.kind}` },
    make("header", {}, make("h2", { id: title, tabindex: "-1" }, part.title), of.count, of.hint), of.list, of.none);
  if (part.kind === "fact") {
    of.query = make("input", { type: "search", "aria-label": "Find a fact", placeholder: "Find a fact", autocomplete: "off", spellcheck: "false" });
    of.query.addEventListener("input", () => {
      clearTimeout(work.late);
      work.late = setTimeout(() => loadFacts(), 120);
    });
    of.query.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault();
      emptied(of.query, () => loadFacts());
    });
    of.list.before(make("div.tools", {}, of.query));
  }
  $(["task", "watch", "fact"].includes(part.kind) ? "work-left" : "work-right").append(section);
}

/** The row of one piece of work, made once and kept up to date. */
function workRow(part, one) {
  const [id, owner] = [part.id(one), one.owner ?? ""];
  const shown = said(part.name(one), 60);
  const path = (more = "") => `work/${part.kind}/${encodeURIComponent(id)}${more}?owner=${encodeURIComponent(owner)}`;
  const place = `work-${(workRow.count = (workRow.count ?? 0) + 1)}`;
  const more = makeButton("more", "", () => open(details.hidden));
  const name = make("span.said");
  more.append(icon("more"), name);
  for (const [key, value] of [["aria-expanded", "false"], ["aria-controls", place]]) more.setAttribute(key, value);
  const [mark, about, acts, failed] = ["span", "span.said", "div.acts", "p.small.bad.said"].map((kind) => make(kind));
  const fields = make("dl.fields");
  const words = make("pre.said", { tabindex: "0", role: "group", "aria-label": `Text of ${shown}` });
  const further = makeButton("chip", "Read on", () => readOn());
  further.setAttribute("aria-label", `Read on in ${shown}`);
  const details = make("div.details", { id: place, hidden: "" }, fields, words, make("div.acts.left", {}, further));
  let next = null;
  let read = "";
  const node = make("li", {}, make("div.row", {}, make("div", {}, more, make("p.line.small.soft.num", {}, mark, about)), acts), failed, details);

  async function open(yes) {
    more.setAttribute("aria-expanded", String(yes));
    hide(details, !yes);
    if (!yes) return;
    fields.replaceChildren();
    showText("Reading …");
    showNext(null);
    try {
      const { result, next_step, ...rest } = await (await api(path())).json();
      fields.replaceChildren(...Object.entries(rest).flatMap(([name, value]) => [
        make("dt.said", {}, said(name, 40).replaceAll("_", " ")), make("dd.said", {}, said(typeof value === "string" ? value : JSON.stringify(value), 4000)),
      ]));
      read = textOf(result);
      showText(read + restOf(result));
      showNext(result);
    } catch (failure) {
      if (!(failure instanceof Refused)) showText(reason(failure));
    }
  }

  /** Whether a kept result goes on, and where. */
  function showNext(result) {
    const { ref, offset } = result?.next_step?.arguments?.params ?? {};
    next = ref ? { ref, offset: offset ?? 0 } : null;
    hide(further, !next);
  }

  async function readOn() {
    if (!next || further.disabled) return;
    const { ref, offset } = next;
    further.disabled = true;
    try {
      const { result } = await (await api(`work/result/${encodeURIComponent(ref)}?owner=${encodeURIComponent(owner)}&offset=${offset}`)).json();
      // The preview of a task's result makes way for the result itself. Only rows begin with a line of their own.
      read = offset ? `${read}${result.rows ? "\n" : ""}${textOf(result)}` : textOf(result);
      const isFull = read.length > MOST_READ;
      showText(isFull ? `${read.slice(0, MOST_READ)}\n… the page shows no more of it` : read + restOf(result), MOST_READ + 100);
      showNext(isFull ? null : result);
      if (!next) words.focus();
    } catch (failure) {
      if (!(failure instanceof Refused)) speak(reason(failure));
    } finally {
      further.disabled = false;
    }
  }

  function showText(text, most = 30_000) {
    write(words, said(text, most));
    hide(words, text === "");
  }

  async function act(label) {
    if (acts.dataset.busy) return;
    acts.dataset.busy = "yes";
    const next = node.nextElementSibling?.querySelector("button") ?? $(`work-${part.kind}-title`);
    const held = node.contains(document.activeElement);
    try {
      await api(path(`/${label.toLowerCase()}`), { method: "POST" });
      write(failed, "");
      speak(`${shown}: ${{ Cancel: "cancelled", Pause: "paused", Resume: "resumed", Delete: "deleted" }[label]}.`);
    } catch (failure) {
      if (failure instanceof Refused) return;
      write(failed, `Could not ${label.toLowerCase()} it: ${reason(failure)}`);
      speak(failed.textContent);
    } finally {
      delete acts.dataset.busy;
    }
    await loadWork(part.kind === "fact");
    // The button that was pressed may be gone, and its row.
    if (held && document.activeElement === document.body) (node.isConnected ? more : next).focus();
  }

  return {
    node,
    show(one) {
      write(name, said(part.name(one), 300));
      const state = part.state?.(one);
      if (state) stateMark(mark, state);
      hide(mark, !state);
      const facts = [...part.about(one), owner && `profile ${owner}`];
      write(about, facts.filter(Boolean).map((fact) => said(fact, 240)).join(" · "));
      const wanted = part.acts(one);
      if (acts.wanted === wanted.join()) return;
      acts.wanted = wanted.join();
      // What ends something takes two presses.
      acts.replaceChildren(...wanted.map((label) => {
        if (["Cancel", "Delete"].includes(label)) return twice(label, shown, () => act(label));
        const button = makeButton("", label, () => act(label));
        button.setAttribute("aria-label", `${label} ${shown}`);
        return button;
      }));
    },
  };
}

/** A result as text: of a kept one the beginning. */
function textOf(result) {
  if (!result) return "";
  if (result.content) return result.content.map((block) => (typeof block.text === "string" ? readable(block.text) : JSON.stringify(block, null, 2))).join("\n\n");
  const { text, value, rows, next_step: more } = result;
  // A piece of JSON is not JSON.
  if (typeof text === "string") return more || result.offset ? text : readable(text);
  return JSON.stringify(value ?? rows ?? result, null, 2);
}

/** How much of a kept result is not shown yet. */
function restOf({ next_step: more, total, rows } = {}) {
  const left = total - (more?.arguments?.params?.offset ?? total);
  return left > 0 ? `\n… and ${whole(left)} more ${rows ? "rows" : "bytes"}` : "";
}

function showPart(part, all, total = all.length) {
  const { count, list, none } = part.node;
  write(count, total ? whole(total) : "");
  hide(list, all.length === 0);
  hide(none, all.length > 0);
  write(none, part.node.query?.value ? "No matching facts." : part.none);
  const wanted = all.map((one) => {
    const key = JSON.stringify([part.kind, one.owner, part.id(one)]);
    if (!work.rows.has(key)) work.rows.set(key, workRow(part, one));
    work.rows.get(key).show(one);
    return key;
  });
  const kept = new Set(wanted);
  for (const node of [...list.children]) if (!kept.has(node.key)) { node.remove(); work.rows.delete(node.key); }
  wanted.forEach((key, at) => {
    const { node } = work.rows.get(key);
    node.key = key;
    if (list.children[at] !== node) list.insertBefore(node, list.children[at] ?? null);
  });
}

async function loadWork(withFacts) {
  if (work.busy && !withFacts) return;
  work.busy = true;
  try {
    const found = await (await api("work")).json();
    for (const part of WORK.slice(0, -1)) showPart(part, found[part.list] ?? []);
    write(WORK[4].node.hint, found.kept?.entries ? `${bytes(found.kept.bytes)} on disk, including results of tasks` : "");
    hide("work-fault", true);
    if (withFacts) await loadFacts();
  } catch (failure) {
    if (failure instanceof Refused) return;
    write("work-fault", reason(failure));
    hide("work-fault", false);
  } finally {
    work.busy = false;
  }
}

async function loadFacts() {
  const part = WORK.at(-1);
  const asked = part.node.query.value.trim();
  try {
    const found = await (await api(`facts?q=${encodeURIComponent(asked)}`)).json();
    if (asked !== part.node.query.value.trim()) return;
    showPart(part, found.facts ?? [], found.total);
    hide(part.node.query, !found.total);
    if (!found.remembers) write(part.node.none, "Memory is switched off: `memory = false` is in [gateway].");
    write(part.node.hint, found.total > 50 && !asked ? "the newest 50" : "");
  } catch (failure) {
    if (!(failure instanceof Refused)) write(part.node.hint, reason(failure));
  }
}

views.set("work", { open: () => loadWork(true), show: () => loadWork(false) });
}
