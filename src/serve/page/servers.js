// --- servers ---

const rows = new Map();

const MANY_SERVERS = 8;
const serverFilter = $("servers-filter");

/** Each word must be in the name, the state or the error of a server. */
function filterServers() {
  const words = serverFilter.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of rows.values()) hide(row.body, !words.every((word) => row.text().includes(word)));
}
serverFilter.addEventListener("input", filterServers);
serverFilter.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  event.preventDefault();
  emptied(serverFilter, filterServers);
});

function showServers(servers) {
  const table = $("server-table");
  hide("no-servers", servers.length > 0);
  hide(serverFilter, servers.length < MANY_SERVERS);
  hide(table, servers.length === 0);
  write("servers-count", whole(servers.length));
  const names = new Set(servers.map((server) => server.name));
  for (const [name, row] of rows) {
    if (names.has(name)) continue;
    row.body.remove();
    rows.delete(name);
  }
  servers.forEach((server, at) => {
    if (!rows.has(server.name)) rows.set(server.name, serverRow(server.name));
    const row = rows.get(server.name);
    if (table.tBodies[at] !== row.body) table.insertBefore(row.body, table.tBodies[at] ?? null);
    row.show(server);
  });
  filterServers();
}

/** What happened to a server lately: its states and what it wrote to stderr, with times. Read when it is opened. */
function serverHistory(name, shown) {
  const list = make("ol");
  const box = make("div.history", { tabindex: 0, role: "group", "aria-label": `History of ${shown}` }, list);
  const again = makeButton("chip", "Read again", () => load());
  const node = make("details.small", { hidden: "" }, make("summary", {}, "History: states and stderr, with times"), box, again);
  node.addEventListener("toggle", () => { if (node.open) load(); });
  async function load() {
    try {
      const { entries } = await (await api(`servers/${encodeURIComponent(name)}/history`)).json();
      list.replaceChildren(...entries.map(({ at_ms: at, kind, text }) => make(`li.${kind === "state" ? "event" : "written"}`, {},
        make("time.soft.num", { datetime: new Date(at).toISOString() }, clock(at, true)), " ", make("span.said", {}, said(String(text).replace(ANSI, ""), 4000)))));
      if (!entries.length) list.replaceChildren(make("li.soft", {}, "Nothing yet."));
      box.scrollTop = box.scrollHeight;
    } catch (failure) {
      if (!(failure instanceof Refused)) list.replaceChildren(make("li.said", {}, reason(failure)));
    }
  }
  return {
    node,
    show: (there) => hide(node, !there),
    close() { node.open = false; },
  };
}

