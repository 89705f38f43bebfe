//! The arithmetic of the encoder: products of matrices in tiles, and the functions between them.
//!
//! Plain loops over arrays whose length is a constant, compiled once for each of a few instruction sets; the best of them is chosen
//! at run time. Knows numbers, not layers.

use multiversion::{
    multiversion,
    target::{match_target, target_cfg_f},
};

/// Outputs of a block: an AVX-512 register of float32, two of AVX2, four of NEON.
pub(crate) const BLOCK: usize = 16;
/// Inputs of a matrix that share a scale for each output.
pub(crate) const GROUP: usize = 64;
/// Bytes of a group of a block: a scale for each output, then a row of int8 for each input.
pub(crate) const GROUP_BYTES: usize = BLOCK * 4 + GROUP * BLOCK;

/// Tokens of a tile where registers are few (AVX2, NEON, none), and where there are many (AVX-512).
const FEW: usize = 6;
const MANY: usize = 12;

/// Repeats code for each token of a tile. A loop of so many steps would stay a loop, and its sums in memory.
macro_rules! each_token {
    ($tokens:ident, |$token:ident| $code:expr) => {
        each_token!(@ $tokens, $token, $code, 0 1 2 3 4 5 6 7 8 9 10 11)
    };
    (@ $tokens:ident, $token:ident, $code:expr, $($at:literal)*) => {
        $(if $at < $tokens {
            let $token = $at;
            $code
        })*
    };
}

/// Calls a function with the tokens of a tile as a constant.
macro_rules! with_tokens {
    (@ $tokens:ident, $function:ident, $fused:tt, $arguments:tt, $($count:literal)*) => {
        match $tokens {
            $($count => with_tokens!(@ $count, $function, $fused, $arguments),)*
            _ => unreachable!("a tile has at most 12 tokens"),
        }
    };
    (@ $count:literal, $function:ident, {$fused:ident}, $arguments:tt) => { $function::<$count, $fused> $arguments };
    (@ $count:literal, $function:ident, {}, $arguments:tt) => { $function::<$count> $arguments };
    ($tokens:ident, $function:ident $(::<$fused:ident>)? ($($argument:expr),*)) => {
        with_tokens!(@ $tokens, $function, {$($fused)?}, ($($argument),*), 1 2 3 4 5 6 7 8 9 10 11 12)
    };
}

/// Rows of float32, cut into tiles in which the values of an input lie side by side: `[inputs][tokens of the tile]`.
#[derive(Default)]
pub(crate) struct Tiles {
    values: Vec<f32>,
    /// The tokens of each tile, [`MANY`] at most.
    tokens: Vec<usize>,
    inputs: usize,
}

impl Tiles {
    /// Fills the tiles with rows, each of which starts `stride` values after the last and has `inputs` values.
    pub(crate) fn fill(&mut self, rows: &[f32], stride: usize, inputs: usize) {
        let count = rows.len().div_ceil(stride);
        self.cut(count);
        self.inputs = inputs;
        self.values.resize(count * inputs, 0.0);
        let (mut values, mut rows) = (&mut self.values[..], rows);
        for &tokens in &self.tokens {
            let (tile, rest) = values.split_at_mut(tokens * inputs);
            values = rest;
            with_tokens!(tokens, transpose(rows, stride, tile));
            rows = rows.get(tokens * stride..).unwrap_or_default();
        }
    }

    /// Cuts tokens into tiles of nearly the same size.
    fn cut(&mut self, mut tokens: usize) {
        self.tokens.clear();
        let mut tiles = tokens.div_ceil(tile_tokens());
        while tiles > 0 {
            let some = tokens.div_ceil(tiles);
            self.tokens.push(some);
            (tokens, tiles) = (tokens - some, tiles - 1);
        }
    }
}

/// Returns the most tokens of a tile on this machine.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma",
    "x86_64+avx2+fma",
    "aarch64+neon"
))]
fn tile_tokens() -> usize {
    if target_cfg_f!(target_feature = "avx512f") { MANY } else { FEW }
}

