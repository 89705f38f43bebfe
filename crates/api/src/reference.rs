//! The HTTP API of the live page: its requests, and the page of Markdown and the JSON Schema that describe
//! them.

use std::fmt::Write;

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use crate::{
    page::{self, PageRole},
    question, servers, setup, tools, work,
};

/// The version of the API. A new field does not change it; a field that is gone or means something else does.
pub const VERSION: u32 = 1;

/// Writes the schema of a type.
type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// A request of the page.
pub struct Endpoint {
    /// The method of HTTP.
    pub method: &'static str,
    /// The path, with names in braces.
    pub path: &'static str,
    /// What somebody must at least be allowed to do on the page.
    pub role: PageRole,
    takes: Option<SchemaOf>,
    answers: Option<SchemaOf>,
    meaning: &'static str,
}

impl Endpoint {
    const fn get<T: JsonSchema>(path: &'static str, meaning: &'static str) -> Self {
        let answers: Option<SchemaOf> = Some(subschema::<T>);
        Self { method: "GET", path, role: PageRole::Look, takes: None, answers, meaning }
    }

    const fn post<T: JsonSchema>(path: &'static str, meaning: &'static str) -> Self {
        let answers: Option<SchemaOf> = Some(subschema::<T>);
        Self { method: "POST", path, role: PageRole::Administer, takes: None, answers, meaning }
    }

    /// A request whose answer is empty.
    const fn order(path: &'static str, meaning: &'static str) -> Self {
        Self { method: "POST", path, role: PageRole::Operate, takes: None, answers: None, meaning }
    }

    const fn needs(mut self, role: PageRole) -> Self {
        self.role = role;
        self
    }

    const fn of<T: JsonSchema>(mut self) -> Self {
        self.takes = Some(subschema::<T>);
        self
    }
}

