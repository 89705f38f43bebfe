"""An MCP client over stdio: the handshake and `tools/list`, and nothing else."""

import json
import subprocess
import threading
import time
from pathlib import Path

NINE = {
    "search_tools",
    "get_tool",
    "execute_tool",
    "list_categories",
    "browse_category",
    "run_parallel",
    "use_skill",
    "call_app",
    "ask_user",
}


class NoTools(Exception):
    """The program did not answer as an MCP server."""


def list_tools(command: list[str], folder: Path, environment: dict[str, str], limit_s: float = 60) -> tuple[list[str], float]:
    """Starts an MCP server, and returns the names of its tools and the seconds until they were there."""
    began = time.monotonic()
    server = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    noise: list[str] = []
    reader = threading.Thread(target=lambda: noise.extend(server.stderr), daemon=True)
    reader.start()
    watchdog = threading.Timer(limit_s, server.kill)
    watchdog.start()

    def send(**message: object) -> None:
        server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        server.stdin.flush()

    def answer_to(id: int) -> dict:
        for line in server.stdout:
            message = json.loads(line)
            if message.get("id") == id and "method" not in message:
                return message["result"]
        reader.join(1)
        raise NoTools(f"`{' '.join(command)}` ended without an answer: {''.join(noise)[-2000:].strip()}")

    try:
        client = {"name": "packaging", "version": "1"}
        send(id=1, method="initialize", params={"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        answer_to(1)
        send(method="notifications/initialized")
        send(id=2, method="tools/list")
        tools = [tool["name"] for tool in answer_to(2)["tools"]]
        took = time.monotonic() - began
        server.stdin.close()
        code = server.wait(limit_s)
        if code != 0:
            raise NoTools(f"`{' '.join(command)}` ended with {code} after its input had ended: {''.join(noise)[-2000:].strip()}")
        return tools, took
    except BrokenPipeError:
        reader.join(1)
        raise NoTools(f"`{' '.join(command)}` did not read: {''.join(noise)[-2000:].strip()}") from None
    finally:
        watchdog.cancel()
        if server.poll() is None:
            server.kill()
        server.wait()
        server.stdout.close()
