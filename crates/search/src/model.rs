//! A loaded sentence embedding model: texts in, one normalised vector for each out.
//!
//! Knows tokenizers and graphs, not queues, caches or parts of documents. Does not depend on the built-in
//! weights: any sentence-transformers export in a folder works, with its JSON files (`recipe`). Errors name
//! the file and the remedy, since the operator reads them in a log.

mod batches;
mod recipe;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::{
    borrow::Cow,
    fs,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use ort::{
    session::{
        Session,
        builder::{GraphOptimizationLevel, SessionBuilder},
    },
    value::{DynTensor, Outlet, Tensor, TensorElementType, ValueType},
};
use sha2::{Digest, Sha256};
use tokenizers::{Encoding, Tokenizer, TruncationParams};

use self::recipe::{Pooling, Recipe};
use super::{
    built_in, int8, onnx,
    onnx::Message,
    onnxruntime::{self, Engine, whole},
    text,
    vectors::normalized,
    words::WordTable,
};

/// Tokens read from a document's text. Measured: more (up to 512) finds nothing better and multiplies the
/// indexing time.
const DOCUMENT_TOKENS: usize = 96;
/// Tokens read from a query. Short queries cost no more; long ones are found better than with 64.
const QUERY_TOKENS: usize = 96;
/// Characters read per token. An English token has four to five; the margin keeps a text of a megabyte as
/// cheap as a page.
const CHARACTERS_PER_TOKEN: usize = 20;
/// The fingerprint of the built-in model, computed like a folder's.
const BUILT_IN: &str = "b7b65dc3d6c2e9ec";
/// The graph inputs that can be supplied.
const INPUTS: [&str; 3] = ["input_ids", "attention_mask", "token_type_ids"];
/// The supported outputs, best first.
const OUTPUTS: [&str; 3] = ["sentence_embedding", "last_hidden_state", "token_embeddings"];
/// The remedy for most errors of a folder.
const EXPORT: &str = "`optimum-cli export onnx --model NAME DIR`";

/// The role of a text. Some models are trained with a different prompt for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextRole {
    Query,
    Document,
}

/// A model's files, located and read as far as the fingerprint needs.
pub(super) struct ModelSource {
    /// The graph's file; `None` for the built-in graph.
    graph: Option<PathBuf>,
    tokenizer_file: PathBuf,
    tokenizer: Cow<'static, [u8]>,
    recipe: Recipe,
    /// The error matters only if the graph leaves pooling to us.
    pooling: Result<Pooling, String>,
}

