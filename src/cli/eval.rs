//! `nonet eval`: measures search quality on labelled requests.

use std::path::Path;

use nonet_search::{self as search, Rule, eval::EvalOptions};

use super::{OK, load, show, signal};

/// Measures search quality and prints the report.
pub(super) async fn run(
    tools: &Path,
    queries: &Path,
    out: Option<&Path>,
    without: &[Rule],
    measure: EvalOptions,
    config: Option<&Path>,
) -> anyhow::Result<u8> {
    // Only the embedder's settings matter here, and only if a configuration was named.
    let mut settings = match config {
        Some(file) => load(file)?.config.embedder,
        None => search::Settings::default(),
    };
    settings.rules = without.iter().fold(settings.rules, |rules, rule| rules.without(*rule));
    let bar = show::bar("indexing");
    let progress = bar.clone();
    // Runs in another task: the measurement may keep this one busy.
    let shown = bar.clone();
    tokio::spawn(async move {
        let code = signal::stopped().await;
        shown.finish_and_clear();
        std::process::exit(code.into());
    });
    let report = search::eval::run(tools, queries, out, &settings, measure, move |done, total| {
        progress.set_length(total as u64);
        progress.set_position(done as u64);
    })
    .await;
    bar.finish_and_clear();
    raw!("{}", serde_json::to_string(&report?)?);
    Ok(OK)
}
