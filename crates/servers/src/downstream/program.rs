//! Runs a configured program once with an input, with the environment, guard and log of a child-process
//! server.

use std::{io, process::ExitStatus, sync::Arc};

use nonet_base::text::clip;
use nonet_config::Globs;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    ConnectionContext,
    child::{Child, Program, missing_launcher},
};

/// How much of its output is logged, in bytes.
const LOGGED: usize = 500;

/// Runs a program to its end with this input. Dropping the future kills the program and its descendants.
/// `label` names it in the log; `inherit_env` are the variables that it gets besides the usual ones.
///
/// # Errors
///
/// Returns why it did not start, or how it failed.
pub async fn run_program(
    context: &Arc<ConnectionContext>,
    label: &str,
    command: &[String],
    inherit_env: &Globs,
    input: &[u8],
) -> Result<(), String> {
    let Some((command, args)) = command.split_first() else { return Err("there is no program".into()) };
    let program = Program {
        server: &label.into(),
        secrets: &args.iter().filter(|arg| arg.len() >= MASKED).cloned().collect(),
        command,
        args,
        env: Vec::new(),
        inherit_env,
        cwd: None,
        sandbox: None,
        lasts: true,
        history: &Arc::default(),
    };
    let (mut child, mut stdout, mut stdin) =
        Child::spawn(&program, context).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => missing_launcher(command),
            _ => format!("`{command}` could not be started: {error}"),
        })?;
    let feed = async {
        // A program need not read its input.
        let _ = stdin.write_all(input).await;
        drop(stdin);
        let mut begins = Vec::new();
        let _ = (&mut stdout).take(LOGGED as u64).read_to_end(&mut begins).await;
        if !begins.is_empty() {
            tracing::debug!(
                program = label,
                "stdout: {}",
                clip(String::from_utf8_lossy(&begins).trim(), LOGGED)
            );
        }
        let _ = tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await;
        std::future::pending::<io::Result<ExitStatus>>().await
    };
    let status = tokio::select! {
        status = child.wait() => status,
        never = feed => never,
    };
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => {
            let status = child.exit_status().await.unwrap_or_default();
            Err(child.with_stderr(&format!("`{command}` ended with {status}")))
        }
        Err(error) => Err(format!("`{command}`: {error}")),
    }
}

/// Arguments of at least this length are masked in the program's output: they may be secrets.
const MASKED: usize = 8;
