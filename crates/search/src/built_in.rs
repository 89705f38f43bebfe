//! The model that a program brings along.
//!
//! It is large, so this crate does not know it: a program links the crate `nonet-model` and hands it over once, before the
//! first search by meaning. What is not a program (a test of another crate) is smaller and builds without it.

use std::sync::OnceLock;

use super::Backend;

/// A sentence embedding model in memory.
#[derive(Clone, Copy)]
pub struct BuiltInModel {
    /// The model's name.
    pub name: &'static str,
    /// The model as the crate `nonet-encoder` runs it.
    pub weights: &'static [u8],
    /// The tokenizer, in the format of the `tokenizers` crate.
    pub tokenizer: &'static [u8],
}

static BUILT_IN: OnceLock<BuiltInModel> = OnceLock::new();

/// Hands over the model. Later calls change nothing.
pub fn bring(built_in: BuiltInModel) {
    BUILT_IN.get_or_init(|| built_in);
}

/// Returns the model, if the program brought one.
pub fn built_in() -> Option<&'static BuiltInModel> {
    BUILT_IN.get()
}

/// Returns what runs the built-in model.
pub fn backend() -> Backend {
    Backend { name: "built-in engine".to_owned(), detail: nonet_encoder::instruction_set().to_owned() }
}

/// Brings the model along, for tests that load it.
#[cfg(test)]
pub(crate) fn bring_model() {
    bring(BuiltInModel {
        name: nonet_model::NAME,
        weights: nonet_model::WEIGHTS,
        tokenizer: nonet_model::TOKENIZER,
    });
}
