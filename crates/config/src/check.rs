//! Checks beyond the schema: keys that exclude each other, names that must exist, steps that form no plan.
//!
//! Works on the JSON as written, so that an entry with a wrong value still gets all its faults.

use std::collections::{BTreeMap, BTreeSet};

use nonet_text::{
    name::{RESERVED, ServerName},
    template,
};
use serde_json::{Map, Value};

use super::{
    ConfigFault,
    apps::default_id,
    explain::{UNKNOWN_KEY, choose, quoted},
    read::{ConfigSource, FaultSide, join},
    rules::{self, RuleFault, TableRules},
    schema::path_params,
    servers::Placement,
};
use crate::workflow::{self, INDEX, INPUT, ITEM, PlanFlaw, PlanNode, StepReferences};

/// How deep apps may be nested.
pub const APPS_DEEP: usize = 5;
/// The keys of a step that may contain templates.
const WITH_TEMPLATES: [&str; 3] = ["params", "input", "ask"];

/// Returns every fault between values. `earlier` are the faults known so far.
pub(super) fn check(written: &ConfigSource, earlier: &[ConfigFault]) -> Vec<ConfigFault> {
    let mut checker = Checker { written, earlier, faults: Vec::new() };
    for (pointer, server) in checker.entries("servers") {
        checker.server(&pointer, server);
    }
    checker.categories_and_profiles();
    checker.tokens();
    checker.notify();
    checker.approvals();
    for (pointer, policy) in checker.entries("policies") {
        checker.policy(&pointer, policy);
    }
    for (pointer, app) in checker.entries("apps") {
        checker.app(&pointer, app);
    }
    checker.apps_in_apps();
    checker.auth();
    checker.exports();
    if let Some(cluster) = written.value.get("cluster").and_then(Value::as_object) {
        checker.rules("/cluster", cluster, &rules::CLUSTER);
    }
    checker.faults
}

struct Checker<'a> {
    written: &'a ConfigSource,
    earlier: &'a [ConfigFault],
    faults: Vec<ConfigFault>,
}

impl<'a> Checker<'a> {
    /// Checks that a server is a program, an address or a REST service, and has only the matching keys.
    fn server(&mut self, pointer: &str, server: &Map<String, Value>) {
        self.renames(pointer, server);
        self.rules(pointer, server, &rules::SERVER);
        let Some(kind) = rules::SERVER.kinds(server).pop() else { return };
        let transport = server.get("transport").and_then(Value::as_str);
        let needed = match transport {
            Some("stdio") => Some("command"),
            Some("http" | "sse") => Some("url"),
            _ => None,
        };
        if let (Some(needed), Some(transport)) = (needed.filter(|needed| *needed != kind), transport) {
            let message = format!("`{transport}` needs `{needed}`, but this server has `{kind}`");
            let remedy = format!("Set `{needed}` instead, or remove `transport`.");
            self.fault(&join(pointer, "transport"), FaultSide::Value, &message, &remedy);
        }
        self.placement(pointer, server, kind);
        self.credentials(pointer, server);
        match kind {
            "url" => self.oauth(pointer, server),
            "openapi" | "endpoints" => self.rest(pointer, server),
            _ => {}
        }
    }

    /// Checks that only a program in a cluster has a placement, and only one that its clients share.
    fn placement(&mut self, pointer: &str, server: &Map<String, Value>, kind: &str) {
        let Some(placement) = server.get("placement").and_then(Value::as_str) else { return };
        let pointer = join(pointer, "placement");
        if kind != "command"
            || !matches!(Placement::try_from(placement.to_owned()), Ok(Placement::One | Placement::Label(_)))
        {
            // The value is the default, or already has a fault.
        } else if self.written.value.get("cluster").is_none() {
            let remedy = "Add `[cluster]` with `redis`, or remove `placement`: without a cluster, the program runs once in any case.";
            self.fault(
                &pointer,
                FaultSide::Value,
                "only a `[cluster]` has more than one place for a program",
                remedy,
            );
        } else if server.get("scope").and_then(Value::as_str) == Some("client") {
            let message = "a server with `scope = \"client\"` runs where its client is";
            let remedy = "Remove `placement`, or remove `scope` so that all clients share the one program.";
            self.fault(&pointer, FaultSide::Key, message, remedy);
        }
    }

