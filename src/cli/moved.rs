//! Commands of earlier versions: each says what to write instead, and runs that if it can.

use std::{ffi::OsString, process::Command};

use anyhow::Context;

use super::{FAILED, show};

/// Says that `nonet lock` has moved.
pub(super) fn lock(check: bool) {
    let instead = if check { "nonet trust --lock --check" } else { "nonet trust --lock" };
    show::complain(format_args!("`nonet lock` is deprecated: write `{instead}`"));
}

/// Runs `nonet-lab eval` with these arguments if it was built beside this program. Returns its exit code.
pub(super) fn eval(arguments: &[OsString]) -> anyhow::Result<u8> {
    let name = format!("nonet-lab{}", std::env::consts::EXE_SUFFIX);
    let lab = std::env::current_exe()?.with_file_name(name);
    let status = Command::new(lab).arg("eval").args(arguments).status().context(
        "`nonet eval` is a program of its own now: run `cargo run --release -p nonet-lab -- eval ...` in Nonet's \
         repository",
    )?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED))
}
