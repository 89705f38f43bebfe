"""A client with the Python SDK (mcp 2.3.0), before a gateway that has server-everything as `everything`.

    python_client.py MODE stdio COMMAND ARGS...     over stdio
    python_client.py MODE URL                       over streamable HTTP

MODE is `legacy` (the `initialize` handshake) or `auto` (`server/discover`, else the handshake). Prints one
JSON object on stdout, as the clients in TypeScript do:

    {"protocol": the revision agreed on, "tools": [names], "call": the text of everything.echo,
     "found": [names that `search_tools` finds], "resources": [URIs], "read": the first line of one,
     "prompts": [names], "prompt": the text of one, "form": what everything made of the form it asked for}

Exits with 1 when anything fails, and that includes an answer with `isError`.
"""

import asyncio
import json
import os
import sys

from mcp import Client, StdioServerParameters
from mcp.types import ElicitResult


async def all_pages(one_page, entries):
    found, cursor = [], None
    while True:
        page = await one_page(cursor=cursor)
        found += getattr(page, entries)
        cursor = page.next_cursor
        if not cursor:
            return found


async def fill_in(context, params):
    return ElicitResult(action="accept", content={"name": "Ada"})


async def result(client, tool, **arguments):
    # Retryable calls are retried: on a busy machine, a server may take longer to start than a call waits.
    for _ in range(120):
        result = await client.call_tool(tool, arguments)
        if not (result.is_error and '"retryable":true' in result.content[0].text):
            break
        await asyncio.sleep(0.5)
    if result.is_error:
        raise RuntimeError(f"{tool} answered with an error: {result.model_dump_json(by_alias=True)}")
    return result


async def call(client, tool, **arguments):
    return "\n".join(block.text for block in (await result(client, tool, **arguments)).content)


async def tour(mode, way, command):
    if way == "stdio":
        # The gateway gets this process's whole environment; the SDK would pass only a few variables.
        way = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))
    report = {}
    async with Client(way, mode=mode, read_timeout_seconds=60, elicitation_callback=fill_in) as client:
        report["protocol"] = client.protocol_version
        report["tools"] = [tool.name for tool in await all_pages(client.list_tools, "tools")]
        # A call waits for its server; a search covers only ready servers.
        report["call"] = await call(
            client, "execute_tool", name="everything.echo", params={"message": "hi"}
        )
        found = json.loads(await call(client, "search_tools", query="echo a message"))
        report["found"] = [hit["name"] for hit in found["results"]]
        resources = await all_pages(client.list_resources, "resources")
        report["resources"] = [str(resource.uri) for resource in resources]
        read = await client.read_resource("demo://resource/static/document/features.md")
        report["read"] = read.contents[0].text.splitlines()[0]
        report["prompts"] = [prompt.name for prompt in await all_pages(client.list_prompts, "prompts")]
        prompt = await client.get_prompt("everything__args-prompt", {"city": "Bergen"})
        report["prompt"] = prompt.messages[0].content.text
        report["form"] = await call(client, "execute_tool", name="everything.trigger-elicitation-request")
    return report


if __name__ == "__main__":
    mode, way, *command = sys.argv[1:]
    # Printed after the connection is closed, so that a failure to close is a failure too.
    print(json.dumps(asyncio.run(tour(mode, way, command))))
