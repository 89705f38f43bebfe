//! Translates requests from eight languages into English, word by word: most tools are described in English,
//! and a translation's words and vector find them beside those of the request itself.
//!
//! Each language has a dictionary (`languages/*.txt`) with the words of this field: verbs, objects, file
//! types, time. The result need not be a proper sentence. Numbers, names in Latin letters and quoted text are
//! kept. Knows words, not documents or scores.

use std::{
    collections::{HashMap, HashSet},
    sync::LazyLock,
};

use rust_stemmers::{Algorithm, Stemmer};

use super::{abbreviations, actions, products, synonyms, text};

/// The most words in a dictionary phrase.
const LONGEST_PHRASE: usize = 5;
/// The fewest letters of a word split as a compound.
const SHORTEST_COMPOUND: usize = 7;
/// The fewest letters of a part of a compound.
const SHORTEST_HALF: usize = 3;
/// The most words between a German verb and its separated prefix at the end of the clause.
const LONGEST_CLAUSE: usize = 25;
/// Longer runs are not words and are not analysed.
const LONGEST_WORD: usize = 40;

/// A source language of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Language {
    /// German.
    De,
    /// French.
    Fr,
    /// Spanish.
    Es,
    /// Portuguese.
    Pt,
    /// Italian.
    It,
    /// Russian.
    Ru,
    /// Chinese.
    Zh,
    /// Japanese.
    Ja,
}

use Language::{De, Es, Fr, It, Ja, Pt, Ru, Zh};

/// Languages with Latin letters, which can be told apart only by their words.
const LATIN: [Language; 5] = [De, Fr, Es, Pt, It];

impl Language {
    fn source(self) -> &'static str {
        match self {
            De => include_str!("languages/de.txt"),
            Fr => include_str!("languages/fr.txt"),
            Es => include_str!("languages/es.txt"),
            Pt => include_str!("languages/pt.txt"),
            It => include_str!("languages/it.txt"),
            Ru => include_str!("languages/ru.txt"),
            Zh => include_str!("languages/zh.txt"),
            Ja => include_str!("languages/ja.txt"),
        }
    }

    fn stemmer(self) -> Option<Stemmer> {
        let algorithm = match self {
            De => Algorithm::German,
            Fr => Algorithm::French,
            Es => Algorithm::Spanish,
            Pt => Algorithm::Portuguese,
            It => Algorithm::Italian,
            Ru => Algorithm::Russian,
            Zh | Ja => return None,
        };
        Some(Stemmer::create(algorithm))
    }

    fn dictionary(self) -> &'static Dictionary {
        static ALL: [LazyLock<Dictionary>; 8] = [
            LazyLock::new(|| Dictionary::read(De)),
            LazyLock::new(|| Dictionary::read(Fr)),
            LazyLock::new(|| Dictionary::read(Es)),
            LazyLock::new(|| Dictionary::read(Pt)),
            LazyLock::new(|| Dictionary::read(It)),
            LazyLock::new(|| Dictionary::read(Ru)),
            LazyLock::new(|| Dictionary::read(Zh)),
            LazyLock::new(|| Dictionary::read(Ja)),
        ];
        &ALL[self as usize]
    }

    /// Returns the pronouns attached to a verb: `muestrame`, `mettilo`. Longest first.
    fn enclitics(self) -> &'static [&'static str] {
        match self {
            Es => &[
                "melos", "melas", "selos", "selas", "noslo", "noslos", "melo", "mela", "selo", "sela",
                "telo", "tela", "los", "las", "les", "nos", "me", "te", "se", "lo", "la", "le",
            ],
            It => &[
                "melo", "mela", "meli", "mele", "celo", "glielo", "gliela", "mene", "gli", "mi", "ti", "ci",
                "vi", "lo", "la", "li", "le", "ne",
            ],
            Pt => &["lhes", "nos", "los", "las", "lhe", "me", "te", "se", "lo", "la", "os", "as", "o", "a"],
            _ => &[],
        }
    }
}

