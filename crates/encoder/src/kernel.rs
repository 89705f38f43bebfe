//! The arithmetic of the encoder: products of matrices in tiles, and the functions between them.
//!
//! Compiled once for each of a few instruction sets; the best of them is chosen at run time. What a
//! `with_simd` calls is inlined into it, because only so is it compiled for that set. Knows numbers, not
//! layers.

use pulp::{Arch, Simd, WithSimd};

/// Outputs of a block: a register of float32 with AVX-512, two with AVX2, four with NEON.
pub(crate) const BLOCK: usize = 16;
/// Inputs of a matrix that share a scale for each output.
pub(crate) const GROUP: usize = 64;
/// Bytes of a group of a block: a scale for each output, then a row of int8 for each input.
pub(crate) const GROUP_BYTES: usize = BLOCK * 4 + GROUP * BLOCK;

/// Tokens of a tile where registers are few (AVX2, NEON), and where there are many (AVX-512).
const FEW: usize = 6;
const MANY: usize = 12;

/// The instruction set of this machine.
#[derive(Clone, Copy)]
pub(crate) struct Kernel(Arch);

impl Kernel {
    pub(crate) fn new() -> Kernel {
        Kernel(Arch::new())
    }

    /// Returns every instruction set of this machine, and none.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Kernel> {
        let mut all = vec![Kernel(Arch::Scalar), Kernel::new()];
        #[cfg(target_arch = "x86_64")]
        all.extend(pulp::x86::V3::try_new().map(|v3| Kernel(Arch::V3(v3))));
        all
    }

    /// Returns the name of the instruction set.
    pub(crate) fn instruction_set(self) -> &'static str {
        match self.0.dispatch(Lanes) {
            16 => "AVX-512",
            8 => "AVX2",
            4 => "NEON",
            _ => "no vector instructions",
        }
    }

    /// Cuts rows into tiles. Each row starts `stride` values after the last and has `inputs` values.
    pub(crate) fn fill(self, tiles: &mut Tiles, rows: &[f32], stride: usize, inputs: usize) {
        let most = if self.0.dispatch(Lanes) == BLOCK { MANY } else { FEW };
        tiles.fill(most, rows, stride, inputs);
    }

    /// Multiplies rows with a matrix of int8 and adds a bias: `out[token][output]`.
    ///
    /// `weights` has a block for each 16 outputs: for each 64 inputs 16 scales, then `[64][16]` int8.
    pub(crate) fn linear(self, rows: &Tiles, weights: &[u8], bias: &[u8], out: &mut [f32]) {
        self.0.dispatch(Linear { rows, weights, bias, out });
    }

    /// Multiplies rows with a matrix of float32 in blocks of `[inputs][16]`: `out[token][output]`, a row each
    /// `stride` values.
    pub(crate) fn product(self, rows: &Tiles, matrix: &[[f32; BLOCK]], out: &mut [f32], stride: usize) {
        self.0.dispatch(Product { rows, matrix, out, stride });
    }

    /// Replaces each value by its GELU, `x / 2 * (1 + erf(x / sqrt 2))`.
    pub(crate) fn gelu(self, values: &mut [f32]) {
        self.0.dispatch(Gelu(values));
    }

    /// Replaces each row of `width` values by its softmax over the first `count`. The rest of the row becomes
    /// nearly 0.
    pub(crate) fn softmax(self, rows: &mut [f32], width: usize, count: usize) {
        self.0.dispatch(Softmax { rows, width, count });
    }

    /// Replaces each row by itself plus the row of `added`, with mean 0 and variance 1, scaled by `gamma` and
    /// moved by `beta`.
    pub(crate) fn add_and_normalize(
        self,
        rows: &mut [f32],
        added: &[f32],
        gamma: &[u8],
        beta: &[u8],
        epsilon: f32,
    ) {
        self.0.dispatch(AddAndNormalize { rows, added, gamma, beta, epsilon });
    }
}

