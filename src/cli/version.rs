//! `nonet --version`: how this program was built, and its engine for search by meaning.

use nonet_search::{self as search, Backend};

/// Returns the long form; `-V` prints only its first line. The engine is the one that `nonet check` finds without settings in
/// `[embedder]`.
pub(super) fn long() -> String {
    let engine = match search::engine(None) {
        Ok(Backend { name, detail }) => format!("{name} ({detail})"),
        Err(why) => format!("no engine: {why}"),
    };
    let model = search::built_in().map_or_else(|| "none".into(), |own| format!("{} (built in)", own.name));
    format!(
        "nonet {}\ncommit: {}\nsearch by meaning: {engine}\nmodel: {model}",
        env!("CARGO_PKG_VERSION"),
        env!("NONET_BUILT_FROM"),
    )
}
