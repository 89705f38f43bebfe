//! Calls that depend on each other, without IO: which calls there are, and what each event of a run leads to.
//!
//! [`Plan`] holds calls whose ids are unique, whose needs exist and which have no cycle. [`Schedule`] is one run of a plan:
//! its driver reports events, and `step` answers with effects. This room knows ids, dependencies and templates. It has not
//! heard of tools, servers or the gateway, and it never waits.

mod plan;
mod schedule;
#[cfg(test)]
mod tests;

pub use plan::{Flaw, Node, Plan, PlannedCall, needs};
pub use schedule::{Effect, Event, Pace, Schedule};

/// The name that the templates of an app's workflow know the input by.
pub const INPUT: &str = "input";