impl Language {
    /// Translates a text of this language word by word.
    pub(super) fn into_english(self, text: &str) -> String {
        self.dictionary().translate(self, &tokens(text))
    }
}

/// A translated request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gloss {
    pub(super) language: Language,
    /// English words in the order of the request.
    pub(super) text: String,
}

/// Translates a request; `None` if it is English already, or in none of the languages.
pub(super) fn gloss(request: &str) -> Option<Gloss> {
    let tokens = tokens(request);
    let language = language_of(&tokens)?;
    let text = language.dictionary().translate(language, &tokens);
    // Without any dictionary word, keep the request as it is.
    text.chars().any(char::is_alphanumeric).then_some(Gloss { language, text })
}

/// A piece of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// A word: as written, and folded.
    Word(String, String),
    /// Chinese or Japanese text.
    Dense(String),
    /// A number, path, name with digits, or quoted text, kept as it is.
    Verbatim(String),
    /// Punctuation that no phrase spans.
    Stop(char),
}

fn tokens(request: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = request;
    while let Some(c) = rest.chars().next() {
        if let Some(close) = closing_quote(c)
            && let Some(end) = rest[c.len_utf8()..].find(close).filter(|end| *end > 0 && *end < 400)
        {
            let (start, end) = (c.len_utf8(), c.len_utf8() + end);
            tokens.push(Token::Verbatim(format!("\"{}\"", rest[start..end].trim())));
            rest = &rest[end + close.len_utf8()..];
        } else if is_dense(c) {
            let end = rest.find(|c| !is_dense(c)).unwrap_or(rest.len());
            tokens.push(Token::Dense(rest[..end].to_owned()));
            rest = &rest[end..];
        } else if is_run(c) {
            let end = rest.find(|c: char| !is_run(c)).unwrap_or(rest.len());
            run(&rest[..end], &mut tokens);
            rest = &rest[end..];
        } else {
            if let Some(stop) = stop(c) {
                tokens.push(Token::Stop(stop));
            }
            rest = &rest[c.len_utf8()..];
        }
    }
    tokens
}

fn closing_quote(c: char) -> Option<char> {
    match c {
        '"' => Some('"'),
        '“' => Some('”'),
        '„' => Some('“'),
        '«' => Some('»'),
        '「' => Some('」'),
        '『' => Some('』'),
        '《' => Some('》'),
        '`' => Some('`'),
        _ => None,
    }
}

/// Whether a character belongs to a run without spaces: letters, and the punctuation of paths and file names.
fn is_run(c: char) -> bool {
    !is_dense(c)
        && (c.is_alphanumeric() || "'’-_/\\.@:~#%&+*=$|".contains(c) || matches!(c as u32, 0x0300..=0x036F))
}

fn stop(c: char) -> Option<char> {
    match c {
        '.' | '!' | '?' | ';' | ',' | ':' | '\n' | '(' | ')' => Some(c),
        '。' | '．' => Some('.'),
        '！' | '¡' => Some('!'),
        '？' => Some('?'),
        '；' => Some(';'),
        '，' | '、' => Some(','),
        '：' => Some(':'),
        _ => None,
    }
}

/// Whether a character is Chinese or Japanese.
fn is_dense(c: char) -> bool {
    matches!(c as u32, 0x3005..=0x3007 | 0x3040..=0x30FF | 0x31F0..=0x31FF | 0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xF900..=0xFAFF | 0xFF66..=0xFF9F)
}

/// Splits a run without spaces into tokens.
fn run(run: &str, tokens: &mut Vec<Token>) {
    let inner = run.trim_end_matches(['.', ':', '\'', '’', '-']);
    let is_name = inner.contains(|c: char| c.is_ascii_digit() || "_/\\@~#%&+*=$|".contains(c))
        || inner
            .chars()
            .zip(inner.chars().skip(1))
            .any(|(a, b)| (a == '.' || a == ':') && b.is_alphanumeric());
    if is_name {
        tokens.push(Token::Verbatim(inner.to_owned()));
    } else {
        for word in inner.split(['\'', '’', '-', '.', ':']).filter(|word| !word.is_empty()) {
            tokens.push(Token::Word(word.to_owned(), text::fold(word)));
        }
    }
    if let Some(c) = run[inner.len()..].chars().find_map(stop) {
        tokens.push(Token::Stop(c));
    }
}

