//! A loaded sentence embedding model: texts in, one normalised vector for each out.
//!
//! The built-in model runs on the encoder; a folder with any sentence-transformers export runs on ONNX
//! Runtime, with its JSON files (`recipe`). Knows tokenizers and models, not queues, caches or parts of
//! documents. Errors name the file and the remedy, since the operator reads them in a log.

mod graph;
#[cfg(test)]
mod onnx;
mod recipe;
#[cfg(test)]
mod tests;
mod tokens;

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use nonet_base::allocator;
use nonet_encoder::{Encoder, PackedModel};
use sha2::{Digest, Sha256};
use tokenizers::Encoding;

use self::{
    graph::Graph,
    recipe::{Pooling, Recipe},
    tokens::TextTokenizer,
};
use super::{Backend, built_in, onnxruntime, text};

/// Tokens read from a document's text. Measured: more (up to 512) finds nothing better and multiplies the
/// indexing time.
const DOCUMENT_TOKENS: usize = 96;
/// Tokens read from a query. Short queries cost no more; long ones are found better than with 64.
const QUERY_TOKENS: usize = 96;
/// Characters read per token. An English token has four to five; the margin keeps a text of a megabyte as
/// cheap as a page.
const CHARACTERS_PER_TOKEN: usize = 20;
/// Tokens of a run of several texts. Each run reads all weights, so short texts cost less together; a request
/// waits for a run of documents, and longer runs are hardly faster.
const RUN_TOKENS: usize = 96;
/// What the encoder of other languages was trained with before each text (Wang et al. 2024, "Multilingual E5
/// Text Embeddings").
const LANGUAGES_PROMPT: &str = "query: ";
/// The fingerprint of the built-in models and of what chooses between them, computed like a folder's.
const BUILT_IN: &str = "b4f152c0213e02c4";
/// The remedy for most errors of a folder.
const EXPORT: &str = "`optimum-cli export onnx --model NAME DIR`";

/// The role of a text. Some models are trained with a different prompt for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextRole {
    Query,
    Document,
}

/// Which model an embedder runs.
#[derive(Clone, Debug)]
pub(super) enum ModelChoice {
    /// The built-in encoder of English.
    Tools,
    /// The built-in encoder of texts in other languages.
    Languages,
    /// A folder's.
    Folder(PathBuf),
}

/// Where a model's weights are.
enum Weights {
    BuiltIn(&'static PackedModel),
    /// With the tokenizer's bytes.
    File(PathBuf, Vec<u8>),
}

/// A model's files, located and read as far as the fingerprint needs.
pub(super) struct ModelSource {
    weights: Weights,
    tokenizer_file: PathBuf,
    recipe: Recipe,
    /// The error matters only if the graph leaves pooling to us.
    pooling: Result<Pooling, String>,
}

impl ModelSource {
    /// Opens the model of a folder, or a built-in one.
    pub(super) fn open(choice: &ModelChoice) -> Result<ModelSource, String> {
        let own = || built_in::built_in().ok_or("this program has no built-in model");
        let of_program = |own: &'static PackedModel, prompt: &str| ModelSource {
            weights: Weights::BuiltIn(own),
            tokenizer_file: format!("the built-in tokenizer of {}", own.name).into(),
            recipe: Recipe {
                query_prompt: prompt.to_owned(),
                document_prompt: prompt.to_owned(),
                ..Recipe::default()
            },
            pooling: Ok(Pooling::Mean),
        };
        let folder = match choice {
            ModelChoice::Tools => return Ok(of_program(own()?.tools, "")),
            ModelChoice::Languages => return Ok(of_program(own()?.languages, LANGUAGES_PROMPT)),
            ModelChoice::Folder(folder) => folder,
        };
        if !folder.is_dir() {
            return Err(format!(
                "{}: no such folder; `[embedder] model` names the folder that holds model.onnx and tokenizer.json",
                folder.display()
            ));
        }
        let graph = ["model.onnx", "onnx/model.onnx"]
            .into_iter()
            .map(|name| folder.join(name))
            .find(|file| file.is_file());
        let graph = graph.ok_or_else(|| {
            format!("{}: contains no model.onnx or onnx/model.onnx; {EXPORT} creates one", folder.display())
        })?;
        let tokenizer_file = folder.join("tokenizer.json");
        let tokenizer = fs::read(&tokenizer_file).map_err(|error| {
            format!(
                "{}: {error}; {EXPORT} writes it, and so does `AutoTokenizer.from_pretrained(NAME).save_pretrained(DIR)` \
                 of transformers",
                tokenizer_file.display()
            )
        })?;
        let (recipe, pooling) = (Recipe::read(folder)?, Pooling::read(folder));
        Ok(ModelSource { weights: Weights::File(graph, tokenizer), tokenizer_file, recipe, pooling })
    }

    /// Returns the pages of a built-in model to the system.
    pub(super) fn page_out(&self) {
        if let Weights::BuiltIn(own) = self.weights {
            allocator::page_out(own.weights);
        }
    }

