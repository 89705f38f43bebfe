// A client with the TypeScript SDK for the session era (@modelcontextprotocol/sdk 1.x), which is in
// $NONET_REAL/node.
//
//     typescript_v1_client.mjs stdio COMMAND ARGS...     over stdio
//     typescript_v1_client.mjs URL                       over streamable HTTP
//
// Prints one JSON object on stdout, like python_client.py. Exits with 1 on any failure.

import { filled, require, tour } from "./tour.mjs";

const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = require("@modelcontextprotocol/sdk/client/stdio.js");
const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
const { ElicitRequestSchema } = require("@modelcontextprotocol/sdk/types.js");

const [way, command, ...args] = process.argv.slice(2);
const client = new Client({ name: "typescript-v1", version: "1" }, { capabilities: { elicitation: {} } });
client.setRequestHandler(ElicitRequestSchema, filled);
const transport =
  way === "stdio"
    ? new StdioClientTransport({ command, args, env: process.env })
    : new StreamableHTTPClientTransport(new URL(way));
// The client does not store the negotiated revision; it passes it to the transport, which needs it over HTTP.
let protocol;
const { setProtocolVersion } = transport;
transport.setProtocolVersion = (version) => {
  protocol = version;
  setProtocolVersion?.call(transport, version);
};
await tour(client, transport, () => protocol);
