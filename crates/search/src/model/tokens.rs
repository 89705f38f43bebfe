//! From a text to a model's tokens: by the crate `tokenizers`, or by a vocabulary in the program's own pages.

use nonet_encoder::{PackedTokenizer, Pieces};
use tokenizers::{Encoding, NormalizedString, Token, Tokenizer, TruncationParams};

/// What stands for the space before a word (SentencePiece).
const SPACE: char = '▁';

/// A tokenizer, ready for use.
pub(super) enum TextTokenizer {
    /// With the limit of its authors.
    Library(Box<Tokenizer>, Option<usize>),
    Pieces(Pieces),
}

impl TextTokenizer {
    /// Opens a `tokenizer.json`. Its padding and limit do not apply.
    pub(super) fn of_json(json: &[u8]) -> Result<TextTokenizer, String> {
        let mut tokenizer = Tokenizer::from_bytes(json).map_err(|error| error.to_string())?;
        let limit = tokenizer.get_truncation().map(|truncation| truncation.max_length);
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
        Ok(TextTokenizer::Library(Box::new(tokenizer), limit))
    }

    /// Opens the tokenizer of a built-in model.
    pub(super) fn of_program(packed: &PackedTokenizer) -> Result<TextTokenizer, String> {
        match *packed {
            PackedTokenizer::Json(json) => TextTokenizer::of_json(json),
            PackedTokenizer::Pieces(packed) => {
                Pieces::new(packed).map(TextTokenizer::Pieces).ok_or_else(|| "not a vocabulary".to_owned())
            }
        }
    }

    /// Returns the most tokens of a text, if the tokenizer's authors set a limit.
    pub(super) fn limit(&self) -> Option<usize> {
        match self {
            TextTokenizer::Library(_, limit) => *limit,
            TextTokenizer::Pieces(_) => None,
        }
    }

    /// Returns the number of tokens, added ones excluded.
    pub(super) fn vocabulary(&self) -> usize {
        match self {
            TextTokenizer::Library(tokenizer, _) => tokenizer.get_vocab_size(false),
            TextTokenizer::Pieces(pieces) => pieces.tokens(),
        }
    }

    /// Returns the tokens of a text with the special ones around it, `most` in all.
    pub(super) fn cut(&mut self, text: &str, most: usize) -> Result<Encoding, String> {
        match self {
            TextTokenizer::Library(tokenizer, _) => {
                let truncation = TruncationParams { max_length: most, ..Default::default() };
                let limited = tokenizer.with_truncation(Some(truncation));
                limited
                    .and_then(|tokenizer| tokenizer.encode_fast(text, true))
                    .map_err(|error| error.to_string())
            }
            TextTokenizer::Pieces(pieces) => Ok(by_pieces(pieces, text, most)),
        }
    }
}

/// Does what the normaliser (NFKC, runs of white space as one), the pre-tokenizer (Metaspace) and the
/// template of the vocabulary's `tokenizer.json` say.
fn by_pieces(pieces: &Pieces, text: &str, most: usize) -> Encoding {
    let mut normal = NormalizedString::from(text);
    normal.nfkc();
    let mut spaced = String::new();
    let mut after_space = false;
    for character in normal.get().chars() {
        let is_space = character.is_whitespace();
        if !(is_space && after_space) {
            spaced.push(if is_space { SPACE } else { character });
        }
        after_space = is_space;
    }
    if !spaced.is_empty() && !spaced.starts_with(SPACE) {
        spaced.insert(0, SPACE);
    }
    let starts = spaced.match_indices(SPACE).map(|(at, _)| at);
    let ends = starts.clone().skip(1).chain([spaced.len()]);
    let words = starts.zip(ends).flat_map(|(start, end)| pieces.cut(&spaced[start..end]));
    let [first, last] = pieces.around();
    let inner = words.take(most.saturating_sub(2));
    let token = |id| Token::new(id, String::new(), (0, 0));
    Encoding::from_tokens([first].into_iter().chain(inner).chain([last]).map(token).collect(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_those_of_the_library() {
        let models = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
        let json = std::fs::read(models.join("languages.tokenizer.json")).expect("the file");
        let mut library = TextTokenizer::of_json(&json).expect("a tokenizer");
        let mut own = TextTokenizer::of_program(&nonet_model::LANGUAGES.tokenizer).expect("a vocabulary");
        assert_eq!(own.vocabulary(), library.vocabulary());
        let data = models.join("../tests/data");
        let mut lines = vec![
            String::new(),
            " ".to_owned(),
            "  two\u{a0}\u{3000}spaces\t\nand a tail  ".to_owned(),
            "ﬁle ½ ｶﾀｶﾅ Å".to_owned(),
            "𓀀𓀁 between 𓀂 unknown 🦀🦀".to_owned(),
            "a▁b ▁ c".to_owned(),
            "한국어 텍스트와 العربية हिन्दी".to_owned(),
            "x".repeat(3_000),
        ];
        for file in std::fs::read_dir(data).expect("the folder") {
            let file = std::fs::read(file.expect("a file").path()).unwrap_or_default();
            lines.extend(String::from_utf8_lossy(&file).lines().map(str::to_owned));
        }
        assert!(lines.len() > 300);
        for line in &lines {
            for most in [96, 10] {
                let ids = |tokenizer: &mut TextTokenizer| {
                    tokenizer.cut(line, most).map(|tokens| tokens.get_ids().to_vec())
                };
                assert_eq!(ids(&mut own), ids(&mut library), "{line}");
            }
        }
    }
}
