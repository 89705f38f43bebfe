//! The embedder: a handle to the thread that owns the model, with a memory of earlier vectors.
//!
//! The thread loads the model when the first text has to be embedded, and drops it after half an hour without
//! work: known vectors need no model. Starting is instant and cannot fail; a failed load is kept as the
//! reason for missing vectors. Queries have priority over documents. Knows texts and vectors, not the index.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use futures::future::BoxFuture;
use nonet_base::allocator;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use super::{
    Passage, Passages, Settings,
    cache::{Cache, ContentKey},
    model::{Model, ModelChoice, ModelSource, TextRole},
    vectors,
};

/// Jobs queued for the thread, per kind; further senders wait.
const QUEUE: usize = 64;
/// The passages of a job: enough to batch texts of similar length, few enough that a stop loses little.
const PASSAGES: usize = 16;
/// Queries whose vectors are remembered.
const REMEMBERED_QUERIES: usize = 256;
/// Documents whose vectors are remembered; beyond that, only those of the last list.
const REMEMBERED_DOCUMENTS: usize = 50_000;
/// The cache is written after this many new vectors, so that a stop loses little.
const SAVE_EVERY: usize = 64;
/// The model is dropped after this long without work; loading it again takes some hundredths of a second.
const IDLE: Duration = Duration::from_secs(30 * 60);

/// Memory used by indexing is given back after this long without work.
const QUIET: Duration = Duration::from_secs(1);

/// The inference engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// The name, such as `onnxruntime 1.24.1`.
    pub name: String,
    /// The library and where it was found, or the instructions that the built-in engine uses.
    pub detail: String,
}

/// Why there is no vector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmbedError {
    /// No embedder in this process, for this reason; a retry will not help.
    #[error("search by meaning is not available: {0}")]
    Unavailable(Arc<str>),
    /// This text could not be embedded.
    #[error("the text could not be embedded: {0}")]
    Failed(Arc<str>),
}

/// Vectors shared by several processes. An implementation skips what it cannot do now and logs the reason.
pub trait SharedVectors: std::fmt::Debug + Send + Sync {
    /// Returns the shared vectors of a model, in the order of their keys.
    fn read<'a>(&'a self, model: &'a str, keys: &'a [ContentKey]) -> BoxFuture<'a, Vec<Option<Arc<[f32]>>>>;

    /// Writes the missing vectors of a model, and marks all of them as used now.
    fn offer<'a>(&'a self, model: &'a str, vectors: &'a [(ContentKey, Arc<[f32]>)]) -> BoxFuture<'a, ()>;
}

/// A handle to the embedding thread. Clones share it; the thread ends with the last clone.
#[derive(Clone)]
pub struct Embedder {
    shared: Arc<Shared>,
}

struct Shared {
    queries: mpsc::Sender<Job>,
    documents: mpsc::Sender<Job>,
    /// Requests loading the model before there is a job.
    load: mpsc::Sender<()>,
    /// `None` until the model's files are read.
    files: watch::Receiver<Option<ModelFiles>>,
    /// `None` until the first attempt to load the model has finished.
    state: watch::Receiver<State>,
    /// Whether the model is in memory now.
    loaded: Arc<AtomicBool>,
    memory: Mutex<Memory>,
    /// The vectors of other processes.
    others: Option<Arc<dyn SharedVectors>>,
    /// Whether known vectors are being offered to other processes.
    offering: AtomicBool,
    /// The embedder of texts in other languages, if the built-in models are in use. It has a thread and a
    /// model of its own.
    languages: Option<OnceLock<Embedder>>,
    idle: Duration,
}

type State = Option<Result<Backend, EmbedError>>;

/// What is known of a model before it is loaded.
#[derive(Clone)]
struct ModelFiles {
    fingerprint: Arc<str>,
    /// The model's vectors on disk, if there is a folder for them.
    cache: Option<Cache>,
}

/// Texts to embed.
struct Job {
    texts: Vec<String>,
    kind: TextRole,
    answer: oneshot::Sender<Result<Vec<EmbedResult>, EmbedError>>,
}

/// The vector of a text or passage.
type EmbedResult = Result<Arc<[f32]>, EmbedError>;

#[derive(Default)]
struct Memory {
    /// In order of use, latest last.
    queries: Vec<(String, Arc<[f32]>)>,
    documents: HashMap<ContentKey, Arc<[f32]>>,
    /// Whether a failed write of the cache was logged.
    unwritable: bool,
}

impl Embedder {
    /// Starts the thread and returns at once; see [`Embedder::ready`].
    pub fn start(settings: &Settings) -> Embedder {
        Embedder::sharing(settings, None)
    }