/// Detects the language of a request by its letters and words; `None` if it may be English, or is none of the
/// eight.
fn language_of(tokens: &[Token]) -> Option<Language> {
    let words: Vec<(&str, &str)> = tokens
        .iter()
        .filter_map(|token| match token {
            Token::Word(written, folded) => Some((written.as_str(), folded.as_str())),
            _ => None,
        })
        .collect();
    let dense = tokens.iter().filter_map(|token| match token {
        Token::Dense(text) => Some(text.chars()),
        _ => None,
    });
    let dense: Vec<char> = dense.flatten().collect();
    let cyrillic = |word: &str| word.chars().any(|c| matches!(c as u32, 0x0400..=0x04FF));
    let (foreign, latin): (Vec<&str>, Vec<&str>) =
        words.iter().map(|(_, folded)| *folded).partition(|folded| cyrillic(folded));
    // `hot posts on 少数派`: a name in an English request.
    let is_english = || latin.iter().any(|word| english(word) >= 1.0);
    if !dense.is_empty() {
        let kana = dense.iter().any(|c| matches!(*c as u32, 0x3041..=0x30FF | 0xFF66..=0xFF9F));
        let is_name = latin.len() * 2 > dense.len() && is_english();
        return (!is_name).then_some(if kana { Ja } else { Zh });
    }
    if !foreign.is_empty() {
        let is_name = latin.len() > foreign.len() && is_english();
        // Ukrainian, Belarusian, Serbian and Macedonian have letters that Russian does not.
        let is_russian = !foreign.iter().any(|word| word.contains(NOT_RUSSIAN));
        return (!is_name && is_russian).then_some(Ru);
    }
    // Recognises a plain English request in one pass, before reading any dictionary.
    if words.iter().all(|(_, folded)| english(folded) > 0.0 || products::is_known(folded)) {
        return None;
    }
    let mut best: Option<(f32, Language)> = None;
    for language in LATIN {
        let dictionary = language.dictionary();
        let (mut own, mut shared, mut other) = (0.0, 0.0, 0.0);
        let mut known = 0;
        for (written, folded) in &words {
            let english = english(folded);
            let knows = dictionary.knows(language, written, folded);
            known += usize::from(knows);
            match knows {
                false => other += english,
                // A single letter is not a word: a list of letters has no language.
                true if english > 0.0 || folded.chars().count() < 2 => shared += 0.25,
                // English has no accented letters.
                true => own += if written.is_ascii() { 1.0 } else { 1.5 },
            }
        }
        let enough = if words.len() > 3 { own >= 2.0 } else { own >= 1.0 };
        // Dutch has words of German, and Swedish words of French, but not half of them.
        let is_own = own > other && 2 * known >= words.len();
        if enough && is_own && best.is_none_or(|(most, _)| own + shared > most) {
            best = Some((own + shared, language));
        }
    }
    best.map(|(_, language)| language)
}

/// Cyrillic letters of other languages than Russian.
const NOT_RUSSIAN: [char; 11] = ['і', 'ї', 'є', 'ґ', 'ў', 'ђ', 'ј', 'љ', 'њ', 'ћ', 'џ'];

/// English words with the same spelling in other languages.
const COMMON_ENGLISH: &str = "\
    accounts activation addition alias alter alto am are arm as assistance assurance at auto bad be \
    branches brief but by cafe cane cause cave certain chat chef chose classes coin collaboration come \
    commander commits construction core correction courses court creation curriculum dent diagnostic \
    dice differences diffusion dir do doc done dove else estate etiquette evaluation ever evolution \
    execution explorer extra extraction fall fame fast files fin final fine flux foot for formation \
    forms from gift grand gross gut had has have he her here hey hi him his hop how hut i ideas if in \
    indices installation interior is issues it items its joint journal kind land las last lee less links \
    lit locale machines made main make male man many mare mars mate may me memo meta mine minimal mode \
    moment more most motor much musical my navigation no non none not of on once one or ore organisation \
    our out over own pace pack pain parents pasta per phrase pie pile place plan planning plus point \
    pose premier principal progression promotion protection quest rat real red reduction regime \
    relations repo reports rock roman rot rotation sale salon same scanner sea selection she site slides \
    smartphone sms sol sole some son stand stats such super superior suspends tabs tag taste tempo \
    temporal tester than that the their them then there these they this those tickets tiers to toll tor \
    total traces transcription two under up us use utilize van vent very via videos voter war was we \
    were what when where which while who why will with you your";

