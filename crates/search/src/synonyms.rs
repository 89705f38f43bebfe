//! Words with nearly the same meaning in a search for a tool.
//!
//! General English only: nothing here comes from a catalogue. A word may be in several groups.

use std::{collections::HashMap, sync::LazyLock};

use super::text;

const GROUPS: &[&[&str]] = &[
    // Actions.
    &["create", "add", "new", "make", "insert", "generate"],
    &["delete", "remove", "erase", "drop", "clear", "purge"],
    &["update", "edit", "modify", "change", "set", "alter"],
    &["get", "fetch", "retrieve", "read", "obtain", "show", "view", "display"],
    &["list", "enumerate", "browse", "all"],
    &["search", "find", "lookup", "query", "discover"],
    &["send", "post", "publish", "deliver", "submit", "share"],
    &["run", "execute", "launch", "start", "invoke", "perform"],
    &["stop", "cancel", "terminate", "kill", "abort", "end"],
    &["download", "save", "export", "store"],
    &["upload", "import", "load"],
    &["write", "compose", "draft"],
    &["calculate", "compute", "evaluate", "math", "arithmetic"],
    &["convert", "transform", "translate", "change"],
    &["analyze", "analyse", "inspect", "examine", "assess", "evaluate"],
    &["summarize", "summary", "summarise", "digest", "overview"],
    &["compare", "diff", "difference", "versus"],
    &["rename", "move"],
    &["copy", "duplicate", "clone"],
    &["buy", "purchase", "order", "shop"],
    &["book", "reserve", "reservation"],
    &["recommend", "suggest", "recommendation", "advice"],
    &["check", "verify", "validate", "test"],
    &["monitor", "track", "watch", "status"],
    &["notify", "alert", "remind", "notification", "reminder"],
    &["subscribe", "follow"],
    &["login", "signin", "authenticate", "auth"],
    &["plot", "chart", "graph", "diagram", "visualize", "visualization"],
    &["scrape", "crawl", "extract"],
    &["merge", "combine", "join"],
    &["fix", "repair", "solve"],
    &["plan", "schedule"],
    // Objects.
    &["file", "document", "doc"],
    &["folder", "directory", "path"],
    &["image", "picture", "photo", "photograph", "drawing"],
    &["video", "clip", "footage"],
    &["email", "mail", "inbox"],
    &["message", "chat", "sms"],
    &["repo", "repository"],
    &["issue", "ticket", "bug"],
    &["pull", "pr", "merge"],
    &["task", "todo", "reminder"],
    &["event", "meeting", "appointment", "calendar"],
    &["note", "memo"],
    &["weather", "forecast", "temperature", "climate"],
    &["price", "cost", "fee", "quote", "rate"],
    &["stock", "share", "equity", "ticker"],
    &["currency", "money", "exchange", "forex"],
    &["crypto", "cryptocurrency", "bitcoin", "coin", "token"],
    &["invest", "investment", "portfolio", "finance", "financial"],
    &["location", "place", "address", "coordinate", "geocode"],
    &["route", "direction", "navigation", "path"],
    &["distance", "far", "near", "nearby"],
    &["movie", "film", "cinema"],
    &["music", "song", "track", "audio"],
    &["flight", "plane", "airline", "airplane"],
    &["train", "railway", "rail"],
    &["hotel", "accommodation", "lodging", "house", "stay"],
    &["trip", "travel", "tour", "journey", "vacation", "holiday"],
    &["restaurant", "dining", "eat", "food", "meal"],
    &["recipe", "cook", "cooking", "dish"],
    &["car", "vehicle", "automobile"],
    &["taxi", "cab", "ride", "uber"],
    &["database", "db", "sql"],
    &["spreadsheet", "sheet", "excel", "workbook"],
    &["slide", "presentation", "powerpoint"],
    &["web", "website", "webpage", "page", "site", "url", "link", "internet", "online"],
    &["browser", "tab"],
    &["news", "headline", "article", "story"],
    &["paper", "publication", "research", "study", "scholar"],
    &["job", "career", "employment", "vacancy"],
    &["doctor", "physician", "therapist", "medical", "health"],
    &["user", "account", "member", "profile"],
    &["person", "people", "contact"],
    &["password", "secret", "credential", "key"],
    &["command", "shell", "terminal", "bash", "cli"],
    &["code", "program", "script", "source"],
    &["container", "docker"],
    &["cluster", "kubernetes", "k8s"],
    &["log", "history", "trace"],
    &["error", "exception", "failure", "crash"],
    &["language", "translation", "translate"],
    &["gift", "present"],
    &["game", "play"],
    &["quiz", "trivia", "question"],
    &["pet", "dog", "cat", "animal"],
    &["sport", "football", "soccer", "basketball"],
    &["horoscope", "astrology", "zodiac"],
    &["size", "length", "dimension"],
    &["time", "clock", "timezone", "date"],
    &["bill", "invoice", "payment", "pay"],
    &["customer", "client"],
    &["lawyer", "legal", "law"],
];

type Groups = HashMap<String, Vec<String>>;

static BY_STEM: LazyLock<Groups> = LazyLock::new(|| {
    let mut groups = Groups::new();
    for group in GROUPS {
        let stems: Vec<String> = group.iter().map(|word| text::stem(word)).collect();
        for stem in &stems {
            let others = groups.entry(stem.clone()).or_default();
            for other in &stems {
                if other != stem && !others.contains(other) {
                    others.push(other.clone());
                }
            }
        }
    }
    groups
});

/// Returns all words with a synonym.
pub(super) fn words() -> impl Iterator<Item = &'static str> {
    GROUPS.iter().flat_map(|group| group.iter().copied())
}

/// Returns the synonyms of a stem, as stems.
pub(super) fn of(stem: &str) -> &'static [String] {
    BY_STEM.get(stem).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synonyms_work_both_ways_and_leave_out_the_word_itself() {
        let check = |word: &str, other: &str| {
            assert!(of(&text::stem(word)).contains(&text::stem(other)), "{word} {other}");
            assert!(!of(&text::stem(word)).contains(&text::stem(word)), "{word}");
        };
        check("create", "add");
        check("add", "create");
        check("directory", "folder");
        assert!(of("xyzzy").is_empty());
    }
}
