//! Cleans up the texts of documents: Markdown with bits of HTML, meant for a browser.

use std::sync::LazyLock;

use nonet_base::text::clip;
use regex::Regex;

/// HTML tags that documents use. Anything else in angle brackets is most likely a placeholder, as in `<id>`.
static TAG: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"(?i)</?(?:a|b|i|u|p|em|strong|code|pre|tt|kbd|sup|sub|small|span|div|ul|ol|li|dl|dt|dd|h[1-6]|table|thead|",
        r"tbody|tr|td|th|img|font|section|details|summary|note|blockquote|figure)(?:\s[^<>]*)?/?>"
    ))
    .expect("the pattern is constant")
});
static BREAK: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i)<(?:br|hr)\s*/?>|</(?:p|li|div|h[1-6]|tr)>").expect("the pattern is constant")
});
static BLANKS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[ \t]*\n\s*\n\s*").expect("the pattern is constant"));
/// A link's address, which is useless to a model that calls a tool.
static LINK: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"!?\[([^\[\]]*)\]\([^()\s]*\)").expect("the pattern is constant"));
const ENTITIES: [(&str, &str); 6] =
    [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&nbsp;", " "), ("&amp;", "&")];

/// Returns the beginning of a text without HTML and link addresses, at most about `max` characters.
pub(super) fn plain(text: &str, max: usize) -> String {
    // Text that is cut off later need not be read.
    let text = clip(text.trim(), max * 2);
    if !text.contains(['<', '&', '\n', ']']) {
        return clip(text.trim(), max);
    }
    let text = BREAK.replace_all(&text, "\n");
    let text = TAG.replace_all(&text, "");
    let text = LINK.replace_all(&text, "$1");
    let mut text = BLANKS.replace_all(&text, "\n\n").into_owned();
    if text.contains('&') {
        for (entity, char) in ENTITIES {
            text = text.replace(entity, char);
        }
    }
    clip(text.trim(), max)
}

/// Returns the same text on one line.
pub(super) fn line(text: &str, max: usize) -> String {
    clip(&plain(text, max).split_whitespace().collect::<Vec<_>>().join(" "), max)
}