    /// Starts the thread with access to vectors of other processes.
    pub fn sharing(settings: &Settings, others: Option<Arc<dyn SharedVectors>>) -> Embedder {
        Embedder::start_with(settings, others, IDLE)
    }

    /// Starts the thread; it drops the model after `idle` without work.
    fn start_with(settings: &Settings, others: Option<Arc<dyn SharedVectors>>, idle: Duration) -> Embedder {
        let choice = settings.model.clone().map_or(ModelChoice::Tools, ModelChoice::Folder);
        Embedder::of(choice, settings.cache_folder(), settings.onnxruntime.clone(), others, idle)
    }

    /// Starts the thread of a model whose vectors are kept in the folder `cache`.
    fn of(
        choice: ModelChoice,
        cache: Option<PathBuf>,
        library: Option<PathBuf>,
        others: Option<Arc<dyn SharedVectors>>,
        idle: Duration,
    ) -> Embedder {
        let (queries, queries_in) = mpsc::channel(QUEUE);
        let (documents, documents_in) = mpsc::channel(QUEUE);
        let (load, load_in) = mpsc::channel(1);
        let (tell_files, files) = watch::channel(None);
        let (tell_state, state) = watch::channel(None);
        let loaded = Arc::new(AtomicBool::new(false));
        let languages = matches!(choice, ModelChoice::Tools).then(OnceLock::new);
        let worker = Worker {
            choice,
            cache,
            library,
            idle,
            jobs: Jobs { queries: queries_in, documents: documents_in, load: load_in },
            tell_state: tell_state.clone(),
            loaded: loaded.clone(),
        };
        let work = move || worker.work(&tell_files);
        if let Err(error) = thread::Builder::new().name("embedder".to_owned()).spawn(work) {
            let reason = format!("its thread could not be started: {error}");
            tell_state.send_replace(Some(Err(EmbedError::Unavailable(reason.into()))));
        }
        let memory = Mutex::default();
        let offering = AtomicBool::new(false);
        let shared = Shared {
            queries,
            documents,
            load,
            files,
            state,
            loaded,
            memory,
            others,
            offering,
            languages,
            idle,
        };
        Embedder { shared: Arc::new(shared) }
    }

    /// Returns the embedder of texts in other languages than English; `None` if a folder's model is in use.
    /// Its vectors are compared with this one's. Its thread starts with the first call, and its model is
    /// loaded for the first text.
    pub fn for_languages(&self) -> Option<&Embedder> {
        let start = || Embedder::of(ModelChoice::Languages, None, None, None, self.shared.idle);
        self.shared.languages.as_ref().map(|languages| languages.get_or_init(start))
    }

    /// Loads the model unless it was loaded before, waits for it, and returns its engine.
    pub async fn ready(&self) -> Result<Backend, EmbedError> {
        let mut state = self.shared.state.clone();
        if state.borrow().is_none() {
            // If the queue is full, another caller has requested it already.
            let _ = self.shared.load.try_send(());
        }
        match state.wait_for(Option::is_some).await {
            Ok(state) => state.clone().unwrap_or_else(|| Err(stopped())),
            Err(_) => Err(stopped()),
        }
    }

    /// Whether loading the model has failed. False before the first attempt.
    pub fn has_failed(&self) -> bool {
        matches!(&*self.shared.state.borrow(), Some(Err(_)))
    }

    /// Whether the model is in memory. If not, the next text to embed loads it.
    pub fn is_loaded(&self) -> bool {
        self.shared.loaded.load(Ordering::Relaxed)
    }

    /// Returns the vectors of requests, normalised, in order, each from the first 96 tokens. Recent requests
    /// are not embedded again.
    pub async fn embed_queries(&self, texts: &[String]) -> Result<Vec<Arc<[f32]>>, EmbedError> {
        let mut vectors: Vec<Option<Arc<[f32]>>> = {
            let mut memory = self.memory();
            texts.iter().map(|text| memory.query(text)).collect()
        };
        let is_new = |(_, vector): &(&String, &mut Option<_>)| vector.is_none();
        let new: Vec<String> =
            texts.iter().zip(&mut vectors).filter(is_new).map(|(text, _)| text.clone()).collect();
        if !new.is_empty() {
            let embedded = self.run(TextRole::Query, new).await?;
            for ((text, vector), embedded) in texts.iter().zip(&mut vectors).filter(is_new).zip(embedded) {
                let embedded = embedded?;
                self.memory().remember_query(text, &embedded);
                *vector = Some(embedded);
            }
        }
        Ok(vectors.into_iter().flatten().collect())
    }