/// Returns the name of the instruction set that is used.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma",
    "x86_64+avx2+fma",
    "aarch64+neon"
))]
pub(crate) fn instruction_set() -> InstructionSet {
    match_target! {
        "x86_64+avx512f" => InstructionSet("AVX-512"),
        "x86_64+avx2" => InstructionSet("AVX2"),
        "aarch64+neon" => InstructionSet("NEON"),
        _ => InstructionSet("no vector instructions"),
    }
}

/// A name. `multiversion` wants no lifetime in what a function returns.
pub(crate) struct InstructionSet(pub(crate) &'static str);

/// Multiplies rows with a matrix of int8 and adds a bias: `out[token][output]`.
///
/// `weights` has a block for each 16 outputs: for each 64 inputs 16 scales, then `[64][16]` int8.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma",
    "x86_64+avx2+fma",
    "aarch64+neon"
))]
pub(crate) fn linear(rows: &Tiles, weights: &[u8], bias: &[u8], out: &mut [f32]) {
    const FUSED: bool = target_cfg_f!(any(target_feature = "fma", target_feature = "neon"));
    let outputs = bias.len() / 4;
    let blocks = weights.chunks_exact(rows.inputs / GROUP * GROUP_BYTES);
    for (block, (weights, bias)) in blocks.zip(bias.chunks_exact(4 * BLOCK)).enumerate() {
        let bias = floats(bias);
        let (mut values, mut out) = (&rows.values[..], &mut out[block * BLOCK..]);
        for &tokens in &rows.tokens {
            let (tile, rest) = values.split_at(tokens * rows.inputs);
            values = rest;
            with_tokens!(tokens, int8_tile::<FUSED>(tile, weights, bias, out, outputs));
            out = out.get_mut(tokens * outputs..).unwrap_or_default();
        }
    }
}

/// Multiplies rows with a matrix of float32 in blocks of `[inputs][16]`: `out[token][output]`, a row each `stride` values.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma",
    "x86_64+avx2+fma",
    "aarch64+neon"
))]
pub(crate) fn product(rows: &Tiles, matrix: &[[f32; BLOCK]], out: &mut [f32], stride: usize) {
    const FUSED: bool = target_cfg_f!(any(target_feature = "fma", target_feature = "neon"));
    for (block, matrix) in matrix.chunks_exact(rows.inputs).enumerate() {
        let (mut values, mut out) = (&rows.values[..], &mut out[block * BLOCK..]);
        for &tokens in &rows.tokens {
            let (tile, rest) = values.split_at(tokens * rows.inputs);
            values = rest;
            with_tokens!(tokens, float_tile::<FUSED>(tile, matrix, out, stride));
            out = out.get_mut(tokens * stride..).unwrap_or_default();
        }
    }
}

/// Puts the values of each input side by side.
#[inline(always)]
fn transpose<const TOKENS: usize>(rows: &[f32], stride: usize, tile: &mut [f32]) {
    let (tile, _) = tile.as_chunks_mut::<TOKENS>();
    let rows: [&[f32]; TOKENS] = std::array::from_fn(|token| &rows[token * stride..][..tile.len()]);
    for (at, values) in tile.iter_mut().enumerate() {
        each_token!(TOKENS, |token| values[token] = rows[token][at]);
    }
}

#[inline(always)]
fn int8_tile<const TOKENS: usize, const FUSED: bool>(
    tile: &[f32],
    weights: &[u8],
    bias: [f32; BLOCK],
    out: &mut [f32],
    stride: usize,
) {
    let mut sums = [bias; TOKENS];
    let inputs = tile.as_chunks::<TOKENS>().0;
    let (groups, _) = weights.as_chunks::<GROUP_BYTES>();
    for (inputs, group) in inputs.as_chunks::<GROUP>().0.iter().zip(groups) {
        let (scales, rows) = group.split_at(4 * BLOCK);
        let rows = rows.as_chunks::<BLOCK>().0;
        let mut part = [[0.0; BLOCK]; TOKENS];
        for input in 0..GROUP {
            let mut row = [0.0; BLOCK];
            for output in 0..BLOCK {
                row[output] = f32::from(rows[input][output].cast_signed());
            }
            add::<TOKENS, FUSED>(&mut part, &inputs[input], &row);
        }
        let scales: [f32; BLOCK] = floats(scales);
        each_token!(TOKENS, |token| for output in 0..BLOCK {
            sums[token][output] = fused::<FUSED>(part[token][output], scales[output], sums[token][output]);
        });
    }
    store(&sums, out, stride);
}

