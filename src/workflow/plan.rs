//! Which calls there are, and which calls each one needs.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;

use super::{INDEX, ITEM, StepsRead};
use crate::template;

/// One call of a plan.
#[derive(Clone, Debug, Default, serde::Deserialize)]
pub struct PlannedCall {
    /// Its id in `after` and in templates; its position if absent.
    #[serde(default)]
    pub id: String,
    /// What is called: a tool under any of its names, or an app.
    pub name: String,
    /// Its params, with templates.
    #[serde(default)]
    pub params: Value,
    /// Calls that must have ended before.
    #[serde(default)]
    pub after: Vec<String>,
    /// A jq filter over `{input, steps}`: if none of its outputs is true, the call is skipped.
    pub when: Option<String>,
    /// A template of an array: the call is made for each of its items, and its value is the array of their values.
    pub for_each: Option<Value>,
    /// How many items run at a time.
    pub max_concurrency: Option<usize>,
    /// What the failure of an item leads to.
    #[serde(default)]
    pub on_error: OnError,
    /// The hard limit of one call, instead of its server's.
    pub timeout_ms: Option<u64>,
    /// A jq filter on its value, for the report and for what other calls take from it.
    pub select: Option<String>,
    /// Whether its dependants run even if it fails: they see `null`.
    #[serde(skip)]
    pub optional: bool,
    /// What is called.
    #[serde(skip)]
    pub kind: CallKind,
    /// When a failed call is made again.
    #[serde(skip)]
    pub retry: Option<Retry>,
}

/// What a planned call calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallKind {
    #[default]
    Tool,
    App,
    /// The user.
    Ask,
}

/// What the failure of one item of a `for_each` leads to.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// No more items start, and the step fails.
    #[default]
    Stop,
    /// The failed item is `{error}` in its place.
    Keep,
}

/// When a failed call is made again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// How often at most.
    pub times: usize,
    /// The pause before the first time; each further pause is twice as long.
    pub wait: Duration,
    /// The codes of the faults after which it is.
    pub on: Vec<&'static str>,
}

impl PlannedCall {
    /// What counts for its order.
    fn node(&self) -> Node<'_> {
        Node {
            id: &self.id,
            after: self.after.iter().map(String::as_str).collect(),
            templates: vec![&self.params],
            for_each: self.for_each.as_ref(),
            when: self.when.as_deref(),
        }
    }
}

/// What counts for the order of one call.
#[derive(Clone, Default)]
pub struct Node<'a> {
    pub id: &'a str,
    pub after: Vec<&'a str>,
    /// What has templates: params, the input of an app, a question.
    pub templates: Vec<&'a Value>,
    pub for_each: Option<&'a Value>,
    pub when: Option<&'a str>,
}

impl Node<'_> {
    /// The names that its templates use, without those of an item.
    fn used(&self) -> BTreeSet<String> {
        let mut used: BTreeSet<String> =
            self.templates.iter().flat_map(|value| template::names(value)).collect();
        if let Some(list) = self.for_each {
            used.retain(|name| name != ITEM && name != INDEX);
            used.extend(template::names(list));
        }
        used
    }
}

/// Why calls are not a plan. Calls are named by position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// Two calls have the same id.
    #[error("Two actions have the id `{id}`; give each its own.")]
    SameId { id: String, first: usize, second: usize },
    /// A call needs the id `name`, which no call has.
    #[error(
        "The action `{id}` refers to `{name}`, which is none of the actions ({known}){}.",
        only_of_items(name)
    )]
    UnknownId { at: usize, id: String, name: String, known: String },
    /// Calls that need each other, each followed by one that it needs.
    #[error("Circular dependency of actions: {path}.")]
    Cycle { calls: Vec<usize>, path: String },
}

