// --- what a person does to servers: adding and editing them ---

/** What was done, above the servers, with what is left to do. */
function showNews(title, notes = []) {
  write("news-title", title);
  $("news-list").replaceChildren(...notes.map((note) => make("li.said", {}, said(note, 600))));
  hide("news", false);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    speak("Copied.");
  } catch {
    speak("The browser does not allow this page to copy. Select the text instead.");
  }
}

/** A command for a terminal, with a button that copies it. */
function copyLine(before) {
  const code = make("code.said");
  const node = make("p.copy.small", { hidden: "" }, before, code, " ", makeButton("chip", "Copy", () => copy(code.textContent)));
  return {
    node,
    show(command) {
      hide(node, !command);
      write(code, said(command, 2000));
    },
  };
}

let fieldCount = 0;
/** A labelled field: `more` is a hint under it. */
function field(label, input, more = "") {
  input.id = `field-${++fieldCount}`;
  const parts = [make("label", { for: input.id }, label), input];
  if (more) {
    parts.push(make("span.small.soft", { id: `${input.id}-hint` }, more));
    input.setAttribute("aria-describedby", `${input.id}-hint`);
  }
  return make("div.field", {}, ...parts);
}
const plain = { autocomplete: "off", autocapitalize: "off", spellcheck: "false" };
const oneLine = (attributes = {}) => make("input", { type: "text", ...plain, ...attributes });
const lines = (rows, attributes = {}) => make("textarea.mono", { rows, ...plain, ...attributes });

