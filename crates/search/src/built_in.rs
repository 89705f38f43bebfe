//! The models that a program brings along.
//!
//! They are large, so this crate does not know them: a program links the crate `nonet-model` and hands them
//! over once, before the first search by meaning. What is not a program (a test of another crate) is smaller
//! and builds without them.

use std::sync::OnceLock;

use nonet_encoder::PackedModel;

use super::Backend;

/// The models of a program.
#[derive(Clone, Copy, Debug)]
pub struct BuiltInModels {
    /// The encoder of texts in English, names included.
    pub tools: &'static PackedModel,
    /// The encoder of texts in other languages. Its vectors are compared with those of `tools`.
    pub languages: &'static PackedModel,
}

static BUILT_IN: OnceLock<BuiltInModels> = OnceLock::new();

/// Hands over the models. Later calls change nothing.
pub fn bring(built_in: BuiltInModels) {
    BUILT_IN.get_or_init(|| built_in);
}

/// Returns the models, if the program brought them.
pub fn built_in() -> Option<&'static BuiltInModels> {
    BUILT_IN.get()
}

/// Returns what runs the built-in models.
pub fn backend() -> Backend {
    Backend { name: "built-in engine".to_owned(), detail: nonet_encoder::instruction_set().to_owned() }
}

/// Brings the models along, for tests that load them.
#[cfg(test)]
pub(crate) fn bring_models() {
    bring(BuiltInModels { tools: &nonet_model::TOOLS, languages: &nonet_model::LANGUAGES });
}
