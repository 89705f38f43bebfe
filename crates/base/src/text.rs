//! Text for people and models: hidden characters cleaned, look-alike characters folded, long text truncated,
//! and bytes as hexadecimal digits.
//!
//! All outside text (names, descriptions, errors, stderr, client names) goes through [`clean`] or [`line`]
//! before a model, a log or a terminal sees it. Tool results do not: they pass through unchanged.

use std::{borrow::Cow, fmt::Write};

/// Why a character is invisible, or is not what it looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HiddenChar {
    /// A control character: a terminal obeys it, a log takes it for a line end.
    Control,
    /// A mark, override or isolate of writing direction: text is displayed in another order than it is
    /// stored.
    Direction,
    /// A zero-width space, or another character without a shape.
    Invisible,
    /// A tag (U+E0000 to U+E007F): invisible ASCII.
    Tag,
    /// A variation selector: the 256 of them can spell any text after a character.
    Selector,
}

impl HiddenChar {
    /// Returns the kind's name for a report.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Control => "control characters",
            Self::Direction => "marks that change the direction of text",
            Self::Invisible => "characters without a shape",
            Self::Tag => "tag characters (invisible ASCII)",
            Self::Selector => "variation selectors",
        }
    }

    /// Returns why a character is hidden; `None` for a visible one.
    pub fn of(c: char) -> Option<Self> {
        Some(match c {
            ' '..='~' | '\n' | '\t' => return None,
            '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' => Self::Control,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{206f}' => {
                Self::Direction
            }
            '\u{ad}'
            | '\u{34f}'
            | '\u{115f}'
            | '\u{1160}'
            | '\u{17b4}'
            | '\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200d}'
            | '\u{2060}'..='\u{2065}'
            | '\u{3164}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' => Self::Invisible,
            '\u{e0000}'..='\u{e007f}' => Self::Tag,
            '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}' => Self::Selector,
            _ => return None,
        })
    }
}

/// The flags spelled with tags: England, Scotland and Wales.
const FLAGS: [&str; 3] = [
    "\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f}",
    "\u{e0067}\u{e0062}\u{e0073}\u{e0063}\u{e0074}\u{e007f}",
    "\u{e0067}\u{e0062}\u{e0077}\u{e006c}\u{e0073}\u{e007f}",
];

/// Whether a text has no hidden characters, as nearly every text.
fn is_plain(text: &str) -> bool {
    is_ascii_of(text, |byte| matches!(byte, b' '..=b'~' | b'\n' | b'\t'))
        || hidden(text).next().is_none() && !text.contains('\r') && !text.starts_with('\u{feff}')
}

/// Whether a test holds for every byte. Tests a block of bytes at a time, which the compiler turns into a few
/// instructions.
fn is_ascii_of(text: &str, is_allowed: impl Fn(u8) -> bool) -> bool {
    text.as_bytes().chunks(32).all(|block| block.iter().fold(true, |all, byte| all & is_allowed(*byte)))
}

/// Returns the hidden characters of a text, each with its position. Leaves out the ones that writing needs: a
/// joiner between letters of a script or parts of an emoji, one selector after a character, the tags of
/// flags.
pub fn hidden(text: &str) -> impl Iterator<Item = (usize, char, HiddenChar)> + '_ {
    let mut before = None;
    let mut flag_ends = 0;
    text.char_indices().filter_map(move |(at, c)| {
        let previous = before.replace(c);
        if c.is_ascii_graphic() || c == ' ' {
            return None;
        }
        let rest = || &text[at + c.len_utf8()..];
        if c == '\u{1f3f4}'
            && let Some(flag) = FLAGS.iter().find(|flag| rest().starts_with(**flag))
        {
            flag_ends = at + c.len_utf8() + flag.len();
        }
        let kind = HiddenChar::of(c)?;
        let is_shown = |c: Option<char>| c.is_some_and(|c| !c.is_ascii() && HiddenChar::of(c).is_none());
        let needed = match c {
            '\r' => rest().starts_with('\n'),
            // Also after a selector, as in a flag of several parts.
            '\u{200c}' | '\u{200d}' => {
                (is_shown(previous) || previous == Some('\u{fe0f}')) && is_shown(rest().chars().next())
            }
            '\u{fe00}'..='\u{fe0f}' => {
                is_shown(previous) || previous.is_some_and(|c| c.is_ascii_digit() || matches!(c, '#' | '*'))
            }
            '\u{feff}' => at == 0,
            _ => kind == HiddenChar::Tag && at < flag_ends,
        };
        (!needed).then_some((at, c, kind))
    })
}

