//! Splits text into words, for documents and queries alike, before keyword comparison.
//!
//! Knows letters and English, not documents, scores or models.

use std::sync::LazyLock;

use regex::Regex;
use rust_stemmers::{Algorithm, Stemmer};

static STEMMER: LazyLock<Stemmer> = LazyLock::new(|| Stemmer::create(Algorithm::English));

/// Words without a meaning of their own in a request or description, sorted. Prepositions are not among them:
/// they distinguish `convert to` from `convert from` (+0.4 points of nDCG over six catalogues).
const STOP_WORDS: &[&str] = &[
    "a", "all", "also", "am", "an", "and", "any", "are", "be", "because", "been", "being", "both", "but",
    "can", "cannot", "could", "d", "did", "do", "does", "doing", "don", "each", "further", "had", "has",
    "have", "having", "he", "hello", "help", "her", "here", "hers", "hey", "hi", "him", "his", "how", "i",
    "if", "is", "it", "its", "just", "kindly", "let", "like", "ll", "m", "may", "me", "might", "more",
    "most", "must", "my", "need", "no", "nor", "not", "once", "only", "or", "other", "our", "ours", "own",
    "please", "re", "s", "same", "shall", "she", "should", "so", "some", "such", "t", "than", "thank",
    "thanks", "that", "the", "their", "theirs", "them", "then", "there", "these", "they", "this", "those",
    "too", "until", "us", "use", "using", "ve", "very", "via", "want", "was", "we", "were", "what", "when",
    "where", "which", "while", "who", "whom", "why", "will", "would", "you", "your", "yours",
];

/// Words that mean something only beside others, as stems.
const PREPOSITIONS: &[&str] = &[
    "about", "after", "as", "at", "befor", "by", "for", "from", "in", "into", "of", "off", "on", "out",
    "over", "through", "to", "under", "up", "with",
];

/// Whether a stem is a preposition.
pub(super) fn is_preposition(word: &str) -> bool {
    PREPOSITIONS.binary_search(&word).is_ok()
}

/// Whether a folded word is a stop word.
pub(super) fn is_stop_word(word: &str) -> bool {
    STOP_WORDS.binary_search(&word).is_ok()
}

/// Returns a word's stem; words with other than plain English letters are returned as they are.
pub(super) fn stem(word: &str) -> String {
    let english = word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_lowercase());
    if english { STEMMER.stem(word).into_owned() } else { word.to_owned() }
}

/// Returns the words that count, stemmed, in order, with repeats.
pub(super) fn terms(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for chunk in chunks(text) {
        words.extend(chunk.words());
        // `GitHub` also matches `github`, and vice versa.
        words.extend(chunk.joined());
    }
    words.iter().filter(|word| !is_stop_word(word)).map(|word| stem(word)).collect()
}

/// Returns the words in lower case, without accents, with identifiers split: `createIssue` is `create issue`.
pub(super) fn words(text: &str) -> Vec<String> {
    chunks(text).iter().flat_map(Chunk::words).collect()
}

/// Returns the text with its identifiers split at underscores and case changes.
pub(super) fn split_identifiers(text: &str) -> String {
    chunks(text).iter().flat_map(|chunk| chunk.parts.iter()).cloned().collect::<Vec<_>>().join(" ")
}

/// Returns the trigrams of the words that count, with both ends of a word marked: `^ab`, `abc`, `bc$`. Packs
/// three characters of 21 bits into one number.
pub(super) fn trigrams(text: &str) -> Vec<u64> {
    let mut grams = Vec::new();
    for word in words(text).iter().filter(|word| !is_stop_word(word)) {
        let letters: Vec<char> = std::iter::once('^').chain(word.chars()).chain(['$']).collect();
        grams.extend(
            letters.windows(3).map(|gram| gram.iter().fold(0, |key, &c| key << 21 | u64::from(c as u32))),
        );
    }
    grams
}

