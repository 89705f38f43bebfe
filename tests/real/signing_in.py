"""A client with the Python SDK (mcp 2.3.0) that signs in.

    signing_in.py URL

Reads commands on stdin, one a line, and answers each with one line of JSON on stdout, as signing_in.mjs does:

    connect      connects, and opens the sign-in page where the SDK wants that: {"tools", "signed_in"} with how often
    list         calls a tool and lists tools over the connection: {"tools", "signed_in"}
    token        {"token", "scope"} as the SDK holds them

A command that fails is answered with {"error"}.
"""

import asyncio
import json
import sys
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata

CALLBACK = "http://127.0.0.1:9/callback"
signed_in = 0


class Storage:
    """What the SDK keeps."""

    client = None
    held = None

    async def get_tokens(self):
        return self.held

    async def set_tokens(self, tokens):
        self.held = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client):
        self.client = client


page = None


async def show(address):
    global page
    page = address


async def come_back():
    """Follows the page to the address of the client, as a browser would."""
    global signed_in
    signed_in += 1
    async with httpx2.AsyncClient() as browser:
        at = page
        for _ in range(10):
            if urlsplit(at).path == "/callback":
                query = parse_qs(urlsplit(at).query)
                one = lambda name: query.get(name, [None])[0]
                return AuthorizationCodeResult(code=one("code"), state=one("state"), iss=one("iss"))
            reply = await browser.get(at)
            at = str(httpx2.URL(at).join(reply.headers["location"]))
    raise RuntimeError("too many redirects")


async def main(url):
    storage = Storage()
    metadata = OAuthClientMetadata(
        client_name="python",
        redirect_uris=[CALLBACK],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
        token_endpoint_auth_method="none",
    )
    auth = OAuthClientProvider(url, metadata, storage, show, come_back)
    loop = asyncio.get_running_loop()
    client = None

    async def tools():
        # A list may come from the SDK's cache, and a call never does.
        await client.call_tool("list_categories", {})
        return {"tools": len((await client.list_tools()).tools), "signed_in": signed_in}

    async with httpx2.AsyncClient(auth=auth, timeout=30) as http:
        while command := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
            try:
                if command == "connect":
                    client = Client(streamable_http_client(url, http_client=http))
                    await client.__aenter__()
                    answer = await tools()
                elif command == "list":
                    answer = await tools()
                else:
                    held = storage.held
                    answer = {"token": held and held.access_token, "scope": held and held.scope}
            except BaseException as error:
                causes = getattr(error, "exceptions", [error])
                answer = {"error": "; ".join(f"{type(cause).__name__}: {cause}" for cause in causes)}
            print(json.dumps(answer), flush=True)


asyncio.run(main(sys.argv[1]))