    /// Checks that people have accounts of their own only where they sign in, and where nothing else determines
    /// whose account it is.
    fn credentials(&mut self, pointer: &str, server: &Map<String, Value>) {
        let is_personal = |value: &&Value| value.is_object() || *value == "user";
        let Some(credentials) = server.get("credentials").filter(is_personal) else { return };
        let at = join(pointer, "credentials");
        let root = &self.written.value;
        let has = |path: &str| root.pointer(path).is_some();
        let headers = server.get("headers").and_then(Value::as_object);
        let is_authorized = headers
            .is_some_and(|headers| headers.keys().any(|name| name.eq_ignore_ascii_case("authorization")));
        let grant = server.get("oauth").and_then(|oauth| oauth.get("grant")).and_then(Value::as_str);
        let is_rest = server.contains_key("openapi") || server.contains_key("endpoints");
        let fault = if !has("/auth") {
            Some((
                "people have accounts of their own only where they sign in at the gateway",
                "Add `[auth]` with the `issuer` of your access tokens, or remove it.",
            ))
        } else if credentials.is_string() && !has("/auth/page") {
            Some((
                "people sign in to the server on the gateway's page, which has to know who they are",
                "Add `[auth.page]` with the `client_id` of the gateway at your issuer.",
            ))
        } else if credentials.is_string() && has("/cluster") && !has("/auth/key") {
            Some((
                "the replicas of a `[cluster]` need one key for the tokens of people",
                "Set `key = \"${NONET_KEY}\"` in [auth], the same for each replica.",
            ))
        } else if is_authorized {
            Some((
                "a server with an `Authorization` header has one account for all",
                "Remove that header, or `credentials`.",
            ))
        } else if grant == Some("client_credentials") {
            Some((
                "`client_credentials` in `oauth` is one account for all",
                "Remove that `grant`, or `credentials`.",
            ))
        } else if server.get("scope").and_then(Value::as_str) == Some("client") {
            Some(("each person has a connection already", "Remove `scope`."))
        } else if is_rest && !server.contains_key("base_url") {
            Some((
                "`credentials` of a REST service need `base_url`",
                "Set `base_url`, so that no document decides where tokens go.",
            ))
        } else {
            None
        };
        if let Some((message, remedy)) = fault {
            self.fault(&at, FaultSide::Value, message, remedy);
        }
        if let Some(exchange) = credentials.get("exchange").and_then(Value::as_object)
            && exchange.contains_key("client_secret")
            && !exchange.contains_key("client_id")
        {
            let message = "`client_secret` needs a `client_id`";
            let at = join(&join(&at, "exchange"), "client_secret");
            self.fault(&at, FaultSide::Key, message, "Set both or neither.");
        }
    }

    /// Checks how people sign in with a browser.
    fn page_of_people(&mut self, issuers: &BTreeSet<&str>) {
        let root = &self.written.value;
        let Some(page) = root.pointer("/auth/page").and_then(Value::as_object) else { return };
        if let Some(issuer) = page.get("issuer").and_then(Value::as_str)
            && !issuers.contains(issuer)
        {
            let known: Vec<&str> = issuers.iter().copied().collect();
            let message = format!("{} is no issuer of [auth]", self.shown("/auth/page/issuer", issuer));
            self.fault("/auth/page/issuer", FaultSide::Value, &message, &choose(issuer, &known));
        }
        let public = root.pointer("/gateway/public_url").and_then(Value::as_str).unwrap_or_default();
        let uri: Option<http::Uri> = public.parse().ok();
        let host = uri.as_ref().and_then(http::Uri::host).unwrap_or_default();
        if public.starts_with("http://") && !["localhost", "127.0.0.1", "[::1]"].contains(&host) {
            let message = "browsers keep its cookies only over TLS";
            let remedy = "Set an https address as `public_url` in [gateway].";
            self.fault("/auth/page", FaultSide::Key, message, remedy);
        }
        if root.get("cluster").is_some() && root.pointer("/auth/key").is_none() {
            let message = "the replicas of a `[cluster]` need one key for the cookies of browsers";
            let remedy = "Set `key = \"${NONET_KEY}\"` in [auth], the same for each replica.";
            self.fault("/auth/page", FaultSide::Key, message, remedy);
        }
        for role in ["look", "operate", "administer"] {
            let Some(rule) = page.get(role).and_then(Value::as_object) else { continue };
            let is_empty = |key: &str| match rule.get(key) {
                Some(Value::Object(claims)) => claims.is_empty(),
                Some(Value::Array(scopes)) => scopes.is_empty(),
                _ => true,
            };
            if is_empty("claims") && is_empty("scopes") {
                let remedy = "Set `claims` for people in a browser, `scopes` for programs, or both.";
                self.fault(&join("/auth/page", role), FaultSide::Key, "gives the role to nobody", remedy);
            }
        }
    }

