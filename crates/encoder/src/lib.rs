//! Runs a sentence encoder of the MiniLM family: tokens in, one vector for each text out.
//!
//! The model is a slice of bytes in the form that [`pack`] writes at build time: int8 weights in the order in
//! which they are read, with a float32 scale for each output and 64 inputs. Nothing is loaded, unpacked or
//! copied; a program's own pages are the model. Activations are float32, so a vector is that of the ONNX
//! graph up to rounding, and does not depend on the texts beside it. The words of a text become tokens here
//! too where a vocabulary is as large as a model's ([`Pieces`]).

mod kernel;
mod layout;
#[cfg(any(test, feature = "pack"))]
mod pack;
mod pieces;

#[cfg(test)]
mod tests;

pub use layout::Shape;
#[cfg(any(test, feature = "pack"))]
pub use pack::{PackError, pack};
#[cfg(any(test, feature = "pack"))]
pub use pieces::pack_pieces;
pub use pieces::{PackedPieces, Pieces};

use kernel::{BLOCK, Kernel, Tiles};
use layout::Weights;

/// Returns the instruction set that [`Encoder::embed`] uses on this machine, such as `AVX2`.
pub fn instruction_set() -> &'static str {
    Kernel::new().instruction_set()
}

/// A model as a program carries it.
#[derive(Clone, Copy, Debug)]
pub struct PackedModel {
    /// The model's name.
    pub name: &'static str,
    /// What [`Encoder::new`] takes.
    pub weights: &'static [u8],
    /// What cuts texts into the model's tokens.
    pub tokenizer: PackedTokenizer,
}

/// A tokenizer as a program carries it.
#[derive(Clone, Copy, Debug)]
pub enum PackedTokenizer {
    /// A `tokenizer.json` of the crate `tokenizers`.
    Json(&'static [u8]),
    /// The vocabulary of a multilingual model, which that crate would unpack into 126 MB.
    Pieces(PackedPieces),
}

/// Why there is no vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// The bytes are not a packed model.
    Model,
    /// A text has no tokens.
    Empty,
    /// The model does not know this token.
    Token(u32),
    /// A text has more tokens than the model has positions.
    Length(usize),
}

impl std::fmt::Display for EncodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EncodeError::Model => f.write_str("not a packed model of this version"),
            EncodeError::Empty => f.write_str("a text has no tokens"),
            EncodeError::Token(token) => write!(f, "token {token} is unknown"),
            EncodeError::Length(tokens) => write!(f, "a text of {tokens} tokens is too long"),
        }
    }
}

impl std::error::Error for EncodeError {}

/// A model and the memory to run it in, which is as large as the longest run so far.
pub struct Encoder<'m> {
    weights: Weights<'m>,
    kernel: Kernel,
    rows: Vec<f32>,
    wide: Vec<f32>,
    narrow: Vec<f32>,
    tiles: Tiles,
    attention: Attention,
}

#[derive(Default)]
struct Attention {
    queries: Tiles,
    keys: Vec<[f32; BLOCK]>,
    values: Vec<[f32; BLOCK]>,
    scores: Vec<f32>,
    shares: Tiles,
}

