//! Names for the prompts and resources of all servers, each of which leads back to one server.
//!
//! A prompt is `server__prompt`, as a tool is. A resource keeps its URI if only one server has it; the resources of several
//! servers with one URI are listed as `nonet://SERVER/URI`, which always works. A link in a result stays unchanged and leads
//! to the server of the result. A server that is exposed verbatim keeps its own names and URIs; of several such servers, the
//! first by name does.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use regex::Regex;
use serde_json::{Value, json};

use crate::name::{self, Wire};

/// The scheme of URIs that name their server.
const SCHEME: &str = "nonet://";
/// The longest template that is matched, in bytes; a longer one is listed and matches nothing.
const MAX_TEMPLATE: usize = 1_000;

/// A prompt, resource or template of one server.
#[derive(Debug)]
pub struct OfferedItem {
    /// The server.
    pub server: Arc<str>,
    /// The session that has it for itself, if one does.
    pub session: Option<u64>,
    /// The name or URI at the server.
    pub own: String,
    /// The definition as clients see it.
    pub shown: Value,
}

impl OfferedItem {
    fn is_for(&self, session: u64) -> bool {
        self.session.is_none_or(|owner| owner == session)
    }
}

/// The definitions of one server besides its tools, verbatim.
#[derive(Clone, Copy, Debug)]
pub struct ServerOffer<'a> {
    /// The server.
    pub server: &'a Arc<str>,
    /// Whether the server is exposed under its own names.
    pub verbatim: bool,
    /// The session that has it for itself, if one does. Its URIs then name it, so that they do not change those of others.
    pub session: Option<u64>,
    /// Its prompts.
    pub prompts: &'a [Value],
    /// Its resources.
    pub resources: &'a [Value],
    /// Its resource templates.
    pub templates: &'a [Value],
}

/// The target of a URI.
#[derive(Debug, PartialEq, Eq)]
pub enum UriTarget {
    /// This server, under this URI.
    Server(Arc<str>, String),
    /// Any of several servers, by the URIs that name one.
    Ambiguous(Vec<String>),
    /// No known server.
    Unknown,
}

/// The prompts, resources and templates of all servers.
#[derive(Debug, Default)]
pub struct PromptsResources {
    prompts: BTreeMap<String, OfferedItem>,
    resources: Vec<OfferedItem>,
    templates: Vec<OfferedItem>,
    /// The servers that list a URI.
    owners: HashMap<String, Vec<Arc<str>>>,
    /// The verbatim server that keeps a URI or template of several servers.
    keepers: HashMap<String, Arc<str>>,
    servers: HashSet<Arc<str>>,
    patterns: Vec<(Regex, Arc<str>)>,
}

/// Returns the URI that names its server.
pub fn named_uri(server: &str, uri: &str) -> String {
    format!("{SCHEME}{server}/{uri}")
}