    /// Checks a REST service: it has an address, signs in only as configured, and its endpoints are valid
    /// requests.
    fn rest(&mut self, pointer: &str, server: &Map<String, Value>) {
        let has = |key: &str| server.contains_key(key);
        if has("oauth") && !has("base_url") {
            let remedy = "Set `base_url`, so that no document decides where tokens go.";
            self.fault(
                &join(pointer, "oauth"),
                FaultSide::Key,
                "`oauth` of a REST service needs `base_url`",
                remedy,
            );
        }
        self.oauth(pointer, server);
        if !has("openapi") && !has("base_url") {
            let remedy = "Set `base_url = \"https://api.example.com\"`, which the paths are appended to.";
            let message = "`endpoints` need `base_url`";
            self.fault(&join(pointer, "endpoints"), FaultSide::Key, message, remedy);
        }
        let pointer = join(pointer, "endpoints");
        let endpoints = server.get("endpoints").and_then(Value::as_object);
        if endpoints.is_some_and(Map::is_empty) && !has("openapi") {
            let remedy = "Add a `[servers.NAME.endpoints.TOOL]` for each request.";
            self.fault(&pointer, FaultSide::Key, "must have at least one endpoint", remedy);
        }
        for (name, endpoint) in endpoints.into_iter().flatten() {
            if let Some(endpoint) = endpoint.as_object() {
                self.endpoint(&join(&pointer, name), endpoint);
            }
        }
    }

    /// Checks that every param of an endpoint has exactly one place, and one that the method supports.
    fn endpoint(&mut self, pointer: &str, endpoint: &Map<String, Value>) {
        let mut places: BTreeMap<&str, &str> = BTreeMap::new();
        let path = endpoint.get("path").and_then(Value::as_str).unwrap_or_default();
        for name in path_params(path).unwrap_or_default() {
            places.insert(name, "path");
        }
        for place in ["query", "header", "body"] {
            let names = endpoint.get(place).and_then(Value::as_array).into_iter().flatten();
            for (at, name) in names.enumerate().filter_map(|(at, name)| Some((at, name.as_str()?))) {
                if let Some(other) = places.insert(name, place) {
                    let message = format!("{} is already a param of the {other}", quoted(name));
                    let item = join(&join(pointer, place), &at.to_string());
                    self.fault(
                        &item,
                        FaultSide::Value,
                        &message,
                        "A param has one place: remove it from one of them.",
                    );
                }
            }
        }
        let method = endpoint.get("method").and_then(Value::as_str).unwrap_or("GET").to_uppercase();
        let has_body = !matches!(method.as_str(), "GET" | "HEAD");
        if !has_body && endpoint.get("body").and_then(Value::as_array).is_some_and(|body| !body.is_empty()) {
            let message = format!("a {method} request has no body");
            let remedy = "Set `method`, or move the params to `query`.";
            self.fault(&join(pointer, "body"), FaultSide::Key, &message, remedy);
        }
        let Some(schema) = endpoint.get("input_schema") else { return };
        let place = join(pointer, "input_schema");
        if schema.get("type").is_some_and(|kind| kind != "object") {
            let message = "the input of a tool must be an object";
            let remedy = "Set `type = \"object\"` and describe the params in `properties`.";
            self.fault(&place, FaultSide::Value, message, remedy);
        } else if let Err(error) = jsonschema::meta::validate(schema) {
            let message = format!("is not a JSON Schema ({})", error.masked());
            self.fault(
                &place,
                FaultSide::Value,
                &message,
                "Describe each param in `properties`, as in JSON Schema.",
            );
        }
        let described = schema.get("properties").and_then(Value::as_object);
        for (name, place) in &places {
            if !described.is_some_and(|described| described.contains_key(*name)) {
                let message = format!("the param {} of the {place} is not described", quoted(name));
                let remedy = "Add it to `properties`, or remove `input_schema`.";
                self.fault(&join(pointer, "input_schema"), FaultSide::Key, &message, remedy);
            }
        }
    }

    /// Refuses renamed tools on a server that keeps its own names.
    fn renames(&mut self, pointer: &str, server: &Map<String, Value>) {
        if server.get("expose").and_then(Value::as_str) != Some("verbatim") {
            return;
        }
        let pointer = join(pointer, "tools");
        for (name, tool) in server.get("tools").and_then(Value::as_object).into_iter().flatten() {
            if tool.get("rename").is_some() {
                let message = "a server with `expose = \"verbatim\"` keeps its own tool names";
                let remedy = "Remove `rename`, or remove `expose` from the server.";
                self.fault(&join(&join(&pointer, name), "rename"), FaultSide::Key, message, remedy);
            }
        }
    }

