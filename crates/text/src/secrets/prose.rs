//! Masks secrets in prose: text that people and models write down to remember.
//!
//! Prose mentions passwords and tokens without containing any, so a word by itself is not a secret here.

use std::{ops::Range, sync::LazyLock};

use regex::Regex;

use super::{
    MIN_TOKEN, beginning, bits_per_character, in_addresses, is_harmless, is_secret_name, kind, until,
};

/// Replaces a secret.
const MASK: &str = "***";
/// The shortest random run, and its longest piece without a separator.
const MIN_RUN: usize = 20;
const MIN_PIECE: usize = 16;
/// Bits per character of such a piece. Twenty random letters and digits have four.
const PIECE_BITS: f64 = 3.4;
/// The maximum share of syllables in a piece: camel-case names exceed it, and nine in ten random pieces stay
/// below.
const MOST_SYLLABLES: f64 = 0.4;
/// The shortest value after a name; shorter ones are examples.
const MIN_VALUE: usize = 4;

/// Returns a pattern of this file.
fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a test uses every pattern")
}

/// A private key, up to its last line or the end of the text.
static PRIVATE_KEY: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(?s:.)*?(?:-----END [^-\n]*-----|\z)")
});
/// A scheme of an `Authorization` header with its credentials.
static SCHEME: LazyLock<Regex> = LazyLock::new(|| pattern(r#"(?i)\b(?:bearer|basic)\s+([^\s"',;\\]{8,})"#));
/// `DB_PASSWORD=x`, `"api_key": "x"`.
static ASSIGNED: LazyLock<Regex> =
    LazyLock::new(|| pattern(&format!(r#"([A-Za-z][A-Za-z0-9_.-]*)["'`]?\s*(?:=>|[:=：＝])\s*{VALUE}"#)));
/// The same in natural language, also as a sentence: `the password for staging is x`.
static SAID: LazyLock<Regex> = LazyLock::new(|| {
    const NAMES: &str = "pass(?:word|wort|code|phrase)|pwd|kennwort|zugangscode|contraseña|contrasena|clave secreta\
        |clave de api|mot de passe|clé d.api|clé api|senha|palavra-passe|chave de api|parola d'ordine|chiave api\
        |пароль|токен|ключ api|密码|口令|密钥|令牌|パスワード|暗証番号|トークン|秘密鍵\
        |token|secret|api[ -]?(?:key|schlüssel)|(?:access|private|secret|client|signing|encryption) key";
    const IS: &str = r"\s+(?:is|ist|lautet|es|est|é|è|это)\s+|\s*(?:は|是|为)\s*|\s*[:=：＝]\s*";
    pattern(&format!(r#"(?i)(?:\b|_)({NAMES})(?:\s+[\p{{L}}\p{{N}}_-]+){{0,4}}?({IS}){VALUE}"#))
});
/// A value: quoted, or up to the next space.
const VALUE: &str = r#"(?:"([^"\n]{3,})"|'([^'\n]{3,})'|`([^`\n]{3,})`|([^\s"'`]+))"#;
/// Addresses and files, whose parts may be random without being secret.
static PLACE: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"\b[A-Za-z][A-Za-z0-9+.-]*://\S+|\bdata:[^,\s]*,\S+|(?:^|[\s(`'\x22])(?:~|\.{0,2}|[A-Za-z]:)[/\\]\S+",
    )
});
/// Runs that may be a token.
static RUN: LazyLock<Regex> = LazyLock::new(|| pattern(r"[A-Za-z0-9_\-+=.~%]{16,}"));
/// A run of small letters, with or without a leading capital.
static SYLLABLES: LazyLock<Regex> = LazyLock::new(|| pattern(r"[A-Z]?[a-z]+"));

/// Words after `password:` that are not passwords.
const NOT_VALUES: [&str; 24] = [
    "required", "optional", "none", "unknown", "missing", "expired", "invalid", "wrong", "rotated",
    "changed", "revoked", "stored", "hidden", "secret", "empty", "string", "below", "above", "here", "todo",
    "needed", "unset", "redacted", "same",
];

/// Returns a text with its secrets replaced, and the kind of each, in order.
pub fn without_secrets(text: &str) -> (String, Vec<String>) {
    let mut found = found(text);
    found.retain(|(range, _)| !range.is_empty());
    found.sort_by_key(|(range, _)| (range.start, usize::MAX - range.end));
    let (mut clean, mut kinds, mut done) = (String::new(), Vec::new(), 0);
    for (range, kind) in found {
        if range.start >= done {
            clean.push_str(&text[done..range.start]);
            clean.push_str(MASK);
            kinds.push(kind);
        }
        // Overlapping ranges are one secret.
        done = done.max(range.end);
    }
    clean.push_str(&text[done..]);
    (clean, kinds)
}

fn found(text: &str) -> Vec<(Range<usize>, String)> {
    let mut found = in_addresses(text);
    // A reference of a configuration is not the secret.
    found.retain(|(range, _)| !text[range.clone()].starts_with("${"));
    found.extend(PRIVATE_KEY.find_iter(text).map(|key| (key.range(), "PRIVATE_KEY".into())));
    for scheme in SCHEME.captures_iter(text) {
        let is_token =
            |token: &regex::Match<'_>| !is_word(token.as_str()) && !token.as_str().starts_with("${");
        if let Some(token) = scheme.get(1).filter(is_token) {
            found.push((token.range(), "TOKEN".into()));
        }
    }
    let places: Vec<Range<usize>> = PLACE.find_iter(text).map(|place| place.range()).collect();
    // The ranges are sorted and do not overlap.
    let is_in_place = |at: usize| {
        let after = places.partition_point(|place| place.start <= at);
        after.checked_sub(1).is_some_and(|last| places[last].contains(&at))
    };
    for pair in ASSIGNED.captures_iter(text) {
        let name = &pair[1];
        if let Some((range, quoted)) = value(&pair, 2)
            && !is_in_place(range.start)
            && is_secret_name(name)
            && is_value(text, &range, name, quoted)
        {
            found.push((range, kind(name)));
        }
    }
    for said in SAID.captures_iter(text) {
        let name = &said[1];
        if let Some((range, quoted)) = value(&said, 3)
            && !is_in_place(range.start)
        {
            let is_sentence = !said[2].contains([':', '=', '：', '＝']);
            // A sentence says more about a password than its value.
            let is_value = match is_sentence && !quoted {
                true => is_value(text, &range, name, false) && !is_word(&text[range.clone()]),
                false => is_value(text, &range, name, quoted),
            };
            if is_value {
                let kind = if name.is_ascii() { kind(name) } else { "SECRET".into() };
                found.push((range, kind));
            }
        }
    }
    for run in RUN.find_iter(text) {
        // A token may follow a name, as in `key=ghp_...`.
        let start =
            run.start() + run.as_str().find('=').filter(|at| at + 1 < run.len()).map_or(0, |at| at + 1);
        for start in [run.start(), start] {
            let piece = text[start..run.end()].trim_end_matches(['.', '=']);
            let range = start..start + piece.len();
            match beginning(piece) {
                Some(kind) if is_token(piece) => found.push((range, kind.into())),
                _ if is_random_run(piece) && !is_in_place(start) => found.push((range, "SECRET".into())),
                _ => {}
            }
        }
    }
    found
}

/// Returns the range of a value among four groups, without the trailing punctuation, and whether the value is
/// quoted.
fn value(found: &regex::Captures, first: usize) -> Option<(Range<usize>, bool)> {
    let at = (first..first + 4).find(|group| found.get(*group).is_some())?;
    let value = found.get(at)?;
    let quoted = at < first + 3;
    let text = value.as_str();
    let text = if quoted {
        text
    } else {
        text.trim_end_matches(['.', ',', ';', ':', '!', '?', ')', ']', '}', '。', '、'])
    };
    Some((value.start()..value.start() + text.len(), quoted))
}

/// Returns whether the text after a secret's name is the secret itself.
fn is_value(text: &str, range: &Range<usize>, name: &str, quoted: bool) -> bool {
    let whole = &text[range.clone()];
    let value = without_scheme(whole);
    let is_placeholder = value.starts_with(['$', '<', '{', '*', '[', '(', '%']) || value.contains("://");
    if value.is_empty() || whole.chars().count() < MIN_VALUE || is_placeholder || is_harmless(value, name) {
        return false;
    }
    if NOT_VALUES.contains(&value.to_lowercase().as_str()) {
        return false;
    }
    // `Key: Enter` and `pass: 95%` mean something else.
    let is_vague = ["KEY", "AUTH", "PASS", "PAT", "COOKIE"].contains(&kind(name).as_str());
    let has = |is: fn(char) -> bool| value.contains(is);
    if is_vague && !(value.len() >= 2 * MIN_VALUE && has(|c| c.is_ascii_digit()) && has(char::is_alphabetic))
    {
        return false;
    }
    // A word that begins a sentence: `password: ask the admin`.
    let rest = &text[range.end..];
    let goes_on =
        rest[..until(rest, |c| c == '\n')].trim_start_matches([' ', '\t']).starts_with(char::is_alphabetic);
    quoted || !is_word(value) || !goes_on
}

/// Returns a value without the scheme of an `Authorization` header.
fn without_scheme(value: &str) -> &str {
    let is_scheme = |word: &str| ["bearer", "basic"].iter().any(|scheme| word.eq_ignore_ascii_case(scheme));
    match value.split_once(' ') {
        Some((word, rest)) if is_scheme(word) => rest.trim_start(),
        None if is_scheme(value) => "",
        _ => value,
    }
}

/// Returns whether a text is a single word.
fn is_word(text: &str) -> bool {
    text.trim_end_matches(['.', ',', ';', ':', '!', '?', ')'])
        .chars()
        .all(|c| c.is_alphabetic() || matches!(c, '-' | '\'' | '’' | '/'))
}

/// Returns whether a text with a token's prefix is a token: it contains digits, and is not made of words.
fn is_token(text: &str) -> bool {
    text.len() >= MIN_TOKEN && text.contains(|c: char| c.is_ascii_digit()) && syllables(text) < 0.6
}

/// Returns whether a run looks random: both cases and digits, without words in between.
fn is_random_run(text: &str) -> bool {
    let pieces = text.split(|c: char| !c.is_ascii_alphanumeric());
    let piece = pieces.max_by_key(|piece| piece.len()).unwrap_or_default();
    let count = |is: fn(&u8) -> bool| piece.as_bytes().iter().filter(|byte| is(byte)).count();
    text.len() >= MIN_RUN
        && piece.len() >= MIN_PIECE
        && count(u8::is_ascii_lowercase) > 1
        && count(u8::is_ascii_uppercase) > 1
        && count(u8::is_ascii_digit) > 1
        && bits_per_character(piece) > PIECE_BITS
        && syllables(piece) < MOST_SYLLABLES
}

/// Returns the share of letters and digits in word-like parts.
fn syllables(text: &str) -> f64 {
    let all = text.chars().filter(char::is_ascii_alphanumeric).count().max(1);
    let vowel = |c: char| "aeiouyAEIOUY".contains(c);
    let like_words = SYLLABLES.find_iter(text).map(|found| found.as_str());
    let like_words = like_words.filter(|word| (3..=14).contains(&word.len()) && word.contains(vowel));
    like_words.map(str::len).sum::<usize>() as f64 / all as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        assert_eq!(without_secrets(text).0, expected, "{text}");
    }

    #[test]
    fn secrets_are_left_out() {
        check("key sk-proj-Ab3dE5gH1jK2mN4p", "key ***");
        check("use ghp_0123456789abcdefghijklmnopqrstuvwxyz.", "use ***.");
        check("github_pat_11ABCDEFG0xyzxyzxyz_9s8d7f6g", "***");
        check("token=xoxb-123456789012-abcDEF123", "token=***");
        check("AKIAIOSFODNN7EXAMPLE is the id", "*** is the id");
        check("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmN", "***");
        check("curl https://x.org/ghp_0123456789abcdefghijklmnopqrstuvwxyz", "curl https://x.org/***");
        check("Authorization: Bearer a8f3k29dk3", "Authorization: Bearer ***");
        check("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----\nrest", "***\nrest");
        check("cut off: -----BEGIN PRIVATE KEY-----\nMIIE", "cut off: ***");
        check("postgres://app:hunter2@db/x", "postgres://app:***@db/x");
        check("https://x.org/a?token=abcdef12&b=1", "https://x.org/a?token=***&b=1");
        check("password: hunter2", "password: ***");
        check("The password for staging is hunter2.", "The password for staging is ***.");
        check("password: swordfish", "password: ***");
        check("password: 'correct horse battery'", "password: '***'");
        check("DB_PASSWORD=abcd, then start", "DB_PASSWORD=***, then start");
        check(r#"{"client_secret": "abcd-efgh"}"#, r#"{"client_secret": "***"}"#);
        check("Das Passwort lautet Sommer2024!", "Das Passwort lautet ***!");
        check("Kennwort: geheim1", "Kennwort: ***");
        check("mot de passe : ete2024", "mot de passe : ***");
        check("la contraseña es verano2024", "la contraseña es ***");
        check("a senha é verao2024", "a senha é ***");
        check("пароль: лето2024", "пароль: ***");
        check("密码是summer2024", "密码是***");
        check("パスワードはnatsu2024です", "パスワードは***");
        check("API key = 12ab34cd", "API key = ***");
        check("Zk3vQ9xT1mWb7LpR5sYc in the vault", "*** in the vault");
        check("a senha é secreta", "a senha é secreta");
        check("password: hunter2 and token: abc123", "password: *** and token: ***");
    }

    #[test]
    fn what_is_no_secret_stays() {
        for text in [
            "deploys are on Tuesdays",
            "the password is in the vault",
            "Password: ask the admin",
            "password: required",
            "Das Passwort steht im Tresor",
            "the token is stored in 1Password",
            "max_tokens: 4096",
            "token: ${GITHUB_TOKEN}",
            "password: <your password>",
            "Key: Enter",
            "primary key: user_id",
            r#""Authorization": "Bearer ${env:GITHUB_TOKEN}""#,
            "headers = { Authorization = \"Bearer ${DOCS_TOKEN}\" }",
            "postgres://ann:${DB_PASSWORD}@host/db",
            "Bearer certificates are old",
            "a basic understanding of it",
            "550e8400-e29b-41d4-a716-446655440000",
            "commit 3f4544866b2b6e2b0f1d2c3b4a5968778695a4b3",
            "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "~/projects/Zk3vQ9xT1mWb7LpR5sYc/notes.md",
            "C:\\Users\\Zk3vQ9xT1mWb7LpR5sYc\\a.txt",
            "https://docs.google.com/document/d/1A2b3C4d5E6f7G8h9I0jKlMnOpQrStUvWxYz/edit",
            "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4",
            "getUserById2AndThenRunX1",
            "IMG_20240101_123456.jpg and Dockerfile.v2.1.0-Beta",
            "secret_santa_planning_2026",
            "sk-learn-0-24-migration",
            "WiFi6E-2.4GHz-5GHz-Router",
            "2026-11-22T19:07:33.123Z",
            "my-app-6d4cf56db6-abcde",
            "Donaudampfschifffahrtsgesellschaftskapitän",
            "会議は火曜日です",
        ] {
            check(text, text);
        }
    }

    #[test]
    fn each_is_named_by_its_kind() {
        let (text, kinds) = without_secrets("DB_PASSWORD=abcd1 and ghp_0123456789abcdefghijklmnopqrstuvwxyz");
        assert_eq!(
            (text.as_str(), kinds),
            ("DB_PASSWORD=*** and ***", vec!["DB_PASSWORD".into(), "TOKEN".to_string()])
        );
        assert_eq!(without_secrets("").0, "");
    }
}
