//! What grows with the catalogue: build time, memory, search time, and the recall of the graph (HNSW)
//! relative to exact search; as a table on stdout and as a plot.
//!
//! ```sh
//! cargo bench --bench scale -- [--sizes 500,1000,...] [--plot FILE.svg] [TOOLS.jsonl,QUERIES.jsonl ...]
//! ```
//!
//! Tools come from the files (without files: the recorded ones in `tests/data`), with real embeddings. For
//! larger sizes, each further tool is a mix of two: the name of one under its own server, the description of
//! both, and a vector between theirs, nearer to the first. Requests come from the files, one text each. Times
//! exclude embedding.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use nonet_search::{Boosts, Document, Embedder, Graph, Index, Passage, Query, RankingWeights, Settings};
use plotters::prelude::*;
use serde_json::Value;

/// Requests for each figure.
const REQUESTS: usize = 200;
/// From this size on, a graph is built and compared with exact search.
const GRAPH_FROM: usize = 3_000;

struct Arguments {
    sizes: Vec<usize>,
    plot: Option<PathBuf>,
    files: Vec<(PathBuf, PathBuf)>,
}

/// A tool and its vector.
#[derive(Clone)]
struct Item {
    document: Document,
    vector: Arc<[f32]>,
}

/// The figures of one size; times in milliseconds, except `build_s` and `graph_s`.
#[derive(Default)]
struct Row {
    tools: usize,
    build_s: f64,
    memory_mb: f64,
    exact: [f64; 2],
    words: [f64; 2],
    graph_s: Option<f64>,
    graph: Option<[f64; 2]>,
    recall: Option<f64>,
}

#[tokio::main]
async fn main() {
    let arguments = arguments();
    let (items, requests) = load(&arguments.files).await;
    println!("{} tools, {} requests; p50/p95 in ms without embedding", items.len(), requests.len());
    println!(
        "{:>8} {:>9} {:>10} {:>15} {:>15} {:>9} {:>15} {:>10}",
        "tools", "index s", "memory MB", "words only", "exact", "graph s", "graph", "recall@10"
    );
    let mut rows = Vec::new();
    for &size in &arguments.sizes {
        let row = measure(&items, &requests, size);
        let pair = |pair: [f64; 2]| format!("{:.2}/{:.2}", pair[0], pair[1]);
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        println!(
            "{:>8} {:>9.2} {:>10.0} {:>15} {:>15} {:>9} {:>15} {:>10}",
            row.tools,
            row.build_s,
            row.memory_mb,
            pair(row.words),
            pair(row.exact),
            or_dash(row.graph_s.map(|seconds| format!("{seconds:.1}"))),
            or_dash(row.graph.map(pair)),
            or_dash(row.recall.map(|recall| format!("{recall:.3}"))),
        );
        rows.push(row);
    }
    if let Some(file) = &arguments.plot {
        plot(file, &rows).expect("the plot can be written");
    }
}

fn arguments() -> Arguments {
    let mut arguments = Arguments { sizes: vec![500, 1_000, 3_000, 10_000], plot: None, files: Vec::new() };
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--sizes" => {
                let sizes = given.next().expect("sizes after --sizes");
                arguments.sizes = sizes.split(',').map(|size| size.parse().expect("a number")).collect();
            }
            "--plot" => arguments.plot = Some(given.next().expect("a file after --plot").into()),
            // Cargo passes this flag to benches.
            "--bench" => {}
            pair => {
                let (tools, queries) = pair.split_once(',').expect("TOOLS.jsonl,QUERIES.jsonl");
                arguments.files.push((tools.into(), queries.into()));
            }
        }
    }
    if arguments.files.is_empty() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        arguments.files.push((data.join("tools.jsonl"), data.join("queries.jsonl")));
    }
    arguments
}

fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

async fn load(files: &[(PathBuf, PathBuf)]) -> (Vec<Item>, Vec<Query>) {
    nonet_search::bring(nonet_search::BuiltInModels {
        tools: &nonet_model::TOOLS,
        languages: &nonet_model::LANGUAGES,
    });
    let embedder = Embedder::start(&Settings::default());
    let mut items = Vec::new();
    let mut texts = Vec::new();
    for (tools, queries) in files {
        let documents: Vec<Document> = lines(tools)
            .iter()
            .map(|tool| {
                let field = |key: &str| tool[key].as_str().unwrap_or_default();
                let id = format!("{}.{}", field("server"), field("name"));
                let (server, name, about) = (field("server"), field("name"), field("description"));
                Document::from_definition(&id, server, name, "", about, &tool["input_schema"], vec![], "")
            })
            .collect();
        let passages: Vec<Passage> =
            documents.iter().map(|document| document.passage(&RankingWeights::TOOLS)).collect();
        let vectors = embedder.embed_documents(&passages, |_, _| {}).await.expect("an embedder");
        let embedded = documents.into_iter().zip(vectors);
        items.extend(embedded.filter_map(|(document, vector)| Some(Item { document, vector: vector? })));
        texts.extend(lines(queries).iter().filter_map(|query| query["query"].as_str().map(str::to_owned)));
    }
    // Spread over all files.
    let step = (texts.len() / REQUESTS).max(1);
    let mut requests = Vec::new();
    for text in texts.into_iter().step_by(step) {
        let query = Query::parse(&text, &RankingWeights::TOOLS);
        if query.texts().len() == 1 && requests.len() < REQUESTS {
            let vectors = embedder.embed_queries(&query.texts()).await.expect("an embedder");
            requests.push(query.with_vectors(vectors));
        }
    }
    (items, requests)
}

