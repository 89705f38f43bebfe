"""The folder that the tasks work in, and the servers.toml over it."""

import json
import os
import pathlib
import re
import sqlite3
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "data"))
import record  # noqa: E402

# Differences from the list of recorded servers: these work on the same folder.
ARGUMENTS = {
    "filesystem": ["{dir}/work"],
    "vault": ["{dir}/notes"],
    "duckdb": ["--db-path", "{dir}/sales.duckdb", "--read-write"],
    "sqlite": ["--db-path", "{dir}/stock.db"],
}
ABOUT = {
    "filesystem": "Files and folders of the project",
    "vault": "The user's notes (Obsidian)",
    "duckdb": "DuckDB database of sales; reads CSV files",
    "sqlite": "SQLite database of the stock",
}


class Place:
    """A folder with files, a repository, notes and databases, and what is behind Nonet there."""

    def __init__(self, folder, installed, nonet):
        self.dir = pathlib.Path(folder)
        self.installed = pathlib.Path(installed)
        self.nonet = nonet
        for name in ("work", "notes", "skills/release-notes"):
            (self.dir / name).mkdir(parents=True)
        (self.dir / "notes/Tea.md").write_text("---\ntags: [drinks]\n---\n# Tea\n\nAnna likes green tea.\n")
        (self.dir / "skills/release-notes/SKILL.md").write_text(SKILL)
        with sqlite3.connect(self.dir / "stock.db") as base:
            base.execute("CREATE TABLE stock (item TEXT, amount INTEGER)")
            base.executemany("INSERT INTO stock VALUES (?, ?)", [("pen", 12), ("ink", 3)])
        servers = "\n".join(self.server(name) for name in record.known())
        # One gateway for all sessions: servers start once.
        self.config = self.write("servers.toml", servers + MORE, 'shared = true\nshared_grace = "1s"')

    def path(self, inside):
        return self.dir / inside

    def server(self, name):
        """The table of an installed server."""
        known = {**record.known()[name]}
        known["args"] = ARGUMENTS.get(name, known.get("args", []))
        words, env = record.command(self.installed, name, known, self.dir)
        text = f"[servers.{name}]\ncommand = {json.dumps(words[0])}\nargs = {json.dumps(words[1:])}\n"
        if env:
            pairs = ", ".join(f"{key} = {json.dumps(value)}" for key, value in env.items())
            text += f"env = {{ {pairs} }}\n"
        if name in ABOUT:
            text += f"description = {json.dumps(ABOUT[name])}\n"
        text += f"cwd = {json.dumps(str(self.dir / 'work'))}\n\n"
        return text

    def slow(self, name, seconds):
        """The table of a server that takes some seconds more to start."""
        table = self.server(name)
        command, arguments = re.search(r'command = (".*")\nargs = (.*)\n', table).groups()
        words = ["-c", f'sleep {seconds}; exec "$0" "$@"', json.loads(command), *json.loads(arguments)]
        return table.replace(f"command = {command}\nargs = {arguments}", f'command = "sh"\nargs = {json.dumps(words)}')

    def write(self, file, servers, gateway=""):
        """Writes a servers.toml."""
        text = f"[gateway]\nlearn = false\nskills = [{json.dumps(str(self.dir / 'skills'))}]\n{gateway}\n"
        text += f"[embedder]\ncache = {json.dumps(str(self.dir / 'cache'))}\n\n{servers}"
        path = self.dir / file
        path.write_text(text)
        return path

    def env(self):
        """The variables that `nonet` runs with: the folder is its home."""
        gone = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "NONET_CONFIG", "NONET_LOG")
        env = {key: value for key, value in os.environ.items() if key not in gone}
        return {**env, "HOME": str(self.dir), "NONET_KEYRING": "off"}

    def words(self, config=None):
        return [str(self.nonet), "--config", str(config or self.config)]

    def git(self, folder, *arguments):
        who = ["-c", "user.name=Ann", "-c", "user.email=ann@example.com"]
        done = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True)
        return done.stdout


SKILL = """---
name: release-notes
description: How release notes are written in this project
---
Write one line for each commit into NOTES.md beside the code, newest first: `- subject (author)`.
"""
MORE = """
[servers.filesystem.tools.move_file]
policy = "approve"

[apps.note]
description = "Keeps a note in the knowledge graph and reads it back"

[apps.note.input_schema]
type = "object"
required = ["title", "text"]
properties = { title = { type = "string" }, text = { type = "string" } }

[[apps.note.steps]]
id = "save"
tool = "memory.create_entities"
params = { entities = [{ name = "{{input.title}}", entityType = "note", observations = ["{{input.text}}"] }] }

[[apps.note.steps]]
id = "read"
tool = "memory.open_nodes"
params = { names = ["{{input.title}}"] }
after = ["save"]

[apps.note.output]
note = "{{read.entities}}"
"""