/// Returns the first sentence, or the whole text if it has no second one. Skips text too short for a
/// sentence.
pub(super) fn first_sentence(text: &str) -> &str {
    /// A full stop before this many bytes ends an abbreviation, and a shorter line is a heading.
    const SHORTEST: usize = 15;
    let text = text.trim();
    let ends = text.char_indices().filter(|&(at, c)| match c {
        '\n' | '。' | '！' | '？' => true,
        '.' | '!' | '?' => text[at + 1..].starts_with(char::is_whitespace),
        _ => false,
    });
    let end = ends.map(|(at, c)| at + c.len_utf8()).find(|&end| end >= SHORTEST);
    end.map_or(text, |end| text[..end].trim_end())
}

/// Headings of usage instructions, which do not say what the tool does.
static USAGE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"(?im)(?:^|[.!?]\s+)(?:args|arguments|parameters|params|returns?|raises|throws|yields|examples?|example\s+usage|usage|example\s+(?:call|query|request|response|output)s?|output\s+format|response\s+format|input\s+schema|request\s+body|error\s+responses|required\s+params?|optional\s+params?|notes?|important|warnings?|prerequisites|limitations)\s*:(?:\s|$)",
    )
    .expect("a constant that a test compiles")
});

/// Fenced code, tags, link targets and addresses.
static MARKUP: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?s)```.*?(?:```|$)|</?[a-zA-Z][\w-]*>|\]\([^)\s]*\)|https?://\S+")
        .expect("a constant that a test compiles")
});

/// Phrases that announce a replacement tool.
static DEPRECATED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?:^|[.\[(:*]\s*|\b(?:is|are|now)\s+)(?i:deprecated|obsolete)\b|\bDEPRECATED\b")
        .expect("a constant that a test compiles")
});

/// Whether a description says early on that the tool is deprecated.
pub(super) fn is_deprecated(description: &str) -> bool {
    DEPRECATED.is_match(cut(description.trim(), 240))
}

/// Returns a description without usage rules, argument lists, examples, markup and source-code indentation.
pub(super) fn without_boilerplate(description: &str) -> String {
    let plain = MARKUP.replace_all(description, " ");
    let mut kept = String::new();
    let mut skipping: Option<usize> = None;
    for line in plain.lines() {
        let indent = line.len() - line.trim_start().len();
        let bare = line.trim().trim_start_matches(['#', '*', '-', '•', '>', ' ']).trim();
        if bare.is_empty() {
            continue;
        }
        let usage = USAGE.find(bare);
        match (&usage, skipping) {
            (Some(found), _) => {
                skipping = Some(indent);
                // The punctuation before it belongs to the sentence that stays.
                let stop = usize::from(bare[found.start()..].starts_with(['.', '!', '?']));
                push_line(&mut kept, &bare[..found.start() + stop]);
                continue;
            }
            // Resumes at prose on the same level.
            (None, Some(level))
                if indent <= level
                    && bare.split_whitespace().count() > 6
                    && !is_item(line.trim())
                    && !bare.contains(':') =>
            {
                skipping = None
            }
            (None, Some(_)) => continue,
            (None, None) => {}
        }
        push_line(&mut kept, bare);
    }
    let kept = kept.replace('|', " ").replace(['*', '`', '[', ']'], "");
    let kept = kept.trim();
    if kept.chars().any(char::is_alphanumeric) {
        kept.to_owned()
    } else {
        description.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

fn push_line(text: &mut String, line: &str) {
    let line = line.trim();
    if line.is_empty() {
        return;
    }
    if !text.is_empty() {
        text.push(if text.ends_with(['.', '!', '?', ':', '。', ',', ';']) { ' ' } else { '\n' });
    }
    text.push_str(&line.split_whitespace().collect::<Vec<_>>().join(" "));
}

fn is_item(line: &str) -> bool {
    line.starts_with(['-', '*', '•'])
        || line
            .split_once(['.', ')'])
            .is_some_and(|(number, _)| number.len() < 3 && number.bytes().all(|b| b.is_ascii_digit()))
}

/// Returns the part of a description beyond the model's window, in pieces of the window's size, at most
/// [`MOST_WINDOWS`].
pub(super) fn late_windows(description: &str) -> Vec<String> {
    /// Bytes of English that certainly fit into one window.
    const WINDOW: usize = 320;
    const MOST_WINDOWS: usize = 2;
    let mut windows = vec![String::new()];
    for sentence in sentences(description).flat_map(|sentence| pieces(sentence, WINDOW)) {
        let full = windows
            .last()
            .is_some_and(|last: &String| !last.is_empty() && last.len() + sentence.len() > WINDOW);
        if full {
            if windows.len() > MOST_WINDOWS {
                break;
            }
            windows.push(String::new());
        }
        if let Some(last) = windows.last_mut() {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(sentence);
        }
    }
    windows.remove(0);
    windows
}

/// Splits a text into pieces of at most `most` bytes, at spaces where possible.
fn pieces(text: &str, most: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = if rest.len() <= most {
            rest.len()
        } else {
            let end = rest.floor_char_boundary(most);
            rest[..end].rfind(char::is_whitespace).filter(|space| *space > 0).unwrap_or(end)
        };
        let (piece, after) = rest.split_at(end);
        rest = after.trim_start();
        Some(piece)
    })
}

