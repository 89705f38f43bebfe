"""The packed files on a loopback address, as the registries of npm and PyPI and a page of releases would serve them.

So npm, pip and uv choose among the packages of all systems by themselves, and nothing has to be published to try that.
"""

import base64
import hashlib
import json
import tarfile
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Registry:
    """`npm` and `simple` are the addresses for the clients, `releases` has the archives."""

    def __init__(self, packed: Path) -> None:
        self.packed = packed
        self.packages: dict[str, dict] = {}
        self.asked: list[str] = []
        self.sent: dict[str, int] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                registry.answer(self)

            do_HEAD = do_GET

            def do_POST(self) -> None:  # npm asks for advisories.
                self.rfile.read(int(self.headers.get("content-length", 0)))
                registry.send(self, 404, b"{}", "application/json")

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server.server_port}"
        self.npm = f"{self.base}/npm/"
        self.simple = f"{self.base}/simple/"
        self.releases = f"{self.base}/files/archives"
        for file in sorted((packed / "npm").glob("*.tgz")):
            self.add_npm(file)

    def __enter__(self) -> "Registry":
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def add_npm(self, file: Path) -> None:
        with tarfile.open(file) as tar:
            manifest = json.load(tar.extractfile("package/package.json"))
        digest = base64.b64encode(hashlib.sha512(file.read_bytes()).digest()).decode()
        manifest["dist"] = {"tarball": f"{self.base}/files/npm/{file.name}", "integrity": f"sha512-{digest}"}
        self.packages[manifest["name"]] = {
            "name": manifest["name"],
            "dist-tags": {"latest": manifest["version"]},
            "versions": {manifest["version"]: manifest},
        }

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = urllib.parse.unquote(request.path.split("?")[0])
        self.asked.append(path)
        if path.startswith("/npm/") and (package := self.packages.get(path.removeprefix("/npm/"))):
            self.send(request, 200, json.dumps(package).encode(), "application/json")
        elif path.rstrip("/") == "/simple/nonet":
            wheels = sorted((self.packed / "wheels").glob("*.whl"))
            links = "".join(f'<a href="/files/wheels/{file.name}">{file.name}</a>\n' for file in wheels)
            self.send(request, 200, f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), "text/html")
        elif path.startswith("/files/") and (file := self.packed / path.removeprefix("/files/")).is_file() and ".." not in path:
            content = file.read_bytes()
            self.sent[file.name] = len(content)
            self.send(request, 200, content, "application/octet-stream")
        else:
            self.send(request, 404, b"{}", "application/json")

    @staticmethod
    def send(request: BaseHTTPRequestHandler, status: int, body: bytes, kind: str) -> None:
        request.send_response(status)
        request.send_header("content-type", kind)
        request.send_header("content-length", str(len(body)))
        request.end_headers()
        try:
            if request.command != "HEAD":
                request.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            pass
