//! Finds many words in a text at once.
//!
//! An automaton takes one step per byte, and each step waits for the previous one, so a long text is read at several places at
//! once: four times as fast, since the processor overlaps the steps of different places.

use std::ops::Range;

use aho_corasick::{
    Anchored, StartKind,
    automaton::{Automaton, StateID},
    dfa::DFA,
};

/// How many places of a text are read at once.
const LANES: usize = 4;
/// How many bytes are read before matches are reported. Bounds the memory for matches.
const BLOCK: usize = 64 << 10;
/// Shorter texts are read at one place only.
const SHORT: usize = 512;

/// Words to look for, ignoring ASCII case.
#[derive(Debug)]
pub struct WordFinder {
    automaton: DFA,
    start: StateID,
    longest: usize,
}

impl WordFinder {
    /// Takes the words; a word's number is its index.
    ///
    /// # Panics
    ///
    /// If there are too many words for an automaton: pass few, constant words.
    pub fn new(words: &[&[u8]]) -> Self {
        let automaton = DFA::builder()
            .ascii_case_insensitive(true)
            .start_kind(StartKind::Unanchored)
            .prefilter(false)
            .build(words)
            .expect("the words are constant and few");
        let start = automaton.start_state(Anchored::No).expect("it looks anywhere");
        let longest = automaton.max_pattern_len();
        Self { automaton, start, longest }
    }

    /// Calls `found` with the number and range of every occurrence of a word, overlapping ones too, ordered by their ends.
    pub fn find(&self, text: &[u8], found: &mut dyn FnMut(usize, Range<usize>)) {
        if text.len() < SHORT {
            let mut state = self.start;
            for (at, byte) in text.iter().enumerate() {
                state = self.automaton.next_state(Anchored::No, state, *byte);
                if self.automaton.is_special(state) {
                    self.tell(state, at + 1, found);
                }
            }
            return;
        }
        let mut hits: [Vec<(StateID, usize)>; LANES] = Default::default();
        for begin in (0..text.len()).step_by(BLOCK) {
            self.read(text, begin..text.len().min(begin + BLOCK), &mut hits);
            for (state, end) in hits.iter_mut().flat_map(|lane| lane.drain(..)) {
                self.tell(state, end, found);
            }
        }
    }

    /// Records the states in which words end within a block, for each lane.
    fn read(&self, text: &[u8], block: Range<usize>, hits: &mut [Vec<(StateID, usize)>; LANES]) {
        let step = |state, at: usize| self.automaton.next_state(Anchored::No, state, text[at]);
        let width = block.len() / LANES;
        let begins: [usize; LANES] = std::array::from_fn(|lane| block.start + lane * width);
        // A word that ends in a lane may begin before it.
        let mut states =
            begins.map(|begin| (begin.saturating_sub(self.longest)..begin).fold(self.start, step));
        for at in 0..width {
            for lane in 0..LANES {
                states[lane] = step(states[lane], begins[lane] + at);
            }
            if states.iter().any(|state| self.automaton.is_special(*state)) {
                for (lane, state) in states.iter().enumerate() {
                    if self.automaton.is_special(*state) {
                        hits[lane].push((*state, begins[lane] + at + 1));
                    }
                }
            }
        }
        let mut state = states[LANES - 1];
        for at in begins[LANES - 1] + width..block.end {
            state = step(state, at);
            if self.automaton.is_special(state) {
                hits[LANES - 1].push((state, at + 1));
            }
        }
    }

    fn tell(&self, state: StateID, end: usize, found: &mut dyn FnMut(usize, Range<usize>)) {
        if !self.automaton.is_match(state) {
            return;
        }
        for at in 0..self.automaton.match_len(state) {
            let word = self.automaton.match_pattern(state, at);
            found(word.as_usize(), end - self.automaton.pattern_len(word)..end);
        }
    }
}

#[cfg(test)]
mod tests {
    use aho_corasick::AhoCorasick;
    use proptest::prelude::*;

    use super::*;

    const WORDS: [&[u8]; 6] = [b"ab", b"abcab", b"b", b"CAB", b"c\xc3\xa9", b"bcabcabc"];

    fn found(words: &WordFinder, text: &[u8]) -> Vec<(usize, Range<usize>)> {
        let mut all = Vec::new();
        words.find(text, &mut |word, range| all.push((word, range)));
        all
    }

    proptest! {
        #[test]
        fn it_finds_what_one_pass_finds(
            text in prop::collection::vec(prop::sample::select(b"abcABC\xc3\xa9 ".to_vec()), 0..3_000),
            before in 0..4usize,
        ) {
            let one = AhoCorasick::builder().ascii_case_insensitive(true).build(WORDS).expect("few words");
            // The boundaries of lanes and blocks differ each time.
            let text = [vec![b' '; before * (BLOCK - 1_000)], text].concat();
            let expected: Vec<_> =
                one.find_overlapping_iter(&text).map(|hit| (hit.pattern().as_usize(), hit.range())).collect();
            prop_assert_eq!(found(&WordFinder::new(&WORDS), &text), expected);
        }
    }
}
