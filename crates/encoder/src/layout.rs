//! The order of a packed model's bytes.

use crate::kernel::{BLOCK, GROUP, GROUP_BYTES, floats};

/// Values of a token's vector that share a scale, where they have four bits.
pub(crate) const SHARED: usize = 32;

/// The first bytes of a packed model; the digit is the version of the layout.
pub(crate) const MAGIC: &[u8; 8] = b"nonetml2";
/// The bytes of the header: [`MAGIC`], then eight numbers of four bytes.
pub(crate) const HEADER: usize = MAGIC.len() + 8 * 4;

/// The bits of the last number.
pub(crate) const PROJECTS: u32 = 1;
pub(crate) const SMALL_WORDS: u32 = 2;

/// The size of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Values of a token's vector.
    pub width: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Values between the two matrices of a feed-forward part.
    pub inner: usize,
    /// Layers.
    pub layers: usize,
    /// Tokens that the model knows.
    pub tokens: usize,
    /// The most tokens of a text.
    pub positions: usize,
    /// What LayerNorm adds to the variance.
    pub epsilon: f32,
    /// Whether a matrix of `[width, width]` turns the mean of a text's tokens into its vector.
    pub projects: bool,
    /// Whether the values of tokens have four bits instead of eight.
    pub has_small_words: bool,
}

impl Shape {
    /// Whether the kernels can run such a model.
    pub(crate) fn fits(&self) -> bool {
        let head = self.width.checked_div(self.heads).unwrap_or_default();
        let count = [self.layers, self.tokens, self.positions];
        head > 0
            && head.is_multiple_of(BLOCK)
            && head * self.heads == self.width
            && self.width.is_multiple_of(GROUP)
            && self.inner.is_multiple_of(GROUP)
            && self.inner > 0
            && count.iter().all(|count| (1..1 << 24).contains(count))
            && self.width.max(self.inner) < 1 << 16
    }

    /// Returns the bytes of a token's values and of its scales: float32 for all, or float16 for each 32.
    pub(crate) fn word(&self) -> (usize, usize) {
        if self.has_small_words { (self.width / 2, self.width / SHARED * 2) } else { (self.width, 4) }
    }

    fn table(&self) -> usize {
        let (values, scales) = self.word();
        self.tokens * (values + scales) + self.positions * self.width * 4 + self.width * 8
    }

    fn layer(&self) -> usize {
        let Shape { width, inner, .. } = *self;
        let matrices = [(width, 3 * width), (width, width), (width, inner), (inner, width)];
        matrices.iter().map(|&(inputs, outputs)| Matrix::bytes(inputs, outputs)).sum::<usize>()
            + 4 * 4 * width
    }

    fn projection(&self) -> usize {
        if self.projects { Matrix::bytes(self.width, self.width) } else { 0 }
    }

    /// Returns the bytes of a packed model of this shape.
    pub(crate) fn bytes(&self) -> usize {
        HEADER + self.table() + self.layers * self.layer() + self.projection()
    }
}

/// A matrix of int8 in blocks, and a float32 for each output.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'m> {
    pub(crate) weights: &'m [u8],
    pub(crate) bias: &'m [u8],
}

impl Matrix<'_> {
    fn bytes(inputs: usize, outputs: usize) -> usize {
        outputs / BLOCK * (inputs / GROUP) * GROUP_BYTES + 4 * outputs
    }
}

/// The float32 of a LayerNorm.
#[derive(Clone, Copy)]
pub(crate) struct Norm<'m> {
    pub(crate) gamma: &'m [u8],
    pub(crate) beta: &'m [u8],
}

/// The weights of a layer, in the order of use.
#[derive(Clone, Copy)]
pub(crate) struct Layer<'m> {
    pub(crate) attention_in: Matrix<'m>,
    pub(crate) attention_out: Matrix<'m>,
    pub(crate) attention_norm: Norm<'m>,
    pub(crate) forward_in: Matrix<'m>,
    pub(crate) forward_out: Matrix<'m>,
    pub(crate) forward_norm: Norm<'m>,
}

/// A packed model.
#[derive(Clone, Copy)]
pub(crate) struct Weights<'m> {
    pub(crate) shape: Shape,
    words: &'m [u8],
    scales: &'m [u8],
    positions: &'m [u8],
    norm: Norm<'m>,
    layers: &'m [u8],
    projection: Option<Matrix<'m>>,
}