/// Returns `size` tools: the real ones, then mixes of two.
fn catalogue(items: &[Item], size: usize) -> Vec<Item> {
    let mut all: Vec<Item> = items.iter().take(size).cloned().collect();
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) as usize % below
    };
    while all.len() < size {
        let (first, second) = (&items[random(items.len())], &items[random(items.len())]);
        let share = 0.3 + 0.4 * random(1_000) as f32 / 1_000.0;
        let mixed: Vec<f32> = first.vector.iter().zip(&*second.vector).map(|(a, b)| a + share * b).collect();
        let length = mixed.iter().map(|value| value * value).sum::<f32>().sqrt();
        let group = format!("{}_{}", second.document.group, all.len() / 20);
        let document = Document {
            id: format!("{group}.{}_{}", first.document.name, all.len()).into(),
            group: group.into(),
            description: format!("{} {}", first.document.description, second.document.description),
            ..first.document.clone()
        };
        all.push(Item { document, vector: mixed.into_iter().map(|value| value / length).collect() });
    }
    all
}

fn measure(items: &[Item], requests: &[Query], size: usize) -> Row {
    let before = memory_mb();
    let (documents, vectors): (Vec<_>, Vec<_>) =
        catalogue(items, size).into_iter().map(|item| (item.document, item.vector)).unzip();
    let settings = Settings { hnsw_above: GRAPH_FROM - 1, ..Settings::default() };
    let start = Instant::now();
    let words = Index::new(documents, &settings);
    let exact = words.with_vectors(vectors.into_iter().map(Some).collect());
    let mut row = Row {
        tools: size,
        build_s: start.elapsed().as_secs_f64(),
        memory_mb: memory_mb() - before,
        words: times(&words, requests),
        exact: times(&exact, requests),
        ..Row::default()
    };
    if let Some(vectors) = exact.wants_graph() {
        let start = Instant::now();
        let graph = exact.with_graph(Arc::new(Graph::new(&vectors, &|| false)));
        row.graph_s = Some(start.elapsed().as_secs_f64());
        row.memory_mb = memory_mb() - before;
        row.graph = Some(times(&graph, requests));
        row.recall = Some(recall(&exact, &graph, requests));
    }
    row
}

/// Returns the median and the 95th percentile of the search times.
fn times(index: &Index, requests: &[Query]) -> [f64; 2] {
    let mut times: Vec<Duration> = requests
        .iter()
        .map(|request| {
            let start = Instant::now();
            std::hint::black_box(index.search(request, 5, &|_| true, &Boosts::new()));
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    [0.5, 0.95].map(|share| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1_000.0)
}

/// Returns the share of the exact ten nearest by vector that the graph finds.
fn recall(exact: &Index, graph: &Index, requests: &[Query]) -> f64 {
    let nearest = |index: &Index, request: &Query| -> Vec<usize> {
        let found = index.search(&request.vector_only(), 10, &|_| true, &Boosts::new());
        found.hits.iter().map(|hit| hit.document).collect()
    };
    let mut shared = 0;
    for request in requests {
        let found = nearest(graph, request);
        shared += nearest(exact, request).iter().filter(|at| found.contains(at)).count();
    }
    shared as f64 / (10 * requests.len()) as f64
}

/// Returns the resident memory of this process, if /proc reports it.
fn memory_mb() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    let kb: f64 = line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).unwrap_or(0.0);
    kb / 1_024.0
}

fn plot(file: &Path, rows: &[Row]) -> Result<(), Box<dyn std::error::Error>> {
    let first = rows.first().map_or(1, |row| row.tools) as f64;
    let last = rows.last().map_or(10, |row| row.tools) as f64;
    let area = SVGBackend::new(file, (760, 460)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("A search without its embedding, p50 (solid) and p95 (thin)", ("sans-serif", 17))
        .margin(14)
        .margin_right(36)
        .x_label_area_size(42)
        .y_label_area_size(56)
        .build_cartesian_2d((first..last).log_scale(), (0.01..100.0).log_scale())?;
    let plain = |value: &f64| value.to_string();
    let mut mesh = chart.configure_mesh();
    mesh.x_desc("tools").y_desc("milliseconds").x_label_formatter(&plain).y_label_formatter(&plain).draw()?;
    type Curve = fn(&Row) -> Option<[f64; 2]>;
    let curves: [(&str, RGBColor, Curve); 3] = [
        ("words only", RGBColor(110, 110, 110), |row| Some(row.words)),
        ("words and vectors, exact", RGBColor(200, 80, 30), |row| Some(row.exact)),
        ("words and vectors, graph", RGBColor(30, 90, 190), |row| row.graph),
    ];
    for (name, colour, curve) in curves {
        for (at, width) in [(0, 2), (1, 1)] {
            let points = rows.iter().filter_map(|row| Some((row.tools as f64, curve(row)?[at])));
            let line = chart.draw_series(LineSeries::new(points, colour.stroke_width(width)))?;
            if at == 0 {
                line.label(name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
            }
        }
        let points = rows.iter().filter_map(|row| Some((row.tools as f64, curve(row)?[0])));
        chart.draw_series(points.map(|point| Circle::new(point, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(())
}
