//! Nonet: one MCP server in front of all of a user's MCP servers.
//!
//! [`gateway`] is the place to begin; ARCHITECTURE.md has the map.

#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod answers;
pub mod bridge;
pub mod catalog;
pub mod cli;
pub mod clock;
pub mod config;
pub mod downstream;
pub mod fault;
pub mod files;
pub mod gateway;
pub mod hosts;
pub mod jobs;
pub mod keyring;
pub mod memory;
pub mod meta;
pub mod metrics;
pub mod name;
pub mod oauth;
pub mod passed;
pub mod policy;
pub mod prose;
pub mod results;
pub mod schema;
pub mod search;
pub mod secrets_file;
pub mod select;
pub mod serve;
pub mod shared;
pub mod shell;
pub mod skills;
pub mod store;
pub mod template;
pub mod text;
pub mod trace;
mod verbs;
pub mod wire;
