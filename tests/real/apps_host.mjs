// A host of MCP Apps, for a browser: lists the tools of the gateway in the address, and shows the one that is named there.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { AppBridge, PostMessageTransport, RESOURCE_MIME_TYPE, getToolUiResourceUri, isToolVisibilityAppOnly } from "@modelcontextprotocol/ext-apps/app-bridge";

const asked = new URLSearchParams(location.search);
const info = { name: "host", version: "1.0.0" };
const extensions = { "io.modelcontextprotocol/ui": { mimeTypes: [RESOURCE_MIME_TYPE] } };
const client = new Client(info, { capabilities: { extensions }, versionNegotiation: { mode: asked.get("era") } });
await client.connect(new StreamableHTTPClientTransport(new URL(asked.get("gateway"))));
const { tools } = await client.listTools();
const tool = tools.find((tool) => tool.name === asked.get("tool"));
const { contents: [view] } = await client.readResource({ uri: getToolUiResourceUri(tool) });
globalThis.seen = {
  tools: tools.map((tool) => tool.name),
  forModels: tools.filter((tool) => !isToolVisibilityAppOnly(tool)).map((tool) => tool.name),
  ui: view._meta?.ui,
  type: view.mimeType,
};

const frame = document.createElement("iframe");
frame.sandbox = "allow-scripts";
document.body.append(frame);
const bridge = new AppBridge(client, info, { serverTools: {}, serverResources: {} }, { hostContext: { toolInfo: { tool } } });
bridge.oninitialized = async () => {
  await bridge.sendToolInput({ arguments: {} });
  await bridge.sendToolResult(await client.callTool({ name: tool.name, arguments: {} }));
};
await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
frame.srcdoc = view.text;
document.title = "shown";