// The form to add servers: what its README offers, or four ways to say what a server is.
const adding = (() => {
  const form = $("add");
  const WAYS = [["paste", "Paste from a README"], ["command", "Program"], ["url", "Address"], ["openapi", "OpenAPI"], ["registry", "Registry"]];
  const name = oneLine({ placeholder: "memory", maxlength: 64 });
  const command = oneLine({ class: "mono", placeholder: "npx -y @modelcontextprotocol/server-memory" });
  const url = oneLine({ class: "mono", placeholder: "https://example.com/mcp", inputmode: "url" });
  const openapi = oneLine({ class: "mono", placeholder: "https://petstore.example/openapi.json" });
  const baseUrl = oneLine({ class: "mono", inputmode: "url" });
  const env = lines(2, { placeholder: "NAME=value" });
  const headers = lines(2, { placeholder: "Authorization: Bearer ${TOKEN}" });
  const description = oneLine();
  const tags = oneLine();
  const text = lines(7, { placeholder: 'npx -y @modelcontextprotocol/server-memory' });
  const secret = "One per line. Values that look like secrets go into the keyring or secrets.env; ${VAR} stays a variable.";
  const parts = [
    [field("Name", name, "a-z, 0-9, with single - or _ between them"), "command url openapi"],
    [field("Command line", command), "command"],
    [field("Address", url), "url"],
    [field("OpenAPI document", openapi, "A file or an address"), "openapi"],
    [field("Address of the service", baseUrl, "If it differs from the one in the document"), "openapi"],
    [field("Variables", env, secret), "command"],
    [field("Headers", headers, secret), "url openapi"],
    [field("Description", description, "Its purpose in a few words: helps search"), "command url openapi"],
    [field("Tags", tags, "Separated by commas"), "command url openapi"],
    [field("What its README says", text, "JSON for a client, a command (npx -y …, claude mcp add …) or an install link, also within ```. Secrets go into the keyring or secrets.env."), "paste"],
  ];
  const found = make("ul.offers", { "aria-label": "Servers of the registry" });
  const words = oneLine({ placeholder: "postgres", type: "search", maxlength: 200 });
  const chosen = make("div.values");
  const ownName = oneLine({ maxlength: 64 });
  parts.push(
    [field("Find servers in the registry", words, "Words of the name or the description"), "registry"],
    [found, "registry"],
    [chosen, "registry"],
  );
  for (const [node] of parts.slice(7, 9)) node.classList.add("half");
  let offer = null;
  let values = [];
  let typed = 0;

  // As one types, after a short pause; only the answer to the last that was asked counts.
  words.addEventListener("input", () => {
    const now = ++typed;
    setTimeout(() => { if (now === typed) findServers(now); }, 350);
  });

  async function findServers(now) {
    const asked = words.value.trim();
    if (!asked) return found.replaceChildren();
    try {
      const { servers, registry } = await (await api(`registry?q=${encodeURIComponent(asked)}`)).json();
      if (now !== typed) return;
      found.replaceChildren(...servers.map((server) => make("li", {},
        makeButton("", said(server.name, 200), () => takeOffer(server.name)),
        make("p.small.said", {}, said(`${server.version} · ${server.runs_as.join(", ")} · ${server.description}`, 300)))));
      if (!servers.length) found.append(make("li.small.soft.said", {}, `${said(registry, 100)} has no such server.`));
      speak(plural(servers.length, "server"));
    } catch (failure) {
      if (!(failure instanceof Refused) && now === typed) tell(reason(failure), []);
    }
  }

  async function takeOffer(name) {
    const now = ++typed;
    tell("", []);
    let told;
    try {
      told = await (await api(`registry/server?name=${encodeURIComponent(name)}`)).json();
    } catch (failure) {
      if (!(failure instanceof Refused) && now === typed) tell(reason(failure), []);
      return;
    }
    if (now !== typed) return;
    offer = { ...told, registry: name };
    ownName.value = said(offer.name, 64);
    values = offer.values.map((value) => {
      const input = value.choices?.length
        ? make("select", {}, ...["", ...value.choices].map((choice) => make("option", { value: choice }, said(choice, 100))))
        : oneLine({ type: value.secret ? "password" : "text", autocomplete: value.secret ? "new-password" : "off", placeholder: said(value.default ?? "", 100) });
      if (value.required) input.setAttribute("aria-required", "true");
      return { key: value.key, input, node: field(`${said(value.key, 100)}${value.required ? " (needed)" : ""}`, input, said(value.what, 200)) };
    });
    const runs = offer.entry.url ?? [offer.entry.command, ...(offer.entry.args ?? [])].join(" ");
    chosen.replaceChildren(make("p.said", {}, make("strong.said", {}, said(name, 200))), make("pre.said", {}, said(runs, 1000)),
      ...offer.notes.map((note) => make("p.small.said", {}, said(note, 500))), field("Name", ownName, "a-z, 0-9, with single - or _ between them"),
      ...values.map(({ node }) => node));
    found.replaceChildren();
    ownName.focus();
  }
  const ways = WAYS.map(([way, label]) => {
    const input = make("input", { type: "radio", name: "way", value: way });
    input.addEventListener("change", () => choose(way));
    return make("label.way", {}, input, label);
  });
  const go = make("button.main", { type: "submit" });
  const anyway = makeButton("", "Add without starting", () => send({ check: false }));
  const rest = makeButton("", "Add the others", () => send({ without }));
  const cancel = makeButton("", "Cancel", () => close());
  const fault = make("p.fault.said", { role: "alert", hidden: "" });
  const outcome = make("ul.outcome");
  form.append(make("fieldset.ways", {}, make("legend.unseen", {}, "Kind of server"), ...ways), ...parts.map(([node]) => node), fault, outcome,
    make("div.acts.left", {}, go, rest, anyway, cancel));
  let way = "paste";
  let busy = false;
  let without = [];

  function choose(chosen) {
    way = chosen;
    for (const [node, of] of parts) hide(node, !of.split(" ").includes(way));
    for (const label of ways) label.firstChild.checked = label.firstChild.value === way;
    tell("", []);
  }

  function tell(message, servers) {
    write(fault, message);
    hide(fault, !message);
    outcome.replaceChildren(...servers.map(shownOutcome));
    without = servers.filter(({ failed }) => failed).map(({ name }) => name);
    hide(anyway, !without.length);
    hide(rest, way !== "paste" || !without.length || !servers.some(({ failed, new: added }) => added && !failed));
  }

  const split = (area) => area.value.split("\n").map((line) => line.trim()).filter(Boolean);

  function wanted() {
    if (way === "paste") return ["servers/import", { text: text.value }];
    if (way === "registry") {
      if (!offer) throw new Error("Choose a server of the registry first.");
      return ["registry/server", { registry: offer.registry, name: ownName.value, values: Object.fromEntries(values.map(({ key, input }) => [key, input.value])) }];
    }
    const body = { name: name.value, description: description.value, tags: tags.value.split(",").map((tag) => tag.trim()).filter(Boolean) };
    if (way === "command") Object.assign(body, { command: command.value, env: split(env) });
    if (way === "url") Object.assign(body, { url: url.value, headers: split(headers) });
    if (way === "openapi") Object.assign(body, { openapi: openapi.value, base_url: baseUrl.value, headers: split(headers) });
    return ["servers", body];
  }

  function look() {
    form.setAttribute("aria-busy", String(busy));
    write(go, busy ? "Starting …" : "Start it, then add it");
    for (const button of [go, anyway, rest]) button.disabled = busy;
  }

  async function send(more = {}) {
    if (busy) return;
    busy = true;
    tell("", []);
    look();
    speak("The server is starting.");
    try {
      const [path, body] = wanted();
      const done = await (await api(path, { method: "POST", body: JSON.stringify({ ...body, ...more }) })).json();
      if (done.written) {
        const added = done.servers.filter((server) => server.new).map(({ server }) => said(server));
        const tools = done.servers.filter(({ tried }) => tried?.state === "ready").map(({ server, tried }) => `${said(server)} has ${plural(tried.tools, "tool")}.`);
        const skipped = done.servers.filter((server) => !server.new).map((server) => `${said(server.name)}: ${said(server.done, 200)}`);
        form.reset();
        offer = null;
        chosen.replaceChildren();
        close();
        showNews(`Added to servers.toml: ${added.join(", ")}.`, [done.trouble, ...tools, ...skipped, ...done.secrets, ...done.notes].filter(Boolean));
        speak(`Added ${added.join(", ")}.`);
        await poll();
      } else {
        const failed = done.servers.some((server) => server.failed);
        tell(failed ? "Nothing was written, because a server does not start:" : "There is nothing to add:", done.servers);
      }
    } catch (failure) {
      if (!(failure instanceof Refused)) tell(reason(failure), []);
    } finally {
      busy = false;
      look();
    }
  }

  function open() {
    hide(form, false);
    $("add-open").setAttribute("aria-expanded", "true");
    hide("news", true);
    ({ paste: text, registry: words }[way] ?? name).focus();
  }

  function close() {
    hide(form, true);
    $("add-open").setAttribute("aria-expanded", "false");
    tell("", []);
    $("add-open").focus();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  form.addEventListener("keydown", (event) => { if (event.key === "Escape" && !busy) close(); });
  $("add-open").addEventListener("click", () => (form.hidden ? open() : close()));
  choose(way);
  look();
  return { open };
})();

/** How one new server did. */
function shownOutcome({ name, server, done, tried, notes = [] }) {
  const item = make("li", {}, make("div.line", {}, make("strong.said.mono", {}, said(server ?? name)),
    tried?.state ? stateMark(make("span"), tried.state) : make("span.soft.said", {}, said(done, 300))));
  if (tried?.state === "ready") item.append(make("p.small.soft", {}, plural(tried.tools, "tool")));
  for (const words of [tried?.last_error, tried?.likely_cause, tried?.login && `Sign in with ${tried.login}`, ...notes]) if (words) item.append(make("p.small.said", {}, said(words, 2000)));
  if (tried?.stderr?.length) {
    const tail = tried.stderr.map((line) => said(String(line).replace(ANSI, ""), 300)).join("\n");
    item.append(make("pre.said", { tabindex: 0, role: "group", "aria-label": `stderr of ${said(name)}` }, tail));
  }
  return item;
}

/** A field for a value that nobody should see, and what saves it. */
function valueForm(label, saves, act, hint = "") {
  const value = make("input", { type: "password", ...plain, autocomplete: "new-password", required: "" });
  const save = make("button.main", { type: "submit", "aria-label": saves }, "Save");
  const fault = make("p.fault.said", { role: "alert", hidden: "" });
  const form = make("form.editor", {}, field(label, value, hint), fault, make("div.acts.left", {}, save));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    save.disabled = true;
    hide(fault, true);
    try {
      await act(value.value);
      value.value = "";
      if (document.activeElement === document.body) $("add-open").focus();
    } catch (failure) {
      if (failure instanceof Refused) return;
      write(fault, reason(failure));
      hide(fault, false);
    } finally {
      save.disabled = false;
    }
  });
  return form;
}