#[inline(always)]
fn float_tile<const TOKENS: usize, const FUSED: bool>(
    tile: &[f32],
    matrix: &[[f32; BLOCK]],
    out: &mut [f32],
    stride: usize,
) {
    let mut sums = [[0.0; BLOCK]; TOKENS];
    for (values, row) in tile.as_chunks::<TOKENS>().0.iter().zip(matrix) {
        add::<TOKENS, FUSED>(&mut sums, values, row);
    }
    store(&sums, out, stride);
}

#[inline(always)]
fn store<const TOKENS: usize>(sums: &[[f32; BLOCK]; TOKENS], out: &mut [f32], stride: usize) {
    each_token!(TOKENS, |token| out[token * stride..][..BLOCK].copy_from_slice(&sums[token]));
}

/// Adds the product of each value and the row to the value's sums.
#[inline(always)]
fn add<const TOKENS: usize, const FUSED: bool>(
    sums: &mut [[f32; BLOCK]; TOKENS],
    values: &[f32; TOKENS],
    row: &[f32; BLOCK],
) {
    each_token!(TOKENS, |token| for output in 0..BLOCK {
        sums[token][output] = fused::<FUSED>(values[token], row[output], sums[token][output]);
    });
}

/// Returns `a * b + c`, in one instruction where there is one; elsewhere `mul_add` would be a call.
#[inline(always)]
fn fused<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// Reads float32 in little-endian order.
#[inline(always)]
pub(crate) fn floats<const COUNT: usize>(bytes: &[u8]) -> [f32; COUNT] {
    let mut floats = [0.0; COUNT];
    let (bytes, _) = bytes.as_chunks::<4>();
    for at in 0..COUNT {
        floats[at] = f32::from_le_bytes(bytes[at]);
    }
    floats
}

/// Replaces each value by its GELU, `x / 2 * (1 + erf(x / sqrt 2))`.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma",
    "x86_64+avx2+fma",
    "aarch64+neon"
))]
pub(crate) fn gelu(values: &mut [f32]) {
    for x in values {
        // Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: an error below 1.5e-7.
        let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
        let t = 1.0 / (1.0 + 0.327_591_1 * z);
        let series =
            ((((1.061_405_4 * t - 1.453_152) * t + 1.421_413_7) * t - 0.284_496_74) * t + 0.254_829_6) * t;
        let erf = 1.0 - series * exp(-z * z);
        *x = 0.5 * *x * (1.0 + erf.copysign(*x));
    }
}

/// Replaces each row of `width` values by its softmax over the first `count`. The rest of the row becomes nearly 0.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma",
    "x86_64+avx2+fma",
    "aarch64+neon"
))]
pub(crate) fn softmax(rows: &mut [f32], width: usize, count: usize) {
    for row in rows.chunks_mut(width) {
        row[count..].fill(f32::NEG_INFINITY);
        let (blocks, _) = row.as_chunks_mut::<BLOCK>();
        let mut most = [f32::NEG_INFINITY; BLOCK];
        for block in blocks.iter() {
            for at in 0..BLOCK {
                most[at] = if block[at] > most[at] { block[at] } else { most[at] };
            }
        }
        let most = most.iter().fold(f32::NEG_INFINITY, |most, value| most.max(*value));
        let mut sums = [0.0; BLOCK];
        for block in blocks.iter_mut() {
            for at in 0..BLOCK {
                block[at] = exp(block[at] - most);
                sums[at] += block[at];
            }
        }
        let scale = 1.0 / sums.iter().sum::<f32>();
        for value in row {
            *value *= scale;
        }
    }
}