    /// Checks that a sign-in has complete client data, and that nothing else determines Nonet's identity.
    fn oauth(&mut self, pointer: &str, server: &Map<String, Value>) {
        let Some(oauth) = server.get("oauth").and_then(Value::as_object) else { return };
        let pointer = join(pointer, "oauth");
        let headers = server.get("headers").and_then(Value::as_object);
        if headers
            .is_some_and(|headers| headers.keys().any(|name| name.eq_ignore_ascii_case("authorization")))
        {
            let message = "a server cannot have both `oauth` and an `Authorization` header";
            self.fault(&pointer, FaultSide::Key, message, "Keep the one that the server expects.");
        }
        let has = |key: &str| oauth.contains_key(key);
        if oauth.get("grant").and_then(Value::as_str) == Some("client_credentials") {
            if !has("client_id") || !has("client_secret") {
                let message = "`client_credentials` needs `client_id` and `client_secret`";
                let remedy = "Set both, or remove `grant` to sign in with `nonet login`.";
                self.fault(&join(&pointer, "grant"), FaultSide::Value, message, remedy);
            }
            if has("redirect_uri") {
                let message = "`redirect_uri` belongs to `authorization_code`, not to `client_credentials`";
                self.fault(&join(&pointer, "redirect_uri"), FaultSide::Key, message, "Remove it.");
            }
        } else if has("client_secret") && !has("client_id") {
            let message = "`client_secret` needs a `client_id`";
            self.fault(&join(&pointer, "client_secret"), FaultSide::Key, message, "Set both or neither.");
        }
    }

    /// Checks that names in categories and profiles exist in the file. A faulty entry counts as existing: one
    /// fault is enough.
    fn categories_and_profiles(&mut self) {
        let servers = self.names("servers");
        let categories = self.names("categories");
        for (pointer, category) in self.entries("categories") {
            let name = pointer.rsplit('/').next().unwrap_or_default();
            if servers.contains(&name) {
                let message = format!("`{name}` is already the category of the server with that name");
                self.fault(&pointer, FaultSide::Key, &message, "Choose another name for the group.");
            } else if RESERVED.contains(&name) {
                let message = format!("`{name}` is a reserved category");
                self.fault(&pointer, FaultSide::Key, &message, "Choose another name for the group.");
            }
            self.must_exist(&pointer, category, "servers", "server", &servers);
        }
        let mut known = servers;
        for name in categories.into_iter().chain(RESERVED) {
            if !known.contains(&name) {
                known.push(name);
            }
        }
        for (pointer, profile) in self.entries("profiles") {
            self.must_exist(&pointer, profile, "categories", "server or category", &known);
        }
    }

    /// Checks that each token, which identifies a client, occurs only once. All places of a duplicate get the
    /// fault: none of them is known to be the right one.
    fn tokens(&mut self) {
        let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        let owners = self.entries("profiles").into_iter().map(|(pointer, _)| pointer);
        for owner in std::iter::once(join("", "gateway")).chain(owners) {
            let list = join(&owner, "tokens");
            let tokens = self.written.value.pointer(&list).and_then(Value::as_array).into_iter().flatten();
            for (index, token) in tokens.enumerate().filter_map(|(i, token)| Some((i, token.as_str()?))) {
                let item = join(&list, &index.to_string());
                if !self.written.is_unknown(&item) {
                    places.entry(token).or_default().push(item);
                }
            }
        }
        for same in places.values().filter(|same| same.len() > 1) {
            for (item, other) in same.iter().zip(same.iter().cycle().skip(1)) {
                let message = format!("is the same token as {}", quoted(self.written.key(other)));
                self.fault(item, FaultSide::Value, &message, "Use a different token in each place.");
            }
        }
    }

