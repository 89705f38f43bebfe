//! The scripted MCP server as a program, for tests in which a process matters: start, noise, crash,
//! hang, restart. Speaks on stdin and stdout, or over HTTP with `--http`.

#![expect(unreachable_pub, reason = "a program of tests has no face")]
#![allow(clippy::unwrap_used)] // A test may panic.

#[path = "mod.rs"]
mod fake;

use std::path::PathBuf;

use clap::Parser;

#[derive(Parser)]
struct Arguments {
    /// The script, a JSON object
    #[arg(long, default_value = "{}")]
    script: String,
    /// A file that holds the script
    #[arg(long, conflicts_with = "script")]
    script_file: Option<PathBuf>,
    /// Serve HTTP on this address; port 0 takes a free one
    #[arg(long)]
    http: Option<String>,
    /// Where to write the port
    #[arg(long, requires = "http")]
    port_file: Option<PathBuf>,
}

#[tokio::main]
async fn main() {
    let code = match run(Arguments::parse()).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("fake_server: {error}");
            2
        }
    };
    // Not by returning: an endless read of stdin would keep the process alive.
    std::process::exit(code);
}

async fn run(arguments: Arguments) -> Result<i32, Box<dyn std::error::Error>> {
    let text = match &arguments.script_file {
        Some(file) => std::fs::read_to_string(file)?,
        None => arguments.script,
    };
    let script: fake::Script = serde_json::from_str(&text)?;
    if script.ignore_sigterm {
        // A handler without effect replaces the default, which ends the process.
        let _ = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    }
    let Some(address) = arguments.http else {
        return Ok(fake::serve(script, tokio::io::stdin(), tokio::io::stdout()).await);
    };
    let listener = tokio::net::TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    if let Some(file) = &arguments.port_file {
        // Written elsewhere and renamed, so that a reader never finds a partial file.
        let beside = file.with_extension("new");
        std::fs::write(&beside, address.port().to_string())?;
        std::fs::rename(&beside, file)?;
    }
    eprintln!("listening on {address}");
    Ok(fake::serve_http(script, listener).await)
}
