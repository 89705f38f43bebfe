//! Compares a server's definitions with the pins and the lock file.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Instant,
};

use nonet_base::json::set_member;
use nonet_config::{NewServers, OnChange};
use nonet_store::{Pin, PinKind, PinStep, PinWrite};
use serde_json::{Map, Value, json};

use super::{
    DefinitionState, Definitions, ELSEWHERE, ServerPins, TrustRules, definition::difference,
    lock_file::LockFile,
};

/// How many definitions of a server are pinned. Where changes are held, further ones are not trusted.
pub(super) const MOST_PINS: usize = 10_000;
/// The longest definition whose text is kept, in bytes. For a longer one, only its hash and its annotations
/// are.
pub(super) const MOST_KEPT: usize = 256 << 10;
/// Replaces the description of an untrusted definition.
pub(super) const HELD: &str =
    "Held: the user has not trusted this definition yet, so it is not shown and not called.";

/// One definition to compare.
pub(super) struct Item<'a> {
    pub kind: PinKind,
    pub name: &'a str,
    pub value: Cow<'a, Value>,
}

impl Item<'_> {
    fn is_elsewhere(&self) -> bool {
        self.value.get("_meta").is_some_and(|meta| meta.get(ELSEWHERE).is_some())
    }
}

/// The data that a check compares.
pub(super) struct PinComparison<'a> {
    pub items: Vec<Item<'a>>,
    pub hashes: Vec<Arc<str>>,
    pub pins: ServerPins,
    pub lock: Option<&'a LockFile>,
    pub rules: &'a TrustRules,
}

impl PinComparison<'_> {
    /// Returns an item's state; `None` if it is trusted.
    pub(super) fn standing(
        &self,
        server: &str,
        item: &Item<'_>,
        hash: &str,
        pin: Option<&Pin>,
    ) -> Option<DefinitionState> {
        let trusted = pin.and_then(|pin| pin.trusted.as_deref());
        let is_trusted = match locked(self.lock, server, item, hash) {
            Some(true) => true,
            Some(false) => trusted == Some(hash) && pin.is_some_and(|pin| pin.by_user),
            None if pin.is_none() => self.rules.on_change == OnChange::Tell && !item.is_elsewhere(),
            None => trusted == Some(hash),
        };
        match trusted {
            _ if is_trusted => None,
            Some(trusted) if trusted != hash => Some(DefinitionState::Changed),
            _ => Some(DefinitionState::New),
        }
    }

    /// Returns the consequence of a change, and the key that sets it.
    pub(super) fn effect(&self, standing: DefinitionState, item: &Item<'_>) -> (OnChange, String) {
        let TrustRules { on_change, rule, new_servers } = self.rules;
        match (standing, on_change, new_servers) {
            (_, OnChange::Tell, _) if item.is_elsewhere() => (OnChange::Hold, "base_url".into()),
            (DefinitionState::New, OnChange::Tell, NewServers::Hold) => {
                (OnChange::Hold, "gateway.new_servers".into())
            }
            _ => (*on_change, rule.clone()),
        }
    }
}

/// Returns whether the lock file has this exact definition; `None` without a lock file.
fn locked(lock: Option<&LockFile>, server: &str, item: &Item<'_>, hash: &str) -> Option<bool> {
    let locked = lock?.servers.get(server).and_then(|server| server.hash(item.kind, item.name));
    // A server without instructions needs no line.
    let is_empty = item.kind == PinKind::Instructions && item.value.as_str() == Some("");
    Some(locked == Some(hash) || locked.is_none() && is_empty)
}

/// Returns the items of a server's list that are pinned.
pub(super) fn items(listed: &Definitions) -> Vec<Item<'_>> {
    let name = |value: &'_ Value| {
        value.get("name").and_then(Value::as_str).filter(|name| !name.is_empty()).is_some()
    };
    let own = Item {
        kind: PinKind::Instructions,
        name: "",
        value: Cow::Owned(Value::from(listed.instructions.as_str())),
    };
    let mut seen = HashSet::new();
    let tools = listed.tools.iter().map(|tool| (PinKind::Tool, &**tool));
    let prompts = listed.prompts.iter().map(|prompt| (PinKind::Prompt, prompt));
    let named = tools.chain(prompts).filter(|(_, value)| name(value)).filter_map(|(kind, value)| {
        let name = value["name"].as_str()?;
        // The first item of a name counts, as in the catalogue.
        seen.insert((kind, name)).then_some(Item { kind, name, value: Cow::Borrowed(value) })
    });
    std::iter::once(own).chain(named).collect()
}

