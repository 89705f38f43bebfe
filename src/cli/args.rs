//! The arguments of the command line, and the texts of `--help`.

mod groups;
mod read;

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Parser, Subcommand};
use nonet_config::select::SELECT_COMMAND;
use nonet_sandbox::{INIT_COMMAND, SANDBOX_COMMAND};
use nonet_script::SCRIPT_COMMAND;
use nonet_servers::downstream::process_guard;
use nonet_store::shared::{BY_TRUST, SHARED_COMMAND, START_COMMAND};

pub(super) use self::{groups::command, read::read};
use super::{add, approve, audit, forget, login, registry, secret, setup, stop, transfer, trust, ui};

const EXAMPLES: &str = "\
Examples:
  nonet                                     serve MCP on stdin and stdout (clients run this)
  nonet serve --http 127.0.0.1:8931         serve MCP over HTTP at /mcp
  nonet check                               check the configuration and every server
  nonet add memory -- npx -y @modelcontextprotocol/server-memory
                                            add a server
  nonet setup                               move your clients' servers behind Nonet, step by step
  nonet import && nonet install claude-desktop --replace
                                            the same for one client
  nonet status                              show the running gateway
  nonet ui                                  open its page in the browser
  nonet search \"what time is it in Tokyo\"   find tools
  nonet call time.get_current_time '{\"timezone\": \"Asia/Tokyo\"}'

Configuration: --config FILE, else a trusted ./servers.toml, else ~/.config/nonet/servers.toml.
setup, import and install use ./servers.toml only with --config.
Exit codes: 0 success, 1 a tool or server failed, 2 unusable command line or configuration, 130 Ctrl-C.";

/// The heading of the options that every command has.
const GLOBAL: &str = "Global options";

