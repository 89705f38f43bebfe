//! What every crate of Nonet may need: text, JSON as bytes, files, the time of day, the allocator, the
//! environment, maps with shared contents, and searches in text. Knows nothing of Nonet.

pub mod allocator;
pub mod blocks;
pub mod clock;
pub mod disguises;
pub mod files;
pub mod json;
pub mod persistent;
pub mod text;
pub mod turns;
pub mod variables;
pub mod words;
