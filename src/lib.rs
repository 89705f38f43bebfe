//! Nonet: one MCP server in front of all of a user's MCP servers.
//!
//! This package is the program: its commands, and the transports on which the gateway is an MCP server. The
//! gateway itself is the crate `nonet-core`. ARCHITECTURE.md has the map.

#[cfg(test)]
mod architecture;
pub mod cli;
pub mod serve;
