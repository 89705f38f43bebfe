//! A search without its embedding, by catalogue size: the recorded tool lists, repeated under other server
//! names, with random unit vectors instead of embedded texts.
//!
//! `cargo bench --bench search`

use std::sync::Arc;

use nonet_search::{Boosts, Document, Index, RankingWeights, Settings};
use serde_json::Value;

const SIZES: [usize; 3] = [500, 3_000, 10_000];
const WIDTH: usize = 384;

fn main() {
    divan::main();
}

fn documents(count: usize) -> Vec<Document> {
    let text = include_str!("../tests/data/tools.jsonl");
    let tools: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    (0..count)
        .map(|n| {
            let tool = &tools[n % tools.len()];
            let field = |key: &str| tool[key].as_str().unwrap_or_default();
            let server = format!("{}{}", field("server"), n / tools.len());
            Document::from_definition(
                &format!("{server}.{}", field("name")),
                &server,
                field("name"),
                "",
                field("description"),
                &tool["input_schema"],
                Vec::new(),
                "",
            )
        })
        .collect()
}

/// Returns a unit vector that depends only on `seed` (xorshift).
fn vector(seed: usize) -> Arc<[f32]> {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let values: Vec<f32> = (0..WIDTH)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1_u64 << 24) as f32 - 0.5
        })
        .collect();
    let length = values.iter().map(|value| value * value).sum::<f32>().sqrt();
    values.iter().map(|value| value / length).collect()
}

#[divan::bench(args = SIZES)]
fn by_keywords(bencher: divan::Bencher<'_, '_>, size: usize) {
    let index = Index::new(documents(size), &Settings::default());
    bencher.bench(|| {
        index.search(
            &index.parse("list the open pull requests of a repository"),
            5,
            &|_| true,
            &Boosts::new(),
        )
    });
}

#[divan::bench(args = SIZES)]
fn by_meaning_and_keywords(bencher: divan::Bencher<'_, '_>, size: usize) {
    let index = Index::new(documents(size), &Settings::default());
    let index = index.with_vectors((0..size).map(vector).map(Some).collect());
    bencher.bench(|| {
        let query = index.parse("list the open pull requests of a repository");
        let vectors = query.texts().iter().enumerate().map(|(n, _)| vector(n * 31)).collect();
        index.search(&query.with_vectors(vectors), 5, &|_| true, &Boosts::new())
    });
}

#[divan::bench(args = SIZES, sample_count = 5)]
fn build_without_vectors(bencher: divan::Bencher<'_, '_>, size: usize) {
    bencher
        .with_inputs(|| documents(size))
        .bench_values(|documents| Index::new(documents, &Settings::default()));
}

/// Returns an index of a user's facts, searched as by `gateway.recall`.
fn facts(count: usize) -> Index {
    let settings =
        Settings { weights: &RankingWeights::PROSE, hnsw_above: usize::MAX, ..Settings::default() };
    let fact = |(number, tool): (usize, Document)| {
        Document::prose(&format!("fact-{number}"), &tool.description, vec![tool.name.to_string()])
    };
    Index::new(documents(count).into_iter().enumerate().map(fact).collect(), &settings)
}

#[divan::bench(args = SIZES)]
fn facts_by_meaning(bencher: divan::Bencher<'_, '_>, size: usize) {
    let index = facts(size).with_vectors((0..size).map(|number| Some(vector(number))).collect());
    bencher.bench(|| {
        let query = index.parse("which day do we deploy on").with_vectors(vec![vector(7)]);
        index.search(&query, 5, &|_| true, &Boosts::new())
    });
}

#[divan::bench(args = SIZES)]
fn one_more_fact(bencher: divan::Bencher<'_, '_>, size: usize) {
    let settings =
        Settings { weights: &RankingWeights::PROSE, hnsw_above: usize::MAX, ..Settings::default() };
    let index = facts(size);
    let vectors: Vec<Option<Arc<[f32]>>> = (0..=size).map(|number| Some(vector(number))).collect();
    bencher.bench(|| {
        let mut documents = index.documents().to_vec();
        documents.push(Arc::new(Document::prose("one", "Deploys are on Tuesdays", Vec::new())));
        index.updated(documents, &settings).with_vectors(vectors.clone())
    });
}