impl<'m> Weights<'m> {
    /// Reads the header; `None` if the bytes are not a packed model.
    pub(crate) fn new(model: &'m [u8]) -> Option<Weights<'m>> {
        let numbers = model.strip_prefix(MAGIC)?.get(..HEADER - MAGIC.len())?;
        let (numbers, _) = numbers.as_chunks::<4>();
        let number = |at: usize| usize::try_from(u32::from_le_bytes(numbers[at])).ok();
        let kind = u32::from_le_bytes(numbers[7]);
        let shape = Shape {
            width: number(0)?,
            heads: number(1)?,
            inner: number(2)?,
            layers: number(3)?,
            tokens: number(4)?,
            positions: number(5)?,
            epsilon: f32::from_le_bytes(numbers[6]),
            projects: kind & PROJECTS != 0,
            has_small_words: kind & SMALL_WORDS != 0,
        };
        if kind > PROJECTS | SMALL_WORDS || !shape.fits() || model.len() != shape.bytes() {
            return None;
        }
        let mut reader = Reader(&model[HEADER..]);
        let (values, scales) = shape.word();
        let words = reader.take(shape.tokens * values);
        let scales = reader.take(shape.tokens * scales);
        let positions = reader.take(4 * shape.positions * shape.width);
        let norm = reader.norm(shape.width);
        let layers = reader.take(shape.layers * shape.layer());
        let projection = shape.projects.then(|| reader.matrix(shape.width, shape.width));
        Some(Weights { shape, words, scales, positions, norm, layers, projection })
    }

    /// Writes the vector of a token; `None` for a token that the model does not know.
    pub(crate) fn word(&self, token: u32, to: &mut [f32]) -> Option<()> {
        let token = usize::try_from(token).ok().filter(|token| *token < self.shape.tokens)?;
        let (values, scales) = self.shape.word();
        let (values, scales) =
            (&self.words[token * values..][..values], &self.scales[token * scales..][..scales]);
        if self.shape.has_small_words {
            // A byte holds a value of the first half in its low bits, and one of the second half in its high
            // bits.
            let low = values.iter().map(|byte| byte & 15);
            let all = low.chain(values.iter().map(|byte| byte >> 4));
            for (at, (to, value)) in to.iter_mut().zip(all).enumerate() {
                *to = (f32::from(value) - 8.0) * half(scales.as_chunks::<2>().0[at / SHARED]);
            }
        } else {
            let [scale] = floats(scales);
            to.iter_mut().zip(values).for_each(|(to, value)| *to = f32::from(value.cast_signed()) * scale);
        }
        Some(())
    }

    /// Returns the float32 of each position.
    pub(crate) fn positions(&self) -> impl Iterator<Item = &'m [u8]> {
        self.positions.chunks_exact(4 * self.shape.width)
    }

    pub(crate) fn norm(&self) -> Norm<'m> {
        self.norm
    }

    pub(crate) fn projection(&self) -> Option<Matrix<'m>> {
        self.projection
    }

    pub(crate) fn layers(&self) -> impl Iterator<Item = Layer<'m>> + use<'m> {
        let Shape { width, inner, .. } = self.shape;
        self.layers.chunks_exact(self.shape.layer()).map(move |layer| {
            let mut reader = Reader(layer);
            Layer {
                attention_in: reader.matrix(width, 3 * width),
                attention_out: reader.matrix(width, width),
                attention_norm: reader.norm(width),
                forward_in: reader.matrix(width, inner),
                forward_out: reader.matrix(inner, width),
                forward_norm: reader.norm(width),
            }
        })
    }
}

/// Bytes that are long enough for what is taken: their number was compared with the shape.
struct Reader<'m>(&'m [u8]);

impl<'m> Reader<'m> {
    fn take(&mut self, bytes: usize) -> &'m [u8] {
        let (own, rest) = self.0.split_at(bytes);
        self.0 = rest;
        own
    }

    fn matrix(&mut self, inputs: usize, outputs: usize) -> Matrix<'m> {
        let weights = self.take(Matrix::bytes(inputs, outputs) - 4 * outputs);
        Matrix { weights, bias: self.take(4 * outputs) }
    }

    fn norm(&mut self, width: usize) -> Norm<'m> {
        Norm { gamma: self.take(4 * width), beta: self.take(4 * width) }
    }
}

/// Reads a float16 that is finite (IEEE 754, binary16).
fn half(bytes: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_le_bytes(bytes));
    // The exponent of float32 is larger by 112.
    let size = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    if bits & 0x8000 == 0 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use super::half;

    #[test]
    fn float16_is_read() {
        let check = |bits: u16, expected: f32| assert_eq!(half(bits.to_le_bytes()), expected);
        check(0x3c00, 1.0);
        check(0xbc00, -1.0);
        check(0x3555, 0.333_251_95);
        check(0x7bff, 65_504.0);
        check(0x0001, 2.0_f32.powi(-24));
        check(0x0000, 0.0);
    }
}
