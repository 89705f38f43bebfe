//! Decides whether a name usually denotes a secret.

/// Returns whether a header of this name usually contains a secret.
pub fn is_secret_header(name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase();
    matches!(name.as_str(), "authorization" | "proxy-authorization" | "cookie") || is_secret_name(&name)
}

/// Returns whether this name usually denotes a secret.
pub fn is_secret_name(name: &str) -> bool {
    let words = unnumbered(words(name));
    let Some(last) = words.last() else { return false };
    let about = [
        "FILE", "PATH", "DIR", "URL", "URI", "ID", "NAME", "TYPE", "LENGTH", "LIMIT", "COUNT", "TTL",
        "HEADER",
    ];
    if about.contains(&singular(last)) {
        return false;
    }
    let anywhere = ["SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "APIKEY"];
    let at_end = [
        "TOKEN",
        "PAT",
        "PASS",
        "PWD",
        "AUTH",
        "AUTHORIZATION",
        "COOKIE",
        "CREDENTIAL",
        "CREDENTIALS",
        "JWT",
    ];
    let public = ["PUBLIC", "PRIMARY", "FOREIGN", "SORT", "PARTITION"];
    let before = words.len().checked_sub(2).and_then(|at| words.get(at)).map_or("", String::as_str);
    words.iter().any(|word| anywhere.contains(&singular(word)))
        || at_end.contains(&last.as_str())
        || at_end.contains(&singular(last)) && !counts_tokens(&words)
        || singular(last) == "KEY" && !public.contains(&before)
        || ["TOKEN", "SECRET", "PASSWORD", "SECRETKEY", "ACCESSKEY"].iter().any(|end| last.ends_with(end))
        || is_suffixed(&words)
}

/// Returns whether a secret's usual name is followed by a distinguishing word, as in `GITHUB_TOKEN_WORK`.
fn is_suffixed(words: &[String]) -> bool {
    // A name with one of these words describes a secret, but is not one.
    let about = [
        "ALG",
        "ALGORITHM",
        "AUDIENCE",
        "BUDGET",
        "CACHE",
        "COMMAND",
        "DAYS",
        "DOMAIN",
        "ENABLED",
        "ENDPOINT",
        "ENV",
        "EXPIRATION",
        "EXPIRES",
        "EXPIRY",
        "FIELD",
        "FORMAT",
        "HOST",
        "HOURS",
        "INTERVAL",
        "ISSUER",
        "LIFETIME",
        "METHOD",
        "MINUTES",
        "MODE",
        "PARAM",
        "PORT",
        "PREFIX",
        "PROVIDER",
        "REFRESH",
        "REGION",
        "SCOPE",
        "SECONDS",
        "SIZE",
        "SOURCE",
        "STORAGE",
        "STORE",
        "SUFFIX",
        "TIMEOUT",
        "VAR",
        "VERSION",
    ];
    let Some((last, words)) = words.split_last() else { return false };
    let specific = ["API", "ACCESS", "PRIVATE", "SERVICE", "ENCRYPTION", "SIGNING", "MASTER", "ADMIN"];
    let is_key = |pair: &[String]| specific.contains(&pair[0].as_str()) && singular(&pair[1]) == "KEY";
    let is_token = |word: &String| ["TOKEN", "PAT", "CREDENTIAL"].contains(&singular(word));
    !about.contains(&last.as_str())
        && !about.contains(&singular(last))
        && !counts_tokens(words)
        && (words.iter().any(is_token) || words.windows(2).any(is_key))
}

/// Returns whether a name counts the tokens that a model reads or writes.
fn counts_tokens(words: &[String]) -> bool {
    let counts =
        ["MAX", "MIN", "NUM", "LIMIT", "TOTAL", "BUDGET", "INPUT", "OUTPUT", "PROMPT", "CONTEXT", "THINKING"];
    words.iter().any(|word| word == "TOKENS") && words.iter().any(|word| counts.contains(&word.as_str()))
}

/// Drops the number at the end of a name: `TOKEN_2` and `TOKEN2` become `TOKEN`.
fn unnumbered(mut words: Vec<String>) -> Vec<String> {
    while let Some(last) = words.last_mut() {
        let length = last.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        last.truncate(length);
        if !last.is_empty() {
            break;
        }
        words.pop();
    }
    words
}

/// Returns `TOKEN` for `TOKENS`.
fn singular(word: &str) -> &str {
    word.strip_suffix('S').unwrap_or(word)
}

/// Returns whether a value is harmless, whatever its name.
pub fn is_harmless(value: &str, name: &str) -> bool {
    let value = value.trim();
    let password = words(name).iter().any(|word| word.starts_with("PASS") || word == "PWD");
    let word = ["", "true", "false", "yes", "no", "on", "off", "none", "null"];
    let path =
        ["~/", "./", "../", "/home/", "/Users/", "/etc/", "/opt/", "/var/", "/usr/", "/tmp/", "/root/"];
    let drive = |text: &str| text.as_bytes().get(1..3).is_some_and(|colon| colon == b":\\" || colon == b":/");
    word.contains(&value.to_ascii_lowercase().as_str())
        || !password && value.len() < 6 && value.chars().all(|c| c.is_ascii_digit())
        || path.iter().any(|start| value.starts_with(start))
        || drive(value)
}

/// Returns the kind of secret: `API_KEY` for `X-Api-Key`, `TOKEN` for `Authorization`.
pub fn kind(name: &str) -> String {
    let words = words(name);
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [.., "AUTHORIZATION" | "AUTH"] => "TOKEN".into(),
        ["APIKEY"] => "API_KEY".into(),
        ["X", rest @ ..] if !rest.is_empty() => rest.join("_"),
        all => all.join("_"),
    }
}

/// Returns the words of a name in capitals: `apiKey`, `api-key` and `API_KEY` are the same.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for c in name.chars() {
        let new = !c.is_ascii_alphanumeric() || before.is_ascii_lowercase() && c.is_ascii_uppercase();
        if new {
            words.push(String::new());
        }
        if c.is_ascii_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.push(c.to_ascii_uppercase());
        }
        before = c;
    }
    words.retain(|word| !word.is_empty());
    words
}
