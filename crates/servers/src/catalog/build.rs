//! Builds one tool from its server's definition and the server's settings.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use nonet_base::{
    json::set_member,
    text::{self, MAX_TITLE, clean, hex, line},
};
use nonet_config::{Expose, Globs, Policy, PolicyRule, Risk, ServerSettings, ToolOverride, Transport};
use nonet_schema::Schema;
use nonet_text::{
    name::{self, Spellings, WireName},
    prose,
};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{EntryKind, GATEWAY, Keys, Listing, Tool, folded, risk};
use crate::pins::{self, ToolTrust};

/// The longest signature, in characters.
const MAX_SIGNATURE: usize = 20_000;

/// Returns the own name of a tool: a tool without one is left out.
pub fn own_name(definition: &Value) -> Option<&str> {
    definition.get("name")?.as_str().filter(|name| !name.is_empty())
}

/// The names of a tool.
#[derive(Clone, Copy)]
pub(super) struct ToolNamePair<'a> {
    /// The server's own name for it.
    pub own: &'a str,
    /// The name that clients see.
    pub shown: &'a str,
}

/// How many characters of a name that cannot be shown are kept.
const KEPT_OF_NAME: usize = 64;

/// Returns the replacement for a tool's own name that cannot be shown: it is too long, or contains invisible
/// characters or line breaks. Two such names differ by their hash.
fn shown_name(own: &str) -> Option<String> {
    if text::name(own) == own {
        return None;
    }
    let kept: String = own
        .chars()
        .take(KEPT_OF_NAME)
        .map(|c| if text::name(c.encode_utf8(&mut [0; 4])) == c.to_string() { c } else { '_' })
        .collect();
    Some(format!("{kept}_{}", hex(&Sha256::digest(own)[..4])))
}

/// Returns the new names of tools by their own names: the configuration's, and the replacements for names
/// that cannot be shown. A name that another tool of the server already has, or that several tools would get,
/// is not given.
pub(super) fn renames<'a>(
    settings: Option<&'a ServerSettings>,
    listing: &'a Listing,
) -> HashMap<&'a str, Cow<'a, str>> {
    let mut renames: HashMap<&str, Cow<str>> = listing
        .tools
        .iter()
        .filter_map(|tool| own_name(tool))
        .filter_map(|own| Some((own, shown_name(own)?.into())))
        .collect();
    renames.extend(configured(settings, listing).into_iter().map(|(own, new)| (own, new.into())));
    renames
}

/// Returns the new names from the configuration.
fn configured<'a>(settings: Option<&'a ServerSettings>, listing: &'a Listing) -> HashMap<&'a str, &'a str> {
    let Some(settings) = settings.filter(|settings| settings.tools.values().any(|own| own.rename.is_some()))
    else {
        return HashMap::new();
    };
    let own: HashSet<&str> = listing.tools.iter().filter_map(|tool| own_name(tool)).collect();
    let mut wanted: HashMap<String, Vec<(&str, &str)>> = HashMap::new();
    for name in &own {
        if let Some(new) = settings.tools.get(*name).and_then(|own| own.rename.as_deref()) {
            wanted.entry(name::fold(new)).or_default().push((*name, new));
        }
    }
    wanted.retain(|_, tools| tools.len() == 1);
    for name in &own {
        // A name that differs only in case or punctuation would be ambiguous.
        let fold = name::fold(name);
        if wanted.get(&fold).is_some_and(|tools| tools.iter().all(|(own, _)| own != name)) {
            wanted.remove(&fold);
        }
    }
    wanted.into_values().flatten().collect()
}

/// The `_meta` key for search words in the definitions of REST services.
const TAGS: &str = "nonet/tags";
/// How many of these words count, and the maximum length of each, in characters.
const MOST_TAGS: (usize, usize) = (20, 50);

/// Returns the search words in a REST service's definition.
fn search_tags(definition: &Value) -> Vec<String> {
    let tags = definition.get("_meta").and_then(|meta| meta.get(TAGS)?.as_array()).into_iter().flatten();
    let tags = tags.filter_map(Value::as_str).filter(|tag| (1..=MOST_TAGS.1).contains(&tag.chars().count()));
    tags.take(MOST_TAGS.0).map(String::from).collect()
}