/// Returns the changes to the pins.
pub(super) fn steps(
    items: &[Item<'_>],
    hashes: &[Arc<str>],
    pins: &ServerPins,
    lock: Option<&LockFile>,
    server: &str,
    rules: &TrustRules,
) -> Vec<PinWrite> {
    let is_new = pins.is_empty();
    let mut room = MOST_PINS.saturating_sub(pins.len());
    let mut unpinned = 0;
    let mut writes = Vec::new();
    for (item, hash) in items.iter().zip(hashes) {
        let pin = pins.get(&(item.kind, item.name.to_string()));
        let trusted = pin.and_then(|pin| pin.trusted.as_deref());
        let waits = pin.and_then(|pin| pin.waiting.as_deref());
        if pin.is_none() && room == 0 {
            unpinned += 1;
            continue;
        }
        let given = || (hash.to_string(), kept(item));
        let is_by_user = pin.is_some_and(|pin| pin.by_user);
        let to = match locked(lock, server, item, hash) {
            Some(true) if trusted == Some(hash) && waits.is_none() => None,
            Some(true) => {
                let (hash, text) = given();
                Some(PinStep::Vouch { hash, text })
            }
            Some(false) if trusted != Some(hash) || !is_by_user => Some(waiting(given())),
            _ if trusted == Some(hash) => waits.is_some().then_some(PinStep::Return),
            _ if pin.is_some() => Some(waiting(given())),
            _ if is_new && rules.new_servers == NewServers::Hold || item.is_elsewhere() => {
                Some(waiting(given()))
            }
            _ if !is_new && rules.on_change != OnChange::Tell => Some(waiting(given())),
            _ => {
                let (hash, text) = given();
                Some(PinStep::First { hash, text })
            }
        };
        let is_same = |to: &PinStep| matches!(to, PinStep::Wait { hash, .. } if waits == Some(hash.as_str()));
        if let Some(to) = to.filter(|to| !is_same(to)) {
            room -= usize::from(pin.is_none());
            writes.push(PinWrite { kind: item.kind, name: item.name.into(), to });
        }
    }
    if unpinned > 0 {
        tracing::warn!(%server, unpinned, "the server lists more definitions than can be pinned ({MOST_PINS})");
    }
    writes
}

fn waiting((hash, text): (String, String)) -> PinStep {
    PinStep::Wait { hash, text }
}

/// Returns the text of a definition as it is stored.
fn kept(item: &Item<'_>) -> String {
    let whole = item.value.to_string();
    if whole.len() <= MOST_KEPT {
        return whole;
    }
    let mut short = Map::new();
    for key in ["name", "title", "description", "annotations"] {
        let small = item.value.get(key).filter(|value| value.to_string().len() <= MOST_KEPT / 8);
        short.extend(small.map(|value| (key.to_string(), value.clone())));
    }
    Value::Object(short).to_string()
}

/// Returns the differences, for people.
pub(super) fn told_difference(
    standing: DefinitionState,
    trusted: Option<&Value>,
    item: &Item<'_>,
    end: Instant,
) -> String {
    let named = |value: &Value| match item.kind {
        PinKind::Instructions => json!({ "instructions": value }),
        _ => value.clone(),
    };
    match (standing, trusted) {
        (DefinitionState::Changed, Some(trusted)) => difference(&named(trusted), &named(&item.value), end),
        (DefinitionState::Changed, None) => {
            "The trusted definition is not kept; only its hash is known.".into()
        }
        (DefinitionState::New, _) => difference(&json!({}), &named(&item.value), end),
    }
}

/// Returns what is published in place of an untrusted definition: the trusted one, else only the name. A new
/// prompt is not published.
pub(super) fn stand_in(item: &Item<'_>, trusted: Option<Value>) -> Option<Value> {
    match (item.kind, trusted) {
        (PinKind::Prompt, _) => None,
        (PinKind::Instructions, trusted) => Some(trusted.unwrap_or_else(|| "".into())),
        (PinKind::Tool, Some(mut trusted)) => {
            if trusted.get("inputSchema").is_none() {
                set_member(&mut trusted, "inputSchema", json!({ "type": "object" }));
            }
            Some(trusted)
        }
        (PinKind::Tool, None) => {
            Some(json!({ "name": item.name, "description": HELD, "inputSchema": { "type": "object" } }))
        }
    }
}

/// Returns the definitions with their stand-ins; one without a stand-in is dropped.
pub(super) fn substituted(
    listed: &Definitions,
    stand_ins: &HashMap<(PinKind, &str), Option<Value>>,
) -> Definitions {
    if stand_ins.is_empty() {
        return listed.clone();
    }
    fn named(value: &Value) -> &str {
        value.get("name").and_then(Value::as_str).unwrap_or_default()
    }
    let tools = listed.tools.iter().filter_map(|tool| match stand_ins.get(&(PinKind::Tool, named(tool))) {
        Some(other) => other.clone().map(Arc::new),
        None => Some(tool.clone()),
    });
    let prompts =
        listed.prompts.iter().filter_map(|prompt| match stand_ins.get(&(PinKind::Prompt, named(prompt))) {
            Some(other) => other.clone(),
            None => Some(prompt.clone()),
        });
    let instructions = match stand_ins.get(&(PinKind::Instructions, "")) {
        Some(other) => other.as_ref().and_then(Value::as_str).unwrap_or_default().into(),
        None => listed.instructions.clone(),
    };
    Definitions { tools: tools.collect(), prompts: prompts.collect(), instructions }
}
