//! Search quality on a labelled set: tools and requests in, figures out. Behind `nonet eval`.
//!
//! Indexes with the same code as the gateway and asks as a client would, one request at a time.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    Boost, Boosts, Confidence, Document, Embedder, Found, Graph, Index, Outcomes, Passage, Rule, Settings,
    outcomes,
};

/// Results of a request that `--out` lists.
const RANKED: usize = 100;
/// Results that a model is shown.
const SHOWN: usize = 5;
/// Results that the figures look at.
const DEPTH: usize = 10;

/// The figures. Shares are 0..1, times are milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Tools in the index.
    pub tools: usize,
    /// Requests asked.
    pub queries: usize,
    /// Share of a request's tools that were ranked first, averaged over requests.
    #[serde(rename = "recall@1")]
    pub recall_at_1: f64,
    /// The same within the first three.
    #[serde(rename = "recall@3")]
    pub recall_at_3: f64,
    /// The same within the first five.
    #[serde(rename = "recall@5")]
    pub recall_at_5: f64,
    /// The same within the first ten.
    #[serde(rename = "recall@10")]
    pub recall_at_10: f64,
    /// One over the rank of the first right tool within the first ten, averaged.
    #[serde(rename = "mrr@10")]
    pub mrr_at_10: f64,
    /// Discounted gain over the best possible, within the first ten (Järvelin & Kekäläinen 2002, gains 0 and 1).
    #[serde(rename = "ndcg@10")]
    pub ndcg_at_10: f64,
    /// Share of requests with a right tool first, which is what counts where any of several tools would do.
    #[serde(rename = "hit@1")]
    pub hit_at_1: f64,
    /// The same with one within the first five.
    #[serde(rename = "hit@5")]
    pub hit_at_5: f64,
    /// The figures of each kind of request, where the requests say theirs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub kinds: BTreeMap<String, OfKind>,
    /// From the definitions to an index that answers by meaning.
    pub index_ms: f64,
    /// A request, embedding included: half took no longer.
    pub search_p50_ms: f64,
    /// The same: nineteen in twenty took no longer.
    pub search_p95_ms: f64,
    /// What the word that tells how sure a search is was worth, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Calibration>,
    /// What earlier outcomes change, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
}

/// The figures of the requests of one kind; shares are 0..1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfKind {
    /// Requests asked.
    pub queries: usize,
    /// As in [`Report`].
    #[serde(rename = "hit@1")]
    pub hit_at_1: f64,
    /// The same.
    #[serde(rename = "hit@5")]
    pub hit_at_5: f64,
    /// The same.
    #[serde(rename = "recall@5")]
    pub recall_at_5: f64,
    /// The same.
    #[serde(rename = "ndcg@10")]
    pub ndcg_at_10: f64,
}

/// How often each word of confidence came, and how often it was right.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Calibration {
    /// Answers that were called so.
    pub high: Word,
    /// The same.
    pub medium: Word,
    /// The same.
    pub low: Word,
    /// Shares of the same requests asked of a catalogue without their right tools: high, medium, low.
    pub removed: [f64; 3],
}

/// One word of confidence.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Word {
    /// The share of all answers.
    pub share: f64,
    /// The share of these that had a right tool first.
    #[serde(rename = "hit@1")]
    pub hit_at_1: f64,
    /// The share of these that had a right tool among the first five.
    #[serde(rename = "hit@5")]
    pub hit_at_5: f64,
}

/// Figures with what earlier requests led to: see [`Measure::replay`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replay {
    /// Mean reciprocal rank of requests that were answered by their right tool once before.
    #[serde(rename = "repeated_mrr@10")]
    pub repeated: f64,
    /// The same of requests that were never asked, after half of the others were.
    #[serde(rename = "others_mrr@10")]
    pub others: f64,
}

/// What is measured, beside the figures that always are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measure {
    /// What the words of confidence are worth, also for requests whose right tools are taken out.
    pub confidence: bool,
    /// What earlier outcomes change: each request is asked after each right tool was called once for it, and also after
    /// that happened for the other half of the requests.
    pub replay: bool,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// A file cannot be read or written.
    #[error("{}: {source}", file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// A line is not what it should be.
    #[error("{}:{line}: {what}", file.display())]
    Line {
        /// In which file.
        file: PathBuf,
        /// Counted from one.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// A file has nothing in it.
    #[error("{}: no {what} in it", file.display())]
    Empty {
        /// Which.
        file: PathBuf,
        /// What should be there.
        what: &'static str,
    },
}

/// A line of the tools file. What else the line has is not looked at.
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

/// A line of the requests file.
#[derive(Deserialize)]
struct Labelled {
    query: String,
    relevant: Vec<String>,
    kind: Option<String>,
}

/// A line of the answers file.
#[derive(Serialize)]
struct Ranked<'a> {
    query: &'a str,
    ranked: &'a [&'a str],
}