    /// Returns a normalised vector for each passage, in order, from the first 96 tokens of each text; `None`
    /// for a passage that cannot be embedded. Only passages in neither memory nor disk cache, and that no
    /// other process has shared, are embedded. Reports done and total counts to `progress`: at once for known
    /// passages, then sixteen by sixteen. Dropping the future stops the work and keeps vectors that were
    /// reported.
    pub async fn embed_documents(
        &self,
        passages: &(impl Passages + ?Sized),
        progress: impl Fn(usize, usize) + Send + Sync + 'static,
    ) -> Result<Vec<Option<Arc<[f32]>>>, EmbedError> {
        let files = self.files().await;
        let cache = files.as_ref().and_then(|files| files.cache.as_ref());
        let keys = passages.keys();
        let mut known = self.known(&keys, cache).await;
        if let Some(files) = &files {
            self.fetch(&keys, &mut known, files).await;
            self.offer(&known, files);
        }
        // Embeds duplicate passages together.
        let mut times: HashMap<ContentKey, usize> = HashMap::new();
        keys.iter().for_each(|key| *times.entry(*key).or_default() += 1);
        let mut done = times.iter().filter(|(key, _)| known.contains_key(*key)).map(|(_, times)| times).sum();
        progress(done, keys.len());

        let mut unsaved = Vec::new();
        let mut refused = false;
        let mut unavailable = None;
        let mut seen: HashSet<ContentKey> = HashSet::new();
        let is_new = |(_, key): &(usize, ContentKey)| !known.contains_key(key) && seen.insert(*key);
        let new: Vec<(usize, ContentKey)> = keys.iter().copied().enumerate().filter(is_new).collect();
        for some in new.chunks(PASSAGES) {
            let texts: Vec<_> = some.iter().map(|&(at, _)| passages.passage(at)).collect();
            let vectors = match self.embed_passages(&texts).await {
                Ok(vectors) => vectors,
                Err(error) => {
                    unavailable = Some(error);
                    break;
                }
            };
            for (&(_, key), vector) in some.iter().zip(vectors) {
                match vector {
                    Ok(vector) => {
                        self.memory().documents.insert(key, vector.clone());
                        unsaved.push((key, vector.clone()));
                        known.insert(key, vector);
                    }
                    // One bad text must not cost the others their vectors.
                    Err(reason) => {
                        if !std::mem::replace(&mut refused, true) {
                            tracing::warn!(%reason, "a tool's text cannot be embedded; the tool is found by keywords only");
                        }
                    }
                }
                done += times.get(&key).copied().unwrap_or(1);
            }
            progress(done, keys.len());
            if unsaved.len() >= SAVE_EVERY {
                self.keep(files.as_ref(), std::mem::take(&mut unsaved)).await;
            }
        }
        self.keep(files.as_ref(), unsaved).await;
        if let Some(error) = unavailable {
            return Err(error);
        }
        self.memory().forget_others(&known);
        Ok(keys.iter().map(|key| known.get(key).cloned()).collect())
    }

    /// Returns the vectors of passages that are in memory.
    pub fn known_documents(&self, passages: &(impl Passages + ?Sized)) -> Vec<Option<Arc<[f32]>>> {
        self.remembered(&passages.keys())
    }

    fn remembered(&self, keys: &[ContentKey]) -> Vec<Option<Arc<[f32]>>> {
        let memory = self.memory();
        keys.iter().map(|key| memory.documents.get(key).cloned()).collect()
    }

    /// Returns the normalised weighted sum of the vectors of a passage's texts, without caching it.
    pub async fn embed_passage(&self, passage: &Passage) -> EmbedResult {
        let mut vectors = self.embed_passages(&[Cow::Borrowed(passage)]).await?;
        vectors.pop().unwrap_or_else(|| Err(stopped()))
    }

    /// Embeds several passages, each with the encoder that reads its language. Their texts share runs of a
    /// model.
    async fn embed_passages(&self, passages: &[Cow<'_, Passage>]) -> Result<Vec<EmbedResult>, EmbedError> {
        let texts = |of: fn(&Passage) -> &[(String, f32)]| {
            passages.iter().flat_map(|passage| of(passage)).map(|(text, _)| text.clone()).collect::<Vec<_>>()
        };
        let (own, others) = (texts(|passage| &passage.texts), texts(|passage| &passage.others));
        let mut own = self.run(TextRole::Document, own).await?.into_iter();
        let languages = if others.is_empty() { None } else { self.for_languages() };
        let others = match languages {
            Some(languages) => languages.run(TextRole::Document, others).await?,
            None => Vec::new(),
        };
        let mut others = others.into_iter();
        let sum = |passage: &Cow<'_, Passage>| {
            let own = own.by_ref().take(passage.texts.len());
            let vectors: Vec<EmbedResult> = own.chain(others.by_ref().take(passage.others.len())).collect();
            // Only now, so that a text without a vector does not shift those of the next passages.
            let vectors = vectors.into_iter().collect::<Result<Vec<_>, _>>()?;
            if let [only] = &vectors[..] {
                return Ok(only.clone());
            }
            let weights = passage.texts.iter().chain(&passage.others).map(|(_, weight)| *weight);
            Ok(vectors::sum(vectors.iter().map(|vector| &**vector).zip(weights)).into())
        };
        Ok(passages.iter().map(sum).collect())
    }

