//! Search quality on a labelled set: tools and requests in, figures out.
//!
//! Indexes with the gateway's own code and sends one request at a time, as a client would.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use nonet_search::{
    Boost, Boosts, Confidence, Document, Embedder, Graph, Index, Outcomes, Passage, SearchResult, Settings,
    outcomes, prepare,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Results per request in the `--out` file.
const RANKED: usize = 100;
/// Results that a model sees.
const SHOWN: usize = 5;
/// Results that the figures consider.
const DEPTH: usize = 10;

/// The figures. Shares are 0..1, times in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct EvalReport {
    /// Tools in the index.
    pub(crate) tools: usize,
    /// Requests made.
    pub(crate) queries: usize,
    /// Share of a request's right tools that ranked first, averaged over requests.
    #[serde(rename = "recall@1")]
    pub(crate) recall_at_1: f64,
    /// The same, among the first three.
    #[serde(rename = "recall@3")]
    pub(crate) recall_at_3: f64,
    /// The same, among the first five.
    #[serde(rename = "recall@5")]
    pub(crate) recall_at_5: f64,
    /// The same, among the first ten.
    #[serde(rename = "recall@10")]
    pub(crate) recall_at_10: f64,
    /// Mean reciprocal rank of the first right tool, among the first ten.
    #[serde(rename = "mrr@10")]
    pub(crate) mrr_at_10: f64,
    /// Normalised discounted cumulative gain among the first ten (Järvelin & Kekäläinen 2002, gains 0 and 1).
    #[serde(rename = "ndcg@10")]
    pub(crate) ndcg_at_10: f64,
    /// Share of requests with a right tool first: the measure where any of several tools will do.
    #[serde(rename = "hit@1")]
    pub(crate) hit_at_1: f64,
    /// The same, among the first five.
    #[serde(rename = "hit@5")]
    pub(crate) hit_at_5: f64,
    /// The figures per kind of request, where requests have one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) kinds: BTreeMap<String, KindFigures>,
    /// Time from definitions to an index with vectors.
    pub(crate) index_ms: f64,
    /// Median time of a request, including embedding.
    pub(crate) search_p50_ms: f64,
    /// 95th percentile of the same.
    pub(crate) search_p95_ms: f64,
    /// How reliable the confidence levels are, if measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) confidence: Option<Calibration>,
    /// The effect of earlier outcomes, if measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) replay: Option<ReplayFigures>,
}

/// The figures for one kind of request; shares are 0..1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct KindFigures {
    /// Requests made.
    pub(crate) queries: usize,
    /// As in [`EvalReport`].
    #[serde(rename = "hit@1")]
    pub(crate) hit_at_1: f64,
    /// As in [`EvalReport`].
    #[serde(rename = "hit@5")]
    pub(crate) hit_at_5: f64,
    /// As in [`EvalReport`].
    #[serde(rename = "recall@5")]
    pub(crate) recall_at_5: f64,
    /// As in [`EvalReport`].
    #[serde(rename = "ndcg@10")]
    pub(crate) ndcg_at_10: f64,
}

/// How often each confidence level occurred, and how often it was right.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Calibration {
    /// Answers with high confidence.
    pub(crate) high: ConfidenceFigures,
    /// Answers with medium confidence.
    pub(crate) medium: ConfidenceFigures,
    /// Answers with no confidence.
    pub(crate) none: ConfidenceFigures,
    /// Shares (high, medium, none) for the same requests after removing their right tools.
    pub(crate) removed: [f64; 3],
}

/// One confidence level.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct ConfidenceFigures {
    /// Share of all answers.
    pub(crate) share: f64,
    /// Share of these with a right tool first.
    #[serde(rename = "hit@1")]
    pub(crate) hit_at_1: f64,
    /// Share of these with a right tool among the first five.
    #[serde(rename = "hit@5")]
    pub(crate) hit_at_5: f64,
}

/// Figures after learning from earlier requests: see [`Options::replay`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ReplayFigures {
    /// Mean reciprocal rank of requests that were already answered once by their right tool.
    #[serde(rename = "repeated_mrr@10")]
    pub(crate) repeated: f64,
    /// The same for requests never made, after half of the others were.
    #[serde(rename = "others_mrr@10")]
    pub(crate) others: f64,
}

