// --- the gateways of this user: the page shows one of them ---

const LOOK_MS = 10_000;
const gateways = { select: $("gateways"), timer: 0, shown: "", missed: 0 };

/** How a gateway is called: by its clients, else by whom it serves. */
function gatewayWords(one, all) {
  const serves = { stdio: "a client", http: "HTTP", shared: "shared gateway", page: "this page only" };
  const file = (path) => String(path ?? "").split(/[\\/]/).slice(-2).join("/");
  const words = [one.clients?.length ? one.clients.slice(0, 3).join(", ") : serves[one.serves] ?? "a gateway"];
  if (all.some((other) => other.config !== one.config)) words.push(file(one.config));
  return said(`${words.join(" · ")} · since ${clock(Date.now() - one.uptime_s * 1000)} · pid ${one.pid}`, 140);
}

/** Shows another gateway, from the beginning. */
function chooseGateway(id, why = "") {
  keepGateway(id, why);
  location.reload();
}

async function loadGateways() {
  clearTimeout(gateways.timer);
  if (user || !running || document.hidden) return;
  try {
    const { gateways: all } = await (await api("gateways", { here: true })).json();
    const own = all[0];
    const chosen = gateway || own.id;
    if (!running) return;
    // One that is busy may miss one look.
    gateways.missed = all.some(({ id }) => id === chosen) ? 0 : gateways.missed + 1;
    if (gateways.missed > 1) return chooseGateway("", "The gateway shown here has ended.");
    // Whoever opens the page wants to see their clients.
    const busy = all.find(({ id, clients, config }) => id !== own.id && clients?.length && config === own.config);
    if (gateway === null && !own.clients?.length && own.serves !== "http" && busy && canKeepGateway()) return chooseGateway(busy.id);
    hide("gateways-part", all.length < 2);
    write("gateways-count", `${whole(all.length)} gateways`);
    const shown = JSON.stringify(all.map(({ id, clients }) => [id, clients]));
    if (gateways.shown !== shown) {
      gateways.shown = shown;
      gateways.select.replaceChildren(...all.map((one) => make("option", { value: one.id }, gatewayWords(one, all))));
    }
    if (!gateways.missed) gateways.select.value = chosen;
  } catch (failure) {
    if (failure instanceof Refused) return;
  }
  gateways.timer = setTimeout(loadGateways, LOOK_MS);
}

gateways.select.addEventListener("change", () => chooseGateway(gateways.select.value));