    /// Checks that issuers are told apart, and that what `[auth]` names is there.
    fn auth(&mut self) {
        let root = &self.written.value;
        let Some(auth) = root.get("auth").and_then(Value::as_object) else {
            return self.people_without_auth();
        };
        self.rules("/auth", auth, &rules::AUTH);
        if root.pointer("/gateway/public_url").is_none() {
            let message =
                "`[auth]` needs the address at which clients reach the gateway: their tokens are for it";
            let remedy = "Set `public_url = \"https://nonet.example.com\"` in [gateway].";
            self.fault("/auth", FaultSide::Key, message, remedy);
        }
        let has_no_issuer = auth.get("issuers").and_then(Value::as_object).is_some_and(Map::is_empty);
        if has_no_issuer && !auth.contains_key("issuer") {
            let remedy = "Add an `[auth.issuers.NAME]` with its `issuer`, or set `issuer` in [auth].";
            self.fault("/auth/issuers", FaultSide::Key, "must have at least one issuer", remedy);
        }
        let mut tables = vec![("/auth".to_string(), auth)];
        let more = auth.get("issuers").and_then(Value::as_object).into_iter().flatten();
        tables
            .extend(more.filter_map(|(name, table)| Some((join("/auth/issuers", name), table.as_object()?))));
        let (mut issuers, mut asked) = (BTreeSet::new(), None);
        for (pointer, table) in tables {
            if pointer != "/auth" {
                self.rules(&pointer, table, &rules::ISSUER);
            }
            if let Some(issuer) = table.get("issuer").and_then(Value::as_str)
                && !issuers.insert(issuer)
            {
                let remedy = "Remove one of them; `audience` takes several values.";
                self.fault(
                    &join(&pointer, "issuer"),
                    FaultSide::Value,
                    "this issuer is there already",
                    remedy,
                );
            }
            if table.contains_key("introspection")
                && let Some(first) = asked.replace(self.written.key(&pointer).to_string())
            {
                let message = format!(
                    "`{first}` has `introspection` already, and a token that is not signed does not \
                                       say whose it is"
                );
                let remedy = "Keep it for one issuer.";
                self.fault(&join(&pointer, "introspection"), FaultSide::Key, &message, remedy);
            }
        }
        self.page_of_people(&issuers);
        if let Some(profile) = auth.get("profile").and_then(Value::as_str) {
            let known = self.names("profiles");
            if !known.contains(&profile) {
                let message = format!("there is no profile {}", self.shown("/auth/profile", profile));
                self.fault("/auth/profile", FaultSide::Value, &message, &choose(profile, &known));
            }
            let is_of_some = root
                .get("profiles")
                .and_then(|profiles| profiles.get(profile))
                .is_some_and(|profile| profile.get("claims").is_some() || profile.get("scopes").is_some());
            if is_of_some {
                let message =
                    "this profile is for some people, by its `claims` or `scopes`, and here for all others";
                let remedy = "Name a profile without these keys, or remove them from it.";
                self.fault("/auth/profile", FaultSide::Value, message, remedy);
            }
        }
    }

    /// Checks that each copy of the audit log has one place, and a form that fits it.
    fn exports(&mut self) {
        let exports = self.written.value.pointer("/audit/export").and_then(Value::as_object);
        for (name, export) in exports.into_iter().flatten() {
            let Some(export) = export.as_object() else { continue };
            let pointer = join("/audit/export", name);
            self.rules(&pointer, export, &rules::EXPORT);
            if export.get("format").and_then(Value::as_str) == Some("syslog")
                && export.contains_key("webhook")
            {
                let message = "a webhook gets JSON";
                self.fault(&join(&pointer, "format"), FaultSide::Value, message, "Set `ocsf`, or remove it.");
            }
        }
    }

    /// Checks that no profile is for people where nobody signs in.
    fn people_without_auth(&mut self) {
        for (pointer, profile) in self.entries("profiles") {
            for key in ["claims", "scopes"].into_iter().filter(|key| profile.contains_key(*key)) {
                let remedy = "Add `[auth]` with the `issuer` of your access tokens, or remove it.";
                self.fault(
                    &join(&pointer, key),
                    FaultSide::Key,
                    "selects nobody, because nobody signs in without `[auth]`",
                    remedy,
                );
            }
        }
    }

    /// Checks a policy: a condition only makes calls stricter.
    fn policy(&mut self, pointer: &str, policy: &Map<String, Value>) {
        self.rules(pointer, policy, &rules::POLICY);
        if policy.contains_key("when") && policy.get("policy").and_then(Value::as_str) == Some("allow") {
            let message = "a policy with `when` makes calls stricter, so that `allow` has no effect";
            let remedy =
                "Set `deny` or `approve` for the calls that it is to stop, such as with `... | not`.";
            self.fault(&join(pointer, "policy"), FaultSide::Value, message, remedy);
        }
    }

    /// Checks that an address for approvals is used only if the user approves outside the chat.
    fn approvals(&mut self) {
        let root = &self.written.value;
        let pointer = "/gateway/approve_webhook";
        let by_user = |table: &Value| table.get("approve_by").and_then(Value::as_str) == Some("user");
        let servers = root.get("servers").and_then(Value::as_object).into_iter().flat_map(Map::values);
        let is_asked = root.get("gateway").into_iter().chain(servers).any(by_user);
        if root.pointer(pointer).is_some() && !is_asked {
            let message = "is not used while approvals come through the chat";
            self.fault(pointer, FaultSide::Key, message, "Set `approve_by = \"user\"`, or remove it.");
        }
    }

    /// Checks that notices have one outlet: an address or a program.
    fn notify(&mut self) {
        let pointer = "/gateway/notify";
        let Some(notify) = self.written.value.pointer(pointer).and_then(Value::as_object) else { return };
        if rules::NOTIFY.kinds(notify).len() > 1 {
            let message = "notices go to `webhook` or to `command`, not to both";
            self.fault(&join(pointer, "command"), FaultSide::Key, message, "Keep one of them.");
        }
        self.rules(pointer, notify, &rules::NOTIFY);
    }

