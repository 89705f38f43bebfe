// Shows the interfaces of two servers behind a gateway in a browser, as a host of MCP Apps does.
//
//     apps.mjs GATEWAY PORT CHROMIUM
//
// The page of the host is served at PORT. Exits with 1 when a check fails.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import path from "node:path";

const require = createRequire(path.join(process.env.NONET_REAL, "node", "here.js"));
const { chromium } = require("playwright-core");
const esbuild = require("esbuild");
const [gateway, port, executablePath] = process.argv.slice(2);

const built = await esbuild.build({
  entryPoints: [path.join(import.meta.dirname, "apps_host.mjs")],
  nodePaths: [path.join(process.env.NONET_REAL, "node", "node_modules")],
  bundle: true,
  write: false,
  format: "esm",
  platform: "browser",
});
const script = built.outputFiles[0].text;
const site = createServer((request, reply) => {
  const isScript = request.url === "/host.js";
  reply.setHeader("content-type", isScript ? "text/javascript" : "text/html");
  reply.end(isScript ? script : "<!doctype html><body><script type=module src=/host.js></script>");
}).listen(port, "127.0.0.1");

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
try {
  for (const era of ["legacy", "auto"]) {
    const open = async (tool) => {
      const page = await browser.newPage();
      page.setDefaultTimeout(60_000);
      page.on("pageerror", (error) => console.error(`${era} ${tool}: ${error.message}`));
      page.on("console", (message) => message.type() === "error" && console.error(`${era} ${tool}: ${message.text()}`));
      await page.goto(`http://127.0.0.1:${port}/?${new URLSearchParams({ gateway, tool, era })}`);
      await page.waitForFunction(() => document.title === "shown");
      return { seen: await page.evaluate(() => globalThis.seen), view: page.frameLocator("iframe"), page };
    };
    const clock = await open("clock__show_time");
    const nine = clock.seen.tools.slice(0, 9);
    assert.equal(nine[0], "search_tools");
    assert.deepEqual(clock.seen.tools.slice(9).sort(), ["board__show_board", "clock__show_time", "refresh"]);
    assert.deepEqual(clock.seen.forModels, [...nine, "board__show_board", "clock__show_time"]);
    const ui = { csp: { connectDomains: ["https://time.example"] }, permissions: { geolocation: {} }, prefersBorder: true };
    assert.deepEqual(clock.seen.ui, ui, "the policies pass unchanged");
    await clock.view.getByText("noon").waitFor();
    // A tool that only the interface calls, by the name at its server.
    await clock.view.getByRole("button").click();
    await clock.view.getByText("midnight").waitFor();
    const board = await open("board__show_board");
    assert.equal(board.seen.type, "text/html;profile=mcp-app");
    await board.view.getByText("a board").waitFor();
    await Promise.all([clock.page.close(), board.page.close()]);
  }
} finally {
  await browser.close();
  site.close();
}
