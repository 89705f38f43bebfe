//! The files of `models/`, compiled in. A separate crate, because compiling 24 MB takes a while: that way it happens once,
//! not with every change of the code that reads them.

/// The model's name in `models/README.md`.
pub const NAME: &str = "minilm-tools.int8w";

/// A sentence embedder as an ONNX graph: `input_ids`, `attention_mask` (int64 `[batch, sequence]`) to `sentence_embedding`
/// (f32 `[batch, 384]`).
pub static GRAPH: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/minilm-tools.int8w.onnx"));

/// The model's tokenizer, in the format of the `tokenizers` crate.
pub static TOKENIZER: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tokenizer.json"));
