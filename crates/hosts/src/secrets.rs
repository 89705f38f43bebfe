//! Marks the secrets in an entry's texts. A false positive costs the user one variable; a missed secret stays
//! in a file, so doubtful values count as secrets.

use std::ops::Range;

use nonet_text::secrets::{
    MIN_RANDOM, MIN_TOKEN, beginning, in_addresses, is_harmless, is_random, is_secret_header, is_secret_name,
    kind, until,
};

use super::parts::{SecretName, TextPart, TextParts, as_plain, plain};

#[derive(Clone, Copy)]
pub(super) enum TextPlace<'a> {
    /// The value of an environment variable.
    Env(&'a str),
    /// The value of a header.
    Header(&'a str),
    /// An argument and its predecessor.
    Argument(Option<&'a str>),
    /// An address.
    Url,
}

const SCHEMES: [&str; 6] = ["bearer ", "basic ", "token ", "apikey ", "api-key ", "bot "];

/// Marks the secrets in a text.
pub(super) fn mark(parts: TextParts, place: TextPlace) -> TextParts {
    if let Some(text) = as_plain(&parts)
        && let Some(marked) = by_place(text, place)
    {
        return marked;
    }
    let mut marked = TextParts::new();
    for part in parts {
        match part {
            TextPart::Plain(text) => by_look(&text, place, &mut marked),
            // A default is a value like any other; with a secret in it, it must go.
            TextPart::Variable { name, default: Some(default) } if has_secret(&name, &default) => {
                marked.push(TextPart::Secret { value: default, key: SecretName::Own(name) });
            }
            part => marked.push(part),
        }
    }
    marked
}

fn has_secret(name: &str, default: &str) -> bool {
    let marked = mark(vec![TextPart::Plain(default.into())], TextPlace::Env(name));
    marked.iter().any(|part| matches!(part, TextPart::Secret { .. }))
}

/// Marks a text that is a secret because of its place.
fn by_place(text: &str, place: TextPlace) -> Option<TextParts> {
    match place {
        TextPlace::Env(name) if is_secret_name(name) && !is_harmless(text, name) => {
            Some(after_scheme(text, SecretName::Own(name.into())))
        }
        TextPlace::Header(name) if is_secret_header(name) && !text.trim().is_empty() => {
            Some(after_scheme(text, SecretName::Kind(kind(name))))
        }
        TextPlace::Argument(before) => argument(text, before),
        _ => None,
    }
}

fn argument(text: &str, before: Option<&str>) -> Option<TextParts> {
    if let Some(("--header" | "-H", header)) = before.map(|before| (before, text))
        && let Some((name, value)) = header.split_once(':')
    {
        let start = value.len() - value.trim_start().len();
        return glued(
            &header[..name.len() + 1 + start],
            by_place(value.trim_start(), TextPlace::Header(name))?,
        );
    }
    if let Some((name, value)) = text.split_once('=') {
        let option = name.trim_start_matches('-');
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if option.is_empty()
            || !option.chars().all(word)
            || !is_secret_name(option)
            || is_harmless(value, option)
        {
            return None;
        }
        // Without a dash, it is an environment variable, as after docker's `-e`.
        let key = if option == name { SecretName::Own(name.into()) } else { SecretName::Kind(kind(option)) };
        return glued(&text[..name.len() + 1], after_scheme(value, key));
    }
    let option = before?.strip_prefix('-')?.trim_start_matches('-');
    let meant = !text.starts_with('-') && !option.contains('=') && is_secret_name(option);
    (meant && !is_harmless(text, option)).then(|| after_scheme(text, SecretName::Kind(kind(option))))
}

fn glued(before: &str, rest: TextParts) -> Option<TextParts> {
    let mut parts = TextParts::new();
    plain(&mut parts, before);
    for part in rest {
        match part {
            TextPart::Plain(text) => plain(&mut parts, &text),
            part => parts.push(part),
        }
    }
    Some(parts)
}

/// Marks a secret, but not a leading scheme such as `Bearer`.
fn after_scheme(text: &str, key: SecretName) -> TextParts {
    let mut parts = TextParts::new();
    let scheme = scheme(text);
    plain(&mut parts, &text[..scheme]);
    parts.push(TextPart::Secret { value: text[scheme..].into(), key });
    parts
}

fn scheme(text: &str) -> usize {
    let begins = |scheme: &&&str| {
        text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
            && text.len() > scheme.len()
    };
    SCHEMES.iter().find(begins).map_or(0, |scheme| scheme.len())
}

/// Marks secrets within a longer text.
fn by_look(text: &str, place: TextPlace, parts: &mut TextParts) {
    let mut found = found(text, place);
    // Of several with the same start, the longest counts; overlapping ones are part of it.
    found.sort_by_key(|(range, _)| (range.start, usize::MAX - range.end));
    let mut done = 0;
    for (range, kind) in found {
        if range.start < done || range.is_empty() {
            continue;
        }
        // servers.toml reads `$${` as an escape, so a `$` before the variable goes into it.
        let start = range.start - dollars(&text[done..range.start]);
        plain(parts, &text[done..start]);
        let value = text[start..range.end].to_string();
        let key = match place {
            TextPlace::Env(name) if value == text => SecretName::Own(name.into()),
            _ => SecretName::Kind(kind),
        };
        parts.push(TextPart::Secret { value, key });
        done = range.end;
    }
    plain(parts, &text[done..]);
}

fn dollars(text: &str) -> usize {
    text.len() - text.trim_end_matches('$').len()
}

fn found(text: &str, place: TextPlace) -> Vec<(Range<usize>, String)> {
    let mut found = Vec::new();
    // `Bearer x` and `Basic x`, as in headers embedded in JSON. Lower-casing ASCII keeps byte positions.
    let lower = text.to_ascii_lowercase();
    for scheme in ["bearer ", "basic "] {
        for (at, _) in lower.match_indices(scheme) {
            let start = at + scheme.len();
            let end = start + until(&text[start..], |c| c.is_whitespace() || "\"',;\\".contains(c));
            if end - start >= MIN_TOKEN / 2 {
                found.push((start..end, "TOKEN".into()));
            }
        }
    }
    found.extend(in_addresses(text));
    // A whole environment variable or header may be a secret, slashes of base64 included.
    if matches!(place, TextPlace::Env(_) | TextPlace::Header(_)) && !text.starts_with(['/', '.', '~']) {
        let base64 = |c: char| c.is_ascii_alphanumeric() || "+/=_-".contains(c);
        let hex = text.len() >= MIN_RANDOM && text.chars().all(|c| c.is_ascii_hexdigit());
        if hex && text.contains(|c: char| c.is_ascii_digit()) || text.chars().all(base64) && is_random(text) {
            found.push((0..text.len(), "SECRET".into()));
        }
    }
    let mut start = 0;
    let word = |c: char| c.is_ascii_alphanumeric() || "_-.+~%".contains(c);
    for piece in text.split_inclusive(|c: char| !word(c)) {
        let text = piece.trim_end_matches(|c: char| !word(c));
        if let Some(kind) = beginning(text) {
            found.push((start..start + text.len(), kind.into()));
        } else if is_random(text) {
            found.push((start..start + text.len(), "SECRET".into()));
        }
        start += piece.len();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const GITHUB: &str = "ghp_0123456789abcdefghijklmnopqrstuvwxyz";
    const RANDOM: &str = "Zk3vQ9xT1mWb7LpR5sYc8NdF2hJg6UaE";

    fn check(place: TextPlace, text: &str, expected: &str) {
        let show = |part: &TextPart| match part {
            TextPart::Plain(text) => text.clone(),
            TextPart::Secret { key: SecretName::Own(name), .. } => format!("<{name}>"),
            TextPart::Secret { key: SecretName::Kind(kind), .. } => format!("<*{kind}>"),
            other => format!("{other:?}"),
        };
        let shown: String = mark(vec![TextPart::Plain(text.into())], place).iter().map(show).collect();
        assert_eq!(shown, expected, "{text}");
    }

    #[test]
    fn names_of_places_give_secrets_away() {
        for name in [
            "API_KEY",
            "GITHUB_TOKEN",
            "apiKey",
            "DB_PASSWORD",
            "GH_PAT",
            "CLIENT_SECRET",
            "AUTHTOKEN",
            "SECRET",
            "OPENAI_API_KEY_2",
            "TOKEN_1",
            "token2",
            "API_TOKENS",
            "API_KEYS",
            "SECRETS",
            "DB_PASSWORDS",
            "GITHUB_TOKEN_WORK",
            "githubTokenWork",
            "API_KEY_PROD",
            "GH_PAT_HOME",
        ] {
            check(TextPlace::Env(name), "hunter", &format!("<{name}>"));
        }
        for name in [
            "LOG_LEVEL",
            "TOKEN_FILE",
            "TOKEN_FILE_2",
            "TOKEN_URLS",
            "TOKEN_EXPIRY",
            "API_KEY_HEADER",
            "API_KEY_PREFIX",
            "TOKENIZERS_PARALLELISM",
            "MAX_TOKENS",
            "MAX_OUTPUT_TOKENS_2",
            "KEY_ID",
            "KEY_IDS",
            "PATH",
            "PUBLIC_KEY",
            "PUBLIC_KEYS",
            "MONKEY",
            "MONKEYS",
            "API_URL",
        ] {
            check(TextPlace::Env(name), "hunter", "hunter");
        }
        for value in ["", "true", "4096", "~/.ssh/id", "C:\\keys\\a.pem", "/home/me/.ssh/id"] {
            check(TextPlace::Env("API_KEY"), value, value);
        }
        check(TextPlace::Env("DB_PASSWORD"), "1234", "<DB_PASSWORD>");
        check(TextPlace::Env("AUTH_TOKEN"), "Bearer abc", "Bearer <AUTH_TOKEN>");
        check(TextPlace::Header("Authorization"), "Bearer abc", "Bearer <*TOKEN>");
        check(TextPlace::Header("authorization"), "abc", "<*TOKEN>");
        check(TextPlace::Header("X-API-Key"), "abc", "<*API_KEY>");
        check(TextPlace::Header("Accept-Language"), "en", "en");
    }

    #[test]
    fn arguments_are_seen_with_their_option() {
        check(TextPlace::Argument(None), "--token=abc", "--token=<*TOKEN>");
        check(TextPlace::Argument(Some("--api-key")), "abc", "<*API_KEY>");
        check(TextPlace::Argument(Some("--api-key")), "--next", "--next");
        check(TextPlace::Argument(Some("--port")), "abc", "abc");
        check(TextPlace::Argument(Some("-e")), "GITHUB_TOKEN=abc", "GITHUB_TOKEN=<GITHUB_TOKEN>");
        check(TextPlace::Argument(Some("-e")), "GITHUB_TOKEN", "GITHUB_TOKEN");
        check(
            TextPlace::Argument(Some("--header")),
            "Authorization: Bearer abc",
            "Authorization: Bearer <*TOKEN>",
        );
        check(TextPlace::Argument(Some("--header")), "Accept: text/plain", "Accept: text/plain");
        check(TextPlace::Argument(None), "--max-tokens=400", "--max-tokens=400");
    }

    #[test]
    fn secrets_are_seen_by_their_look() {
        check(TextPlace::Env("X"), GITHUB, "<X>");
        check(TextPlace::Env("X"), RANDOM, "<X>");
        check(TextPlace::Env("X"), "0123456789abcdef0123456789abcdef", "<X>");
        check(TextPlace::Env("X"), &format!("a {GITHUB}, b"), "a <*TOKEN>, b");
        check(TextPlace::Env("X"), "AKIAIOSFODNN7EXAMPLE", "<X>");
        check(
            TextPlace::Env("HEADERS"),
            r#"{"Authorization": "Bearer ntn_abcdef123456", "V": "1"}"#,
            r#"{"Authorization": "Bearer <*TOKEN>", "V": "1"}"#,
        );
        check(
            TextPlace::Argument(None),
            "postgresql://me:pa:ss@host:5432/db",
            "postgresql://me:<*PASSWORD>@host:5432/db",
        );
        check(
            TextPlace::Url,
            "https://h/mcp?api_key=abcdef&lang=en#x",
            "https://h/mcp?api_key=<*API_KEY>&lang=en#x",
        );
        check(TextPlace::Url, &format!("https://h/s/{RANDOM}/mcp"), "https://h/s/<*SECRET>/mcp");
        check(TextPlace::Argument(None), &format!("$${GITHUB}"), "<*TOKEN>");
    }

    #[test]
    fn no_text_loses_a_letter() {
        let text = format!("é Bearer ключ://п:р@х?token=ü&é=$\u{1f600} --api-key={GITHUB}é Ünïcode{RANDOM}$");
        let ends = (0..=text.len()).filter(|at| text.is_char_boundary(*at));
        for piece in ends.clone().map(|end| &text[..end]).chain(ends.clone().map(|start| &text[start..])) {
            for place in [
                TextPlace::Env("TOKEN"),
                TextPlace::Env("X"),
                TextPlace::Header("X"),
                TextPlace::Url,
                TextPlace::Argument(Some("-H")),
            ] {
                let parts = mark(vec![TextPart::Plain(piece.into())], place);
                let whole = parts.iter().map(|part| match part {
                    TextPart::Plain(text) | TextPart::Secret { value: text, .. } => text.as_str(),
                    _ => "",
                });
                assert_eq!(whole.collect::<String>(), piece);
            }
        }
    }

    #[test]
    fn what_is_long_but_no_secret_stays() {
        for text in [
            "@modelcontextprotocol/server-sequential-thinking@2026.8.31",
            "ghcr.io/github/github-mcp-server@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "git+https://github.com/oraios/serena@0123456789abcdef0123456789abcdef01234567",
            "C:\\Users\\Alice Smith\\AppData\\Roaming\\npm\\node_modules\\Server2\\dist3\\index4.js",
            "/Users/alice/Projects/MyVeryLongProjectName2026/dist/index.js",
            "https://mcp.example.com/mcp?user=alice&lang=en",
            "123e4567-e89b-12d3-a456-426614174000",
            "task-runner-for-everything-and-more",
            "sk-short",
        ] {
            check(TextPlace::Argument(None), text, text);
        }
    }
}