/// Calls a function with the tokens of a tile as a constant: only then do its sums stay in registers.
macro_rules! with_tokens {
    (@ $tokens:ident, $function:ident, $generics:tt, $arguments:tt, $($count:literal)*) => {
        match $tokens {
            $($count => with_tokens!(@ $count, $function, $generics, $arguments),)*
            _ => unreachable!("a tile has at most 12 tokens"),
        }
    };
    (@ $count:literal, $function:ident, {$simd:ident, $registers:ident}, $arguments:tt) => {
        $function::<$simd, $registers, $count> $arguments
    };
    (@ $count:literal, $function:ident, {}, $arguments:tt) => { $function::<$count> $arguments };
    ($tokens:ident, $function:ident $(::<$simd:ident, $registers:ident>)? ($($argument:expr),*)) => {
        with_tokens!(@ $tokens, $function, {$($simd, $registers)?}, ($($argument),*), 1 2 3 4 5 6 7 8 9 10 11 12)
    };
}

/// Calls a function with the registers that a block of float32 takes, as a constant.
macro_rules! with_registers {
    ($simd:ident, $function:ident($($argument:expr),*)) => {
        match <$simd as Simd>::F32_LANES {
            16 => $function::<$simd, 1>($($argument),*),
            8 => $function::<$simd, 2>($($argument),*),
            4 => $function::<$simd, 4>($($argument),*),
            _ => $function::<$simd, 16>($($argument),*),
        }
    };
}

/// Rows of float32, cut into tiles in which the values of an input lie side by side:
/// `[inputs][tokens of the tile]`.
#[derive(Default)]
pub(crate) struct Tiles {
    values: Vec<f32>,
    /// The tokens of each tile.
    tokens: Vec<usize>,
    inputs: usize,
}

impl Tiles {
    fn fill(&mut self, most: usize, rows: &[f32], stride: usize, inputs: usize) {
        let mut count = rows.len().div_ceil(stride);
        self.inputs = inputs;
        self.values.resize(count * inputs, 0.0);
        self.tokens.clear();
        // Tiles of nearly the same size.
        let mut tiles = count.div_ceil(most);
        let (mut values, mut rows) = (&mut self.values[..], rows);
        while tiles > 0 {
            let tokens = count.div_ceil(tiles);
            (count, tiles) = (count - tokens, tiles - 1);
            self.tokens.push(tokens);
            let (tile, rest) = values.split_at_mut(tokens * inputs);
            values = rest;
            with_tokens!(tokens, transpose(rows, stride, tile));
            rows = rows.get(tokens * stride..).unwrap_or_default();
        }
    }

    /// Returns each tile with its tokens.
    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = (usize, &[f32])> {
        let mut values = &self.values[..];
        self.tokens.iter().map(move |&tokens| {
            let (tile, rest) = values.split_at(tokens * self.inputs);
            values = rest;
            (tokens, tile)
        })
    }
}

/// Puts the values of each input side by side.
fn transpose<const TOKENS: usize>(rows: &[f32], stride: usize, tile: &mut [f32]) {
    let (tile, _) = tile.as_chunks_mut::<TOKENS>();
    let rows: [&[f32]; TOKENS] = std::array::from_fn(|token| &rows[token * stride..][..tile.len()]);
    for (at, values) in tile.iter_mut().enumerate() {
        *values = std::array::from_fn(|token| rows[token][at]);
    }
}

struct Lanes;

impl WithSimd for Lanes {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> usize {
        S::F32_LANES
    }
}

struct Linear<'a> {
    rows: &'a Tiles,
    weights: &'a [u8],
    bias: &'a [u8],
    out: &'a mut [f32],
}

impl WithSimd for Linear<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        with_registers!(S, linear(simd, self))
    }
}

#[inline(always)]
fn linear<S: Simd, const REGISTERS: usize>(simd: S, call: Linear<'_>) {
    let Linear { rows, weights, bias, out } = call;
    let outputs = bias.len() / 4;
    let blocks = weights.chunks_exact(rows.inputs / GROUP * GROUP_BYTES);
    for (block, (weights, bias)) in blocks.zip(bias.chunks_exact(4 * BLOCK)).enumerate() {
        let bias = floats(bias);
        let mut out = &mut out[block * BLOCK..];
        for (tokens, tile) in rows.iter() {
            with_tokens!(tokens, int8_tile::<S, REGISTERS>(simd, tile, weights, &bias, out, outputs));
            out = out.get_mut(tokens * outputs..).unwrap_or_default();
        }
    }
}

struct Product<'a> {
    rows: &'a Tiles,
    matrix: &'a [[f32; BLOCK]],
    out: &'a mut [f32],
    stride: usize,
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        with_registers!(S, product(simd, self))
    }
}

