// --- clients ---

function showClients(clients) {
  hide("no-clients", clients.length > 0);
  fill($("clients"), clients.slice(0, 20), () => {
    const [name, sees] = ["p.said", "p.small.soft.said"].map((kind) => make(kind));
    return {
      node: make("li", {}, name, sees),
      show({ client, session, profile }) {
        write(name, said(client) || "an unnamed client");
        write(sees, `session ${said(session, 20)}, ${profile ? `profile ${said(profile, 40)}` : "sees everything"}`);
      },
    };
  });
}

/** What the file of a client has of Nonet, in words, with the class of its tag. */
const PRESENT = new Map(Object.entries({
  here: ["uses this Nonet", "accent"], other: ["uses Nonet with another configuration", "warn"],
  elsewhere: ["has another entry called nonet", "warn"], absent: ["without Nonet", ""],
}));

views.get("clients").open = async () => {
  try {
    const { hosts } = await (await api("hosts")).json();
    // Those that are there first.
    fill($("hosts"), hosts.sort((a, b) => b.found - a.found), hostRow);
    hide("no-hosts", true);
  } catch (failure) {
    write("no-hosts", reason(failure));
    hide("no-hosts", false);
  }
};

/** A difference of a file, with its lines in their colours. */
function diffLines(node, diff) {
  const kind = (line) => (/^(---|\+\+\+) /.test(line) ? ".soft" : { "+": ".plus", "-": ".minus" }[line[0]] ?? "");
  node.replaceChildren(...said(diff, 60_000).trimEnd().split("\n").map((line) => make(`span${kind(line)}`, {}, `${line}\n`)));
  return node;
}

/** A client on this machine: its file, and what puts Nonet there or takes it out. */
function hostRow() {
  let host = {};
  let change = null;
  const [title, tag, file, fault, told] = ["strong.said", "span.tag", "p.small.soft.mono.said", "p.small.said.bad", "p.small.said"].map((kind) => make(kind));
  const acts = make("div.acts.left");
  const button = (label, act) => {
    const made = makeButton("", label, act);
    acts.append(made);
    return made;
  };
  const install = button("Install", () => look("install"));
  const uninstall = button("Uninstall", () => look("uninstall"));
  const show = button("Entry to copy", () => {
    hide(entry, !entry.hidden);
    show.setAttribute("aria-expanded", String(!entry.hidden));
  });
  const code = make("pre.said", { tabindex: 0, role: "group" });
  const entry = make("div.entry", { hidden: "" }, code, makeButton("", "Copy", () => copy(code.textContent)));
  const diff = make("pre.said.diff", { tabindex: 0, role: "group" });
  const apply = makeButton("main", "Apply", () => write_());
  const cancel = makeButton("", "Cancel", () => close());
  const shownChange = make("div.entry", { hidden: "" }, diff, make("div.acts.left", {}, apply, cancel));
  told.setAttribute("role", "status");

  function close() {
    change = null;
    hide(shownChange, true);
    (install.hidden ? uninstall : install).focus();
  }

  async function look(action) {
    try {
      change = { action, ...(await (await api(`hosts/${host.name}/${action}`)).json()) };
      write(told, `${change.nothing ? "" : "Planned change: "}${change.told.map((text) => said(text, 300)).join(" ")}`);
      diffLines(diff, change.diff);
      hide(shownChange, change.nothing);
      if (!change.nothing) apply.focus();
    } catch (failure) {
      write(told, reason(failure));
    }
  }

  async function write_() {
    const { action, digest } = change;
    try {
      const done = await (await api(`hosts/${host.name}/${action}`, { method: "POST", body: JSON.stringify({ digest }) })).json();
      write(told, `${done.told.map((text) => said(text, 300)).join(" ")}${done.backup ? ` Before: ${said(done.backup, 300)}` : ""}`);
      await views.get("clients").open();
      close();
    } catch (failure) {
      write(told, `Not done: ${reason(failure)}`);
    }
  }

  return {
    node: make("li.host", {}, make("div.line", {}, title, tag), file, fault, acts, told, shownChange, entry),
    show(now) {
      host = now;
      write(title, said(host.title, 60));
      const [words, kind] = PRESENT.get(host.nonet) ?? ["not readable", "bad"];
      set(tag, { textContent: host.found || host.nonet !== "absent" ? words : "not found here", className: `tag ${host.found ? kind : ""}` });
      write(file, `${said(host.file, 300)}${host.nonet === "other" && host.config ? `, with ${said(host.config, 300)}` : ""}`);
      write(fault, said(host.fault, 600));
      write(code, said(host.entry, 4000));
      code.setAttribute("aria-label", `Entry for ${host.title}`);
      diff.setAttribute("aria-label", `Change of the file of ${host.title}`);
      hide(install, !host.found || host.nonet === "here" || Boolean(host.fault));
      hide(uninstall, Boolean(host.fault) || host.nonet === "absent");
      write(install, host.nonet === "absent" ? "Install" : "Update");
      install.setAttribute("aria-label", `${install.textContent} Nonet in ${host.title}`);
      uninstall.setAttribute("aria-label", `Uninstall Nonet from ${host.title}`);
      show.setAttribute("aria-label", `Entry to copy for ${host.title}`);
      show.setAttribute("aria-expanded", String(!entry.hidden));
    },
  };
}
