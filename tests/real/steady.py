"""A client with the Python SDK that calls a tool again and again, until the file STOP is there.

    steady.py MODE URL STOP

MODE is `legacy` or `auto`, as for python_client.py. Prints how many calls were answered. Exits with 1 at the first error.
"""

import asyncio
import os
import sys

from mcp import Client


async def calls(mode, url, stop):
    count = 0
    async with Client(url, mode=mode, read_timeout_seconds=60) as client:
        while not os.path.exists(stop):
            result = await client.call_tool("memory__search_nodes", {"query": "nothing"})
            if result.is_error:
                raise RuntimeError(f"an error after {count} calls: {result.model_dump_json(by_alias=True)}")
            count += 1
            await asyncio.sleep(0.05)
    return count


if __name__ == "__main__":
    print(asyncio.run(calls(*sys.argv[1:])))