    async fn run(&self, kind: TextRole, texts: Vec<String>) -> Result<Vec<EmbedResult>, EmbedError> {
        self.ready().await?;
        let queue = match kind {
            TextRole::Query => &self.shared.queries,
            TextRole::Document => &self.shared.documents,
        };
        let (answer, answered) = oneshot::channel();
        queue.send(Job { texts, kind, answer }).await.map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }

    /// Returns a fingerprint that distinguishes the model's vectors from other models'; `None` without a
    /// model. Waits until the model's files are read.
    pub async fn fingerprint(&self) -> Option<Arc<str>> {
        Some(self.files().await?.fingerprint)
    }

    async fn files(&self) -> Option<ModelFiles> {
        let mut files = self.shared.files.clone();
        files.wait_for(Option::is_some).await.ok().and_then(|files| files.clone())
    }

    /// Returns the vectors in memory and on disk.
    async fn known(&self, keys: &[ContentKey], cache: Option<&Cache>) -> HashMap<ContentKey, Arc<[f32]>> {
        let mut known = HashMap::new();
        let mut missing = HashSet::new();
        for (&key, vector) in keys.iter().zip(self.remembered(keys)) {
            match vector {
                Some(vector) => drop(known.insert(key, vector)),
                None => drop(missing.insert(key)),
            }
        }
        let Some(cache) = cache.cloned().filter(|_| !missing.is_empty()) else { return known };
        let file = cache.path().to_owned();
        match tokio::task::spawn_blocking(move || cache.read(&missing)).await {
            Ok(Ok(found)) => {
                self.memory().documents.extend(found.iter().map(|(key, vector)| (*key, vector.clone())));
                known.extend(found);
            }
            Ok(Err(error)) => {
                tracing::warn!(file = %file.display(), %error, "cannot read the vector cache")
            }
            Err(error) => tracing::error!(%error, "reading the vector cache failed"),
        }
        known
    }

    /// Adds the vectors of other processes, and writes them to disk.
    async fn fetch(
        &self,
        keys: &[ContentKey],
        known: &mut HashMap<ContentKey, Arc<[f32]>>,
        files: &ModelFiles,
    ) {
        let Some(others) = &self.shared.others else { return };
        let mut seen = HashSet::new();
        let is_missing = |key: &ContentKey| !known.contains_key(key) && seen.insert(*key);
        let missing: Vec<ContentKey> = keys.iter().copied().filter(is_missing).collect();
        if missing.is_empty() {
            return;
        }
        let found = others.read(&files.fingerprint, &missing).await;
        // Vectors of different lengths cannot be compared: a single one would cost all others.
        let mut length = known.values().next().map(|vector| vector.len());
        let found: Vec<(ContentKey, Arc<[f32]>)> = missing
            .into_iter()
            .zip(found)
            .filter_map(|(key, vector)| Some((key, vector?)))
            .filter(|(_, vector)| *length.get_or_insert(vector.len()) == vector.len())
            .collect();
        self.memory().documents.extend(found.iter().cloned());
        known.extend(found.iter().cloned());
        self.save(files.cache.as_ref(), found).await;
    }

    /// Offers known vectors to the other processes, in the background.
    fn offer(&self, known: &HashMap<ContentKey, Arc<[f32]>>, files: &ModelFiles) {
        let shared = self.shared.clone();
        let Some(others) = shared.others.clone().filter(|_| !known.is_empty()) else { return };
        // Later vectors are offered with the next list.
        if shared.offering.swap(true, Ordering::AcqRel) {
            return;
        }
        let known: Vec<(ContentKey, Arc<[f32]>)> =
            known.iter().map(|(key, vector)| (*key, vector.clone())).collect();
        let model = files.fingerprint.clone();
        tokio::spawn(async move {
            others.offer(&model, &known).await;
            shared.offering.store(false, Ordering::Release);
        });
    }

    /// Stores new vectors, on disk and for other processes.
    async fn keep(&self, files: Option<&ModelFiles>, new: Vec<(ContentKey, Arc<[f32]>)>) {
        let Some(files) = files.filter(|_| !new.is_empty()) else { return };
        if let Some(others) = &self.shared.others {
            others.offer(&files.fingerprint, &new).await;
        }
        self.save(files.cache.as_ref(), new).await;
    }

