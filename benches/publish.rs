//! The cost of publishing a catalogue of a hundred servers: from scratch, and when one server adds a tool.
//! Measures each part separately and all together; the vectors are made up.
//!
//! `cargo bench --bench publish`

use std::{path::Path, sync::Arc};

use divan::Bencher;
use nonet_config::{self as config, Config};
use nonet_search::{Document, Graph, Index};
use nonet_servers::catalog::{Catalog, CatalogSource, Listing};
use nonet_state::snapshot::Snapshot;
use nonet_text::name::Namespaces;
use serde_json::{Value, json};

const SIZES: [usize; 3] = [1_000, 10_000, 100_000];
const SERVERS: usize = 100;
/// The width of a vector.
const WIDTH: usize = 384;
/// Vectors in the graph: building a larger graph takes minutes.
const IN_GRAPH: usize = 500;

fn main() {
    divan::main();
}

fn config() -> Config {
    let text = "[embedder]\nhnsw_above = 100\n";
    let config = config::parse(text, Path::new("servers.toml"), config::ValueSources::NONE);
    config.expect("it is usable").config
}

/// Returns `size` tools: the recorded ones repeated, with different words each time.
fn sources(size: usize) -> Vec<CatalogSource> {
    let lines = include_str!("../tests/data/tools.jsonl").lines();
    let recorded: Vec<Value> = lines.map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let each = size / SERVERS;
    let server = |number: usize| {
        let tools = (number * each..(number + 1) * each).map(|at| {
            let tool = &recorded[at % recorded.len()];
            let name = format!("{}_{}", tool["name"].as_str().unwrap_or_default(), at / recorded.len());
            let said = format!("{} Word{at}.", tool["description"].as_str().unwrap_or_default());
            Arc::new(json!({ "name": name, "description": said, "inputSchema": tool["input_schema"] }))
        });
        let listing = Arc::new(Listing { tools: tools.collect(), ..Listing::default() });
        CatalogSource { server: format!("server{number}").into(), listing, settings: None }
    };
    (0..SERVERS).map(server).collect()
}

/// Adds one tool to the server in the middle.
fn with_one_more(sources: &[CatalogSource]) -> Vec<CatalogSource> {
    let mut sources = sources.to_vec();
    let changed = &mut sources[SERVERS / 2];
    let mut listing = Listing::clone(&changed.listing);
    listing.tools.push(Arc::new(json!({ "name": "one_more", "description": "Waters the plants" })));
    changed.listing = Arc::new(listing);
    sources
}

fn names(sources: &[CatalogSource]) -> Arc<Namespaces> {
    Arc::new(Namespaces::new(sources.iter().map(|source| &*source.server)))
}

/// A case: `before` and `after` a tool is added, with the documents of both.
struct Case {
    config: Config,
    before: Snapshot,
    sources: Vec<CatalogSource>,
    documents: Vec<Arc<Document>>,
}

fn case(size: usize) -> Case {
    let (config, sources) = (config(), sources(size));
    let before = Snapshot::empty(&config).updated(sources.clone(), &config, 1);
    let sources = with_one_more(&sources);
    let documents = before.updated(sources.clone(), &config, 2).index.documents().to_vec();
    Case { config, before, sources, documents }
}

#[divan::bench_group(sample_count = 2)]
mod from_nothing {
    use super::*;

    #[divan::bench(args = SIZES)]
    fn all(bencher: Bencher<'_, '_>, size: usize) {
        let (config, sources) = (config(), sources(size));
        bencher.bench(|| Snapshot::empty(&config).updated(sources.clone(), &config, 1));
    }

    #[divan::bench(args = SIZES)]
    fn catalogue(bencher: Bencher<'_, '_>, size: usize) {
        let (config, sources) = (config(), sources(size));
        let names = names(&sources);
        bencher.bench(|| Catalog::default().updated(sources.clone(), &config.policies, &names));
    }

    #[divan::bench(args = SIZES)]
    fn words(bencher: Bencher<'_, '_>, size: usize) {
        let case = case(size);
        let nothing = Index::new(Vec::new(), &case.config.embedder);
        bencher.bench(|| nothing.updated(case.documents.clone(), &case.config.embedder));
    }
}

#[divan::bench_group(sample_count = 20)]
mod one_tool_more {
    use super::*;

    #[divan::bench(args = SIZES)]
    fn all(bencher: Bencher<'_, '_>, size: usize) {
        let case = case(size);
        bencher.bench(|| case.before.updated(case.sources.clone(), &case.config, 2));
    }

    #[divan::bench(args = SIZES)]
    fn catalogue(bencher: Bencher<'_, '_>, size: usize) {
        let (case, sources) = (case(size), sources(size));
        let names = names(&sources);
        let before = Catalog::default().updated(sources.clone(), &case.config.policies, &names);
        let after = with_one_more(&sources);
        bencher.bench(|| before.updated(after.clone(), &case.config.policies, &names));
    }

    #[divan::bench(args = SIZES)]
    fn words(bencher: Bencher<'_, '_>, size: usize) {
        let case = case(size);
        bencher.bench(|| case.before.index.updated(case.documents.clone(), &case.config.embedder));
    }

    /// Measures known vectors, and their places in a graph.
    #[divan::bench(args = SIZES)]
    fn vectors(bencher: Bencher<'_, '_>, size: usize) {
        let case = case(size);
        let index = case.before.index.updated(case.documents.clone(), &case.config.embedder);
        let vector = |seed: usize| -> Arc<[f32]> {
            (0..WIDTH).map(|at| ((seed * 31 + at * 17) % 97) as f32 / 97.0 + seed as f32).collect()
        };
        let rows: Vec<Arc<[f32]>> = (0..case.documents.len()).map(|at| vector(at % IN_GRAPH)).collect();
        let graph = Arc::new(Graph::new(&rows[..IN_GRAPH], &|| false));
        let known: Vec<Option<Arc<[f32]>>> = rows.into_iter().map(Some).collect();
        bencher.bench(|| index.with_vectors(known.clone()).with_graph(graph.clone()));
    }
}
