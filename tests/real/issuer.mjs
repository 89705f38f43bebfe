// An issuer of access tokens: `oidc-provider` of $NONET_REAL/node, in which everybody is signed in at once.
//
//     issuer.mjs RESOURCE...      tokens are for these addresses
//
// The page of the first one's gateway is the client `page`, which needs no secret.
// Prints its address on stdout. The person who signs in is the one whom `PUT /person` named last, as JSON:
// {"sub": "ann", "groups": ["analysts"], "seconds": 60}, where `seconds` is how long a token lasts. `PUT /keys`
// replaces the keys.

import { createServer } from "node:http";
import { createRequire } from "node:module";
import { generateKeyPairSync, randomUUID } from "node:crypto";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const folder = join(process.env.NONET_REAL, "node", "node_modules", "oidc-provider");
const { main } = createRequire(join(folder, "package.json"))("./package.json");
const { default: Provider } = await import(pathToFileURL(join(folder, main)));

const resources = process.argv.slice(2);
const people = new Map();
let current = { sub: "ann", seconds: 3600 };

function newKeys() {
  const { privateKey } = generateKeyPairSync("ec", { namedCurve: "P-256" });
  return { keys: [{ ...privateKey.export({ format: "jwk" }), kid: randomUUID(), alg: "ES256", use: "sig" }] };
}

function provider(issuer, jwks) {
  const made = new Provider(issuer, {
    jwks,
    clients: [{
      client_id: "page",
      application_type: "native",
      redirect_uris: [new URL("/ui/callback", resources[0]).href],
      response_types: ["code"],
      grant_types: ["authorization_code"],
      token_endpoint_auth_method: "none",
    }],
    scopes: ["openid", "profile", "offline_access", "mcp", "files:write"],
    claims: { openid: ["sub"], profile: ["name", "groups"] },
    // ID tokens have all claims, so that nobody needs the userinfo.
    conformIdTokenClaims: false,
    cookies: { keys: ["a key of the tests"] },
    features: {
      devInteractions: { enabled: false },
      introspection: { enabled: true },
      revocation: { enabled: true },
      registration: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => resources[0],
        useGrantedResource: () => true,
        getResourceServerInfo: (_, resource) => ({
          scope: "mcp files:write",
          audience: resource,
          accessTokenTTL: current.seconds,
          accessTokenFormat: "jwt",
          jwt: { sign: { alg: "ES256" } },
        }),
      },
    },
    // Public clients register, and get refresh tokens.
    clientDefaults: { id_token_signed_response_alg: "ES256", token_endpoint_auth_method: "none" },
    enabledJWA: { idTokenSigningAlgValues: ["ES256"] },
    issueRefreshToken: (_, client) => client.grantTypeAllowed("refresh_token"),
    rotateRefreshToken: true,
    pkce: { required: () => true },
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, name: id, groups: people.get(id)?.groups ?? [] }) }),
    extraTokenClaims: (_, token) => ({ groups: people.get(token.accountId)?.groups ?? [] }),
    interactions: { url: (_, interaction) => `/sign-in/${interaction.uid}` },
    ttl: { AccessToken: () => current.seconds, Grant: 3600, Session: 3600, Interaction: 600, RefreshToken: 3600 },
  });
  made.proxy = false;
  return made;
}

// Signs in the current person, and grants what the client asks for.
async function signIn(of, request, response) {
  const { params } = await of.interactionDetails(request, response);
  people.set(current.sub, current);
  const grant = new of.Grant({ accountId: current.sub, clientId: params.client_id });
  const scope = params.scope ?? "";
  grant.addOIDCScope(scope);
  for (const resource of [params.resource ?? resources[0]].flat()) grant.addResourceScope(resource, scope);
  const consent = { grantId: await grant.save() };
  const done = { login: { accountId: current.sub }, consent };
  await of.interactionFinished(request, response, done, { mergeWithLastSubmission: false });
}

let serving;
const server = createServer(async (request, response) => {
  const body = async () => {
    const parts = [];
    for await (const part of request) parts.push(part);
    return JSON.parse(Buffer.concat(parts).toString() || "{}");
  };
  try {
    if (request.method === "PUT" && request.url === "/person") {
      current = { seconds: 3600, ...(await body()) };
      return response.writeHead(204).end();
    }
    if (request.method === "PUT" && request.url === "/keys") {
      serving = provider(issuer, newKeys());
      return response.writeHead(204).end();
    }
    // A client that registered for one scope may ask for another later.
    if (request.method === "POST" && request.url === "/reg") {
      request.body = await body();
      delete request.body.scope;
    }
    if (request.url.startsWith("/sign-in/")) return await signIn(serving, request, response);
    await serving.callback()(request, response);
  } catch (error) {
    console.error(error);
    if (!response.headersSent) response.writeHead(500);
    response.end(String(error));
  }
});
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const issuer = `http://127.0.0.1:${server.address().port}`;
serving = provider(issuer, newKeys());
console.log(issuer);
