//! The graph of a folder, run by ONNX Runtime: the tokens of one text in, its vector out.

use std::path::Path;

use ort::{
    session::{Session, builder::GraphOptimizationLevel},
    value::{DynTensor, Outlet, Tensor, TensorElementType, ValueType},
};
use tokenizers::Encoding;

use super::{
    super::{
        onnxruntime::{Engine, whole},
        vectors::normalized,
    },
    EXPORT,
    recipe::Pooling,
};

/// The graph inputs that can be supplied.
const INPUTS: [&str; 3] = ["input_ids", "attention_mask", "token_type_ids"];
/// The supported outputs, best first.
const OUTPUTS: [&str; 3] = ["sentence_embedding", "last_hidden_state", "token_embeddings"];

pub(super) struct Graph {
    session: Session,
    /// The file, for errors.
    name: String,
    /// The graph's inputs among [`INPUTS`].
    inputs: Vec<&'static str>,
    output: String,
    pooling: Result<Pooling, String>,
}

impl Graph {
    /// Loads a graph, and runs it once with the first and the last of the tokenizer's `tokens`. The error of
    /// `pooling` matters only if the graph leaves pooling to us.
    pub(super) fn load(
        file: &Path,
        pooling: Result<Pooling, String>,
        engine: &Engine,
        tokens: usize,
        tokenizer: &str,
    ) -> Result<Graph, String> {
        let name = file.display().to_string();
        let session = session(file, engine).map_err(|error| {
            format!(
                "{name}: cannot be loaded: {}; is the file complete, and not a Git LFS pointer? {EXPORT} exports it again",
                whole(&error)
            )
        })?;
        let fault = |reason: String| format!("{name}: {reason}");
        let mut graph = Graph {
            inputs: inputs(session.inputs()).map_err(fault)?,
            output: output(session.outputs()).map_err(fault)?,
            session,
            name: name.clone(),
            pooling,
        };
        // If the first token runs and the last fails, the graph has fewer.
        graph.run(&[0], &[0])?;
        let last = u32::try_from(tokens.saturating_sub(1)).unwrap_or(u32::MAX);
        graph.run(&[last], &[0]).map_err(|error| {
            format!(
                "{tokenizer}: has {tokens} tokens, and the graph does not know the last of them ({error}); the two do not \
                 match: use both from the same export"
            )
        })?;
        Ok(graph)
    }

    /// Returns the normalised vector of a text.
    pub(super) fn embed(&mut self, text: &Encoding) -> Result<Vec<f32>, String> {
        self.run(text.get_ids(), text.get_type_ids())
    }

    /// Runs one text: a graph may quantise all texts of a run with one scale, or accept only one.
    fn run(&mut self, ids: &[u32], types: &[u32]) -> Result<Vec<f32>, String> {
        let failed = |error: ort::Error| format!("{}: cannot be run: {}", self.name, whole(&error));
        let mut inputs: Vec<(&str, DynTensor)> = Vec::with_capacity(self.inputs.len());
        for &input in &self.inputs {
            let values: Vec<i64> = match input {
                "input_ids" => ids.iter().map(|&id| i64::from(id)).collect(),
                "token_type_ids" => types.iter().map(|&kind| i64::from(kind)).collect(),
                _ => vec![1; ids.len()],
            };
            inputs.push((input, Tensor::from_array(([1, ids.len()], values)).map_err(failed)?.upcast()));
        }
        let outputs = self.session.run(inputs).map_err(failed)?;
        let output = outputs.get(&self.output).ok_or_else(|| format!("{}: has no output", self.name))?;
        let (shape, values) = output.try_extract_tensor::<f32>().map_err(failed)?;
        let dims: Vec<usize> = shape.iter().filter_map(|&size| usize::try_from(size).ok()).collect();
        let vector = match dims[..] {
            [1, width] if width > 0 => values.to_vec(),
            [1, tokens, width] if tokens == ids.len() && width > 0 => {
                self.pooling.clone()?.pool(values, width)
            }
            _ => {
                return Err(format!(
                    "{}: its output `{}` has the shape {shape:?} for a text of {} tokens; it must be [1, width] for the text \
                     or [1, tokens, width] for its tokens; {EXPORT} makes such a model",
                    self.name,
                    self.output,
                    ids.len()
                ));
            }
        };
        Ok(normalized(vector))
    }
}

/// Returns the graph's inputs among [`INPUTS`]. A mask is optional: texts are run one by one, so there is
/// no padding.
fn inputs(graph: &[Outlet]) -> Result<Vec<&'static str>, String> {
    let found = graph.iter().map(|input| {
        let name = INPUTS.into_iter().find(|&name| name == input.name());
        match (name, input.dtype()) {
            (Some(name), ValueType::Tensor { ty: TensorElementType::Int64, .. }) => Ok(name),
            (Some(name), other) => Err(format!(
                "its input `{name}` is {}, but only i64 is supported; {EXPORT} makes such a model",
                element(other)
            )),
            (None, _) => Err(format!(
                "it needs the input `{}`, but only {} are supported; is it a sentence embedding model?",
                input.name(),
                INPUTS.join(", ")
            )),
        }
    });
    let found = found.collect::<Result<Vec<_>, _>>()?;
    if !found.contains(&"input_ids") {
        return Err("it has no input `input_ids`; is it a sentence embedding model?".to_owned());
    }
    Ok(found)
}

/// Selects the output: one of [`OUTPUTS`], or else the only one.
fn output(graph: &[Outlet]) -> Result<String, String> {
    let named = |name: &&str| graph.iter().find(|output| output.name() == *name);
    let only = || graph.first().filter(|_| graph.len() == 1);
    let Some(output) = OUTPUTS.iter().find_map(named).or_else(only) else {
        let names: Vec<&str> = graph.iter().map(Outlet::name).collect();
        return Err(format!(
            "none of its outputs ({}) is {}; is it a sentence embedding model?",
            names.join(", "),
            OUTPUTS.join(", ")
        ));
    };
    match output.dtype() {
        ValueType::Tensor { ty: TensorElementType::Float32, .. } => Ok(output.name().to_owned()),
        other => Err(format!(
            "its output `{}` is {}, but only f32 is supported; {EXPORT} without `--dtype` makes such a model",
            output.name(),
            element(other)
        )),
    }
}

fn element(value: &ValueType) -> String {
    match value {
        ValueType::Tensor { ty, .. } => ty.to_string(),
        _ => "not a tensor".to_owned(),
    }
}

fn session(file: &Path, engine: &Engine) -> Result<Session, ort::Error> {
    let builder = Session::builder(&engine.environment)?;
    let builder = builder.with_optimization_level(GraphOptimizationLevel::Level3)?;
    // One thread: a second one spins against other work, and was slower on a busy machine.
    builder.with_intra_threads(1)?.with_intra_op_spinning(false)?.commit_from_file(file)
}
