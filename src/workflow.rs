//! Calls that depend on each other, without IO: which calls there are, and what each event of a run leads to.
//!
//! [`Plan`] holds calls whose ids are unique, whose needs exist and which have no cycle. [`Schedule`] is one run of a plan:
//! its driver reports events, and `step` answers with effects. The items of a `for_each` are a plan of their own. This room
//! knows ids, dependencies, templates and the paths of jq filters. It has not heard of tools, servers or the gateway, and it
//! never waits.

mod plan;
mod schedule;
#[cfg(test)]
mod tests;
mod when;

pub use plan::{CallKind, Flaw, Node, OnError, Plan, PlannedCall, Retry, needs};
pub use schedule::{CallOutcome, Effect, Event, Pace, Reason, Schedule};
pub use when::StepsRead;

/// The name that the templates of an app's workflow know the input by.
pub const INPUT: &str = "input";
/// The names that the templates of a call with `for_each` know an item and its position by.
pub const ITEM: &str = "item";
pub const INDEX: &str = "index";
/// How many items a `for_each` takes.
pub const MAX_ITEMS: usize = 1_000;
