//! `nonet --version`: how this program was built, and its engine for search by meaning.

use nonet_search::{self as search, Backend};

/// Returns the long form; `-V` prints only its first line. The engine is that of the built-in model.
pub(super) fn long() -> String {
    let Backend { name, detail } = search::backend();
    let engine = format!("{name} ({detail})");
    let model = search::built_in().map_or_else(
        || "none".into(),
        |own| format!("{}, {} (built in)", own.tools.name, own.languages.name),
    );
    format!(
        "nonet {}\ncommit: {}\nsearch by meaning: {engine}\nmodel: {model}",
        env!("CARGO_PKG_VERSION"),
        env!("NONET_BUILT_FROM"),
    )
}