impl PromptsResources {
    /// Names everything. The result does not depend on the order of the servers.
    pub fn new<'a>(offers: impl Iterator<Item = ServerOffer<'a>> + Clone) -> Self {
        let mut passed =
            Self { servers: offers.clone().map(|offer| offer.server.clone()).collect(), ..Self::default() };
        passed.name_prompts(offers.clone());
        let mut uses: HashMap<&str, usize> = HashMap::new();
        for offer in offers.clone().filter(|offer| offer.session.is_none()) {
            for uri in texts(offer.resources, "uri").chain(texts(offer.templates, "uriTemplate")) {
                *uses.entry(uri).or_default() += 1;
            }
        }
        let mut verbatim: Vec<ServerOffer<'_>> = offers.clone().filter(|offer| offer.verbatim).collect();
        verbatim.sort_by_key(|offer| offer.server);
        for offer in verbatim {
            for uri in texts(offer.resources, "uri").chain(texts(offer.templates, "uriTemplate")) {
                if uses.get(uri).is_some_and(|uses| *uses > 1) {
                    passed.keepers.entry(uri.into()).or_insert_with(|| offer.server.clone());
                }
            }
        }
        for offer in offers.clone() {
            for (definitions, key, of) in [
                (offer.resources, "uri", &mut passed.resources),
                (offer.templates, "uriTemplate", &mut passed.templates),
            ] {
                let mut seen = HashSet::new();
                for definition in definitions {
                    let Some(own) = definition.get(key).and_then(Value::as_str) else { continue };
                    if !seen.insert(own) {
                        continue;
                    }
                    let mut shown = definition.clone();
                    let is_shared = uses.get(own).is_some_and(|uses| *uses > 1);
                    if offer.session.is_some() || is_shared && passed.keepers.get(own) != Some(offer.server) {
                        shown[key] = json!(named_uri(offer.server, own));
                    }
                    let (server, session) = (offer.server.clone(), offer.session);
                    of.push(OfferedItem { server, session, own: own.into(), shown });
                }
            }
        }
        for entry in &passed.resources {
            passed.owners.entry(entry.own.clone()).or_default().push(entry.server.clone());
        }
        passed.patterns = passed
            .templates
            .iter()
            .filter(|entry| passed.keepers.get(&entry.own).is_none_or(|keeper| *keeper == entry.server))
            .filter_map(|entry| Some((pattern(&entry.own)?, entry.server.clone())))
            .collect();
        passed
    }

    fn name_prompts<'a>(&mut self, offers: impl Iterator<Item = ServerOffer<'a>>) {
        let mut all: Vec<(Wire, OfferedItem, bool)> = Vec::new();
        for offer in offers {
            let mut seen = HashSet::new();
            for definition in offer.prompts {
                let Some(own) = definition.get("name").and_then(Value::as_str) else { continue };
                if seen.insert(own) {
                    let entry = OfferedItem {
                        server: offer.server.clone(),
                        session: offer.session,
                        own: own.into(),
                        shown: definition.clone(),
                    };
                    all.push((Wire::new(offer.server, own), entry, offer.verbatim));
                }
            }
        }
        let mut uses: HashMap<String, usize> = HashMap::new();
        for (wire, ..) in &all {
            *uses.entry(wire.plain.clone()).or_default() += 1;
        }
        let mut verbatim: Vec<(String, OfferedItem)> = Vec::new();
        for (wire, mut entry, own) in all {
            let name = if uses[&wire.plain] == 1 { wire.plain } else { wire.hashed };
            entry.shown["name"] = json!(name);
            if own {
                verbatim.push((name, entry));
            } else {
                self.prompts.insert(name, entry);
            }
        }
        verbatim.sort_by(|(_, a), (_, b)| (&a.server, &a.own).cmp(&(&b.server, &b.own)));
        let wires: HashSet<String> = verbatim.iter().map(|(wire, _)| wire.clone()).collect();
        for (wire, mut entry) in verbatim {
            let taken = self.prompts.contains_key(&entry.own) || wires.contains(&entry.own);
            let name = if taken { wire } else { entry.own.clone() };
            entry.shown["name"] = json!(name);
            self.prompts.insert(name, entry);
        }
    }

    /// Returns the prompts, by name.
    pub fn prompts(&self) -> impl Iterator<Item = &OfferedItem> {
        self.prompts.values()
    }

    /// Returns the resources, server by server.
    pub fn resources(&self) -> &[OfferedItem] {
        &self.resources
    }

    /// Returns the resource templates, server by server.
    pub fn templates(&self) -> &[OfferedItem] {
        &self.templates
    }

    /// Finds a prompt by `server__prompt`, in any of the forms of tool names.
    pub fn prompt(&self, name: &str) -> Option<&OfferedItem> {
        self.prompts.get(name).or_else(|| {
            let folded = name::fold(name);
            let mut fitting = self.prompts.iter().filter(|(wire, entry)| {
                name::fold(wire) == folded
                    || name::fold(&name::full_name(&entry.server, &entry.own)) == folded
            });
            let (_, found) = fitting.next()?;
            fitting.next().is_none().then_some(found)
        })
    }

    /// Finds the server's own template of one that clients see.
    pub fn template(&self, shown: &str) -> Option<&OfferedItem> {
        self.templates.iter().find(|entry| entry.shown["uriTemplate"] == shown)
    }

    /// Resolves a URI for a caller who sees some of the servers. `linked` is the server that gave the caller a link to it.
    pub fn resolve_uri(&self, uri: &str, seen: &dyn Fn(&str) -> bool, linked: Option<Arc<str>>) -> UriTarget {
        if let Some((server, own)) = uri.strip_prefix(SCHEME).and_then(|rest| rest.split_once('/')) {
            return match self.servers.get(server).filter(|server| seen(server)) {
                Some(server) => UriTarget::Server(server.clone(), own.into()),
                None => UriTarget::Unknown,
            };
        }
        if let Some(keeper) = self.keepers.get(uri).filter(|keeper| seen(keeper)) {
            return UriTarget::Server(keeper.clone(), uri.into());
        }
        let listed = self.owners.get(uri).into_iter().flatten().cloned();
        let matching = self
            .patterns
            .iter()
            .filter(|(pattern, _)| pattern.is_match(uri))
            .map(|(_, server)| server.clone());
        let ways: [Vec<Arc<str>>; 3] = [linked.into_iter().collect(), listed.collect(), matching.collect()];
        for mut servers in ways {
            servers.retain(|server| seen(server));
            servers.sort();
            servers.dedup();
            match &servers[..] {
                [] => {}
                [one] => return UriTarget::Server(one.clone(), uri.into()),
                many => {
                    return UriTarget::Ambiguous(many.iter().map(|server| named_uri(server, uri)).collect());
                }
            }
        }
        UriTarget::Unknown
    }

    /// Returns whether both have the same prompts under the same names for a session.
    pub fn same_prompts(&self, other: &Self, session: u64) -> bool {
        fn of(offered: &PromptsResources, session: u64) -> impl Iterator<Item = (&String, &Value)> {
            let prompts = offered.prompts.iter().filter(move |(_, prompt)| prompt.is_for(session));
            prompts.map(|(name, prompt)| (name, &prompt.shown))
        }
        of(self, session).eq(of(other, session))
    }

    /// Returns whether both have the same resources and templates for a session.
    pub fn same_resources(&self, other: &Self, session: u64) -> bool {
        fn of(items: &[OfferedItem], session: u64) -> impl Iterator<Item = (&Arc<str>, &Value)> {
            let items = items.iter().filter(move |item| item.is_for(session));
            items.map(|item| (&item.server, &item.shown))
        }
        let same = |a: &[OfferedItem], b: &[OfferedItem]| of(a, session).eq(of(b, session));
        same(&self.resources, &other.resources) && same(&self.templates, &other.templates)
    }
}

