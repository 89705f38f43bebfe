//! What every crate of Nonet may need: text, files, the time of day, memory. Knows nothing of Nonet.

pub mod clock;
pub mod files;
pub mod memory;
pub mod text;