/// Optional measurements.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    /// The reliability of confidence levels, also for requests without a right tool.
    pub(crate) confidence: bool,
    /// The effect of earlier outcomes: repeats each request after each of its right tools was called once,
    /// and also after that was done for the other half of the requests.
    pub(crate) replay: bool,
    /// How many tools each request is ranked among: its right ones, and others drawn at random. All by
    /// default.
    pub(crate) pool: Option<usize>,
    /// Whether to rank by words only.
    pub(crate) without_meaning: bool,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EvalError {
    /// A file cannot be read or written.
    #[error("{}: {source}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A malformed line.
    #[error("{}:{line}: {what}", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// The line number, from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// An empty file.
    #[error("{}: contains no {what}", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
        /// What it should contain.
        what: &'static str,
    },
}

/// A line of the tools file. Other fields are ignored.
#[derive(Deserialize)]
struct Tool {
    server: String,
    name: String,
    title: Option<String>,
    description: Option<String>,
    #[serde(default, alias = "inputSchema")]
    input_schema: Value,
    server_description: Option<String>,
}

#[derive(Deserialize)]
struct LabelledQuery {
    query: String,
    relevant: Vec<String>,
    kind: Option<String>,
}

#[derive(Serialize)]
struct RankedRow<'a> {
    query: &'a str,
    ranked: &'a [&'a str],
}

/// Indexes the tools, makes all requests, and writes the first hundred results of each to `out`.
pub(crate) async fn run(
    tools: &Path,
    queries: &Path,
    out: Option<&Path>,
    settings: &Settings,
    measure: Options,
) -> Result<EvalReport, EvalError> {
    let documents: Vec<Document> = lines::<Tool>(tools)?.iter().map(document).collect();
    let labelled: Vec<LabelledQuery> = lines(queries)?;
    for (file, empty, what) in
        [(tools, documents.is_empty(), "tools"), (queries, labelled.is_empty(), "queries")]
    {
        if empty {
            return Err(EvalError::Empty { file: file.to_owned(), what });
        }
    }
    let mut answers = out.map(Answers::create).transpose()?;
    let ids: HashSet<&str> = documents.iter().map(|document| &*document.id).collect();
    let unknown =
        labelled.iter().flat_map(|query| &query.relevant).filter(|id| !ids.contains(id.as_str())).count();
    if unknown > 0 {
        tracing::warn!(unknown, "relevant ids without a tool: they count as not found");
    }

    let embedder = (!measure.without_meaning).then(|| Embedder::start(settings));
    let start = Instant::now();
    let mut index = Index::new(documents.clone(), settings);
    if let Some(embedder) = &embedder {
        let passages: Vec<Passage> =
            documents.iter().map(|document| document.passage(settings.weights)).collect();
        match embedder.embed_documents(&passages, |_, _| {}).await {
            Ok(vectors) => index = index.with_vectors(vectors),
            Err(error) => tracing::warn!(%error, "answers use keywords only"),
        }
    }
    if let Some(rows) = index.wants_graph() {
        index = index.with_graph(Arc::new(Graph::new(&rows, &|| false)));
    }
    let index_ms = milliseconds(start.elapsed());
    if let Some(embedder) = &embedder {
        // Loading belongs to the start, not to a search; a failed load was logged above.
        let _ = embedder.ready().await;
    }

    let mut times = Vec::with_capacity(labelled.len());
    let mut sums = Figures::default();
    let mut by_kind: BTreeMap<String, (usize, Figures)> = BTreeMap::new();
    let mut calibration = Counts::default();
    for (number, query) in labelled.iter().enumerate() {
        let right: HashSet<&str> = query.relevant.iter().map(String::as_str).collect();
        let is_right = |document: usize| right.contains(&*index.documents()[document].id);
        let pool = measure.pool.map(|tools| pool(tools, documents.len(), number as u64, &is_right));
        let is_in_pool = |document: usize| pool.as_ref().is_none_or(|pool| pool.contains(&document));
        let start = Instant::now();
        let request = prepare(&index, embedder.as_ref(), &query.query).await;
        let found = index.search(&request, RANKED, &is_in_pool, &Boosts::new());
        times.push(start.elapsed());
        if measure.confidence {
            let rank = found.hits.iter().position(|hit| is_right(hit.document));
            calibration.add(&found, rank);
            let others = |document: usize| is_in_pool(document) && !is_right(document);
            let removed = index.search(&request, SHOWN, &others, &Boosts::new());
            calibration.removed[place(removed.confidence)] += 1;
        }
        let mut ranked: Vec<&str> = Vec::with_capacity(found.hits.len());
        for hit in &found.hits {
            let id = &*index.documents()[hit.document].id;
            if !ranked.contains(&id) {
                ranked.push(id);
            }
        }
        let figures = Figures::of(&ranked, &query.relevant);
        sums.add(&figures);
        if let Some(kind) = &query.kind {
            let (count, sums) = by_kind.entry(kind.clone()).or_default();
            *count += 1;
            sums.add(&figures);
        }
        if let Some(answers) = &mut answers {
            answers.write(&RankedRow { query: &query.query, ranked: &ranked })?;
        }
    }
    answers.map(Answers::finish).transpose()?;
    let replay = match measure.replay {
        true => Some(replay(&index, embedder.as_ref(), &labelled).await),
        false => None,
    };

    times.sort_unstable();
    let share = |sum: f64| sum / labelled.len() as f64;
    Ok(EvalReport {
        tools: documents.len(),
        queries: labelled.len(),
        recall_at_1: share(sums.recall[0]),
        recall_at_3: share(sums.recall[1]),
        recall_at_5: share(sums.recall[2]),
        recall_at_10: share(sums.recall[3]),
        mrr_at_10: share(sums.mrr),
        ndcg_at_10: share(sums.ndcg),
        hit_at_1: share(sums.hit[0]),
        hit_at_5: share(sums.hit[1]),
        kinds: by_kind.into_iter().map(|(kind, (count, sums))| (kind, sums.of_kind(count))).collect(),
        index_ms,
        search_p50_ms: milliseconds(percentile(&times, 0.50)),
        search_p95_ms: milliseconds(percentile(&times, 0.95)),
        confidence: measure.confidence.then(|| calibration.report(labelled.len())),
        replay,
    })
}

