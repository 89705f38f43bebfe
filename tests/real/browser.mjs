// Signs people in with Chromium: at the page of a gateway, and at a server with accounts of their own.
//
//     browser.mjs GATEWAY ISSUER ISSUER-OF-THE-SERVER CHROMIUM
//
// Both issuers are `issuer.mjs`. The server is `inner`. Exits with 1 when a check fails.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";

const require = createRequire(path.join(process.env.NONET_REAL, "node", "here.js"));
const { chromium } = require("playwright-core");
const [gateway, issuer, ofServer, executablePath] = process.argv.slice(2);

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });

/** A new browser, in which somebody is signed in at both issuers. */
async function browserOf(person) {
  for (const place of [issuer, ofServer]) {
    const told = await fetch(`${place}/person`, { method: "PUT", body: JSON.stringify(person) });
    assert.equal(told.status, 204);
  }
  const page = await (await browser.newContext()).newPage();
  page.setDefaultTimeout(60_000);
  page.refused = [];
  page.on("response", (answer) => answer.status() >= 400 && page.refused.push(`${answer.status()} ${answer.url()}`));
  return page;
}

try {
  const ann = await browserOf({ sub: "ann", groups: ["sre"] });
  // The page sends her to sign in, and comes back.
  await ann.goto(`${gateway}/ui`);
  await ann.waitForFunction(() => document.getElementById("user-name")?.textContent.includes("ann (operate)"));
  assert.equal(await ann.locator("nav [href='#/setup']").isVisible(), false, "it is not hers");
  // An order of the page.
  const restarted = await ann.evaluate(async () => {
    const { csrf } = await (await fetch("/ui/api/user")).json();
    return (await fetch("/ui/api/servers/inner/restart", { method: "POST", headers: { "x-nonet-csrf": csrf } })).status;
  });
  assert.equal(restarted, 204);
  // Her account at the server.
  await ann.goto(`${gateway}/accounts/inner`);
  assert.match(await ann.locator("li").innerText(), /not signed in/);
  await ann.getByRole("button", { name: "Sign in", exact: true }).click();
  await ann.getByText("Done: go back").waitFor();
  assert.match(await ann.locator("li").innerText(), /\(signed in\)/);
  // Somebody else has none of it.
  const bob = await browserOf({ sub: "bob", groups: ["analysts"] });
  await bob.goto(`${gateway}/accounts`);
  assert.match(await bob.locator("li").innerText(), /not signed in/);
  await bob.goto(`${gateway}/ui`);
  await bob.getByText("has no role on this page").waitFor();
  // She signs out, at the server and here.
  await ann.getByRole("button", { name: "Sign out", exact: true }).click();
  await ann.getByText("not signed in").waitFor();
  await ann.getByRole("button", { name: "Sign out of Nonet" }).click();
  await ann.getByText("You have signed out here").waitFor();
  assert.deepEqual(ann.refused.filter((one) => !one.includes("401")), []);
} finally {
  await browser.close();
}