/// One MCP server in front of all of your MCP servers.
#[derive(Debug, Parser)]
#[command(name = "nonet", version, about, after_help = EXAMPLES, max_term_width = 100)]
pub(super) struct Cli {
    /// Configuration file
    #[arg(long, global = true, value_name = "FILE", env = "NONET_CONFIG", help_heading = GLOBAL)]
    pub config: Option<PathBuf>,
    /// Profile of the client, one of [profiles.NAME]
    #[arg(long, global = true, value_name = "NAME", help_heading = GLOBAL)]
    pub profile: Option<String>,
    /// Log level (error, warn, info, debug), or a filter such as nonet=debug
    #[arg(long, global = true, value_name = "FILTER", env = "NONET_LOG", help_heading = GLOBAL)]
    pub log: Option<String>,
    /// Log to this file instead of stderr; one file a day, seven kept
    #[arg(long, global = true, value_name = "FILE", env = "NONET_LOG_FILE", help_heading = GLOBAL)]
    pub log_file: Option<PathBuf>,
    /// Log one JSON object per line
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub log_json: bool,
    /// Same as `serve --http ADDR`
    #[arg(long, value_name = "ADDR")]
    pub http: Option<String>,
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Which gateway answers, and how much of a failure is shown.
#[derive(Clone, Debug, Args)]
pub(super) struct GatewayArgs {
    /// Ask the gateway at this address, such as http://127.0.0.1:8931/mcp, with NONET_TOKEN as the bearer
    /// token
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Header for each request, as `Name: value`; ${VAR} is expanded (repeatable)
    #[arg(long, value_name = "HEADER", requires = "url")]
    pub header: Vec<String>,
    /// Show the full stderr of servers that failed
    #[arg(long, short)]
    pub verbose: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Serve MCP on stdin and stdout, or over HTTP (default command)
    Serve {
        /// Serve streamable HTTP at this address, under /mcp and /mcp/PROFILE, instead of stdio
        #[arg(long, value_name = "ADDR")]
        http: Option<String>,
    },
    /// Connect a client on stdin and stdout to a shared gateway
    Connect {
        /// Gateway address, such as http://127.0.0.1:8931/mcp (default: this machine's shared gateway)
        url: Option<String>,
        /// Header for each request, as `Name: value`; ${VAR} is expanded (repeatable). NONET_TOKEN is sent as
        /// the bearer token
        #[arg(long, value_name = "HEADER", requires = "url")]
        header: Vec<String>,
    },
    /// Find tools by what they should do
    Search {
        /// What the tool should do
        query: String,
        /// Number of results, 1 to 50
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=50))]
        limit: u8,
        /// Search only this server or group
        #[arg(long)]
        category: Option<String>,
        /// Explain each rank: the share of each signal and the matched words
        #[arg(long)]
        explain: bool,
        /// Print the search_tools answer as JSON
        #[arg(long)]
        json: bool,
        /// Start and ask every server, instead of using the running gateway or the last lists
        #[arg(long, conflicts_with = "url")]
        refresh: bool,
        #[command(flatten)]
        way: GatewayArgs,
    },
    /// List every tool of every server
    Tools {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Start and ask every server, instead of using the running gateway or the last lists
        #[arg(long, conflicts_with = "url")]
        refresh: bool,
        #[command(flatten)]
        way: GatewayArgs,
    },
    /// Show one tool in full, as JSON
    Get {
        /// Tool, such as files.read_file
        name: String,
        /// Print faults as JSON too
        #[arg(long)]
        json: bool,
        /// Start and ask every server, instead of using the running gateway or the last lists
        #[arg(long, conflicts_with = "url")]
        refresh: bool,
        #[command(flatten)]
        way: GatewayArgs,
    },
    /// Call a tool and print its result
    Call {
        /// Tool, such as files.read_file
        name: String,
        /// Params of the tool: one JSON object, or `KEY=VALUE` words, whose values are JSON where the tool
        /// takes JSON
        #[arg(value_name = "PARAMS")]
        params: Vec<String>,
        /// jq filter for the result
        #[arg(long, value_name = "FILTER")]
        select: Option<String>,
        /// Print the whole result as JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        way: GatewayArgs,
    },
    /// Run a script: JavaScript that calls tools; prints what it returns
    Run(RunArgs),
    /// Print TypeScript declarations of the tools, for an editor that completes scripts
    Types {
        /// Tools, servers or categories; all tools without them
        names: Vec<String>,
        #[command(flatten)]
        way: GatewayArgs,
    },
    /// Show the running gateways: servers, tools, last errors, jobs
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Keep running, and print the status after each change
        #[arg(long, short)]
        follow: bool,
        #[command(flatten)]
        way: GatewayArgs,
    },
    /// End this machine's shared gateway; the next client starts it again
    Stop(stop::StopArgs),
    /// End this machine's shared gateway and start it again, such as after an update
    Restart(stop::StopArgs),
    /// Open the page of this machine's shared gateway in the browser: calls, servers, clients, work
    Ui(ui::UiArgs),
    /// Show the log of this machine's shared gateway, or the part about one server
    Logs {
        /// Show only this server: its state, calls and stderr
        server: Option<String>,
        /// Number of entries to show, from the end; an entry may have several lines
        #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
        lines: usize,
        /// Keep running, and show new entries
        #[arg(long, short)]
        follow: bool,
        /// Print one JSON object per entry
        #[arg(long)]
        json: bool,
    },
    /// Check the configuration, then start every server and report its state
    Check {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Show the full stderr of servers that failed, and every operation that did not become a tool
        #[arg(long, short)]
        verbose: bool,
        /// Say instead what a person would get who signs in: a JSON file with the `claims` and `scopes` of a
        /// token, and perhaps a `tool` and `params` that policies with `when` are asked about
        #[arg(long = "as", value_name = "FILE", conflicts_with_all = ["fix", "verbose"])]
        person: Option<PathBuf>,
        /// Offer to mend what can be mended, like `nonet doctor`
        #[arg(long, conflicts_with = "json")]
        fix: bool,
        /// With --fix: agree to everything that needs no answer
        #[arg(long, short, requires = "fix")]
        yes: bool,
    },
    /// Check, and offer to mend what can be mended, one thing at a time
    ///
    /// A missing launcher, an unset variable, a sign-in, a client's entry that leads nowhere, changed
    /// definitions. Without a terminal it lists what it would offer.
    Doctor {
        /// Install launchers and mend clients' entries without asking. Values, sign-ins and trust still need
        /// you
        #[arg(long, short)]
        yes: bool,
        /// Show the full stderr of servers that failed
        #[arg(long, short)]
        verbose: bool,
    },
    /// Have the running gateways read servers.toml now, and show what changed or why it was refused
    Reload {
        /// Take the file although it loses tokens, policies, profiles or most servers
        #[arg(long)]
        accept: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Update servers that came from a registry
    Update(registry::UpdateArgs),
    /// Moved to `nonet-lab eval`
    #[command(hide = true, disable_help_flag = true)]
    Eval {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Set up Nonet for your clients, step by step: import, secrets, check, install
    Setup(setup::SetupArgs),
    /// Write a whole set-up into a file, sealed with a passphrase: servers.toml, secrets, trusted definitions,
    /// memory, schedules
    Export(transfer::ExportArgs),
    /// Import MCP servers from a client's configuration into servers.toml, or a set-up that `export` wrote
    Import {
        /// Client (claude-desktop, claude-code, cursor, vscode, zed, windsurf, codex, gemini-cli, cline,
        /// roo-code, continue, goose, lm-studio, opencode, copilot-cli, amazon-q, warp, kiro) or file
        /// (default: all clients on this machine)
        source: Option<String>,
        /// Replace servers that have the same name but another command or address
        #[arg(long)]
        replace: bool,
        /// Store secrets in the system's keyring, or fail without one (default: the keyring if there is one,
        /// else secrets.env beside servers.toml)
        #[arg(long)]
        keyring: bool,
        /// Store no secrets; write them as variables that you set
        #[arg(long, conflicts_with = "keyring")]
        variables: bool,
        /// Show the changes without writing them
        #[arg(long)]
        dry_run: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Add Nonet to a client's configuration, with a backup
    Install {
        /// Client: claude-desktop, claude-code, cursor, vscode, zed, windsurf, codex, gemini-cli, cline,
        /// roo-code, continue, goose, lm-studio, copilot-cli, amazon-q, warp, kiro; for opencode the entry is
        /// printed
        client: String,
        /// Use the project's file instead of the user's
        #[arg(long)]
        project: bool,
        /// Remove the servers that are also in servers.toml
        #[arg(long)]
        replace: bool,
        /// Let the client call Nonet's tools without asking (codex, gemini-cli): only the rules in
        /// servers.toml ask then
        #[arg(long)]
        always_allow: bool,
        /// Show the changes without writing them
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove Nonet from a client's configuration, and restore the servers that `install` removed
    Uninstall {
        /// Client
        client: String,
        /// Use the project's file instead of the user's
        #[arg(long)]
        project: bool,
        /// Show the changes without writing them
        #[arg(long)]
        dry_run: bool,
    },
    /// Find servers in the registry
    Find(registry::FindArgs),
    /// Add a server to servers.toml, once it has started
    Add(add::AddArgs),
    /// Remove a server from servers.toml
    #[command(visible_alias = "rm")]
    Remove {
        /// Name of the server in servers.toml
        server: String,
        /// Show the changes without writing them
        #[arg(long)]
        dry_run: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Enable a server of servers.toml
    Enable {
        /// Name of the server in servers.toml
        server: String,
        /// Show the changes without writing them
        #[arg(long)]
        dry_run: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Disable a server of servers.toml: its entry stays, and the server is not started
    Disable {
        /// Name of the server in servers.toml
        server: String,
        /// Show the changes without writing them
        #[arg(long)]
        dry_run: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what servers changed, and trust it; or trust a project's servers.toml
    Trust(trust::TrustArgs),
    /// Moved to `nonet trust --lock`
    #[command(hide = true)]
    Lock {
        #[arg(long)]
        check: bool,
        #[arg(long)]
        json: bool,
    },
    /// Show what waits for your approval, and approve or deny it
    Approve(approve::ApproveArgs),
    /// Sign in to a server in a browser (OAuth)
    Login(login::LoginArgs),
    /// Sign out of a server: delete its tokens
    Logout {
        /// Name of the server in servers.toml
        server: String,
    },
    /// Manage secrets for servers.toml, in the system's keyring or in a file
    Secret {
        #[command(subcommand)]
        action: secret::SecretAction,
    },
    /// Check or search the audit log, which `[audit]` in servers.toml switches on
    Audit {
        #[command(subcommand)]
        action: audit::AuditAction,
    },
    /// Delete what is kept on this machine, all or a part of it. What is trusted of servers stays
    Forget(forget::ForgetArgs),
    /// Print the JSON Schema of servers.toml
    Schema {
        /// Print the reference of every key as Markdown instead
        #[arg(long)]
        markdown: bool,
    },
    /// Print the man page of nonet or of a command
    Man {
        /// Command, such as `call`
        command: Vec<String>,
        /// Write all man pages into this folder, such as ~/.local/share/man/man1
        #[arg(long, value_name = "DIR", conflicts_with = "command")]
        dir: Option<PathBuf>,
    },
    /// Print shell completions
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
    /// Ends child processes after the gateway is gone; started by the gateway
    #[command(name = process_guard::GUARD_COMMAND, hide = true)]
    Guard,
    /// Run as this machine's shared gateway; started by the first client
    #[command(name = SHARED_COMMAND, hide = true)]
    Shared {
        /// Use the file only as long as the user trusts its text
        #[arg(long = BY_TRUST)]
        by_trust: bool,
    },
    /// Start the shared gateway and exit
    #[command(name = START_COMMAND, hide = true)]
    StartShared {
        /// Use the file only as long as the user trusts its text
        #[arg(long = BY_TRUST)]
        by_trust: bool,
    },
    /// Start a program in a sandbox; started by the gateway
    #[command(name = SANDBOX_COMMAND, hide = true)]
    Sandbox {
        /// Program and arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Be the first process of a sandbox
    #[command(name = INIT_COMMAND, hide = true)]
    SandboxInit {
        /// Program and arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Run one jq filter on stdin; started by the gateway
    #[command(name = SELECT_COMMAND, hide = true)]
    Select {
        /// Filter
        filter: String,
    },
    /// Run one script on stdin; started by the gateway
    #[command(name = SCRIPT_COMMAND, hide = true)]
    ScriptWorker,
}

/// The arguments of `nonet run`.
#[derive(Debug, clap::Args)]
pub(super) struct RunArgs {
    /// Script, such as report.js; `-` reads it from stdin
    pub file: PathBuf,
    /// What `input` is in the script, as JSON
    #[arg(long, value_name = "JSON")]
    pub input: Option<String>,
    /// How long it may take, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub timeout: Option<u64>,
    /// Print the whole answer as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub way: GatewayArgs,
}

impl Cli {
    /// Whether the command prints for a program to read.
    pub(super) fn wants_json(&self) -> bool {
        matches!(
            self.command,
            Some(
                Command::Search { json: true, .. }
                    | Command::Tools { json: true, .. }
                    | Command::Get { json: true, .. }
                    | Command::Call { json: true, .. }
                    | Command::Run(RunArgs { json: true, .. })
                    | Command::Status { json: true, .. }
                    | Command::Logs { json: true, .. }
                    | Command::Check { json: true, .. }
                    | Command::Add(add::AddArgs { json: true, .. })
                    | Command::Find(registry::FindArgs { json: true, .. })
                    | Command::Update(registry::UpdateArgs { json: true, .. })
                    | Command::Export(transfer::ExportArgs { json: true, .. })
                    | Command::Remove { json: true, .. }
                    | Command::Enable { json: true, .. }
                    | Command::Disable { json: true, .. }
                    | Command::Trust(trust::TrustArgs { json: true, .. })
                    | Command::Lock { json: true, .. }
                    | Command::Approve(approve::ApproveArgs { json: true, .. })
                    | Command::Secret { action: secret::SecretAction::List { json: true } }
                    | Command::Audit {
                        action: audit::AuditAction::Verify { json: true, .. }
                            | audit::AuditAction::Query { json: true, .. }
                    }
            )
        )
    }

    /// Returns an option that has no effect on the command: a mistake of the user.
    fn idle(&self) -> Option<&'static str> {
        let serves = matches!(self.command, None | Some(Command::Serve { .. }));
        let without_profile = matches!(
            self.command,
            Some(
                Command::Import { .. }
                    | Command::Uninstall { .. }
                    | Command::Add(_)
                    | Command::Remove { .. }
                    | Command::Enable { .. }
                    | Command::Disable { .. }
                    | Command::Login(_)
                    | Command::Logout { .. }
                    | Command::Secret { .. }
                    | Command::Forget(_)
                    | Command::Trust(_)
                    | Command::Approve(_)
                    | Command::Lock { .. }
                    | Command::Audit { .. }
                    | Command::Schema { .. }
                    | Command::Eval { .. }
                    | Command::Man { .. }
                    | Command::Logs { .. }
                    | Command::Stop(_)
                    | Command::Restart(_)
                    | Command::Ui(_)
                    | Command::Update(_)
                    | Command::Export(_)
                    | Command::Find(_)
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
