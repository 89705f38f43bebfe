//! The model and the engine that a program brings along.
//!
//! They are large, so this crate does not know them: a program links the crate `nonet-model` and hands it over once, before
//! the first search by meaning. What is not a program (a test of another crate) is smaller and builds without them.

use std::sync::OnceLock;

/// A sentence embedding model in memory, and an engine that runs it.
#[derive(Clone, Copy)]
pub struct BuiltInModel {
    /// The model's name.
    pub name: &'static str,
    /// The ONNX graph: `input_ids`, `attention_mask` (int64 `[batch, sequence]`) to `sentence_embedding` (f32
    /// `[batch, 384]`).
    pub graph: &'static [u8],
    /// The tokenizer, in the format of the `tokenizers` crate.
    pub tokenizer: &'static [u8],
    /// The engine; without it an ONNX Runtime library is needed at run time.
    pub engine: Option<fn() -> ort::sys::OrtApi>,
}

static BUILT_IN: OnceLock<BuiltInModel> = OnceLock::new();

/// Hands over the model and the engine. Later calls change nothing.
pub fn bring(built_in: BuiltInModel) {
    BUILT_IN.get_or_init(|| built_in);
}

/// Returns the model and the engine, if the program brought them.
pub fn built_in() -> Option<&'static BuiltInModel> {
    BUILT_IN.get()
}

/// Brings the model along, for tests that load it.
#[cfg(test)]
pub(crate) fn bring_model() {
    bring(BuiltInModel {
        name: nonet_model::NAME,
        graph: nonet_model::GRAPH,
        tokenizer: nonet_model::TOKENIZER,
        engine: nonet_model::ENGINE,
    });
}
