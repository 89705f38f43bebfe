//! Commands, as a user can copy them into a shell.

use std::path::Path;

use crate::config;

/// Returns `nonet COMMAND` for a configuration, with its file unless it is the user's default file.
pub fn nonet(command: &str, config: &Path) -> String {
    let config = std::path::absolute(config).unwrap_or_else(|_| config.into());
    if config::user_file().is_some_and(|file| file == config) {
        return format!("nonet {command}");
    }
    format!("nonet --config {} {command}", word(&config.to_string_lossy()))
}

/// One word, quoted if need be.
pub fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+,=".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.into(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        let check = |text: &str, expected: &str| assert_eq!(word(text), expected);
        check("files:read", "files:read");
        check("/home/ann/servers.toml", "/home/ann/servers.toml");
        check("My Files", "'My Files'");
        check("it's; rm -rf $HOME", "'it'\\''s; rm -rf $HOME'");
        check("", "''");
    }
}
