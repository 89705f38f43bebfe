//! What it costs to publish a catalogue, from nothing and when one server's list changes. Without vectors.
//!
//! `cargo bench --bench publish`

use std::{path::Path, sync::Arc};

use nonet::{
    catalog::{Listing, Source},
    config::{self, Config},
    gateway::Snapshot,
};
use serde_json::{Value, json};

const SIZES: [usize; 3] = [1_000, 10_000, 30_000];
/// Tools of one server.
const EACH: usize = 20;

fn main() {
    divan::main();
}

fn config() -> Config {
    config::parse("", Path::new("servers.toml"), config::Sources::NONE).expect("it is usable").config
}

/// `size` tools: the recorded ones over and over, each time with other words.
fn sources(size: usize) -> Vec<Source> {
    let lines = include_str!("../tests/data/tools.jsonl").lines();
    let recorded: Vec<Value> = lines.map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let server = |number: usize| {
        let tools = (number * EACH..(number + 1) * EACH).map(|at| {
            let tool = &recorded[at % recorded.len()];
            let name = format!("{}_{}", tool["name"].as_str().unwrap_or_default(), at / recorded.len());
            let said = format!("{} Word{at}.", tool["description"].as_str().unwrap_or_default());
            Arc::new(json!({ "name": name, "description": said, "inputSchema": tool["input_schema"] }))
        });
        let listing = Arc::new(Listing { tools: tools.collect(), ..Listing::default() });
        Source { server: format!("server{number}").into(), listing, settings: None }
    };
    (0..size / EACH).map(server).collect()
}

#[divan::bench(args = SIZES, sample_count = 5)]
fn from_nothing(bencher: divan::Bencher<'_, '_>, size: usize) {
    let (config, sources) = (config(), sources(size));
    bencher.bench(|| Snapshot::empty(&config).updated(sources.clone(), &config, 1));
}

/// One tool of one server has another description, and one more is listed.
#[divan::bench(args = SIZES, sample_count = 20)]
fn one_list_changes(bencher: divan::Bencher<'_, '_>, size: usize) {
    let (config, mut sources) = (config(), sources(size));
    let snapshot = Snapshot::empty(&config).updated(sources.clone(), &config, 1);
    let changed = &mut sources[size / EACH / 2];
    let mut listing = Listing::clone(&changed.listing);
    listing.tools[3] = Arc::new(json!({ "name": "another", "description": "Sends a postcard to a friend" }));
    listing.tools.push(Arc::new(json!({ "name": "one_more", "description": "Waters the plants" })));
    changed.listing = Arc::new(listing);
    bencher.bench(|| snapshot.updated(sources.clone(), &config, 2));
}