/// Returns the right documents and others, `most` in all, drawn by a shuffle that depends on the request's
/// number only (Fisher and Yates, over the numbers of SplitMix64).
fn pool(most: usize, documents: usize, seed: u64, is_right: &dyn Fn(usize) -> bool) -> HashSet<usize> {
    let mut state = seed;
    let mut random = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    };
    let (mut pool, mut others): (Vec<usize>, Vec<usize>) =
        (0..documents).partition(|&document| is_right(document));
    while pool.len() < most && !others.is_empty() {
        let drawn = (random() % others.len() as u64) as usize;
        pool.push(others.swap_remove(drawn));
    }
    pool.into_iter().collect()
}

/// Measures [`ReplayFigures`]. Calls for every other request change the figures of the other half.
async fn replay(index: &Index, embedder: Option<&Embedder>, labelled: &[LabelledQuery]) -> ReplayFigures {
    /// Any time will do: everything is learned and asked at once.
    const NOW: u64 = 1_800_000_000;
    let numbers: HashMap<&str, usize> =
        index.documents().iter().enumerate().map(|(number, document)| (&*document.id, number)).collect();
    let learn = |outcomes: &mut Outcomes, query: &LabelledQuery| {
        for id in &query.relevant {
            outcomes.record(&outcomes::words(&query.query), id, NOW);
        }
    };
    let mut halves = [Outcomes::default(), Outcomes::default()];
    for (number, query) in labelled.iter().enumerate() {
        learn(&mut halves[number % 2], query);
    }
    let (mut repeated, mut others) = (0.0, 0.0);
    for (number, query) in labelled.iter().enumerate() {
        let request = prepare(index, embedder, &query.query).await;
        let mrr = |outcomes: &Outcomes| {
            let learned = outcomes.boosts(&outcomes::words(&query.query), NOW);
            let boosts: Boosts = learned
                .iter()
                .filter_map(|(id, learned)| {
                    Some((*numbers.get(&**id)?, Boost { learned: learned.boost, ..Boost::default() }))
                })
                .collect();
            let found = index.search(&request, DEPTH, &|_| true, &boosts);
            let ranked: Vec<&str> =
                found.hits.iter().map(|hit| &*index.documents()[hit.document].id).collect();
            Figures::of(&ranked, &query.relevant).mrr
        };
        let mut own = Outcomes::default();
        learn(&mut own, query);
        repeated += mrr(&own);
        others += mrr(&halves[(number + 1) % 2]);
    }
    let share = |sum: f64| sum / labelled.len().max(1) as f64;
    ReplayFigures { repeated: share(repeated), others: share(others) }
}

