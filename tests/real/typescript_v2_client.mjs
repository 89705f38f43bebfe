// A client with the TypeScript SDK for both eras (@modelcontextprotocol/client 2.x), which is in
// $NONET_REAL/node.
//
//     typescript_v2_client.mjs MODE stdio COMMAND ARGS...     over stdio
//     typescript_v2_client.mjs MODE URL                       over streamable HTTP
//
// MODE is `legacy` (the `initialize` handshake) or `auto` (`server/discover`, else the handshake). Prints one
// JSON object on stdout, like python_client.py. Exits with 1 on any failure.

import { filled, require, tour } from "./tour.mjs";

const { Client, StreamableHTTPClientTransport } = require("@modelcontextprotocol/client");
const { StdioClientTransport } = require("@modelcontextprotocol/client/stdio");

const [mode, way, command, ...args] = process.argv.slice(2);
const options = { capabilities: { elicitation: {} }, versionNegotiation: { mode } };
const client = new Client({ name: "typescript-v2", version: "1" }, options);
client.setRequestHandler("elicitation/create", filled);
const transport =
  way === "stdio"
    ? new StdioClientTransport({ command, args, env: process.env })
    : new StreamableHTTPClientTransport(new URL(way));
await tour(client, transport, () => client.getNegotiatedProtocolVersion());
