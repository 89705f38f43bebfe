// An MCP server with user interfaces, on stdin and stdout: one made with the SDK of MCP Apps, one with mcp-ui.
//
//     apps_server.mjs clock|board

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(path.join(process.env.NONET_REAL, "node", "here.js"));
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { McpServer } = await load("@modelcontextprotocol/sdk/server/mcp.js");
const { StdioServerTransport } = await load("@modelcontextprotocol/sdk/server/stdio.js");
const { registerAppTool, registerAppResource, RESOURCE_MIME_TYPE, getUiCapability } = await load("@modelcontextprotocol/ext-apps/server");
const { createUIResource } = await load("@mcp-ui/server");

const kind = process.argv[2];
const server = new McpServer({ name: kind, version: "1.0.0" });
const text = (words) => ({ content: [{ type: "text", text: words }], structuredContent: { words } });

/** The SDK of interfaces as a script without imports. */
function bundle() {
  const code = readFileSync(require.resolve("@modelcontextprotocol/ext-apps/app-with-deps"), "utf8");
  const asGlobals = (_, names) => {
    const pairs = names.split(",").map((name) => name.trim().split(/\s+as\s+/));
    return `globalThis.apps = { ${pairs.map(([own, shown]) => `${shown ?? own}: ${own}`).join(", ")} };`;
  };
  return code.replace(/export\s*\{([^}]*)\};?\s*$/, asGlobals).replaceAll("</script", "<\\/script");
}

function clock() {
  const uri = "ui://clock/view.html";
  const page = () => `<!doctype html><html><head><title>clock</title></head><body><p id="time">?</p><button>refresh</button>
    <script type="module">${bundle()}
      const app = new apps.App({ name: "clock", version: "1.0.0" }, {});
      const show = (result) => { document.getElementById("time").textContent = result.structuredContent.words; };
      app.ontoolresult = show;
      document.querySelector("button").onclick = async () => show(await app.callServerTool({ name: "refresh", arguments: {} }));
      await app.connect();
    </script></body></html>`;
  const ui = { csp: { connectDomains: ["https://time.example"] }, permissions: { geolocation: {} }, prefersBorder: true };
  registerAppTool(server, "show_time", { description: "Shows the time", inputSchema: {}, _meta: { ui: { resourceUri: uri } } }, () => text("noon"));
  registerAppTool(server, "refresh", { description: "Refreshes", inputSchema: {}, _meta: { ui: { resourceUri: uri, visibility: ["app"] } } }, () => text("midnight"));
  registerAppResource(server, "The clock", uri, {}, () => ({ contents: [{ uri, mimeType: RESOURCE_MIME_TYPE, text: page(), _meta: { ui } }] }));
}

function board() {
  const { resource } = createUIResource({
    uri: "ui://board/view.html",
    content: { type: "rawHtml", htmlString: "<!doctype html><html><body><p id='board'>a board</p></body></html>" },
    encoding: "text",
  });
  registerAppTool(server, "show_board", { description: "Shows the board", inputSchema: {}, _meta: { ui: { resourceUri: resource.uri } } }, () => text("shown"));
  registerAppResource(server, "The board", resource.uri, {}, () => ({ contents: [resource] }));
}

// As the SDK advises: without a client that shows interfaces there are none.
server.server.oninitialized = () => {
  if (!getUiCapability(server.server.getClientCapabilities())) process.exit(1);
};
({ clock, board })[kind]();
await server.connect(new StdioServerTransport());
