//! The binary: arguments in, exit code out.

use std::process::ExitCode;

fn main() -> ExitCode {
    nonet::cli::main()
}