/// Returns a text of several lines with only its visible content: removes terminal escape sequences and
/// invisible characters, escapes control characters, and unifies line ends.
pub fn clean(text: &str) -> Cow<'_, str> {
    if is_plain(text) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    for (at, c, kind) in hidden(text) {
        if at < done {
            continue;
        }
        push_lines(&mut out, &text[done..at]);
        let rest = &text[at + c.len_utf8()..];
        done = at + c.len_utf8();
        match c {
            '\r' | '\u{2028}' | '\u{2029}' => out.push('\n'),
            '\u{1b}' => done += sequence(rest),
            '\u{9b}' => done += parameters(rest),
            c if kind == HiddenChar::Control => push_escaped(&mut out, c),
            _ => {}
        }
    }
    push_lines(&mut out, &text[done..]);
    Cow::Owned(out)
}

/// Returns a text of several lines in which nothing is hidden: control characters, invisible characters and
/// marks that turn the direction of writing are escaped. For questions, whose answer may depend on such a
/// character.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if is_plain(text) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    for (at, c, _) in hidden(text) {
        push_lines(&mut out, &text[done..at]);
        done = at + c.len_utf8();
        push_escaped(&mut out, c);
    }
    push_lines(&mut out, &text[done..]);
    Cow::Owned(out)
}

/// Appends a text with Unix line ends, without a byte order mark.
fn push_lines(out: &mut String, text: &str) {
    for (n, part) in text.trim_start_matches('\u{feff}').split("\r\n").enumerate() {
        if n > 0 {
            out.push('\n');
        }
        out.push_str(part);
    }
}

/// Returns the length of the sequence after an escape character; 0 if there is none.
fn sequence(rest: &str) -> usize {
    match rest.as_bytes().first() {
        Some(b'[') => 1 + parameters(&rest[1..]),
        // A title or a link: up to a bell or `ESC \`, on the same line.
        Some(b']' | b'P' | b'_' | b'^' | b'X') => {
            let line = rest.split(['\n', '\r']).next().unwrap_or_default();
            let ends = [line.find('\u{7}').map(|at| at + 1), line.find("\u{1b}\\").map(|at| at + 2)];
            ends.into_iter().flatten().min().unwrap_or(1)
        }
        Some(b'(' | b')' | b'#' | b'%') => {
            1 + usize::from(rest.as_bytes().get(1).is_some_and(u8::is_ascii_graphic))
        }
        Some(b'0'..=b'~') => 1,
        _ => 0,
    }
}

/// Returns the length of a control sequence after its introducer: parameters and a final character.
fn parameters(rest: &str) -> usize {
    let length = rest.bytes().take_while(|byte| matches!(byte, b' '..=b'?')).count();
    length + usize::from(rest.as_bytes().get(length).is_some_and(|byte| matches!(byte, b'@'..=b'~')))
}

/// Whether a text is printable ASCII in one line, which [`line`] leaves as it is.
pub fn is_one_line(text: &str) -> bool {
    is_ascii_of(text, |byte| matches!(byte, b' '..=b'~'))
}

/// Returns a text as one line of at most `max` characters. Escapes line ends, control characters and
/// invisible characters, so that two different names never look the same and no text starts a new line.
pub fn line(text: &str, max: usize) -> String {
    if text.len() <= max && is_one_line(text) {
        return text.into();
    }
    // Escapes only make a text longer; the excess is cut anyway.
    let head = match text.char_indices().nth(max.saturating_add(1)) {
        Some((end, _)) => &text[..end],
        None => text,
    };
    if is_plain(head) && !head.contains(['\n', '\t']) {
        return clip(head, max);
    }
    let mut out = String::with_capacity(head.len());
    let mut hidden = hidden(head).peekable();
    for (at, c) in head.char_indices() {
        let is_hidden = hidden.next_if(|(place, ..)| *place == at).is_some();
        match c {
            '\n' | '\r' | '\t' => push_escaped(&mut out, c),
            c if is_hidden => push_escaped(&mut out, c),
            c => out.push(c),
        }
    }
    clip(&out, max)
}