/** The row of a server, made once and kept up to date. */
function serverRow(name) {
  const shown = said(name);
  const id = `server-${(serverRow.count = (serverRow.count ?? 0) + 1)}`;
  const cell = (kind, ...children) => make(kind, { role: "cell" }, ...children);

  const more = makeButton("more", "", () => open(detailsRow.hidden));
  more.append(icon("more"), make("span.said", {}, shown));
  more.setAttribute("aria-expanded", "false");
  more.setAttribute("aria-controls", id);
  const mark = make("span");
  const error = make("span.error.said");
  const [up, toolCount, made, failed] = ["span", "span", "span", "span.failed"].map((kind) => make(kind));
  // Stopping something takes two presses; starting it takes one.
  const once = (label, what, done) => {
    const button = makeButton("", label, () => act(what, done));
    button.setAttribute("aria-label", `${label} ${shown}`);
    return button;
  };
  // In the row, only what the server needs now; the rest is in its details.
  const retry = once("Try again", "restart", "is tried again");
  const enable = once("Enable", "enable", "is enabled");
  const start = once("Start", "release", "starts");
  const complete = makeButton("", "", () => {
    open(true);
    (signIn.offsetParent ? signIn : detailsRow.querySelector("form:not([hidden]) input"))?.focus();
  });
  const acts = make("div.acts", {}, retry, start, enable, complete);
  const restart = twice("Restart", shown, () => act("restart", "restarts"));
  const disable = twice("Disable", shown, () => act("disable", "is disabled"));
  const edit = makeButton("", "Edit", () => editor.open());
  edit.setAttribute("aria-label", `Edit ${shown}`);
  const hold = twice("Stop until restart", shown, () => act("hold", "is stopped until Nonet restarts"));
  const remove = twice("Remove", shown, () => act("remove", "is removed"));
  const more2 = make("div.acts.left", {}, edit, restart, hold, disable, remove);
  const meaning = make("p.small.soft", {}, "Enable, Disable, Edit and Remove change servers.toml. Stop until restart lasts until you press Start, or Nonet restarts.");
  const editor = serverEditor(name, shown, () => edit.focus());
  const tools = serverTools(name, shown);
  const missing = missingValues(name, shown);
  const [login, toOpen] = [copyLine("In a terminal: "), copyLine("Open to sign in: ")];
  const signIn = makeButton("main", "Sign in", async () => {
    // Opened before the answer: a window that opens later is a pop-up to the browser.
    const tab = window.open("about:blank");
    try {
      const { address } = await (await api(`servers/${encodeURIComponent(name)}/login`, { method: "POST" })).json();
      if (!/^https?:/.test(address)) throw new Error("The sign-in server returned no address to open.");
      if (tab) {
        tab.opener = null;
        tab.location = address;
      } else toOpen.show(address);
      speak("The sign-in opens in another tab.");
    } catch (failure) {
      tab?.close();
      if (failure instanceof Refused) return;
      write(signInFault, `No sign-in: ${reason(failure)}`);
      hide(signInFault, false);
    }
  });
  signIn.setAttribute("aria-label", `Sign in to ${shown}`);
  // Stays until the next press.
  const signInFault = make("p.fault.small.said", { role: "alert", hidden: "" });
  signIn.addEventListener("click", () => hide(signInFault, true));
  const signInPart = make("div", {}, make("div.acts.left", {}, signIn), signInFault);
  const token = valueForm(`Token of ${shown}`, "Save the token", async (value) => {
    const told = await (await api(`servers/${encodeURIComponent(name)}/token`, { method: "POST", body: JSON.stringify({ token: value }) })).json();
    showNews(`${shown} has a token.`, [...told.secrets, told.trouble].filter(Boolean));
    await poll();
  }, "It goes into the keyring or secrets.env, and servers.toml gets the reference.");

  const about = make("p.small.soft.num");
  const lastError = make("p.small.said");
  const heading = make("p.small.soft");
  const history = serverHistory(name, shown);
  const stderr = make("pre.said", { tabindex: 0, role: "group", "aria-label": `stderr of ${shown}` });
  const detailsRow = make("tr.details-row", { role: "row", id, hidden: "" },
    make("td", { role: "cell", colspan: 6 }, make("div.details", {}, about, lastError, missing.node, signInPart, toOpen.node, login.node, token, more2, meaning, editor.node, tools.node, heading, stderr, history.node)));
  const body = make("tbody", { role: "rowgroup" },
    make("tr.main", { role: "row" },
      make("th.who", { role: "rowheader", scope: "row" }, more), cell("td.how", mark, error),
      cell("td.right.num.up", up), cell("td.right.num.tools-count", toolCount), cell("td.right.num.calls-count", made, " ", failed), cell("td.do", acts)),
    detailsRow);

  let last = null;
  let busy = false;
  let notDone = "";

  function open(yes) {
    more.setAttribute("aria-expanded", String(yes));
    hide(detailsRow, !yes);
    if (yes && last) showDetails(last);
    if (yes) return;
    tools.close();
    history.close();
  }

  async function act(what, done) {
    if (busy) return;
    busy = true;
    const held = acts.contains(document.activeElement) || more2.contains(document.activeElement);
    const buttons = [...acts.children, ...more2.children];
    for (const button of buttons) button.setAttribute("aria-disabled", "true");
    try {
      const answer = await api(`servers/${encodeURIComponent(name)}/${what}`, { method: "POST" });
      const told = answer.status === 204 ? {} : await answer.json();
      speak(`${shown} ${done}.`);
      const notes = [...(told.trouble ? [told.trouble] : []), ...(told.notes ?? [])];
      if (notes.length || what === "remove") showNews(`${shown} ${done}.`, notes);
    } catch (failure) {
      if (failure instanceof Refused) return;
      notDone = `Could not ${what} ${shown}: ${reason(failure)}`;
      setTimeout(() => { notDone = ""; }, 8000);
      speak(notDone);
    } finally {
      busy = false;
      for (const button of buttons) button.removeAttribute("aria-disabled");
    }
    await poll();
    // The button that was pressed may be gone.
    if (held && document.activeElement === document.body) (more.isConnected ? more : $("add-open")).focus();
  }

  function showDetails(server) {
    const leftOut = server.state === "needs_config";
    const off = server.state === "disabled";
    hide(hold, off || leftOut || server.state === "held");
    hide(restart, off || leftOut || server.state === "held");
    hide(disable, off);
    hide(signInPart, !server.login);
    hide(token, !server.needs_token);
    // A left-out server names the command that completes it.
    login.show(server.login ?? (leftOut ? /`(nonet [^`]+)`/.exec(server.last_error)?.[1] : ""));
    if (!server.login) toOpen.show("");
    missing.show(leftOut ? server.missing ?? [] : []);
    tools.show(server.tools ?? 0);
    history.show(!off && !leftOut);
    const facts = off ? ["disabled in servers.toml"] : leftOut ? ["never started"] : [server.restarts ? plural(server.restarts, "restart") : "never restarted"];
    if (server.started_ms != null) facts.unshift(`started in ${micros(server.started_ms * 1000)}`);
    if (server.version) facts.unshift(server.era ? `speaks MCP ${said(server.version, 30)} (${said(server.era, 20)})` : `speaks ${said(server.version, 30)}`);
    if (server.uis_left_out) facts.push(`clients do not get the user interfaces of ${plural(server.uis_left_out, "tool")}: ui = true in [gateway] lists them`);
    const marks = (server.marks ?? []).slice(0, 5).map((mark) => `${said(mark.tool, 80)} ${said(mark.what, 80)} (${said(mark.where, 60)})`);
    if (marks.length) facts.push(`to look at: ${marks.join(", ")}${server.marks.length > 5 ? `, and ${server.marks.length - 5} more` : ""}`);
    if (server.calls_running) facts.push(`${plural(server.calls_running, "call")} running`);
    write(about, facts.join(" · "));
    write(lastError, server.last_error ? `${leftOut ? "Left out:" : "Last error:"} ${said(server.last_error, 2000)}` : "");
    const lines = (server.stderr ?? []).slice(-100).map((line) => said(String(line).replace(ANSI, ""), 500)).join("\n");
    hide(stderr, lines === "");
    write(heading, lines === "" ? "stderr is empty." : "End of stderr");
    if (stderr.textContent === lines) return;
    const atEnd = stderr.scrollTop + stderr.clientHeight >= stderr.scrollHeight - 8;
    stderr.textContent = lines;
    if (atEnd) stderr.scrollTop = stderr.scrollHeight;
  }

  function show(server) {
    const why = said(server.last_error ?? "", 240);
    if (last && last.state !== server.state) speak(`${shown}: ${stateWords(server.state)}${server.state === "down" ? `, ${why}` : ""}`);
    last = server;
    stateMark(mark, server.state);
    write(error, notDone || why);
    write(up, server.state === "ready" && server.uptime_s != null ? seconds(server.uptime_s) : "–");
    write(toolCount, whole(server.tools));
    write(made, whole(server.calls));
    write(failed, server.failures ? `${whole(server.failures)} failed` : "");
    const off = server.state === "disabled";
    hide(retry, server.state !== "down");
    hide(start, server.state !== "held");
    hide(enable, !off);
    const wanted = server.login ? "Sign in" : server.needs_token ? "Give it a token" : server.missing?.length ? "Give it its values" : "";
    write(complete, wanted);
    complete.setAttribute("aria-label", `${wanted}: ${shown}`);
    hide(complete, !wanted);
    if (!detailsRow.hidden) showDetails(server);
  }

  return {
    body, show,
    text: () => `${name} ${stateWords(last?.state)} ${last?.last_error ?? ""}`.toLowerCase(),
    open() {
      open(true);
      more.focus({ preventScroll: true });
      body.scrollIntoView({ block: "nearest", behavior: still.matches ? "auto" : "smooth" });
    },
  };
}

/** A button that acts on the second press. A double click and a key held down count as one. */
function twice(label, name, act) {
  let armedAt = 0;
  let timer;
  const button = makeButton("", label, () => {
    if (button.hasAttribute("aria-disabled")) return;
    if (!armedAt) return arm();
    if (performance.now() - armedAt < 350) return;
    disarm();
    act();
  });
  function look(className, text, long) {
    set(button, { className, textContent: text });
    button.setAttribute("aria-label", long);
  }
  function arm() {
    const long = `Press again to ${label.toLowerCase()} ${name}`;
    armedAt = performance.now();
    timer = setTimeout(disarm, 5000);
    look("armed", "Press again", long);
    speak(long);
  }
  function disarm() {
    clearTimeout(timer);
    armedAt = 0;
    look("", label, `${label} ${name}`);
  }
  button.addEventListener("keydown", (event) => {
    if (event.repeat && event.key !== "Tab") event.preventDefault();
    if (event.key === "Escape") disarm();
  });
  button.addEventListener("blur", disarm);
  disarm();
  return button;
}