/// Replaces each row by itself plus the row of `added`, with mean 0 and variance 1, scaled by `gamma` and moved by `beta`.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512dq+avx512vl+avx2+fma",
    "x86_64+avx2+fma",
    "aarch64+neon"
))]
pub(crate) fn add_and_normalize(rows: &mut [f32], added: &[f32], gamma: &[u8], beta: &[u8], epsilon: f32) {
    let width = gamma.len() / 4;
    for (row, added) in rows.chunks_exact_mut(width).zip(added.chunks_exact(width)) {
        for (value, added) in row.iter_mut().zip(added) {
            *value += added;
        }
        let mean = sum(row, |value| value) / width as f32;
        let variance = sum(row, |value| (value - mean) * (value - mean)) / width as f32;
        let scale = 1.0 / (variance + epsilon).sqrt();
        let affine = gamma.as_chunks::<4>().0.iter().zip(beta.as_chunks::<4>().0);
        for (value, (gamma, beta)) in row.iter_mut().zip(affine) {
            *value = (*value - mean) * scale * f32::from_le_bytes(*gamma) + f32::from_le_bytes(*beta);
        }
    }
}

/// Sums a function of the values, in as many sums at once as a register has.
#[inline(always)]
fn sum(values: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    let (blocks, rest) = values.as_chunks::<BLOCK>();
    let mut sums = [0.0; BLOCK];
    for block in blocks {
        for (sum, value) in sums.iter_mut().zip(block) {
            *sum += of(*value);
        }
    }
    sums.iter().sum::<f32>() + rest.iter().map(|value| of(*value)).sum::<f32>()
}

