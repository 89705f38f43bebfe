//! The calls of a plan, and the dependencies of each.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use nonet_text::template;
use serde_json::{Value, json};

use super::{INDEX, ITEM, StepReferences};

/// One call of a plan.
#[derive(Clone, Debug, Default, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedCall {
    /// Its id in `after` and in templates; by default its position.
    #[serde(default)]
    pub id: String,
    /// A tool under any of its names, or an app; empty for a call with a `filter`.
    #[serde(default)]
    pub name: String,
    /// Its params, with templates.
    #[serde(default)]
    pub params: Value,
    /// Calls that must end before this one.
    #[serde(default)]
    pub after: Vec<String>,
    /// A jq filter over `{input, steps}`: the call is skipped if none of the filter's outputs is true. If the
    /// filter reads `.item`, it decides for each item of the `for_each`.
    pub when: Option<String>,
    /// A template of an array: the call is made for each of its items, and its value is the array of their
    /// values.
    pub for_each: Option<Value>,
    /// How many items run at a time.
    pub max_concurrency: Option<usize>,
    /// What happens if the call fails, or one of its items.
    #[serde(default)]
    pub on_error: OnError,
    /// When a failed call is retried.
    pub retry: Option<Retry>,
    /// The hard limit of one call, replacing its server's limit.
    pub timeout_ms: Option<u64>,
    /// A jq filter for its value, which applies to the report and to the value that other calls use.
    pub select: Option<String>,
    /// A jq filter over `{input, steps}` instead of a tool: its output is the value.
    pub filter: Option<String>,
    /// Whether its result is shown although other calls use it.
    #[serde(default)]
    pub show: bool,
    /// Whether its dependants run even if it fails: they see `null`, or `{error}` with `on_error = "keep"`.
    #[serde(skip)]
    pub optional: bool,
    /// The kind of the callee.
    #[serde(skip)]
    pub kind: CallKind,
}

/// The kind of a planned call's callee.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallKind {
    /// A tool, or an app under the name of a tool; also a call with a `filter`.
    #[default]
    Tool,
    /// An app, named by its id.
    App,
    /// The user.
    Ask,
}

/// What the failure of a call leads to, or the failure of one item of its `for_each`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// No more items start, and the step fails; its dependants do not run.
    #[default]
    Stop,
    /// The failed call or item is `{error}` in its place, and dependants run.
    Keep,
}

/// When a failed call is retried.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(try_from = "Value", into = "RetryTable")]
pub struct Retry {
    /// The maximum number of retries.
    pub times: usize,
    /// The pause before the first retry; each further pause is twice as long.
    pub wait: Duration,
    /// The fault codes that allow a retry; if empty, those that are retryable.
    pub on: Vec<String>,
}

/// A retry as written: this table, or only the number of times.
#[derive(Default, serde::Deserialize, serde::Serialize)]
#[serde(default, deny_unknown_fields)]
struct RetryTable {
    times: Option<usize>,
    wait: Option<String>,
    on: Vec<String>,
}

impl Retry {
    /// The number of retries if `times` is not given.
    pub const TIMES: usize = 3;
    /// The maximum number of retries that a plan may ask for.
    pub const MAX_TIMES: usize = 10;
    /// The pause before the first retry if `wait` is not given.
    pub const WAIT: Duration = Duration::from_secs(1);
}

impl TryFrom<Value> for Retry {
    type Error = String;

    fn try_from(given: Value) -> Result<Self, String> {
        let given = if given.is_number() { json!({ "times": given }) } else { given };
        let RetryTable { times, wait, on } = serde_json::from_value(given)
            .map_err(|error| format!("`retry` is {{times, wait, on}}: {error}"))?;
        let times = times.unwrap_or(Self::TIMES);
        if !(1..=Self::MAX_TIMES).contains(&times) {
            return Err(format!("`retry.times` is {times}; give 1 to {}", Self::MAX_TIMES));
        }
        let wait = match wait {
            Some(text) => humantime::parse_duration(&text)
                .map_err(|_| format!("`retry.wait` is `{text}`; give a time with a unit, such as `2s`"))?,
            None => Self::WAIT,
        };
        Ok(Self { times, wait, on })
    }
}

impl From<Retry> for RetryTable {
    fn from(retry: Retry) -> Self {
        let wait = humantime::format_duration(retry.wait).to_string();
        Self { times: Some(retry.times), wait: Some(wait), on: retry.on }
    }
}

impl PlannedCall {
    /// Returns the parts that determine its order.
    fn node(&self) -> PlanNode<'_> {
        PlanNode {
            id: &self.id,
            after: self.after.iter().map(String::as_str).collect(),
            templates: vec![&self.params],
            for_each: self.for_each.as_ref(),
            when: self.when.as_deref(),
            filter: self.filter.as_deref(),
        }
    }
}