/// Splits a text into sentences and lines.
fn sentences(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text.trim();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let ends = rest.char_indices().filter(|&(at, c)| match c {
            '\n' | '。' | '！' | '？' => true,
            '.' | '!' | '?' => rest[at + 1..].starts_with(char::is_whitespace),
            _ => false,
        });
        let end = ends.map(|(at, c)| at + c.len_utf8()).find(|&end| end >= 15).unwrap_or(rest.len());
        let (sentence, after) = rest.split_at(end);
        rest = after.trim_start();
        Some(sentence.trim())
    })
}

/// Truncates `text` to `max` characters.
pub(super) fn cut(text: &str, max: usize) -> &str {
    text.char_indices().nth(max).map_or(text, |(end, _)| &text[..end])
}

/// A run of letters and digits, split by its case.
struct Chunk {
    parts: Vec<String>,
    /// Written without spaces (Chinese, Japanese, Thai): character pairs serve as words.
    dense: bool,
}

impl Chunk {
    fn words(&self) -> Vec<String> {
        let folded = self.parts.iter().map(|part| fold(part)).filter(|part| !part.is_empty());
        if !self.dense {
            return folded.collect();
        }
        let mut pairs = Vec::new();
        for part in folded {
            let letters: Vec<char> = part.chars().collect();
            if letters.len() == 1 {
                pairs.push(part);
            } else {
                pairs.extend(letters.windows(2).map(|pair| pair.iter().collect::<String>()));
            }
        }
        pairs
    }

    fn joined(&self) -> Option<String> {
        (self.parts.len() > 1 && !self.dense).then(|| fold(&self.parts.concat()))
    }
}

fn chunks(text: &str) -> Vec<Chunk> {
    let letters: Vec<char> = text.chars().filter(|c| !is_combining(*c)).collect();
    let mut chunks: Vec<Chunk> = Vec::new();
    let mut previous = None;
    for (at, &c) in letters.iter().enumerate() {
        if !c.is_alphanumeric() {
            previous = None;
            continue;
        }
        let dense = is_unspaced(c);
        match chunks.last_mut() {
            Some(chunk) if previous.is_some() && chunk.dense == dense => {
                let hump = !dense && previous.is_some_and(|before| is_hump(before, c, &letters[at + 1..]));
                match chunk.parts.last_mut() {
                    Some(part) if !hump => part.push(c),
                    _ => chunk.parts.push(c.to_string()),
                }
            }
            _ => chunks.push(Chunk { parts: vec![c.to_string()], dense }),
        }
        previous = Some(c);
    }
    chunks
}