fn texts<'a>(definitions: &'a [Value], key: &'a str) -> impl Iterator<Item = &'a str> {
    let mut seen = HashSet::new();
    definitions
        .iter()
        .filter_map(move |definition| definition.get(key)?.as_str())
        .filter(move |text| seen.insert(*text))
}

/// Returns the pattern of a URI template (RFC 6570): an expression matches any text, `{+x}` and `{/x}` also slashes.
fn pattern(template: &str) -> Option<Regex> {
    if template.len() > MAX_TEMPLATE {
        return None;
    }
    let mut pattern = String::from("^");
    let mut rest = template;
    while let Some((literal, after)) = rest.split_once('{') {
        pattern.push_str(&regex::escape(literal));
        let (expression, after) = after.split_once('}')?;
        pattern.push_str(match expression.chars().next()? {
            '+' | '#' | '/' | '?' | '&' | ';' | '.' => ".*",
            _ => "[^/]+",
        });
        rest = after;
    }
    pattern.push_str(&regex::escape(rest));
    pattern.push('$');
    Regex::new(&pattern).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &dyn Fn(&str) -> bool = &|_| true;

    fn passed() -> PromptsResources {
        let (docs, web): (Arc<str>, Arc<str>) = ("docs".into(), "web".into());
        let prompts = [json!({ "name": "plan it", "title": "Plan" }), json!({ "name": "plan_it" })];
        let own = [json!({ "uri": "file:///a", "name": "a" }), json!({ "uri": "shared://x", "name": "x" })];
        let other = [json!({ "uri": "shared://x", "name": "x" })];
        let templates = [
            json!({ "uriTemplate": "web://{host}/page", "name": "page" }),
            json!({ "uriTemplate": "tree:{+path}" }),
        ];
        PromptsResources::new(
            [
                ServerOffer {
                    server: &docs,
                    verbatim: false,
                    session: None,
                    prompts: &prompts,
                    resources: &own,
                    templates: &[],
                },
                ServerOffer {
                    server: &web,
                    verbatim: false,
                    session: None,
                    prompts: &[],
                    resources: &other,
                    templates: &templates,
                },
            ]
            .into_iter(),
        )
    }

    #[test]
    fn a_private_server_changes_no_uri_of_another() {
        let (docs, own): (Arc<str>, Arc<str>) = ("docs".into(), "own".into());
        let shared = [json!({ "uri": "shared://x" })];
        let offer = |server, session| ServerOffer {
            server,
            verbatim: false,
            session,
            prompts: &[],
            resources: &shared,
            templates: &[],
        };
        let passed = PromptsResources::new([offer(&docs, None), offer(&own, Some(7))].into_iter());
        let uris: Vec<&Value> = passed.resources().iter().map(|entry| &entry.shown["uri"]).collect();
        assert_eq!(uris, ["shared://x", "nonet://own/shared://x"]);
        let others = |server: &str| server != "own";
        let to = |server: &str| UriTarget::Server(server.into(), "shared://x".into());
        assert_eq!(passed.resolve_uri("shared://x", &others, None), to("docs"));
        assert_eq!(passed.resolve_uri("nonet://own/shared://x", &others, None), UriTarget::Unknown);
        assert_eq!(passed.resolve_uri("nonet://own/shared://x", ALL, None), to("own"));
        // What others are offered is the same as without it.
        let without = PromptsResources::new([offer(&docs, None)].into_iter());
        assert!(passed.same_resources(&without, 8) && !passed.same_resources(&without, 7));
        assert!(passed.same_prompts(&without, 7));
    }

    #[test]
    fn a_verbatim_server_keeps_its_names_and_uris_and_the_first_of_several_does() {
        let (a, b, c): (Arc<str>, Arc<str>, Arc<str>) = ("a".into(), "b".into(), "c".into());
        let prompts = [json!({ "name": "plan" })];
        let more = [json!({ "name": "plan" }), json!({ "name": "write it" })];
        let shared = [json!({ "uri": "shared://x" })];
        let templates = [json!({ "uriTemplate": "page://{name}" })];
        let offer = |server, verbatim, prompts| ServerOffer {
            server,
            verbatim,
            session: None,
            prompts,
            resources: &shared,
            templates: &templates,
        };
        let passed = PromptsResources::new(
            [offer(&c, true, &more[..]), offer(&a, false, &prompts[..]), offer(&b, true, &prompts[..])]
                .into_iter(),
        );
        let names: Vec<(&str, &str)> = passed
            .prompts()
            .map(|entry| (&*entry.server, entry.shown["name"].as_str().expect("a name")))
            .collect();
        assert_eq!(names, [("a", "a__plan"), ("c", "c__plan"), ("b", "plan"), ("c", "write it")]);
        assert_eq!(passed.prompt("b__plan").map(|entry| &*entry.server), Some("b"));
        let to = |server: &str, own: &str| UriTarget::Server(server.into(), own.into());
        assert_eq!(passed.resolve_uri("shared://x", ALL, None), to("b", "shared://x"));
        assert_eq!(passed.resolve_uri("nonet://c/shared://x", ALL, None), to("c", "shared://x"));
        assert_eq!(passed.resolve_uri("page://one", ALL, None), to("b", "page://one"));
        assert_eq!(passed.resolve_uri("shared://x", &|server| server == "a", None), to("a", "shared://x"));
        let uris: Vec<&str> = passed.resources().iter().filter_map(|e| e.shown["uri"].as_str()).collect();
        assert_eq!(uris, ["nonet://c/shared://x", "nonet://a/shared://x", "shared://x"]);
    }

    #[test]
    fn a_uri_stays_where_one_server_has_it_and_names_the_server_where_several_do() {
        let passed = passed();
        let shown: Vec<&str> =
            passed.resources().iter().filter_map(|entry| entry.shown["uri"].as_str()).collect();
        assert_eq!(shown, ["file:///a", "nonet://docs/shared://x", "nonet://web/shared://x"]);
        let to = |server: &str, own: &str| UriTarget::Server(server.into(), own.into());
        for (uri, leads) in [
            ("file:///a", to("docs", "file:///a")),
            ("nonet://docs/file:///a", to("docs", "file:///a")),
            ("nonet://web/shared://x", to("web", "shared://x")),
            ("nonet://nobody/x", UriTarget::Unknown),
            (
                "shared://x",
                UriTarget::Ambiguous(vec!["nonet://docs/shared://x".into(), "nonet://web/shared://x".into()]),
            ),
            ("web://example.org/page", to("web", "web://example.org/page")),
            ("web://a/b/page", UriTarget::Unknown),
            ("tree:a/b/c", to("web", "tree:a/b/c")),
            ("file:///b", UriTarget::Unknown),
        ] {
            assert_eq!(passed.resolve_uri(uri, ALL, None), leads, "{uri}");
        }
        assert_eq!(passed.resolve_uri("file:///b", ALL, Some("docs".into())), to("docs", "file:///b"));
        assert_eq!(passed.resolve_uri("shared://x", ALL, Some("web".into())), to("web", "shared://x"));
        assert_eq!(
            passed.resolve_uri("shared://x", &|server| server == "web", None),
            to("web", "shared://x")
        );
    }

    #[test]
    fn prompts_are_named_as_tools_are() {
        let passed = passed();
        let names: Vec<&str> = passed.prompts().filter_map(|entry| entry.shown["name"].as_str()).collect();
        assert_eq!(names.len(), 2);
        for name in names {
            assert!(name.starts_with("docs__plan_it_"), "both get the hash: {name}");
            assert!(passed.prompt(name).is_some());
        }
        assert!(passed.prompt("docs.plan_it").is_none(), "it may be either");
    }
}