fn push_escaped(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        // Writing to a string cannot fail.
        c => drop(write!(out, "\\u{{{:x}}}", u32::from(c))),
    }
}

/// Returns a text with every character that looks like an ASCII character replaced by that character:
/// full-width and styled forms, ligatures, and letters of other scripts that are drawn like Latin letters.
/// Changes neither case nor any other character, so a text in Cyrillic or Greek becomes a mixture: fold both
/// sides of a comparison, and show neither.
pub fn fold_confusables(text: &str) -> Cow<'_, str> {
    let is_folded = |c: char| c.is_ascii() || twin(c).is_none() && ligature(c).is_none();
    let Some(first) = text.find(|c| !is_folded(c)) else { return Cow::Borrowed(text) };
    let mut out = String::with_capacity(text.len());
    out.push_str(&text[..first]);
    for c in text[first..].chars() {
        match ligature(c) {
            Some(letters) => out.push_str(letters),
            None => out.push(twin(c).unwrap_or(c)),
        }
    }
    Cow::Owned(out)
}

/// Returns the letters of a ligature.
fn ligature(c: char) -> Option<&'static str> {
    Some(match c {
        'ﬀ' => "ff",
        'ﬁ' => "fi",
        'ﬂ' => "fl",
        'ﬃ' => "ffi",
        'ﬄ' => "ffl",
        'ﬅ' | 'ﬆ' => "st",
        'ĳ' => "ij",
        'ǉ' => "lj",
        'ǌ' => "nj",
        'ǳ' => "dz",
        '…' => "...",
        _ => return None,
    })
}

