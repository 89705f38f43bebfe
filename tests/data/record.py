#!/usr/bin/env python3
"""Installs public MCP servers and records their tool lists.

    tests/data/record.py DIR [SERVER ...]

The servers are those of servers.toml, beside this file; they are installed below DIR (npm packages in DIR/node, each
Python server in DIR/py/NAME), by package and version, where they are not there yet. Each is started on its own over
stdio and asked in plain JSON-RPC: `initialize` without client capabilities, then `tools/list` until there is no
`nextCursor`. catalogue.jsonl gets one line for each tool, with the fields below as the server gave them.
"""

import json
import os
import pathlib
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
FIELDS = ["name", "title", "description", "inputSchema", "outputSchema", "annotations"]
PROTOCOL = "2025-11-25"
PATIENCE_S = 120


def known():
    """The servers of servers.toml, by name."""
    return tomllib.loads((HERE / "servers.toml").read_text())


def install(folder, servers):
    """Installs the packages of these servers below `folder`, as far as they are not there."""
    folder = pathlib.Path(folder).resolve()
    for name, server in servers.items():
        if "pypi" in server:
            venv = folder / "py" / name
            once(venv, server["pypi"], lambda: install_python(venv, server["pypi"]))
    packages = [package for server in servers.values() for package in server.get("npm", [])]
    for package in packages:
        # Sequential installs would resolve everything again each time.
        at = folder / "node/node_modules" / package.rsplit("@", 1)[0] / "package.json"
        if not at.exists() or json.loads(at.read_text())["version"] != package.rsplit("@", 1)[1]:
            install_node(folder / "node", packages)
            break


def once(at, packages, install):
    """Installs, unless a note says that it was done."""
    note = at / ".installed"
    if note.exists() and note.read_text() == json.dumps(packages):
        return
    print("installing", *packages, file=sys.stderr)
    install()
    note.write_text(json.dumps(packages))


def install_python(venv, packages):
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    pip = [venv / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *packages], check=True)


def install_node(folder, packages):
    print("installing", *packages, file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    package = folder / "package.json"
    if not package.exists():
        package.write_text('{"private": true}')
    # Packages' install scripts fetch browsers and the like; the servers start without them.
    options = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
    subprocess.run(["npm", "install", "--prefix", folder, *options, *packages], check=True, stdout=sys.stderr)


def command(folder, name, server, scratch):
    """The program of an installed server, its arguments, and the variables that it needs."""
    folder = pathlib.Path(folder).resolve()
    program = server["program"]
    if "pypi" in server:
        words = [str(folder / "py" / name / "bin" / program)]
    elif "/" in program:
        words = ["node", str(folder / "node/node_modules" / program)]
    else:
        words = [str(folder / "node/node_modules/.bin" / program)]
    fill = lambda text: text.replace("{dir}", str(scratch))
    words += [fill(argument) for argument in server.get("args", [])]
    return words, {key: fill(value) for key, value in server.get("env", {}).items()}


def listed(words, env, cwd):
    """The tools that a server lists."""
    env = {**os.environ, **env}
    server = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, cwd=cwd
    )
    lines = queue.Queue()
    threading.Thread(target=lambda: [lines.put(line) for line in server.stdout], daemon=True).start()

    def send(message):
        server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        server.stdin.flush()

    def ask(id, method, params):
        send({"id": id, "method": method, "params": params})
        while True:
            try:
                answer = json.loads(lines.get(timeout=PATIENCE_S))
            except json.JSONDecodeError:
                continue  # noise on stdout
            if isinstance(answer, dict) and answer.get("id") == id and "method" not in answer:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    try:
        client = {"name": "record", "version": "1"}
        ask(1, "initialize", {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client})
        send({"method": "notifications/initialized"})
        tools, cursor, id = [], None, 1
        while True:
            id += 1
            page = ask(id, "tools/list", {"cursor": cursor} if cursor else {})
            tools += page["tools"]
            cursor = page.get("nextCursor")
            if not cursor:
                return tools
    finally:
        server.stdin.close()
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            server.kill()


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder, only = sys.argv[1], sys.argv[2:]
    servers = {name: server for name, server in known().items() if not only or name in only}
    install(folder, servers)
    recorded, failed = [], False
    for name, server in servers.items():
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            try:
                tools = listed(*command(folder, name, server, scratch), scratch)
            except Exception as error:
                print(f"{name}: {error or type(error).__name__}", file=sys.stderr)
                failed = True
                continue
        lines = []
        for tool in tools:
            line = {"server": name, **{field: tool[field] for field in FIELDS if field in tool}}
            lines.append(json.dumps(line, ensure_ascii=False, separators=(",", ":")))
        recorded += lines
        size = sum(len(line.encode()) + 1 for line in lines)
        print(f"{name}: {len(tools)} tools, {size} bytes", file=sys.stderr)
    if only:
        print("\n".join(recorded))
    elif not failed:
        (HERE / "catalogue.jsonl").write_text("\n".join(recorded) + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