/// Returns how strongly a folded word suggests English: function words more than nouns, which other languages
/// borrow.
fn english(word: &str) -> f32 {
    static OF_THE_FIELD: LazyLock<HashSet<String>> = LazyLock::new(|| {
        let mut words: HashSet<String> = HashSet::new();
        words.extend(actions::verbs().map(str::to_owned));
        words.extend(synonyms::words().map(str::to_owned));
        words.extend(COMMON_ENGLISH.split_whitespace().map(str::to_owned));
        for language in [De, Fr, Es, Pt, It, Ru, Zh, Ja] {
            let glosses = language.source().lines().filter_map(|line| Some(line.split_once(':')?.0));
            words.extend(glosses.flat_map(str::split_whitespace).map(str::to_owned));
        }
        words
    });
    static STEMS: LazyLock<HashSet<String>> =
        LazyLock::new(|| OF_THE_FIELD.iter().map(|word| text::stem(word)).collect());
    let is_abbreviation = || {
        let singular = word.strip_suffix('s').unwrap_or(word);
        abbreviations::meaning(word).or_else(|| abbreviations::meaning(singular)).is_some()
    };
    if products::is_known(word) {
        0.0
    } else if text::is_stop_word(word) || text::is_preposition(word) {
        1.0
    } else if OF_THE_FIELD.contains(word) || is_abbreviation() || STEMS.contains(&text::stem(word)) {
        0.5
    } else {
        0.0
    }
}

/// The dictionary of one language.
struct Dictionary {
    /// By folded words joined with a space: the English words, empty for words without meaning.
    exact: HashMap<String, &'static str>,
    /// The same by stems, for languages with a stemmer.
    stems: HashMap<String, &'static str>,
    stemmer: Option<Stemmer>,
    /// Letters of the longest entry, for languages without spaces.
    longest: usize,
}

impl Dictionary {
    fn read(language: Language) -> Dictionary {
        let mut dictionary = Dictionary {
            exact: HashMap::new(),
            stems: HashMap::new(),
            stemmer: language.stemmer(),
            longest: 0,
        };
        for (english, foreign) in entries(language.source()) {
            let words: Vec<&str> =
                foreign.split([' ', '-', '\'', '’']).filter(|word| !word.is_empty()).collect();
            let folded: Vec<String> = words.iter().map(|word| text::fold(word)).collect();
            dictionary.longest = dictionary.longest.max(foreign.chars().count());
            let (stems, plain) = (dictionary.stem_all(&words), dictionary.stem_all(&folded));
            dictionary.exact.entry(folded.join(" ")).or_insert(english);
            for stems in [stems, plain] {
                dictionary.stems.entry(stems).or_insert(english);
            }
        }
        dictionary
    }

    fn stem_all(&self, words: &[impl AsRef<str>]) -> String {
        let stems: Vec<String> = words.iter().map(|word| self.stem(word.as_ref())).collect();
        stems.join(" ")
    }

    fn stem(&self, word: &str) -> String {
        let lower = word.to_lowercase();
        match &self.stemmer {
            Some(stemmer) => text::fold(&stemmer.stem(&lower)),
            None => text::fold(&lower),
        }
    }

