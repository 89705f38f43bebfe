//! The binary: arguments in, exit code out.

use std::process::ExitCode;

use nonet_search::BuiltInModel;

fn main() -> ExitCode {
    // Only the program links the model: 24 MB, and an engine that takes minutes to build.
    nonet_search::bring(BuiltInModel {
        name: nonet_model::NAME,
        graph: nonet_model::GRAPH,
        tokenizer: nonet_model::TOKENIZER,
        engine: nonet_model::ENGINE,
    });
    nonet::cli::main()
}
