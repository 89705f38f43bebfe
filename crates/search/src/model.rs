//! A loaded sentence embedding model: text in, one normalised vector out.
//!
//! Knows tokenizers and graphs, not queues, caches or parts of documents. Does not depend on the built-in
//! weights: any sentence-transformers export in a folder works, with its JSON files (`recipe`). Errors name
//! the file and the remedy, since the operator reads them in a log.

mod recipe;
#[cfg(all(test, feature = "tract"))]
mod tests;
mod vocabulary;

use std::{
    borrow::Cow,
    fs,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use ort::{
    session::{Session, builder::GraphOptimizationLevel},
    value::{Outlet, Tensor, TensorElementType, ValueType},
};
use sha2::{Digest, Sha256};
use tokenizers::{Tokenizer, TruncationParams};

use self::recipe::{Pooling, Recipe};
use super::{
    int8,
    onnxruntime::{self, Engine, whole},
    text,
    vectors::normalized,
};

/// Tokens read from a document's text. Measured: more (up to 512) finds nothing better and multiplies the
/// indexing time.
const DOCUMENT_TOKENS: usize = 96;
/// Tokens read from a query. Short queries cost no more; long ones are found better than with 64.
const QUERY_TOKENS: usize = 96;
/// Characters read per token. An English token has four to five; the margin keeps a text of a megabyte as
/// cheap as a page.
const CHARACTERS_PER_TOKEN: usize = 20;
/// The fingerprint of the built-in model, as that of a folder is made.
const BUILT_IN: &str = "b7b65dc3d6c2e9ec";
/// The graph inputs that can be supplied.
const INPUTS: [&str; 3] = ["input_ids", "attention_mask", "token_type_ids"];
/// The supported outputs, best first.
const OUTPUTS: [&str; 3] = ["sentence_embedding", "last_hidden_state", "token_embeddings"];
/// The remedy for most errors of a folder.
const EXPORT: &str = "`optimum-cli export onnx --model NAME DIR`";

/// The role of a text. Some models are trained with a different prompt for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Query,
    Document,
}

/// A model's files, located and read as far as the fingerprint needs.
pub(super) struct Source {
    /// The graph's file; `None` for the built-in graph.
    graph: Option<PathBuf>,
    tokenizer_file: PathBuf,
    tokenizer: Cow<'static, [u8]>,
    recipe: Recipe,
    /// An error only matters if the graph leaves pooling to us.
    pooling: Result<Pooling, String>,
}

