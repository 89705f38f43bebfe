//! A sentence embedding model, loaded: text in, one vector of length 1 out.
//!
//! Knows tokenizers and graphs; has not heard of queues, caches or documents. Nothing here depends on the weights
//! that are compiled in: any sentence-transformers export in a folder will do.

use std::{
    fs,
    path::{Path, PathBuf},
};

use ort::{
    session::{Session, builder::GraphOptimizationLevel},
    value::Tensor,
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokenizers::{Tokenizer, TruncationParams};

use super::{
    int8,
    onnxruntime::{self, Engine},
    text,
};

/// The model that is compiled in: `input_ids`, `attention_mask` (int64 `[batch, sequence]`) to `sentence_embedding`
/// (f32 `[batch, 384]`).
static BUILT_IN_GRAPH: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/models/minilm-l6-v2.int8w.onnx"));
static BUILT_IN_TOKENIZER: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/models/tokenizer.json"));

/// Tokens of a document's text that are read. Measured: more (up to 512) finds nothing better and costs several times
/// the indexing time.
pub(super) const DOCUMENT_TOKENS: usize = 96;
/// Tokens of a query that are read. Short ones cost no more for it, and long requests are found better than with 64.
pub(super) const QUERY_TOKENS: usize = 96;
/// Characters looked at for each token that is kept. An English token has four to five; the rest is margin, so that a
/// text of a megabyte costs no more than a page.
const CHARACTERS_PER_TOKEN: usize = 20;

/// Where a model's two files come from.
pub(super) enum Source {
    /// Compiled in.
    BuiltIn,
    /// `model.onnx` (or `onnx/model.onnx`) and `tokenizer.json` of a folder.
    Folder { graph: PathBuf, tokenizer: Vec<u8>, pooling: Pooling },
}

impl Source {
    pub(super) fn open(folder: Option<&Path>) -> Result<Source, String> {
        let Some(folder) = folder else { return Ok(Source::BuiltIn) };
        let graph = [folder.join("model.onnx"), folder.join("onnx/model.onnx")]
            .into_iter()
            .find(|file| file.is_file())
            .ok_or_else(|| format!("{}: no model.onnx in it", folder.display()))?;
        let file = folder.join("tokenizer.json");
        let tokenizer = fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(Source::Folder {
            graph,
            tokenizer,
            pooling: Pooling::read(&folder.join("1_Pooling/config.json"))?,
        })
    }

    /// Tells vectors of different models apart: sixteen hex digits of a SHA-256 over all that a document's vector depends on.
    pub(super) fn fingerprint(&self) -> Result<String, String> {
        let mut hash = Sha256::new();
        match self {
            Source::BuiltIn => {
                hash.update(BUILT_IN_GRAPH);
                hash.update(BUILT_IN_TOKENIZER);
            }
            Source::Folder { graph, tokenizer, pooling } => {
                let mut files = vec![graph.clone()];
                // Large exports keep their weights in a second file.
                files.push(graph.with_extension("onnx_data"));
                files.push(graph.with_extension("onnx.data"));
                for file in files.iter().filter(|file| file.is_file()) {
                    let mut reader =
                        fs::File::open(file).map_err(|error| format!("{}: {error}", file.display()))?;
                    std::io::copy(&mut reader, &mut HashWriter(&mut hash))
                        .map_err(|error| error.to_string())?;
                }
                hash.update(tokenizer);
                hash.update(format!("{pooling:?}"));
            }
        }
        hash.update(DOCUMENT_TOKENS.to_le_bytes());
        Ok(hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
    }

    fn tokenizer(&self) -> &[u8] {
        match self {
            Source::BuiltIn => BUILT_IN_TOKENIZER,
            Source::Folder { tokenizer, .. } => tokenizer,
        }
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

/// How the vectors of the tokens become one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pooling {
    Mean,
    First,
}

impl Pooling {
    /// Reads sentence-transformers' `1_Pooling/config.json`; mean where there is none, as that library does.
    fn read(file: &Path) -> Result<Pooling, String> {
        let Ok(bytes) = fs::read(file) else { return Ok(Pooling::Mean) };
        let config: Value =
            serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", file.display()))?;
        Pooling::parse(&config)
            .ok_or_else(|| format!("{}: only mean and first-token pooling are known here", file.display()))
    }

    fn parse(config: &Value) -> Option<Pooling> {
        let on = |key: &str| config[key].as_bool() == Some(true);
        match config["pooling_mode"].as_str() {
            Some("mean") => Some(Pooling::Mean),
            Some("cls") => Some(Pooling::First),
            Some(_) => None,
            None if on("pooling_mode_cls_token") => Some(Pooling::First),
            None if on("pooling_mode_mean_tokens") => Some(Pooling::Mean),
            None => None,
        }
    }

    /// One vector from `[sequence, width]` token vectors.
    fn pool(self, tokens: &[f32], width: usize) -> Vec<f32> {
        match self {
            Pooling::First => tokens.iter().take(width).copied().collect(),
            Pooling::Mean => {
                let mut sum = vec![0.0; width];
                for token in tokens.chunks_exact(width) {
                    sum.iter_mut().zip(token).for_each(|(sum, value)| *sum += value);
                }
                sum
            }
        }
    }
}

/// A model ready to run.
pub(super) struct Model {
    session: Session,
    tokenizer: Tokenizer,
    token_types: bool,
    /// The output that is read.
    output: String,
    pooling: Pooling,
    pub(super) engine: &'static Engine,
}

impl Model {
    /// Loads graph and tokenizer, and runs once so that the first query does not pay for it.
    pub(super) fn load(source: &Source, library: Option<&Path>) -> Result<Model, String> {
        let mut tokenizer =
            Tokenizer::from_bytes(source.tokenizer()).map_err(|error| format!("tokenizer.json: {error}"))?;
        tokenizer.with_padding(None);
        let engine = onnxruntime::engine(library)?;
        let session =
            session(source, engine).map_err(|error| format!("the model cannot be loaded: {error}"))?;

        let names: Vec<&str> = session.inputs().iter().map(|input| input.name()).collect();
        if let Some(missing) = ["input_ids", "attention_mask"].iter().find(|name| !names.contains(name)) {
            return Err(format!(
                "not a sentence embedding model: it has no input `{missing}`, but {names:?}"
            ));
        }
        let token_types = names.contains(&"token_type_ids");
        let names: Vec<&str> = session.outputs().iter().map(|output| output.name()).collect();
        let output = ["sentence_embedding", "last_hidden_state", "token_embeddings"]
            .into_iter()
            .find(|name| names.contains(name))
            .or(names.first().copied())
            .ok_or("not a sentence embedding model: it has no output")?
            .to_owned();
        let pooling = match source {
            Source::BuiltIn => Pooling::Mean,
            Source::Folder { pooling, .. } => *pooling,
        };
        let mut model = Model { session, tokenizer, token_types, output, pooling, engine };
        model.embed("warm up", QUERY_TOKENS)?;
        Ok(model)
    }

    /// The vector of a text, of length 1, made from its first `tokens` tokens.
    pub(super) fn embed(&mut self, text: &str, tokens: usize) -> Result<Vec<f32>, String> {
        let truncation = TruncationParams { max_length: tokens, ..Default::default() };
        self.tokenizer.with_truncation(Some(truncation)).map_err(|error| error.to_string())?;
        let text = text::cut(text, tokens * CHARACTERS_PER_TOKEN);
        let encoding = self.tokenizer.encode_fast(text, true).map_err(|error| error.to_string())?;
        let ids: Vec<i64> = encoding.get_ids().iter().map(|&id| i64::from(id)).collect();
        if ids.is_empty() {
            return Err("the tokenizer made nothing of the text".to_owned());
        }
        self.run(ids).map_err(|error| error.to_string())
    }

    fn run(&mut self, ids: Vec<i64>) -> Result<Vec<f32>, ort::Error> {
        let length = ids.len();
        let row = |values: Vec<i64>| Tensor::from_array(([1, length], values));
        let mut inputs = ort::inputs!["input_ids" => row(ids)?, "attention_mask" => row(vec![1; length])?];
        if self.token_types {
            inputs.push(("token_type_ids".into(), row(vec![0; length])?.into()));
        }
        let outputs = self.session.run(inputs)?;
        let output =
            outputs.get(&self.output).ok_or_else(|| ort::Error::new("the model's output is missing"))?;
        let (shape, values) = output.try_extract_tensor::<f32>()?;
        let width = shape.last().and_then(|&width| usize::try_from(width).ok()).unwrap_or(0);
        if width == 0 || values.len() < width {
            return Err(ort::Error::new("the model gave an empty vector"));
        }
        // `[1, width]` is a sentence, `[1, sequence, width]` are its tokens.
        let vector =
            if shape.len() == 3 { self.pooling.pool(values, width) } else { values[..width].to_vec() };
        Ok(normalized(vector))
    }
}

fn session(source: &Source, engine: &Engine) -> Result<Session, ort::Error> {
    if let (Source::BuiltIn, true) = (source, engine.native)
        && let Some(graph) = int8::rewritten(BUILT_IN_GRAPH)
    {
        match plain_session(source, &graph, engine) {
            Err(error) => {
                tracing::info!(%error, "the model runs in float32: this library does not know the int8 operator")
            }
            session => return session,
        }
    }
    plain_session(source, BUILT_IN_GRAPH, engine)
}

fn plain_session(source: &Source, graph: &[u8], engine: &Engine) -> Result<Session, ort::Error> {
    let builder = Session::builder(&engine.environment)?;
    // The pure-Rust engine optimises only when asked; the native one does by itself.
    let mut builder = builder.with_optimization_level(GraphOptimizationLevel::Level3)?;
    if engine.native {
        // One thread: a second one spins against whatever else runs, and was slower for it on a busy machine.
        builder = builder.with_intra_threads(1)?.with_intra_op_spinning(false)?;
    }
    match source {
        Source::BuiltIn => builder.commit_from_memory(graph),
        Source::Folder { graph, .. } => builder.commit_from_file(graph),
    }
}

/// The vector made to have length 1, so that a dot product is a cosine. What has no direction becomes zeros.
pub(super) fn normalized(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    let scale = if length.is_finite() && length > 0.0 { 1.0 / length } else { 0.0 };
    for value in &mut vector {
        *value = if scale > 0.0 { *value * scale } else { 0.0 };
    }
    vector
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pooling_is_read_from_old_and_new_configs() {
        let check = |config: Value, expected| assert_eq!(Pooling::parse(&config), expected, "{config}");
        check(
            json!({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}),
            Some(Pooling::Mean),
        );
        check(
            json!({"pooling_mode_mean_tokens": false, "pooling_mode_cls_token": true}),
            Some(Pooling::First),
        );
        check(json!({"pooling_mode": "mean"}), Some(Pooling::Mean));
        check(json!({"pooling_mode_max_tokens": true}), None);
    }

    #[test]
    fn tokens_are_pooled_and_made_unit_length() {
        let tokens = [1.0, 0.0, 3.0, 4.0];
        assert_eq!(normalized(Pooling::Mean.pool(&tokens, 2)), [1.0 / 2f32.sqrt(); 2]);
        assert_eq!(normalized(Pooling::First.pool(&tokens, 2)), [1.0, 0.0]);
        assert_eq!(normalized(vec![0.0, 0.0]), [0.0, 0.0]);
        assert_eq!(normalized(vec![f32::NAN, 0.0]), [0.0, 0.0]);
    }

    #[test]
    fn a_folder_without_a_model_is_told() {
        let error = Source::open(Some(Path::new("/nowhere"))).err().expect("there is no such folder");
        assert!(error.contains("/nowhere"), "{error}");
    }
}
