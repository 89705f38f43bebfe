//! The binary: arguments in, exit code out.

use std::process::ExitCode;

use nonet_search::BuiltInModel;

fn main() -> ExitCode {
    // Only the program links the model, which has 24 MB.
    nonet_search::bring(BuiltInModel {
        name: nonet_model::NAME,
        weights: nonet_model::WEIGHTS,
        tokenizer: nonet_model::TOKENIZER,
    });
    nonet::cli::main()
}