/// Counts of each confidence level and its right answers: high, medium, none.
#[derive(Default)]
struct Counts {
    all: [usize; 3],
    first: [usize; 3],
    right: [usize; 3],
    removed: [usize; 3],
}

impl Counts {
    /// Counts an answer; `rank` is the rank of the first right tool, from 0.
    fn add(&mut self, found: &SearchResult, rank: Option<usize>) {
        let word = place(found.confidence);
        self.all[word] += 1;
        self.first[word] += usize::from(rank == Some(0));
        self.right[word] += usize::from(rank.is_some_and(|rank| rank < SHOWN));
    }

    fn report(&self, queries: usize) -> Calibration {
        let share = |count: usize, of: usize| count as f64 / of.max(1) as f64;
        let word = |at: usize| ConfidenceFigures {
            share: share(self.all[at], queries),
            hit_at_1: share(self.first[at], self.all[at]),
            hit_at_5: share(self.right[at], self.all[at]),
        };
        Calibration {
            high: word(0),
            medium: word(1),
            none: word(2),
            removed: self.removed.map(|count| share(count, queries)),
        }
    }
}

fn place(confidence: Confidence) -> usize {
    match confidence {
        Confidence::High => 0,
        Confidence::Medium => 1,
        Confidence::None => 2,
    }
}

/// Builds a document as the gateway does.
fn document(tool: &Tool) -> Document {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    Document::from_definition(
        &format!("{}.{}", tool.server, tool.name),
        &tool.server,
        &tool.name,
        &text(&tool.title),
        &text(&tool.description),
        &tool.input_schema,
        Vec::new(),
        &text(&tool.server_description),
    )
}

/// Reads a file with one JSON object per line, skipping empty lines.
fn lines<T: DeserializeOwned>(file: &Path) -> Result<Vec<T>, EvalError> {
    let fault = |source| EvalError::File { file: file.to_owned(), source };
    let reader = BufReader::new(File::open(file).map_err(fault)?);
    let mut values = Vec::new();
    for (number, line) in (1..).zip(reader.lines()) {
        let wrong = |what: String| EvalError::Line { file: file.to_owned(), line: number, what };
        let line = line.map_err(|error| wrong(error.to_string()))?;
        let line = line.trim_start_matches('\u{feff}').trim();
        if !line.is_empty() {
            values.push(serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?);
        }
    }
    Ok(values)
}

/// The answers file being written.
struct Answers {
    file: PathBuf,
    writer: BufWriter<File>,
}

impl Answers {
    fn create(file: &Path) -> Result<Answers, EvalError> {
        let created =
            File::create(file).map_err(|source| EvalError::File { file: file.to_owned(), source })?;
        Ok(Answers { file: file.to_owned(), writer: BufWriter::new(created) })
    }

    fn write(&mut self, answer: &RankedRow) -> Result<(), EvalError> {
        let written = serde_json::to_writer(&mut self.writer, answer).map_err(io::Error::from);
        let written = written.and_then(|()| self.writer.write_all(b"\n"));
        written.map_err(|source| EvalError::File { file: self.file.clone(), source })
    }

    fn finish(mut self) -> Result<(), EvalError> {
        self.writer.flush().map_err(|source| EvalError::File { file: self.file, source })
    }
}

/// The figures of one request, or a sum of many.
#[derive(Clone, Debug, Default, PartialEq)]
struct Figures {
    /// At 1, 3, 5 and 10.
    recall: [f64; 4],
    /// At 1 and 5.
    hit: [f64; 2],
    mrr: f64,
    ndcg: f64,
}