    async fn save(&self, cache: Option<&Cache>, new: Vec<(ContentKey, Arc<[f32]>)>) {
        let Some(cache) = cache.cloned().filter(|_| !new.is_empty()) else { return };
        let (file, shared) = (cache.path().to_owned(), self.shared.clone());
        let in_use = move |key: &ContentKey| lock(&shared.memory).documents.contains_key(key);
        let saved = tokio::task::spawn_blocking(move || cache.append(&new, &in_use)).await;
        if let Ok(Err(error)) = saved
            && !std::mem::replace(&mut self.memory().unwritable, true)
        {
            tracing::warn!(file = %file.display(), %error, "cannot write the vector cache");
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        lock(&self.shared.memory)
    }
}

/// Locks the memory, which is usable even after a panic: each change is a single insertion.
fn lock(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    fn query(&mut self, text: &str) -> Option<Arc<[f32]>> {
        let at = self.queries.iter().position(|(known, _)| known == text)?;
        let entry = self.queries.remove(at);
        let vector = entry.1.clone();
        self.queries.push(entry);
        Some(vector)
    }

    fn remember_query(&mut self, text: &str, vector: &Arc<[f32]>) {
        self.queries.retain(|(known, _)| known != text);
        if self.queries.len() >= REMEMBERED_QUERIES {
            self.queries.remove(0);
        }
        self.queries.push((text.to_owned(), vector.clone()));
    }

    fn forget_others(&mut self, used: &HashMap<ContentKey, Arc<[f32]>>) {
        if self.documents.len() > REMEMBERED_DOCUMENTS {
            self.documents.retain(|key, _| used.contains_key(key));
        }
    }
}

/// The thread's queues.
struct Jobs {
    queries: mpsc::Receiver<Job>,
    documents: mpsc::Receiver<Job>,
    load: mpsc::Receiver<()>,
}

/// The thread's next task.
enum Next {
    Embed(Job),
    Load,
    /// All handles are gone.
    End,
}

impl Jobs {
    async fn next(&mut self) -> Next {
        tokio::select! {
            biased;
            Some(job) = self.queries.recv() => Next::Embed(job),
            Some(job) = self.documents.recv() => Next::Embed(job),
            Some(()) = self.load.recv() => Next::Load,
            else => Next::End,
        }
    }

    /// Embeds the texts of a job in batches. Between a document job's batches, queries are answered.
    fn answer(&mut self, job: Job, model: &mut Model) {
        let failed = |reason: String| EmbedError::Failed(reason.into());
        let mut vectors: Vec<EmbedResult> = Vec::with_capacity(job.texts.len());
        let mut texts = Vec::with_capacity(job.texts.len());
        for (place, text) in job.texts.iter().enumerate() {
            let tokens = guarded(|| model.tokens(text, job.kind)).map_err(failed);
            vectors.push(tokens.as_ref().map_or_else(|error| Err(error.clone()), |_| Err(stopped())));
            texts.extend(tokens.map(|tokens| (place, tokens)));
        }
        let mut batches = &model.batches(&texts)[..];
        while !batches.is_empty() {
            if job.answer.is_closed() {
                return;
            }
            let mut at_once = 1;
            if job.kind == TextRole::Document {
                while let Ok(query) = self.queries.try_recv() {
                    self.answer(query, model);
                }
                at_once += usize::from(batches.len() > 1 && model.is_parallel() && has_idle_core());
            }
            let (now, later) = batches.split_at(at_once);
            batches = later;
            let runs = guarded(|| Ok(model.embed(now)));
            let runs = runs.unwrap_or_else(|reason| now.iter().map(|_| Err(reason.clone())).collect());
            for (batch, run) in now.iter().zip(runs) {
                match run.map_err(failed) {
                    Ok(run) => {
                        let all = batch.iter().zip(run);
                        all.for_each(|((place, _), vector)| vectors[*place] = Ok(vector.into()));
                    }
                    Err(error) => {
                        batch.iter().for_each(|(place, _)| vectors[*place] = Err(error.clone()));
                    }
                }
            }
        }
        // An error means that the caller is gone.
        let _ = job.answer.send(Ok(vectors));
    }
}

/// The state of the thread.
struct Worker {
    choice: ModelChoice,
    /// The folder where vectors are kept between runs.
    cache: Option<PathBuf>,
    /// The ONNX Runtime library that runs a folder's model.
    library: Option<PathBuf>,
    idle: Duration,
    jobs: Jobs,
    tell_state: watch::Sender<State>,
    loaded: Arc<AtomicBool>,
}

impl Worker {
    fn work(mut self, tell_files: &watch::Sender<Option<ModelFiles>>) {
        if let Err(reason) = self.embed(tell_files) {
            tracing::warn!(%reason, "search by meaning is not available; using keywords only");
            self.tell_state.send_replace(Some(Err(EmbedError::Unavailable(reason.into()))));
        }
    }

