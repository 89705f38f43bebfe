//! Packs an ONNX file of the MiniLM family, as `models/export_minilm.py` writes it with int8 weights, for the
//! kernels.
//!
//! Finds the weights by their names and checks shapes and types. The graph around them is not read: it is
//! known.

use std::collections::HashMap;

use prost::Message;

use crate::{
    kernel::{BLOCK, GROUP},
    layout::{MAGIC, PROJECTS, SHARED, SMALL_WORDS, Shape},
};

/// `TensorProto.DataType` of the ONNX specification.
const FLOAT: i32 = 1;
const UINT8: i32 = 2;
const INT8: i32 = 3;
const INT64: i32 = 7;
const FLOAT16: i32 = 10;

/// The matrix after the mean of a text's tokens, in models that have one.
const PROJECTION: &str = "projection";

/// Why an ONNX file cannot be packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackError(String);

impl std::fmt::Display for PackError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PackError {}

/// The parts of an ONNX file that are read, by their numbers in `onnx.proto`.
#[derive(Message)]
struct OnnxModel {
    #[prost(message, optional, tag = "7")]
    graph: Option<OnnxGraph>,
}

#[derive(Message)]
struct OnnxGraph {
    #[prost(message, repeated, tag = "1")]
    node: Vec<OnnxNode>,
    #[prost(message, repeated, tag = "5")]
    initializer: Vec<Tensor>,
}

#[derive(Message)]
struct OnnxNode {
    #[prost(string, optional, tag = "3")]
    name: Option<String>,
    #[prost(message, repeated, tag = "5")]
    attribute: Vec<Attribute>,
}

#[derive(Message)]
struct Attribute {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(float, optional, tag = "2")]
    f: Option<f32>,
}

#[derive(Message)]
struct Tensor {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, optional, tag = "2")]
    data_type: Option<i32>,
    #[prost(string, optional, tag = "8")]
    name: Option<String>,
    #[prost(bytes = "vec", optional, tag = "9")]
    raw_data: Option<Vec<u8>>,
}

/// Returns a model in the form that `Encoder::new` takes.
pub fn pack(onnx: &[u8]) -> Result<Vec<u8>, PackError> {
    let model = OnnxModel::decode(onnx).map_err(|error| PackError(format!("not an ONNX file: {error}")))?;
    let graph = model.graph.ok_or_else(|| PackError("the ONNX file has no graph".to_owned()))?;
    let file = File { tensors: graph.initializer.iter().map(|tensor| (tensor.name(), tensor)).collect() };
    let shape = file.shape(&graph.node)?;
    let Shape { width, inner, tokens, positions, .. } = shape;

    let mut packed = MAGIC.to_vec();
    for number in [width, shape.heads, inner, shape.layers, tokens, positions] {
        let number = u32::try_from(number).map_err(|_| PackError(format!("{number} is too large")))?;
        packed.extend(number.to_le_bytes());
    }
    packed.extend(shape.epsilon.to_le_bytes());
    let projects = if shape.projects { PROJECTS } else { 0 };
    let small_words = if shape.has_small_words { SMALL_WORDS } else { 0 };
    packed.extend((projects | small_words).to_le_bytes());
    if shape.has_small_words {
        packed.extend(file.raw("embeddings.words.table.u4", UINT8, &[tokens, width / 2])?);
        packed.extend(file.raw("embeddings.words.table.scale.f16", FLOAT16, &[tokens, width / SHARED])?);
    } else {
        packed.extend(file.raw("embeddings.words.table.i8", INT8, &[tokens, width])?);
        packed.extend(file.raw("embeddings.words.table.scale", FLOAT, &[tokens, 1])?);
    }
    packed.extend(file.raw("embeddings.positions", FLOAT, &[positions, width])?);
    file.norm("embeddings.norm", width, &mut packed)?;
    for layer in 0..shape.layers {
        file.matrix(&format!("layer{layer}.qkv"), width, 3 * width, &mut packed)?;
        file.matrix(&format!("layer{layer}.attn_out"), width, width, &mut packed)?;
        file.norm(&format!("layer{layer}.attn_norm"), width, &mut packed)?;
        file.matrix(&format!("layer{layer}.ffn_in"), width, inner, &mut packed)?;
        file.matrix(&format!("layer{layer}.ffn_out"), inner, width, &mut packed)?;
        file.norm(&format!("layer{layer}.ffn_norm"), width, &mut packed)?;
    }
    if shape.projects {
        file.matrix(PROJECTION, width, width, &mut packed)?;
    }
    debug_assert_eq!(packed.len(), shape.bytes());
    Ok(packed)
}

