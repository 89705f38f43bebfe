//! Which calls there are, and which calls each one needs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::template;

/// One call of a plan.
#[derive(Clone, Debug, Default, serde::Deserialize)]
pub struct PlannedCall {
    /// Its id in `after` and in templates; its position if absent.
    #[serde(default)]
    pub id: String,
    /// The tool, under any of its names.
    pub name: String,
    /// Its params, with templates.
    #[serde(default)]
    pub params: Value,
    /// Calls that must have ended before.
    #[serde(default)]
    pub after: Vec<String>,
    /// Its hard limit, instead of its server's.
    pub timeout_ms: Option<u64>,
    /// A jq filter on its result, for the report and for what other calls take from it.
    pub select: Option<String>,
    /// Whether its dependants run even if it fails: they see `null`.
    #[serde(skip)]
    pub optional: bool,
}

/// What counts for the order of one call.
pub struct Node<'a> {
    pub id: &'a str,
    pub after: Vec<&'a str>,
    /// Its params, with templates.
    pub params: Option<&'a Value>,
}

/// Why calls are not a plan. Calls are named by position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// Two calls have the same id.
    #[error("Two actions have the id `{id}`; give each its own.")]
    SameId { id: String, first: usize, second: usize },
    /// A call needs the id `name`, which no call has.
    #[error("The action `{id}` refers to `{name}`, which is none of the actions ({known}).")]
    UnknownId { at: usize, id: String, name: String, known: String },
    /// Calls that need each other, each followed by one that it needs.
    #[error("Circular dependency of actions: {path}.")]
    Cycle { calls: Vec<usize>, path: String },
}

/// The calls that each of `nodes` needs, and every flaw. `given` are names that templates may use beside the ids.
pub fn needs(nodes: &[Node<'_>], given: &[&str]) -> (Vec<BTreeSet<usize>>, Vec<Flaw>) {
    let mut flaws = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for (second, node) in nodes.iter().enumerate() {
        match places.get(node.id) {
            Some(first) => flaws.push(Flaw::SameId { id: node.id.into(), first: *first, second }),
            None => drop(places.insert(node.id, second)),
        }
    }
    let mut all = Vec::new();
    for (at, node) in nodes.iter().enumerate() {
        let used = node.params.map(template::names).unwrap_or_default();
        let used = used.iter().map(String::as_str).filter(|name| !given.contains(name));
        let names: BTreeSet<&str> = node.after.iter().copied().chain(used).collect();
        all.push(names.iter().filter_map(|name| places.get(name).copied()).collect());
        flaws.extend(names.iter().filter(|name| !places.contains_key(*name)).map(|name| Flaw::UnknownId {
            at,
            id: node.id.into(),
            name: (*name).into(),
            known: places.keys().copied().collect::<Vec<_>>().join(", "),
        }));
    }
    flaws.extend(cycle(&all).map(|calls| {
        let path: Vec<&str> = calls.iter().chain(calls.first()).map(|at| nodes[*at].id).collect();
        Flaw::Cycle { path: path.join(" -> "), calls }
    }));
    (all, flaws)
}

/// A cycle, if there is one.
fn cycle(needs: &[BTreeSet<usize>]) -> Option<Vec<usize>> {
    let mut left: BTreeSet<usize> = (0..needs.len()).collect();
    // Take out every call that needs nothing of what is left, until that changes nothing.
    loop {
        let stuck: BTreeSet<_> = left.iter().copied().filter(|at| !needs[*at].is_disjoint(&left)).collect();
        if stuck.len() == left.len() {
            break;
        }
        left = stuck;
    }
    // Every call that is left needs another one that is left, so walking on must come back.
    let mut path = vec![*left.first()?];
    loop {
        let next = *needs[*path.last()?].intersection(&left).next()?;
        match path.iter().position(|at| *at == next) {
            Some(start) => return Some(path.split_off(start)),
            None => path.push(next),
        }
    }
}

/// Calls that can be put in an order.
#[derive(Debug)]
pub struct Plan {
    calls: Vec<PlannedCall>,
    needs: Vec<BTreeSet<usize>>,
    /// The ids that templates take something from.
    used: BTreeSet<String>,
}

impl Plan {
    /// Checks calls. `given` are names that templates may use beside the calls' ids.
    pub fn new(mut calls: Vec<PlannedCall>, given: &[&str]) -> Result<Self, Flaw> {
        for (at, call) in calls.iter_mut().enumerate().filter(|(_, call)| call.id.is_empty()) {
            call.id = (at + 1).to_string();
        }
        let nodes: Vec<Node<'_>> = calls
            .iter()
            .map(|call| Node {
                id: &call.id,
                after: call.after.iter().map(String::as_str).collect(),
                params: Some(&call.params),
            })
            .collect();
        let (needs, flaws) = needs(&nodes, given);
        if let Some(flaw) = flaws.into_iter().next() {
            return Err(flaw);
        }
        let used = calls.iter().flat_map(|call| template::names(&call.params)).collect();
        Ok(Self { calls, needs, used })
    }

    /// The calls, in the order given.
    pub fn calls(&self) -> &[PlannedCall] {
        &self.calls
    }

    /// The calls that one needs.
    pub(super) fn needs(&self, at: usize) -> &BTreeSet<usize> {
        &self.needs[at]
    }

    /// Whether another call takes something from the result of this one.
    pub fn is_used(&self, at: usize) -> bool {
        self.used.contains(&self.calls[at].id)
    }
}
