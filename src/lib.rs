//! Nonet: one MCP server in front of all of a user's MCP servers.
//!
//! Start at [`gateway`]; ARCHITECTURE.md has the map.

mod aliases;
pub mod answers;
pub mod approvals;
#[cfg(test)]
mod architecture;
pub mod audit;
pub mod bridge;
pub mod catalog;
mod chat;
pub mod cli;
mod cluster;
pub mod config;
mod doors;
pub mod downstream;
mod fault;
mod figures;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod gateway;
pub mod hosts;
mod jobs;
mod kept;
pub mod keyring;
pub mod leaks;
mod learning;
mod memory;
pub mod meta;
pub mod metrics;
pub mod name;
pub mod oauth;
pub mod outward;
mod pins;
pub mod policy;
pub mod prompts_resources;
pub mod prose;
mod quotas;
pub mod rates;
mod reloads;
pub mod rest;
mod results;
mod sandbox;
mod secrets;
pub mod secrets_file;
mod select;
pub mod serve;
pub mod shared;
pub mod shell;
mod skills;
mod store;
mod template;
mod timetable;
pub mod trace;
mod trusted_files;
mod turns;
pub mod watches;
pub mod wire;
mod workflow;

// Separate crates (crates/), under the names of rooms.
pub use nonet_base::{allocator, clock, disguises, files, json, persistent, text, variables, words};
pub use nonet_schema as schema;
pub use nonet_search as search;
use nonet_search::verbs;