impl<'m> Encoder<'m> {
    /// Prepares a packed model. Reads its header only.
    pub fn new(model: &'m [u8]) -> Result<Encoder<'m>, EncodeError> {
        let weights = Weights::new(model).ok_or(EncodeError::Model)?;
        Ok(Encoder {
            weights,
            kernel: Kernel::new(),
            rows: Vec::new(),
            wide: Vec::new(),
            narrow: Vec::new(),
            tiles: Tiles::default(),
            attention: Attention::default(),
        })
    }

    /// Returns the model's shape.
    pub fn shape(&self) -> Shape {
        self.weights.shape
    }

    /// Returns the vector of each text, of `width` values and length 1: the mean of its tokens' vectors,
    /// projected if the model has a matrix for that, and normalised.
    pub fn embed(&mut self, texts: &[&[u32]]) -> Result<Vec<Vec<f32>>, EncodeError> {
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        let (kernel, shape) = (self.kernel, self.weights.shape);
        self.look_up(texts)?;
        let tokens = self.rows.len() / shape.width;
        for layer in self.weights.layers() {
            kernel.fill(&mut self.tiles, &self.rows, shape.width, shape.width);
            self.wide.resize(tokens * 3 * shape.width, 0.0);
            kernel.linear(&self.tiles, layer.attention_in.weights, layer.attention_in.bias, &mut self.wide);
            self.narrow.resize(tokens * shape.width, 0.0);
            let (mut from, mut to) = (&self.wide[..], &mut self.narrow[..]);
            for text in texts {
                let (own, rest) = from.split_at(text.len() * 3 * shape.width);
                from = rest;
                let (own_to, rest) = to.split_at_mut(text.len() * shape.width);
                to = rest;
                self.attention.attend(kernel, shape, own, own_to);
            }
            kernel.fill(&mut self.tiles, &self.narrow, shape.width, shape.width);
            kernel.linear(
                &self.tiles,
                layer.attention_out.weights,
                layer.attention_out.bias,
                &mut self.narrow,
            );
            let norm = layer.attention_norm;
            kernel.add_and_normalize(&mut self.rows, &self.narrow, norm.gamma, norm.beta, shape.epsilon);

            kernel.fill(&mut self.tiles, &self.rows, shape.width, shape.width);
            self.wide.resize(tokens * shape.inner, 0.0);
            kernel.linear(&self.tiles, layer.forward_in.weights, layer.forward_in.bias, &mut self.wide);
            kernel.gelu(&mut self.wide);
            kernel.fill(&mut self.tiles, &self.wide, shape.inner, shape.inner);
            kernel.linear(&self.tiles, layer.forward_out.weights, layer.forward_out.bias, &mut self.narrow);
            let norm = layer.forward_norm;
            kernel.add_and_normalize(&mut self.rows, &self.narrow, norm.gamma, norm.beta, shape.epsilon);
        }
        let mut rows = self.rows.chunks_exact(shape.width);
        let mut vectors = vec![0.0; texts.len() * shape.width];
        for (text, vector) in texts.iter().zip(vectors.chunks_exact_mut(shape.width)) {
            for row in rows.by_ref().take(text.len()) {
                vector.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
            vector.iter_mut().for_each(|sum| *sum /= text.len() as f32);
        }
        if let Some(projection) = self.weights.projection() {
            kernel.fill(&mut self.tiles, &vectors, shape.width, shape.width);
            kernel.linear(&self.tiles, projection.weights, projection.bias, &mut vectors);
        }
        Ok(vectors.chunks_exact(shape.width).map(normalized).collect())
    }

    /// Fills `rows` with the vector of each token and position.
    fn look_up(&mut self, texts: &[&[u32]]) -> Result<(), EncodeError> {
        let weights = &self.weights;
        let width = weights.shape.width;
        let tokens = texts.iter().map(|text| text.len()).sum::<usize>();
        self.rows.clear();
        self.rows.resize(tokens * width, 0.0);
        let mut rows = self.rows.chunks_exact_mut(width);
        for text in texts {
            if text.is_empty() {
                return Err(EncodeError::Empty);
            }
            if text.len() > weights.shape.positions {
                return Err(EncodeError::Length(text.len()));
            }
            for ((&token, position), row) in text.iter().zip(weights.positions()).zip(rows.by_ref()) {
                weights.word(token, row).ok_or(EncodeError::Token(token))?;
                for (to, position) in row.iter_mut().zip(position.as_chunks::<4>().0) {
                    *to += f32::from_le_bytes(*position);
                }
            }
        }
        self.narrow.clear();
        self.narrow.resize(tokens * width, 0.0);
        let norm = weights.norm();
        let epsilon = weights.shape.epsilon;
        self.kernel.add_and_normalize(&mut self.rows, &self.narrow, norm.gamma, norm.beta, epsilon);
        Ok(())
    }
}

impl Attention {
    /// Mixes the values of one text, head by head. `from` has a query, a key and a value for each token, `to`
    /// the mix.
    fn attend(&mut self, kernel: Kernel, shape: Shape, from: &[f32], to: &mut [f32]) {
        let Shape { width, heads, .. } = shape;
        let head = width / heads;
        let tokens = to.len() / width;
        let columns = tokens.next_multiple_of(BLOCK);
        for at in (0..width).step_by(head) {
            // The scale of the scores is in the query's weights.
            kernel.fill(&mut self.queries, &from[at..], 3 * width, head);
            self.keys.clear();
            self.keys.resize(columns / BLOCK * head, [0.0; BLOCK]);
            self.values.clear();
            self.values.resize(head / BLOCK * tokens, [0.0; BLOCK]);
            for (token, row) in from.chunks_exact(3 * width).enumerate() {
                let key = &row[width + at..][..head];
                for (to, value) in self.keys[token / BLOCK * head..].iter_mut().zip(key) {
                    to[token % BLOCK] = *value;
                }
                let value = &row[2 * width + at..][..head];
                for (block, value) in value.as_chunks::<BLOCK>().0.iter().enumerate() {
                    self.values[block * tokens + token] = *value;
                }
            }
            self.scores.resize(tokens * columns, 0.0);
            kernel.product(&self.queries, &self.keys, &mut self.scores, columns);
            kernel.softmax(&mut self.scores, columns, tokens);
            kernel.fill(&mut self.shares, &self.scores, columns, tokens);
            kernel.product(&self.shares, &self.values, &mut to[at..], width);
        }
    }
}

/// Returns a vector's direction: the same with length 1.
fn normalized(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
    vector.iter().map(|value| value / length).collect()
}
