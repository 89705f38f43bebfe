//! The worst that a call of a tool can do, judged by the server's hints and the words of the tool's name.
//!
//! A hint counts as the specification says. A name is judged by its verbs: a verb that changes outweighs one
//! that reads, and a name without a changing verb promises nothing.

use std::borrow::Cow;

use nonet_base::text::{self, fold_confusables};
use nonet_config::Risk;
use nonet_search::verbs;
use nonet_text::name;
use serde_json::Value;

/// Verbs that run their argument.
const RUNS: [&str; 7] = ["run", "execute", "exec", "eval", "evaluate", "launch", "spawn"];
/// Nouns for things that can do anything once they run.
const CODE: [&str; 18] = [
    "applescript",
    "bash",
    "cmd",
    "code",
    "command",
    "commands",
    "javascript",
    "js",
    "osascript",
    "powershell",
    "process",
    "program",
    "python",
    "script",
    "scripts",
    "shell",
    "sql",
    "terminal",
];
/// Nouns that also follow `start`, which is said of a trace or a search as well.
const PROGRAMS: [&str; 4] = ["command", "process", "program", "shell"];
/// Reading verbs that end a name, as in `issue_read`. A final `search` may be what is started.
const ENDINGS: [&str; 4] = ["fetch", "get", "read", "retrieve"];
/// One-word names of tools that run anything.
const SHELLS: [&str; 5] = ["bash", "cmd", "exec", "powershell", "shell"];

/// Returns the risk of a tool by its name and its `annotations`. A tool that is not read-only is destructive
/// unless its server says otherwise, as in the specification. A name that reads as another one is high,
/// whatever its server says.
pub(super) fn risk(name: &str, annotations: Option<&Value>) -> Risk {
    if is_disguised(name) {
        return Risk::High;
    }
    let hint = |key: &str| annotations.and_then(|hints| hints.get(key)).and_then(Value::as_bool);
    match (hint("readOnlyHint"), hint("destructiveHint")) {
        (Some(true), _) => Risk::Low,
        (_, Some(true)) | (Some(false), None) => Risk::High,
        (_, Some(false)) => Risk::Medium,
        (None, None) => of_name(name),
    }
}

/// Whether a name reads as another one: it contains hidden characters, full-width or styled letters, or
/// letters of another script that pass for Latin ones. A name in a script of its own is not disguised.
fn is_disguised(name: &str) -> bool {
    if name.is_ascii() {
        return false;
    }
    let is_natural =
        |c: char| matches!(c, '\u{80}'..='\u{24f}' | '\u{370}'..='\u{58f}' | '\u{13a0}'..='\u{13ff}');
    let is_latin = |c: char| c.is_ascii() || ('\u{80}'..='\u{24f}').contains(&c);
    let is_twin = |c: char| match fold_confusables(c.encode_utf8(&mut [0; 4])) {
        Cow::Owned(folded) => folded.chars().all(|c| c.is_ascii_alphanumeric()),
        Cow::Borrowed(_) => false,
    };
    let poses = |word: &str| {
        let mixes = word.contains(is_latin) && word.contains(|c| !is_latin(c) && is_twin(c));
        let folded = fold_confusables(word);
        let is_verb =
            [verbs::looks, verbs::changes, verbs::destroys, verbs::is_thing].iter().any(|is| is(&folded));
        mixes || is_verb && !word.is_ascii() && !word.contains(is_latin)
    };
    text::hidden(name).next().is_some()
        || name.contains(|c| !is_natural(c) && is_twin(c))
        || name::words(name).iter().any(|word| poses(word))
}

/// Returns the highest risk among the clauses of a name: `get_or_create_user` has two.
fn of_name(name: &str) -> Risk {
    let words = name::words(name);
    let clauses = words.split(|word| matches!(word.as_str(), "and" | "or" | "then"));
    clauses.filter(|clause| !clause.is_empty()).map(of_clause).max().unwrap_or(Risk::Medium)
}

