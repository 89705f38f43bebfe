//! What a program brings along for search by meaning: the files of `models/`, compiled in, and an engine in pure Rust. A separate
//! crate, because both take long to build and are large: only programs link them, and no change of other code builds them again.

/// The model's name in `models/README.md`.
pub const NAME: &str = "minilm-tools.int8w";

/// A sentence embedder as an ONNX graph: `input_ids`, `attention_mask` (int64 `[batch, sequence]`) to `sentence_embedding`
/// (f32 `[batch, 384]`).
pub static GRAPH: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/minilm-tools.int8w.onnx"));

/// The model's tokenizer, in the format of the `tokenizers` crate.
pub static TOKENIZER: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tokenizer.json"));

/// Makes the function table of the engine; `None` in a build without the feature `tract`.
pub const ENGINE: Option<fn() -> ort::sys::OrtApi> = engine();

#[cfg(feature = "tract")]
const fn engine() -> Option<fn() -> ort::sys::OrtApi> {
    Some(ort_tract::api)
}

#[cfg(not(feature = "tract"))]
const fn engine() -> Option<fn() -> ort::sys::OrtApi> {
    None
}