fn subschema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// All requests of the page.
pub const ENDPOINTS: [Endpoint; 39] = [
    Endpoint::get::<page::PageUser>("/ui/api/user", "who asks, and what they may do"),
    Endpoint::get::<page::GatewayAbout>("/ui/api/gateway", "which gateway this is"),
    Endpoint::get::<page::GatewayList>("/ui/api/gateways", "the gateways of this user")
        .needs(PageRole::Administer),
    Endpoint::get::<page::PageState>("/ui/api/state", "the status, with all servers and clients"),
    Endpoint::get::<tools::SearchAnswer>(
        "/ui/api/search",
        "searches for `q`, with at most `limit` hits; each says why it has its rank",
    ),
    Endpoint::get::<question::WaitingForUser>("/ui/api/waiting", "what waits for the user"),
    Endpoint::order("/ui/api/approvals/{id}", "decides an approval").of::<page::DecisionRequest>(),
    Endpoint::order("/ui/api/client-questions/{token}", "answers a question that a client has put")
        .of::<page::AnswerRequest>(),
    Endpoint::order(
        "/ui/api/questions/{id}",
        "answers a question of a server during a call of the page's user",
    )
    .of::<question::PageAnswer>(),
    Endpoint::post::<page::TrustReport>("/ui/api/trust", "trusts definitions")
        .of::<Vec<page::TrustRequest>>()
        .needs(PageRole::Operate),
    Endpoint::get::<page::FinishedCall>(
        "/ui/api/calls",
        "a stream of events, one for each finished call: the latest 200, then each as it ends",
    ),
    Endpoint::get::<page::CallView>("/ui/api/calls/{id}", "the params and the result of one of them"),
    Endpoint::post::<page::UserCall>("/ui/api/calls/{id}/repeat", "makes it again"),
    Endpoint::get::<servers::ServerTools>(
        "/ui/api/servers/{name}/tools",
        "the tools of a server that have the words `q`, from the number `from` on",
    ),
    Endpoint::get::<servers::ToolCard>("/ui/api/tools/{full}", "one tool, by its full name"),
    Endpoint::post::<page::UserCall>("/ui/api/tools/{full}/call", "calls it").of::<page::PageCall>(),
    Endpoint::post::<servers::EditReport>("/ui/api/tools/{full}/policy", "sets its policy in servers.toml")
        .of::<servers::PolicyRequest>(),
    Endpoint::post::<servers::AddReport>("/ui/api/servers", "adds a server").of::<servers::AddRequest>(),
    Endpoint::post::<servers::AddReport>("/ui/api/servers/import", "adds the servers of a client's file")
        .of::<servers::ImportRequest>(),
    Endpoint::get::<servers::RegistryList>("/ui/api/registry", "finds servers with `q` in the registry")
        .needs(PageRole::Administer),
    Endpoint::get::<servers::RegistryOffer>(
        "/ui/api/registry/server",
        "what the server `name` of the registry asks for",
    )
    .needs(PageRole::Administer),
    Endpoint::post::<servers::AddReport>("/ui/api/registry/server", "adds it")
        .of::<servers::RegistryRequest>(),
    Endpoint::get::<servers::ServerText>(
        "/ui/api/servers/{name}/text",
        "the text of a server in servers.toml",
    )
    .needs(PageRole::Administer),
    Endpoint::post::<servers::EditReport>("/ui/api/servers/{name}/text", "gives it another text")
        .of::<servers::EditRequest>(),
    Endpoint::get::<servers::ServerHistory>(
        "/ui/api/servers/{name}/history",
        "what happened to a server lately",
    ),
    Endpoint::post::<servers::SecretReport>(
        "/ui/api/servers/{name}/secret",
        "stores a value that a server lacks",
    )
    .of::<servers::SecretRequest>(),
    Endpoint::post::<servers::EditReport>("/ui/api/servers/{name}/token", "gives a server a token")
        .of::<servers::TokenRequest>(),
    Endpoint::post::<servers::ServerAction>(
        "/ui/api/servers/{name}/{action}",
        "`restart`, `hold` and `release` answer nothing, and need `operate` only; `login` answers an address; `enable`, `disable` and `remove` edit servers.toml",
    ),
    Endpoint::get::<setup::HostList>("/ui/api/hosts", "the clients on this machine")
        .needs(PageRole::Administer),
    Endpoint::get::<setup::HostChange>(
        "/ui/api/hosts/{name}/{action}",
        "what `install` or `uninstall` would do to a client's file",
    )
    .needs(PageRole::Administer),
    Endpoint::post::<setup::AppliedChange>("/ui/api/hosts/{name}/{action}", "does it")
        .of::<setup::ApplyRequest>(),
    Endpoint::post::<setup::SetupPlan>("/ui/api/setup/plan", "what a setup would do")
        .of::<setup::SetupRequest>(),
    Endpoint::post::<setup::SetupReport>("/ui/api/setup", "makes it").of::<setup::SetupRequest>(),
    Endpoint::post::<setup::UndoReport>("/ui/api/setup/undo", "undoes the last one"),
    Endpoint::get::<work::AllWork>("/ui/api/work", "the work of all clients"),
    Endpoint::get::<work::FactList>("/ui/api/facts", "the facts that fit `q`"),
    Endpoint::get::<work::WorkDetails>(
        "/ui/api/work/{kind}/{id}",
        "one piece of work of the profile `owner`; of a kept result, from `offset` on. `kind` is a [WorkKind](#workkind)",
    ),
    Endpoint::order(
        "/ui/api/work/{kind}/{id}/{action}",
        "acts on it, as the profile `owner`. `action` is `cancel`, `pause`, `resume` or `delete`",
    ),
    Endpoint::get::<page::Readiness>(
        "/readyz",
        "whether the gateway is ready, else with the status 503; without the token",
    ),
];

/// A schema of every type, and for each request the schemas of its body and of its answer.
struct Schemas {
    types: Map<String, Value>,
    requests: Vec<(Option<Value>, Option<Value>)>,
    failure: Value,
}

impl Schemas {
    fn new() -> Self {
        let mut taken = SchemaSettings::default().for_deserialize().into_generator();
        let mut answered = SchemaSettings::default().for_serialize().into_generator();
        let requests = ENDPOINTS.iter().map(|endpoint| {
            let takes = endpoint.takes.map(|schema| Value::from(schema(&mut taken)));
            (takes, endpoint.answers.map(|schema| Value::from(schema(&mut answered))))
        });
        let requests = requests.collect();
        let failure = Value::from(answered.subschema_for::<page::ErrorAnswer>());
        answered.subschema_for::<work::WorkKind>();
        let mut types = taken.take_definitions(false);
        types.extend(answered.take_definitions(false));
        types.sort_keys();
        types.values_mut().for_each(join_lines);
        Self { types, requests, failure }
    }
}

/// Joins the lines of every description.
fn join_lines(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if let Some(Value::String(text)) = members.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            members.values_mut().for_each(join_lines);
        }
        Value::Array(all) => all.iter_mut().for_each(join_lines),
        _ => {}
    }
}

/// Returns the JSON Schema of all types.
pub fn schema() -> Value {
    let Schemas { types, requests, failure } = Schemas::new();
    let requests = ENDPOINTS.iter().zip(requests).map(|(endpoint, (takes, answers))| {
        let Endpoint { method, path, role, meaning, .. } = endpoint;
        json!({ "method": method, "path": path, "role": role, "description": meaning, "takes": takes, "answers": answers })
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The API of Nonet's page",
        "version": VERSION,
        "requests": requests.collect::<Vec<_>>(),
        "failure": failure,
        "$defs": types,
    })
}

