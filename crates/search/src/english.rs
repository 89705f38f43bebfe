//! Tells requests in English from those in other languages, by their letters.
//!
//! A text of which more than a third of the letters are not Latin is not English. For the rest, a logistic
//! regression over the letters of its words decides: runs of one to four letters and whole words, hashed into
//! a table of 8,192 weights (`english.weights`; `models/README.md` says what it was fitted on). Knows no
//! other language by name.

use super::text;

/// The weights of hashed runs of letters, as int8.
static WEIGHTS: &[u8; 8192] = include_bytes!("english.weights");
/// What a weight of 1 is worth.
const SCALE: f32 = 0.6916;
/// The score of a text that says nothing.
const BIAS: f32 = -3.881;
/// The most letters of a run.
const LONGEST_RUN: usize = 4;
/// With fewer words in small letters, the others count too.
const ENOUGH_WORDS: usize = 3;
/// How much of a request is read, in words and in characters.
const MOST_WORDS: usize = 60;
const MOST_CHARACTERS: usize = 1_000;

/// Returns whether a request is in another language than English. Text without words is not.
pub(super) fn is_other_language(request: &str) -> bool {
    let text = without_names(text::cut(request, MOST_CHARACTERS));
    let letters = || text.chars().filter(|c| c.is_alphabetic());
    if letters().filter(|c| !is_latin(*c)).count() * 3 > letters().count() {
        return true;
    }
    let words: Vec<&str> =
        text.split(|c| !is_latin(c)).filter(|word| !word.is_empty()).take(MOST_WORDS).collect();
    // Words in capitals may be names, of people and places of any language.
    let is_small = |word: &&&str| word.starts_with(char::is_lowercase);
    let small: Vec<&str> = words.iter().filter(is_small).copied().collect();
    let judged = if small.len() >= ENOUGH_WORDS { small } else { words };
    let sum: f32 = judged.iter().map(|word| of_word(&word.to_lowercase())).sum();
    !judged.is_empty() && SCALE * sum / (judged.len() as f32).sqrt() + BIAS > 0.0
}

fn is_latin(c: char) -> bool {
    c.is_alphabetic() && matches!(c as u32, 0..=0x024F | 0x1E00..=0x1EFF)
}

/// Returns a request without what has no language: quoted text, paths, addresses and identifiers.
fn without_names(request: &str) -> String {
    let unquoted: String = ['"', '`'].iter().fold(request.to_owned(), |text, &quote| {
        let mut parts: Vec<&str> = text.split(quote).collect();
        // A quote that nothing closes is a mark like any other.
        let open = if parts.len().is_multiple_of(2) { parts.pop() } else { None };
        parts.into_iter().step_by(2).chain(open).collect::<Vec<_>>().join(" ")
    });
    let runs = unquoted.split_whitespace().map(|run| run.trim_matches(|c| ".,;:!?()[]«»„“”\"'".contains(c)));
    runs.filter(|run| !run.contains(['/', '\\', '@', '_', '.'])).collect::<Vec<_>>().join(" ")
}

/// Returns the mean weight of a word's runs of letters, its ends included.
fn of_word(word: &str) -> f32 {
    let framed = format!("^{word}$");
    let ends: Vec<usize> = framed.char_indices().map(|(at, _)| at).chain([framed.len()]).collect();
    let runs = |length: usize| ends.windows(length + 1).map(|ends| &framed[ends[0]..ends[ends.len() - 1]]);
    let mut runs: Vec<&str> =
        (1..=LONGEST_RUN).flat_map(runs).filter(|run| !["^", "$"].contains(run)).collect();
    runs.sort_unstable();
    runs.dedup();
    let whole = format!("{framed}#");
    let weight = |run: &str| f32::from(WEIGHTS[bucket(run)].cast_signed());
    let sum: f32 = runs.iter().copied().chain([&*whole]).map(weight).sum();
    sum / (runs.len() + 1) as f32
}

/// Hashes with FNV-1a (Fowler, Noll, Vo; 32 bits), folded to 13 bits.
fn bucket(run: &str) -> usize {
    let hash =
        run.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash ^ hash >> 13) as usize % WEIGHTS.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_in_other_languages_are_noticed() {
        let check = |request: &str, expected: bool| {
            assert_eq!(is_other_language(request), expected, "{request}");
        };
        for request in [
            "파일을 읽어줘",
            "اقرأ الملف",
            "फ़ाइल पढ़ो",
            "utwórz nowy plik w katalogu",
            "yeni bir dosya olustur",
            "hernoem een map",
            "supprime le fichier",
            "прочитай файл",
            "прочитай `config.json` please",
            "ファイルを読む",
            "Datei löschen",
            "open de website \"Read me first\" in de browser",
        ] {
            check(request, true);
        }
        for request in [
            "read a file",
            "gut microbiome papers",
            "send a message to José Álvarez on Slack",
            "hot posts on 少数派",
            "kubernetes",
            "do I need an umbrella",
            "list PRs",
            "run \"supprime le fichier\" in the shell",
            "delete /home/josé/löschen.txt",
            "",
            "!!! 🦀 42",
        ] {
            check(request, false);
        }
    }

    #[test]
    fn quotes_that_nothing_closes_are_marks() {
        assert_eq!(without_names("say \"Guten Tag\" to `Ann` and \"Bob"), "say to and Bob");
        assert_eq!(without_names("\""), "");
    }
}