    /// Looks up a word or phrase as written, then by its stems.
    fn look_up(&self, words: &[(&str, &str)]) -> Option<&'static str> {
        let join = |pick: fn(&(&str, &str)) -> String| words.iter().map(pick).collect::<Vec<_>>().join(" ");
        let exact = self.exact.get(&join(|(_, folded)| (*folded).to_owned()));
        let written: Vec<&str> = words.iter().map(|(written, _)| *written).collect();
        let folded: Vec<&str> = words.iter().map(|(_, folded)| *folded).collect();
        exact
            .or_else(|| self.stems.get(&self.stem_all(&written)))
            .or_else(|| self.stems.get(&self.stem_all(&folded)))
            .copied()
    }

    fn knows(&self, language: Language, written: &str, folded: &str) -> bool {
        self.look_up(&[(written, folded)]).is_some() || self.by_parts(language, folded).is_some()
    }

    /// Looks up a word without its attached pronoun, or by the parts of the compound.
    fn by_parts(&self, language: Language, folded: &str) -> Option<String> {
        if folded.chars().count() > LONGEST_WORD {
            return None;
        }
        for enclitic in language.enclitics() {
            let Some(verb) = folded.strip_suffix(enclitic).filter(|verb| verb.chars().count() >= 3) else {
                continue;
            };
            let found = self.exact.get(verb).copied();
            // `mostrarlo` is `mostrar lo`; `farlo` is `fare lo`.
            let with_e = || self.exact.get(&format!("{verb}e")).copied().filter(|_| language == It);
            let with_r = || self.exact.get(&format!("{verb}r")).copied().filter(|_| language == Pt);
            if let Some(english) = found.or_else(with_e).or_else(with_r).filter(|english| !english.is_empty())
            {
                return Some(english.to_owned());
            }
        }
        (language == De).then(|| self.compound(folded)).flatten()
    }

    /// Splits a German compound into known parts: `spaltenbreite` is `spalten` and `breite`.
    fn compound(&self, word: &str) -> Option<String> {
        if word.len() < SHORTEST_COMPOUND || !word.is_ascii() {
            return None;
        }
        self.parts_from(word, 0, &mut HashSet::new())
    }

    /// Splits the rest of a compound. `dead` holds positions that lead nowhere, so each is tried once.
    fn parts_from(&self, word: &str, start: usize, dead: &mut HashSet<usize>) -> Option<String> {
        let known = |part: &str| {
            let found = self.exact.get(part).or_else(|| self.stems.get(&self.stem(part)));
            found.copied().filter(|english| !english.is_empty())
        };
        let rest = &word[start..];
        if start > 0
            && let Some(english) = known(rest)
        {
            return Some(english.to_owned());
        }
        for end in (SHORTEST_HALF..=rest.len().saturating_sub(SHORTEST_HALF)).rev() {
            let (head, tail) = rest.split_at(end);
            let Some(english) = known(head) else { continue };
            for link in ["", "s", "es", "n", "en", "er", "e"] {
                let next = start + end + link.len();
                let fits = tail.starts_with(link) && word.len() - next.min(word.len()) >= SHORTEST_HALF;
                if fits
                    && dead.insert(next)
                    && let Some(rest) = self.parts_from(word, next, dead)
                {
                    return Some(format!("{english} {rest}"));
                }
            }
        }
        None
    }

    fn translate(&self, language: Language, tokens: &[Token]) -> String {
        let mut tokens = tokens.to_vec();
        if language == De {
            join_separated(self, &mut tokens);
        }
        let mut out: Vec<String> = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                Token::Stop(stop) => {
                    if let Some(last) = out.last_mut() {
                        last.push(*stop);
                    }
                    at += 1;
                }
                Token::Verbatim(text) => {
                    out.push(text.clone());
                    at += 1;
                }
                Token::Dense(text) => {
                    self.longest_matches(text, &mut out);
                    at += 1;
                }
                Token::Word(written, folded) => {
                    let words: Vec<(&str, &str)> = tokens[at..]
                        .iter()
                        .take(LONGEST_PHRASE)
                        .map_while(|token| match token {
                            Token::Word(written, folded) => Some((written.as_str(), folded.as_str())),
                            _ => None,
                        })
                        .collect();
                    let found = (1..=words.len())
                        .rev()
                        .find_map(|length| Some((length, self.look_up(&words[..length])?)));
                    match found {
                        Some((length, english)) => {
                            if !english.is_empty() {
                                out.push(english.to_owned());
                            }
                            at += length;
                        }
                        None => {
                            out.extend(
                                self.by_parts(language, folded)
                                    .or_else(|| is_latin(written).then(|| written.clone())),
                            );
                            at += 1;
                        }
                    }
                }
            }
        }
        out.join(" ")
    }

    /// Chinese and Japanese: takes the longest entry at each position and skips text without an entry.
    fn longest_matches(&self, text: &str, out: &mut Vec<String>) {
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let ends: Vec<usize> =
                rest.char_indices().take(self.longest).map(|(at, c)| at + c.len_utf8()).collect();
            let found =
                ends.iter().rev().find_map(|&end| Some((end, *self.exact.get(&text::fold(&rest[..end]))?)));
            if let Some((_, english)) = found.filter(|(_, english)| !english.is_empty()) {
                out.push(english.to_owned());
            }
            rest = &rest[found.map_or(first.len_utf8(), |(end, _)| end)..];
        }
    }
}

