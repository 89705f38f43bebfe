// --- search ---

const LIMIT = 20;
const SIGNALS = new Map([["meaning", "meaning"], ["keywords", "words"], ["letters", "letters"], ["learned", "learned"]]);
const query = $("query");
const hits = [];
let shownHits = 0;
let chosen = -1;
let asking = null;
let tellTimer;

for (const example of ["read a file", "what changed in this branch", "open a pull request", "time in Tokyo"]) {
  $("examples").append(makeButton("chip", example, () => {
    query.value = example;
    query.focus();
    search();
  }));
}

/** One request for each change of the words; the one before is given up. */
async function search() {
  const q = query.value.trim();
  asking?.abort();
  clearTimeout(tellTimer);
  hide("found-part", q === "");
  hide("examples", q !== "");
  query.setAttribute("aria-expanded", String(q !== ""));
  const abort = (asking = new AbortController());
  if (q === "") return showAnswer({}, "", "");
  const began = performance.now();
  try {
    const answer = await (await api(`search?${new URLSearchParams({ q, limit: LIMIT })}`, { signal: abort.signal })).json();
    if (asking !== abort) return;
    const count = answer.results?.length ?? 0;
    const text = count
      ? `${plural(count, "tool")} of ${whole(answer.total)}; confidence ${said(answer.confidence, 20)}`
      : "Nothing matches. Describe what the tool should do in other words.";
    showAnswer(answer, text, `${Math.max(1, Math.round(performance.now() - began))} ms`);
    tellTimer = setTimeout(() => speak(count ? `${text}. First: ${said(answer.results[0].name)}` : text), 800);
  } catch (error) {
    if (asking === abort && !(error instanceof Refused)) showAnswer({}, reason(error), "");
  }
}

function showAnswer({ results = [], hint = "" }, text, took) {
  const list = $("results");
  while (hits.length < results.length) {
    const hit = hitItem(hits.length);
    hits.push(hit);
    list.append(hit.item);
  }
  const sums = results.map((result) => signalsOf(result).reduce((sum, [, worth]) => sum + worth, 0));
  const most = Math.max(...sums, 0.001);
  results.forEach((result, at) => showHit(hits[at], result, most));
  for (let at = results.length; at < shownHits; at++) hits[at].item.hidden = true;
  shownHits = results.length;
  choose(-1);
  if (list.scrollTop) list.scrollTop = 0;
  write("found", text);
  write("took", took);
  write("hint", said(hint, 400));
}

/** The parts of a hit, made once; each search writes into them. */
function hitItem(at) {
  const hit = {
    name: make("span.name.said"), risk: make("span"), state: make("span.tag.warn"), named: make("span.tag.accent", {}, "by its name"),
    score: make("span.score.num"), what: make("p.what.said"), signature: make("p.signature.small.mono.said.soft"),
    why: make("div.why", { "aria-hidden": "true" }), because: make("p.because"), result: null,
  };
  hit.item = make("li.hit", { id: `hit-${at}`, role: "option", "aria-selected": "false" },
    make("div.line", {}, hit.name, hit.risk, hit.state, hit.named, hit.score), hit.what, hit.signature, hit.why, hit.because);
  hit.item.addEventListener("click", () => {
    choose(at);
    query.focus({ preventScroll: true });
  });
  return hit;
}

/** What each signal adds, as [name, number]; without those that add nothing. */
function signalsOf({ explain = {} }) {
  return Object.entries(explain.signals ?? explain).filter(([, worth]) => typeof worth === "number" && worth > 0).slice(0, 8);
}

function wordsOf({ words = [] }) {
  return words.slice(0, 8).map((word) => said(word.word ?? word, 30) + (word.for ? ` for ${said(word.for, 30)}` : "")).join(", ");
}

/** A text that was cut, up to its last sentence, else its last whole word. */
const ended = (text) => (/(…|\.{3})$/.test(text) ? /^(.{40,}?[.!?])\s[^.!?]*(…|\.{3})$/s.exec(text)?.[1] ?? text.replace(/\s+\S*(…|\.{3})$/, " …") : text);

function showHit(hit, result, most) {
  const { risk, state, explain = {} } = result;
  hit.result = result;
  hide(hit.item, false);
  write(hit.name, said(result.name, 160));
  set(hit.risk, { hidden: !risk, className: risk === "high" ? "tag bad" : "tag", textContent: `${said(risk, 20)} risk` });
  set(hit.state, { hidden: !state || state === "ready", textContent: `server: ${stateWords(state)}` });
  hide(hit.named, explain.name !== true);
  write(hit.score, typeof result.score === "number" ? result.score.toFixed(2) : "");
  write(hit.what, ended(said(result.description, 600)));
  write(hit.signature, said(result.signature, 400));

  const reasons = signalsOf(result).map(([name, worth]) => {
    const words = name === "keywords" ? wordsOf(explain) : "";
    return { colour: SIGNALS.has(name) ? `s-${name}` : "s-other", worth,
      text: `${SIGNALS.get(name) ?? said(name, 30)} ${worth.toFixed(2)}${words && ` (${words})`}` };
  });
  resize(hit.why, reasons.length, () => make("i"));
  reasons.forEach(({ colour, worth }, at) => {
    set(hit.why.children[at], { className: colour });
    hit.why.children[at].style.width = `${((100 * worth) / most).toFixed(1)}%`;
  });
  if (explain.part) reasons.push({ text: `for the part “${said(explain.part)}”` });
  if (explain.learned_from) reasons.push({ text: `called after a search for “${said([explain.learned_from].flat().join(" "))}”` });
  resize(hit.because, reasons.length, () => make("span", {}, make("b"), make("span.said")));
  reasons.forEach(({ colour, text }, at) => {
    const [swatch, words] = hit.because.children[at].children;
    set(swatch, { hidden: !colour, className: colour ?? "" });
    write(words, text);
  });
}

/** Gives a node so many children. */
function resize(node, count, child) {
  while (node.children.length > count) node.lastChild.remove();
  while (node.children.length < count) node.append(child());
}

function choose(at) {
  hits[chosen]?.item.setAttribute("aria-selected", "false");
  chosen = at;
  if (at < 0) return query.removeAttribute("aria-activedescendant");
  const { item } = hits[at];
  item.setAttribute("aria-selected", "true");
  query.setAttribute("aria-activedescendant", item.id);
  // Scrolls the list and nothing else.
  const list = $("results");
  const top = item.offsetTop;
  const bottom = top + item.offsetHeight;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (bottom > list.scrollTop + list.clientHeight) list.scrollTop = Math.min(top, bottom - list.clientHeight);
}

async function copyName() {
  if (shownHits === 0) return;
  choose(Math.max(chosen, 0));
  const { name } = hits[chosen].result;
  try {
    await navigator.clipboard.writeText(String(name));
    write("took", "name copied");
    speak(`${said(name)} copied.`);
  } catch {
    write("took", "the browser does not allow this page to copy");
  }
}

query.addEventListener("input", search);
query.addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  if (event.key === "ArrowDown") choose(Math.min(chosen + 1, shownHits - 1));
  else if (event.key === "ArrowUp") choose(Math.max(chosen - 1, -1));
  else if (event.key === "Enter") copyName();
  else if (event.key === "Escape") emptied(query, search);
  else return;
  event.preventDefault();
});

/** Esc: empties the field, and leaves it when it is empty. */
function emptied(field, then) {
  if (field.value === "") return field.blur();
  field.value = "";
  then();
}
