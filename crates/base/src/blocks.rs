//! Reads bytes in blocks: a bit for each byte, so that a search jumps from hit to hit and most bytes cost no
//! branch.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

/// The number of bytes in a block.
pub const BLOCK: usize = 64;

/// Work on many blocks.
pub trait BlockWork: Sized {
    /// What it returns.
    type Output;

    /// Does the work with the widest vector instructions of this machine.
    fn run(self) -> Self::Output {
        Arch::new().dispatch(Wide(self))
    }

    /// Does the work. To be compiled for those instructions, it and what it calls is `#[inline(always)]`.
    fn work(self) -> Self::Output;
}

struct Wide<W>(W);

impl<W: BlockWork> WithSimd for Wide<W> {
    type Output = W::Output;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> W::Output {
        self.0.work()
    }
}

/// Returns a bit for each byte of a block, set where a test holds; the first byte has the lowest bit. The
/// test has no branches, so that the compiler applies it to many bytes at once.
#[inline(always)]
pub fn bits_of(block: &[u8; BLOCK], test: impl Fn(u8) -> bool) -> u64 {
    let mut flags = [0; BLOCK];
    for (flag, byte) in flags.iter_mut().zip(block) {
        *flag = if test(*byte) { u8::MAX } else { 0 };
    }
    gathered(&flags)
}

/// Returns the highest bit of each byte.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[expect(
    unsafe_code,
    reason = "the instruction has no safe form, and everything else takes three times as long"
)]
fn gathered(flags: &[u8; BLOCK]) -> u64 {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_movemask_epi8};
    flags.as_chunks::<16>().0.iter().rev().fold(0, |bits, sixteen| {
        // SAFETY: sixteen bytes are read from an array of as many, and every x86-64 processor has SSE2.
        let mask = unsafe { _mm_movemask_epi8(_mm_loadu_si128(sixteen.as_ptr().cast())) };
        bits << 16 | u64::from(mask.cast_unsigned())
    })
}

/// Returns the highest bit of each byte.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn gathered(flags: &[u8; BLOCK]) -> u64 {
    // Multiplied by this number, the lowest bits of eight bytes become the highest byte.
    let eight = |flags: &[u8; 8]| {
        (u64::from_le_bytes(*flags) >> 7 & 0x0101_0101_0101_0101).wrapping_mul(0x0102_0408_1020_4080) >> 56
    };
    flags.as_chunks().0.iter().rev().fold(0, |bits, flags| bits << 8 | eight(flags))
}

/// Returns the bits of the block with this number; bytes behind the end count as spaces.
#[inline(always)]
pub fn bits_at(bytes: &[u8], block: usize, test: impl Fn(u8) -> bool) -> u64 {
    let rest = bytes.get(block * BLOCK..).unwrap_or_default();
    match rest.first_chunk() {
        Some(whole) => bits_of(whole, test),
        None => {
            let mut padded = [b' '; BLOCK];
            padded[..rest.len()].copy_from_slice(rest);
            bits_of(&padded, test)
        }
    }
}

/// Finds the bytes that matter in JSON strings: quotes, backslashes and control characters.
pub struct JsonStops<'a> {
    bytes: &'a [u8],
    /// The number of the block whose bits are known.
    block: usize,
    bits: u64,
}

impl<'a> JsonStops<'a> {
    /// Looks at no byte yet.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, block: usize::MAX, bits: 0 }
    }

    /// Returns the first such byte at or behind `from`, else the end of the bytes.
    #[inline]
    pub fn next(&mut self, from: usize) -> usize {
        let block = from / BLOCK;
        if block != self.block {
            (self.block, self.bits) = (block, self.bits(block));
        }
        let mut bits = self.bits & u64::MAX << (from % BLOCK);
        if bits == 0 {
            bits = Skip(self).run();
        }
        self.bytes.len().min(self.block * BLOCK + bits.trailing_zeros() as usize)
    }

    #[inline(always)]
    fn bits(&self, block: usize) -> u64 {
        let is_stop = |byte: u8| (byte == b'"') | (byte == b'\\') | (byte < 0x20);
        bits_at(self.bytes, block, is_stop)
    }
}

/// Goes on to the next block with a stop, or behind the last block, and returns its bits.
struct Skip<'s, 'a>(&'s mut JsonStops<'a>);

impl BlockWork for Skip<'_, '_> {
    type Output = u64;

    #[inline(always)]
    fn work(self) -> u64 {
        let stops = self.0;
        loop {
            stops.block += 1;
            stops.bits = stops.bits(stops.block);
            if stops.bits != 0 || stops.block * BLOCK >= stops.bytes.len() {
                return stops.bits;
            }
        }
    }
}

/// The shortest run that [`token_runs`] returns.
pub const SHORTEST_RUN: usize = 20;

/// Whether a byte is part of a token: of Base64 in any alphabet, of a key, of a path.
#[inline(always)]
pub fn is_token(byte: u8) -> bool {
    let letter = (byte | 0x20).wrapping_sub(b'a') < 26;
    letter | (byte.wrapping_sub(b'-') < 13) | (byte == b'+') | (byte == b'_') | (byte == b'=')
}

/// Returns the runs of [`is_token`] of at least [`SHORTEST_RUN`] bytes. Text without long words costs no
/// branch per word.
pub fn token_runs(bytes: &[u8]) -> Vec<Range<usize>> {
    TokenRuns(bytes).run()
}

struct TokenRuns<'a>(&'a [u8]);