/// Returns e to the power of `x`, which is at most 0. The relative error is below 2e-7; below -87 it returns about 1e-38.
///
/// The power of two by the bits of the exponent, the rest by the polynomial of Cephes' `expf`.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// Adding 1.5 * 2^23 rounds to a whole number, which the last bits then hold.
    const ROUND: f32 = 12_582_912.0;
    let x = if x > -87.0 { x } else { -87.0 };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let whole = rounded - ROUND;
    // ln 2 in two parts, so that the rest is exact.
    let rest = (x - whole * 0.693_359_4) + whole * 2.121_944_4e-4;
    let series = ((((1.987_569_1e-4 * rest + 1.398_199_9e-3) * rest + 8.333_452e-3) * rest + 4.166_579_6e-2)
        * rest
        + 0.166_666_66)
        * rest
        + 0.5;
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    (series * rest * rest + rest + 1.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers between -1 and 1 without a pattern.
    fn noise(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from((state >> 16) as i16) / 32_768.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// Packs int8 rows by input with a scale for each group and output.
    fn packed(weights: &[i8], scales: &[f32], inputs: usize, outputs: usize) -> Vec<u8> {
        let mut packed = Vec::new();
        for block in (0..outputs).step_by(BLOCK) {
            for group in 0..inputs / GROUP {
                let scales = &scales[group * outputs + block..][..BLOCK];
                packed.extend(scales.iter().flat_map(|scale| scale.to_le_bytes()));
                for input in group * GROUP..(group + 1) * GROUP {
                    packed.extend(
                        weights[input * outputs + block..][..BLOCK]
                            .iter()
                            .map(|weight| weight.cast_unsigned()),
                    );
                }
            }
        }
        packed
    }

    #[test]
    fn products_are_those_of_the_definition() {
        let (inputs, outputs) = (2 * GROUP, 3 * BLOCK);
        let weights: Vec<i8> = noise(inputs * outputs, 1).iter().map(|value| (value * 127.0) as i8).collect();
        let scales = noise(inputs / GROUP * outputs, 2);
        let bias = noise(outputs, 3);
        let bytes: Vec<u8> = bias.iter().flat_map(|bias| bias.to_le_bytes()).collect();
        let packed = packed(&weights, &scales, inputs, outputs);
        let mut tiles = Tiles::default();
        for tokens in 1..=30 {
            let rows = noise(tokens * inputs, 4);
            tiles.fill(&rows, inputs, inputs);
            let mut out = vec![f32::NAN; tokens * outputs];
            linear(&tiles, &packed, &bytes, &mut out);
            for (at, value) in out.iter().enumerate() {
                let (token, output) = (at / outputs, at % outputs);
                let product = |input: usize| {
                    let weight = f32::from(weights[input * outputs + output]);
                    rows[token * inputs + input] * weight * scales[input / GROUP * outputs + output]
                };
                let expected = bias[output] + (0..inputs).map(product).sum::<f32>();
                assert!((value - expected).abs() < 2e-3, "{tokens} tokens, {at}: {value} is not {expected}");
            }
        }
    }

    #[test]
    fn tiles_without_vector_instructions_are_the_same() {
        let weights: Vec<i8> = noise(GROUP * BLOCK, 5).iter().map(|value| (value * 127.0) as i8).collect();
        let packed = packed(&weights, &noise(BLOCK, 6), GROUP, BLOCK);
        let tile = noise(GROUP * 3, 7);
        let (mut one, mut other) = ([0.0; 3 * BLOCK], [0.0; 3 * BLOCK]);
        int8_tile::<3, true>(&tile, &packed, [0.5; BLOCK], &mut one, BLOCK);
        int8_tile::<3, false>(&tile, &packed, [0.5; BLOCK], &mut other, BLOCK);
        assert!(one.iter().zip(&other).all(|(one, other)| (one - other).abs() < 1e-3), "{one:?} {other:?}");
        assert!(one.iter().any(|value| value.abs() > 1.0));
    }

    #[test]
    fn gelu_is_that_of_the_tables() {
        let mut values = [0.0, 1.0, -1.0, 3.0, -3.0, 0.1, 12.0, -12.0, -200.0];
        gelu(&mut values);
        let expected =
            [0.0, 0.841_344_7, -0.158_655_3, 2.995_950_2, -0.004_049_7, 0.053_982_8, 12.0, 0.0, 0.0];
        let near =
            values.iter().zip(expected).all(|(value, expected): (&f32, f32)| (value - expected).abs() < 1e-6);
        assert!(near, "{values:?}");
    }

    #[test]
    fn powers_of_e_are_exact_to_the_last_digits() {
        for step in 0..8_700u16 {
            let x = -f32::from(step) / 100.0;
            let expected = f64::from(x).exp();
            let error = (f64::from(exp(x)) - expected).abs() / expected;
            assert!(error < 2e-7, "e^{x}: {error}");
        }
        assert!(exp(f32::NEG_INFINITY) < 1e-37 && exp(-1e30) >= 0.0);
    }

    #[test]
    fn shares_sum_to_one_and_ignore_the_rest_of_a_row() {
        let mut rows = [0.0; 2 * BLOCK];
        rows[..3].copy_from_slice(&[1.0, 2.0, 3.0]);
        rows[3..BLOCK].fill(1e9);
        rows[BLOCK..BLOCK + 3].copy_from_slice(&[-1e9, 5.0, 5.0]);
        softmax(&mut rows, BLOCK, 3);
        let near =
            |row: &[f32], expected: [f32; 3]| row.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(near(&rows, [0.090_030_6, 0.244_728_5, 0.665_240_9]), "{rows:?}");
        assert!(near(&rows[BLOCK..], [0.0, 0.5, 0.5]), "{rows:?}");
        assert!(rows[3..BLOCK].iter().all(|rest| *rest < 1e-30), "{rows:?}");
    }

    #[test]
    fn rows_get_mean_and_variance() {
        let bytes = |value: f32| value.to_le_bytes().repeat(BLOCK);
        let mut row: Vec<f32> = (0..16u8).map(f32::from).collect();
        add_and_normalize(&mut row, &[1.0; BLOCK], &bytes(2.0), &bytes(0.5), 0.0);
        // 0..15 has the variance (16^2 - 1) / 12.
        let expected = |at: f32| (at - 7.5) / (255.0f32 / 12.0).sqrt() * 2.0 + 0.5;
        assert!(
            row.iter().zip(0..16u8).all(|(value, at)| (value - expected(at.into())).abs() < 1e-5),
            "{row:?}"
        );
    }
}