impl ModelSource {
    /// Opens the model of a folder, or the built-in one.
    pub(super) fn open(folder: Option<&Path>) -> Result<ModelSource, String> {
        let Some(folder) = folder else {
            let own = built_in::built_in().ok_or("this program has no built-in model")?;
            return Ok(ModelSource {
                graph: None,
                tokenizer_file: "the built-in tokenizer.json".into(),
                tokenizer: own.tokenizer.into(),
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
                "{}: contains no model.onnx or onnx/model.onnx; {EXPORT} creates one",
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
        Ok(ModelSource { graph, tokenizer_file, tokenizer: tokenizer.into(), recipe, pooling })
    }

    /// Returns sixteen hex digits of a SHA-256 over everything that a document's vector depends on, to tell
    /// models apart.
    pub(super) fn fingerprint(&self) -> Result<String, String> {
        let mut hash = Sha256::new();
        match &self.graph {
            // Reading the model's 24 MB would keep them in memory.
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
    /// The token rows, if the graph takes them as an extra input.
    words: Option<WordTable>,
    output: String,
    pooling: Result<Pooling, String>,
    /// The number of tokens that the graph knows, if detectable.
    vocabulary: Option<usize>,
    /// Whether a text's vector is independent of the batch. The graph of a folder may quantise all texts of a
    /// run with one scale, or accept only one text.
    batches: bool,
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
    pub(super) fn load(source: &ModelSource, library: Option<&Path>) -> Result<Model, String> {
        let name = source.name();
        let tokenizer_name = source.tokenizer_file.display();
        let mut tokenizer = Tokenizer::from_bytes(&source.tokenizer).map_err(|error| {
            format!("{tokenizer_name}: not a supported tokenizer: {error}; use the one that {EXPORT} writes")
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
        let (session, words) = session(source, engine).map_err(|error| {
            format!(
                "{name}: cannot be loaded: {}; is the file complete, and not a Git LFS pointer? {EXPORT} exports it again",
                whole(&error)
            )
        })?;
        let fault = |reason: String| format!("{name}: {reason}");
        let mut model = Model {
            inputs: inputs(session.inputs(), words.as_ref()).map_err(fault)?,
            output: output(session.outputs()).map_err(fault)?,
            words,
            session,
            tokenizer,
            name: name.clone(),
            pooling: source.pooling.clone(),
            vocabulary,
            batches: source.graph.is_none(),
            lower_case: source.recipe.lower_case,
            query,
            document,
            engine,
        };

        if !engine.native && source.graph.is_some() && model.vocabulary.is_none() {
            // The built-in engine aborts the process on a token that the graph lacks, so the number must be
            // known in advance.
            return Err(fault(format!(
                "the graph does not show how many tokens it knows, which the built-in engine needs; use \
                 ONNX Runtime (`pip install onnxruntime`), or export a graph in the standard form with \
                 {EXPORT}"
            )));
        }
        // If the first token runs and the last fails, the graph has fewer.
        model.run(&[Row { ids: &[0], types: &[0] }])?;
        let size = model.tokenizer.get_vocab_size(false);
        let last = u32::try_from(size.saturating_sub(1)).unwrap_or(u32::MAX);
        model.run(&[Row { ids: &[last], types: &[0] }]).map_err(|error| {
            format!(
                "{tokenizer_name}: has {size} tokens, and the graph does not know the last of them \
                 ({error}); the two do not match: use both from the same export"
            )
        })?;
        let warm_up = model.tokens("warm up", TextRole::Query)?;
        model.embed(&[&warm_up])?;
        Ok(model)
    }

    /// Returns the first 96 tokens of a text, or fewer if the model's limit is lower.
    pub(super) fn tokens(&mut self, text: &str, kind: TextRole) -> Result<Encoding, String> {
        let frame = match kind {
            TextRole::Query => &self.query,
            TextRole::Document => &self.document,
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
            return Err("the tokenizer found no tokens in the text".to_owned());
        }
        Ok(encoding)
    }

    /// Groups texts for [`Model::embed`]; each keeps its index.
    pub(super) fn batches<'a>(&self, texts: &'a [(usize, Encoding)]) -> Vec<Vec<&'a (usize, Encoding)>> {
        if !self.batches {
            return texts.iter().map(|text| vec![text]).collect();
        }
        let lengths: Vec<usize> = texts.iter().map(|(_, tokens)| tokens.len()).collect();
        let batch = |places: Vec<usize>| places.into_iter().map(|place| &texts[place]).collect();
        batches::batches(&lengths).into_iter().map(batch).collect()
    }

    /// Returns the normalised vectors of texts, embedded in one run.
    pub(super) fn embed(&mut self, texts: &[&Encoding]) -> Result<Vec<Vec<f32>>, String> {
        let rows: Vec<Row<'_>> =
            texts.iter().map(|text| Row { ids: text.get_ids(), types: text.get_type_ids() }).collect();
        self.run(&rows)
    }

    /// Runs texts side by side, padded to the longest; the mask cancels the padding.
    fn run(&mut self, rows: &[Row<'_>]) -> Result<Vec<Vec<f32>>, String> {
        let known = self.vocabulary.unwrap_or(usize::MAX);
        let unknown = |id: &&u32| usize::try_from(**id).is_ok_and(|id| id >= known);
        if let Some(id) = rows.iter().flat_map(|row| row.ids).find(unknown) {
            return Err(format!("{}: knows {known} tokens, but not number {id}", self.name));
        }
        let length = rows.iter().map(|row| row.ids.len()).max().unwrap_or_default();
        let failed = |error: ort::Error| format!("{}: cannot be run: {}", self.name, whole(&error));
        let mut inputs: Vec<(&str, DynTensor)> = Vec::with_capacity(self.inputs.len() + 1);
        for &input in &self.inputs {
            let mut values = vec![0; rows.len() * length];
            for (row, to) in rows.iter().zip(values.chunks_exact_mut(length)) {
                let to = &mut to[..row.ids.len()];
                match input {
                    "input_ids" => copy(row.ids, to),
                    "token_type_ids" => copy(row.types, to),
                    _ => to.fill(1),
                }
            }
            let values = Tensor::from_array(([rows.len(), length], values)).map_err(failed)?;
            inputs.push((input, values.upcast()));
        }
        if let Some(words) = &self.words {
            let mut values = vec![0.0; rows.len() * length * words.width];
            for (row, to) in rows.iter().zip(values.chunks_exact_mut(length * words.width)) {
                for (&token, to) in row.ids.iter().zip(to.chunks_exact_mut(words.width)) {
                    let word = words
                        .row(token)
                        .ok_or_else(|| format!("{}: does not know token {token}", self.name))?;
                    to.iter_mut().zip(word).for_each(|(to, value)| *to = value);
                }
            }
            let shape = [rows.len(), length, words.width];
            inputs.push((&words.input, Tensor::from_array((shape, values)).map_err(failed)?.upcast()));
        }
        let outputs = self.session.run(inputs).map_err(failed)?;
        let output = outputs.get(&self.output).ok_or_else(|| format!("{}: has no output", self.name))?;
        let (shape, values) = output.try_extract_tensor::<f32>().map_err(failed)?;
        let dims: Vec<usize> = shape.iter().filter_map(|&size| usize::try_from(size).ok()).collect();
        let vectors: Vec<Vec<f32>> = match dims[..] {
            [texts, width] if texts == rows.len() && width > 0 => {
                values.chunks_exact(width).map(<[f32]>::to_vec).collect()
            }
            [texts, tokens, width] if (texts, tokens) == (rows.len(), length) && width > 0 => {
                let pooling = self.pooling.clone()?;
                let own =
                    |(row, values): (&Row<'_>, &[f32])| pooling.pool(&values[..row.ids.len() * width], width);
                rows.iter().zip(values.chunks_exact(tokens * width)).map(own).collect()
            }
            _ => {
                return Err(format!(
                    "{}: its output `{}` has the shape {shape:?} for {} texts of {length} tokens; it must \
                     be [texts, width] for texts or [texts, tokens, width] for their tokens; {EXPORT} makes \
                     such a model",
                    self.name,
                    self.output,
                    rows.len()
                ));
            }
        };
        Ok(vectors.into_iter().map(normalized).collect())
    }
}

/// A text as input of the graph.
struct Row<'a> {
    ids: &'a [u32],
    types: &'a [u32],
}

fn copy(from: &[u32], to: &mut [i64]) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = i64::from(from));
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

/// Returns the graph's inputs among [`INPUTS`]. A mask is optional: the texts of such a graph are run one by
/// one, so there is no padding.
fn inputs(graph: &[Outlet], words: Option<&WordTable>) -> Result<Vec<&'static str>, String> {
    let own = graph.iter().filter(|input| words.is_none_or(|words| words.input != input.name()));
    let found = own.map(|input| {
        let name = INPUTS.into_iter().find(|&name| name == input.name());
        match (name, input.dtype()) {
            (Some(name), ValueType::Tensor { ty: TensorElementType::Int64, .. }) => Ok(name),
            (Some(name), other) => Err(format!(
                "its input `{name}` is {}, but only i64 is supported; {EXPORT} makes such a model",
                element(other)
            )),
            (None, _) => Err(format!(
                "it needs the input `{}`, but only {} are supported; is it a sentence embedding model?",
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
            "none of its outputs ({}) is {}; is it a sentence embedding model?",
            names.join(", "),
            OUTPUTS.join(", ")
        ));
    };
    match output.dtype() {
        ValueType::Tensor { ty: TensorElementType::Float32, .. } => Ok(output.name().to_owned()),
        other => Err(format!(
            "its output `{}` is {}, but only f32 is supported; {EXPORT} without `--dtype` makes such a model",
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

fn session(source: &ModelSource, engine: &Engine) -> Result<(Session, Option<WordTable>), ort::Error> {
    if let Some(file) = &source.graph {
        return Ok((builder(engine)?.commit_from_file(file)?, None));
    }
    let own = built_in::built_in().expect("`Source::open` found it");
    let mut model = onnx::read(Bytes::from_static(own.graph)).expect("a test reads the compiled-in graph");
    let words = model.graph.as_mut().and_then(WordTable::cut);
    if engine.native
        && let Some(model) = int8::rewritten(&model)
    {
        match builder(engine)?.commit_from_memory(&model.encode_to_vec()) {
            Err(error) => {
                tracing::info!(%error, "the model runs in float32: this library does not know the int8 operator")
            }
            Ok(session) => return Ok((session, words)),
        }
    }
    Ok((builder(engine)?.commit_from_memory(&model.encode_to_vec())?, words))
}

fn builder(engine: &Engine) -> Result<SessionBuilder, ort::Error> {
    // The pure-Rust engine optimises only on request; the native one does by default.
    let builder = Session::builder(&engine.environment)?;
    let builder = builder.with_optimization_level(GraphOptimizationLevel::Level3)?;
    if !engine.native {
        return Ok(builder);
    }
    // One thread: a second one spins against other work, and was slower on a busy machine.
    Ok(builder.with_intra_threads(1)?.with_intra_op_spinning(false)?)
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

    #[test]
    fn a_text_has_the_same_vector_in_a_batch_and_with_the_table_in_the_graph() {
        built_in::bring_model();
        let source = ModelSource::open(None).expect("it is there");
        let mut model = Model::load(&source, None).expect("there is an engine");
        let mut whole = Model::load(&source, None).expect("there is an engine");
        let session =
            builder(whole.engine).and_then(|mut builder| builder.commit_from_memory(nonet_model::GRAPH));
        (whole.session, whole.words) = (session.expect("engines read it"), None);
        assert!(model.words.is_some());

        let long = "create a new issue in a repository with a title, a body and labels ".repeat(3);
        let texts =
            ["send a mail", "will it rain", "", "close the open pull requests of a repository", &long];
        let tokens: Vec<(usize, Encoding)> = texts
            .iter()
            .map(|text| model.tokens(text, TextRole::Query).expect("tokens"))
            .enumerate()
            .collect();
        let apart: Vec<Vec<f32>> =
            tokens.iter().map(|(_, tokens)| whole.embed(&[tokens]).expect("a vector").remove(0)).collect();
        // All at once as well, which pads the most.
        let all: Vec<&(usize, Encoding)> = tokens.iter().collect();
        let batches = [model.batches(&tokens), vec![all]].concat();
        assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 3, 5]);
        for batch in batches {
            let tokens: Vec<&Encoding> = batch.iter().map(|(_, tokens)| tokens).collect();
            let vectors = model.embed(&tokens).expect("vectors");
            for (vector, (place, _)) in vectors.iter().zip(batch) {
                let difference =
                    vector.iter().zip(&apart[*place]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(difference < 1e-5, "{:?}: {difference}", texts[*place]);
            }
        }
    }
}
