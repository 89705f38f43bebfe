// --- the first run: taking over the servers of this machine's clients ---

const setup = { all: null, plan: null, busy: false, asked: 0 };
setup.node = $("setup");

/** What is chosen: clients that are ticked, servers that are not, typed values. */
function setupWanted() {
  const box = (kind) => [...setup.node.querySelectorAll(`input[data-kind=${kind}]`)];
  const clients = box("client").filter(({ checked }) => checked).map(({ value }) => value);
  const left = box("server").filter(({ checked }) => !checked).map(({ dataset, value }) => ({ client: dataset.client, server: value }));
  const values = Object.fromEntries(box("value").map(({ name, value }) => [name, value]));
  return { clients, left, values, unasked: setup.risk ? !setup.risk.checked : false };
}

const askSetup = async (path, body = {}) => (await api(`setup${path}`, { method: "POST", body: JSON.stringify(body) })).json();

views.get("setup").open = async () => {
  if (setup.busy || setup.looks) return;
  setup.looks = true;
  tellSetup("Looking for clients …");
  try {
    setup.all = setup.plan = await askSetup("/plan");
    buildSetup();
  } catch (failure) {
    if (!(failure instanceof Refused)) tellSetup(reason(failure));
  } finally {
    setup.looks = false;
  }
};

function tellSetup(words) {
  setup.risk = null;
  setup.node.replaceChildren(make("p.said", { role: "status" }, words), make("div.acts.left", {}, addInstead(), ...undoOffer()));
}

const addInstead = () => makeButton("", "Add a server instead", () => {
  goTo("servers");
  adding.open();
});

function tick(kind, value, label, client = "") {
  const input = make("input", { type: "checkbox", "data-kind": kind, "data-client": client, value, checked: "" });
  input.addEventListener("change", replan);
  return make("label.tick", {}, input, label);
}

/** The whole offer, made once; the differences follow the choices. */
function buildSetup() {
  const { clients, servers, skipped, values, notes, shares, asks_by_risk: asks } = setup.all;
  const ours = (client) => servers.filter((one) => one.client === client.name);
  const movable = clients.filter((client) => ours(client).some(({ server }) => server));
  if (!movable.length && !setup.all.diff) {
    tellSetup(clients.length ? "The clients on this machine have no servers that Nonet can run." : "No client with servers was found on this machine.");
    setup.node.prepend(make("h2", {}, "Begin with a server"));
    return;
  }
  setup.title = make("h2");
  setup.risk = null;
  const server = (client, one) => make("li", {}, one.server ? tick("server", one.name, make("span.mono.said", {}, said(one.name, 80)), client.name) : make("span.mono.said", {}, said(one.name, 80)), " ",
    make("span.small.soft.said", {}, said([one.done === "added" ? "" : one.done.replace(/^already there as/, "the same as"), ...one.rules.map(({ rule, became }) => `its rule ${rule} becomes ${became}`), ...one.notes].filter(Boolean).join("; "), 600)));
  const client = (one) => make("li.setup-client", {}, tick("client", one.name, make("strong.said", {}, said(one.title, 60))), " ",
    make("span.small.soft.mono.said", {}, said(one.file, 300)), make("ul", {}, ...ours(one).map((row) => server(one, row))));
  const value = ([name, what, of]) => {
    const input = make("input", { type: "password", ...plain, autocomplete: "new-password", name, "data-kind": "value" });
    return field(said(name, 80), input, `${said(what, 120)}; for ${said(of.join(", "), 200)}. Without it, the server stays with its client.`);
  };
  setup.diffs = make("div");
  setup.secrets = make("ul.small");
  setup.fault = make("p.fault.said", { role: "alert", hidden: "" });
  setup.go = makeButton("main", "", takeOver);
  if (asks) {
    const label = tick("risk", "", "Ask me before tools of high risk run, such as those that delete things or run programs");
    setup.risk = label.firstChild;
    label.firstChild.removeAttribute("data-kind");
    setup.riskLabel = label;
  }
  setup.node.replaceChildren(setup.title,
    make("p.soft", {}, "Nonet runs these servers from now on, once for all clients. Each client keeps one entry: Nonet. Every file has a backup, and one press undoes all of it."),
    make("div.acts.left", {}, setup.go, addInstead(), ...undoOffer()), setup.fault,
    make("ul.rows", {}, ...movable.map(client), ...clients.filter((one) => !movable.includes(one)).map(client)),
    ...skipped.map(([title, why]) => make("p.small.soft.said", {}, `${said(title, 60)} stays as it is: ${said(why, 400)}`)),
    ...values.map(value), ...(setup.risk ? [setup.riskLabel] : []),
    ...(shares ? [make("p.small.soft", {}, "The clients share one gateway with one set of servers: `shared = true` in servers.toml.")] : []),
    ...notes.map((note) => make("p.small.soft.said", {}, said(note, 400))), setup.secrets, setup.diffs);
  showPlan();
}