/// The parts of a call that determine its order.
#[derive(Clone, Default)]
pub struct PlanNode<'a> {
    /// Its id, by which the other calls refer to it.
    pub id: &'a str,
    /// The ids of calls that must end before this one, whether or not it uses their values.
    pub after: Vec<&'a str>,
    /// The values with templates: params, the input of an app, a question.
    pub templates: Vec<&'a Value>,
    /// The template of the array whose items it is called for, which may use other calls' values.
    pub for_each: Option<&'a Value>,
    /// The jq filter that decides whether the call is made. The steps that it reads are dependencies.
    pub when: Option<&'a str>,
    /// The jq filter that the call runs instead of a tool. The steps that it reads are dependencies.
    pub filter: Option<&'a str>,
}

impl PlanNode<'_> {
    /// Returns the names that its templates use, except those of an item.
    fn used(&self) -> BTreeSet<String> {
        let mut used: BTreeSet<String> =
            self.templates.iter().flat_map(|value| template::names(value)).collect();
        if let Some(list) = self.for_each {
            used.retain(|name| name != ITEM && name != INDEX);
            used.extend(template::names(list));
        }
        used
    }

    /// Returns the steps that its filter reads.
    fn filtered(&self) -> StepReferences {
        self.filter.map(StepReferences::of).unwrap_or_default()
    }
}

/// Why calls do not form a plan. Calls are identified by position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanFlaw {
    /// Two calls have the same id.
    #[error("Two actions have the id `{id}`; give each its own.")]
    SameId {
        /// The repeated id.
        id: String,
        /// The position of the call that has the id first.
        first: usize,
        /// The position of the call that repeats it.
        second: usize,
    },
    /// A call needs the id `name`, which does not exist.
    #[error(
        "The action `{id}` refers to `{name}`, which is none of the actions ({known}){}{}.",
        only_of_items(name),
        literally(name, *in_template && only_of_items(name).is_empty())
    )]
    UnknownId {
        /// The position of the call that refers to the missing one.
        at: usize,
        /// The id of the call at that position.
        id: String,
        /// The id that does not exist.
        name: String,
        /// The existing ids, joined by commas.
        known: String,
        /// Whether a template names it.
        in_template: bool,
    },
    /// Calls that need each other, in the order of their dependencies.
    #[error("Circular dependency of actions: {path}.")]
    Cycle {
        /// The positions of the calls; the last one needs the first.
        calls: Vec<usize>,
        /// The ids of the calls, joined by arrows; begins and ends with the same id.
        path: String,
    },
}

/// Explains an item's name in a place without items.
fn only_of_items(name: &str) -> &'static str {
    if name == ITEM || name == INDEX { "; an action has items with `for_each`" } else { "" }
}

/// Explains how to write the text of a template that has no other meaning.
fn literally(name: &str, in_template: bool) -> String {
    match in_template {
        true => format!("; the text itself is written `{{{{literal:{name}}}}}`"),
        false => String::new(),
    }
}