impl BlockWork for TokenRuns<'_> {
    type Output = Vec<Range<usize>>;

    #[inline(always)]
    fn work(self) -> Vec<Range<usize>> {
        let (mut runs, mut done) = (Vec::new(), 0_usize);
        let bytes = self.0;
        let mut here = bits_at(bytes, 0, is_token);
        for block in 0..bytes.len().div_ceil(BLOCK) {
            let behind = bits_at(bytes, block + 1, is_token);
            // Half of a run lies in one of two blocks.
            if has_half_a_run(here) || has_half_a_run(behind) {
                let mut begins = begins_of_runs(u128::from(here) | u128::from(behind) << BLOCK);
                // The run before may go on here.
                begins &= from_place(done.saturating_sub(block * BLOCK));
                while begins != 0 {
                    let start = block * BLOCK + begins.trailing_zeros() as usize;
                    done = end_of_token(bytes, start);
                    runs.push(start..done);
                    begins &= from_place(done - block * BLOCK);
                }
            }
            here = behind;
        }
        runs
    }
}

#[inline(never)]
fn end_of_token(bytes: &[u8], from: usize) -> usize {
    end_of_run(bytes, from, is_token)
}

/// Whether at least half of [`SHORTEST_RUN`] bits in a row are set.
#[inline(always)]
fn has_half_a_run(bits: u64) -> bool {
    const _: () = assert!(SHORTEST_RUN == 20);
    let two = bits & bits >> 1;
    let four = two & two >> 2;
    let eight = four & four >> 4;
    eight & two >> 8 != 0
}

/// Returns the end of a run of bytes that begins at `from` and for which a test holds.
#[inline(always)]
pub fn end_of_run(bytes: &[u8], from: usize, test: impl Fn(u8) -> bool) -> usize {
    let (mut block, mut seen) = (from / BLOCK, u64::MAX << (from % BLOCK));
    loop {
        let others = !bits_at(bytes, block, &test) & seen;
        if others != 0 {
            return bytes.len().min(block * BLOCK + others.trailing_zeros() as usize);
        }
        (block, seen) = (block + 1, u64::MAX);
    }
}

/// Returns the first block at or behind `block` in which a number may begin that has at least
/// [`SHORTEST_NUMBER`] digits, with single other bytes between them; its beginning may lie up to half as many
/// bytes before the block.
pub fn long_number(bytes: &[u8], block: usize) -> Option<usize> {
    LongNumber(bytes, block).run()
}

/// The fewest digits of what [`long_number`] finds.
pub const SHORTEST_NUMBER: usize = 13;

struct LongNumber<'a>(&'a [u8], usize);

impl BlockWork for LongNumber<'_> {
    type Output = Option<usize>;

    #[inline(always)]
    fn work(self) -> Option<usize> {
        let Self(bytes, first) = self;
        (first..bytes.len().div_ceil(BLOCK)).find(|block| {
            let digits = bits_at(bytes, *block, |byte| byte.is_ascii_digit());
            // The byte between two digits belongs to the number; of the blocks beside this one, it may.
            let between = (digits << 1 | 1) & (digits >> 1 | 1 << (BLOCK - 1));
            has_half_a_number(digits | between)
        })
    }
}

/// Whether more than half of [`SHORTEST_NUMBER`] bits in a row are set.
#[inline(always)]
fn has_half_a_number(bits: u64) -> bool {
    const _: () = assert!(SHORTEST_NUMBER == 13);
    let two = bits & bits >> 1;
    let four = two & two >> 2;
    four & four >> 3 != 0
}

/// Returns the bits of a block from a place on.
fn from_place(place: usize) -> u64 {
    if place < BLOCK { u64::MAX << place } else { 0 }
}

/// Returns a bit for each of the first 64 places from which on at least [`SHORTEST_RUN`] bits are set.
fn begins_of_runs(bits: u128) -> u64 {
    const _: () = assert!(SHORTEST_RUN == 20);
    let two = bits & bits >> 1;
    let four = two & two >> 2;
    let eight = four & four >> 4;
    let sixteen = eight & eight >> 8;
    (sixteen & four >> 16) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn stops_are_found_from_anywhere(
            bytes in prop::collection::vec(prop::sample::select(b"\"\\\n\x1f abc\xc3\xff".to_vec()), 0..300),
            plain in 0..200usize,
        ) {
            let bytes = [vec![b'x'; plain], bytes].concat();
            let mut stops = JsonStops::new(&bytes);
            for from in 0..=bytes.len() {
                let is_stop = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
                let expected = bytes[from..].iter().position(is_stop).map_or(bytes.len(), |at| from + at);
                prop_assert_eq!(stops.next(from), expected);
            }
        }

        #[test]
        fn runs_are_what_a_split_gives(
            parts in prop::collection::vec((prop::sample::select(b"aZ09+/-_.= \"\\:,@[`{\xc3".to_vec()), 1..90usize), 0..9),
        ) {
            let bytes: Vec<u8> = parts.iter().flat_map(|(byte, count)| vec![*byte; *count]).collect();
            let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/-_.=".contains(byte);
            let mut expected = Vec::new();
            let mut at = 0;
            for run in bytes.split(|byte| !is_part(byte)) {
                expected.extend((run.len() >= SHORTEST_RUN).then(|| at..at + run.len()));
                at += run.len() + 1;
            }
            prop_assert_eq!(token_runs(&bytes), expected);
        }
    }
}