    /// Checks that an app is a tool, a model or steps, and that the steps can be ordered.
    fn app(&mut self, pointer: &str, app: &Map<String, Value>) {
        self.rules(pointer, app, &rules::APP);
        let steps = app.get("steps").and_then(Value::as_array);
        if steps.is_some_and(Vec::is_empty) && rules::APP.kinds(app) == ["steps"] {
            let remedy = "Add a step, or remove the app.";
            self.fault(&join(pointer, "steps"), FaultSide::Value, "must have at least one step", remedy);
        }
        self.steps(pointer, steps.map_or(&[][..], Vec::as_slice), app.get("output"));
    }

    /// Checks that the steps form a plan, as [`workflow`] defines it, and that the output refers only to
    /// them.
    fn steps(&mut self, pointer: &str, steps: &[Value], output: Option<&Value>) {
        let written = |step: &Value| Some(step.get("id")?.as_str()?.to_string()).filter(|id| !id.is_empty());
        let id = |(at, step): (usize, &Value)| written(step).unwrap_or_else(|| default_id(at));
        let names: Vec<String> = steps.iter().enumerate().map(id).collect();
        let nodes: Vec<PlanNode<'_>> = std::iter::zip(steps, &names)
            .map(|(step, id)| {
                let after = step.get("after").and_then(Value::as_array).into_iter().flatten();
                PlanNode {
                    id,
                    after: after.filter_map(Value::as_str).collect(),
                    templates: WITH_TEMPLATES.iter().filter_map(|key| step.get(*key)).collect(),
                    for_each: step.get("for_each"),
                    when: step.get("when").and_then(Value::as_str),
                    filter: step.get("filter").and_then(Value::as_str),
                }
            })
            .collect();
        for (at, step) in steps.iter().enumerate().filter_map(|(at, step)| Some((at, step.as_object()?))) {
            self.step(&join(&join(pointer, "steps"), &at.to_string()), step);
        }
        for flaw in workflow::needs(&nodes, &[INPUT]).1 {
            let step = |at: usize| join(&join(pointer, "steps"), &at.to_string());
            match flaw {
                PlanFlaw::SameId { id, first, second } => {
                    let message = format!("{} is already the id of step {}", quoted(&id), first + 1);
                    let place = written(&steps[second]).map_or(step(second), |_| join(&step(second), "id"));
                    self.fault(&place, FaultSide::Value, &message, "Give each step a different id.");
                }
                PlanFlaw::UnknownId { at, name, .. } => {
                    self.unknown_step(&step(at), &steps[at], &name, &names)
                }
                PlanFlaw::Cycle { calls, path } => {
                    let message = match calls[..] {
                        [_] => "the step waits for itself".into(),
                        _ => format!("circular dependency of steps: {}", quoted(&path)),
                    };
                    let remedy = "Remove one reference from `after`, a template or a `when`.";
                    self.fault(&step(calls[0]), FaultSide::Key, &message, remedy);
                }
            }
        }
        for name in output.map(template::names).unwrap_or_default() {
            if name != INPUT && !names.contains(&name) {
                let whole = join(pointer, "output");
                let item = output.and_then(|output| template_at(&whole, output, &name)).unwrap_or(whole);
                self.unknown_template(&item, &name, &names);
            }
        }
    }

    /// Checks that a step does one thing, and has only the matching keys.
    fn step(&mut self, pointer: &str, step: &Map<String, Value>) {
        self.rules(pointer, step, &rules::STEP);
        if let Some(Value::Object(ask)) = step.get("ask") {
            self.ask(&join(pointer, "ask"), ask);
        }
        let instead = match step.get("tool").and_then(Value::as_str) {
            Some("call_app") => "app = \"ID\"",
            Some("ask_user") => "ask = { question = \"...\" }",
            _ => return,
        };
        let message = "a step calls a server's tool, but this is one of Nonet's own nine";
        self.fault(
            &join(pointer, "tool"),
            FaultSide::Value,
            message,
            &format!("Set `{instead}` instead of `tool`."),
        );
    }

    /// Checks that a question has a text, and one kind of answer.
    fn ask(&mut self, pointer: &str, ask: &Map<String, Value>) {
        let is_blank = |text: &Value| text.as_str().is_some_and(|text| text.trim().is_empty());
        if ask.get("question").is_none_or(is_blank) {
            self.missing(pointer, "a question needs its text", "Set `question = \"...\"`.");
        }
        self.rules(pointer, ask, &rules::ASK);
    }

