// --- the tools of a server ---

/** The list of a server's tools: fetched when the server is opened, a hundred at a time. */
function serverTools(name, shown) {
  const count = make("span.small.soft.num", { role: "status" });
  const words = make("input", { type: "search", "aria-label": `Filter the tools of ${shown}`, placeholder: "Filter", ...plain });
  const list = make("ul.tool-list");
  const more = makeButton("", "Show more", () => load(list.children.length));
  const node = make("div.tools-part", { hidden: "" }, make("div.line", {}, make("h3", {}, "Tools"), count, words), list, more);
  let known = -1;
  let asked = 0;
  let timer;

  async function load(from) {
    const turn = ++asked;
    try {
      const query = new URLSearchParams({ q: words.value, from });
      const found = await (await api(`servers/${encodeURIComponent(name)}/tools?${query}`)).json();
      if (turn !== asked) return;
      const rows = found.tools.map(toolRow);
      if (from) list.append(...rows);
      else list.replaceChildren(...rows);
      write(count, found.total === found.all ? whole(found.all) : `${whole(found.total)} of ${whole(found.all)}`);
      hide(words, found.all < 12);
      hide(more, list.children.length >= found.total);
    } catch (failure) {
      if (failure instanceof Refused || turn !== asked) return;
      known = -1;
      write(count, reason(failure));
    }
  }

  words.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => load(0), 150);
  });
  return {
    node,
    /** With how many tools the server has now. */
    show(tools) {
      hide(node, tools === 0);
      if (tools === 0 || tools === known) return;
      known = tools;
      load(0);
    },
    close() {
      known = -1;
      list.replaceChildren();
    },
  };
}

const POLICIES = new Map([["approve", ["asks you first", "warn"]], ["deny", ["not allowed", "bad"]]]);

function policyTag({ policy, rule }) {
  const [words, kind] = POLICIES.get(policy) ?? [];
  return words ? [make(`span.tag.${kind}`, { title: said(rule, 200) }, words)] : [];
}

function riskTag({ risk }) {
  return make(risk === "high" ? "span.tag.bad" : "span.tag", {}, `${said(risk, 20)} risk`);
}

/** How often a tool was called, and how long its server takes. */
function figuresOf({ calls, failures, mean_ms: mean, p95_ms: slow }, all = false) {
  if (!calls) return all ? "not called yet" : "";
  const times = mean == null ? [] : [`mean ${micros(mean * 1000)}`];
  if (all && slow != null) times.push(`95 % within ${micros(slow * 1000)}`);
  return [plural(calls, "call"), ...(failures ? [`${whole(failures)} failed`] : []), ...times].join(" · ");
}

function toolRow(tool) {
  const open = makeButton("more", "", async () => {
    const yes = card.hidden;
    open.setAttribute("aria-expanded", String(yes));
    hide(card, !yes);
    hide(line, yes);
    if (yes && !card.firstChild) await load();
  });
  async function load() {
    try {
      const found = await (await api(`tools/${encodeURIComponent(tool.full)}`)).json();
      tags.replaceChildren(riskTag(found), ...policyTag(found));
      const held = card.contains(document.activeElement);
      card.replaceChildren(...toolCard(found, load));
      if (held) card.querySelector("select")?.focus();
    } catch (failure) {
      if (!(failure instanceof Refused)) card.replaceChildren(make("p.small.said", {}, reason(failure)));
    }
  }
  open.append(icon("more"), make("span.said", {}, said(tool.name, 160)));
  open.setAttribute("aria-expanded", "false");
  const card = make("div.tool-card", { hidden: "" });
  const line = make("p.small.soft.said", {}, said(tool.description, 200));
  const tags = make("span.tags", {}, riskTag(tool), ...policyTag(tool));
  return make("li.tool-row", {}, make("div.line", {}, open, tags, make("span.small.soft.num.end", {}, figuresOf(tool))), line, card);
}

/** The policy of one tool, as servers.toml has it. */
function policyForm(tool, reload) {
  const WAYS = [["", "decided by other rules"], ["allow", "runs without asking"], ["approve", "asks you first"], ["deny", "not allowed"]];
  const now = tool.own_policy ?? "";
  const select = make("select", {}, ...WAYS.map(([value, words]) => make("option", { value }, words)));
  select.value = now;
  const save = make("button", { type: "submit" }, "Save");
  save.disabled = true;
  const state = make("span.small.soft.said", { role: "status" });
  select.addEventListener("change", () => { save.disabled = select.value === now; });
  const form = make("form.policy", { "aria-label": `Policy of ${said(tool.name)}` }, field("Policy in servers.toml", select), save, state);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    save.disabled = true;
    write(state, "Saving …");
    try {
      const body = JSON.stringify({ policy: select.value || null });
      const { trouble } = await (await api(`tools/${encodeURIComponent(tool.name)}/policy`, { method: "POST", body })).json();
      write(state, trouble ?? "");
      if (!trouble) await reload();
      speak(trouble ?? "Saved.");
    } catch (failure) {
      save.disabled = false;
      write(state, `Not saved: ${reason(failure)}`);
    }
  });
  return form;
}

