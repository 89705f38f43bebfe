//! `nonet --version`: what this program was built from, and what it searches by meaning with.

use crate::search::{self, Backend};

/// Returns the long form; `-V` prints its first line alone. The engine is the one that `nonet check` finds without settings of
/// `[embedder]`.
pub(super) fn long() -> String {
    let engine = match search::engine(None) {
        Ok(Backend { name, detail }) => format!("{name} ({detail})"),
        Err(why) => format!("no engine: {why}"),
    };
    format!(
        "nonet {}\ncommit: {}\nsearch by meaning: {engine}\nmodel: {} (built in)",
        env!("CARGO_PKG_VERSION"),
        env!("NONET_BUILT_FROM"),
        search::MODEL
    )
}
