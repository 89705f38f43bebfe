//! What a program brings along for search by meaning: the files of `models/`, compiled in. A separate crate, because they are
//! large: only programs link them, and no change of other code builds them again.

use nonet_encoder::PackedModel;

macro_rules! model {
    ($name:literal, $tokenizer:literal) => {
        PackedModel {
            name: $name,
            weights: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".packed")),
            tokenizer: include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/", $tokenizer)),
        }
    };
}

/// The sentence encoder of tools and of English requests: 384 values.
pub static TOOLS: PackedModel = model!("minilm-tools.int8w", "tokenizer.json");

/// The sentence encoder of requests in other languages, into the same space.
pub static LANGUAGES: PackedModel = model!("languages", "languages.tokenizer.json");