struct File<'a> {
    tensors: HashMap<&'a str, &'a Tensor>,
}

impl File<'_> {
    fn tensor(&self, name: &str) -> Result<&Tensor, PackError> {
        self.tensors.get(name).copied().ok_or_else(|| PackError(format!("the graph has no weight `{name}`")))
    }

    fn dims<const COUNT: usize>(&self, name: &str) -> Result<[usize; COUNT], PackError> {
        let dims: Vec<usize> =
            self.tensor(name)?.dims.iter().filter_map(|&dim| usize::try_from(dim).ok()).collect();
        dims.try_into().map_err(|dims| PackError(format!("`{name}` has the shape {dims:?}")))
    }

    /// Returns a weight's bytes, if it has this type and shape.
    fn raw(&self, name: &str, kind: i32, dims: &[usize]) -> Result<&[u8], PackError> {
        let tensor = self.tensor(name)?;
        let size = match kind {
            INT8 | UINT8 => 1,
            FLOAT16 => 2,
            FLOAT => 4,
            _ => 8,
        };
        let expected: Vec<i64> = dims.iter().filter_map(|&dim| i64::try_from(dim).ok()).collect();
        tensor
            .raw_data
            .as_deref()
            .filter(|raw| {
                tensor.data_type == Some(kind)
                    && tensor.dims == expected
                    && raw.len() == dims.iter().product::<usize>() * size
            })
            .ok_or_else(|| {
                PackError(format!(
                    "`{name}` is of type {} with the shape {:?}, not of type {kind} with the shape {dims:?}",
                    tensor.data_type(),
                    tensor.dims
                ))
            })
    }

    fn shape(&self, nodes: &[OnnxNode]) -> Result<Shape, PackError> {
        let has_small_words = self.tensors.contains_key("embeddings.words.table.u4");
        let table = if has_small_words { "embeddings.words.table.u4" } else { "embeddings.words.table.i8" };
        let [tokens, _] = self.dims(table)?;
        let [positions, width] = self.dims("embeddings.positions")?;
        let [inner] = self.dims("layer0.ffn_in.bias")?;
        let layers =
            (0..).take_while(|layer| self.tensors.contains_key(&*format!("layer{layer}.ffn_in.bias")));
        let heads = self.raw("const.split_heads", INT64, &[4])?;
        let heads = i64::from_le_bytes(heads.as_chunks::<8>().0[2]);
        let norm = nodes.iter().find(|node| node.name() == "embeddings.norm");
        let epsilon =
            norm.and_then(|node| node.attribute.iter().find(|attribute| attribute.name() == "epsilon"));
        let shape = Shape {
            width,
            heads: usize::try_from(heads).unwrap_or_default(),
            inner,
            layers: layers.count(),
            tokens,
            positions,
            epsilon: epsilon.and_then(|epsilon| epsilon.f).unwrap_or(1e-5),
            projects: self.tensors.contains_key(&*format!("{PROJECTION}.bias")),
            has_small_words,
        };
        if shape.fits() {
            Ok(shape)
        } else {
            Err(PackError(format!("such a model is not supported: {shape:?}")))
        }
    }

    fn norm(&self, name: &str, width: usize, packed: &mut Vec<u8>) -> Result<(), PackError> {
        for part in ["gamma", "beta"] {
            packed.extend(self.raw(&format!("{name}.{part}"), FLOAT, &[width])?);
        }
        Ok(())
    }

    /// Packs int8 `[inputs / 64, 64, outputs]` with float32 `[inputs / 64, 1, outputs]`, and a bias.
    fn matrix(
        &self,
        name: &str,
        inputs: usize,
        outputs: usize,
        packed: &mut Vec<u8>,
    ) -> Result<(), PackError> {
        let groups = inputs / GROUP;
        let values = self.raw(&format!("{name}.weight.i8"), INT8, &[groups, GROUP, outputs])?;
        let scales = self.raw(&format!("{name}.weight.scale"), FLOAT, &[groups, 1, outputs])?;
        for block in (0..outputs).step_by(BLOCK) {
            for group in 0..groups {
                packed.extend(&scales[4 * (group * outputs + block)..][..4 * BLOCK]);
                for input in 0..GROUP {
                    packed.extend(&values[(group * GROUP + input) * outputs + block..][..BLOCK]);
                }
            }
        }
        packed.extend(self.raw(&format!("{name}.bias"), FLOAT, &[outputs])?);
        Ok(())
    }
}