    /// Reads the model's files and announces its cache. Then answers jobs until all handles are gone, and
    /// keeps the model in memory while there is work.
    fn embed(&mut self, tell_files: &watch::Sender<Option<ModelFiles>>) -> Result<(), String> {
        let source = ModelSource::open(&self.choice)?;
        let fingerprint = source.fingerprint()?;
        let cache = self.cache.as_deref().map(|folder| Cache::new(folder, &fingerprint));
        cache.iter().for_each(Cache::tidy);
        tell_files.send_replace(Some(ModelFiles { fingerprint: fingerprint.into(), cache }));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        loop {
            let first = match runtime.block_on(self.jobs.next()) {
                Next::Embed(job) => Some(job),
                Next::Load => None,
                Next::End => return Ok(()),
            };
            let loaded = guarded(|| Model::load(&source, self.library.as_deref()));
            let mut model = match loaded {
                Ok(model) => model,
                Err(reason) => {
                    if let Some(job) = first {
                        let _ = job.answer.send(Err(EmbedError::Unavailable(reason.as_str().into())));
                    }
                    return Err(reason);
                }
            };
            // Loading may have unpacked weights.
            allocator::give_back();
            self.loaded.store(true, Ordering::Relaxed);
            self.tell_state.send_replace(Some(Ok(model.backend.clone())));
            first.into_iter().for_each(|job| self.jobs.answer(job, &mut model));
            let jobs = &mut self.jobs;
            // Whether documents were embedded since memory was last given back.
            let mut indexed = true;
            loop {
                let wait = if indexed { QUIET.min(self.idle) } else { self.idle };
                match runtime.block_on(async { timeout(wait, jobs.next()).await }) {
                    Ok(Next::Embed(job)) => {
                        indexed |= job.kind == TextRole::Document;
                        jobs.answer(job, &mut model);
                    }
                    Ok(Next::Load) => {}
                    Ok(Next::End) => return Ok(()),
                    Err(_) if indexed => {
                        allocator::give_back();
                        indexed = false;
                    }
                    Err(_) => break,
                }
            }
            drop(model);
            self.loaded.store(false, Ordering::Relaxed);
            allocator::give_back();
            source.page_out();
        }
    }
}

/// Whether a second thread would find a core without work.
fn has_idle_core() -> bool {
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let load = std::fs::read_to_string("/proc/loadavg").ok();
    // proc_loadavg(5): the fourth field has the number of threads that run or could, this one included.
    let running = load.as_deref().and_then(|load| load.split([' ', '/']).nth(3)?.parse::<usize>().ok());
    running.map_or(cores > 2, |running| running < cores)
}

/// Turns a panic inside an engine into an error, so that the thread survives.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(format!("the engine panicked: {}", said.unwrap_or_default()))
    })
}

