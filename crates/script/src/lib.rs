//! Scripts: JavaScript that calls tools, in a process of its own.
//!
//! [`worker`] runs in that process: QuickJS, bounded in memory, stack and time, without files, network or
//! environment, and without `eval`. It knows nothing of tools: it sends [`frames`] and gets answers.
//! [`process`] is the gateway's end of these frames. [`ledger`] decides which answers of an earlier run a
//! repeated script gets, and when. [`names`] finds the tools that a text names, and [`declarations`] writes
//! tools as TypeScript. No module knows servers, sessions or the store.

pub mod declarations;
pub mod frames;
pub mod ledger;
pub mod names;
pub mod process;
pub mod worker;

#[cfg(all(test, unix))]
mod tests;

/// The argument that runs the binary as the worker of one script.
pub const SCRIPT_COMMAND: &str = "__script";
