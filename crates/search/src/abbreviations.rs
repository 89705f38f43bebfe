//! Abbreviations in tool definitions and requests, with their meanings.
//!
//! General English and software vocabulary: nothing here comes from a catalogue.

use std::{collections::HashMap, sync::LazyLock};

use super::text;

/// Each abbreviation with its words; one line per meaning.
const MEANINGS: &[(&str, &str)] = &[
    // Software development.
    ("pr", "pull request"),
    ("mr", "merge request"),
    ("repo", "repository"),
    ("gh", "github"),
    ("gl", "gitlab"),
    ("ci", "continuous integration pipeline"),
    ("cd", "continuous deployment"),
    ("env", "environment"),
    ("config", "configuration"),
    ("cfg", "configuration"),
    ("dep", "dependency"),
    ("deps", "dependencies"),
    ("pkg", "package"),
    ("lib", "library"),
    ("func", "function"),
    ("fn", "function"),
    ("param", "parameter"),
    ("params", "parameters"),
    ("var", "variable"),
    ("regex", "regular expression"),
    ("js", "javascript"),
    ("ts", "typescript"),
    ("py", "python"),
    ("api", "application programming interface"),
    ("sdk", "software development kit"),
    ("ide", "editor"),
    ("ui", "user interface"),
    ("cli", "command line"),
    ("cmd", "command"),
    ("exec", "execute"),
    ("ver", "version"),
    ("diff", "difference"),
    // Terminal commands, by what they do.
    ("grep", "search text in files"),
    ("rg", "search text in files"),
    ("glob", "find files by name pattern"),
    ("ls", "list directory"),
    ("cat", "read file"),
    ("tail", "read the last lines of a file"),
    ("head", "read the first lines of a file"),
    ("mkdir", "create directory"),
    ("rm", "delete file"),
    ("mv", "move file"),
    ("cp", "copy file"),
    ("touch", "create file"),
    ("sed", "replace text in file"),
    ("ps", "list processes"),
    ("curl", "fetch url"),
    ("wget", "download url"),
    ("psql", "postgres sql query"),
    ("cron", "schedule job"),
    ("blame", "log history of who changed"),
    ("changed", "difference history"),
    ("stash", "save uncommitted changes"),
    ("rebase", "branch history"),
    ("changelog", "history of changes"),
    ("stacktrace", "error trace"),
    ("repl", "interactive process"),
    ("a11y", "accessibility"),
    ("i18n", "translation"),
    ("l10n", "translation"),
    ("dom", "page elements"),
    ("xhr", "network request"),
    ("css", "page styles"),
    ("devtools", "browser inspect"),
    ("ram", "memory heap"),
    ("cpu", "processor performance"),
    // Machines and networks.
    ("k8s", "kubernetes"),
    ("ns", "namespace"),
    ("svc", "service"),
    ("vm", "virtual machine"),
    ("os", "operating system"),
    ("fs", "filesystem"),
    ("dir", "directory"),
    ("tmp", "temporary"),
    ("proc", "process"),
    ("mem", "memory"),
    ("prod", "production"),
    ("infra", "infrastructure"),
    ("dns", "domain name"),
    ("ip", "internet address"),
    ("ssl", "certificate"),
    ("tls", "certificate"),
    ("cve", "vulnerability"),
    ("auth", "authentication"),
    ("sso", "single sign on"),
    ("pwd", "password"),
    ("2fa", "two factor authentication"),
    // Data.
    ("db", "database"),
    ("pg", "postgres"),
    ("tbl", "table"),
    ("col", "column"),
    ("stats", "statistics"),
    ("avg", "average"),
    ("num", "number"),
    ("qty", "quantity"),
    ("calc", "calculate"),
    ("temp", "temperature"),
    ("ml", "machine learning"),
    ("ai", "artificial intelligence"),
    ("llm", "language model"),
    ("kb", "knowledge base"),
    ("ocr", "read text in image"),
    ("tts", "text to speech"),
    ("stt", "speech to text"),
    ("asr", "speech recognition"),
    // Documents and messages.
    ("doc", "document"),
    ("docs", "documentation"),
    ("ppt", "powerpoint presentation"),
    ("pptx", "powerpoint presentation"),
    ("xls", "excel spreadsheet"),
    ("xlsx", "excel spreadsheet"),
    ("docx", "word document"),
    ("md", "markdown"),
    ("img", "image"),
    ("pic", "picture"),
    ("pics", "pictures"),
    ("vid", "video"),
    ("yt", "youtube"),
    ("msg", "message"),
    ("dm", "direct message"),
    ("sms", "text message"),
    ("lang", "language"),
    ("dict", "dictionary"),
    ("info", "information"),
    ("desc", "description"),
    ("attr", "attribute"),
    ("prefs", "preferences"),
    // Verbs for facts and tickets.
    ("remember", "store in memory"),
    ("memorize", "store in memory"),
    ("recall", "search memory"),
    ("forget", "delete from memory"),
    ("retract", "delete"),
    ("ticket", "issue"),
    ("worklog", "time spent on issue"),
    ("timesheet", "time spent"),
    ("dropdown", "select option"),
    ("tickbox", "checkbox"),
    ("deck", "presentation slides"),
    ("pivot", "pivot table"),
    ("strikethrough", "text format"),
    // People, places, money, time.
    ("org", "organization"),
    ("acct", "account"),
    ("addr", "address"),
    ("loc", "location"),
    ("geo", "geographic location"),
    ("gps", "location coordinates"),
    ("poi", "point of interest"),
    ("nav", "navigation"),
    ("cal", "calendar"),
    ("appt", "appointment"),
    ("mtg", "meeting"),
    ("tz", "timezone"),
    ("hr", "human resources"),
    ("crm", "customer relationship"),
    ("tx", "transaction"),
    ("txn", "transaction"),
    ("fx", "foreign exchange"),
    ("btc", "bitcoin"),
    ("eth", "ethereum"),
    ("nft", "token"),
    ("etf", "fund"),
    ("bmi", "body mass index"),
    ("seo", "search engine optimization"),
    ("todo", "task"),
    ("faq", "frequently asked questions"),
];