/** One tool: everything of it, and a form to try it. `reload` shows it again. */
function toolCard(tool, reload) {
  const rules = {
    allow: "Calls run without asking.", approve: `You are asked before each call: ${said(tool.rule, 200)}.`,
    deny: `No client may call it: ${said(tool.rule, 200)}.`,
  };
  const facts = [figuresOf(tool, true), tool.read_only ? "read-only, according to its server" : "", tool.tags?.length ? `tags: ${said(tool.tags.join(", "), 200)}` : ""];
  const parts = [
    make("p.said.description", {}, said(tool.description || "It has no description.", 20_000)),
    make("p.small.soft.said", {}, facts.filter(Boolean).join(" · ")),
    make("p.small.said", {}, rules[tool.policy] ?? ""),
  ];
  if ("own_policy" in tool) parts.push(policyForm(tool, reload));
  if (tool.last_error) parts.push(make("p.small.said", {}, `Last error: ${said(tool.last_error.message || tool.last_error.code, 300)}`));
  parts.push(schemaPart("Input as JSON Schema", tool.input_schema));
  if (tool.output_schema) parts.push(schemaPart("Output as JSON Schema", tool.output_schema));
  if (tool.policy !== "deny") parts.push(tryForm(tool));
  return parts;
}

function schemaPart(title, schema) {
  const text = said(JSON.stringify(schema, null, 2), 40_000);
  return make("details.small", {}, make("summary", {}, title), make("pre.said", { tabindex: 0, role: "group", "aria-label": title }, text));
}

// --- a call, from a form that its schema makes ---

const MOST_FIELDS = 40;

/** Of a schema or of one that allows null beside it. */
function kindOf(schema = {}) {
  if (schema === null || typeof schema !== "object") return { type: "json" };
  if (Array.isArray(schema.enum) && schema.enum.length && schema.enum.length <= 200) return { type: "enum", of: schema.enum };
  if ("const" in schema) return { type: "enum", of: [schema.const] };
  const ways = ([schema.anyOf, schema.oneOf].find(Array.isArray) ?? []).filter((way) => way?.type !== "null");
  if (!schema.type && ways.length === 1) return kindOf(ways[0]);
  // Values with a title for each (2025-11-25).
  if (ways.length > 1 && ways.every((way) => way && "const" in way)) return { type: "enum", of: ways.map((way) => way.const), titles: ways.map((way) => way.title) };
  const types = [schema.type ?? []].flat().filter((type) => type !== "null");
  if (types[0] === "array" && kindOf(schema.items).type === "enum") return { ...kindOf(schema.items), type: "several" };
  return { type: types.length === 1 && ["string", "number", "integer", "boolean"].includes(types[0]) ? types[0] : "json" };
}

const requiredOf = (schema) => new Set(Array.isArray(schema?.required) ? schema.required : []);

/** A field for one param: its node, and its value; undefined where nothing was given. `filled`: its default is given already. */
function paramField(name, schema, required, filled = false) {
  const { type, of, titles = schema?.enumNames ?? [] } = kindOf(schema);
  const choices = type === "boolean" ? [true, false] : of;
  const hint = said(schema?.description, 400);
  const title = filled && schema?.title ? make("span.said", {}, said(schema.title, 200)) : make("span.mono.said", {}, said(name, 80));
  const label = [title, make("span.small.soft", {}, ` ${required ? "required" : choices ? "" : type}`)];
  let input;
  if (choices) {
    const options = choices.map((choice, at) => make("option", { value: at }, said(titles[at] ?? (typeof choice === "string" ? choice : JSON.stringify(choice)), 100)));
    input = type === "several" ? make("select", { multiple: "", size: Math.min(options.length, 6) }, ...options) : make("select", {}, make("option", { value: "" }, "–"), ...options);
  } else if (type === "json") input = lines(2, { placeholder: [schema?.type].flat().includes("array") ? "[]" : "JSON" });
  else if (type === "string") input = make("textarea", { rows: 1, ...plain });
  else input = oneLine({ inputmode: type === "integer" ? "numeric" : "decimal" });
  const byDefault = schema?.default;
  if (byDefault !== undefined) input.placeholder = said(JSON.stringify(byDefault), 60);
  if (filled && byDefault !== undefined) {
    const given = [byDefault].flat();
    if (type === "several") for (const option of input.options) option.selected = given.includes(choices[option.value]);
    else input.value = choices ? choices.indexOf(byDefault) : typeof byDefault === "string" ? byDefault : JSON.stringify(byDefault);
  }
  if (required) input.setAttribute("aria-required", "true");
  const node = field("", input, hint);
  node.firstChild.replaceChildren(...label);
  return {
    node, input,
    value() {
      const text = input.value;
      if (type === "several") {
        const chosen = [...input.selectedOptions].map((option) => choices[option.value]);
        return chosen.length || required ? chosen : undefined;
      }
      if (choices) return text === "" ? undefined : choices[Number(text)];
      if (text === "") return undefined;
      if (type === "string") return text;
      if (type === "json") return JSON.parse(text);
      const number = Number(text);
      if (text.trim() === "" || Number.isNaN(number)) throw new Error("is not a number");
      return number;
    },
  };
}