fn of_clause(words: &[String]) -> Risk {
    // `list_files_to_remove` only lists the files.
    let words = match words.iter().position(|word| word == "to") {
        Some(at) if at > 1 && verbs::looks(&words[0]) => &words[..at],
        _ => words,
    };
    let last = words.len() - 1;
    let looks = |at: usize| match words[at].as_str() {
        // `git_log` shows a log, and `log_event` writes one.
        "log" => at == last && at > 0,
        // `mysql_query` runs a query, and `query` may run any.
        "query" if at == last => false,
        word if verbs::is_thing(word) => verbs::looks(word) && (at < 2 || at == last),
        word => verbs::looks(word),
    };
    let is_verb = |at: usize| looks(at) && (at == 0 || !verbs::is_thing(&words[at]));
    let first = (0..words.len()).find(|at| is_verb(*at));
    // `mark_as_read` changes a mark.
    let marks = words.iter().any(|word| word == "mark");
    let ends_with_look = last > 0 && ENDINGS.contains(&words[last].as_str()) && !marks;
    // The verb has an object: `get_pull_request`, and `issue_read`.
    let is_object =
        |at: usize| verbs::is_thing(&words[at]) && (first.is_some_and(|first| first < at) || ends_with_look);
    let done: Vec<(usize, &str)> = words
        .iter()
        .enumerate()
        .filter(|(at, _)| !is_object(*at))
        .map(|(at, word)| (at, word.as_str()))
        .collect();
    // A file is dropped onto something.
    let destroys =
        |(at, word): &(usize, &str)| verbs::destroys(word) && !(*word == "drop" && *at == last && *at > 0);
    let has = |things: &[&str]| words.iter().any(|word| things.contains(&word.as_str()));
    let runs = |word: &str| RUNS.contains(&word) && has(&CODE) || word == "start" && has(&PROGRAMS);
    if done.iter().any(destroys) || done.iter().any(|(_, word)| runs(word)) || last == 0 && has(&SHELLS) {
        return Risk::High;
    }
    let changes = |(at, word): &(usize, &str)| verbs::changes(word) && !looks(*at);
    // `check_in` does not check, and `count_reset` may reset a count.
    let enters =
        words.windows(2).any(|two| two[0] == "check" && matches!(two[1].as_str(), "in" | "out" | "off"));
    let may_destroy = last == 1 && verbs::is_thing(&words[0]) && verbs::destroys(&words[1]);
    if enters || may_destroy || done.iter().any(changes) || !(0..words.len()).any(looks) {
        Risk::Medium
    } else {
        Risk::Low
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use serde_json::json;

    use super::*;

    fn check(expected: Risk, names: &[&str]) {
        for name in names {
            assert_eq!(of_name(name), expected, "{name}");
        }
    }

    #[test]
    fn what_only_looks_is_low() {
        check(
            Risk::Low,
            &[
                "read_graph",
                "read_file",
                "readFile",
                "get_file_info",
                "getUserById",
                "list_directory",
                "listIssues",
                "search_nodes",
                "git_status",
                "git_log",
                "git_diff",
                "git_diff_unstaged",
                "git_show",
                "fetch",
                "read_query",
                "query_docs",
                "API-query-data-source",
                "API-get-user",
                "issue_read",
                "pull_request_read",
                "get_pull_request_review",
                "get_issue_comment",
                "list_open_issues",
                "get_message",
                "read_process_output",
                "get_run",
                "check_run_status",
                "directory_tree",
                "file_exists",
                "get_password_reset_state",
                "get_exchange_rate",
                "list_and_count",
                "describe_table",
                "count_rows",
                "echo",
                "aws_s3_get_object",
                "findDuplicateFiles",
                "get_network_request",
                "list_drop_zones",
                "view_order",
                "list_files_to_remove",
                "get_items_to_delete",
            ],
        );
    }

    #[test]
    fn what_changes_wins_over_what_looks() {
        check(
            Risk::Medium,
            &[
                "write_query",
                "insert_numbered_list_near_text",
                "convert-contents",
                "create_entities",
                "git_add",
                "git_commit",
                "git_checkout",
                "edit_file",
                "move_file",
                "send_message",
                "puppeteer_click",
                "get_or_create_user",
                "getOrCreateUser",
                "search_and_replace",
                "find_replace",
                "create_or_update_file",
                "push_files",
                "issue_write",
                "add_issue_comment",
                "set_status",
                "update_list",
                "start_search",
                "write_to_log",
                "log_event",
                "post_status",
                "share_list",
                "user_list_share",
                "open_file",
                "download_file",
                "browser_drop",
                "order_status",
                "order_status_update",
                "get_or_post_comment",
                "run_tests",
                "start_trace",
                "interact_with_process",
                "refresh_view",
                "mark_as_read",
                "mark_all_read",
                "count_reset",
                "check_in",
                "check_out_book",
                "move_list_to_trash",
            ],
        );
    }

    #[test]
    fn what_destroys_or_runs_anything_is_high() {
        check(
            Risk::High,
            &[
                "delete_file",
                "deletePage",
                "list_and_delete_files",
                "find_and_remove",
                "git_reset",
                "drop_table",
                "sqlite_drop_table",
                "kill_process",
                "clear_database",
                "API-delete-a-block",
                "execute_sql",
                "run_command",
                "runShellCommand",
                "start_process",
                "evaluate_script",
                "browser_run_code_unsafe",
                "shell_exec",
                "bash",
                "overwrite_file",
                "get_or_reset",
            ],
        );
    }

    #[test]
    fn what_says_nothing_is_medium() {
        check(
            Risk::Medium,
            &[
                "",
                "_",
                "and",
                "sequentialthinking",
                "frobnicate",
                "mysql_query",
                "query",
                "print",
                "log",
                "report_bug",
                "track_event",
                "git_branch",
                "wait_for",
                "browser_console_messages",
                "read_and_frobnicate",
                "日本",
                "toggle",
            ],
        );
    }

    #[test]
    fn hints_of_a_server_go_before_the_name() {
        let check =
            |name, hints: Value, expected| assert_eq!(risk(name, Some(&hints)), expected, "{name} {hints}");
        check("delete_all", json!({ "readOnlyHint": true }), Risk::Low);
        check("read_file", json!({ "readOnlyHint": false }), Risk::High);
        check("read_file", json!({ "readOnlyHint": false, "destructiveHint": false }), Risk::Medium);
        check("read_file", json!({ "destructiveHint": true }), Risk::High);
        check("read_file", json!({ "destructiveHint": false }), Risk::Medium);
        check("read_file", json!({ "title": "x", "readOnlyHint": "yes" }), Risk::Low);
    }

    #[test]
    fn a_name_that_reads_as_another_is_high() {
        let check = |name: &str, expected: bool| assert_eq!(is_disguised(name), expected, "{name:?}");
        for name in [
            "rеad_file",
            "ｒｅａｄ＿ｆｉｌｅ",
            "read_ｆile",
            "𝐫𝐞𝐚𝐝_file",
            "ｒead",
            "read\u{200b}_file",
            "сору",
            "getΑll",
            "reаd-file",
            "lіst",
        ] {
            check(name, true);
            assert_eq!(risk(name, Some(&json!({ "readOnlyHint": true }))), Risk::High, "{name}");
        }
        for name in [
            "read_file",
            "удалить_файл",
            "список",
            "текст",
            "ανάγνωση",
            "dosya_kısalt",
            "größe",
            "lire_numéro",
            "日本語_読む",
            "查询（新）",
            "list_удалить",
        ] {
            check(name, false);
        }
    }

    /// Tools as real servers list them, without their hints.
    #[test]
    fn the_risk_of_recorded_tools() {
        let tools = include_str!("../../../../tests/data/tools.jsonl").lines();
        let mut told = String::new();
        for tool in tools {
            let tool: Value = serde_json::from_str(tool).expect("JSON");
            let (server, name) =
                (tool["server"].as_str().expect("a text"), tool["name"].as_str().expect("a text"));
            let risk = format!("{:?}", of_name(name)).to_lowercase();
            let _ = writeln!(told, "{risk:6} {server}.{name}");
        }
        insta::assert_snapshot!(told);
    }
}