/// Returns the definition with the configuration's title and description.
fn corrected(definition: &Arc<Value>, own: Option<&ToolOverride>) -> Arc<Value> {
    let texts = own.map(|own| [("title", &own.title), ("description", &own.description)]);
    let mut listed = definition.clone();
    for (key, text) in texts.into_iter().flatten() {
        if let Some(text) = text {
            set_member(Arc::make_mut(&mut listed), key, &**text);
        }
    }
    listed
}

/// Returns a REST service's definition as clients see it: without search words, and without an output schema.
/// A document's response schemas are not binding, but a client would reject an answer that differs from its
/// output schema.
fn without_promises(mut listed: Arc<Value>) -> Arc<Value> {
    if let Some(definition) = Arc::make_mut(&mut listed).as_object_mut() {
        definition.shift_remove("outputSchema");
        definition.shift_remove("_meta");
    }
    listed
}

/// Builds a tool from its definition. `old` has the same definition.
pub(super) fn build(
    server: &Arc<str>,
    names: ToolNamePair,
    definition: &Arc<Value>,
    old: Option<&Tool>,
    settings: Option<&ServerSettings>,
    policies: &BTreeMap<String, PolicyRule>,
    trust: Option<&ToolTrust>,
) -> Tool {
    let own_name: Arc<str> = names.own.into();
    let name = if names.shown == names.own { own_name.clone() } else { names.shown.into() };
    let own = settings.and_then(|s| s.tools.get(&*own_name));
    // Keep what was compiled from the definition.
    let definition = old.map_or(definition, |old| &old.definition).clone();
    let visible = match old {
        Some(old) => old.visible.clone(),
        None => prose::visible(&definition).map_or_else(|| definition.clone(), Arc::new),
    };
    let annotations = definition.get("annotations");
    let is_rest = settings.is_some_and(|settings| matches!(settings.transport, Transport::Rest(_)));
    let listed = match corrected(&visible, own) {
        listed if is_rest => without_promises(listed),
        listed => listed,
    };
    let change = trust.and_then(|trust| trust.change.clone());
    // The hints of the trusted definition, if that is a different one.
    let trusted_hints = change.as_ref().and_then(|change| change.trusted_hints.as_ref());
    let all_hints = [annotations].into_iter().chain(trusted_hints.map(Some));
    let hash = match (trust, old) {
        (Some(trust), _) => trust.hash.clone(),
        (None, Some(old)) => old.hash.clone(),
        (None, None) => pins::hash(&definition).into(),
    };
    let schema = match old {
        Some(old) if old.name == name => old.schema.clone(),
        _ => Schema::of_definition(&name, visible.clone()),
    };
    let full: Arc<str> = name::full_name(server, &name).into();
    let keys = keys(server, &name, &full);
    // The server's word is not enough to lower the risk.
    let by_server = all_hints.clone().map(|hints| risk::risk(&own_name, hints)).max();
    let risk = own.and_then(|own| own.risk).or(by_server).unwrap_or(Risk::High);
    // A name that cannot be shown is judged as its server writes it.
    let spellings = match shown_name(&own_name) {
        Some(_) => Spellings::of(&name::full_name(server, &own_name)),
        None => Spellings::of(&full),
    };
    let of_name = PolicyOfName { server, own: &own_name, full: &full, spellings: &spellings, risk };
    let (policy, policy_rule) = of_name.policy(settings, policies);
    let blocked = settings.and_then(|settings| blocking_key(settings, server, &own_name));
    let blocked = blocked.or_else(|| (policy == Policy::Deny).then(|| policy_rule.clone()));
    let session = settings.and_then(|s| s.session);
    let (tags, search_tags) = tags(&definition, own, settings);
    let verbatim = settings.is_some_and(|s| s.expose == Expose::Verbatim);
    let (examples, misfits) = examples(own, &schema);
    let kind = EntryKind::of(server);
    let of = text_of(&definition, "server").filter(|_| kind == EntryKind::Skill);
    let description = text_of(&listed, "description").unwrap_or_default();
    Tool {
        server: server.clone(),
        kind,
        of: of.map(Into::into),
        wire: keys.plain.clone(),
        verbatim,
        mirrored: verbatim && schema.raw().to_string().contains("\"x-mcp-header\""),
        title: title(&listed, annotations),
        description: clean(&prose::dedented(description)).into_owned(),
        risk,
        read_only: all_hints.clone().all(|hints| hints.is_some_and(|hints| hints["readOnlyHint"] == true)),
        as_task: definition.get("execution").and_then(|e| text_of(e, "taskSupport")) == Some("required"),
        ui: super::ToolUi::of(&definition).filter(|_| !is_rest).map(Arc::new),
        parallel: own.and_then(|o| o.parallel).unwrap_or(settings.is_some_and(|s| s.parallel)),
        policy,
        policy_rule,
        blocked,
        aliases: own.map(|o| o.aliases.clone()).unwrap_or_default(),
        tags,
        session,
        search_tags,
        examples,
        misfits,
        version: version(&listed),
        hash,
        signature: line(&schema.signature(&full), MAX_SIGNATURE),
        marks: OnceLock::new(),
        bytes: OnceLock::new(),
        output: OnceLock::new(),
        called: OnceLock::new(),
        schema,
        visible,
        listed,
        name,
        own: own_name,
        full,
        spellings,
        keys,
        change: change.clone(),
        definition: definition.clone(),
    }
}

