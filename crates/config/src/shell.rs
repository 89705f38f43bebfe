//! Commands that a user can copy into a shell.

use std::path::Path;

pub use nonet_base::text::shell_word as word;

/// Returns `nonet COMMAND` for a configuration, with its file unless it is the user's default file.
pub fn nonet(command: &str, config: &Path) -> String {
    let config = std::path::absolute(config).unwrap_or_else(|_| config.into());
    if crate::user_file().is_some_and(|file| file == config) {
        return format!("nonet {command}");
    }
    format!("nonet --config {} {command}", word(&config.to_string_lossy()))
}

/// Splits a command line into words, with quotes, and `\\` before a space, a quote or another `\\`. Expands
/// nothing.
pub fn words(line: &str) -> Result<Vec<String>, &'static str> {
    let (mut words, mut word): (Vec<String>, Option<String>) = (Vec::new(), None);
    let mut quote = None;
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        let escaped = rest.peek().copied().filter(|next| match quote {
            None => next.is_whitespace() || "'\"\\".contains(*next),
            Some(quote) => quote == '"' && "\"\\".contains(*next),
        });
        match (c, quote) {
            ('\\', _) if escaped.is_some() => {
                word.get_or_insert_default().extend(rest.next());
            }
            (c, Some(open)) if c == open => quote = None,
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    if quote.is_some() { Err("a quote is not closed") } else { Ok(words) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_split_as_a_shell_splits_it() {
        let check = |line: &str, expected: &[&str]| {
            assert_eq!(words(line).expect("it is closed"), expected, "{line}");
            let again: Vec<String> = expected.iter().map(|text| word(text)).collect();
            assert_eq!(words(&again.join(" ")).expect("it is closed"), expected, "{line}");
        };
        check("", &[]);
        check("npx -y  @scope/server", &["npx", "-y", "@scope/server"]);
        check("run 'My Files' \"a \\\"b\\\"\" c\\ d", &["run", "My Files", "a \"b\"", "c d"]);
        check("x '' a'b'c", &["x", "", "abc"]);
        check(r"C:\tools\run.exe --at=C:\x", &[r"C:\tools\run.exe", r"--at=C:\x"]);
        check("it's' fine", &["its", "fine"]);
        assert!(words("a 'b").is_err());
    }
}