/// Whether a new part begins at `c`: `createIssue`, `HTTPServer`, but not `APIs` or `base64`.
fn is_hump(before: char, c: char, after: &[char]) -> bool {
    if !c.is_uppercase() {
        return false;
    }
    let starts_word = after.first().is_some_and(|next| next.is_lowercase());
    let plural = after.first() == Some(&'s') && !after.get(1).is_some_and(|next| next.is_lowercase());
    !before.is_uppercase() || (starts_word && !plural)
}

/// Whether a script has no spaces between words.
fn is_unspaced(c: char) -> bool {
    matches!(c as u32,
        0x0E00..=0x0EFF | 0x1000..=0x109F | 0x1780..=0x17FF // Thai, Lao, Burmese, Khmer
        | 0x3040..=0x30FF | 0x31F0..=0x31FF | 0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xF900..=0xFAFF
        | 0xFF66..=0xFF9F | 0x20000..=0x3FFFF)
}

fn is_combining(c: char) -> bool {
    matches!(c as u32, 0x0300..=0x036F)
}

/// Returns lower case without accents: `École` is `ecole`, `ＡＢ` is `ab`.
pub fn fold(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    let mut folded = String::with_capacity(text.len());
    for c in text.chars().filter_map(narrow).flat_map(char::to_lowercase).filter(|c| !is_combining(*c)) {
        match plain(c) {
            "" => folded.push(c),
            plain => folded.push_str(plain),
        }
    }
    folded
}

/// Returns the plain form of a full-width Latin letter or digit, as typed on Chinese and Japanese keyboards.
fn narrow(c: char) -> Option<char> {
    match c as u32 {
        wide @ 0xFF01..=0xFF5E => char::from_u32(wide - 0xFEE0),
        _ => Some(c),
    }
}

