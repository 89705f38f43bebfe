//! Finds many words in a text at once.
//!
//! An automaton takes a step per byte, and each step waits for the previous one. This search looks only at
//! every second place: whether the four bytes there are in any word. To be found at either of two
//! neighbouring places, a word needs five bytes, of which the rarest in ordinary texts are taken. The places
//! that pass are rare; there the words are compared.

use std::ops::Range;

use memchr::memmem;

/// How many bytes are searched before words are reported. Bounds the memory for them.
const BLOCK: usize = 64 << 10;
/// How many bytes are looked up before the hits among them are examined.
const STEP: usize = 64;
/// The logarithm of the size of the table. It fits into the processor's nearest memory.
const FILTER_BITS: u32 = 16;
/// The same of the index of grams.
const INDEX_BITS: u32 = 12;
/// Words shorter than a gram are searched for one by one.
const GRAM: usize = 4;
/// The bit that the two cases of an ASCII letter differ in, in each byte of a gram.
const CASE: u32 = 0x2020_2020;

/// Words to look for, ignoring ASCII case.
#[derive(Debug)]
pub struct WordFinder {
    words: Vec<Box<[u8]>>,
    /// Whether four bytes may be in a word, by their hash.
    filter: Box<[bool; 1 << FILTER_BITS]>,
    /// The grams, ordered by their hash, and where those of each hash begin.
    grams: Vec<Gram>,
    index: Vec<u16>,
    short: Vec<ShortWord>,
}

/// Four bytes of a word, without case.
#[derive(Debug)]
struct Gram {
    bytes: u32,
    word: u16,
    /// Its place in the word; one less than zero if another byte comes first.
    place: i8,
}

/// A word of few bytes.
#[derive(Debug)]
struct ShortWord {
    finder: memmem::Finder<'static>,
    word: usize,
    is_ascii: bool,
}

/// An occurrence of a word: its end and its beginning, and the number of the word.
type Hit = (usize, usize, usize);

impl Gram {
    #[inline(always)]
    fn hash(bytes: u32) -> u64 {
        // A product of 64 bits, which compilers leave to the scalar units: those are free for the next gram.
        u64::from(bytes | CASE).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    /// Returns the place of a gram in the filter.
    #[inline(always)]
    fn filtered(bytes: u32) -> usize {
        (Self::hash(bytes) >> (u64::BITS - FILTER_BITS)) as usize
    }

    /// Returns the place of a gram in the index.
    fn indexed(bytes: u32) -> usize {
        (Self::hash(bytes) >> (u64::BITS - INDEX_BITS)) as usize
    }
}

impl ShortWord {
    /// Searches for the word at all places of a range.
    fn search(&self, text: &[u8], range: Range<usize>, hits: &mut Vec<Hit>) {
        let length = self.finder.needle().len();
        let text = &text[..text.len().min(range.end + length - 1)];
        let mut from = range.start;
        while let Some(at) = self.finder.find(&text[from..]) {
            hits.push((from + at + length, from + at, self.word));
            // Two occurrences may overlap.
            from += at + 1;
        }
    }
}

impl WordFinder {
    /// Takes the words; a word's number is its index. Words of up to three bytes have no ASCII letters.
    ///
    /// # Panics
    ///
    /// If there are tens of thousands of words: pass few, constant words.
    pub fn new(words: &[&[u8]]) -> Self {
        let (mut grams, mut short) = (Vec::new(), Vec::new());
        for (at, word) in words.iter().enumerate() {
            if word.len() < GRAM {
                debug_assert!(!word.iter().any(u8::is_ascii_alphabetic), "its case would matter");
                let finder = memmem::Finder::new(word).into_owned();
                short.push(ShortWord { finder, word: at, is_ascii: word.is_ascii() });
                continue;
            }
            let number = u16::try_from(at).expect("the words are few");
            let mut add = |bytes: [u8; GRAM], place| {
                grams.push(Gram { bytes: u32::from_le_bytes(bytes) | CASE, word: number, place });
            };
            match rarest(word) {
                Some((place, [a, b, c, d, e])) => {
                    add([a, b, c, d], place);
                    add([b, c, d, e], place + 1);
                }
                None => {
                    let [a, b, c, d] = [word[0], word[1], word[2], word[3]];
                    add([a, b, c, d], 0);
                    // Any byte may come first; of two that differ in case only, one counts.
                    (0..=u8::MAX).filter(|byte| byte & 0x20 != 0).for_each(|any| add([any, a, b, c], -1));
                }
            }
        }
        grams.sort_by_key(|gram| Gram::indexed(gram.bytes));
        let mut filter: Box<[bool; 1 << FILTER_BITS]> = Box::new([false; 1 << FILTER_BITS]);
        grams.iter().for_each(|gram| filter[Gram::filtered(gram.bytes)] = true);
        let begin = |hash: usize| grams.partition_point(|gram| Gram::indexed(gram.bytes) < hash);
        let index = (0..=1 << INDEX_BITS).map(|hash| u16::try_from(begin(hash)).expect("the words are few"));
        let index = index.collect();
        let words = words.iter().map(|word| word.to_ascii_lowercase().into()).collect();
        Self { words, filter, grams, index, short }
    }

    /// Calls `found` with the number and range of every occurrence of a word, overlapping ones too, ordered
    /// by their ends.
    pub fn find(&self, text: &[u8], found: &mut dyn FnMut(usize, Range<usize>)) {
        let (mut hits, is_ascii) = (Vec::new(), text.is_ascii());
        let mut at = 0;
        while at < text.len() {
            let until = text.len().min(at + BLOCK);
            for word in self.short.iter().filter(|word| word.is_ascii || !is_ascii) {
                word.search(text, at..until, &mut hits);
            }
            self.search(text, at..until, &mut hits);
            at = until;
            hits.sort_unstable();
            // What begins before may end behind: such a word is reported with the next block.
            let done = hits.partition_point(|(end, ..)| *end <= at);
            hits.drain(..done).for_each(|(end, begin, word)| found(word, begin..end));
        }
    }

