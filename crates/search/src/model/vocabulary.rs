//! How many tokens a graph knows, read from its file.
//!
//! At best, an engine answers a token beyond that with an error; the pure-Rust one panics where nothing can
//! catch it, and the process ends. So each text is checked before it is run. Knows ONNX, not sessions.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use super::super::onnx::{Message, OnnxModel, Tensor};

/// Returns the rows of the table in which `input_ids` are looked up; `None` if no such table is found.
pub(super) fn size(model: Bytes) -> Option<usize> {
    let graph = OnnxModel::decode(model).ok()?.graph?;
    let tables: HashMap<&str, &Tensor> =
        graph.initializer.iter().map(|tensor| (tensor.name(), tensor)).collect();
    // Operators that keep the ids, and operators that keep the rows of a table.
    let same_ids = ["Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten"];
    let same_rows = ["Identity", "Cast", "DequantizeLinear"];
    let mut ids = HashSet::from(["input_ids"]);
    let mut stored: HashMap<&str, &str> = tables.keys().map(|&name| (name, name)).collect();
    let mut rows = None;
    // Nodes are in execution order.
    for node in &graph.node {
        let input = |at: usize| node.input.get(at).map_or("", String::as_str);
        for output in &node.output {
            if same_ids.contains(&node.op_type()) && ids.contains(input(0)) {
                ids.insert(output);
            }
            if let Some(&table) = stored.get(input(0)).filter(|_| same_rows.contains(&node.op_type())) {
                stored.insert(output, table);
            }
        }
        if matches!(node.op_type(), "Gather" | "GatherBlockQuantized") && ids.contains(input(1)) {
            let table = stored.get(input(0)).and_then(|name| tables.get(name));
            let here = table.and_then(|table| usize::try_from(*table.dims.first()?).ok());
            rows = rows.into_iter().chain(here).min();
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::{
        super::super::onnx::{OnnxGraph, OnnxNode},
        *,
    };

    fn model(nodes: &[(&str, &[&str], &str)], tables: &[(&str, &[i64])]) -> Bytes {
        let node = |&(kind, input, output): &(&str, &[&str], &str)| OnnxNode {
            input: input.iter().map(|&name| name.to_owned()).collect(),
            output: vec![output.to_owned()],
            op_type: Some(kind.to_owned()),
            ..OnnxNode::default()
        };
        let table = |&(name, dims): &(&str, &[i64])| Tensor {
            dims: dims.to_vec(),
            name: Some(name.to_owned()),
            ..Tensor::default()
        };
        let (node, initializer) = (nodes.iter().map(node).collect(), tables.iter().map(table).collect());
        let graph = OnnxGraph { node, initializer, ..OnnxGraph::default() };
        OnnxModel { graph: Some(graph), ..OnnxModel::default() }.encode_to_vec().into()
    }

    #[test]
    fn the_table_of_the_tokens_is_found() {
        let check = |nodes: &[(&str, &[&str], &str)], expected| {
            assert_eq!(
                size(model(nodes, &[("words", &[100, 8]), ("places", &[20, 8])])),
                expected,
                "{nodes:?}"
            );
        };
        check(&[("Gather", &["words", "input_ids"], "x"), ("Gather", &["places", "0"], "y")], Some(100));
        check(&[("Cast", &["input_ids"], "i"), ("Gather", &["words", "i"], "x")], Some(100));
        check(
            &[("DequantizeLinear", &["words", "scale"], "w"), ("Gather", &["w", "input_ids"], "x")],
            Some(100),
        );
        // Positions derived from the ids are not tokens.
        check(&[("Shape", &["input_ids"], "s"), ("Gather", &["places", "s"], "y")], None);
        check(&[], None);
        assert_eq!(size(Bytes::from_static(b"not a model")), None);
    }
}