fn is_latin(word: &str) -> bool {
    word.chars()
        .all(|c| !c.is_alphabetic() || matches!(c as u32, 0x41..=0x24F | 0x1E00..=0x1EFF | 0xFF21..=0xFF5A))
}

/// Separable prefixes of German verbs, found at the end of the clause.
const PARTICLES: &[&str] = &[
    "ab", "an", "auf", "aus", "bei", "durch", "ein", "fertig", "fest", "fort", "frei", "her", "heraus",
    "herunter", "hervor", "hin", "hinzu", "hoch", "los", "mit", "nach", "raus", "rein", "rum", "runter",
    "um", "vor", "weg", "wieder", "zu", "zurueck", "zuruck", "zusammen", "zurück",
];

/// Joins separated German verbs: `leg ... an` becomes `anleg ...`.
fn join_separated(dictionary: &Dictionary, tokens: &mut Vec<Token>) {
    let mut at = 0;
    while at < tokens.len() {
        let ends_clause = |next: Option<&Token>| match next {
            None | Some(Token::Stop(_)) => true,
            Some(Token::Word(_, folded)) => {
                matches!(folded.as_str(), "und" | "oder" | "bitte" | "damit" | "aber" | "dann")
            }
            _ => false,
        };
        if let Token::Word(_, particle) = &tokens[at]
            && PARTICLES.contains(&particle.as_str())
            && ends_clause(tokens.get(at + 1))
        {
            let joined = (0..at)
                .rev()
                .take(LONGEST_CLAUSE)
                .take_while(|&verb| !matches!(tokens[verb], Token::Stop('.' | '!' | '?' | ';')))
                .find_map(|verb| {
                    let Token::Word(written, folded) = &tokens[verb] else { return None };
                    let (whole, plain) =
                        (format!("{particle}{}", written.to_lowercase()), format!("{particle}{folded}"));
                    let known =
                        dictionary.look_up(&[(&whole, &plain)]).is_some_and(|english| !english.is_empty());
                    known.then_some((verb, Token::Word(whole, plain)))
                });
            if let Some((verb, whole)) = joined {
                tokens[verb] = whole;
                tokens.remove(at);
                continue;
            }
        }
        at += 1;
    }
}

