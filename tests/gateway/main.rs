//! Tests of the whole gateway, from the view of clients, servers and people.
//!
//! There are three ways in. [`setup::Setup::open`] makes a gateway in this process, with scripted servers at
//! the other end of a pipe. `Setup::start` and `Setup::serve` also let a client talk to it, over lines or
//! HTTP. `Setup::start_program` and `Setup::serve_program` run the `nonet` program, for tests of processes,
//! signals, files and the log. Search by meaning is off in all of them (by a missing model), except where a
//! test is about it, so that no test waits for vectors.

#![expect(unreachable_pub, reason = "a program of tests has no face")]
#![expect(clippy::disallowed_methods, reason = "a queue of a test ends with it")]
#![allow(clippy::unwrap_used)] // A test may panic.

mod client;
#[path = "../fake/mod.rs"]
mod fake;
mod hosted;
mod inside;
mod model_service;
mod setup;
mod sign_in_service;
mod web;

mod accounts;
mod adding;
mod any_tool;
mod approving;
mod approving_elsewhere;
mod apps;
mod asking;
mod auditing;
mod background;
mod beginning;
mod book;
mod bridging;
mod calls;
mod cancelling;
mod catalogue;
mod check;
mod client_limits;
mod cluster;
mod cluster_limits;
mod cluster_load;
mod command_line;
mod correcting;
mod discovering;
mod doctor;
mod examples;
mod exporting;
mod exposing;
mod figures;
mod first_answers;
mod flows;
mod folder_files;
mod found;
mod graphs;
mod guided;
mod handshake;
mod hostile_door;
mod hostile_wire;
mod hosts;
mod http2;
mod http_clients;
mod http_servers;
mod http_streams;
mod impostors;
mod keeping;
mod large_results;
mod lazy_model;
mod leaks;
mod learning;
mod left_out;
mod limiting;
mod lists;
mod load;
mod managing;
mod many_calls;
mod model_apps;
mod moving_in;
mod names;
mod next_steps;
mod notices;
mod outside_text;
mod outward;
mod oversized;
mod page;
mod page_work;
mod parallel;
mod params;
mod passing;
mod people;
mod placement;
mod plain_answers;
mod policies;
mod profiles;
mod quotas;
mod reading_rules;
mod registry;
mod registry_service;
mod reloading;
mod remembering;
mod rest_servers;
mod revisions;
mod rules;
mod runtime_servers;
mod same_bytes;
#[cfg(target_os = "linux")]
mod sandboxing;
mod scheduling;
mod scripts;
mod scripts_killed;
mod scripts_ruled;
mod secrets;
mod server_changes;
mod server_faults;
mod sharing;
mod shell;
mod signing_in;
mod skills;
mod sse_servers;
mod stopping;
mod tasks;
mod tokens;
#[cfg(feature = "otel")]
mod tracing;
mod transfer;
mod trusting;
mod user_interfaces;
mod user_page;
mod values;
mod watching;