/// Indexes the tools, asks every request, and writes each answer's first hundred to `out`. `progress` is told how many
/// texts of how many are embedded.
pub async fn run(
    tools: &Path,
    queries: &Path,
    out: Option<&Path>,
    settings: &Settings,
    measure: Measure,
    progress: impl Fn(usize, usize) + Send + Sync + 'static,
) -> Result<Report, EvalError> {
    let documents: Vec<Document> = lines::<Tool>(tools)?.iter().map(document).collect();
    let labelled: Vec<Labelled> = lines(queries)?;
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
        tracing::warn!(unknown, "relevant ids that are no tool's: they count as not found");
    }

    let embedder = settings.rules.has(Rule::Meaning).then(|| Embedder::start(settings));
    let start = Instant::now();
    let mut index = Index::new(documents.clone(), settings);
    if let Some(embedder) = &embedder {
        let passages: Vec<Passage> =
            documents.iter().map(|document| document.passage(settings.rules)).collect();
        match embedder.embed_documents(&passages, progress).await {
            Ok(vectors) => index = index.with_vectors(vectors),
            Err(error) => tracing::warn!(%error, "answers come from keywords alone"),
        }
    }
    if let Some(rows) = index.wants_graph() {
        index = index.with_graph(Arc::new(Graph::new(&rows, &|| false)));
    }
    let index_ms = milliseconds(start.elapsed());
    if let Some(embedder) = &embedder {
        // Loading is part of a start, not of a search; a failed load was told above.
        let _ = embedder.ready().await;
    }

    let mut times = Vec::with_capacity(labelled.len());
    let mut sums = Figures::default();
    let mut by_kind: BTreeMap<String, (usize, Figures)> = BTreeMap::new();
    let mut calibration = Counts::default();
    for query in &labelled {
        let start = Instant::now();
        let request = super::prepare(&index, embedder.as_ref(), &query.query).await;
        let found = index.search(&request, RANKED, &|_| true, &Boosts::new());
        times.push(start.elapsed());
        if measure.confidence {
            let right: HashSet<&str> = query.relevant.iter().map(String::as_str).collect();
            let is_right = |document: usize| right.contains(&*index.documents()[document].id);
            let rank = found.hits.iter().position(|hit| is_right(hit.document));
            calibration.add(&found, rank);
            let removed = index.search(&request, SHOWN, &|document| !is_right(document), &Boosts::new());
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
            answers.write(&Ranked { query: &query.query, ranked: &ranked })?;
        }
    }
    answers.map(Answers::finish).transpose()?;
    let replay = match measure.replay {
        true => Some(replay(&index, embedder.as_ref(), &labelled).await),
        false => None,
    };

    times.sort_unstable();
    let share = |sum: f64| sum / labelled.len() as f64;
    Ok(Report {
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

/// See [`Measure::replay`]. What was called for one half of the requests (every other one) changes the other half.
async fn replay(index: &Index, embedder: Option<&Embedder>, labelled: &[Labelled]) -> Replay {
    /// Any time will do: all is learned and asked at once.
    const NOW: u64 = 1_800_000_000;
    let numbers: HashMap<&str, usize> =
        index.documents().iter().enumerate().map(|(number, document)| (&*document.id, number)).collect();
    let learn = |outcomes: &mut Outcomes, query: &Labelled| {
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
        let request = super::prepare(index, embedder, &query.query).await;
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
    Replay { repeated: share(repeated), others: share(others) }
}

/// How often each word of confidence came and was right; high, medium, low.
#[derive(Default)]
struct Counts {
    all: [usize; 3],
    first: [usize; 3],
    right: [usize; 3],
    removed: [usize; 3],
}

impl Counts {
    /// Counts an answer; `rank` is that of the first right tool, from 0.
    fn add(&mut self, found: &Found, rank: Option<usize>) {
        let word = place(found.confidence);
        self.all[word] += 1;
        self.first[word] += usize::from(rank == Some(0));
        self.right[word] += usize::from(rank.is_some_and(|rank| rank < SHOWN));
    }

    fn report(&self, queries: usize) -> Calibration {
        let share = |count: usize, of: usize| count as f64 / of.max(1) as f64;
        let word = |at: usize| Word {
            share: share(self.all[at], queries),
            hit_at_1: share(self.first[at], self.all[at]),
            hit_at_5: share(self.right[at], self.all[at]),
        };
        Calibration {
            high: word(0),
            medium: word(1),
            low: word(2),
            removed: self.removed.map(|count| share(count, queries)),
        }
    }
}

fn place(confidence: Confidence) -> usize {
    match confidence {
        Confidence::High => 0,
        Confidence::Medium => 1,
        Confidence::Low => 2,
    }
}

/// As the gateway makes it.
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

/// The values of a file with one JSON object a line; empty lines are skipped.
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

/// The file of answers while it is written.
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

    fn write(&mut self, answer: &Ranked) -> Result<(), EvalError> {
        let written = serde_json::to_writer(&mut self.writer, answer).map_err(io::Error::from);
        let written = written.and_then(|()| self.writer.write_all(b"\n"));
        written.map_err(|source| EvalError::File { file: self.file.clone(), source })
    }

    fn finish(mut self) -> Result<(), EvalError> {
        self.writer.flush().map_err(|source| EvalError::File { file: self.file, source })
    }
}

/// One request's figures, or the sum of many.
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

    fn of_kind(&self, queries: usize) -> OfKind {
        let share = |sum: f64| sum / queries.max(1) as f64;
        OfKind {
            queries,
            hit_at_1: share(self.hit[0]),
            hit_at_5: share(self.hit[1]),
            recall_at_5: share(self.recall[2]),
            ndcg_at_10: share(self.ndcg),
        }
    }
}

/// The nearest-rank percentile of sorted times.
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
