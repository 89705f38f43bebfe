//! Names for the prompts and resources of all servers, each of which leads back to one server.
//!
//! A prompt is `server__prompt`, like a tool. A resource keeps its URI if only one server has it; if several
//! do, each is listed as `nonet://SERVER/URI`, which always works. A link in a result leads to the result's
//! server, unless another server lists the URI: owners come before links. A prompt of a server exposed
//! verbatim keeps its own name, unless another server owns that name or several servers use it.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use nonet_base::json::set_member;
use nonet_text::{
    name::{self, Namespaces, WireName},
    prose,
};
use regex::Regex;
use serde_json::Value;

/// The scheme of URIs that name their server.
const SCHEME: &str = "nonet://";
/// The same for user interfaces, whose URIs hosts know by their scheme.
const UI_SCHEME: &str = "ui://nonet/";
/// The longest template that is matched, in bytes; a longer one is listed but never matches.
const MAX_TEMPLATE: usize = 1_000;

/// A prompt, resource or template of one server.
#[derive(Debug)]
pub struct OfferedItem {
    /// The server.
    pub server: Arc<str>,
    /// The session that owns it, if any.
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

/// One server's definitions besides its tools, verbatim.
#[derive(Clone, Copy, Debug)]
pub struct ServerOffer<'a> {
    /// The server.
    pub server: &'a Arc<str>,
    /// Whether the server is exposed under its own names.
    pub verbatim: bool,
    /// The session that owns the server, if any. Its URIs are then prefixed with the server, so that they do
    /// not affect others.
    pub session: Option<u64>,
    /// Its prompts.
    pub prompts: &'a [Value],
    /// Its resources.
    pub resources: &'a [Value],
    /// Its resource templates.
    pub templates: &'a [Value],
    /// The URIs of its tools' user interfaces, which it need not list as resources.
    pub uis: &'a [Arc<str>],
}

/// Why a URI leads to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UriClaim {
    /// The server lists it, or a template that matches it.
    Listed,
    /// A result of the server links to it.
    Linked,
    /// The URI names the server, which does not list it.
    Named,
}

/// The target of a URI.
#[derive(Debug, PartialEq, Eq)]
pub enum UriTarget {
    /// This server, under this URI.
    Server(Arc<str>, String, UriClaim),
    /// Any of several servers, by URIs that each name one.
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
    servers: HashSet<Arc<str>>,
    patterns: Vec<(Regex, Arc<str>)>,
}

/// Returns the URI that names its server.
pub fn named_uri(server: &str, uri: &str) -> String {
    format!("{SCHEME}{server}/{uri}")
}