fn stopped() -> EmbedError {
    EmbedError::Unavailable("the embedder has stopped".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Boosts, Document, Index, RankingWeights, prepare};

    #[test]
    fn the_last_queries_are_remembered() {
        let mut memory = Memory::default();
        let vector: Arc<[f32]> = vec![1.0].into();
        for number in 0..REMEMBERED_QUERIES {
            memory.remember_query(&number.to_string(), &vector);
        }
        assert!(memory.query("0").is_some());
        memory.remember_query("new", &vector);
        assert!(memory.query("0").is_some(), "used a moment ago");
        assert!(memory.query("1").is_none(), "not used for the longest time");
        assert_eq!(memory.queries.len(), REMEMBERED_QUERIES);
    }

    #[tokio::test]
    async fn a_failed_load_is_the_reason() {
        let settings = Settings { model: Some("/nowhere".into()), ..Settings::default() };
        let embedder = Embedder::start(&settings);
        let reason = embedder.ready().await.expect_err("there is no such model").to_string();
        assert!(reason.contains("/nowhere"), "{reason}");
        assert_eq!(embedder.embed_queries(&["x".into()]).await.expect_err("not ready").to_string(), reason);
        assert_eq!(
            embedder
                .embed_documents(&[Passage::new(vec![("x".into(), 1.0)])], |_, _| {})
                .await
                .expect_err("not ready")
                .to_string(),
            reason
        );
    }

    /// Loads the model, which only a few tests do.
    #[tokio::test(flavor = "multi_thread")]
    async fn meaning_is_in_the_vectors_and_known_texts_are_not_embedded_again() {
        crate::built_in::bring_models();
        let folder = tempfile::tempdir().expect("temporary folder");
        let settings = Settings { cache: Some(folder.path().into()), ..Settings::default() };
        let others = Arc::new(OtherProcesses::default());
        let embedder = Embedder::sharing(&settings, Some(others.clone()));
        let texts = ["mail: send a message", "weather: forecast for a city", "mail: send a message"];
        let texts = || {
            texts.map(|text| Passage::new(vec![(text.to_owned(), 1.0), ("mail".to_owned(), 0.2)])).to_vec()
        };
        let vectors = embedder.embed_documents(&texts(), |_, _| {}).await.expect("the model is compiled in");
        let vectors: Vec<Arc<[f32]>> = vectors.into_iter().flatten().collect();
        let query = embedder
            .embed_queries(&["will it rain tomorrow".into()])
            .await
            .expect("the model is compiled in");
        let query = &query[0];
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        assert!(dot(query, &vectors[1]) > dot(query, &vectors[0]));
        assert_eq!(vectors[0], vectors[2]);
        assert!((dot(query, query) - 1.0).abs() < 1e-3);
        assert!((dot(&vectors[0], &vectors[0]) - 1.0).abs() < 1e-3);

        let again = Embedder::start(&settings);
        let first_told = Arc::new(Mutex::new(None));
        let told = first_told.clone();
        let progress = move |done, total| {
            let _ = told.lock().expect("no panic").get_or_insert((done, total));
        };
        let known = again.embed_documents(&texts(), progress).await.expect("known");
        assert!(!again.is_loaded(), "nothing was embedded");
        assert_eq!(known.into_iter().flatten().collect::<Vec<_>>(), vectors);
        assert_eq!(*first_told.lock().expect("no panic"), Some((3, 3)));

        // One new text means one text to embed.
        let mut more = texts();
        more.push(Passage::new(vec![("files: read a file".to_owned(), 1.0)]));
        assert_eq!(again.known_documents(&more).iter().filter(|vector| vector.is_some()).count(), 3);
        let told = first_told.clone();
        let progress = move |done, total| *told.lock().expect("no panic") = Some((done, total));
        let new = again.embed_documents(&more, progress).await.expect("the model is compiled in");
        assert_eq!(new.len(), 4);
        assert_eq!(*first_told.lock().expect("no panic"), Some((4, 4)));
        assert!(again.known_documents(&more).iter().all(Option::is_some));

        // Another machine, with an empty disk cache.
        let elsewhere = tempfile::tempdir().expect("temporary folder");
        let settings = Settings { cache: Some(elsewhere.path().into()), ..Settings::default() };
        let embedder = Embedder::sharing(&settings, Some(others.clone()));
        let known = embedder.embed_documents(&texts(), |_, _| {}).await.expect("known");
        assert_eq!(known.into_iter().flatten().collect::<Vec<_>>(), vectors, "bit by bit");
        assert!(!embedder.is_loaded(), "nothing was embedded");
        let reads = others.reads.load(Ordering::Relaxed);
        let again = Embedder::sharing(&settings, Some(others.clone()));
        again.embed_documents(&texts(), |_, _| {}).await.expect("known");
        assert!(!again.is_loaded());
        assert_eq!(others.reads.load(Ordering::Relaxed), reads, "the disk comes first");
    }

    type ByModel = HashMap<(String, ContentKey), Arc<[f32]>>;

    /// The vectors of other processes, in memory.
    #[derive(Debug, Default)]
    struct OtherProcesses {
        vectors: Mutex<ByModel>,
        reads: std::sync::atomic::AtomicUsize,
    }

    impl SharedVectors for OtherProcesses {
        fn read<'a>(
            &'a self,
            model: &'a str,
            keys: &'a [ContentKey],
        ) -> BoxFuture<'a, Vec<Option<Arc<[f32]>>>> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            let vectors = self.vectors.lock().expect("no panic");
            let found = keys.iter().map(|key| vectors.get(&(model.to_owned(), *key)).cloned()).collect();
            Box::pin(std::future::ready(found))
        }

        fn offer<'a>(&'a self, model: &'a str, vectors: &'a [(ContentKey, Arc<[f32]>)]) -> BoxFuture<'a, ()> {
            let named = vectors.iter().map(|(key, vector)| ((model.to_owned(), *key), vector.clone()));
            self.vectors.lock().expect("no panic").extend(named);
            Box::pin(std::future::ready(()))
        }
    }

    #[tokio::test]
    async fn of_shared_vectors_those_of_another_length_are_embedded_again() {
        crate::built_in::bring_models();
        let folder = tempfile::tempdir().expect("temporary folder");
        let settings = Settings { cache: Some(folder.path().into()), ..Settings::default() };
        let others = Arc::new(OtherProcesses::default());
        let passages =
            ["one", "two", "three"].map(|text| Passage::new(vec![(text.to_owned(), 1.0)])).to_vec();
        let embedder = Embedder::sharing(&settings, Some(others.clone()));
        let model = embedder.fingerprint().await.expect("the model is compiled in");
        let lengths = [4, 5, 4];
        let vectors: Vec<(ContentKey, Arc<[f32]>)> = passages
            .iter()
            .zip(lengths)
            .map(|(passage, length)| (passage.key, vec![0.5; length].into()))
            .collect();
        others.offer(&model, &vectors).await;
        let files = embedder.files().await.expect("the model is compiled in");
        let mut known = HashMap::new();
        embedder.fetch(&passages.keys(), &mut known, &files).await;
        let found = passages.iter().map(|passage| known.contains_key(&passage.key)).collect::<Vec<_>>();
        assert_eq!(found, [true, false, true]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_idle_model_is_dropped_and_loaded_again() {
        crate::built_in::bring_models();
        let folder = tempfile::tempdir().expect("temporary folder");
        let settings = Settings { cache: Some(folder.path().into()), ..Settings::default() };
        let embedder = Embedder::start_with(&settings, None, Duration::from_millis(1));
        let embed = async |text: &str| embedder.embed_queries(&[text.to_owned()]).await;
        let first = embed("rain").await.expect("the model is compiled in");
        let began = std::time::Instant::now();
        while embedder.is_loaded() {
            assert!(began.elapsed() < Duration::from_secs(20), "it is not dropped");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(embed("rain").await, Ok(first), "remembered");
        assert!(!embedder.is_loaded());
        assert!(embed("snow").await.is_ok());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_request_in_another_language_meets_tools_that_were_embedded_in_english() {
        crate::built_in::bring_models();
        let folder = tempfile::tempdir().expect("temporary folder");
        let settings = Settings { cache: Some(folder.path().into()), ..Settings::default() };
        let embedder = Embedder::start(&settings);
        let documents = [
            ("files.read_file", "Reads the contents of a file"),
            ("weather.forecast", "Weather forecast for a city"),
            ("mail.send", "Sends a message to people"),
        ]
        .map(|(id, description)| {
            let (server, name) = id.split_once('.').expect("a full name");
            let nothing = serde_json::Value::Null;
            Document::from_definition(id, server, name, "", description, &nothing, vec![], "")
        });
        let passages: Vec<Passage> =
            documents.iter().map(|document| document.passage(settings.weights)).collect();
        let vectors = embedder.embed_documents(&passages, |_, _| {}).await.expect("the model is compiled in");
        let index = Index::new(documents.to_vec(), &settings).with_vectors(vectors);
        let first = async |request: &str| {
            let query = prepare(&index, Some(&embedder), request).await;
            let found = index.search(&query, 1, &|_| true, &Boosts::new());
            index.documents()[found.hits[0].document].id.to_string()
        };
        assert_eq!(first("read a file").await, "files.read_file");
        let languages = embedder.for_languages().expect("the built-in models are in use");
        assert!(!languages.is_loaded(), "nobody has asked in another language");
        for (request, expected) in [
            ("파일을 읽어줘", "files.read_file"),
            ("przeczytaj plik", "files.read_file"),
            ("ファイルを読む", "files.read_file"),
            ("czy jutro będzie padać deszcz?", "weather.forecast"),
            ("อากาศที่กรุงเทพเป็นอย่างไร", "weather.forecast"),
            ("Anna'ya bir mesaj yaz", "mail.send"),
        ] {
            assert_eq!(first(request).await, expected, "{request}");
        }
        assert!(languages.is_loaded());
        let facts = [
            "이 팀은 매주 월요일에 회의를 한다",
            "Hasło do sieci zmieniamy co kwartał",
            "The office closes at six",
        ];
        let facts = facts.map(|fact| Document::prose(fact, fact, Vec::new()).passage(&RankingWeights::PROSE));
        let vectors = embedder.embed_documents(&facts, |_, _| {}).await.expect("the model is compiled in");
        for (request, expected) in [("when does the team meet", 0), ("how often is the password changed", 1)]
        {
            let request = embedder.embed_queries(&[request.to_owned()]).await.expect("a vector").remove(0);
            let cosine = |vector: &Arc<[f32]>| request.iter().zip(&**vector).map(|(a, b)| a * b).sum::<f32>();
            let cosines: Vec<f32> = vectors.iter().flatten().map(cosine).collect();
            let best = (0..3).max_by(|a, b| cosines[*a].total_cmp(&cosines[*b]));
            assert_eq!(best, Some(expected), "{cosines:?}");
        }
        let of_a_folder = Embedder::start(&Settings { model: Some("/nowhere".into()), ..settings });
        assert!(of_a_folder.for_languages().is_none(), "its model may read any language");
    }
}