/// Returns the unaccented spelling of an accented small letter; empty for all others.
fn plain(c: char) -> &'static str {
    match c {
        'à' | 'á' | 'â' | 'ã' | 'ä' | 'å' | 'ā' | 'ă' | 'ą' | 'ǎ' | 'ạ' | 'ả' | 'ấ' | 'ầ' => {
            "a"
        }
        'ç' | 'ć' | 'ĉ' | 'ċ' | 'č' => "c",
        'ď' | 'đ' | 'ð' => "d",
        'è' | 'é' | 'ê' | 'ë' | 'ē' | 'ĕ' | 'ė' | 'ę' | 'ě' | 'ẹ' | 'ế' | 'ề' | 'ệ' => "e",
        'ĝ' | 'ğ' | 'ġ' | 'ģ' => "g",
        'ĥ' | 'ħ' => "h",
        'ì' | 'í' | 'î' | 'ï' | 'ĩ' | 'ī' | 'ĭ' | 'į' | 'ı' | 'ǐ' | 'ị' => "i",
        'ĵ' => "j",
        'ķ' => "k",
        'ĺ' | 'ļ' | 'ľ' | 'ŀ' | 'ł' => "l",
        'ñ' | 'ń' | 'ņ' | 'ň' => "n",
        'ò' | 'ó' | 'ô' | 'õ' | 'ö' | 'ø' | 'ō' | 'ŏ' | 'ő' | 'ǒ' | 'ọ' | 'ố' | 'ồ' | 'ộ' | 'ơ' | 'ờ' => {
            "o"
        }
        'ŕ' | 'ŗ' | 'ř' => "r",
        'ś' | 'ŝ' | 'ş' | 'š' | 'ș' => "s",
        'ţ' | 'ť' | 'ŧ' | 'ț' => "t",
        'ù' | 'ú' | 'û' | 'ü' | 'ũ' | 'ū' | 'ŭ' | 'ů' | 'ű' | 'ų' | 'ǔ' | 'ụ' | 'ư' => "u",
        'ŵ' => "w",
        'ý' | 'ÿ' | 'ŷ' => "y",
        'ź' | 'ż' | 'ž' => "z",
        'æ' => "ae",
        'œ' => "oe",
        'ß' => "ss",
        'þ' => "th",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_at_case_and_punctuation() {
        let check = |text: &str, expected: &str| assert_eq!(words(text).join(" "), expected, "{text}");
        check("create_issue", "create issue");
        check("createIssue", "create issue");
        check("HTTPServer2Go", "http server2 go");
        check("list APIs, URLs", "list apis urls");
        check("base64-encode/decode", "base64 encode decode");
        check("Écrire à l'ÉCOLE", "ecrire a l ecole");
        check("e\u{301}crire", "ecrire");
        check("straße", "strasse");
        check("ＡＢＣ", "abc");
        check("查询天气 now", "查询 询天 天气 now");
        check("查", "查");
        check("用bing搜索", "用 bing 搜索");
        check("погода в Москве", "погода в москве");
        check("", "");
        check("!!! 🦀", "");
    }

    #[test]
    fn terms_are_stems_of_the_words_that_count() {
        let check = |text: &str, expected: &str| assert_eq!(terms(text).join(" "), expected, "{text}");
        check("Please list all of my repositories", "list of repositori");
        check("GitHub", "git hub github");
        check("what is the weather?", "weather");
        check("İstanbul", "istanbul");
    }

    #[test]
    fn stop_words_are_sorted() {
        assert!(STOP_WORDS.is_sorted() && PREPOSITIONS.is_sorted());
    }

    #[test]
    fn first_sentences_end_at_stops_and_lines() {
        let check = |text: &str, expected: &str| assert_eq!(first_sentence(text), expected, "{text}");
        check("Reads a text file. Fails if it is too large.", "Reads a text file.");
        check("Reads a file named a.b.txt and more", "Reads a file named a.b.txt and more");
        check("Note. Reads a text file. Then ends.", "Note. Reads a text file.");
        check("Lists open issues\n\nArgs: none", "Lists open issues");
        check("获取指定城市的天气。还有更多", "获取指定城市的天气。");
        check("  ", "");
    }

    #[test]
    fn usage_markup_and_indentation_are_no_part_of_what_is_said() {
        let check = |text: &str, expected: &str| assert_eq!(without_boilerplate(text), expected, "{text}");
        check("Reads a file.", "Reads a file.");
        check("\n      Reads a\n      file.\n", "Reads a\nfile.");
        check("Reads a file.\n\nArgs:\n    path: where it is\n\nReturns:\n    its text", "Reads a file.");
        check("Reads **a** `file` ([docs](https://a.b/c)) <b>now</b>", "Reads a file (docs ) now");
        check("Reads a file. Example: read(\"a\")", "Reads a file.");
        check("Create a note: title and body.", "Create a note: title and body.");
        check("```\ncode\n```", "``` code ```");
        check(
            "Args: a\nThe sheet can be sorted by any of its columns too",
            "The sheet can be sorted by any of its columns too",
        );
    }

    #[test]
    fn late_windows_are_what_comes_after_the_first() {
        let long = "word ".repeat(60);
        assert!(late_windows("One. Two. Three.").is_empty());
        let windows = late_windows(&format!("{long}. Second sentence here. {long}. {long}. {long}."));
        assert!(windows.len() == 2 && windows.iter().all(|window| window.len() <= 640), "{windows:?}");
        assert_eq!(late_windows(&"列出文件，".repeat(200)).len(), 2, "a text without stops is cut");
        assert!(late_windows("").is_empty());
    }

    #[test]
    fn deprecation_is_told_from_words_about_it() {
        let check = |text: &str, expected: bool| assert_eq!(is_deprecated(text), expected, "{text}");
        check("Deprecated: use read_text_file", true);
        check("Reads a file. DEPRECATED, use another.", true);
        check("This tool is deprecated", true);
        check("[deprecated] Reads", true);
        check("Finds calls of deprecated functions", false);
        check("", false);
    }

    #[test]
    fn a_cut_keeps_whole_characters() {
        assert_eq!(cut("天気です", 2), "天気");
        assert_eq!(cut("ab", 5), "ab");
    }
}