#[inline(always)]
fn product<S: Simd, const REGISTERS: usize>(simd: S, call: Product<'_>) {
    let Product { rows, matrix, out, stride } = call;
    for (block, matrix) in matrix.chunks_exact(rows.inputs).enumerate() {
        let mut out = &mut out[block * BLOCK..];
        for (tokens, tile) in rows.iter() {
            with_tokens!(tokens, float_tile::<S, REGISTERS>(simd, tile, matrix, out, stride));
            out = out.get_mut(tokens * stride..).unwrap_or_default();
        }
    }
}

#[inline(always)]
fn int8_tile<S: Simd, const REGISTERS: usize, const TOKENS: usize>(
    simd: S,
    tile: &[f32],
    weights: &[u8],
    bias: &[f32; BLOCK],
    out: &mut [f32],
    stride: usize,
) {
    let mut sums = [registers::<S, REGISTERS>(bias); TOKENS];
    let inputs = tile.as_chunks::<TOKENS>().0.chunks_exact(GROUP);
    for (inputs, group) in inputs.zip(weights.chunks_exact(GROUP_BYTES)) {
        let (scales, values) = group.split_at(4 * BLOCK);
        let mut part = [[simd.splat_f32s(0.0); REGISTERS]; TOKENS];
        for (values, row) in inputs.iter().zip(values.as_chunks::<BLOCK>().0) {
            let mut unpacked = [0.0; BLOCK];
            for output in 0..BLOCK {
                unpacked[output] = f32::from(row[output].cast_signed());
            }
            add(simd, &mut part, values, &registers::<S, REGISTERS>(&unpacked));
        }
        let scales = registers::<S, REGISTERS>(&floats(scales));
        for token in 0..TOKENS {
            for register in 0..REGISTERS {
                sums[token][register] =
                    simd.mul_add_e_f32s(part[token][register], scales[register], sums[token][register]);
            }
        }
    }
    store::<S, REGISTERS, TOKENS>(&sums, out, stride);
}

#[inline(always)]
fn float_tile<S: Simd, const REGISTERS: usize, const TOKENS: usize>(
    simd: S,
    tile: &[f32],
    matrix: &[[f32; BLOCK]],
    out: &mut [f32],
    stride: usize,
) {
    let mut sums = [[simd.splat_f32s(0.0); REGISTERS]; TOKENS];
    for (values, row) in tile.as_chunks::<TOKENS>().0.iter().zip(matrix) {
        add(simd, &mut sums, values, &registers::<S, REGISTERS>(row));
    }
    store::<S, REGISTERS, TOKENS>(&sums, out, stride);
}

/// Adds the product of each value and the row to the value's sums.
#[inline(always)]
fn add<S: Simd, const REGISTERS: usize, const TOKENS: usize>(
    simd: S,
    sums: &mut [[S::f32s; REGISTERS]; TOKENS],
    values: &[f32; TOKENS],
    row: &[S::f32s; REGISTERS],
) {
    for token in 0..TOKENS {
        let value = simd.splat_f32s(values[token]);
        for register in 0..REGISTERS {
            sums[token][register] = simd.mul_add_e_f32s(value, row[register], sums[token][register]);
        }
    }
}

/// Loads a block of float32.
#[inline(always)]
fn registers<S: Simd, const REGISTERS: usize>(block: &[f32; BLOCK]) -> [S::f32s; REGISTERS] {
    let (registers, _) = S::as_simd_f32s(block);
    std::array::from_fn(|at| registers[at])
}

#[inline(always)]
fn store<S: Simd, const REGISTERS: usize, const TOKENS: usize>(
    sums: &[[S::f32s; REGISTERS]; TOKENS],
    out: &mut [f32],
    stride: usize,
) {
    for token in 0..TOKENS {
        let (registers, _) = S::as_mut_simd_f32s(&mut out[token * stride..][..BLOCK]);
        registers.copy_from_slice(&sums[token]);
    }
}

/// Reads float32 in little-endian order.
#[inline(always)]
pub(crate) fn floats<const COUNT: usize>(bytes: &[u8]) -> [f32; COUNT] {
    let (bytes, _) = bytes.as_chunks::<4>();
    let mut floats = [0.0; COUNT];
    for (to, bytes) in floats.iter_mut().zip(bytes) {
        *to = f32::from_le_bytes(*bytes);
    }
    floats
}