impl PromptsResources {
    /// Names everything. The result does not depend on the servers' order. `names` holds the names of all
    /// configured servers.
    pub fn new<'a>(offers: impl Iterator<Item = ServerOffer<'a>> + Clone, names: &Namespaces) -> Self {
        let mut passed =
            Self { servers: offers.clone().map(|offer| offer.server.clone()).collect(), ..Self::default() };
        passed.name_prompts(offers.clone(), names);
        let mut uses: HashMap<&str, usize> = HashMap::new();
        for offer in offers.clone().filter(|offer| offer.session.is_none()) {
            for uri in texts(offer.resources, "uri").chain(texts(offer.templates, "uriTemplate")) {
                *uses.entry(uri).or_default() += 1;
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
                    let mut shown = prose::visible(definition).unwrap_or_else(|| definition.clone());
                    let is_shared = uses.get(own).is_some_and(|uses| *uses > 1);
                    if offer.session.is_some() || is_shared {
                        set_member(&mut shown, key, named_uri(offer.server, own));
                    }
                    let (server, session) = (offer.server.clone(), offer.session);
                    of.push(OfferedItem { server, session, own: own.into(), shown });
                }
            }
        }
        for entry in &passed.resources {
            passed.owners.entry(entry.own.clone()).or_default().push(entry.server.clone());
        }
        for offer in offers.filter(|offer| offer.session.is_none()) {
            for uri in offer.uis {
                let owners = passed.owners.entry(uri.to_string()).or_default();
                if !owners.contains(offer.server) {
                    owners.push(offer.server.clone());
                }
            }
        }
        passed.patterns = passed
            .templates
            .iter()
            .filter_map(|entry| Some((pattern(&entry.own)?, entry.server.clone())))
            .collect();
        passed
    }

    fn name_prompts<'a>(&mut self, offers: impl Iterator<Item = ServerOffer<'a>>, names: &Namespaces) {
        let mut all: Vec<(WireName, OfferedItem, bool)> = Vec::new();
        for offer in offers {
            let mut seen = HashSet::new();
            for definition in offer.prompts {
                let Some(own) = definition.get("name").and_then(Value::as_str) else { continue };
                if seen.insert(own) {
                    let entry = OfferedItem {
                        server: offer.server.clone(),
                        session: offer.session,
                        own: own.into(),
                        shown: prose::visible(definition).unwrap_or_else(|| definition.clone()),
                    };
                    all.push((WireName::new(offer.server, own), entry, offer.verbatim));
                }
            }
        }
        let mut uses: HashMap<String, usize> = HashMap::new();
        for (wire, ..) in &all {
            *uses.entry(wire.plain.clone()).or_default() += 1;
        }
        let folds: HashMap<String, Arc<str>> = all
            .iter()
            .filter(|(_, entry, _)| entry.session.is_none())
            .map(|(_, entry, _)| {
                (name::fold(&name::full_name(&entry.server, &entry.own)), entry.server.clone())
            })
            .collect();
        let mut same: HashMap<String, usize> = HashMap::new();
        for (_, entry, _) in all.iter().filter(|(.., verbatim)| *verbatim) {
            *same.entry(entry.own.clone()).or_default() += 1;
        }
        for (wire, mut entry, verbatim) in all {
            let named = names.named(&entry.own);
            let folded = name::fold(&entry.own);
            let is_unlisted =
                |server: &Arc<str>| !name::RESERVED.contains(&&**server) && !self.servers.contains(server);
            let is_anothers = !named.is_empty() && !named.contains(&entry.server)
                || folds.get(&folded).is_some_and(|server| *server != entry.server)
                || names.implied(&folded).any(is_unlisted)
                || uses.contains_key(&entry.own);
            let keeps = verbatim && same.get(&entry.own) == Some(&1) && !is_anothers;
            let name = match uses[&wire.plain] {
                _ if keeps => entry.own.clone(),
                1 => wire.plain,
                _ => wire.hashed,
            };
            set_member(&mut entry.shown, "name", &*name);
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

    /// Finds a prompt by `server__prompt`, in any of the forms of tool names. The named server comes first.
    pub fn prompt(
        &self,
        name: &str,
        names: &Namespaces,
        is_there: &dyn Fn(&str) -> bool,
    ) -> Option<&OfferedItem> {
        let named: Vec<&Arc<str>> = names.named(name).iter().filter(|server| is_there(server)).collect();
        // The prompt may belong to a server without a known list.
        let short = name::without_client_prefix(name.trim()).unwrap_or(name.trim());
        let folded = name::fold(short);
        let is_unlisted = |server: &&Arc<str>| {
            is_there(server) && !name::RESERVED.contains(&&***server) && !self.servers.contains(*server)
        };
        let unlisted = names.implied(&folded).find(is_unlisted).filter(|_| named.is_empty());
        let is_meant = |entry: &OfferedItem| {
            is_there(&entry.server)
                && (named.is_empty() || named.contains(&&entry.server))
                && unlisted.is_none_or(|server| *server == entry.server)
        };
        let mut exact = [name, short].into_iter().filter_map(|name| self.prompts.get(name));
        if let Some(exact) = exact.find(|entry| is_meant(entry)) {
            return Some(exact);
        }
        let is_full = |entry: &OfferedItem| name::fold(&name::full_name(&entry.server, &entry.own)) == folded;
        let only = |fits: &dyn Fn(&str, &OfferedItem) -> bool| {
            let mut fitting =
                self.prompts.iter().filter(|(wire, entry)| is_meant(entry) && fits(wire, entry));
            let (_, found) = fitting.next()?;
            Some(fitting.next().is_none().then_some(found))
        };
        let is_exact = |entry: &OfferedItem| name::full_name(&entry.server, &entry.own) == short;
        let exact = only(&|_, entry| is_exact(entry));
        // A fully spelled name never means another server's own name.
        exact
            .or_else(|| only(&|_, entry| is_full(entry)))
            .or_else(|| only(&|wire, _| name::fold(wire) == folded))
            .flatten()
    }

    /// Returns the original of a template that clients see.
    pub fn template(&self, shown: &str, is_there: &dyn Fn(&str) -> bool) -> Option<&OfferedItem> {
        self.templates.iter().find(|entry| entry.shown["uriTemplate"] == shown && is_there(&entry.server))
    }

    /// Returns whether a server lists a resource, or a template of it.
    pub fn lists(&self, server: &str, uri: &str) -> bool {
        self.owners.get(uri).is_some_and(|owners| owners.iter().any(|owner| **owner == *server))
            || self.patterns.iter().any(|(pattern, of)| **of == *server && pattern.is_match(uri))
    }

    /// Returns the URI under which clients read a user interface of a server: its own if it leads to this server only.
    pub fn ui_uri<'u>(&self, server: &str, uri: &'u str) -> Cow<'u, str> {
        match self.is_sole(server, uri) {
            true => Cow::Borrowed(uri),
            false => Cow::Owned(format!("{UI_SCHEME}{server}/{uri}")),
        }
    }

    /// Returns whether a URI by itself always leads to this server, for every reader.
    pub fn is_sole(&self, server: &str, uri: &str) -> bool {
        matches!(self.owners.get(uri).map(Vec::as_slice), Some([owner]) if **owner == *server)
    }

    /// Resolves a URI for a caller who sees some of the servers. `linked` returns the servers that gave the
    /// caller a link to a URI. A server that lists a URI comes before one that links to it or has a matching
    /// template; among several with the same claim, none is chosen.
    pub fn resolve_uri(
        &self,
        uri: &str,
        seen: &dyn Fn(&str) -> bool,
        linked: &dyn Fn(&str) -> Vec<Arc<str>>,
    ) -> UriTarget {
        if let Some((server, own)) = split_named(uri) {
            return match self.servers.get(server).filter(|server| seen(server)) {
                Some(server) if self.lists(server, own) => {
                    UriTarget::Server(server.clone(), own.into(), UriClaim::Listed)
                }
                Some(server) if linked(own).contains(server) => {
                    UriTarget::Server(server.clone(), own.into(), UriClaim::Linked)
                }
                Some(server) => UriTarget::Server(server.clone(), own.into(), UriClaim::Named),
                None => UriTarget::Unknown,
            };
        }
        let listed: Vec<Arc<str>> = self.owners.get(uri).into_iter().flatten().cloned().collect();
        let matching = || {
            let fitting = self.patterns.iter().filter(|(pattern, _)| pattern.is_match(uri));
            fitting.map(|(_, server)| server.clone()).collect::<Vec<_>>()
        };
        let mut servers = only_seen(listed, seen);
        if servers.is_empty() {
            servers = only_seen(matching().into_iter().chain(linked(uri)).collect(), seen);
        }
        match &servers[..] {
            [] => UriTarget::Unknown,
            [one] => {
                let claim = if self.lists(one, uri) { UriClaim::Listed } else { UriClaim::Linked };
                UriTarget::Server(one.clone(), uri.into(), claim)
            }
            many => UriTarget::Ambiguous(many.iter().map(|server| named_uri(server, uri)).collect()),
        }
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

/// Returns the server and the rest of a URI that names its server.
pub fn split_named(uri: &str) -> Option<(&str, &str)> {
    let rest = uri.strip_prefix(SCHEME).or_else(|| uri.strip_prefix(UI_SCHEME))?;
    rest.split_once('/')
}

fn only_seen(mut servers: Vec<Arc<str>>, seen: &dyn Fn(&str) -> bool) -> Vec<Arc<str>> {
    servers.retain(|server| seen(server));
    servers.sort();
    servers.dedup();
    servers
}

fn texts<'a>(definitions: &'a [Value], key: &'a str) -> impl Iterator<Item = &'a str> {
    let mut seen = HashSet::new();
    definitions
        .iter()
        .filter_map(move |definition| definition.get(key)?.as_str())
        .filter(move |text| seen.insert(*text))
}

/// Returns the regex for a URI template (RFC 6570): an expression matches any text without slashes, `{+x}`
/// and `{/x}` also slashes.
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
    use serde_json::json;

    use super::*;

    const ALL: &dyn Fn(&str) -> bool = &|_| true;
    const NO_LINKS: &dyn Fn(&str) -> Vec<Arc<str>> = &|_| Vec::new();

    fn names() -> Namespaces {
        Namespaces::new(["a", "b", "c", "docs", "web", "own", "down"])
    }

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
                    uis: &[],
                },
                ServerOffer {
                    server: &web,
                    verbatim: false,
                    session: None,
                    prompts: &[],
                    resources: &other,
                    templates: &templates,
                    uis: &[],
                },
            ]
            .into_iter(),
            &names(),
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
            uis: &[],
        };
        let passed = PromptsResources::new([offer(&docs, None), offer(&own, Some(7))].into_iter(), &names());
        let uris: Vec<&Value> = passed.resources().iter().map(|entry| &entry.shown["uri"]).collect();
        assert_eq!(uris, ["shared://x", "nonet://own/shared://x"]);
        let others = |server: &str| server != "own";
        let to = |server: &str| UriTarget::Server(server.into(), "shared://x".into(), UriClaim::Listed);
        assert_eq!(passed.resolve_uri("shared://x", &others, NO_LINKS), to("docs"));
        assert_eq!(passed.resolve_uri("nonet://own/shared://x", &others, NO_LINKS), UriTarget::Unknown);
        assert_eq!(passed.resolve_uri("nonet://own/shared://x", ALL, NO_LINKS), to("own"));
        // Others are offered the same as without it.
        let without = PromptsResources::new([offer(&docs, None)].into_iter(), &names());
        assert!(passed.same_resources(&without, 8) && !passed.same_resources(&without, 7));
        assert!(passed.same_prompts(&without, 7));
    }

    #[test]
    fn a_verbatim_server_keeps_names_that_nobody_else_has() {
        let (a, b, c): (Arc<str>, Arc<str>, Arc<str>) = ("a".into(), "b".into(), "c".into());
        let of = |names: &[&str]| names.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>();
        let prompts = of(&["plan"]);
        let (mine, more) =
            (of(&["plan", "alone", "down__x", "down_y"]), of(&["plan", "A:plan", "a__plan", "write it"]));
        let shared = [json!({ "uri": "shared://x" })];
        let offer = |server, verbatim, prompts| ServerOffer {
            server,
            verbatim,
            session: None,
            prompts,
            resources: &shared,
            templates: &[],
            uis: &[],
        };
        let passed = PromptsResources::new(
            [offer(&c, true, &more[..]), offer(&a, false, &prompts[..]), offer(&b, true, &mine[..])]
                .into_iter(),
            &names(),
        );
        let shown: Vec<&str> = passed.prompts().filter_map(|entry| entry.shown["name"].as_str()).collect();
        let all = [
            "a__plan",
            "alone",
            "b__down__x",
            "b__down_y",
            "b__plan",
            "c__A_plan",
            "c__a__plan",
            "c__plan",
            "write it",
        ];
        assert_eq!(shown, all);
        let check = |given: &str, expected: Option<(&str, &str)>| {
            let found = passed.prompt(given, &names(), ALL);
            assert_eq!(found.map(|entry| (&*entry.server, &*entry.own)), expected, "{given}");
        };
        for given in ["a__plan", "a.plan", "A:plan", "a/Plan", "mcp__nonet__a__plan", "a_plan"] {
            check(given, Some(("a", "plan")));
        }
        check("b__plan", Some(("b", "plan")));
        check("down__x", None);
        check("down.x", None);
        check("alone", Some(("b", "alone")));
        check("down_y", None);
        check("c.A:plan", Some(("c", "A:plan")));
        // No server takes a URI from another.
        assert!(
            matches!(passed.resolve_uri("shared://x", ALL, NO_LINKS), UriTarget::Ambiguous(all) if all.len() == 3)
        );
    }

    #[test]
    fn a_uri_stays_where_one_server_has_it_and_names_the_server_where_several_do() {
        let passed = passed();
        let shown: Vec<&str> =
            passed.resources().iter().filter_map(|entry| entry.shown["uri"].as_str()).collect();
        assert_eq!(shown, ["file:///a", "nonet://docs/shared://x", "nonet://web/shared://x"]);
        let to = |server: &str, own: &str| UriTarget::Server(server.into(), own.into(), UriClaim::Listed);
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
            assert_eq!(passed.resolve_uri(uri, ALL, NO_LINKS), leads, "{uri}");
        }
        assert_eq!(
            passed.resolve_uri("shared://x", &|server| server == "web", NO_LINKS),
            to("web", "shared://x")
        );
    }

    #[test]
    fn owners_come_before_links() {
        let passed = passed();
        let check = |uri: &str, links: &'static [&str], expected: Option<(&str, UriClaim)>| {
            let linked = |_: &str| links.iter().map(|server| Arc::from(*server)).collect();
            let found = match passed.resolve_uri(uri, ALL, &linked) {
                UriTarget::Server(server, _, claim) => Some((server, claim)),
                UriTarget::Ambiguous(_) | UriTarget::Unknown => None,
            };
            assert_eq!(found, expected.map(|(server, claim)| (server.into(), claim)), "{uri} {links:?}");
        };
        check("file:///a", &["web"], Some(("docs", UriClaim::Listed)));
        check("file:///b", &["docs"], Some(("docs", UriClaim::Linked)));
        // Two servers link to it, or one links and another has a template, so neither is chosen.
        check("file:///b", &["docs", "web"], None);
        check("tree:a", &["docs"], None);
        check("tree:a", &["web"], Some(("web", UriClaim::Listed)));
        // A server that both lists the URI and links to it takes nothing from the other.
        check("shared://x", &["web"], None);
        check("nonet://docs/file:///b", &["web"], Some(("docs", UriClaim::Named)));
        check("nonet://web/file:///b", &["web"], Some(("web", UriClaim::Linked)));
    }

    #[test]
    fn prompts_are_named_as_tools_are() {
        let passed = passed();
        let shown: Vec<&str> = passed.prompts().filter_map(|entry| entry.shown["name"].as_str()).collect();
        assert_eq!(shown.len(), 2);
        for name in shown {
            assert!(name.starts_with("docs__plan_it_"), "both get the hash: {name}");
            assert!(passed.prompt(name, &names(), ALL).is_some());
        }
        let own = |given: &str| passed.prompt(given, &names(), ALL).map(|entry| entry.own.clone());
        assert_eq!(own("docs.plan_it"), Some("plan_it".into()), "spelled as the server does");
        assert_eq!(own("docs.Plan-It"), None, "it may be either");
    }
}
