//! Params without secrets: masks known values of the configuration, fields named like secrets, and text that
//! looks like a secret.

use nonet_base::text::clip;
use nonet_text::{
    leaks::{KnownSecrets, rename_keys},
    secrets::{is_harmless, is_secret_name, without_secrets},
};
use serde_json::Value;

/// The replacement for a secret.
const MASK: &str = "***";
/// The most characters of params in a line.
pub(super) const MAX_TEXT: usize = 16_000;

/// Values that must not appear.
#[derive(Default)]
pub struct MaskRules {
    /// The values as they are.
    values: Vec<String>,
    /// The same in every encoding, where they are distinguishable from words.
    known: KnownSecrets,
}

impl MaskRules {
    /// Takes the values, the longest first.
    pub fn new(values: Vec<String>) -> Self {
        let known = KnownSecrets::new(values.iter().map(|value| ("".into(), value.clone())));
        Self { values, known }
    }
}

/// Returns params or another text, which may be JSON, without secrets and of at most `most` characters.
pub fn masked(text: &str, known: &MaskRules, most: usize) -> String {
    let text = match serde_json::from_str::<Value>(text) {
        Ok(mut params) => {
            mask(&mut params, known);
            params.to_string()
        }
        // The text was cut off in the middle.
        Err(_) => plain(text, known),
    };
    clip(&text, most)
}

fn mask(value: &mut Value, known: &MaskRules) {
    match value {
        Value::String(text) => *text = plain(text, known),
        Value::Array(items) => items.iter_mut().for_each(|item| mask(item, known)),
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match value {
                    Value::String(text) if is_secret_name(name) && !is_harmless(text, name) => {
                        *text = MASK.into()
                    }
                    Value::Number(_) if is_secret_name(name) => *value = MASK.into(),
                    value => mask(value, known),
                }
            }
            rename_keys(fields, |key| Some(plain(key, known)).filter(|shown| shown != key));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn plain(text: &str, known: &MaskRules) -> String {
    let text = known
        .values
        .iter()
        .filter(|secret| text.contains(secret.as_str()))
        .fold(text.to_owned(), |text, secret| text.replace(secret, MASK));
    without_secrets(&known.known.mask(&text)).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn params_have_no_secrets() {
        let known = MaskRules::new(vec!["hunter2-of-the-config".into()]);
        let check =
            |params: &str, expected: &str| assert_eq!(masked(params, &known, MAX_TEXT), expected, "{params}");
        check(r#"{"path":"a/b","n":3}"#, r#"{"path":"a/b","n":3}"#);
        check(
            r#"{"password":"blue monkey 9","deep":[{"api_key":"0123456789"}]}"#,
            r#"{"password":"***","deep":[{"api_key":"***"}]}"#,
        );
        check(r#"{"text":"say hunter2-of-the-config twice"}"#, r#"{"text":"say *** twice"}"#);
        check(r#"{"text":"it is ghp_0123456789abcdefghij0123456789abcdef"}"#, r#"{"text":"it is ***"}"#);
        check(
            r#"{"hunter2-of-the-config":1,"a":{"x ghp_0123456789abcdefghij0123456789abcdef":"y"}}"#,
            r#"{"***":1,"a":{"x ***":"y"}}"#,
        );
        check(r#"{"text":"aHVudGVyMi1vZi10aGUtY29uZmln"}"#, r#"{"text":"***"}"#);
        check(r#"{"text":"say hunter2-of-the-config tw"#, r#"{"text":"say *** tw"#);
    }
}