    /// Returns sixteen hex digits of a SHA-256 over everything that a document's vector depends on, to tell
    /// models apart.
    pub(super) fn fingerprint(&self) -> Result<String, String> {
        let mut hash = Sha256::new();
        match &self.weights {
            // Reading the model's 24 MB would keep them in memory.
            Weights::BuiltIn(_) => return Ok(BUILT_IN.to_owned()),
            Weights::File(graph, tokenizer) => {
                // Large exports keep their weights in a second file.
                let weights = ["onnx_data", "onnx.data"].map(|ending| graph.with_extension(ending));
                for file in [graph].into_iter().chain(weights.iter().filter(|file| file.is_file())) {
                    let fault = |error| format!("{}: {error}", file.display());
                    let mut reader = fs::File::open(file).map_err(fault)?;
                    std::io::copy(&mut reader, &mut HashWriter(&mut hash)).map_err(fault)?;
                }
                hash.update(format!("{:?} {:?}", self.recipe, self.pooling.as_ref().ok()));
                hash.update(tokenizer);
            }
        }
        hash.update(DOCUMENT_TOKENS.to_le_bytes());
        Ok(nonet_base::text::hex(&hash.finalize()[..8]))
    }
}

struct HashWriter<'a>(&'a mut Sha256);

impl std::io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub(super) struct Model {
    runner: Runner,
    tokenizer: TextTokenizer,
    lower_case: bool,
    query: Frame,
    document: Frame,
    pub(super) backend: Backend,
}

enum Runner {
    /// One for each thread that runs the model.
    BuiltIn(Vec<Encoder<'static>>, &'static PackedModel),
    Graph(Graph),
}

/// The prompt of one kind of text, and the tokens read from both together.
struct Frame {
    prompt: String,
    tokens: usize,
}

impl Model {
    /// Loads the tokenizer and the model. The `library` runs the model of a folder.
    pub(super) fn load(source: &ModelSource, library: Option<&Path>) -> Result<Model, String> {
        let tokenizer_name = source.tokenizer_file.display();
        let tokenizer = match &source.weights {
            Weights::BuiltIn(own) => TextTokenizer::of_program(&own.tokenizer),
            Weights::File(_, json) => TextTokenizer::of_json(json),
        };
        let mut tokenizer = tokenizer.map_err(|error| {
            format!("{tokenizer_name}: not a supported tokenizer: {error}; use the one that {EXPORT} writes")
        })?;
        let (query, document) =
            frames(&mut tokenizer, &source.recipe).map_err(|reason| format!("{tokenizer_name}: {reason}"))?;
        let (runner, backend) = match &source.weights {
            Weights::BuiltIn(own) => (Runner::BuiltIn(vec![encoder(own)?], own), built_in::backend()),
            Weights::File(file, _) => {
                let engine = onnxruntime::engine(library)?;
                let name = tokenizer_name.to_string();
                let graph = Graph::load(file, source.pooling.clone(), engine, tokenizer.vocabulary(), &name)?;
                (Runner::Graph(graph), engine.backend.clone())
            }
        };
        let lower_case = source.recipe.lower_case;
        let mut model = Model { runner, tokenizer, lower_case, query, document, backend };
        // The first query does not pay for what is made at the first use.
        let warm_up = model.tokens("warm up", TextRole::Query)?;
        model.embed(&[&[(0, warm_up)]]).remove(0)?;
        Ok(model)
    }

    /// Returns the first 96 tokens of a text, or fewer if the model's limit is lower.
    pub(super) fn tokens(&mut self, text: &str, kind: TextRole) -> Result<Encoding, String> {
        let frame = match kind {
            TextRole::Query => &self.query,
            TextRole::Document => &self.document,
        };
        let text = text::cut(text, frame.tokens.saturating_mul(CHARACTERS_PER_TOKEN));
        let mut text = format!("{}{text}", frame.prompt);
        if self.lower_case {
            text = text.to_lowercase();
        }
        let encoding = self.tokenizer.cut(&text, frame.tokens)?;
        if encoding.is_empty() {
            return Err("the tokenizer found no tokens in the text".to_owned());
        }
        Ok(encoding)
    }