/// Returns the dependencies of each of `nodes`, and every flaw. `given` are names for templates in addition
/// to the ids.
pub fn needs(nodes: &[PlanNode<'_>], given: &[&str]) -> (Vec<BTreeSet<usize>>, Vec<PlanFlaw>) {
    let mut flaws = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for (second, node) in nodes.iter().enumerate() {
        match places.get(node.id) {
            Some(first) => flaws.push(PlanFlaw::SameId { id: node.id.into(), first: *first, second }),
            None => drop(places.insert(node.id, second)),
        }
    }
    let mut all: Vec<BTreeSet<usize>> = Vec::new();
    let reads: Vec<StepReferences> = nodes
        .iter()
        .map(|node| node.when.map(StepReferences::of).unwrap_or_default().and(node.filtered()))
        .collect();
    for (at, (node, read)) in nodes.iter().zip(&reads).enumerate() {
        let used = node.used();
        let used: BTreeSet<&str> =
            used.iter().map(String::as_str).filter(|name| !given.contains(name)).collect();
        let read = read.named.iter().map(String::as_str);
        let names: BTreeSet<&str> =
            node.after.iter().copied().chain(used.iter().copied()).chain(read).collect();
        all.push(names.iter().filter_map(|name| places.get(name).copied()).collect());
        flaws.extend(names.iter().filter(|name| !places.contains_key(*name)).map(|name| {
            PlanFlaw::UnknownId {
                at,
                id: node.id.into(),
                name: (*name).into(),
                known: places.keys().copied().collect::<Vec<_>>().join(", "),
                in_template: used.contains(*name),
            }
        }));
    }
    for (at, read) in reads.iter().enumerate() {
        for need in read.perhaps.iter().filter_map(|name| places.get(name.as_str()).copied()) {
            // A call that depends on this one cannot be meant.
            if !reaches(&all, need, at) {
                all[at].insert(need);
            }
        }
    }
    for (at, node) in nodes.iter().enumerate() {
        // A filter over all steps that waits for none means those before it.
        if all[at].is_empty() && node.filtered().all {
            all[at] = (0..at).filter(|need| !reaches(&all, *need, at)).collect();
        }
    }
    flaws.extend(cycle(&all).map(|calls| {
        let path: Vec<&str> = calls.iter().chain(calls.first()).map(|at| nodes[*at].id).collect();
        PlanFlaw::Cycle { path: path.join(" -> "), calls }
    }));
    (all, flaws)
}

/// Whether a call depends on another one, or is the same.
fn reaches(needs: &[BTreeSet<usize>], from: usize, to: usize) -> bool {
    let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(at) = left.pop() {
        if seen.insert(at) {
            left.extend(&needs[at]);
        }
    }
    seen.contains(&to)
}

/// Returns a cycle, if there is one.
fn cycle(needs: &[BTreeSet<usize>]) -> Option<Vec<usize>> {
    let mut left: BTreeSet<usize> = (0..needs.len()).collect();
    // Remove calls without remaining dependencies until nothing changes.
    loop {
        let stuck: BTreeSet<_> = left.iter().copied().filter(|at| !needs[*at].is_disjoint(&left)).collect();
        if stuck.len() == left.len() {
            break;
        }
        left = stuck;
    }
    // Every remaining call depends on another remaining one, so following the dependencies leads back.
    let mut path = vec![*left.first()?];
    loop {
        let next = *needs[*path.last()?].intersection(&left).next()?;
        match path.iter().position(|at| *at == next) {
            Some(start) => return Some(path.split_off(start)),
            None => path.push(next),
        }
    }
}

/// Calls in a valid order of dependencies.
#[derive(Debug)]
pub struct Plan {
    calls: Vec<PlannedCall>,
    needs: Vec<BTreeSet<usize>>,
    /// The calls whose results templates and filters use, and the calls that use them.
    users: BTreeMap<usize, Vec<usize>>,
    /// The calls that a `when` reads.
    read: BTreeSet<usize>,
}

impl Plan {
    /// Checks calls and creates their plan. `given` are names for templates in addition to the calls' ids.
    pub fn new(mut calls: Vec<PlannedCall>, given: &[&str]) -> Result<Self, PlanFlaw> {
        for (at, call) in calls.iter_mut().enumerate() {
            if call.id.is_empty() {
                call.id = (at + 1).to_string();
            }
            // A blank filter is none.
            for filter in [&mut call.when, &mut call.select, &mut call.filter] {
                filter.take_if(|filter| filter.trim().is_empty());
            }
            call.optional |= call.on_error == OnError::Keep && call.for_each.is_none();
        }
        let nodes: Vec<PlanNode<'_>> = calls.iter().map(PlannedCall::node).collect();
        let (needs, flaws) = needs(&nodes, given);
        if let Some(flaw) = flaws.into_iter().next() {
            return Err(flaw);
        }
        let (mut users, mut read) = (BTreeMap::<usize, Vec<usize>>::new(), BTreeSet::new());
        for (at, (node, needs)) in std::iter::zip(&nodes, &needs).enumerate() {
            let (names, filtered) = (node.used(), node.filtered());
            let when = node.when.map(StepReferences::of).unwrap_or_default();
            for need in needs {
                let id = nodes[*need].id;
                if names.contains(id) || filtered.reads(id) {
                    users.entry(*need).or_default().push(at);
                }
                if when.reads(id) {
                    read.insert(*need);
                }
            }
        }
        Ok(Self { calls, needs, users, read })
    }

    /// Creates a plan of independent calls: the items of a `for_each`.
    pub fn of_items(count: usize) -> Self {
        let calls = (1..=count).map(|at| PlannedCall { id: at.to_string(), ..PlannedCall::default() });
        let needs = vec![BTreeSet::new(); count];
        Self { calls: calls.collect(), needs, users: BTreeMap::new(), read: BTreeSet::new() }
    }

    /// Returns the calls in the given order.
    pub fn calls(&self) -> &[PlannedCall] {
        &self.calls
    }

    /// Returns the dependencies of a call.
    pub fn needs(&self, at: usize) -> &BTreeSet<usize> {
        &self.needs[at]
    }

    /// Whether another call uses this one's result.
    pub fn is_used(&self, at: usize) -> bool {
        self.users.contains_key(&at)
    }

    /// Returns the ids of the calls that use this one's result.
    pub fn users(&self, at: usize) -> impl Iterator<Item = &str> {
        self.users.get(&at).into_iter().flatten().map(|user| self.calls[*user].id.as_str())
    }

    /// Whether another call uses this one's value in a template, its `filter` or its `when`.
    pub fn is_seen(&self, at: usize) -> bool {
        self.is_used(at) || self.read.contains(&at)
    }
}