struct Gelu<'a>(&'a mut [f32]);

impl WithSimd for Gelu<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for x in self.0 {
            // Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: an error below 1.5e-7.
            let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
            let t = 1.0 / (1.0 + 0.327_591_1 * z);
            let series = ((((1.061_405_4 * t - 1.453_152) * t + 1.421_413_7) * t - 0.284_496_74) * t
                + 0.254_829_6)
                * t;
            let erf = 1.0 - series * exp(-z * z);
            *x = 0.5 * *x * (1.0 + erf.copysign(*x));
        }
    }
}

struct Softmax<'a> {
    rows: &'a mut [f32],
    width: usize,
    count: usize,
}

impl WithSimd for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for row in self.rows.chunks_mut(self.width) {
            row[self.count..].fill(f32::NEG_INFINITY);
            let mut most = simd.splat_f32s(f32::NEG_INFINITY);
            for some in S::as_simd_f32s(row).0 {
                most = simd.max_f32s(most, *some);
            }
            let most = simd.reduce_max_f32s(most);
            for value in row.iter_mut() {
                *value = exp(*value - most);
            }
            let scale = 1.0 / sum(simd, row);
            for value in row {
                *value *= scale;
            }
        }
    }
}

struct AddAndNormalize<'a> {
    rows: &'a mut [f32],
    added: &'a [f32],
    gamma: &'a [u8],
    beta: &'a [u8],
    epsilon: f32,
}

impl WithSimd for AddAndNormalize<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let width = self.gamma.len() / 4;
        let (gamma, _) = self.gamma.as_chunks::<4>();
        let (beta, _) = self.beta.as_chunks::<4>();
        for (row, added) in self.rows.chunks_exact_mut(width).zip(self.added.chunks_exact(width)) {
            for (value, added) in row.iter_mut().zip(added) {
                *value += added;
            }
            let mean = sum(simd, row) / width as f32;
            for value in row.iter_mut() {
                *value -= mean;
            }
            let mut squares = simd.splat_f32s(0.0);
            for some in S::as_simd_f32s(row).0 {
                squares = simd.mul_add_e_f32s(*some, *some, squares);
            }
            let variance = simd.reduce_sum_f32s(squares) / width as f32;
            let scale = 1.0 / (variance + self.epsilon).sqrt();
            for ((value, gamma), beta) in row.iter_mut().zip(gamma).zip(beta) {
                *value = *value * scale * f32::from_le_bytes(*gamma) + f32::from_le_bytes(*beta);
            }
        }
    }
}

/// Sums a row, whose length is a multiple of 16.
#[inline(always)]
fn sum<S: Simd>(simd: S, row: &[f32]) -> f32 {
    let mut sum = simd.splat_f32s(0.0);
    for some in S::as_simd_f32s(row).0 {
        sum = simd.add_f32s(sum, *some);
    }
    simd.reduce_sum_f32s(sum)
}

/// Returns e to the power of `x`, which is at most 0. The relative error is below 2e-7; below -87 it returns
/// about 1e-38.
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
        let (kernel, mut tiles) = (Kernel::new(), Tiles::default());
        for tokens in 1..=30 {
            let rows = noise(tokens * inputs, 4);
            kernel.fill(&mut tiles, &rows, inputs, inputs);
            let mut out = vec![f32::NAN; tokens * outputs];
            kernel.linear(&tiles, &packed, &bytes, &mut out);
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
    fn gelu_is_that_of_the_tables() {
        let mut values = [0.0, 1.0, -1.0, 3.0, -3.0, 0.1, 12.0, -12.0, -200.0];
        Kernel::new().gelu(&mut values);
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
        Kernel::new().softmax(&mut rows, BLOCK, 3);
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
        Kernel::new().add_and_normalize(&mut row, &[1.0; BLOCK], &bytes(2.0), &bytes(0.5), 0.0);
        // 0..15 has the variance (16^2 - 1) / 12.
        let expected = |at: f32| (at - 7.5) / (255.0f32 / 12.0).sqrt() * 2.0 + 0.5;
        assert!(
            row.iter().zip(0..16u8).all(|(value, at)| (value - expected(at.into())).abs() < 1e-5),
            "{row:?}"
        );
    }
}
