"""A client of `nonet` over stdio that counts what a model would send and read, and lets it use only what it has read."""

import json
import os
import queue
import re
import subprocess
import threading
import time

PROTOCOL = "2025-06-18"
PATIENCE_S = 180


class Failed(Exception):
    """A session went another way than its task needs."""


def need(holds, what):
    if not holds:
        raise Failed(what)


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class Answer:
    """What a call came back with."""

    def __init__(self, result):
        self.result = result
        self.is_error = result.get("isError", False)
        self.blocks = result.get("content", [])
        texts = [block["text"] for block in self.blocks if block["type"] == "text"]
        self.text = texts[0] if texts else ""
        self.texts = texts

    @property
    def json(self):
        try:
            return json.loads(self.text)
        except ValueError:
            raise Failed(f"not JSON: {self.text[:300]}") from None

    @property
    def error(self):
        need(self.is_error, f"no fault: {self.text[:300]}")
        return self.json["error"]

    @property
    def notices(self):
        for text in self.texts:
            if text.startswith('{"notices"'):
                return json.loads(text)["notices"]
        return []


class Session:
    """One fresh session. `known` is what the model has read of each tool: calls may use nothing else."""

    def __init__(self, words, env, transcript=None, capabilities=None):
        self.calls = self.sent = self.read = self.wire = 0
        self.finds = []
        self.notices = []
        self.known = {}
        self.transcript = transcript
        self.words, self.env, self.capabilities = words, env, capabilities or {}
        self.open()

    def open(self):
        self.lines = queue.Queue()
        self.last_id = 0
        self.process = subprocess.Popen(
            self.words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self.env
        )
        threading.Thread(target=self._listen, args=(self.process, self.lines), daemon=True).start()
        client = {"name": "tasks", "version": "1"}
        hello = {"protocolVersion": PROTOCOL, "capabilities": self.capabilities, "clientInfo": client}
        self.instructions = self.request("initialize", hello).get("instructions", "")
        self._send({"method": "notifications/initialized"})
        self.tools = self.request("tools/list", {})["tools"]
        self._note(f"# instructions\n{self.instructions}\n")

    def reopen(self):
        """Another session, which knows nothing of the one before; the counts go on."""
        self.close()
        self.known = {}
        self.open()

    def opening(self):
        """The bytes that a session begins with: the instructions and the definitions."""
        fields = ("name", "description", "inputSchema")
        shown = [{field: tool[field] for field in fields if field in tool} for tool in self.tools]
        return len(self.instructions.encode()) + len(compact(shown).encode())

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @staticmethod
    def _listen(process, lines):
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    def _send(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def request(self, method, params):
        self.last_id += 1
        self._send({"id": self.last_id, "method": method, "params": params})
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                line = self.lines.get(timeout=max(0.1, deadline - time.monotonic()))
            except queue.Empty:
                raise Failed(f"no answer to {method} within {PATIENCE_S} s") from None
            need(line is not None, f"nonet ended before it answered {method}")
            message = json.loads(line)
            if "method" in message and "id" in message:
                self._send({"id": message["id"], "error": {"code": -32601, "message": "not here"}})
            elif message.get("id") == self.last_id:
                need("result" in message, f"{method}: {message.get('error')}")
                return message["result"]

    def _note(self, text):
        if self.transcript:
            self.transcript.write(text + "\n")
            self.transcript.flush()

    # --- the nine ---------------------------------------------------------------------------------

    def call(self, tool, **arguments):
        """Calls a meta-tool and counts: what is sent is its name and arguments, what is read are the text blocks."""
        self.calls += 1
        sent = len(tool) + len(compact(arguments).encode())
        self._note(f"-> {tool} {compact(arguments) if sent < 2000 else compact(arguments)[:2000] + '...'}")
        self.sent += sent
        began = time.monotonic()
        answer = Answer(self.request("tools/call", {"name": tool, "arguments": arguments}))
        read = 0
        for block in answer.blocks:
            inner = block.get("text") or block.get("resource", {}).get("text") or block.get("uri") or ""
            read += len(inner.encode())
            self.learn(inner)
            self._note(f"<- [{block['type']}, {len(inner.encode())}] {inner}")
        self.notices += answer.notices
        whole = len(compact(answer.result).encode())
        self.wire += whole
        self._note(f"   ({time.monotonic() - began:.2f} s, {whole} bytes in all)\n")
        self.read += read
        return answer

    def search(self, query, **more):
        """Searches: the whole answer. What it says of each tool is known from then on."""
        return self.call("search_tools", query=query, **more).json

    def find(self, wanted, *queries, **more):
        """The name of a tool that was read: now, or by searching, in other words if it is not among the results.

        `wanted` may be several tools that would all do; the one that stands first is taken.
        """
        wanted = [wanted] if isinstance(wanted, str) else wanted
        for name in wanted:
            if name in self.known:
                return name
        names = []
        for query in queries:
            found = self.search(query, **more)
            names = [result["name"] for result in found.get("results", [])]
            fitting = [name for name in names if name in wanted]
            if fitting:
                self.finds.append((found.get("confidence"), names.index(fitting[0]) + 1))
                return fitting[0]
            self.finds.append((found.get("confidence"), None))
        raise Failed(f"{queries} did not find {wanted}, but {names}")

    def learn(self, text, name=None):
        """Notes what a text says of the params of tools."""
        names = list(re.finditer(r'"name":\s*"([\w-]+\.[^"\\]+)"', text))
        ends = [name.start() for name in names[1:]] + [len(text)]
        for named, end in zip(names, ends):
            signature = re.search(r'"signature":\s*"\(((?:[^"\\]|\\.)*)\)"', text[named.end() : end])
            tool = named.group(1)
            self.known[tool] = self.known.get(tool, "") + (signature.group(1) if signature else "")
        if name:
            self.known[name] = self.known.get(name, "") + text

    def prepare(self, name, params):
        """Reads the whole definition of a tool where the signature does not say all names that are needed."""
        need(name in self.known, f"`{name}` was not read before it was used")
        # `params` of a watch or a schedule are those of another tool.
        params = {key: {} if key == "params" else value for key, value in params.items()}
        if not self.understands(name, params):
            self.describe(name)
            for key in unknown(self.known[name], params):
                raise Failed(f"nothing says that `{name}` takes `{key}`")

    def describe(self, name):
        """Reads the whole definition of a tool."""
        self.learn(self.call("get_tool", name=name).text, name)

    def understands(self, name, params):
        return not list(unknown(self.known[name], params))

    def run(self, name, params=None, **more):
        """Runs a tool of a server."""
        self.prepare(name, params or {})
        answer = self.call("execute_tool", name=name, params=params or {}, **more)
        if answer.is_error:
            self.learn(answer.text, name)
        return answer

    def do(self, name, params=None, **more):
        """The same, for a call that has to succeed."""
        answer = self.run(name, params, **more)
        need(not answer.is_error, f"{name}: {answer.text[:400]}")
        return answer

    def guess(self, name, params, **more):
        """A call by a model that did not read what it should have."""
        answer = self.call("execute_tool", name=name, params=params, **more)
        if answer.is_error:
            for near in answer.error.get("did_you_mean", []):
                self.known.setdefault(near, "")
        return answer

    def follow(self, step):
        """Makes a call that an answer holds, as it stands."""
        need(step, "there is no next step")
        need("<" not in compact(step["arguments"]), f"the next step has gaps: {step}")
        return self.call(step["tool"], **step["arguments"])

    def graph(self, *actions, **more):
        """Runs several actions."""
        definition = compact(next(tool for tool in self.tools if tool["name"] == "run_parallel"))
        for action in actions:
            if "name" in action:
                self.prepare(action["name"], action.get("params", {}))
            for key in unknown(definition, {key: value if key == "retry" else {} for key, value in action.items()}):
                raise Failed(f"nothing says that an action takes `{key}`")
        return self.call("run_parallel", actions=list(actions), **more)

    def parallel(self, *actions, **more):
        """The same; all actions have to succeed. Gives their entries by id."""
        answer = self.graph(*actions, **more)
        # Background results come as a handle.
        results = answer.json.get("results", [])
        for entry in results:
            need(entry["success"], f"{entry['id']}: {compact(entry.get('error') or entry)[:400]}")
        need(len(results) == len(actions), f"not all actions have a result: {answer.text[:300]}")
        return {entry["id"]: entry for entry in results}

    def next_step(self, answer):
        """The next step of an answer, or of the one action in it that has one."""
        outer = answer.json.get("next_step") or answer.json.get("error", {}).get("next_step")
        inner = [entry["error"].get("next_step") for entry in answer.json.get("results", []) if entry.get("error")]
        steps = [step for step in [outer, *inner] if step]
        need(steps, f"there is no next step: {answer.text[:300]}")
        return steps[0]


def unknown(text, params):
    """The keys of params, nested ones too, that a text does not name."""
    if isinstance(params, dict):
        for key, value in params.items():
            if not re.search(rf"(?<![\w-]){re.escape(key)}(?![\w-])", text):
                yield key
            yield from unknown(text, value)
    elif isinstance(params, list):
        for value in params:
            yield from unknown(text, value)
