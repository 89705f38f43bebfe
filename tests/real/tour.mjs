// The steps of both TypeScript SDK clients, with a gateway that has server-everything as `everything`.

import { createRequire } from "node:module";
import path from "node:path";

/** Loads what is installed in $NONET_REAL/node. */
export const require = createRequire(path.join(process.env.NONET_REAL, "node", "here.js"));

/** What is filled into every form. */
export const filled = () => ({ action: "accept", content: { name: "Ada" } });

const names = (list) => list.map(({ name }) => name);

/** All pages of a list. */
async function all(list) {
  const entries = [];
  let cursor;
  do {
    const page = await list(cursor && { cursor });
    const [found] = Object.values(page).filter(Array.isArray);
    entries.push(...found);
    cursor = page.nextCursor;
  } while (cursor);
  return entries;
}

/** Connects, goes once through everything, closes, and prints one line: see `python_client.py`. */
export async function tour(client, transport, protocol) {
  // Retryable calls are retried: on a busy machine, a server may take longer to start than a call waits.
  async function call(name, args) {
    const patience = Date.now() + 60_000;
    let result;
    for (;;) {
      result = await client.callTool({ name, arguments: args });
      const again = result.isError && result.content[0].text.includes('"retryable":true');
      if (!again || Date.now() > patience) break;
      await new Promise((done) => setTimeout(done, 500));
    }
    if (result.isError) throw new Error(`${name} answered with an error: ${JSON.stringify(result)}`);
    return result.content.map(({ text }) => text).join("\n");
  }
  await client.connect(transport);
  const report = { tools: names(await all((page) => client.listTools(page))) };
  // A call waits for its server; a search covers only ready servers.
  report.call = await call("execute_tool", { name: "everything.echo", params: { message: "hi" } });
  report.found = names(JSON.parse(await call("search_tools", { query: "echo a message" })).results);
  const resources = await all((page) => client.listResources(page));
  report.resources = resources.map(({ uri }) => uri);
  const { contents } = await client.readResource({ uri: "demo://resource/static/document/features.md" });
  report.read = contents[0].text.split("\n")[0];
  report.prompts = names(await all((page) => client.listPrompts(page)));
  const prompt = { name: "everything__args-prompt", arguments: { city: "Bergen" } };
  report.prompt = (await client.getPrompt(prompt)).messages[0].content.text;
  report.form = await call("execute_tool", { name: "everything.trigger-elicitation-request" });
  report.protocol = protocol();
  await client.close();
  console.log(JSON.stringify(report));
}
