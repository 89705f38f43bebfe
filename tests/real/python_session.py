"""A session with the Python SDK (mcp 2.3.0) before a gateway with a REST service, a skill, an app, and leave to add servers.

    python_session.py SERVER COMMAND ARGS...

SERVER is the command of server-memory, which the session adds; COMMAND is the gateway on stdio. Prints one JSON object:

    {"found": {query: the first hit}, "rest": what the service answered, "asked": the question of the approval,
     "added": the answer of add_server, "called": the text of a tool of that server, "skill": its text, "app": its output}

Exits with 1 when anything fails, and that includes an answer with `isError`.
"""

import asyncio
import json
import os
import sys

from mcp import Client, StdioServerParameters
from mcp.types import ElicitResult

from python_client import result

asked = []


async def allow(context, params):
    asked.append(params.message)
    return ElicitResult(action="accept", content={"decision": "allow"})


async def call(client, tool, **arguments):
    # Notices may be in a separate block.
    return (await result(client, tool, **arguments)).content[0].text


async def session(server, command):
    way = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))
    env = {"MEMORY_FILE_PATH": os.path.join(os.environ["HOME"], "notes.jsonl")}
    report = {"found": {}}
    async with Client(way, read_timeout_seconds=60, elicitation_callback=allow) as client:

        async def run(tool, **params):
            return await call(client, "execute_tool", name=tool, params=params)

        async def find(query, name):
            # A tool is found by its meaning once it has vectors, which takes a moment.
            for _ in range(120):
                hits = json.loads(await call(client, "search_tools", query=query))["results"]
                report["found"][query] = hits[0]["name"] if hits else None
                if report["found"][query] == name:
                    break
                await asyncio.sleep(0.25)

        report["rest"] = await run("weather.getForecast", city="Bergen")
        await find("how warm will it be tomorrow in Bergen", "weather.getForecast")
        report["added"] = json.loads(await run("gateway.add_server", name="notes", command=server, env=env))
        await find("build a graph of people and how they are related", "notes.create_relations")
        report["called"] = await run("notes.read_graph")
        await find("draft a summary of what changed in this version", "skills.changelog")
        report["skill"] = await run("skills.changelog", arguments="2.0")
        await find("start my day with a briefing", "apps.morning")
        report["app"] = json.loads(await run("apps.morning", city="Bergen"))["output"]
    report["asked"] = asked
    return report


if __name__ == "__main__":
    server, *command = sys.argv[1:]
    print(json.dumps(asyncio.run(session(server, command))))
