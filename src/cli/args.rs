//! The arguments of the command line, and the texts of `--help`.

use std::path::PathBuf;

use clap::{
    Args, CommandFactory, Parser, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
    error::ErrorKind,
};

use super::{login, secret, setup};
use crate::{
    downstream::process_guard,
    search::Rule,
    select::SELECT_COMMAND,
    shared::{SHARED_COMMAND, START_COMMAND},
};

const EXAMPLES: &str = "\
Examples:
  nonet                                     serve MCP on stdin and stdout (what clients start)
  nonet serve --http 127.0.0.1:8931         serve MCP over HTTP at /mcp
  nonet check                               look the configuration and every server over
  nonet setup                               take over the servers of your clients, step by step
  nonet import && nonet install claude-desktop --replace
                                            the same for one client, by hand
  nonet status                              how the gateway that runs is doing
  nonet search \"what time is it in Tokyo\"   find tools
  nonet call time.get_current_time '{\"timezone\": \"Asia/Tokyo\"}'

Configuration: ./servers.toml, else ~/.config/nonet/servers.toml; setup, import and install take the latter.
Exit codes: 0 fine, 1 a tool or server failed, 2 the command line or configuration cannot be used,
130 Ctrl-C.";

/// One MCP server in front of all of your MCP servers.
#[derive(Debug, Parser)]
#[command(name = "nonet", version, about, after_help = EXAMPLES, max_term_width = 100)]
pub(super) struct Cli {
    /// The configuration to use
    #[arg(long, global = true, value_name = "FILE", env = "NONET_CONFIG")]
    pub config: Option<PathBuf>,
    /// The profile of [profiles.NAME] that the client is under
    #[arg(long, global = true, value_name = "NAME")]
    pub profile: Option<String>,
    /// What is logged to stderr: error, warn, info, debug, or a filter such as nonet=debug
    #[arg(long, global = true, value_name = "FILTER", env = "NONET_LOG")]
    pub log: Option<String>,
    /// Log to this file instead of stderr; a new one each day, of which seven are kept
    #[arg(long, global = true, value_name = "FILE", env = "NONET_LOG_FILE")]
    pub log_file: Option<PathBuf>,
    /// Log one JSON object a line
    #[arg(long, global = true)]
    pub log_json: bool,
    /// The same as `serve --http ADDR`
    #[arg(long, value_name = "ADDR")]
    pub http: Option<String>,
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Who is asked, and how failures are told.
#[derive(Debug, Args)]
pub(super) struct Where {
    /// Ask the gateway at this address, such as http://127.0.0.1:8931/mcp; NONET_TOKEN is sent as a bearer token
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// A header for each request, as `Name: value`; ${VAR} is expanded (may be repeated)
    #[arg(long, value_name = "HEADER", requires = "url")]
    pub header: Vec<String>,
    /// Show all that servers said as they failed
    #[arg(long, short)]
    pub verbose: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Serve MCP on stdin and stdout, or over HTTP (the default command)
    Serve {
        /// Serve streamable HTTP here, at /mcp and /mcp/PROFILE, instead of stdio
        #[arg(long, value_name = "ADDR")]
        http: Option<String>,
    },
    /// Join a client on stdin and stdout to a gateway that others use too
    Connect {
        /// The gateway's address, such as http://127.0.0.1:8931/mcp; the shared gateway of this machine if left out
        url: Option<String>,
        /// A header for each request, as `Name: value`; ${VAR} is expanded (may be repeated). NONET_TOKEN is sent as a
        /// bearer token
        #[arg(long, value_name = "HEADER", requires = "url")]
        header: Vec<String>,
    },
    /// Find tools by what they should do
    Search {
        /// What the tool should do
        query: String,
        /// How many to show, 1 to 50
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=50))]
        limit: u8,
        /// Only this server or group
        #[arg(long)]
        category: Option<String>,
        /// Show why each result stands where it stands: what each signal adds, and the matched words
        #[arg(long)]
        explain: bool,
        /// Print the answer of search_tools as JSON
        #[arg(long)]
        json: bool,
        /// Start every server and ask it, instead of a gateway that runs or the last lists
        #[arg(long, conflicts_with = "url")]
        refresh: bool,
        #[command(flatten)]
        way: Where,
    },
    /// List every tool of every server
    Tools {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Start every server and ask it, instead of a gateway that runs or the last lists
        #[arg(long, conflicts_with = "url")]
        refresh: bool,
        #[command(flatten)]
        way: Where,
    },
    /// Show everything about one tool, as JSON
    Get {
        /// The tool, such as files.read_file
        name: String,
        /// Print a fault as JSON too
        #[arg(long)]
        json: bool,
        /// Start every server and ask it, instead of a gateway that runs or the last lists
        #[arg(long, conflicts_with = "url")]
        refresh: bool,
        #[command(flatten)]
        way: Where,
    },
    /// Call a tool and print its result
    Call {
        /// The tool, such as files.read_file
        name: String,
        /// Its params
        #[arg(default_value = "{}", value_name = "JSON")]
        params: String,
        /// A jq filter on the result
        #[arg(long, value_name = "FILTER")]
        select: Option<String>,
        /// Print the whole result as JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        way: Where,
    },
    /// Show the gateway that runs: its servers, their tools and last errors, its jobs
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Go on, and show it again whenever something changes
        #[arg(long, short)]
        follow: bool,
        #[command(flatten)]
        way: Where,
    },
    /// Show the log of the gateway that clients of this machine share, or of one of its servers
    Logs {
        /// Only what is about this server: its state, its calls, what it prints on stderr
        server: Option<String>,
        /// How many entries to show, from the end; some have several lines
        #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
        lines: usize,
        /// Go on, and show what is written from now on
        #[arg(long, short)]
        follow: bool,
        /// Print one JSON object an entry
        #[arg(long)]
        json: bool,
    },
    /// Look over the configuration, then start every server and say how it went
    Check {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Show all that servers said as they failed
        #[arg(long, short)]
        verbose: bool,
    },
    /// Measure search quality on a labelled set of tools and queries
    Eval {
        /// Lines of {"server", "name", "description", "input_schema"}
        tools: PathBuf,
        /// Lines of {"query", "relevant": ["server.name"]}
        queries: PathBuf,
        /// Write what each query ranked, one JSON object a line
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Switch a rule of the ranking off, to see what it is worth (may be repeated)
        #[arg(long, value_name = "RULE", value_parser = rule())]
        without: Vec<Rule>,
        /// Also tell how often high, medium and low confidence were right
        #[arg(long)]
        confidence: bool,
        /// Also tell what earlier outcomes change: for repeated requests, and for others
        #[arg(long)]
        replay: bool,
    },
    /// Put Nonet in front of your clients, step by step: import, secrets, check, install
    Setup(setup::Wishes),
    /// Take MCP servers over from a client's configuration into servers.toml
    Import {
        /// A client (claude-desktop, claude-code, cursor, vscode, zed, windsurf, codex, gemini-cli) or a file; all
        /// clients of this machine if left out
        source: Option<String>,
        /// Replace servers of the same name that are reached otherwise
        #[arg(long)]
        replace: bool,
        /// Put secrets into the keyring of this system, or do nothing; without it they go into the keyring where there
        /// is one, else into secrets.env beside servers.toml
        #[arg(long)]
        keyring: bool,
        /// Keep no secrets: they become variables to set
        #[arg(long, conflicts_with = "keyring")]
        variables: bool,
        /// Show what would be written, and write nothing
        #[arg(long)]
        dry_run: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Put Nonet into a client's configuration, with a backup
    Install {
        /// The client: claude-desktop, claude-code, cursor, vscode, zed, windsurf, codex, gemini-cli
        client: String,
        /// Into the file of this project instead of the user's
        #[arg(long)]
        project: bool,
        /// Take out the servers that servers.toml has too, so that nothing is there twice
        #[arg(long)]
        replace: bool,
        /// Show what would be written, and write nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Take Nonet out of a client's configuration, and put back what `install` replaced
    Uninstall {
        /// The client
        client: String,
        /// From the file of this project instead of the user's
        #[arg(long)]
        project: bool,
        /// Show what would be written, and write nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Sign in to a server that asks for it (OAuth), in a browser
    Login(login::LoginArgs),
    /// Forget the sign-in to a server
    Logout {
        /// The server, by its name in servers.toml
        server: String,
    },
    /// Keep secrets for servers.toml, in the keyring of this system or in a file
    Secret {
        #[command(subcommand)]
        action: secret::SecretAction,
    },
    /// Forget what searches have led to, kept results and ended tasks, on this machine
    Forget,
    /// Print the JSON Schema of servers.toml
    Schema,
    /// Print the man page, or that of a command
    Man {
        /// The command, such as `call`
        command: Vec<String>,
        /// Write the pages of all commands into this folder, such as ~/.local/share/man/man1
        #[arg(long, value_name = "DIR", conflicts_with = "command")]
        dir: Option<PathBuf>,
    },
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Ends child processes when the gateway is gone; started by the gateway itself
    #[command(name = process_guard::GUARD_COMMAND, hide = true)]
    Guard,
    /// Is the gateway that clients of this machine share; started by the first of them
    #[command(name = SHARED_COMMAND, hide = true)]
    Shared,
    /// Starts it and leaves
    #[command(name = START_COMMAND, hide = true)]
    StartShared,
    /// Runs one jq filter on stdin; started by the gateway itself
    #[command(name = SELECT_COMMAND, hide = true)]
    Select {
        /// The filter
        filter: String,
    },
}

/// The command line of this process. One that cannot be used ends it with a message and exit code 2.
pub(super) fn read() -> Cli {
    let cli = Cli::parse();
    if let Some(option) = cli.idle() {
        let message = format!("{option} does nothing with this command");
        Cli::command().error(ErrorKind::ArgumentConflict, message).exit();
    }
    cli
}

impl Cli {
    /// Whether what the command prints is read by a program.
    pub(super) fn wants_json(&self) -> bool {
        matches!(
            self.command,
            Some(
                Command::Search { json: true, .. }
                    | Command::Tools { json: true, .. }
                    | Command::Get { json: true, .. }
                    | Command::Call { json: true, .. }
                    | Command::Status { json: true, .. }
                    | Command::Logs { json: true, .. }
                    | Command::Check { json: true, .. }
            )
        )
    }

    /// An option that the command has no use for. Nobody writes one for nothing.
    fn idle(&self) -> Option<&'static str> {
        let serves = matches!(self.command, None | Some(Command::Serve { .. }));
        let without_profile = matches!(
            self.command,
            Some(
                Command::Import { .. }
                    | Command::Uninstall { .. }
                    | Command::Login(_)
                    | Command::Logout { .. }
                    | Command::Secret { .. }
                    | Command::Forget
                    | Command::Schema
                    | Command::Eval { .. }
                    | Command::Man { .. }
                    | Command::Logs { .. }
                    | Command::Completions { .. }
            )
        );
        if self.http.is_some() && !serves {
            Some("--http")
        } else if self.profile.is_some() && without_profile {
            Some("--profile")
        } else {
            None
        }
    }
}

/// Reads a rule by its name; the help lists them.
fn rule() -> impl TypedValueParser<Value = Rule> {
    PossibleValuesParser::new(Rule::ALL.map(Rule::name)).try_map(|name| name.parse::<Rule>())
}
