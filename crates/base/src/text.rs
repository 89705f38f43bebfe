//! Text for people and models: cut to a length, and bytes as hexadecimal digits.

use std::fmt::Write;

/// The first `max` characters of `text`, with `...` behind them if that is not all of it.
pub fn clip(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_string(),
    }
}

/// Bytes as hexadecimal digits in lower case.
pub fn hex(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters() {
        for (text, max, expected) in
            [("", 0, ""), ("abc", 3, "abc"), ("abcd", 3, "abc..."), ("äöü", 2, "äö..."), ("a", 0, "...")]
        {
            assert_eq!(clip(text, max), expected);
        }
    }

    #[test]
    fn bytes_have_two_digits_each() {
        assert_eq!(hex(&[]), "");
        assert_eq!(hex(&[0, 9, 0xab, 0xff]), "0009abff");
    }
}