/// Returns the ASCII character that a character looks like.
fn twin(c: char) -> Option<char> {
    /// The character at a distance in a run that repeats an alphabet or the digits.
    fn nth(run: &[u8], at: u32) -> Option<char> {
        run.get(at as usize % run.len()).map(|byte| char::from(*byte))
    }
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let code = u32::from(c);
    Some(match c {
        '\0'..='\u{9f}' => return None,
        // Runs of forms.
        '\u{ff01}'..='\u{ff5e}' => return char::from_u32(code - 0xfee0),
        '\u{1d400}'..='\u{1d6a3}' => return nth(LETTERS, code - 0x1d400),
        '\u{1d7ce}'..='\u{1d7ff}' => return nth(b"0123456789", code - 0x1d7ce),
        'Ⓐ'..='ⓩ' => return nth(LETTERS, code - 0x24b6),
        '⒜'..='⒵' => return nth(&LETTERS[26..], code - 0x249c),
        '🄐'..='🄩' => return nth(&LETTERS[..26], code - 0x1f110),
        '🄰'..='🅉' => return nth(&LETTERS[..26], code - 0x1f130),
        '🅐'..='🅩' => return nth(&LETTERS[..26], code - 0x1f150),
        '🅰'..='🆉' => return nth(&LETTERS[..26], code - 0x1f170),
        '🇦'..='🇿' => return nth(&LETTERS[..26], code - 0x1f1e6),
        '①'..='⑨' => return nth(b"123456789", code - 0x2460),
        '⁰' => '0',
        '₀'..='₉' => return nth(b"0123456789", code - 0x2080),
        '⁴'..='⁹' => return nth(b"456789", code - 0x2074),
        '¹' => '1',
        '²' => '2',
        '³' => '3',
        // Spaces and marks.
        '\u{a0}' | '\u{1680}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => ' ',
        '‐'..='―' | '⁃' | '−' | '﹘' | '﹣' => '-',
        '‗' | '﹍'..='﹏' => '_',
        '․' | '﹒' => '.',
        '⁄' | '∕' | '⧸' | '╱' => '/',
        'ː' | '˸' | '∶' | '꞉' | '﹕' => ':',
        '‘'..='‛' | '′' | 'ʹ' | 'ʼ' | '´' => '\'',
        '“'..='‟' | '″' => '"',
        '‹' | '⟨' | '〈' | '﹤' => '<',
        '›' | '⟩' | '〉' | '﹥' => '>',
        // Letters of Cyrillic, Greek, Armenian and Cherokee, and rare forms of Latin ones.
        'А' | 'Α' | 'Ꭺ' | 'ᴬ' => 'A',
        'В' | 'Β' | 'Ᏼ' | 'ᴮ' | 'ℬ' => 'B',
        'С' | 'Ϲ' | 'Ꮯ' | 'Ⅽ' | 'ℂ' | 'ℭ' => 'C',
        'Ꭰ' | 'Ⅾ' | 'ᴰ' | 'ⅅ' => 'D',
        'Е' | 'Ε' | 'Ꭼ' | 'ᴱ' | 'ℰ' | 'Ё' | 'Ѐ' => 'E',
        'Ϝ' | 'ℱ' => 'F',
        'Ԍ' | 'Ꮐ' | 'Ᏻ' | 'ᴳ' => 'G',
        'Н' | 'Η' | 'Ꮋ' | 'ᴴ' | 'ℋ'..='ℍ' => 'H',
        'І' | 'Ι' | 'Ӏ' | 'Ⅰ' | 'ᴵ' | 'ℐ' | 'ℑ' | 'Ї' => 'I',
        'Ј' | 'Ϳ' | 'Ꭻ' | 'ᴶ' => 'J',
        'К' | 'Κ' | 'Ꮶ' | '\u{212a}' | 'ᴷ' | 'Ќ' => 'K',
        'Ꮮ' | 'Ⅼ' | 'ᴸ' | 'ℒ' => 'L',
        'М' | 'Μ' | 'Ꮇ' | 'Ϻ' | 'Ⅿ' | 'ᴹ' | 'ℳ' => 'M',
        'Ν' | 'ᴺ' | 'ℕ' => 'N',
        'О' | 'Ο' | 'Օ' | 'ᴼ' => 'O',
        'Р' | 'Ρ' | 'Ꮲ' | 'ᴾ' | 'ℙ' => 'P',
        'Ԛ' | 'ℚ' => 'Q',
        'Ꭱ' | 'Ꮢ' | 'ᴿ' | 'ℛ'..='ℝ' => 'R',
        'Ѕ' | 'Տ' | 'Ꮥ' | 'Ꮪ' => 'S',
        'Т' | 'Τ' | 'Ꭲ' | 'ᵀ' => 'T',
        'Ս' | 'ᵁ' => 'U',
        'Ѵ' | 'Ꮩ' | 'Ⅴ' | 'ⱽ' => 'V',
        'Ԝ' | 'Ꮃ' | 'Ꮤ' | 'ᵂ' => 'W',
        'Х' | 'Χ' | 'Ⅹ' => 'X',
        'Υ' | 'Ү' | 'Ꭹ' | 'Ꮍ' => 'Y',
        'Ζ' | 'Ꮓ' | 'ℤ' | 'ℨ' => 'Z',
        'а' | 'α' | 'ɑ' | 'ᴀ' | 'ᵃ' | 'ₐ' | 'ª' => 'a',
        'Ь' | 'ʙ' | 'ᵇ' | 'Ꮟ' => 'b',
        'с' | 'ϲ' | 'ᴄ' | 'ᶜ' | 'ⅽ' | 'ꮯ' => 'c',
        'ԁ' | 'Ꮷ' | 'ᴅ' | 'ᵈ' | 'ⅾ' | 'ⅆ' => 'd',
        'е' | 'ҽ' | 'ᴇ' | 'ᵉ' | 'ₑ' | '℮' | 'ℯ' | 'ⅇ' | 'ё' | 'ѐ' => 'e',
        'ꜰ' | 'ᶠ' | 'ꬵ' | 'ſ' | 'ϝ' => 'f',
        'ɡ' | 'ɢ' | 'ᵍ' | 'ℊ' | 'ց' => 'g',
        'һ' | 'հ' | 'ʜ' | 'ʰ' | 'ₕ' | 'ℎ' => 'h',
        'і' | 'ι' | 'ı' | 'ɩ' | 'ɪ' | 'ⁱ' | 'ᵢ' | 'ⅰ' | 'ℹ' | 'ⅈ' | 'ї' | 'Ꭵ' => 'i',
        'ј' | 'ϳ' | 'ᴊ' | 'ʲ' | 'ⱼ' | 'ⅉ' => 'j',
        'к' | 'κ' | 'ᴋ' | 'ᵏ' | 'ₖ' => 'k',
        'ӏ' | 'ʟ' | 'ˡ' | 'ₗ' | 'ⅼ' | 'ℓ' => 'l',
        'м' | 'ᴍ' | 'ᵐ' | 'ₘ' | 'ⅿ' => 'm',
        'ո' | 'п' | 'ɴ' | 'ⁿ' | 'ₙ' => 'n',
        'о' | 'ο' | 'σ' | 'օ' | 'ᴏ' | 'ᵒ' | 'ₒ' | 'º' | 'ℴ' => 'o',
        'р' | 'ρ' | 'ᴘ' | 'ᵖ' | 'ₚ' => 'p',
        'ԛ' | 'գ' | 'զ' => 'q',
        'г' | 'ʀ' | 'ʳ' | 'ᵣ' | 'ꭇ' => 'r',
        'ѕ' | 'ꜱ' | 'ˢ' | 'ₛ' => 's',
        'т' | 'τ' | 'ᴛ' | 'ᵗ' | 'ₜ' => 't',
        'υ' | 'ս' | 'ᴜ' | 'ᵘ' | 'ᵤ' => 'u',
        'ѵ' | 'ν' | 'ᴠ' | 'ᵛ' | 'ᵥ' | 'ⅴ' => 'v',
        'ԝ' | 'ѡ' | 'ω' | 'ᴡ' | 'ʷ' | 'ա' => 'w',
        'х' | 'χ' | 'ˣ' | 'ₓ' | 'ⅹ' => 'x',
        'у' | 'ү' | 'γ' | 'ʏ' | 'ʸ' => 'y',
        'ᴢ' | 'ᶻ' => 'z',
        _ => return None,
    })
}