/// What is said of the name of an item where there are no items.
fn only_of_items(name: &str) -> &'static str {
    if name == ITEM || name == INDEX { "; an action has items with `for_each`" } else { "" }
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
    let mut all: Vec<BTreeSet<usize>> = Vec::new();
    let reads: Vec<StepsRead> =
        nodes.iter().map(|node| node.when.map(StepsRead::of).unwrap_or_default()).collect();
    for (at, (node, read)) in nodes.iter().zip(&reads).enumerate() {
        let used = node.used();
        let used = used.iter().map(String::as_str).filter(|name| !given.contains(name));
        let read = read.named.iter().map(String::as_str);
        let names: BTreeSet<&str> = node.after.iter().copied().chain(used).chain(read).collect();
        all.push(names.iter().filter_map(|name| places.get(name).copied()).collect());
        flaws.extend(names.iter().filter(|name| !places.contains_key(*name)).map(|name| Flaw::UnknownId {
            at,
            id: node.id.into(),
            name: (*name).into(),
            known: places.keys().copied().collect::<Vec<_>>().join(", "),
        }));
    }
    for (at, read) in reads.iter().enumerate() {
        for need in read.perhaps.iter().filter_map(|name| places.get(name.as_str()).copied()) {
            // What needs this call itself cannot be meant.
            if !reaches(&all, need, at) {
                all[at].insert(need);
            }
        }
    }
    flaws.extend(cycle(&all).map(|calls| {
        let path: Vec<&str> = calls.iter().chain(calls.first()).map(|at| nodes[*at].id).collect();
        Flaw::Cycle { path: path.join(" -> "), calls }
    }));
    (all, flaws)
}

/// Whether a call needs another one, or is that one.
fn reaches(needs: &[BTreeSet<usize>], from: usize, to: usize) -> bool {
    let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(at) = left.pop() {
        if seen.insert(at) {
            left.extend(&needs[at]);
        }
    }
    seen.contains(&to)
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
    /// The calls that templates take something from.
    used: BTreeSet<usize>,
    /// The calls that a `when` reads.
    read: BTreeSet<usize>,
}

impl Plan {
    /// Checks calls. `given` are names that templates may use beside the calls' ids.
    pub fn new(mut calls: Vec<PlannedCall>, given: &[&str]) -> Result<Self, Flaw> {
        for (at, call) in calls.iter_mut().enumerate().filter(|(_, call)| call.id.is_empty()) {
            call.id = (at + 1).to_string();
        }
        let nodes: Vec<Node<'_>> = calls.iter().map(PlannedCall::node).collect();
        let (needs, flaws) = needs(&nodes, given);
        if let Some(flaw) = flaws.into_iter().next() {
            return Err(flaw);
        }
        let (mut used, mut read) = (BTreeSet::new(), BTreeSet::new());
        for (node, needs) in std::iter::zip(&nodes, &needs) {
            let (names, steps) = (node.used(), node.when.map(StepsRead::of).unwrap_or_default());
            used.extend(needs.iter().filter(|need| names.contains(nodes[**need].id)));
            read.extend(needs.iter().filter(|need| steps.reads(nodes[**need].id)));
        }
        Ok(Self { calls, needs, used, read })
    }

    /// So many calls that need nothing: the items of a `for_each`.
    pub fn of_items(count: usize) -> Self {
        let calls = (1..=count).map(|at| PlannedCall { id: at.to_string(), ..PlannedCall::default() });
        let needs = vec![BTreeSet::new(); count];
        Self { calls: calls.collect(), needs, used: BTreeSet::new(), read: BTreeSet::new() }
    }

    /// The calls, in the order given.
    pub fn calls(&self) -> &[PlannedCall] {
        &self.calls
    }

    /// The calls that one needs.
    pub fn needs(&self, at: usize) -> &BTreeSet<usize> {
        &self.needs[at]
    }

    /// Whether another call takes something from the result of this one.
    pub fn is_used(&self, at: usize) -> bool {
        self.used.contains(&at)
    }

    /// Whether another call sees the value of this one, in a template or in its `when`.
    pub fn is_seen(&self, at: usize) -> bool {
        self.is_used(at) || self.read.contains(&at)
    }
}