    /// Checks that nested apps form no cycle, are not nested too deep, and that only the outermost one asks
    /// the user.
    fn apps_in_apps(&mut self) {
        let apps = self.entries("apps");
        let known = self.names("apps");
        let steps =
            |app: &'a Map<String, Value>| app.get("steps").and_then(Value::as_array).into_iter().flatten();
        let mut graph = AppGraph::default();
        for (id, (_, app)) in std::iter::zip(&known, &apps) {
            let called = steps(app).filter_map(|step| step.get("app")?.as_str()).collect();
            graph.calls.insert(id, called);
            if steps(app).any(|step| step.get("ask").is_some()) {
                graph.asking.insert(id);
            }
        }
        for (id, (pointer, app)) in std::iter::zip(&known, &apps) {
            for (at, called) in
                steps(app).enumerate().filter_map(|(at, step)| Some((at, step.get("app")?.as_str()?)))
            {
                let place = join(&join(&join(pointer, "steps"), &at.to_string()), "app");
                if self.written.is_unknown(&place) {
                    continue;
                }
                if !known.contains(&called) {
                    let message = format!("there is no app {}", self.shown(&place, called));
                    self.fault(&place, FaultSide::Value, &message, &choose(called, &known));
                } else if called == *id {
                    self.fault(&place, FaultSide::Value, "the app calls itself", "Remove the step.");
                } else if let Some(path) = graph.path(called, &|app| app == *id) {
                    let message = format!("circular dependency of apps: {}", quoted(&shown_path(id, &path)));
                    self.fault(&place, FaultSide::Value, &message, "Remove one of the steps.");
                } else if let Some(path) = graph.path(called, &|app| graph.asking.contains(app)) {
                    let message = format!(
                        "{} asks the user, which only an app that is called directly can do",
                        quoted(path.last().unwrap_or(&called))
                    );
                    let remedy = "Ask in this app, and pass the answer on as `input`.";
                    self.fault(&place, FaultSide::Value, &message, remedy);
                } else {
                    let deepest = graph.deepest(called, APPS_DEEP);
                    // The apps of a cycle already have a fault.
                    let is_circle = || deepest.iter().collect::<BTreeSet<_>>().len() < deepest.len();
                    if deepest.len() >= APPS_DEEP && !is_circle() {
                        let message = format!(
                            "apps are nested more than {APPS_DEEP} deep: {}",
                            quoted(&shown_path(id, &deepest))
                        );
                        self.fault(&place, FaultSide::Value, &message, "Merge two of them into one.");
                    }
                }
            }
        }
    }

    /// Reports a reference to an unknown step, in `after`, `when`, `filter` or a template.
    fn unknown_step(&mut self, pointer: &str, step: &Value, name: &str, names: &[String]) {
        let after = step.get("after").and_then(Value::as_array);
        let reads = |key: &&str| {
            let filter = step.get(*key).and_then(Value::as_str);
            filter.is_some_and(|filter| StepReferences::of(filter).named.contains(name))
        };
        let reading = ["when", "filter"].into_iter().find(reads);
        let position = after.and_then(|after| after.iter().position(|one| one == name));
        let (item, message) = match (position, reading) {
            (Some(position), _) => {
                let item = join(&join(pointer, "after"), &position.to_string());
                let message = format!("no step has the id {}", self.shown(&item, name));
                (item, message)
            }
            (None, Some(key)) => {
                let item = join(pointer, key);
                let message =
                    format!("the filter refers to {}, which is not a step", self.shown(&item, name));
                (item, message)
            }
            (None, None) => {
                let mut keys = ["for_each"].iter().chain(&WITH_TEMPLATES);
                let place = keys.find_map(|key| template_at(&join(pointer, key), step.get(*key)?, name));
                let item = place.unwrap_or_else(|| pointer.into());
                return self.unknown_template(&item, name, names);
            }
        };
        self.fault(&item, FaultSide::Value, &message, &choose(name, &distinct(names)));
    }

    fn unknown_template(&mut self, item: &str, name: &str, names: &[String]) {
        let message = match name {
            ITEM | INDEX => format!("a template refers to {}, but the step has no `for_each`", quoted(name)),
            _ => format!("a template refers to {}, which is not a step", self.shown(item, name)),
        };
        let known: Vec<&str> = distinct(names).into_iter().chain([INPUT]).collect();
        self.fault(item, FaultSide::Value, &message, &choose(name, &known));
    }

    fn entries(&self, table: &str) -> Vec<(String, &'a Map<String, Value>)> {
        let entries = self.written.value.get(table).and_then(Value::as_object).into_iter().flatten();
        entries.filter_map(|(name, entry)| Some((join(&join("", table), name), entry.as_object()?))).collect()
    }