fn text_of<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

/// Returns the title of a definition, or the one in its annotations.
fn title(listed: &Value, annotations: Option<&Value>) -> String {
    let own = text_of(listed, "title").filter(|title| !title.is_empty());
    line(own.or_else(|| text_of(annotations?, "title")).unwrap_or_default(), MAX_TITLE)
}

/// Returns the tags that profiles select by, and those for search only.
fn tags(
    definition: &Value,
    own: Option<&ToolOverride>,
    settings: Option<&ServerSettings>,
) -> (Vec<String>, Vec<String>) {
    let Some(settings) = settings else { return (Vec::new(), Vec::new()) };
    let is_rest = matches!(settings.transport, Transport::Rest(_));
    let mut for_search = if is_rest { search_tags(definition) } else { Vec::new() };
    let mut tags = settings.tags.clone();
    tags.extend(own.into_iter().flat_map(|own| own.tags.clone()));
    if settings.session.is_some() {
        // Clients must not influence what their profile lets through.
        for_search.append(&mut tags);
    }
    (tags, for_search)
}

/// Returns the spellings by which a tool is looked up.
fn keys(server: &str, name: &str, full: &str) -> Keys {
    let WireName { plain, hashed } = WireName::new(server, name);
    let (plain, fold): (Arc<str>, Arc<str>) = (plain.into(), name::fold(full).into());
    Keys {
        hashed: hashed.into(),
        own: name::fold(name).into(),
        wire: folded(&plain, &fold),
        full: fold,
        plain,
    }
}

/// Returns the key of a server's settings that keeps a tool out.
fn blocking_key(settings: &ServerSettings, server: &str, own_name: &str) -> Option<String> {
    let is_allowed = settings.allowed_tools.as_ref().is_none_or(|allowed| allowed.matches(own_name));
    if !is_allowed {
        Some(format!("servers.{server}.allowed_tools"))
    } else if settings.blocked_tools.catches_own(own_name) {
        Some(format!("servers.{server}.blocked_tools"))
    } else {
        None
    }
}

/// The places of configured examples that do not fit the schema, with the reasons.
type UnfitExamples = Vec<(usize, String)>;

/// Returns the configured examples that fit the schema, and the places of the others with the reasons.
fn examples(own: Option<&ToolOverride>, schema: &Schema) -> (Vec<Map<String, Value>>, UnfitExamples) {
    let (mut fitting, mut misfits) = (Vec::new(), Vec::new());
    for (at, example) in own.into_iter().flat_map(|own| &own.examples).enumerate() {
        match misfit(schema, example) {
            None => fitting.push(example.clone()),
            Some(why) => misfits.push((at, why)),
        }
    }
    (fitting, misfits)
}

/// Returns why params are invalid as they are.
fn misfit(schema: &Schema, params: &Map<String, Value>) -> Option<String> {
    let params = Value::Object(params.clone());
    if schema.accepts(&params) {
        return None;
    }
    let faults = schema.read(params).err().map(|misfit| misfit.faults.join("; "));
    Some(faults.unwrap_or_else(|| "its values do not have the input schema's types".into()))
}

/// What a tool's policy depends on, besides the rules.
struct PolicyOfName<'a> {
    server: &'a str,
    own: &'a str,
    full: &'a str,
    spellings: &'a Spellings,
    risk: Risk,
}