/// Returns the meaning of an abbreviation as words; `None` for other words.
pub fn meaning(word: &str) -> Option<&'static str> {
    static BY_WORD: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| MEANINGS.iter().copied().collect());
    BY_WORD.get(word).copied()
}

/// Returns the abbreviations whose full meaning occurs in these words (lower case, in order).
pub(super) fn of(words: &[String]) -> Vec<&'static str> {
    type Entry = (Vec<String>, &'static str);
    static BY_FIRST: LazyLock<HashMap<String, Vec<Entry>>> = LazyLock::new(|| {
        let mut by_first: HashMap<String, Vec<Entry>> = HashMap::new();
        for (short, long) in MEANINGS {
            let stems: Vec<String> = long.split(' ').map(text::stem).collect();
            if let Some(first) = stems.first() {
                by_first.entry(first.clone()).or_default().push((stems.clone(), short));
            }
        }
        by_first
    });
    let stems: Vec<String> = words.iter().map(|word| text::stem(word)).collect();
    let mut found = Vec::new();
    for (at, stem) in stems.iter().enumerate() {
        for (long, short) in BY_FIRST.get(stem).into_iter().flatten() {
            if stems[at..].starts_with(long) && !found.contains(short) {
                found.push(short);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abbreviations_are_known_both_ways() {
        let check = |words: &str, expected: &[&str]| {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            assert_eq!(of(&words), expected, "{words:?}");
        };
        assert_eq!(meaning("pr"), Some("pull request"));
        assert_eq!(meaning("k8s"), Some("kubernetes"));
        assert_eq!(meaning("weather"), None);
        check("merge the pull requests", &["pr"]);
        check("request a pull", &[]);
        check("back up a database", &["db"]);
        check("", &[]);
    }

    #[test]
    fn each_is_listed_once_in_lower_case() {
        let mut words: Vec<&str> = MEANINGS.iter().map(|(short, _)| *short).collect();
        words.sort_unstable();
        let count = words.len();
        words.dedup();
        assert_eq!(words.len(), count);
        assert!(
            MEANINGS
                .iter()
                .all(|(short, long)| short.to_lowercase() == *short && long.to_lowercase() == *long)
        );
    }
}