    /// Searches for the longer words at the even places of a range.
    fn search(&self, text: &[u8], range: Range<usize>, hits: &mut Vec<Hit>) {
        let mut at = range.start;
        while at < range.end {
            let Some(bytes) = text.get(at..at + STEP + GRAM).and_then(|bytes| bytes.first_chunk()) else {
                break;
            };
            let mut places = self.places(bytes);
            while places != 0 {
                self.examine(text, at + 2 * places.trailing_zeros() as usize, hits);
                places &= places - 1;
            }
            at += STEP;
        }
        for at in (at..range.end).step_by(2) {
            // A word of four bytes at the end has a gram before here.
            let Some(gram) = text.get(at..).and_then(|rest| rest.first_chunk()) else { break };
            if self.filter[Gram::filtered(u32::from_le_bytes(*gram))] {
                self.examine(text, at, hits);
            }
        }
    }

    /// Returns a bit for each even place whose gram may be in a word.
    #[inline]
    fn places(&self, bytes: &[u8; STEP + GRAM]) -> u32 {
        let gram = |place: usize| {
            u32::from_le_bytes([bytes[place], bytes[place + 1], bytes[place + 2], bytes[place + 3]])
        };
        let is_hit = |at: usize| u32::from(self.filter[Gram::filtered(gram(2 * at))]);
        (0..STEP / 2).fold(0, |places, at| places | is_hit(at) << at)
    }

    /// Compares the words that have the gram at a place.
    #[inline(never)]
    fn examine(&self, text: &[u8], at: usize, hits: &mut Vec<Hit>) {
        let Some(bytes) = text[at..].first_chunk() else { return };
        let bytes = u32::from_le_bytes(*bytes);
        let hash = Gram::indexed(bytes);
        let grams = &self.grams[usize::from(self.index[hash])..usize::from(self.index[hash + 1])];
        for gram in grams.iter().filter(|gram| gram.bytes == bytes | CASE) {
            let Some(begin) = at.checked_add_signed(-isize::from(gram.place)) else { continue };
            let word = usize::from(gram.word);
            let end = begin + self.words[word].len();
            if text.get(begin..end).is_some_and(|text| text.eq_ignore_ascii_case(&self.words[word])) {
                hits.push((end, begin, word));
            }
        }
    }
}

/// Common words and endings: what is in them is in every text.
const COMMON: &[u8] = b"the the the the of and to in a is that for it as was with be by on not he his but at are this have from \
    or had an they which one you were all there would their we him been has when who will no more if out so said what up its \
    about than into them can only other time new some could these two may first then do any like my now over such our me even \
    made after also did many off before must well back through much where your way down should because long each just those \
    how too little state good very make still own see work here get both between being under never same another while last \
    might us great old year come since against go came right use used user using name type value string result return error \
    read key list file call tool code test data text config section nation action station mention question moment able ever \
    ";

/// Returns the five bytes of a word that are rarest in ordinary texts, and their place; `None` if there are
/// not as many.
fn rarest(word: &[u8]) -> Option<(i8, [u8; GRAM + 1])> {
    let is_common = |gram: &[u8]| memmem::find_iter(COMMON, &gram.to_ascii_lowercase()).count();
    let weight = |window: &[u8]| {
        let common: usize = window.windows(GRAM).map(is_common).sum();
        100 * common + window.iter().map(|byte| commonness(*byte)).sum::<usize>()
    };
    let places = i8::MAX.unsigned_abs().into();
    let (place, window) =
        word.windows(GRAM + 1).take(places).enumerate().min_by_key(|(_, window)| weight(window))?;
    Some((i8::try_from(place).ok()?, window.try_into().ok()?))
}

/// Returns how common a byte is in texts and code, on a logarithmic scale.
fn commonness(byte: u8) -> usize {
    match byte.to_ascii_lowercase() {
        b' ' => 10,
        b'e' | b't' | b'a' | b'o' | b'i' | b'n' | b's' | b'r' => 8,
        b'h' | b'l' | b'd' | b'u' | b'c' | b'm' => 7,
        b'f' | b'g' | b'p' | b'w' | b'y' | b'b' | b'v' => 6,
        b'k' | b'.' | b',' | b'"' | b'_' | b'-' | b'\n' => 5,
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use aho_corasick::AhoCorasick;
    use proptest::prelude::*;

    use super::*;

    const WORDS: [&[u8]; 8] =
        [b"abca", b"abcabab", b"c\xc3\xa9b", b"CABcab", b"\xc3\xa9", b"bcabcabc", b"--", b"abcabab c"];

    fn found(words: &WordFinder, text: &[u8]) -> Vec<(usize, Range<usize>)> {
        let mut all = Vec::new();
        words.find(text, &mut |word, range| all.push((word, range)));
        all
    }

    proptest! {
        #[test]
        fn it_finds_what_an_automaton_finds(
            text in prop::collection::vec(prop::sample::select(b"abcABC\xc3\xa9 -".to_vec()), 0..3_000),
            before in 0..4usize,
        ) {
            let one = AhoCorasick::builder().ascii_case_insensitive(true).build(WORDS).expect("few words");
            // The boundaries of blocks differ each time.
            let text = [vec![b' '; before * (BLOCK - 1_000)], text].concat();
            let expected: Vec<_> =
                one.find_overlapping_iter(&text).map(|hit| (hit.pattern().as_usize(), hit.range())).collect();
            prop_assert_eq!(found(&WordFinder::new(&WORDS), &text), expected);
        }
    }
}
