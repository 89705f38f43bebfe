//! What a program brings along for search by meaning: the files of `models/`, compiled in. A separate crate, because they are
//! large: only programs link them, and no change of other code builds them again.

/// The model's name in `models/README.md`.
pub const NAME: &str = "minilm-tools.int8w";

/// A sentence embedder, packed for `nonet_encoder::Encoder`: tokens to 384 values.
pub static WEIGHTS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/model.packed"));

/// The model's tokenizer, in the format of the `tokenizers` crate.
pub static TOKENIZER: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tokenizer.json"));
