"""A client with the Python SDK (mcp 2.3.0): lists the gateway's tools, searches, calls what was found.

    python_client.py MODE [OPTIONS] -- COMMAND ARGS...     over stdio
    python_client.py MODE [OPTIONS] --url URL              over streamable HTTP

MODE is `legacy` (the `initialize` handshake) or `auto` (`server/discover`, else the handshake). Prints
one JSON object on stdout:

    {"protocol": the revision agreed on, "tools": [names], "search": what `search_tools` answers to
     --query, as JSON, "call": the whole result of `execute_tool` with --name and --params}

With `--only list` the last two are left out. Exits with 1 when anything fails, and that includes an
answer with `isError`.
"""

import argparse
import asyncio
import json
import os
import sys

from mcp import Client, StdioServerParameters


def parse(argv):
    command = []
    if "--" in argv:
        at = argv.index("--")
        argv, command = argv[:at], argv[at + 1 :]
    parser = argparse.ArgumentParser(usage="%(prog)s MODE [OPTIONS] (--url URL | -- COMMAND ARGS...)")
    parser.add_argument("mode", choices=["legacy", "auto"])
    parser.add_argument("--url")
    parser.add_argument("--query", help="what to search for")
    parser.add_argument("--name", help="the tool to execute")
    parser.add_argument("--params", type=json.loads, default={}, help="its params, a JSON object")
    parser.add_argument("--only", choices=["list"], help="stop after the list")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for each request")
    options = parser.parse_args(argv)
    if bool(command) == bool(options.url):
        parser.error("give either --url or a command after --")
    if not options.only and not (options.query and options.name):
        parser.error("give --query and --name, or --only list")
    if command:
        # The gateway gets this process's whole environment; the SDK would pass on a few variables.
        options.server = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))
    else:
        options.server = options.url
    return options


async def all_tools(client):
    names, cursor = [], None
    while True:
        page = await client.list_tools(cursor=cursor)
        names += [tool.name for tool in page.tools]
        cursor = page.next_cursor
        if not cursor:
            return names


async def call(client, tool, arguments):
    result = await client.call_tool(tool, arguments)
    if result.is_error:
        raise RuntimeError(f"{tool} answered with an error: {result.model_dump_json(by_alias=True)}")
    return result


async def run(options):
    report = {}
    async with Client(options.server, mode=options.mode, read_timeout_seconds=options.timeout) as client:
        report["protocol"] = client.protocol_version
        report["tools"] = await all_tools(client)
        if options.only != "list":
            found = await call(client, "search_tools", {"query": options.query})
            report["search"] = json.loads(found.content[0].text)
            done = await call(client, "execute_tool", {"name": options.name, "params": options.params})
            report["call"] = done.model_dump(mode="json", by_alias=True, exclude_none=True)
    return report


if __name__ == "__main__":
    # Printed after the connection is closed, so that a failure to close is a failure too.
    print(json.dumps(asyncio.run(run(parse(sys.argv[1:])))))
