//! The order of a packed model's bytes.

use crate::kernel::{BLOCK, GROUP, GROUP_BYTES, floats};

/// The first bytes of a packed model; the digit is the version of the layout.
pub(crate) const MAGIC: &[u8; 8] = b"nonetml1";
/// The bytes of the header: [`MAGIC`], then seven numbers of four bytes.
pub(crate) const HEADER: usize = MAGIC.len() + 7 * 4;

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

    fn table(&self) -> usize {
        self.tokens * self.width + self.tokens * 4 + self.positions * self.width * 4 + self.width * 8
    }

    fn layer(&self) -> usize {
        let Shape { width, inner, .. } = *self;
        let matrices = [(width, 3 * width), (width, width), (width, inner), (inner, width)];
        matrices.iter().map(|&(inputs, outputs)| Matrix::bytes(inputs, outputs)).sum::<usize>()
            + 4 * 4 * width
    }

    /// Returns the bytes of a packed model of this shape.
    pub(crate) fn bytes(&self) -> usize {
        HEADER + self.table() + self.layers * self.layer()
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
}

impl<'m> Weights<'m> {
    /// Reads the header; `None` if the bytes are not a packed model.
    pub(crate) fn new(model: &'m [u8]) -> Option<Weights<'m>> {
        let numbers = model.strip_prefix(MAGIC)?.get(..HEADER - MAGIC.len())?;
        let (numbers, _) = numbers.as_chunks::<4>();
        let number = |at: usize| usize::try_from(u32::from_le_bytes(numbers[at])).ok();
        let shape = Shape {
            width: number(0)?,
            heads: number(1)?,
            inner: number(2)?,
            layers: number(3)?,
            tokens: number(4)?,
            positions: number(5)?,
            epsilon: f32::from_le_bytes(numbers[6]),
        };
        if !shape.fits() || model.len() != shape.bytes() {
            return None;
        }
        let mut reader = Reader(&model[HEADER..]);
        let words = reader.take(shape.tokens * shape.width);
        let scales = reader.take(4 * shape.tokens);
        let positions = reader.take(4 * shape.positions * shape.width);
        let norm = reader.norm(shape.width);
        Some(Weights { shape, words, scales, positions, norm, layers: reader.0 })
    }

    /// Returns the int8 row of a token and its scale; `None` for a token that the model does not know.
    pub(crate) fn word(&self, token: u32) -> Option<(&'m [u8], f32)> {
        let token = usize::try_from(token).ok().filter(|token| *token < self.shape.tokens)?;
        let [scale] = floats(&self.scales[4 * token..]);
        Some((&self.words[token * self.shape.width..][..self.shape.width], scale))
    }

    /// Returns the float32 of each position.
    pub(crate) fn positions(&self) -> impl Iterator<Item = &'m [u8]> {
        self.positions.chunks_exact(4 * self.shape.width)
    }

    pub(crate) fn norm(&self) -> Norm<'m> {
        self.norm
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