/** The params that were given in fields: pairs of a name and its field. The first field that cannot be read gets the focus. */
function paramsOf(fields, required) {
  const given = [];
  for (const [name, one] of fields) {
    one.input.removeAttribute("aria-invalid");
    try {
      const value = one.value();
      if (value === undefined && required.has(name)) throw new Error("is required");
      if (value !== undefined) given.push([name, value]);
    } catch (fault) {
      one.input.setAttribute("aria-invalid", "true");
      one.input.focus();
      throw new Error(`${said(name)} ${fault instanceof SyntaxError ? "is not JSON" : fault.message}.`);
    }
  }
  return Object.fromEntries(given);
}

function tryForm(tool) {
  const schema = tool.input_schema ?? {};
  const required = requiredOf(schema);
  const named = Object.entries(schema.properties ?? {}).sort(([a], [b]) => required.has(b) - required.has(a));
  // Where fields would not say what it takes, its params are one text.
  const whole = named.length > MOST_FIELDS || (named.length === 0 && (schema.additionalProperties !== false && Object.keys(schema).some((key) => /Of$|\$ref/.test(key))));
  const all = lines(5);
  all.value = "{}";
  const fields = whole ? [] : named.map(([name, of]) => [name, paramField(name, of, required.has(name))]);
  const send = make("button.main", { type: "submit" }, "Call it");
  const stop = makeButton("", "Stop waiting", () => abort?.abort());
  const state = make("span.small.soft", { role: "status" });
  const ask = makeButton("chip", "Waiting for you: see above", goToWaits);
  const output = make("pre.said.output", { tabindex: 0, role: "group", "aria-label": `Answer of ${said(tool.name)}`, hidden: "" });
  const form = make("form.try", { "aria-label": `Try ${said(tool.name)}` }, make("h4", {}, "Try it"),
    ...(whole ? [field("Params as JSON", all)] : fields.map(([, one]) => one.node)),
    ...(!whole && fields.length === 0 ? [make("p.small.soft", {}, "It has no params.")] : []),
    make("div.acts.left", {}, send, stop, ask, state), output);
  let abort = null;
  hide(stop, true);
  hide(ask, true);

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (abort) return;
    let body;
    try {
      body = JSON.stringify({ params: whole ? JSON.parse(all.value) : paramsOf(fields, required) });
    } catch (fault) {
      return write(state, fault instanceof SyntaxError ? "The params are not JSON." : fault.message);
    }
    const turn = (abort = new AbortController());
    const began = performance.now();
    write(state, "Calling …");
    hide(stop, false);
    send.disabled = true;
    setTimeout(poll, 300);
    const look = setInterval(() => hide(ask, $("waits").hidden), 300);
    try {
      const answer = await (await api(`tools/${encodeURIComponent(tool.name)}/call`, { method: "POST", body, signal: turn.signal })).json();
      write(state, `${answer.failed ? said(answer.code ?? "failed", 30) : "ok"}, ${micros((performance.now() - began) * 1000)}`);
      write(output, said(answer.text, 70_000) || "(nothing)");
      output.classList.toggle("failed", answer.failed);
      hide(output, false);
    } catch (failure) {
      write(state, failure.name === "AbortError" ? "You stopped waiting for the call." : reason(failure));
    } finally {
      clearInterval(look);
      hide(ask, true);
      hide(stop, true);
      send.disabled = false;
      abort = null;
    }
  });
  return form;
}
