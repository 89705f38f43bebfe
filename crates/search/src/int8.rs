//! Rewrites a model with int8 weights so that ONNX Runtime also computes in int8.
//!
//! Such a file unpacks each weight before use (`Cast -> Mul -> Reshape -> MatMul`); all engines can run that,
//! in float32. ONNX Runtime has one operator for the four, `MatMulNBits`, which reads the int8 weights
//! directly and quantises the other operand block by block: a short text takes a third of the time, and
//! unpacked weights take no memory. Each row and block has its own scale, so a vector does not depend on the
//! rest of a batch. Knows ONNX, not sessions or texts.

use std::collections::HashMap;

use super::onnx::{Attribute, FLOAT, INT, INT8, OnnxGraph, OnnxModel, OnnxNode, Opset, Tensor, UINT8};

/// ONNX Runtime's own operators.
const CONTRIB: &str = "com.microsoft";
/// The computation type of `MatMulNBits`: 4 is int8 (attribute `accuracy_level` in its documentation).
const IN_INT8: i64 = 4;
/// The zero point of the operator's unsigned numbers.
const ZERO_POINT: u8 = 128;

/// Returns the model rewritten to use its int8 weights directly; `None` if it has no such weights.
pub(super) fn rewritten(model: &OnnxModel) -> Option<OnnxModel> {
    let mut model = model.clone();
    if rewrite(model.graph.as_mut()?) == 0 {
        return None;
    }
    if !model.opset_import.iter().any(|opset| opset.domain.as_deref() == Some(CONTRIB)) {
        model.opset_import.push(Opset { domain: Some(CONTRIB.to_owned()), version: Some(1) });
    }
    Some(model)
}

/// Replaces each `MatMul` with an unpacked weight, and returns their number.
fn rewrite(graph: &mut OnnxGraph) -> usize {
    // A graph inside a node may read anything of this one.
    if graph.node.iter().flat_map(|node| &node.attribute).any(|attribute| attribute.g.is_some()) {
        return 0;
    }
    let made_by: HashMap<&str, usize> = graph
        .node
        .iter()
        .enumerate()
        .flat_map(|(at, node)| node.output.iter().map(move |output| (output.as_str(), at)))
        .collect();
    let constants: HashMap<&str, &Tensor> =
        graph.initializer.iter().map(|tensor| (tensor.name(), tensor)).collect();
    // The node of this kind that produces the input.
    let source = |name: &str, kind: &str| {
        made_by.get(name).map(|&at| &graph.node[at]).filter(|node| node.op_type() == kind)
    };
    let weight_of = |matmul: &OnnxNode| -> Option<PackedWeight> {
        let reshape = source(matmul.input.get(1)?, "Reshape")?;
        let product = source(reshape.input.first()?, "Mul")?;
        let cast = source(product.input.first()?, "Cast")?;
        PackedWeight::new(
            constants.get(cast.input.first()?.as_str())?,
            constants.get(product.input.get(1)?.as_str())?,
        )
    };

    let mut new = Vec::new();
    for (at, node) in graph.node.iter().enumerate().filter(|(_, node)| node.op_type() == "MatMul") {
        if let (Some(weight), Some(left)) = (weight_of(node), node.input.first()) {
            new.push((at, weight.node(node, left), weight));
        }
    }
    let count = new.len();
    for (at, node, weight) in new {
        let [weights, scales] = [1, 2].map(|input| node.input[input].clone());
        graph.initializer.push(Tensor {
            dims: vec![weight.columns as i64, weight.blocks as i64, weight.block as i64],
            data_type: Some(UINT8),
            name: Some(weights),
            raw_data: Some(weight.values.into()),
            ..Tensor::default()
        });
        graph.initializer.push(Tensor {
            dims: vec![(weight.columns * weight.blocks) as i64],
            data_type: Some(FLOAT),
            name: Some(scales),
            raw_data: Some(weight.scales.into()),
            ..Tensor::default()
        });
        graph.node[at] = node;
    }
    graph.drop_unused();
    count
}

/// A weight in the layout of `MatMulNBits`: `[columns, blocks, block]`, with a scale per block.
struct PackedWeight {
    columns: usize,
    blocks: usize,
    block: usize,
    values: Vec<u8>,
    scales: Vec<u8>,
}

impl PackedWeight {
    /// Packs int8 `[blocks, block, columns]` and float32 `[blocks, 1, columns]`; `None` for any other layout.
    fn new(values: &Tensor, scales: &Tensor) -> Option<PackedWeight> {
        let shape = |tensor: &Tensor| -> Option<[usize; 3]> {
            let dims: Vec<usize> = tensor.dims.iter().filter_map(|&dim| usize::try_from(dim).ok()).collect();
            dims.try_into().ok()
        };
        let [blocks, block, columns] = shape(values)?;
        let fits = values.data_type == Some(INT8)
            && scales.data_type == Some(FLOAT)
            && shape(scales)? == [blocks, 1, columns]
            // Required by the operator.
            && block.is_power_of_two()
            && (16..=256).contains(&block);
        let raw = values.raw_data.as_deref().filter(|raw| raw.len() == blocks * block * columns)?;
        let raw_scales = scales.raw_data.as_deref().filter(|raw| raw.len() == 4 * blocks * columns)?;
        if !fits {
            return None;
        }
        let mut packed = vec![0; raw.len()];
        for (row, line) in raw.chunks_exact(columns).enumerate() {
            for (column, &value) in line.iter().enumerate() {
                packed[column * blocks * block + row] = value.wrapping_add(ZERO_POINT);
            }
        }
        let mut packed_scales = vec![0; raw_scales.len()];
        for (at, scale) in raw_scales.chunks_exact(4).enumerate() {
            let to = 4 * (at % columns * blocks + at / columns);
            packed_scales[to..to + 4].copy_from_slice(scale);
        }
        Some(PackedWeight { columns, blocks, block, values: packed, scales: packed_scales })
    }

