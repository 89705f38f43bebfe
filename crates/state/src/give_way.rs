//! How Nonet's own tools, skills and apps rank among the servers' tools.
//!
//! Own tools deal with calls, tasks, states and files, as many servers' tools do. They rank below these,
//! unless the request names a subject that only Nonet has. A skill or an app describes a whole task in the
//! words of its steps, so its score is lowered a little. The order of the servers' tools stays unchanged.

use std::{collections::HashSet, sync::LazyLock};

use nonet_search::{Boosts, Confidence, Hit, SearchResult, outcomes};
use nonet_servers::catalog::{APPS, EntryKind, GATEWAY, SKILLS};
use nonet_text::name;

use crate::snapshot::{ProfileView, Snapshot};

/// One of Nonet's own tools is near the query from this score on. Measured with thirty tasks against thirty
/// servers (docs/tasks.md): tasks that no server could do scored at most 0.40.
const NEAR: f32 = 0.45;
/// What an own tool loses in a search by meaning, and in a search by words only. Measured with forty requests
/// against own tools and eight servers: with less, own tools win requests such as `mark the task as done`
/// that a server fulfils; with more, servers' tools win requests such as `every weekday at 9`.
const BY_MEANING: f32 = 0.2;
const BY_WORDS: f32 = 0.3;
/// What a skill or an app loses: it describes a whole task in the words of its steps, so it would rank above
/// the tool for one step. Chosen with skills written for the tools of `tests/data`: this value halves such
/// hits; from 0.07 on, requests for a skill begin to miss it.
const GUIDES: f32 = 0.05;
/// Stems of words in requests about Nonet itself. Words such as `status`, `list`, `task` or `schedule` are
/// left out, because they are just as often about servers.
static OF_NONET: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let words = "background forget gateway goal nonet notify recall remember remind reminder tell watch";
    outcomes::words(words).into_iter().collect()
});

/// Lowers skills and apps, and own tools without a priority unless the request's words are about Nonet.
pub fn lower(
    boosts: &mut Boosts,
    snapshot: &Snapshot,
    view: &ProfileView,
    words: &[String],
    by_meaning: bool,
) {
    let own = match words.iter().any(|word| OF_NONET.contains(word)) {
        true => 0.0,
        false if by_meaning => BY_MEANING,
        false => BY_WORDS,
    };
    for (category, loss) in [(GATEWAY, own), (SKILLS, GUIDES), (APPS, GUIDES)] {
        let entries = snapshot.catalog.servers().get(category).filter(|_| loss > 0.0);
        let entries = entries.into_iter().flat_map(|entry| &entry.tools);
        for document in entries.filter_map(|full| snapshot.place(full)) {
            if view.priority(document).is_none() {
                boosts.entry(document).or_default().priority -= loss;
            }
        }
    }
}

/// Moves a tool ahead of the prompt with the same name: what runs comes before what tells how.
pub fn tools_first(hits: &mut [Hit], snapshot: &Snapshot) {
    for at in 0..hits.len() {
        let Some(prompt) = snapshot.tool(hits[at].document).filter(|tool| tool.of.is_some()) else {
            continue;
        };
        let named = name::fold(prompt.name_at_server());
        let is_exact = hits[at].exact;
        let is_twin = |hit: &Hit| {
            let tool = snapshot.tool(hit.document);
            (hit.exact || !is_exact)
                && tool.is_some_and(|tool| tool.kind == EntryKind::Tool && name::fold(&tool.name) == named)
        };
        if let Some(behind) = hits[at + 1..].iter().position(is_twin) {
            hits[at..=at + 1 + behind].rotate_right(1);
        }
    }
}

/// Returns the confidence in an answer. An own tool at the top does not justify high confidence, unless the
/// request is its name. An own tool that is not near the request either was found only because no server has
/// a fitting tool.
pub fn confidence(found: &SearchResult, snapshot: &Snapshot) -> Confidence {
    let first = found.hits.first().filter(|hit| !hit.exact);
    let is_own = |document| snapshot.tool(document).is_some_and(|tool| &*tool.server == GATEWAY);
    match first.filter(|hit| is_own(hit.document)) {
        Some(hit) if hit.score < NEAR => Confidence::None,
        Some(_) if matches!(found.confidence, Confidence::High) => Confidence::Medium,
        _ => found.confidence,
    }
}
