// --- servers ---

const rows = new Map();

function showServers(servers) {
  const table = $("server-table");
  hide("no-servers", servers.length > 0);
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
  const [up, tools, made, failed] = ["span", "span", "span", "span.failed"].map((kind) => make(kind));
  // Stopping something takes two presses; starting it takes one.
  const restart = twice("Restart", shown, () => act("restart", "restarts"));
  const disable = twice("Disable", shown, () => act("disable", "is disabled"));
  const enable = makeButton("", "Enable", () => act("enable", "starts"));
  enable.setAttribute("aria-label", `Enable ${shown}`);
  const acts = make("div.acts", {}, restart, disable, enable);

  const about = make("p.small.soft.num");
  const lastError = make("p.small.said");
  const heading = make("p.small.soft");
  const stderr = make("pre.said", { tabindex: 0, role: "group", "aria-label": `stderr of ${shown}` });
  const detailsRow = make("tr.details-row", { role: "row", id, hidden: "" },
    make("td", { role: "cell", colspan: 6 }, make("div.details", {}, about, lastError, heading, stderr)));
  const body = make("tbody", { role: "rowgroup" },
    make("tr.main", { role: "row" },
      make("th.who", { role: "rowheader", scope: "row" }, more), cell("td.how", mark, error),
      cell("td.right.num.up", up), cell("td.right.num.tools-count", tools), cell("td.right.num.calls-count", made, " ", failed), cell("td.do", acts)),
    detailsRow);

  let last = null;
  let busy = false;
  let notDone = "";

  function open(yes) {
    more.setAttribute("aria-expanded", String(yes));
    hide(detailsRow, !yes);
    if (yes && last) showDetails(last);
  }

  async function act(what, done) {
    if (busy) return;
    busy = true;
    const held = acts.contains(document.activeElement);
    for (const button of acts.children) button.setAttribute("aria-disabled", "true");
    try {
      await api(`servers/${encodeURIComponent(name)}/${what}`, { method: "POST" });
      speak(`${shown} ${done}.`);
    } catch (failure) {
      if (failure instanceof Refused) return;
      notDone = `Could not ${what} ${shown}: ${reason(failure)}`;
      setTimeout(() => { notDone = ""; }, 8000);
      speak(notDone);
    } finally {
      busy = false;
      for (const button of acts.children) button.removeAttribute("aria-disabled");
    }
    await poll();
    // The button that was pressed may be gone.
    if (held && document.activeElement === document.body) more.focus();
  }

  function showDetails(server) {
    const facts = server.state === "needs_config" ? ["never started"] : [server.restarts ? plural(server.restarts, "restart") : "never restarted"];
    if (server.started_ms != null) facts.unshift(`started in ${micros(server.started_ms * 1000)}`);
    if (server.version) facts.unshift(server.era ? `speaks MCP ${said(server.version, 30)} (${said(server.era, 20)})` : `speaks ${said(server.version, 30)}`);
    const marks = (server.marks ?? []).slice(0, 5).map((mark) => `${said(mark.tool, 80)} ${said(mark.what, 80)} (${said(mark.where, 60)})`);
    if (marks.length) facts.push(`to look at: ${marks.join(", ")}${server.marks.length > 5 ? `, and ${server.marks.length - 5} more` : ""}`);
    if (server.calls_running) facts.push(`${plural(server.calls_running, "call")} running`);
    write(about, facts.join(" · "));
    const leftOut = server.state === "needs_config";
    write(lastError, server.last_error ? `${leftOut ? "Left out:" : "Last error:"} ${said(server.last_error, 2000)}` : "");
    const lines = (server.stderr ?? []).slice(-100).map((line) => said(String(line).replace(ANSI, ""), 500)).join("\n");
    hide(stderr, lines === "");
    write(heading, lines === "" ? "Nothing on its stderr." : "The end of its stderr");
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
    write(tools, whole(server.tools));
    write(made, whole(server.calls));
    write(failed, server.failures ? `${whole(server.failures)} failed` : "");
    const off = server.state === "disabled";
    // Only a changed file brings it in.
    const leftOut = server.state === "needs_config";
    hide(restart, off || leftOut);
    hide(disable, off || leftOut);
    hide(enable, !off || leftOut);
    if (!detailsRow.hidden) showDetails(server);
  }

  return {
    body, show,
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
