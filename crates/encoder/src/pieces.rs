//! A Unigram vocabulary in a program's own pages: pieces of words, each with the logarithm of its
//! probability.
//!
//! A finite-state map leads from a piece to its token; nothing is loaded. A word is cut where the sum of its
//! pieces' scores is largest (Kudo 2018, "Subword Regularization", section 3.2), as SentencePiece and the
//! crate `tokenizers` do.

use fst::raw::{Fst, Output};

/// What a score of 1 is as an integer. SentencePiece writes four decimals.
const ONE: i32 = 10_000;
/// How much less likely than the least likely piece a character without a piece is (`kUnkPenalty` of
/// SentencePiece).
const UNKNOWN_PENALTY: i32 = 10 * ONE;

/// A vocabulary as a program carries it.
#[derive(Clone, Copy, Debug)]
pub struct PackedPieces {
    /// A little-endian int32 for each token: its score in ten-thousandths.
    pub scores: &'static [u8],
    /// Pieces and their tokens, as a map of the crate `fst`.
    pub map: &'static [u8],
    /// The tokens before and after a text.
    pub around: [u32; 2],
    /// The token of characters without a piece.
    pub unknown: u32,
}

/// A vocabulary, ready for use.
pub struct Pieces {
    scores: &'static [[u8; 4]],
    map: Fst<&'static [u8]>,
    around: [u32; 2],
    unknown: u32,
    score_of_unknown: i32,
}

/// The best way to a place in a word.
#[derive(Clone, Copy)]
struct Way {
    score: i32,
    from: usize,
    token: u32,
}

impl Pieces {
    /// Opens a vocabulary; `None` if the bytes are not one.
    pub fn new(packed: PackedPieces) -> Option<Pieces> {
        let map = Fst::new(packed.map).ok()?;
        let (scores, rest) = packed.scores.as_chunks();
        let worst = scores.iter().map(|score| i32::from_le_bytes(*score)).min()?;
        let score_of_unknown = worst.checked_sub(UNKNOWN_PENALTY)?;
        let PackedPieces { around, unknown, .. } = packed;
        rest.is_empty().then_some(Pieces { scores, map, around, unknown, score_of_unknown })
    }

    /// Returns the tokens before and after a text.
    pub fn around(&self) -> [u32; 2] {
        self.around
    }

    /// Returns the number of tokens, special ones included.
    pub fn tokens(&self) -> usize {
        self.scores.len()
    }

    /// Returns the tokens of a word. A run of characters without pieces is one token.
    pub fn cut(&self, word: &str) -> Vec<u32> {
        let mut ways = vec![None; word.len() + 1];
        ways[0] = Some(Way { score: 0, from: 0, token: self.unknown });
        for (from, character) in word.char_indices() {
            // Each character can be reached: one without a piece stands alone.
            let Some(Way { score: so_far, .. }) = ways[from] else { continue };
            let mut reach = |to: usize, token: u32, score: i32| {
                let score = so_far.saturating_add(score);
                if ways[to].is_none_or(|known: Way| score > known.score) {
                    ways[to] = Some(Way { score, from, token });
                }
            };
            let mut is_known = false;
            self.pieces_at(&word[from..], |length, token| {
                let score = self.scores.get(token as usize).map_or(0, |score| i32::from_le_bytes(*score));
                is_known |= length == character.len_utf8();
                reach(from + length, token, score);
            });
            if !is_known {
                reach(from + character.len_utf8(), self.unknown, self.score_of_unknown);
            }
        }
        let mut tokens: Vec<u32> = Vec::new();
        let mut end = word.len();
        while end > 0
            && let Some(way) = ways[end]
        {
            if way.token != self.unknown || tokens.last() != Some(&self.unknown) {
                tokens.push(way.token);
            }
            end = way.from;
        }
        tokens.reverse();
        tokens
    }

    /// Calls `found` with the length in bytes and the token of each piece that a text begins with.
    fn pieces_at(&self, text: &str, mut found: impl FnMut(usize, u32)) {
        let (mut node, mut value) = (self.map.root(), Output::zero());
        for (at, byte) in text.bytes().enumerate() {
            let Some(transition) = node.find_input(byte) else { return };
            let transition = node.transition(transition);
            value = value.cat(transition.out);
            node = self.map.node(transition.addr);
            if node.is_final() {
                let token = value.cat(node.final_output()).value();
                u32::try_from(token).into_iter().for_each(|token| found(at + 1, token));
            }
        }
    }
}

/// Returns the scores and the map of a Unigram vocabulary, from a `tokenizer.json` of the crate `tokenizers`.
/// Its special tokens are no pieces: no text contains them.
#[cfg(any(test, feature = "pack"))]
pub fn pack_pieces(tokenizer: &[u8]) -> Result<(Vec<u8>, Vec<u8>), Box<dyn std::error::Error>> {
    #[derive(serde::Deserialize)]
    struct File {
        added_tokens: Vec<Added>,
        model: Unigram,
    }
    #[derive(serde::Deserialize)]
    struct Added {
        id: u32,
    }
    #[derive(serde::Deserialize)]
    struct Unigram {
        vocab: Vec<(String, f64)>,
    }
    let file: File = serde_json::from_slice(tokenizer)?;
    let score = |score: f64| (score * f64::from(ONE)).round() as i32;
    let scores = file.model.vocab.iter().flat_map(|piece| score(piece.1).to_le_bytes()).collect();
    let mut pieces: Vec<(&str, u64)> =
        (0..).zip(&file.model.vocab).map(|(token, piece)| (&*piece.0, token)).collect();
    pieces.retain(|(_, token)| file.added_tokens.iter().all(|added| u64::from(added.id) != *token));
    pieces.sort_unstable();
    Ok((scores, fst::Map::from_iter(pieces)?.into_fst().into_inner()))
}
