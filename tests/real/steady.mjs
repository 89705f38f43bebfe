// A client with a TypeScript SDK that calls a tool repeatedly until the file STOP exists.
//
//     steady.mjs v1|v2 URL STOP
//
// v1 is @modelcontextprotocol/sdk 1.x, v2 @modelcontextprotocol/client. Prints how many calls were answered. Exits with 1 at the first
// error.

import { existsSync } from "node:fs";
import { require } from "./tour.mjs";

const [version, url, stop] = process.argv.slice(2);
const sdk =
  version === "v1"
    ? {
        ...require("@modelcontextprotocol/sdk/client/index.js"),
        ...require("@modelcontextprotocol/sdk/client/streamableHttp.js"),
      }
    : require("@modelcontextprotocol/client");
const client = new sdk.Client({ name: `steady-${version}`, version: "1" }, { capabilities: {} });
await client.connect(new sdk.StreamableHTTPClientTransport(new URL(url)));
let count = 0;
while (!existsSync(stop)) {
  const result = await client.callTool({ name: "memory__search_nodes", arguments: { query: "nothing" } });
  if (result.isError) throw new Error(`an error after ${count} calls: ${JSON.stringify(result)}`);
  count += 1;
  await new Promise((resolve) => setTimeout(resolve, 50));
}
await client.close();
console.log(count);
