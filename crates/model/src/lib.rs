//! The files of `models/`, compiled in. A crate of its own, because a compiler that looks at 24 MB takes its time: it does
//! once, and not with every change of the code that reads them.

/// What `models/README.md` calls the model.
pub const NAME: &str = "minilm-tools.int8w";

/// A sentence embedder as an ONNX graph: `input_ids`, `attention_mask` (int64 `[batch, sequence]`) to `sentence_embedding`
/// (f32 `[batch, 384]`).
pub static GRAPH: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/minilm-tools.int8w.onnx"));

/// Its tokenizer, as the `tokenizers` crate reads it.
pub static TOKENIZER: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tokenizer.json"));