    /// Groups texts for [`Model::embed`]; each keeps its index.
    pub(super) fn batches<'a>(&self, texts: &'a [(usize, Encoding)]) -> Vec<&'a [(usize, Encoding)]> {
        if matches!(self.runner, Runner::Graph(_)) {
            return texts.chunks(1).collect();
        }
        let mut tokens = texts.first().map_or(0, |(_, text)| text.len());
        let fits = |_: &(usize, Encoding), next: &(usize, Encoding)| {
            tokens += next.1.len();
            tokens <= RUN_TOKENS || {
                tokens = next.1.len();
                false
            }
        };
        texts.chunk_by(fits).collect()
    }

    /// Whether two runs take less time together than one after the other, where there are two cores.
    pub(super) fn is_parallel(&self) -> bool {
        matches!(self.runner, Runner::BuiltIn(..))
    }

    /// Returns the normalised vectors of the texts of each run. Runs of the built-in model have a thread
    /// each.
    pub(super) fn embed(&mut self, runs: &[&[(usize, Encoding)]]) -> Vec<Result<Vec<Vec<f32>>, String>> {
        let (encoders, own) = match &mut self.runner {
            Runner::Graph(graph) => {
                let mut run =
                    |run: &[(usize, Encoding)]| run.iter().map(|(_, text)| graph.embed(text)).collect();
                return runs.iter().map(|texts| run(texts)).collect();
            }
            Runner::BuiltIn(encoders, own) => (encoders, own),
        };
        encoders.extend((encoders.len()..runs.len()).filter_map(|_| encoder(own).ok()));
        let run = |encoder: &mut Encoder<'_>, texts: &[(usize, Encoding)]| {
            let texts: Vec<&[u32]> = texts.iter().map(|(_, text)| text.get_ids()).collect();
            encoder.embed(&texts).map_err(|error| format!("the built-in model: {error}"))
        };
        let mut work = encoders.iter_mut().zip(runs);
        let first = work.next();
        let results: Vec<Option<Result<_, String>>> = thread::scope(|scope| {
            let spawn = |work| thread::Builder::new().spawn_scoped(scope, work);
            let others: Vec<_> = work.map(|(encoder, texts)| spawn(move || run(encoder, texts))).collect();
            let first = first.map(|(encoder, texts)| run(encoder, texts));
            let panicked = |_| Err("the engine panicked".to_owned());
            let others = others.into_iter().map(|other| Some(other.ok()?.join().unwrap_or_else(panicked)));
            std::iter::once(first).chain(others).collect()
        });
        // Without a thread of its own, a run comes after the others.
        let late =
            |(result, texts): (Option<_>, &&[_])| result.unwrap_or_else(|| run(&mut encoders[0], texts));
        results.into_iter().zip(runs).map(late).collect()
    }
}

fn encoder(own: &PackedModel) -> Result<Encoder<'static>, String> {
    Encoder::new(own.weights).map_err(|error| format!("the built-in model: {error}"))
}

/// Returns the frames of requests and documents.
fn frames(tokenizer: &mut TextTokenizer, recipe: &Recipe) -> Result<(Frame, Frame), String> {
    let most = recipe.max_tokens.or(tokenizer.limit());
    let most = most.into_iter().chain(recipe.positions).min().unwrap_or(usize::MAX);
    let mut tokens = |text: &str| tokenizer.cut(text, usize::MAX).map(|encoding| encoding.len());
    let special = tokens("")?;
    let mut frame = |prompt: &str, wanted: usize| {
        let around = tokens(prompt)?;
        if around >= most {
            return Err(format!(
                "the model accepts {most} tokens, and the prompt and special tokens need {around}, which \
                 leaves none for the text; correct `max_seq_length` in sentence_bert_config.json"
            ));
        }
        // The prompt's tokens come on top of those of the text.
        let tokens = (wanted + around.saturating_sub(special)).min(most);
        Ok(Frame { prompt: prompt.to_owned(), tokens })
    };
    Ok((frame(&recipe.query_prompt, QUERY_TOKENS)?, frame(&recipe.document_prompt, DOCUMENT_TOKENS)?))
}

#[cfg(test)]
mod of_the_built_in {
    use super::*;

    #[test]
    fn its_fingerprint_is_that_of_its_files() {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
        let mut hash = Sha256::new();
        for file in [
            "minilm-tools.int8w.onnx",
            "tokenizer.json",
            "languages.onnx",
            "languages.tokenizer.json",
            "../crates/search/src/english.weights",
        ] {
            hash.update(fs::read(models.join(file)).expect("a file of the model"));
        }
        hash.update(DOCUMENT_TOKENS.to_le_bytes());
        assert_eq!(BUILT_IN, nonet_base::text::hex(&hash.finalize()[..8]));
    }

    #[test]
    fn texts_that_fit_into_a_run_go_together_and_runs_side_by_side() {
        built_in::bring_models();
        let source = ModelSource::open(&ModelChoice::Tools).expect("it is there");
        let mut model = Model::load(&source, None).expect("it needs no library");
        let words = |count: usize| "mail ".repeat(count);
        // With the two tokens around each text.
        let texts = [words(40), words(40), words(8), words(1), words(94), String::new()];
        let tokens: Vec<(usize, Encoding)> = texts
            .iter()
            .map(|text| model.tokens(text, TextRole::Document).expect("tokens"))
            .enumerate()
            .collect();
        let batches = model.batches(&tokens);
        let place = |(place, _): &(usize, Encoding)| *place;
        let places: Vec<Vec<usize>> = batches.iter().map(|batch| batch.iter().map(place).collect()).collect();
        assert_eq!(places, [vec![0, 1, 2], vec![3], vec![4], vec![5]]);
        let apart: Vec<_> = batches.iter().map(|batch| model.embed(&[batch]).remove(0)).collect();
        assert_eq!(model.embed(&batches), apart, "each run on a thread of its own");
        assert!(apart.iter().all(Result::is_ok));
    }
}