impl Figures {
    fn of(ranked: &[&str], relevant: &[String]) -> Figures {
        let relevant: HashSet<&str> = relevant.iter().map(String::as_str).collect();
        if relevant.is_empty() {
            return Figures::default();
        }
        let places: HashMap<&str, usize> = ranked.iter().zip(1..).map(|(&id, rank)| (id, rank)).collect();
        let mut ranks: Vec<usize> = relevant.iter().filter_map(|id| places.get(id)).copied().collect();
        ranks.sort_unstable();
        let within =
            |k: usize| ranks.iter().filter(|&&rank| rank <= k).count() as f64 / relevant.len() as f64;
        let gain = |rank: usize| 1.0 / (rank as f64 + 1.0).log2();
        let ideal: f64 = (1..=relevant.len().min(DEPTH)).map(gain).sum();
        let gained: f64 = ranks.iter().filter(|&&rank| rank <= DEPTH).map(|&rank| gain(rank)).sum();
        Figures {
            recall: [1, 3, 5, DEPTH].map(within),
            hit: [1, SHOWN].map(|k| f64::from(u8::from(ranks.first().is_some_and(|&rank| rank <= k)))),
            mrr: ranks.first().filter(|&&rank| rank <= DEPTH).map_or(0.0, |&rank| 1.0 / rank as f64),
            ndcg: gained / ideal,
        }
    }

    fn add(&mut self, other: &Figures) {
        self.recall.iter_mut().zip(other.recall).for_each(|(sum, value)| *sum += value);
        self.hit.iter_mut().zip(other.hit).for_each(|(sum, value)| *sum += value);
        self.mrr += other.mrr;
        self.ndcg += other.ndcg;
    }

    fn of_kind(&self, queries: usize) -> KindFigures {
        let share = |sum: f64| sum / queries.max(1) as f64;
        KindFigures {
            queries,
            hit_at_1: share(self.hit[0]),
            hit_at_5: share(self.hit[1]),
            recall_at_5: share(self.recall[2]),
            ndcg_at_10: share(self.ndcg),
        }
    }
}

fn percentile(sorted: &[Duration], share: f64) -> Duration {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or_default()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_books() {
        let check = |ranked: &[&str], relevant: &[&str], recall: [f64; 4], mrr: f64, ndcg: f64| {
            let relevant: Vec<String> = relevant.iter().map(|id| (*id).to_owned()).collect();
            let figures = Figures::of(ranked, &relevant);
            assert_eq!(figures.recall, recall, "{ranked:?}");
            assert!((figures.mrr - mrr).abs() < 1e-9 && (figures.ndcg - ndcg).abs() < 1e-4, "{figures:?}");
        };
        check(&["a", "b"], &["a"], [1.0; 4], 1.0, 1.0);
        check(&["b", "a"], &["a"], [0.0, 1.0, 1.0, 1.0], 0.5, 0.6309);
        check(&["a", "x", "b"], &["a", "b"], [0.5, 1.0, 1.0, 1.0], 1.0, 0.9197);
        check(&["x"], &["a"], [0.0; 4], 0.0, 0.0);
        check(&[], &["a"], [0.0; 4], 0.0, 0.0);
    }

    #[test]
    fn faults_name_file_and_line() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("tools.jsonl");
        let check = |content: &str, expected: &str| {
            std::fs::write(&file, content).expect("writable");
            let error = lines::<Tool>(&file).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(expected), "{error}");
        };
        check("{\"server\":\"a\",\"name\":\"b\"}\n\n{", "tools.jsonl:3: ");
        check("{\"server\":\"a\"}", "tools.jsonl:1: missing field `name`");
        let error = lines::<Tool>(&folder.path().join("none")).err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains("none: ")));
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let times: Vec<Duration> = (1..=20).map(Duration::from_millis).collect();
        assert_eq!(percentile(&times, 0.5), Duration::from_millis(10));
        assert_eq!(percentile(&times, 0.95), Duration::from_millis(19));
        assert_eq!(percentile(&[], 0.5), Duration::ZERO);
    }
}
