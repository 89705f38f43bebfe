// --- keys ---

const KEPT_KEYS = "nonet-single-keys";
const singleKeys = $("single-keys");
try { singleKeys.checked = localStorage.getItem(KEPT_KEYS) !== "off"; } catch {}
singleKeys.addEventListener("change", () => {
  try { localStorage.setItem(KEPT_KEYS, singleKeys.checked ? "on" : "off"); } catch {}
});
$("keys-button").addEventListener("click", () => $("keys").showModal());
$("keys-close").addEventListener("click", () => $("keys").close());

const SINGLE = new Map(Object.entries({
  "/": () => { goTo("live"); query.focus(); query.select(); },
  p: pause,
  f: () => { goTo("live"); filter.focus(); },
  w: () => { goTo("work"); $("work-task-title").focus(); },
  s: () => { goTo("servers"); $("server-table").querySelector("button")?.focus(); },
  "?": () => $("keys").showModal(),
}));
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return;
  if (!running || !singleKeys.checked || $("keys").open || event.target.closest?.("input, textarea, select")) return;
  const act = SINGLE.get(event.key);
  if (!act) return;
  event.preventDefault();
  act();
});

takeToken();
// Why the page shows another gateway than before.
try {
  const why = sessionStorage.getItem(`${KEPT_GATEWAY}-why`);
  write("ended", why ?? "");
  hide("ended", !why);
  if (why) keepGateway(gateway);
} catch {}
openGate();
