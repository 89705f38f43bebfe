//! The token rows of the compiled-in model, read in place.
//!
//! Half of the built-in file is a table with a row per token, and a text needs few of them. An engine copies
//! the whole table, so the graph is cut after the look-up: the rows become an input. Knows ONNX, not sessions
//! or texts.

use bytes::Bytes;

use super::onnx::{FLOAT, INT8, Message, OnnxGraph, OnnxNode, ValueInfo};

/// A table of int8 rows, each with a scale.
pub(super) struct WordTable {
    /// The name of the input that takes the rows, as `[batch, sequence, width]`.
    pub(super) input: String,
    pub(super) width: usize,
    values: Bytes,
    scales: Bytes,
}

impl WordTable {
    /// Cuts the look-up out of a graph and returns its table; `None` leaves a graph of another form as it is.
    pub(super) fn cut(graph: &mut OnnxGraph) -> Option<WordTable> {
        let read_by = |kind: &str, input: &str| {
            graph
                .node
                .iter()
                .find(|node| node.op_type() == kind && node.input.first().is_some_and(|first| first == input))
        };
        let is_look_up = |node: &&OnnxNode| {
            node.op_type() == "Gather" && node.input.get(1).is_some_and(|ids| ids == "input_ids")
        };
        let weight = |name: &str, kind: i32| {
            graph.initializer.iter().find(|tensor| tensor.name() == name && tensor.data_type == Some(kind))
        };
        // Gather -> Cast -> Mul with the scales, which are looked up as well.
        let (table, rows) = graph
            .node
            .iter()
            .filter(is_look_up)
            .find_map(|node| Some((weight(node.input.first()?, INT8)?, node.output.first()?)))?;
        let unpacked = read_by("Mul", read_by("Cast", rows)?.output.first()?)?;
        let scale = unpacked.input.get(1)?;
        let look_up = graph.node.iter().filter(is_look_up).find(|node| node.output.first() == Some(scale))?;
        let scales = weight(look_up.input.first()?, FLOAT)?;
        let &[count, width] = &table.dims[..] else { return None };
        let (count, width) = (usize::try_from(count).ok()?, usize::try_from(width).ok()?);
        let values = table.raw_data.clone().filter(|raw| raw.len() == count * width)?;
        let scales = scales.raw_data.clone().filter(|raw| raw.len() == 4 * count)?;

        let input = unpacked.output.first()?.clone();
        let dims = ["batch", "sequence", &width.to_string()];
        graph.input.push(ValueInfo::tensor(&input, FLOAT, &dims).encode_to_vec());
        graph.node.retain(|node| node.output.first() != Some(&input));
        graph.drop_unused();
        Some(WordTable { input, width, values, scales })
    }

    /// Returns the row of a token as the graph would unpack it; `None` for a number that the table lacks.
    pub(super) fn row(&self, token: u32) -> Option<impl Iterator<Item = f32> + '_> {
        let token = usize::try_from(token).ok()?;
        let scale = self.scales.chunks_exact(4).nth(token)?;
        let scale = f32::from_le_bytes(scale.try_into().ok()?);
        let row = self.values.chunks_exact(self.width).nth(token)?;
        Some(row.iter().map(move |&value| f32::from(value.cast_signed()) * scale))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::onnx::Tensor, *};

    fn node(kind: &str, input: &[&str], output: &str) -> OnnxNode {
        OnnxNode {
            input: input.iter().map(|&name| name.to_owned()).collect(),
            output: vec![output.to_owned()],
            op_type: Some(kind.to_owned()),
            ..OnnxNode::default()
        }
    }

    fn tensor(name: &str, kind: i32, dims: &[i64], raw: Vec<u8>) -> Tensor {
        Tensor {
            dims: dims.to_vec(),
            data_type: Some(kind),
            name: Some(name.to_owned()),
            raw_data: Some(raw.into()),
            ..Tensor::default()
        }
    }

    /// Three tokens of two numbers, looked up as in the shipped model.
    fn graph() -> OnnxGraph {
        let scales = [0.5f32, 2.0, 1.0].iter().flat_map(|scale| scale.to_le_bytes()).collect();
        OnnxGraph {
            node: vec![
                node("Gather", &["table", "input_ids"], "rows"),
                node("Cast", &["rows"], "cast"),
                node("Gather", &["scales", "input_ids"], "scale"),
                node("Mul", &["cast", "scale"], "words"),
                node("Shape", &["input_ids"], "shape"),
                node("Expand", &["words", "shape"], "y"),
            ],
            initializer: vec![
                tensor("table", INT8, &[3, 2], vec![1, 2, 3, 252, 5, 6]),
                tensor("scales", FLOAT, &[3, 1], scales),
            ],
            output: vec![ValueInfo { name: Some("y".to_owned()), value_type: None }],
            ..OnnxGraph::default()
        }
    }

    #[test]
    fn the_rows_become_an_input() {
        let mut graph = graph();
        let words = WordTable::cut(&mut graph).expect("a table");
        assert_eq!((words.input.as_str(), words.width), ("words", 2));
        let kinds: Vec<&str> = graph.node.iter().map(OnnxNode::op_type).collect();
        assert_eq!(kinds, ["Shape", "Expand"]);
        assert!(graph.initializer.is_empty());
        assert_eq!(
            graph.input,
            [ValueInfo::tensor("words", FLOAT, &["batch", "sequence", "2"]).encode_to_vec()]
        );
        let row = |token| words.row(token).map(Iterator::collect::<Vec<f32>>);
        assert_eq!((row(0), row(1), row(3)), (Some(vec![0.5, 1.0]), Some(vec![6.0, -8.0]), None));
    }

    #[test]
    fn any_other_form_is_left_alone() {
        let check = |change: &dyn Fn(&mut OnnxGraph)| {
            let mut other = graph();
            change(&mut other);
            let before = other.clone();
            assert!(WordTable::cut(&mut other).is_none());
            assert_eq!(other, before);
        };
        check(&|graph| graph.initializer[0].data_type = Some(FLOAT));
        check(&|graph| graph.initializer[0].dims = vec![2, 2]);
        check(&|graph| graph.initializer[1].raw_data = None);
        check(&|graph| graph.node[0].input[1] = "other_ids".to_owned());
        check(&|graph| graph.node[3].op_type = Some("Add".to_owned()));
    }
}
