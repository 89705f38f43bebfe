#!/usr/bin/env python3
"""Records docs/recording.svg: runs real commands against a real Nonet and draws a terminal that shows them.

    docs/record.py                                  nonet of the PATH, servers through npx and uvx
    docs/record.py --nonet target/release/nonet     another program
    docs/record.py --programs DIR --programs DIR    folders with mcp-server-filesystem, -memory and -time

The drawing is animated with CSS alone, follows the reader's colour scheme, and loads nothing.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import textwrap
from html import escape
from pathlib import Path

SERVERS = {
    "files": ("npx", "-y", "@modelcontextprotocol/server-filesystem", "."),
    "memory": ("npx", "-y", "@modelcontextprotocol/server-memory"),
    "time": ("uvx", "mcp-server-time"),
}
PROGRAMS = {"files": "mcp-server-filesystem", "memory": "mcp-server-memory", "time": "mcp-server-time"}
# What is typed, and how long its answer is looked at, in seconds.
SCENES = [
    ("cat servers.toml", 3.0),
    ("nonet check", 4.5),
    ('nonet search "what time is it in Tokyo" --limit 3', 4.5),
    ("""nonet call time.get_current_time '{"timzone": "Asia/Tokyo"}'""", 4.0),
    ("""nonet call files.read_text_file '{"path": "notes.txt", "head": 2}'""", 4.0),
]
COLUMNS, ROWS = 96, 13
CHARACTER, LINE, EDGE, BAR = 7.8, 18, 16, 30
KEY = 0.035  # seconds for a typed character
LARGEST = 60_000


def environment(home: Path) -> dict[str, str]:
    """The environment of a command: nothing that is kept elsewhere on this machine is read or written."""
    own = {f"XDG_{name}_HOME": str(home / name.lower()) for name in ("CONFIG", "STATE", "CACHE")}
    caches = {"UV_CACHE_DIR": str(Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "uv")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NONET_")}
    # Without a terminal, a file in the current folder has to be named.
    return kept | caches | own | {"NONET_CONFIG": "servers.toml"}


def toml(programs: list[Path]) -> str:
    """The servers, as they are shown."""
    tables = []
    for name, (command, *arguments) in SERVERS.items():
        listed = ", ".join(f'"{argument}"' for argument in arguments)
        tables.append(f'[servers.{name}]\ncommand = "{command}"\nargs = [{listed}]\n')
    return "\n".join(tables)


def started(programs: list[Path]) -> str:
    """The servers, as they are started: the same programs, where they are installed already."""
    text = toml(programs)
    for name, (command, *arguments) in SERVERS.items():
        found = [folder / PROGRAMS[name] for folder in programs if (folder / PROGRAMS[name]).exists()]
        if programs and not found:
            sys.exit(f"record.py: none of the folders has {PROGRAMS[name]}")
        if found:
            packages = arguments.index(next(it for it in arguments if "server" in it)) + 1
            listed = lambda words: ", ".join(f'"{word}"' for word in words)  # noqa: E731
            text = text.replace(
                f'command = "{command}"\nargs = [{listed(arguments)}]',
                f'command = "{found[0]}"\nargs = [{listed(arguments[packages:])}]',
            )
    return text


def record(nonet: Path, programs: list[Path]) -> list[tuple[str, list[str], float]]:
    """Runs every command and returns it with the lines of its answer."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "notes.txt").write_text("Call Ann about the harbour tour.\nTokyo office opens at nine.\nBuy tea.\n")
        (home / "servers.toml").write_text(started(programs))
        scenes = []
        for typed, pause in SCENES:
            if typed.startswith("cat "):
                lines = toml(programs).splitlines()
            else:
                # A function, so that the line stays as it is typed.
                line = f'nonet() {{ "$NONET" "$@"; }}; {typed}'
                done = subprocess.run(
                    ["sh", "-c", line], cwd=home, env=environment(home) | {"NONET": str(nonet)},
                    stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
                )
                if done.returncode != 0:
                    sys.exit(f"record.py: `{typed}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
                # What is said of the start itself is left out: it tells of this machine.
                told = [it for it in done.stderr.splitlines() if " was taken as " in it]
                lines = told + [it for it in done.stdout.splitlines() if not it.startswith(("no sandbox", "search by"))]
            scenes.append((typed, [row for it in lines for row in folded(it)][: ROWS - 1], pause))
        return scenes


def folded(line: str) -> list[str]:
    """A line as rows of the terminal. A row of a table is cut off, as a narrow terminal does it."""
    line = line.rstrip()
    if len(line) <= COLUMNS:
        return [line]
    return [line[: COLUMNS - 1] + "…"] if line.startswith(" ") else textwrap.wrap(line, COLUMNS)


def kind(line: str) -> str:
    """The colour of a line of an answer."""
    if line.startswith(" ") and line.split()[:1] and line.split()[0].isupper():
        return "dim"
    return "told" if line.startswith("nonet:") else "out"


def text(line: str, row: int, classes: str, more: str = "") -> str:
    x, y = EDGE, BAR + EDGE + row * LINE + 12
    if not line.strip():
        return ""
    indent = len(line) - len(line.lstrip())
    shown = line.strip()
    length = f' textLength="{len(shown) * CHARACTER:.1f}"' if len(shown) > 1 else ""
    return f'<text class="{classes}" x="{x + indent * CHARACTER:.1f}" y="{y}"{length}{more}>{escape(shown)}</text>'


def draw(scenes: list[tuple[str, list[str], float]]) -> str:
    width, height = round(COLUMNS * CHARACTER + 2 * EDGE), BAR + 2 * EDGE + ROWS * LINE
    whole = sum(0.6 + len(typed) * KEY + 0.4 + pause for typed, _, pause in scenes)
    share = lambda seconds: f"{100 * seconds / whole:.2f}%"  # noqa: E731
    rules, groups, now = [], [], 0.0
    for number, (typed, lines, pause) in enumerate(scenes):
        begin, typing = now, now + 0.6
        answer = typing + len(typed) * KEY + 0.4
        now = answer + pause
        end = now - 0.001
        hidden = "" if number == 0 else f"0%,{share(begin - 0.001)}{{opacity:0}}"
        last = f"{share(now)},100%{{opacity:0}}" if number + 1 < len(scenes) else ""
        until = share(end) if last else "100%"
        rules.append(f"@keyframes s{number}{{{hidden}{share(begin)},{until}{{opacity:1}}{last}}}")
        rules.append(f"@keyframes a{number}{{0%,{share(answer - 0.001)}{{opacity:0}}{share(answer)},100%{{opacity:1}}}}")
        steps = len(typed)
        rules.append(
            f"@keyframes t{number}{{0%,{share(typing)}{{transform:translateX(0);animation-timing-function:steps({steps})}}"
            f"{share(typing + steps * KEY)},100%{{transform:translateX({steps * CHARACTER:.1f}px)}}}}"
        )
        x, y = EDGE + 2 * CHARACTER, BAR + EDGE
        cover = f'<g class="c" style="animation-name:t{number}"><rect class="bg" x="{x:.1f}" y="{y - 2}" width="{width}" height="{LINE}"/><rect class="cur" x="{x + 1:.1f}" y="{y}" width="{CHARACTER}" height="15"/></g>'
        prompt = text("$", 0, "ok") + text("  " + typed, 0, "cmd") + cover
        answers = "".join(text(line, row + 1, kind(line)) for row, line in enumerate(lines))
        groups.append(
            f'<g class="s" style="animation-name:s{number}">{prompt}<g class="s" style="animation-name:a{number}">{answers}</g></g>'
        )
    dots = "".join(f'<circle class="dot" cx="{18 + 18 * it}" cy="15" r="5"/>' for it in range(3))
    title = "Nonet in a terminal: " + "; ".join(typed for typed, _, _ in scenes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title><style>'
        "svg{--bg:#fbfbfa;--fg:#24292f;--dim:#6e7781;--ok:#1a7f37;--told:#9a6700;--line:#d0d7de;overflow:hidden}"
        "@media(prefers-color-scheme:dark){svg{--bg:#0d1117;--fg:#e6edf3;--dim:#8b949e;--ok:#3fb950;--told:#d29922;--line:#30363d}}"
        "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:var(--fg);white-space:pre}"
        ".dim{fill:var(--dim)}.ok{fill:var(--ok)}.told{fill:var(--told)}.cmd{font-weight:600}.bg{fill:var(--bg)}"
        ".frame{fill:var(--bg);stroke:var(--line)}.dot{fill:var(--line)}.cur{fill:var(--fg);opacity:.6}"
        f".s,.c{{animation-duration:{whole:.2f}s;animation-iteration-count:infinite}}.s{{animation-timing-function:step-end}}"
        + "".join(rules)
        # Who wants no motion sees the search.
        + "@media(prefers-reduced-motion:reduce){.s,.c{animation:none}.c{display:none}.s{opacity:1}svg>g>g{display:none}svg>g>g:nth-of-type(3){display:inline}}"
        + f'</style><clipPath id="f"><rect x="1" width="{width - 2}" height="{height}"/></clipPath>'
        f'<rect class="frame" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>{dots}'
        + '<g clip-path="url(#f)">' + "".join(groups) + "</g>"
        + "</svg>\n"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nonet", type=Path, default=Path("nonet"), help="the program (default: nonet of the PATH)")
    options.add_argument("--programs", type=Path, action="append", default=[], help="a folder with servers (repeatable)")
    options.add_argument("--out", type=Path, default=Path(__file__).with_name("recording.svg"))
    given = options.parse_args()
    nonet = given.nonet.absolute() if given.nonet.exists() else given.nonet
    svg = draw(record(nonet, [folder.absolute() for folder in given.programs]))
    if len(svg.encode()) > LARGEST:
        sys.exit(f"record.py: the drawing has {len(svg.encode())} bytes, more than {LARGEST}")
    given.out.write_text(svg)
    print(f"{given.out}: {len(svg.encode())} bytes")


if __name__ == "__main__":
    main()