/** Password fields for the values that a left-out server needs. */
function missingValues(name, shown) {
  const node = make("div.missing", { hidden: "" });
  let names = "";

  const form = (variable) => valueForm(said(variable), `Save ${said(variable)} of ${shown}`, async (value) => {
    const body = JSON.stringify({ name: variable, value });
    const done = await (await api(`servers/${encodeURIComponent(name)}/secret`, { method: "POST", body })).json();
    showNews(`${shown} has a value for ${said(variable)}.`, [...done.secrets, done.trouble].filter(Boolean));
    speak(`${said(variable)} is stored. ${shown} is tried again.`);
    await poll();
  });

  return {
    node,
    /** Keeps the fields, and what is typed in them, as long as the same values are missing. */
    show(variables) {
      hide(node, !variables.length);
      if (names === variables.join()) return;
      names = variables.join();
      node.replaceChildren(make("p.small.soft", {}, "Values that it needs. They go into the keyring or secrets.env, never into servers.toml."), ...variables.map(form));
    },
  };
}

/** The text of a server's table in servers.toml, to be changed by hand. */
function serverEditor(name, shown, back) {
  const area = lines(10, { "aria-label": `The lines of ${shown} in servers.toml` });
  const faults = make("div.fault.said", { role: "alert", hidden: "" });
  const place = make("p.small.soft.said");
  const save = make("button.main", { type: "submit" }, "Save");
  const node = make("form.editor", { hidden: "" }, place, area, faults, make("div.acts.left", {}, save, makeButton("", "Cancel", close)));
  const path = `servers/${encodeURIComponent(name)}/text`;
  let hash = "";
  let first = 1;

  function close() {
    hide(node, true);
    back();
  }

  function tell(found) {
    faults.replaceChildren(...found.map(({ line, message }) => make("p", {}, `${line ? `Line ${line + first - 1}: ` : ""}${said(message, 1000)}`)));
    hide(faults, !found.length);
    const line = found.find((fault) => fault.line)?.line;
    if (!line) return;
    const rows = area.value.split("\n");
    const start = rows.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    area.focus();
    area.setSelectionRange(start, start + rows[line - 1].length);
  }

  async function open() {
    try {
      const now = await (await api(path)).json();
      [area.value, hash, first] = [now.text, now.hash, now.line];
      area.rows = Math.min(24, Math.max(5, now.text.split("\n").length + 1));
      write(place, `${said(now.file, 300)}, from line ${now.line}. Nonet checks the text before writing it. Values that look like secrets go into the keyring or secrets.env.`);
      tell([]);
      hide(node, false);
      area.focus();
      area.setSelectionRange(0, 0);
    } catch (failure) {
      write(place, reason(failure));
      hide(node, false);
    }
  }

  node.addEventListener("submit", async (event) => {
    event.preventDefault();
    save.disabled = true;
    try {
      const done = await (await api(path, { method: "POST", body: JSON.stringify({ text: area.value, hash }) })).json();
      close();
      showNews(done.written ? `${shown} is changed in servers.toml.` : "Nothing was changed.", [done.trouble, ...done.secrets, ...done.notes].filter(Boolean));
      speak(`${shown} is changed.`);
      await poll();
    } catch (failure) {
      if (!(failure instanceof Refused)) tell(failure.faults ?? [{ message: reason(failure) }]);
    } finally {
      save.disabled = false;
    }
  });
  node.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
  return { node, open };
}