/// The longest displayed name, in characters.
pub const MAX_NAME: usize = 128;
/// The longest title, in characters.
pub const MAX_TITLE: usize = 200;

/// Returns a name for display: one line of at most [`MAX_NAME`] characters.
pub fn name(text: &str) -> String {
    line(text, MAX_NAME)
}

/// Truncates a text to `max` characters and marks the cut with `...`.
pub fn clip(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.into();
    }
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_string(),
    }
}

/// Truncates a text to at most `max` characters like [`clip`], after a whole word if there is one.
pub fn clip_words(text: &str, max: usize) -> String {
    let Some((end, next)) = text.char_indices().nth(max) else { return text.to_string() };
    let head = &text[..end];
    let whole = if next.is_whitespace() { Some(end) } else { head.rfind(char::is_whitespace) };
    format!("{}...", head[..whole.unwrap_or(end)].trim_end())
}

/// Truncates a text to at most `max` bytes, at a character boundary.
pub fn clip_bytes(text: &str, max: usize) -> &str {
    match max < text.len() {
        true => &text[..text.floor_char_boundary(max)],
        false => text,
    }
}

/// Returns bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// Quotes a word of a shell command if necessary.
pub fn shell_word(text: &str) -> String {
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
    fn a_text_of_several_lines_has_only_what_is_seen() {
        let check = |text: &str, expected: &str| assert_eq!(clean(text), expected, "{text:?}");
        check(
            "Reads a file.\n\n\tIndented, with \"quotes\".",
            "Reads a file.\n\n\tIndented, with \"quotes\".",
        );
        check("größer, 数字, שלום, العربية", "größer, 数字, שלום, العربية");
        check("one\r\ntwo\rthree\u{2028}four", "one\ntwo\nthree\nfour");
        check("\u{1b}[31mred\u{1b}[0m and \u{1b}[2Jgone", "red and gone");
        check("a \u{1b}]8;;http://x\u{7}link\u{1b}]8;;\u{1b}\\ here", "a link here");
        check("\u{1b}]0;title without an end", "0;title without an end");
        check("\u{9b}31mred, \u{1b}(B\u{1b}cplain\u{1b}", "red, plain");
        check("bell\u{7} null\0 back\u{8}", "bell\\u{7} null\\u{0} back\\u{8}");
        check("\u{202e}drowssap\u{202c} a\u{200b}b\u{2060}c\u{ad}d\u{feff}", "drowssap abcd");
        check("\u{feff}begins with a mark", "begins with a mark");
        let tags: String =
            "ignore all".chars().map(|c| char::from_u32(0xe0000 + c as u32).expect("a tag")).collect();
        check(&format!("Adds two numbers.{tags}"), "Adds two numbers.");
        check("x\u{e0101}\u{e0102}\u{fe01}", "x");
    }

    #[test]
    fn what_writing_needs_stays() {
        for text in [
            "👩\u{200d}💻 and 🏳\u{fe0f}\u{200d}🌈",
            "1\u{fe0f}\u{20e3} ☀\u{fe0f}",
            "می\u{200c}خواهم",
            "क्\u{200d}ष",
            "🏴\u{e0067}\u{e0062}\u{e0073}\u{e0063}\u{e0074}\u{e007f}!",
        ] {
            assert_eq!(clean(text), text, "{text:?}");
            assert_eq!(line(text, 100), text, "{text:?}");
        }
        assert_eq!(clean("a\u{200d}b"), "ab", "a joiner between letters that do not join");
    }

    #[test]
    fn a_question_hides_nothing() {
        let check = |text: &str, expected: &str| assert_eq!(escaped(text), expected, "{text:?}");
        check("Pay 5?\n\n\tNow", "Pay 5?\n\n\tNow");
        check("größer, שלום, 👩\u{200d}💻\r\n", "größer, שלום, 👩\u{200d}💻\n");
        check("\u{202e}001\u{202c} a\u{200b}b\u{e0041}", "\\u{202e}001\\u{202c} a\\u{200b}b\\u{e0041}");
        check("\u{1b}[2Kgone\rover", "\\u{1b}[2Kgone\\rover");
        check("a\u{2066}\nb", "a\\u{2066}\nb");
    }

    #[test]
    fn a_line_stays_one_line() {
        let check =
            |text: &str, max: usize, expected: &str| assert_eq!(line(text, max), expected, "{text:?}");
        check("echo", 128, "echo");
        check("été.数", 128, "été.数");
        check("a\n2026-01-31T10:00:00Z  INFO forged", 128, "a\\n2026-01-31T10:00:00Z  INFO forged");
        check("a\r\tb\u{1b}[2K\u{85}\u{2028}", 128, "a\\r\\tb\\u{1b}[2K\\u{85}\\u{2028}");
        check("\u{202e}a\u{200b}\u{e0041}", 128, "\\u{202e}a\\u{200b}\\u{e0041}");
        check("abcd", 3, "abc...");
        check(&"\n".repeat(1_000_000), 4, "\\n\\n...");
        check("", 5, "");
        assert_eq!(name(&"x".repeat(1_000_000)).len(), MAX_NAME + 3);
    }

    #[test]
    fn characters_that_look_like_ascii_become_ascii() {
        let check = |text: &str, expected: &str| assert_eq!(fold_confusables(text), expected, "{text:?}");
        check("delete_all", "delete_all");
        check("ｄｅｌｅｔｅ＿ａｌｌ\u{3000}Ｘ．１", "delete_all X.1");
        check("dеlеtе_аll, ΑΒΕΖΗΙ", "delete_all, ABEZHI");
        check("𝐝𝑒𝓵𝖊𝚝𝕖 𝗔𝟙𝟬", "delete A10");
        check("ⓓⒺ🄳🅴 ᴅᴇʟᴇᴛᴇ ᵈᵉ₁² ﬁle", "dEDE delete de12 file");
        check("don’t “do” — it…", "don't \"do\" - it...");
        check("日本 größe é", "日本 größe é");
        assert!(matches!(fold_confusables("größe 日本"), Cow::Borrowed(_)));
    }

    #[test]
    fn what_is_hidden_is_found_with_its_place() {
        let check = |text: &str, expected: &[(usize, HiddenChar)]| {
            let found: Vec<_> = hidden(text).map(|(at, _, kind)| (at, kind)).collect();
            assert_eq!(found, expected, "{text:?}");
        };
        check("plain\r\n", &[]);
        check("é\u{200b}\u{202e}", &[(2, HiddenChar::Invisible), (5, HiddenChar::Direction)]);
        check(
            "a\u{e0061}\u{fe0f}\u{7}",
            &[(1, HiddenChar::Tag), (5, HiddenChar::Selector), (8, HiddenChar::Control)],
        );
    }

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

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        let check = |text: &str, expected: &str| assert_eq!(shell_word(text), expected);
        check("files:read", "files:read");
        check("/home/ann/servers.toml", "/home/ann/servers.toml");
        check("My Files", "'My Files'");
        check("it's; rm -rf $HOME", "'it'\\''s; rm -rf $HOME'");
        check("", "''");
    }
}