impl Source {
    /// Opens the model of a folder, or the built-in one.
    pub(super) fn open(folder: Option<&Path>) -> Result<Source, String> {
        let Some(folder) = folder else {
            return Ok(Source {
                graph: None,
                tokenizer_file: "the built-in tokenizer.json".into(),
                tokenizer: nonet_model::TOKENIZER.into(),
                recipe: Recipe::default(),
                pooling: Ok(Pooling::Mean),
            });
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
        if graph.is_none() {
            return Err(format!(
                "{}: no model.onnx or onnx/model.onnx in it; {EXPORT} makes one",
                folder.display()
            ));
        }
        let tokenizer_file = folder.join("tokenizer.json");
        let tokenizer = fs::read(&tokenizer_file).map_err(|error| {
            format!(
                "{}: {error}; {EXPORT} writes it, and so does `AutoTokenizer.from_pretrained(NAME).save_pretrained(DIR)` \
                 of transformers",
                tokenizer_file.display()
            )
        })?;
        let (recipe, pooling) = (Recipe::read(folder)?, Pooling::read(folder));
        Ok(Source { graph, tokenizer_file, tokenizer: tokenizer.into(), recipe, pooling })
    }

    /// Returns sixteen hex digits of a SHA-256 over everything that a document's vector depends on, to tell
    /// models apart.
    pub(super) fn fingerprint(&self) -> Result<String, String> {
        let mut hash = Sha256::new();
        match &self.graph {
            // Reading its 24 MB would keep them in memory.
            None => return Ok(BUILT_IN.to_owned()),
            Some(graph) => {
                // Large exports keep their weights in a second file.
                let weights = ["onnx_data", "onnx.data"].map(|ending| graph.with_extension(ending));
                for file in [graph].into_iter().chain(weights.iter().filter(|file| file.is_file())) {
                    let fault = |error| format!("{}: {error}", file.display());
                    let mut reader = fs::File::open(file).map_err(fault)?;
                    std::io::copy(&mut reader, &mut HashWriter(&mut hash)).map_err(fault)?;
                }
                hash.update(format!("{:?} {:?}", self.recipe, self.pooling.as_ref().ok()));
            }
        }
        hash.update(&self.tokenizer);
        hash.update(DOCUMENT_TOKENS.to_le_bytes());
        Ok(nonet_base::text::hex(&hash.finalize()[..8]))
    }

    /// Returns the name of the graph in errors.
    fn name(&self) -> String {
        self.graph.as_ref().map_or("the built-in model".to_owned(), |file| file.display().to_string())
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
    session: Session,
    tokenizer: Tokenizer,
    /// The name of the graph in errors.
    name: String,
    /// The graph's inputs among [`INPUTS`].
    inputs: Vec<&'static str>,
    output: String,
    pooling: Result<Pooling, String>,
    /// The number of tokens that the graph knows, if detectable.
    vocabulary: Option<usize>,
    lower_case: bool,
    query: Frame,
    document: Frame,
    pub(super) engine: &'static Engine,
}

/// The prompt of one kind of text, and the tokens read from both together.
struct Frame {
    prompt: String,
    tokens: usize,
}

impl Model {
    /// Loads graph and tokenizer, and runs once so that the first query does not pay for it.
    pub(super) fn load(source: &Source, library: Option<&Path>) -> Result<Model, String> {
        let name = source.name();
        let tokenizer_name = source.tokenizer_file.display();
        let mut tokenizer = Tokenizer::from_bytes(&source.tokenizer).map_err(|error| {
            format!("{tokenizer_name}: not a tokenizer that is known here: {error}; take the one that {EXPORT} writes")
        })?;
        let (query, document) =
            frames(&mut tokenizer, &source.recipe).map_err(|reason| format!("{tokenizer_name}: {reason}"))?;
        let vocabulary = match &source.graph {
            None => None,
            Some(file) => {
                vocabulary::size(fs::read(file).map_err(|error| format!("{name}: {error}"))?.into())
            }
        };

        let engine = onnxruntime::engine(library)?;
        let session = session(source, engine).map_err(|error| {
            format!(
                "{name}: cannot be loaded: {}; is the file complete, and not a Git LFS pointer? {EXPORT} exports it again",
                whole(&error)
            )
        })?;
        let fault = |reason: String| format!("{name}: {reason}");
        let mut model = Model {
            inputs: inputs(session.inputs()).map_err(fault)?,
            output: output(session.outputs()).map_err(fault)?,
            session,
            tokenizer,
            name: name.clone(),
            pooling: source.pooling.clone(),
            vocabulary,
            lower_case: source.recipe.lower_case,
            query,
            document,
            engine,
        };

        if !engine.native && source.graph.is_some() && model.vocabulary.is_none() {
            // The built-in engine aborts the process on a token that the graph lacks, so the number must be
            // known in advance.
            return Err(fault(format!(
                "the graph does not show how many tokens it knows, which the built-in engine needs; use ONNX Runtime (`pip \
                 install onnxruntime`), or export a graph of the usual form with {EXPORT}"
            )));
        }
        // If the first token runs and the last fails, the graph has fewer.
        model.run(&[0], &[0])?;
        let size = model.tokenizer.get_vocab_size(false);
        let last = u32::try_from(size.saturating_sub(1)).unwrap_or(u32::MAX);
        model.run(&[last], &[0]).map_err(|error| {
            format!(
                "{tokenizer_name}: has {size} tokens, and the graph does not know the last of them ({error}); the two do \
                 not belong together: take both from one export"
            )
        })?;
        model.embed("warm up", Kind::Query)?;
        Ok(model)
    }

    /// Returns the normalised vector of a text, from its first 96 tokens, or fewer if the model's limit is
    /// lower.
    pub(super) fn embed(&mut self, text: &str, kind: Kind) -> Result<Vec<f32>, String> {
        let frame = match kind {
            Kind::Query => &self.query,
            Kind::Document => &self.document,
        };
        let truncation = TruncationParams { max_length: frame.tokens, ..Default::default() };
        self.tokenizer.with_truncation(Some(truncation)).map_err(|error| error.to_string())?;
        let text = text::cut(text, frame.tokens.saturating_mul(CHARACTERS_PER_TOKEN));
        let mut text = format!("{}{text}", frame.prompt);
        if self.lower_case {
            text = text.to_lowercase();
        }
        let encoding = self.tokenizer.encode_fast(text, true).map_err(|error| error.to_string())?;
        if encoding.is_empty() {
            return Err("the tokenizer made nothing of the text".to_owned());
        }
        self.run(encoding.get_ids(), encoding.get_type_ids())
    }

    fn run(&mut self, ids: &[u32], types: &[u32]) -> Result<Vec<f32>, String> {
        let known = self.vocabulary.unwrap_or(usize::MAX);
        if let Some(id) = ids.iter().find(|&&id| usize::try_from(id).is_ok_and(|id| id >= known)) {
            return Err(format!("{}: knows {known} tokens, and not number {id}", self.name));
        }
        let row = |values: Vec<i64>| Tensor::from_array(([1, values.len()], values));
        let long = |values: &[u32]| values.iter().map(|&value| i64::from(value)).collect();
        let failed = |error: ort::Error| format!("{}: cannot be run: {}", self.name, whole(&error));
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for &input in &self.inputs {
            let values = match input {
                "input_ids" => long(ids),
                "token_type_ids" => long(types),
                _ => vec![1; ids.len()],
            };
            inputs.push((input, row(values).map_err(failed)?));
        }
        let outputs = self.session.run(inputs).map_err(failed)?;
        let output = outputs.get(&self.output).ok_or_else(|| format!("{}: gives nothing", self.name))?;
        let (shape, values) = output.try_extract_tensor::<f32>().map_err(failed)?;
        let width = shape.last().and_then(|&width| usize::try_from(width).ok()).filter(|&width| width > 0);
        let vector = match (&shape[..], width) {
            ([1, _], Some(_)) => values.to_vec(),
            ([1, length, _], Some(width)) if usize::try_from(*length) == Ok(ids.len()) => {
                self.pooling.clone()?.pool(values, width)
            }
            _ => {
                return Err(format!(
                    "{}: its output `{}` has the shape {shape:?} for a text of {} tokens; [1, width] for the text or \
                     [1, tokens, width] for its tokens can be read; {EXPORT} makes such a model",
                    self.name,
                    self.output,
                    ids.len()
                ));
            }
        };
        Ok(normalized(vector))
    }
}

/// Replaces the tokenizer's padding and limits, and returns the frames of requests and documents.
fn frames(tokenizer: &mut Tokenizer, recipe: &Recipe) -> Result<(Frame, Frame), String> {
    let own = tokenizer.get_truncation().map(|truncation| truncation.max_length);
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
    let most = recipe.max_tokens.or(own).into_iter().chain(recipe.positions).min().unwrap_or(usize::MAX);
    let tokens = |text: &str| {
        tokenizer.encode_fast(text, true).map(|encoding| encoding.len()).map_err(|error| error.to_string())
    };
    let special = tokens("")?;
    let frame = |prompt: &str, wanted: usize| {
        let around = tokens(prompt)?;
        if around >= most {
            return Err(format!(
                "of {most} tokens that the model takes, prompt and special tokens need {around}, which leaves none for the \
                 text; correct `max_seq_length` in sentence_bert_config.json"
            ));
        }
        // The prompt's tokens come on top of those of the text.
        let tokens = (wanted + around.saturating_sub(special)).min(most);
        Ok(Frame { prompt: prompt.to_owned(), tokens })
    };
    Ok((frame(&recipe.query_prompt, QUERY_TOKENS)?, frame(&recipe.document_prompt, DOCUMENT_TOKENS)?))
}

/// Returns the graph's inputs among [`INPUTS`]. A mask is optional: texts are run one by one, so there is no
/// padding.
fn inputs(graph: &[Outlet]) -> Result<Vec<&'static str>, String> {
    let found = graph.iter().map(|input| {
        let name = INPUTS.into_iter().find(|&name| name == input.name());
        match (name, input.dtype()) {
            (Some(name), ValueType::Tensor { ty: TensorElementType::Int64, .. }) => Ok(name),
            (Some(name), other) => Err(format!(
                "its input `{name}` is {}, and only i64 can be given; {EXPORT} makes such a model",
                element(other)
            )),
            (None, _) => Err(format!(
                "it needs the input `{}`, and only {} can be given; is it a sentence embedding model?",
                input.name(),
                INPUTS.join(", ")
            )),
        }
    });
    let found = found.collect::<Result<Vec<_>, _>>()?;
    if !found.contains(&"input_ids") {
        return Err("it has no input `input_ids`; is it a sentence embedding model?".to_owned());
    }
    Ok(found)
}

/// Selects the output: one of [`OUTPUTS`], or else the only one.
fn output(graph: &[Outlet]) -> Result<String, String> {
    let named = |name: &&str| graph.iter().find(|output| output.name() == *name);
    let only = || graph.first().filter(|_| graph.len() == 1);
    let Some(output) = OUTPUTS.iter().find_map(named).or_else(only) else {
        let names: Vec<&str> = graph.iter().map(Outlet::name).collect();
        return Err(format!(
            "of its outputs ({}) none is {}; is it a sentence embedding model?",
            names.join(", "),
            OUTPUTS.join(", ")
        ));
    };
    match output.dtype() {
        ValueType::Tensor { ty: TensorElementType::Float32, .. } => Ok(output.name().to_owned()),
        other => Err(format!(
            "its output `{}` is {}, and only f32 can be read; {EXPORT} without `--dtype` makes such a model",
            output.name(),
            element(other)
        )),
    }
}

fn element(value: &ValueType) -> String {
    match value {
        ValueType::Tensor { ty, .. } => ty.to_string(),
        _ => "not a tensor".to_owned(),
    }
}

fn session(source: &Source, engine: &Engine) -> Result<Session, ort::Error> {
    if let (None, true) = (&source.graph, engine.native)
        && let Some(graph) = int8::rewritten(Bytes::from_static(nonet_model::GRAPH))
    {
        match plain_session(source, &graph, engine) {
            Err(error) => {
                tracing::info!(%error, "the model runs in float32: this library does not know the int8 operator")
            }
            session => return session,
        }
    }
    plain_session(source, nonet_model::GRAPH, engine)
}

fn plain_session(source: &Source, built_in: &[u8], engine: &Engine) -> Result<Session, ort::Error> {
    let builder = Session::builder(&engine.environment)?;
    // The pure-Rust engine optimises only on request; the native one does by default.
    let mut builder = builder.with_optimization_level(GraphOptimizationLevel::Level3)?;
    if engine.native {
        // One thread: a second one spins against other work, and was slower on a busy machine.
        builder = builder.with_intra_threads(1)?.with_intra_op_spinning(false)?;
    }
    match &source.graph {
        None => builder.commit_from_memory(built_in),
        Some(file) => builder.commit_from_file(file),
    }
}

#[cfg(test)]
mod of_the_built_in {
    use super::*;

    #[test]
    fn its_fingerprint_is_that_of_its_bytes() {
        let mut hash = Sha256::new();
        hash.update(nonet_model::GRAPH);
        hash.update(nonet_model::TOKENIZER);
        hash.update(DOCUMENT_TOKENS.to_le_bytes());
        assert_eq!(BUILT_IN, nonet_base::text::hex(&hash.finalize()[..8]));
    }
}