/// Returns the description of the API as a page of Markdown.
pub fn reference() -> String {
    let schemas = Schemas::new();
    let mut page = format!(
        "# The API of the page\n\n\
         Version {VERSION}. The requests that [the page](page.md) makes, for other programs. A new field does not change the \
         version; a field that is gone or means something else does. [api.schema.json](api.schema.json) is the JSON Schema \
         of the types.\n\n\
         Each request carries the token of `nonet ui` in the header `x-nonet-token`, which may do everything. Where people sign in \
         (`[auth.page]`), it carries the access token of a program instead, as `Authorization: Bearer TOKEN`, or the cookie of a \
         browser; a request of a browser that is no GET also carries `csrf` of `/ui/api/user` in the header `x-nonet-csrf`. The \
         column \"role\" says what somebody must be allowed to do. With the id of another gateway of the same \
         user in `x-nonet-gateway`, that gateway answers (not on Windows). Bodies are JSON. A failure has a status from 400 on \
         and answers {}; a request that cannot be read answers plain text.\n\n\
         ## Requests\n\n| method | path | role | takes | answers | meaning |\n|---|---|---|---|---|---|\n",
        words(&schemas.failure)
    );
    for (endpoint, (takes, answers)) in ENDPOINTS.iter().zip(&schemas.requests) {
        let Endpoint { method, path, role, meaning, .. } = endpoint;
        let [takes, answers] = [takes, answers].map(|schema| schema.as_ref().map(words).unwrap_or_default());
        let _ = writeln!(page, "| {method} | `{path}` | {role} | {takes} | {answers} | {meaning} |");
    }
    page.push_str("\n## Types\n");
    for (name, schema) in &schemas.types {
        let _ = write!(page, "\n### {name}\n\n{}\n", about(schema));
        fields(&mut page, schema);
        for of in ["oneOf", "anyOf"] {
            let Some(alternatives) = schema[of].as_array() else { continue };
            if schema["properties"].is_object() {
                continue;
            }
            page.push_str("\n| value | meaning |\n|---|---|\n");
            for one in alternatives {
                let _ = writeln!(page, "| {} | {} |", words(one), about(one));
            }
        }
    }
    page
}

/// Writes the table of a type's fields.
fn fields(page: &mut String, schema: &Value) {
    let Some(properties) = schema["properties"].as_object() else { return };
    page.push_str("\n| field | type | meaning |\n|---|---|---|\n");
    for (name, field) in properties {
        let is_required = schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name));
        let absent = if is_required { "" } else { ", or absent" };
        let _ = writeln!(page, "| `{name}` | {}{absent} | {} |", words(field), about(field));
    }
}

fn about(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// Says what a value is.
fn words(schema: &Value) -> String {
    let all = |list: &Value, between: &str| {
        list.as_array().into_iter().flatten().map(words).collect::<Vec<_>>().join(between)
    };
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(word) = schema["const"].as_str() {
        return format!("`{word}`");
    }
    for of in ["anyOf", "oneOf"] {
        if schema[of].is_array() {
            return all(&schema[of], " or ");
        }
    }
    if let Some(names) = schema["enum"].as_array() {
        return names
            .iter()
            .map(|name| format!("`{}`", name.as_str().unwrap_or_default()))
            .collect::<Vec<_>>()
            .join(", ");
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => return "any JSON".into(),
    };
    let kinds = kinds.iter().map(|kind| match *kind {
        "array" if schema["prefixItems"].is_array() => format!("[{}]", all(&schema["prefixItems"], ", ")),
        "array" => format!("list of {}", words(&schema["items"])),
        "object" if schema["properties"].is_object() => "object".into(),
        "object" if schema["additionalProperties"].is_object() => {
            format!("map of {}", words(&schema["additionalProperties"]))
        }
        "null" => "`null`".into(),
        kind => kind.to_string(),
    });
    kinds.collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_in_the_docs_is_up_to_date() {
        let kept = |file: &str| {
            let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/");
            std::fs::read_to_string(format!("{docs}{file}")).unwrap_or_default()
        };
        let update = "update it: cargo run -p nonet-api --example describe";
        assert!(kept("api.md") == reference(), "{update}");
        assert!(kept("api.schema.json") == format!("{:#}\n", schema()), "{update}");
    }

    #[test]
    fn every_reference_is_to_a_type() {
        let page = reference();
        let titles = page.to_lowercase();
        for (at, _) in page.match_indices("](#") {
            let (link, _) = page[at + 3..].split_once(')').expect("a link ends");
            assert!(titles.contains(&format!("\n### {link}\n")), "{link}");
        }
    }
}
