//! `nonet-lab`: measures Nonet's search on labelled requests. Runs the gateway's own code; the released
//! program does not contain it.

mod eval;

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, Parser, Subcommand};
use nonet_search::{BuiltInModels, RankingWeights, Settings};
use serde_json::Value;
use tracing_subscriber::EnvFilter;

/// Measures Nonet's search
#[derive(Debug, Parser)]
#[command(version)]
struct Lab {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure search quality on a labelled set of tools and queries
    Eval(EvalArgs),
}

#[derive(Debug, Args)]
struct EvalArgs {
    /// Lines of {"server", "name", "description", "input_schema"}
    tools: PathBuf,
    /// Lines of {"query", "relevant": ["server.name"]}
    queries: PathBuf,
    /// Write the ranking of each query to this file, one JSON object per line
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Rank with another weight; 0 shows what a signal is worth (repeatable)
    #[arg(long, value_name = "NAME=VALUE")]
    weight: Vec<String>,
    /// Rank by words only
    #[arg(long)]
    without_meaning: bool,
    /// Also report how often high, medium and no confidence were right
    #[arg(long)]
    confidence: bool,
    /// Also report the effect of earlier outcomes, on repeated requests and on others
    #[arg(long)]
    replay: bool,
    /// Rank each query's right tools among others drawn at random, so many tools in all
    #[arg(long, value_name = "TOOLS")]
    pool: Option<usize>,
    /// The folder of a model to use instead of the built-in ones
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// The ONNX Runtime library that runs such a model (default: searched for)
    #[arg(long, value_name = "FILE")]
    onnxruntime: Option<PathBuf>,
    /// Keep the tools' vectors in this folder (default: the user's cache)
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("NONET_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
    nonet_search::bring(BuiltInModels { tools: &nonet_model::TOOLS, languages: &nonet_model::LANGUAGES });
    let Command::Eval(args) = Lab::parse().command;
    match evaluate(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures and prints the report.
async fn evaluate(args: EvalArgs) -> Result<(), String> {
    let settings = Settings {
        weights: Box::leak(Box::new(weights(&args.weight)?)),
        model: args.model,
        onnxruntime: args.onnxruntime,
        cache: args.cache,
        ..Settings::default()
    };
    let measure = eval::Options {
        confidence: args.confidence,
        replay: args.replay,
        pool: args.pool,
        without_meaning: args.without_meaning,
    };
    let report = eval::run(&args.tools, &args.queries, args.out.as_deref(), &settings, measure).await;
    let report = report.map_err(|error| error.to_string())?;
    let text = serde_json::to_string(&report).map_err(|error| error.to_string())?;
    writeln!(io::stdout(), "{text}").map_err(|error| error.to_string())
}

/// Returns the gateway's weights with these changes, each `name=number`.
fn weights(changes: &[String]) -> Result<RankingWeights, String> {
    let mut all = serde_json::to_value(RankingWeights::TOOLS).map_err(|error| error.to_string())?;
    for change in changes {
        let number =
            change.split_once('=').and_then(|(name, value)| Some((name, value.parse::<f32>().ok()?)));
        let (name, value) = number.ok_or_else(|| format!("--weight {change}: write NAME=NUMBER"))?;
        let names = || all.as_object().into_iter().flatten().filter(|(_, value)| value.is_number());
        if names().all(|(known, _)| known != name) {
            let names: Vec<&str> = names().map(|(name, _)| name.as_str()).collect();
            return Err(format!("there is no weight `{name}`; there are: {}", names.join(", ")));
        }
        all[name] = Value::from(value);
    }
    serde_json::from_value(all).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_changed_by_name() {
        let change = |change: &str| weights(&[change.to_owned()]);
        assert_eq!(change("synonyms=0"), Ok(RankingWeights { synonyms: 0.0, ..RankingWeights::TOOLS }));
        assert_eq!(weights(&[]), Ok(RankingWeights::TOOLS));
        assert!(change("synonym=0").is_err_and(|error| error.contains("there are: first_sentence, ")));
        assert!(change("synonyms").is_err_and(|error| error.contains("NAME=NUMBER")));
    }
}
