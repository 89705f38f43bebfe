//! Calls that depend on each other, without IO: a plan of calls, and the effects of each event in a run.
//!
//! [`Plan`] holds calls with unique ids and existing dependencies, without cycles. [`Schedule`] is one run of
//! a plan: its driver reports events, and `step` returns effects. The items of a `for_each` form a plan of
//! their own. This room knows ids, dependencies, templates and the paths of jq filters. It knows nothing
//! about tools, servers or the gateway, and never waits.

mod plan;
mod schedule;
#[cfg(test)]
mod tests;
mod when;

pub use plan::{CallKind, OnError, Plan, PlanFlaw, PlanNode, PlannedCall, Retry, needs};
pub use schedule::{HoldReason, Pace, Schedule, ScheduleEffect, ScheduleEvent, StepOutcome};
pub use when::{StepReferences, reads_item};

/// The name of the input in the templates of an app's workflow.
pub const INPUT: &str = "input";
/// The name of an item in the templates of a call with `for_each`.
pub const ITEM: &str = "item";
/// The name of an item's position, counted from 0, in the same templates.
pub const INDEX: &str = "index";
/// What a call with a `filter` is called where others have the name of a tool.
pub const FILTER: &str = "filter";
/// The maximum number of items in a `for_each`.
pub const MAX_ITEMS: usize = 1_000;