impl PolicyOfName<'_> {
    /// Returns what happens when a tool is called, and the key that decides it. A setting for the tool itself
    /// precedes one for names like its own, then one for its server, then one for its risk. If several
    /// policies name it, the strictest applies. A rule that names another spelling of the tool can only be
    /// stricter.
    fn policy(
        &self,
        settings: Option<&ServerSettings>,
        policies: &BTreeMap<String, PolicyRule>,
    ) -> (Policy, String) {
        let Self { server, own, full, spellings, risk } = *self;
        // Nonet's own tools that can do no harm obey only the policies that name them: a rule for everything
        // is for servers.
        let naming;
        let policies = match settings.is_none() && risk < Risk::High {
            true => {
                naming =
                    if server == GATEWAY { PolicyRule::naming(policies, GATEWAY) } else { BTreeMap::new() };
                &naming
            }
            false => policies,
        };
        let key = |tool: &str| format!("servers.{server}.tools.{tool}.policy");
        if let Some(policy) = settings.and_then(|s| s.tools.get(own)).and_then(|own| own.policy) {
            return (policy, key(own));
        }
        let of_server = (server, settings.and_then(|settings| settings.policy));
        let is_caught = |tools: &Globs| tools.catches(full, spellings);
        let raised = PolicyRule::decided(policies, of_server, risk, |tools| tools.matches(full), is_caught);
        let of_tools = settings.into_iter().flat_map(|settings| &settings.tools);
        let of_tools = of_tools.filter_map(|(tool, of_tool)| Some((of_tool.policy?, tool)));
        let is_spelled = |tool: &str| {
            let other = Spellings::of(&name::full_name(server, tool));
            spellings.any(|spelling| other.any(|other| other == spelling))
        };
        let spelled = of_tools.filter(|(policy, tool)| *policy > raised.0 && is_spelled(tool));
        spelled.max_by_key(|(policy, _)| *policy).map_or(raised, |(policy, tool)| (policy, key(tool)))
    }
}

fn version(definition: &Value) -> String {
    let digest = Sha256::digest(definition.to_string().as_bytes());
    hex(&digest[..6])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_that_cannot_be_shown_gets_another_one() {
        assert_eq!(shown_name("read_file"), None);
        assert_eq!(shown_name("größe.von:allem"), None);
        let of = |own: &str| shown_name(own).expect("it cannot be shown");
        assert!(of("a\nb").starts_with("a_b_") && of("a\nb") != of("a\rb"));
        assert!(of("pay\u{202e}lap").starts_with("pay_lap_"));
        assert_eq!(of(&"x".repeat(1_000_000)).len(), KEPT_OF_NAME + 9);
        assert_eq!(shown_name(&of("\0")), None);
    }

    #[test]
    fn words_for_search_are_short_and_few() {
        let check = |tags: Value, expected: &[&str]| {
            assert_eq!(search_tags(&json!({ "_meta": { TAGS: tags } })), expected);
        };
        check(json!(["orders", "", 5, "x".repeat(51), "money"]), &["orders", "money"]);
        check(json!("orders"), &[]);
        check(json!(vec!["a"; 30]), &["a"; 20]);
        assert!(search_tags(&json!({ "name": "a" })).is_empty());
    }

    #[test]
    fn only_a_rest_service_has_words_for_search() {
        let definition = Arc::new(json!({ "name": "look", "_meta": { TAGS: ["zinc"] }, "outputSchema": {} }));
        let check = |keys: &str, expected: (&[&str], bool)| {
            let text = format!("[servers.a]\n{keys}\n");
            let file = std::path::Path::new("f");
            let config =
                nonet_config::parse(&text, file, nonet_config::ValueSources::NONE).expect("usable").config;
            let settings = config.servers.values().next().expect("a server");
            let names = ToolNamePair { own: "look", shown: "look" };
            let tool = build(&"a".into(), names, &definition, None, Some(settings), &BTreeMap::new(), None);
            assert_eq!(tool.search_tags, expected.0, "{keys}");
            assert!(tool.tags.is_empty(), "profiles do not choose by them");
            let is_whole = ["_meta", "outputSchema"].map(|key| tool.listed.get(key).is_some());
            assert_eq!(is_whole, [expected.1; 2], "{keys}");
        };
        check("command = 'x'", (&[], true));
        check("openapi = 'x.json'", (&["zinc"], false));
    }
}
