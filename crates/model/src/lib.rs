//! What a program brings along for search by meaning: the files of `models/`, compiled in. A separate crate,
//! because they are large: only programs link them, and no change of other code builds them again.

use nonet_encoder::{PackedModel, PackedPieces, PackedTokenizer};

macro_rules! packed {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name))
    };
}

/// The sentence encoder of tools and of English requests: 384 values.
pub static TOOLS: PackedModel = PackedModel {
    name: "minilm-tools.int8w",
    weights: packed!("minilm-tools.int8w.packed"),
    tokenizer: PackedTokenizer::Json(include_bytes!("../../../models/tokenizer.json")),
};

/// The sentence encoder of texts in other languages, into the same space.
pub static LANGUAGES: PackedModel = PackedModel {
    name: "languages",
    weights: packed!("languages.packed"),
    tokenizer: PackedTokenizer::Pieces(PackedPieces {
        scores: packed!("languages.scores"),
        map: packed!("languages.pieces"),
        around: [0, 2],
        unknown: 3,
    }),
};
