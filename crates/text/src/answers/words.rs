//! The words that people answer with, in the languages of user interfaces.
//!
//! The phrases are in `phrases`; an answer with any other word is not understood.

use std::{collections::HashMap, sync::LazyLock};

use nonet_search::fold;

use super::phrases::PHRASES;

/// What a phrase does in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gist {
    /// Agrees.
    Yes,
    /// Agrees, except behind a please, where somebody else is asked to agree: "please confirm".
    Grant,
    /// Agrees by naming the action.
    Go,
    /// Agrees, but may decline if only thanks follow: "that's fine, thanks".
    Fine,
    /// Agrees unless another assent precedes it: "yeah, right" does not agree.
    Lead,
    /// Agrees in one language and not in another, so it counts only beside a yes.
    Half,
    /// Agrees from now on.
    Always,
    /// From now on, beside a yes.
    Lasting,
    /// Everything of this kind, beside a yes.
    All,
    /// Refuses.
    No,
    /// Refuses by itself: "no" also begins "no complaints", and "don't" also begins "don't wait".
    Bare,
    /// May begin a change request.
    Start,
    /// Requests a change.
    Change,
    /// Limits what was said before it.
    But,
    /// Neither agrees nor refuses.
    Doubt,
    /// Names an obstacle, or negates. Behind a no it may agree: "no, no objections".
    Ease,
    /// Asks something back.
    Question,
    /// This time, at the end of a part; else it begins a condition: "once they agree".
    Once,
    /// Names the subject of the yes or no before it.
    It,
    /// Introduces the speaker, at the start.
    Says,
    /// Asks politely.
    Please,
    Thanks,
    /// Says nothing by itself.
    Filler,
    /// A mark between two parts of a sentence.
    Pause,
}

/// The longest phrase, in words.
pub(super) const LONGEST: usize = 6;
/// The longest phrase of a script without spaces, in characters.
pub(super) const LONGEST_UNSPACED: usize = 16;

impl Gist {
    /// Whether it agrees, by itself or beside a yes.
    pub(super) fn agrees(self) -> bool {
        use Gist::{All, Always, Fine, Go, Grant, Half, Lasting, Lead, Yes};
        matches!(self, Yes | Grant | Go | Fine | Lead | Half | All | Always | Lasting)
    }

    /// Whether it says neither a yes nor a no, and limits neither.
    pub(super) fn is_filler(self) -> bool {
        matches!(self, Gist::Filler | Gist::Please | Gist::Thanks)
    }
}

/// Signs with the meaning of a word.
const SIGNS: &[(Gist, &str)] = &[
    (Gist::Yes, "👍👌✅✔☑🆗⭕🙆"),
    (Gist::No, "👎❌✖✗✘🚫⛔🙅🛑"),
    (Gist::Doubt, "🤷🤔😕"),
    (Gist::Question, "?？؟¿❓❔"),
];

/// The phrases, folded, their words joined by a space.
static TABLE: LazyLock<HashMap<String, Gist>> = LazyLock::new(|| {
    let phrases = PHRASES.iter().flat_map(|(word, list)| list.split(',').map(|phrase| (*word, phrase)));
    let mut table = HashMap::new();
    for (word, phrase) in phrases {
        // The first entry of a phrase wins.
        table.entry(plain(phrase).join(" ")).or_insert(word);
    }
    table
});

/// Returns the gist of a phrase whose words are folded and joined by a space.
pub(super) fn word_of(phrase: &str) -> Option<Gist> {
    TABLE.get(phrase).copied()
}

/// Returns the gist of a sign.
pub(super) fn sign(c: char) -> Option<Gist> {
    SIGNS.iter().find(|(_, signs)| signs.contains(c)).map(|(word, _)| *word)
}

/// Whether a character ends a part of a sentence, judged by its neighbours.
pub(super) fn pauses(before: Option<char>, c: char, behind: Option<char>) -> bool {
    let open = |next: Option<char>| next.is_none_or(|next| !next.is_alphanumeric());
    match c {
        ',' | ';' | '!' | '\n' | '(' | '\u{2013}' | '\u{2014}' | '，' | '；' | '：' | '。' | '、' | '！'
        | '…' => true,
        '.' | ':' => open(behind),
        '-' => open(before) && open(behind),
        _ => false,
    }
}

/// Whether a character belongs to a script that is written without spaces.
pub(super) fn unspaced(c: char) -> bool {
    matches!(u32::from(c), 0x3040..=0x30FF | 0x31F0..=0x31FF | 0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xF900..=0xFAFF)
}

/// Returns the folded words of a text. Apostrophes are removed; other punctuation separates words.
pub(super) fn plain(text: &str) -> Vec<String> {
    fold(text)
        .replace(['\'', '’', 'ʼ', '`', '´'], "")
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(String::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_phrase_means_two_things() {
        let mut first: HashMap<String, Gist> = HashMap::new();
        for (word, list) in PHRASES {
            for phrase in list.split(',') {
                let folded = plain(phrase).join(" ");
                assert!(!folded.is_empty() && folded.split(' ').count() <= LONGEST, "{phrase}");
                assert!(!folded.contains(unspaced) || folded.chars().count() <= LONGEST_UNSPACED, "{phrase}");
                let before = *first.entry(folded.clone()).or_insert(*word);
                // All kinds of assent count as one kind, and so do all kinds that prevent an assent.
                let kind = |word: Gist| match word {
                    Gist::Yes | Gist::Grant | Gist::Go | Gist::Fine => 1,
                    Gist::But | Gist::Doubt | Gist::Ease | Gist::Start | Gist::Change => 2,
                    Gist::Always | Gist::Lasting => 3,
                    _ => 10 + word as usize,
                };
                assert!(kind(before) == kind(*word), "{phrase}: {before:?} and {word:?}");
            }
        }
    }
}
