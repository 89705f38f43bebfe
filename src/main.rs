//! The binary: arguments in, exit code out.

use std::process::ExitCode;

use nonet_search::BuiltInModels;

fn main() -> ExitCode {
    // Only the program links the models, which have 75 MB.
    nonet_search::bring(BuiltInModels { tools: &nonet_model::TOOLS, languages: &nonet_model::LANGUAGES });
    nonet::cli::main()
}
