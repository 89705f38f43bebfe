//! `nonet --version`: how this program was built, and its engine for search by meaning.

use crate::search::{self, Backend};

/// Returns the long form; `-V` prints only its first line. The engine is the one that `nonet check` finds without settings in
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
