// --- clients ---

function showClients(clients) {
  hide("no-clients", clients.length > 0);
  fill($("clients"), clients.slice(0, 20), () => {
    const [name, sees] = ["p.said", "p.small.soft.said"].map((kind) => make(kind));
    return {
      node: make("li", {}, name, sees),
      show({ client, session, profile }) {
        write(name, said(client) || "a client without a name");
        write(sees, `session ${said(session, 20)}, ${profile ? `profile ${said(profile, 40)}` : "sees everything"}`);
      },
    };
  });
}