    fn names(&self, table: &str) -> Vec<&'a str> {
        let entries = self.written.value.get(table).and_then(Value::as_object).into_iter().flatten();
        entries.map(|(name, _)| name.as_str()).collect()
    }

    fn must_exist(
        &mut self,
        pointer: &str,
        entry: &Map<String, Value>,
        key: &str,
        what: &str,
        known: &[&str],
    ) {
        let names = entry.get(key).and_then(Value::as_array).into_iter().flatten();
        for (index, name) in names.enumerate().filter_map(|(i, name)| Some((i, name.as_str()?))) {
            let item = join(&join(pointer, key), &index.to_string());
            // An invalid server name already has a fault.
            let told = key == "servers" && ServerName::new(name).is_err();
            if !known.contains(&name) && !told && !self.written.is_unknown(&item) {
                let message = format!("there is no {what} {}", self.shown(&item, name));
                self.fault(&item, FaultSide::Value, &message, &choose(name, known));
            }
        }
    }

    /// Reports what the rules of a kind of table say about one.
    fn rules(&mut self, pointer: &str, table: &Map<String, Value>, rules: &TableRules) {
        for fault in rules.faults(table) {
            match fault {
                RuleFault::Missing(message, remedy) => self.missing(pointer, message, remedy),
                RuleFault::Key(key, message, remedy) => {
                    self.fault(&join(pointer, key), FaultSide::Key, &message, remedy);
                }
            }
        }
    }

    /// Reports a missing key, unless the key may be misspelt, which already has a fault.
    fn missing(&mut self, pointer: &str, message: &str, remedy: &str) {
        let entry = self.written.entry(pointer);
        if !self.earlier.iter().any(|fault| fault.entry == entry && fault.message == UNKNOWN_KEY) {
            self.fault(pointer, FaultSide::Key, message, remedy);
        }
    }

    fn shown(&self, pointer: &str, text: &str) -> String {
        if self.written.is_showable(pointer) { quoted(text) } else { "of this name".into() }
    }

    fn fault(&mut self, pointer: &str, place: FaultSide, message: &str, remedy: &str) {
        self.faults.push(self.written.fault(pointer, place, message.into(), remedy.into()));
    }
}

/// Which apps run which others, and which ask the user.
#[derive(Default)]
struct AppGraph<'a> {
    calls: BTreeMap<&'a str, Vec<&'a str>>,
    asking: BTreeSet<&'a str>,
}

impl<'a> AppGraph<'a> {
    fn called_by(&self, app: &str) -> impl Iterator<Item = &'a str> + '_ {
        self.calls.get(app).into_iter().flatten().copied()
    }

    /// Returns a path from an app to a wanted one, both included.
    fn path(&self, from: &'a str, wanted: &dyn Fn(&str) -> bool) -> Option<Vec<&'a str>> {
        let mut before = BTreeMap::from([(from, None)]);
        let mut left = vec![from];
        while let Some(app) = left.pop() {
            if wanted(app) {
                let mut path: Vec<&str> =
                    std::iter::successors(Some(app), |app| before.get(app).copied().flatten()).collect();
                path.reverse();
                return Some(path);
            }
            for next in self.called_by(app) {
                if !before.contains_key(next) {
                    before.insert(next, Some(app));
                    left.push(next);
                }
            }
        }
        None
    }

    /// Returns the start of the longest chain of apps from this one, of at most `most` apps. Proceeds level
    /// by level, so apps on many paths cost nothing extra.
    fn deepest(&self, from: &'a str, most: usize) -> Vec<&'a str> {
        let mut depths = vec![BTreeMap::from([(from, from)])];
        while depths.len() < most {
            let Some(last) = depths.last() else { break };
            let next: BTreeMap<&str, &str> =
                last.keys().flat_map(|app| self.called_by(app).map(|called| (called, *app))).collect();
            if next.is_empty() {
                break;
            }
            depths.push(next);
        }
        let mut path: Vec<&str> =
            depths.last().and_then(|last| last.keys().next().copied()).into_iter().collect();
        for depth in depths.iter().skip(1).rev() {
            path.extend(path.last().and_then(|app| depth.get(app).copied()));
        }
        path.reverse();
        path
    }
}

fn shown_path(first: &str, rest: &[&str]) -> String {
    [&[first], rest].concat().join(" -> ")
}

fn distinct(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the pointer of the text in `value` with a template that begins with `name`.
fn template_at(pointer: &str, value: &Value, name: &str) -> Option<String> {
    match value {
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(at, item)| template_at(&join(pointer, &at.to_string()), item, name))
        }
        Value::Object(members) => {
            members.iter().find_map(|(key, item)| template_at(&join(pointer, key), item, name))
        }
        text => template::names(text).contains(name).then(|| pointer.to_string()),
    }
}
