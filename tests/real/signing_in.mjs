// A client of an MCP SDK for TypeScript that signs in: v1 is @modelcontextprotocol/sdk, v2 is
// @modelcontextprotocol/client, both in $NONET_REAL/node.
//
//     signing_in.mjs v1|v2 URL [once]      with `once`, it keeps no token that renews another
//
// Reads commands on stdin, one a line, and answers each with one line of JSON on stdout:
//
//     connect      connects, and opens the sign-in page where the SDK wants that: {"tools", "signed_in"} with how often
//     list         calls a tool and lists tools over the connection: {"tools", "signed_in"}
//     token        {"token", "scope"} as the SDK holds them
//
// A command that fails is answered with {"error"}.

import { createInterface } from "node:readline";
import { require } from "./tour.mjs";

const [sdk, url, once] = process.argv.slice(2);
const v1 = () => ({
  ...require("@modelcontextprotocol/sdk/client/index.js"),
  ...require("@modelcontextprotocol/sdk/client/streamableHttp.js"),
});
const { Client, StreamableHTTPClientTransport } =
  sdk === "v1" ? v1() : require("@modelcontextprotocol/client");

// What the SDK keeps of its client, and the page that it wants opened.
class Storage {
  redirectUrl = "http://127.0.0.1:9/callback";
  clientMetadata = {
    client_name: `typescript-${sdk}`,
    redirect_uris: [this.redirectUrl],
    grant_types: ["authorization_code", "refresh_token"],
    response_types: ["code"],
    token_endpoint_auth_method: "none",
  };
  clientInformation = () => this.client;
  saveClientInformation = (client) => (this.client = client);
  tokens = () => this.held;
  saveTokens = (tokens) => (this.held = once ? { ...tokens, refresh_token: undefined } : tokens);
  saveCodeVerifier = (verifier) => (this.verifier = verifier);
  codeVerifier = () => this.verifier;
  redirectToAuthorization = (page) => (this.page = page);
}

// Follows a page to the address of the client, as a browser would, and returns what it brings there.
async function followed(page) {
  const cookies = new Map();
  let at = new URL(page);
  for (let redirects = 0; redirects < 10; redirects += 1) {
    if (at.pathname === "/callback") return at.searchParams;
    const cookie = [...cookies].map(([name, value]) => `${name}=${value}`).join("; ");
    const reply = await fetch(at, { redirect: "manual", headers: { cookie } });
    for (const set of reply.headers.getSetCookie()) {
      const [name, value] = set.split(";")[0].split("=");
      cookies.set(name, value);
    }
    if (!reply.headers.has("location")) throw new Error(`${at.pathname}: ${reply.status} ${await reply.text()}`);
    at = new URL(reply.headers.get("location"), at);
  }
  throw new Error("too many redirects");
}

const storage = new Storage();
let client;
let signedIn = 0;

// Does something, signing in as often as the SDK asks for it.
async function signingIn(work) {
  for (let attempts = 0; ; attempts += 1) {
    const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider: storage });
    try {
      return await work(transport);
    } catch (error) {
      if (!storage.page || attempts === 4) throw error;
      const page = storage.page;
      storage.page = undefined;
      const brought = await followed(page);
      await transport.finishAuth(sdk === "v1" ? brought.get("code") : brought);
      signedIn += 1;
    }
  }
}

async function list() {
  // A list may come from the SDK's cache, and a call never does.
  await client.callTool({ name: "list_categories", arguments: {} });
  const { tools } = await client.listTools();
  return { tools: tools.length, signed_in: signedIn };
}

const commands = {
  connect: () =>
    signingIn(async (transport) => {
      client = new Client({ name: `typescript-${sdk}`, version: "1" });
      await client.connect(transport);
      return list();
    }),
  list,
  token: () => ({ token: storage.held?.access_token, scope: storage.held?.scope }),
};

for await (const command of createInterface({ input: process.stdin })) {
  try {
    console.log(JSON.stringify(await commands[command]()));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error?.message ?? error), code: error?.code }));
  }
}
process.exit(0);