    /// Returns the node that replaces a `MatMul`.
    fn node(&self, matmul: &OnnxNode, left: &str) -> OnnxNode {
        let output = matmul.output.first().cloned().unwrap_or_default();
        let number = |name: &str, value: i64| Attribute {
            name: Some(name.to_owned()),
            i: Some(value),
            kind: Some(INT),
            ..Attribute::default()
        };
        OnnxNode {
            input: vec![left.to_owned(), format!("{output}.packed"), format!("{output}.scales")],
            output: vec![output],
            name: matmul.name.clone(),
            op_type: Some("MatMulNBits".to_owned()),
            attribute: vec![
                number("K", (self.blocks * self.block) as i64),
                number("N", self.columns as i64),
                number("bits", 8),
                number("block_size", self.block as i64),
                number("accuracy_level", IN_INT8),
            ],
            domain: Some(CONTRIB.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::{
        super::onnx::{self, ValueInfo},
        *,
    };

    fn tensor(name: &str, kind: i32, dims: &[i64], raw: Vec<u8>) -> Tensor {
        Tensor {
            dims: dims.to_vec(),
            data_type: Some(kind),
            name: Some(name.to_owned()),
            raw_data: Some(raw.into()),
            ..Tensor::default()
        }
    }

    fn node(kind: &str, input: &[&str], output: &str) -> OnnxNode {
        OnnxNode {
            input: input.iter().map(|&name| name.to_owned()).collect(),
            output: vec![output.to_owned()],
            op_type: Some(kind.to_owned()),
            ..OnnxNode::default()
        }
    }

    /// `y = x * w`, with w of 32 rows in two blocks and 2 columns, unpacked as in the shipped model.
    fn graph() -> OnnxGraph {
        let values: Vec<u8> = (0..64i8).map(|n| (n - 30) as u8).collect();
        let scales = [0.5f32, 1.0, 2.0, 4.0].iter().flat_map(|scale| scale.to_le_bytes()).collect();
        OnnxGraph {
            node: vec![
                node("Cast", &["w.i8"], "w.cast"),
                node("Mul", &["w.cast", "w.scale"], "w.grouped"),
                node("Reshape", &["w.grouped", "shape"], "w"),
                node("MatMul", &["x", "w"], "y"),
                node("MatMul", &["y", "x"], "z"),
            ],
            initializer: vec![
                tensor("w.i8", INT8, &[2, 16, 2], values),
                tensor("w.scale", FLOAT, &[2, 1, 2], scales),
            ],
            output: vec![ValueInfo { name: Some("z".to_owned()), value_type: None }],
            ..OnnxGraph::default()
        }
    }

    #[test]
    fn unpacked_weights_become_one_operator() {
        let mut graph = graph();
        assert_eq!(rewrite(&mut graph), 1);
        let kinds: Vec<&str> = graph.node.iter().map(OnnxNode::op_type).collect();
        assert_eq!(kinds, ["MatMulNBits", "MatMul"]);
        assert_eq!(graph.node[0].input, ["x", "y.packed", "y.scales"]);
        let names: Vec<&str> = graph.initializer.iter().map(Tensor::name).collect();
        assert_eq!(names, ["y.packed", "y.scales"]);
        // Column 0 first: rows 0 to 15 with scale 0.5, rows 16 to 31 with scale 2, then column 1.
        let packed = graph.initializer[0].raw_data.as_deref().unwrap_or_default();
        let weight = |column: usize, row: usize| i16::from(packed[column * 32 + row]) - 128;
        assert_eq!((weight(0, 0), weight(0, 1), weight(1, 0), weight(1, 31)), (-30, -28, -29, 33));
        let scales = graph.initializer[1].raw_data.as_deref().unwrap_or_default();
        let scales: Vec<f32> =
            scales.chunks(4).map(|s| f32::from_le_bytes(s.try_into().expect("four bytes"))).collect();
        assert_eq!(scales, [0.5, 2.0, 1.0, 4.0]);
    }

    #[test]
    fn any_other_form_is_left_alone() {
        let check = |change: &dyn Fn(&mut OnnxGraph)| {
            let mut other = graph();
            change(&mut other);
            let before = other.clone();
            assert_eq!(rewrite(&mut other), 0);
            assert_eq!(other.initializer, before.initializer);
        };
        check(&|graph| graph.initializer[0].data_type = Some(UINT8));
        check(&|graph| graph.initializer[0].raw_data = Some(vec![0; 3].into()));
        check(&|graph| graph.initializer[1].dims = vec![2, 2]);
        check(&|graph| graph.initializer[0].dims = vec![-2, 16, 2]);
        check(&|graph| graph.node[1].op_type = Some("Add".to_owned()));
        check(&|graph| graph.node[4].attribute = vec![Attribute { g: Some(vec![]), ..Attribute::default() }]);
        assert_eq!(rewritten(&OnnxModel::default()), None);
    }

    #[test]
    fn the_shipped_model_has_that_form() {
        let model = onnx::read(Bytes::from_static(nonet_model::GRAPH)).expect("a model");
        let new = rewritten(&model).and_then(|model| model.graph).expect("int8 weights");
        let count = |kind: &str| new.node.iter().filter(|node| node.op_type() == kind).count();
        // Six layers of four products with weights; the remaining two belong to attention.
        assert_eq!((count("MatMulNBits"), count("MatMul")), (24, 12));
    }
}