function showPlan() {
  const { all, plan } = setup;
  const moves = plan.clients.reduce((sum, client) => sum + client.moves, 0);
  write(setup.title, `${plural(all.clients.length, "client")}, ${plural(all.servers.length, "server")} found`);
  write(setup.go, setup.busy ? "Starting the servers …" : `Take over ${plural(moves, "server")}`);
  setup.go.disabled = setup.busy || !setupWanted().clients.length;
  setup.secrets.replaceChildren(...plan.secrets.map((words) => make("li.said", {}, said(words, 300))));
  const open = new Set([...setup.diffs.querySelectorAll("details[open] summary")].map((summary) => summary.textContent));
  const diff = (title, text, more = []) => {
    const summary = make("summary.said", {}, title);
    return make("details.small", open.has(title) ? { open: "" } : {}, summary, ...more.map((words) => make("p.said", {}, words)), diffLines(make("pre.said.diff", { tabindex: 0, role: "group", "aria-label": title }), text));
  };
  const changed = plan.clients.filter((client) => !client.is_nothing);
  setup.diffs.replaceChildren(...(plan.diff ? [diff(`servers.toml: ${said(plan.file, 300)}`, plan.diff)] : []),
    ...changed.map((client) => diff(`${said(client.title, 60)}: ${said(client.file, 300)}`, client.diff, client.stay.map(([name, why]) => `${said(name, 80)} stays there: ${said(why, 300)}`))));
}

async function replan() {
  const turn = ++setup.asked;
  const wanted = setupWanted();
  if (!wanted.clients.length) return showPlan();
  try {
    const plan = await askSetup("/plan", { ...wanted, values: {} });
    if (turn !== setup.asked) return;
    setup.plan = plan;
    hide(setup.fault, true);
    showPlan();
  } catch (failure) {
    if (!(failure instanceof Refused)) faultOfSetup(reason(failure));
  }
}

function faultOfSetup(words) {
  write(setup.fault, words);
  hide(setup.fault, false);
}

async function takeOver() {
  if (setup.busy) return;
  setup.busy = true;
  hide(setup.fault, true);
  showPlan();
  speak("The servers are starting.");
  try {
    const done = await askSetup("", { ...setupWanted(), seen: setup.plan.seen });
    setup.busy = false;
    showDone(done);
    await poll();
  } catch (failure) {
    setup.busy = false;
    showPlan();
    if (!(failure instanceof Refused)) faultOfSetup(reason(failure));
  }
}

function showDone({ file, clients, broken, secrets, trouble, undo }) {
  const item = (words) => make("li.said", {}, said(words, 800));
  const stays = clients.flatMap(({ title, stay }) => stay.map(([name, why]) => item(`${name} stays with ${title}: ${why}`)));
  const title = make("h2", { tabindex: "-1" }, clients.length ? "Nonet has taken over" : "Not taken over");
  setup.node.replaceChildren(title,
    make("ul", {}, item(`servers.toml: ${file}`), ...clients.flatMap(({ title, told, fault }) => item(`${title}: ${fault ?? told.join(" ")}`)), ...secrets.map(item), ...(trouble ? [item(trouble)] : [])),
    ...(stays.length ? [make("h3", {}, "Not yet"), make("ul", {}, ...stays)] : []),
    ...(Object.keys(broken).length ? [make("p.small.soft", {}, "The Servers view says what each of them needs; then take over the rest here.")] : []),
    make("div.acts.left", {}, makeButton("main", "Show the servers", () => goTo("servers")), undoButton()),
    make("details.small", {}, make("summary", {}, "Undo in a terminal instead"), make("pre.said", { tabindex: 0, role: "group", "aria-label": "Commands" }, undo.map((line) => said(line, 500)).join("\n"))));
  title.focus();
}

const undoOffer = () => (setup.canUndo ? [undoButton()] : []);

const undoButton = () => twice("Undo", "the setup", async () => {
  try {
    const { told, trouble } = await askSetup("/undo");
    await poll();
    tellSetup(["Undone.", ...told, ...trouble].map((words) => said(words, 400)).join(" "));
  } catch (failure) {
    if (!(failure instanceof Refused)) tellSetup(`Not undone: ${reason(failure)}`);
  }
});