/// Parses `english: foreign, foreign` lines; `#` begins a comment.
fn entries(source: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = source.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines.filter_map(|line| line.split_once(':')).flat_map(|(english, foreign)| {
        let words = foreign.split(',').map(str::trim).filter(|word| !word.is_empty());
        words.map(move |word| (english.trim(), word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Language; 8] = [De, Fr, Es, Pt, It, Ru, Zh, Ja];

    #[test]
    fn requests_of_eight_languages_are_told_and_brought_into_english() {
        let check = |request: &str, language: Language, expected: &[&str]| {
            let found = gloss(request).unwrap_or_else(|| panic!("{request} is taken for English"));
            assert_eq!(found.language, language, "{request}: {}", found.text);
            for word in expected {
                assert!(found.text.contains(word), "{request}: {} has no {word}", found.text);
            }
        };
        check("Datei löschen", De, &["delete", "file"]);
        check(
            "Leg mir bitte einen neuen Ordner „Belege 2024“ an",
            De,
            &["create", "folder", "\"Belege 2024\""],
        );
        check("Spaltenbreite ändern", De, &["column", "width", "change"]);
        check("Dateien ueber 10 MB suchen", De, &["file", "10", "search"]);
        check("supprimer le fichier /srv/a_b.txt", Fr, &["delete", "file", "/srv/a_b.txt"]);
        check("creer une branche", Fr, &["create", "branch"]);
        check("¿Qué pestañas tengo abiertas?", Es, &["tab", "open", "?"]);
        check("muéstrame los archivos", Es, &["show", "file"]);
        check("renomear aba", Pt, &["rename", "tab"]);
        check("Inserir uma tabela no documento", Pt, &["insert", "table", "document"]);
        check("elimina la riga 4 del foglio", It, &["delete", "row", "4", "sheet"]);
        check("mostrami i commit", It, &["show", "commit"]);
        check("удали файл отчет.txt", Ru, &["delete", "file"]);
        check("合并单元格A1到D1", Zh, &["merge", "cell", "A1", "D1"]);
        check("GitHubのプルリクエストを見せて", Ja, &["GitHub", "pull request", "show"]);
    }

    #[test]
    fn english_stays_as_it_is() {
        for request in [
            "",
            "list files in a directory",
            "What's the time in São Paulo?",
            "open the café menu.pdf",
            "merge a PR",
            "rename sheet",
            "search for Müller in Jira",
            "git_log",
            "list PRs",
            "hot posts on 少数派",
            "gut microbiome papers",
            "iron ore price",
            "what is the weather in Москва",
            "a b c; d e f",
            "send a message to José Álvarez on Slack",
            "прочитай кілька файлів одразу",
            "Hoe groot zijn de bestanden in deze map?",
            "on one plan come die table",
            "!!! 🦀 42",
        ] {
            assert_eq!(gloss(request), None, "{request}");
        }
    }

    #[test]
    fn any_text_is_read() {
        for request in [
            "の",
            &("tagen".repeat(7) + "qqqqq ").repeat(90),
            &"um,".repeat(1_333),
            "。。。",
            "«",
            "„ohne Ende",
            &"ä".repeat(10_000),
            &"löschen ".repeat(2_000),
            &"删".repeat(5_000),
            "e\u{301}",
        ] {
            let _ = gloss(request);
        }
    }

    #[test]
    fn the_dictionaries_are_small_whole_and_free_of_doubles() {
        let size: usize = ALL.iter().map(|language| language.source().len()).sum();
        assert!(size < 300_000, "{size} bytes");
        for language in ALL {
            let mut seen: HashMap<String, &str> = HashMap::new();
            let mut count = 0;
            for line in
                language.source().lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
            {
                let (english, _) =
                    line.split_once(':').unwrap_or_else(|| panic!("{language:?}: no colon in {line}"));
                let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || " -".contains(c);
                assert!(
                    english.chars().all(plain) && english.split_whitespace().count() <= 4,
                    "{language:?}: {line}"
                );
            }
            for (english, foreign) in entries(language.source()) {
                count += 1;
                if let Some(other) = seen.insert(foreign.to_lowercase(), english) {
                    panic!("{language:?}: {foreign} is both `{other}` and `{english}`");
                }
            }
            assert!(count > 1_500, "{language:?}: {count}");
        }
    }

    /// English-looking words in a dictionary must not make an English request foreign: shared words count for
    /// neither side, and product names are kept.
    #[test]
    fn dictionaries_leave_names_of_products_alone() {
        for language in ALL {
            for (english, foreign) in entries(language.source()) {
                let folded = text::fold(foreign);
                if products::is_known(&folded) {
                    assert_eq!(english, folded, "{language:?}");
                }
            }
        }
    }
}
