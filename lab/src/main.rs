//! `nonet-lab`: measures Nonet's search on labelled requests. Runs the gateway's own code; the released program does not contain it.

mod eval;

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::{
    Args, Parser, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use nonet_search::{BuiltInModels, Rule, Settings};
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
    /// Rank without this rule, to measure its worth (repeatable)
    #[arg(long, value_name = "RULE", value_parser = rule())]
    without: Vec<Rule>,
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
    let defaults = Settings::default();
    let settings = Settings {
        rules: args.without.iter().fold(defaults.rules, |rules, rule| rules.without(*rule)),
        model: args.model,
        onnxruntime: args.onnxruntime,
        cache: args.cache,
        ..defaults
    };
    let measure = eval::Options { confidence: args.confidence, replay: args.replay, pool: args.pool };
    let report = eval::run(&args.tools, &args.queries, args.out.as_deref(), &settings, measure).await;
    let printed = report.map_err(|error| error.to_string()).and_then(|report| {
        let text = serde_json::to_string(&report).map_err(|error| error.to_string())?;
        writeln!(io::stdout(), "{text}").map_err(|error| error.to_string())
    });
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Reads a rule by its name; the help lists them.
fn rule() -> impl TypedValueParser<Value = Rule> {
    PossibleValuesParser::new(Rule::ALL.map(Rule::name)).try_map(|name| name.parse::<Rule>())
}
