// What a script finds around it. Runs before the script, in the same realm, and keeps the functions of the
// language that it needs, so that a script which replaces them harms only itself.
export default function prelude(native, start) {
  const { parse } = JSON;
  const toJson = JSON.stringify;
  const { freeze, defineProperty, keys } = Object;
  const NativeDate = Date;
  const NativeError = Error;
  const NativePromise = Promise;
  const { apply } = Reflect;
  const { includes, replace } = String.prototype;
  const { values } = Object;
  const waiting = new Map();
  let next = 1;
  let now = start.now_ms;
  let calls = 0;
  let sleeping = 0;

  // JSON for the gateway. Half of a character pair, which no UTF-8 has, becomes a replacement character.
  function stringify(value) {
    const json = toJson(value);
    if (json === undefined || !apply(includes, json, ["\\ud"])) return json;
    return apply(replace, json, [/\\(?:u(d[89a-f][0-9a-f]{2})|.)/g, (all, half) => (half === undefined ? all : "\\ufffd")]);
  }
  // Whether a value is nested deeper than the gateway reads.
  const isDeep = (value, left) =>
    typeof value === "object" && value !== null && (left === 0 || values(value).some((one) => isDeep(one, left - 1)));
  function sendable(value, what) {
    const json = stringify(value);
    if (json === undefined) throw new TypeError(`${what} cannot be a ${typeof value}`);
    if (json.length > start.max_bytes) throw new RangeError(`${what} has more than ${start.max_bytes} bytes`);
    if (isDeep(value, 100)) throw new RangeError(`${what} is nested more than 100 deep`);
    return json;
  }
  Map.prototype.toJSON = function () { return Object.fromEntries(this); };
  Set.prototype.toJSON = function () { return [...this]; };

  class ToolError extends NativeError {
    constructor(fault) {
      super(String(fault.message));
      defineProperty(this, "message", { value: this.message, enumerable: true, writable: true, configurable: true });
      this.name = "ToolError";
      this.code = fault.code;
      this.retryable = fault.retryable === true;
      if (fault.did_you_mean !== undefined) this.did_you_mean = fault.did_you_mean;
      if (fault.details !== undefined) this.details = fault.details;
    }
  }

  // A request to the gateway. The place of an error is where the script made the request.
  function request(op, body) {
    const id = next++;
    const at = new NativeError();
    return new NativePromise((resolve, reject) => {
      native.send(sendable({ request: { ...body, id, op } }, `what ${op} sends`));
      if (op === "sleep") sleeping++;
      waiting.set(id, { resolve, reject, at, op });
    });
  }

  function settle(id, isValue, value, time) {
    if (time > now) now = time;
    const one = waiting.get(id);
    if (one === undefined) return;
    waiting.delete(id);
    if (one.op === "sleep") sleeping--;
    if (isValue) return one.resolve(value);
    const error = new ToolError(value);
    defineProperty(error, "stack", { value: one.at.stack, configurable: true, writable: true });
    one.reject(error);
  }

  // A call that waits for the user leaves its place in `all` to the next one, so that one question can name
  // all of them.
  const places = new Map();
  let placed;
  function held(id) {
    const free = places.get(id);
    places.delete(id);
    if (free !== undefined) free();
  }

  function call(name, args) {
    if (typeof name !== "string") throw new TypeError("call(name, args): the name of a tool is a string");
    if (args !== undefined && (typeof args !== "object" || args === null)) {
      throw new TypeError(`${name}: the params are one object, not ${args === null ? "null" : typeof args}`);
    }
    if (++calls > start.max_calls) {
      const message = `A script makes at most ${start.max_calls} calls, and this is one more. Return what there is, and go on in another script.`;
      return NativePromise.reject(new ToolError({ code: "rate_limited", message }));
    }
    const id = next;
    const made = request("call", { name, params: args === undefined ? {} : args });
    if (placed !== undefined) places.set(id, placed);
    return made;
  }

  const isKey = (key) => typeof key === "string" && !["then", "toJSON", "toString", "valueOf"].includes(key);
  const named = (name) => (key) => (key === "toString" ? () => name : undefined);
  const refuse = () => { throw new TypeError("`tools` cannot be changed"); };
  const sealed = { set: refuse, defineProperty: refuse, deleteProperty: refuse, setPrototypeOf: refuse };
  const server = (name) => new Proxy(freeze(() => {}), {
    ...sealed,
    get: (_, tool) => (isKey(tool) ? (args) => call(`${name}.${tool}`, args) : named(`tools.${name}`)(tool)),
    apply: (_, self, args) => call(name, args[0]),
  });
  const tools = new Proxy(freeze({ __proto__: null }), {
    ...sealed,
    get: (_, name) => (isKey(name) ? server(name) : named("tools")(name)),
  });

  async function all(list, fn, options) {
    const items = [...list];
    if (fn === undefined) return NativePromise.all(items);
    if (typeof fn !== "function") throw new TypeError("all(list, fn, {max}): `fn` is a function");
    const most = Math.max(1, Math.min(16, Math.trunc(options?.max ?? 8) || 8));
    const results = new Array(items.length);
    return new NativePromise((resolve, reject) => {
      let at = 0, running = 0, ended = 0, failed = false;
      const go = () => {
        while (!failed && running < most && at < items.length) {
          const index = at++;
          running++;
          let isIn = true;
          const leave = () => { if (isIn) { isIn = false; running--; go(); } };
          const before = placed;
          let one;
          placed = leave;
          try {
            one = NativePromise.resolve(fn(items[index], index));
          } catch (error) {
            one = NativePromise.reject(error);
          } finally {
            placed = before;
          }
          one.then(
            (value) => { results[index] = value; ended++; leave(); if (ended === items.length) resolve(results); },
            (error) => { failed = true; reject(error); },
          );
        }
      };
      if (items.length === 0) resolve(results);
      go();
    });
  }

  const text = (value) => {
    if (typeof value === "string") return value;
    if (value instanceof NativeError) return `${value.name}: ${value.message}`;
    try {
      return stringify(value) ?? String(value);
    } catch {
      return String(value);
    }
  };
  const log = (...values) => native.log(values.map(text).join(" ").toWellFormed());

  function* rowsOf(csv, separator) {
    let row = [], cell = "", at = csv.charCodeAt(0) === 0xfeff ? 1 : 0, quoted = false, any = false;
    for (; at < csv.length; at++) {
      const c = csv[at];
      if (quoted) {
        if (c !== '"') cell += c;
        else if (csv[at + 1] === '"') { cell += '"'; at++; }
        else quoted = false;
      } else if (c === '"' && cell === "") { quoted = true; any = true; }
      else if (c === separator) { row.push(cell); cell = ""; any = true; }
      else if (c === "\n" || c === "\r") {
        if (c === "\r" && csv[at + 1] === "\n") at++;
        if (any || cell !== "") { row.push(cell); yield row; }
        row = []; cell = ""; any = false;
      } else cell += c;
    }
    if (quoted) throw new SyntaxError("parse.csv: the text ends inside a quoted value");
    if (any || cell !== "") { row.push(cell); yield row; }
  }
  function table(rows) {
    const list = [...rows];
    if (list.every(Array.isArray)) return list;
    const names = [...new Set(list.flatMap((row) => keys(row)))];
    return [names, ...list.map((row) => names.map((name) => row[name]))];
  }
  const cell = (value) => (value === undefined || value === null ? "" : text(value));

  const reading = (ref) => {
    const read = (how, more) => request("result", { ref: String(ref), how, ...more });
    return freeze({
      json: () => read("json"),
      text: () => read("text"),
      jq: (filter) => read("jq", { filter: String(filter) }),
      lines: async function* () {
        for (let from = 0; from != null; ) {
          const page = await read("lines", { from });
          yield* page.lines;
          from = page.next;
        }
      },
    });
  };

  // The time of a script is the time of the last answer that it got, so that a run which is repeated sees
  // the same.
  const ScriptDate = new Proxy(NativeDate, {
    construct: (target, args, of) => Reflect.construct(target, args.length ? args : [now], of === ScriptDate ? target : of),
    apply: () => new NativeDate(now).toString(),
    get: (target, key) => (key === "now" ? () => now : target[key]),
  });
  NativeDate.prototype.constructor = ScriptDate;
  Math.random = native.random;

  const sleep = (ms) => request("sleep", { ms: Math.min(3_600_000, Math.max(0, Number(ms) || 0)) });
  const cleared = new Set();
  let timers = 0;
  const choicesOf = (given) => {
    const choices = given?.choices ?? given;
    if (choices === undefined || choices === null) return undefined;
    return (Array.isArray(choices) ? choices : [choices]).map(String);
  };
  const globals = {
    Date: ScriptDate,
    ToolError,
    tools,
    call,
    all,
    input: start.input,
    log,
    sleep,
    search: (query, options) => request("search", { ...options, query: String(query) }),
    describe: (name) => request("describe", { name: String(name) }),
    result: reading,
    ask: (question, choices) => request("ask", { question: String(question), choices: choicesOf(choices) }),
    progress: (done, total, message) => native.send(stringify({ progress: { done: Number(done), total: total === undefined ? null : Number(total), message: message === undefined ? null : String(message) } })),
    parse: freeze({
      csv: (csv, separator = ",") => {
        const [names = [], ...rows] = rowsOf(String(csv), separator);
        return rows.map((row) => {
          const one = {};
          names.forEach((name, at) => { one[name.trim()] = row[at] ?? null; });
          return one;
        });
      },
      jsonl: (lines) => String(lines).split("\n").filter((line) => line.trim() !== "").map((line) => parse(line)),
    }),
    format: freeze({
      csv: (rows) => table(rows).map((row) => row.map((value) => {
        const plain = cell(value);
        return /[",\n\r]|^\s|\s$/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
      }).join(",") + "\n").join(""),
      markdown: (rows) => {
        const line = (row) => `| ${row.join(" | ")} |\n`;
        const cells = table(rows).map((row) => row.map((value) => cell(value).replaceAll("|", "\\|").replaceAll(/\r?\n/g, "<br>")));
        const [head, ...rest] = cells;
        return head === undefined ? "" : line(head) + line(head.map(() => "---")) + rest.map(line).join("");
      },
    }),
    console: freeze({ log, info: log, warn: log, error: log, debug: log }),
    setTimeout: (fn, ms, ...args) => {
      const timer = ++timers;
      sleep(ms).then(() => { if (!cleared.has(timer)) fn(...args); });
      return timer;
    },
    clearTimeout: (timer) => { cleared.add(timer); },
    structuredClone: (value) => parse(toJson(value)),
  };
  for (const name of keys(globals)) {
    defineProperty(globalThis, name, { value: globals[name], writable: true, configurable: true });
  }

  // The value of a script as JSON; what JSON does not know is told, not dropped.
  function written(value) {
    return value === undefined ? "null" : sendable(value, "what a script returns");
  }
  return { settle, held, written, open: () => waiting.size, calls: () => waiting.size - sleeping };
}
