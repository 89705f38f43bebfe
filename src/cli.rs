//! The command line: arguments in (`args`), exit code out. Results go to stdout, everything else to stderr.

/// Prints prose on stdout: at a terminal, its lines break at words.
macro_rules! say {
    ($($text:tt)*) => { $crate::cli::show::line(&format!($($text)*)) };
}

/// Prints what somebody copies or reads by program on stdout, as it is: JSON, differences, commands.
macro_rules! raw {
    ($($text:tt)*) => { $crate::cli::show::raw(&format!($($text)*)) };
}

mod add;
mod answers;
mod approve;
mod args;
mod as_person;
mod ask;
mod audit;
mod call;
mod check;
mod complete;
mod connect;
mod doctor;
mod edit;
mod elsewhere;
mod failure;
mod fitting;
mod forget;
mod found;
mod harden;
mod hosts;
mod launchers;
mod local;
mod log;
mod login;
mod logs;
mod man;
mod moved;
mod registry;
mod reload;
mod script;
mod secret;
mod serve;
mod setup;
mod show;
mod signal;
mod status;
mod stop;
mod table;
mod take_up;
mod transfer;
mod trust;
mod ui;
mod version;

use std::{io::IsTerminal, path::Path, process::ExitCode, sync::Arc, time::Duration};

use nonet_base::allocator;
use nonet_config::{self as config, LoadedConfig, ValueSources, select};
use nonet_core::{Gateway, GatewayOptions};
use nonet_sandbox as sandbox;
use nonet_servers::downstream::process_guard;
use nonet_store as store;
use nonet_text::fault::FaultCode;

use self::{
    args::{Cli, Command},
    found::FoundFile,
};

/// The command succeeded.
const OK: u8 = 0;
/// A tool or server failed.
const FAILED: u8 = 1;
/// The command line or the configuration is unusable.
const UNUSABLE: u8 = 2;
/// The longest wait of a command for vectors.
const INDEX_LIMIT: Duration = Duration::from_secs(600);

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    if complete::answered() {
        return ExitCode::SUCCESS;
    }
    let cli = args::read();
    harden::process(&cli);
    allocator::keep_little();
    if let Some(code) = helper_process(&cli) {
        return code;
    }
    let serves = matches!(
        cli.command,
        None | Some(Command::Serve { .. } | Command::Connect { .. } | Command::Shared { .. })
    );
    // Dropping the log flushes its last lines and spans.
    let _log = match log::start(&cli, serves) {
        Ok(log) => log,
        Err(error) => {
            show::complain(show::causes(&error));
            return ExitCode::from(UNUSABLE);
        }
    };
    // A single client needs a single thread: waking another core costs more than the rest of a small call.
    // Other commands get all cores.
    let many = cli.http.is_some()
        || matches!(cli.command, Some(Command::Serve { http: Some(_) } | Command::Shared { .. }));
    let mut runtime = match serves && !many {
        true => tokio::runtime::Builder::new_current_thread(),
        false => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            show::complain(format_args!("cannot start: {error}"));
            return ExitCode::from(FAILED);
        }
    };
    let wants_json = cli.wants_json();
    let code = match runtime.block_on(run(cli)) {
        Ok(code) => code,
        Err(error) => {
            let code = match error.downcast_ref::<config::ConfigNotFound>() {
                Some(_) => FaultCode::NotFound,
                None => FaultCode::InvalidParams,
            };
            show::refuse(code, show::causes(&error), wants_json);
            UNUSABLE
        }
    };
    // The terminal has echoed `^C` on the prompt's line.
    if code == signal::INTERRUPTED && std::io::stderr().is_terminal() {
        eprintln!();
    }
    // A pending read of stdin must not keep the process alive.
    runtime.shutdown_background();
    ExitCode::from(code)
}

/// Runs the commands of helper processes, which the gateway starts, and prepares the process of a shared
/// gateway.
fn helper_process(cli: &Cli) -> Option<ExitCode> {
    match cli.command.as_ref()? {
        Command::Guard => process_guard::run(std::io::stdin()),
        Command::Sandbox { command } => return Some(sandbox::run(command)),
        Command::SandboxInit { command } => return Some(sandbox::run_init(command)),
        Command::ScriptWorker => {
            // The gateway sees why, or sees that the worker has ended.
            if nonet_script::worker::run_child().is_err() {
                return Some(ExitCode::from(FAILED));
            }
        }
        Command::Select { filter } if select::run_child(filter).is_err() => {
            return Some(ExitCode::from(FAILED));
        }
        Command::Select { .. } => {}
        #[cfg(unix)]
        Command::StartShared { .. } => {
            if let Err(error) = nonet_store::shared::start_detached() {
                show::complain(show::causes(&error));
                return Some(ExitCode::from(FAILED));
            }
        }
        #[cfg(unix)]
        Command::Shared { .. } => {
            cli.config.iter().for_each(|config| nonet_store::shared::settle(config));
            return None;
        }
        _ => return None,
    }
    Some(ExitCode::SUCCESS)
}

async fn run(cli: Cli) -> anyhow::Result<u8> {
    let Cli { config, profile, log_file, http: http_address, command, .. } = cli;
    let config = config.as_deref();
    match command.unwrap_or(Command::Serve { http: None }) {
        Command::Completions { shell } => complete::print(shell),
        Command::Man { command, dir } => man::run(&command, dir.as_deref()),
        Command::Forget(args) => forget::run(&args, config).await,
        Command::Trust(args) if !args.lock => trust::run(args, config).await,
        Command::Approve(args) => approve::run(args, config).await,
        Command::Connect { url: Some(url), header } => {
            connect::to_url(&url, &header, profile.as_deref()).await
        }
        Command::Setup(wishes) => setup::run(&wishes, config, profile.as_deref()).await,
        Command::Import { source, replace, keyring, variables, dry_run, json } => {
            let secrets = match (keyring, variables) {
                (true, _) => hosts::Secrets::Keyring,
                (false, true) => hosts::Secrets::Variables,
                (false, false) => hosts::Secrets::Kept,
            };
            match source.as_deref().map(Path::new).filter(|path| transfer::is_export(path)) {
                Some(path) => Box::pin(transfer::import(path, config, replace, dry_run, json)).await,
                None => hosts::import(source.as_deref(), config, replace, secrets, dry_run, json),
            }
        }
        Command::Export(args) => Box::pin(transfer::export(&args, config)).await,
        Command::Add(args) => add::run(&args, config).await,
        Command::Remove { server, dry_run, json } => {
            edit::remove(&server, config, edit::EditStyle { dry_run, json }).await
        }
        Command::Enable { server, dry_run, json } => {
            edit::enable(&server, true, config, edit::EditStyle { dry_run, json }).await
        }
        Command::Disable { server, dry_run, json } => {
            edit::enable(&server, false, config, edit::EditStyle { dry_run, json }).await
        }
        Command::Secret { action } => secret::run(&action, config),
        Command::Audit { action } => audit::run(action, config),
        Command::Install { client, project, replace, always_allow, dry_run } => {
            hosts::install(&client, config, profile.as_deref(), project, replace, always_allow, dry_run)
        }
        Command::Uninstall { client, project, dry_run } => hosts::uninstall(&client, project, dry_run),
        Command::Find(args) => registry::find(&args, config).await,
        Command::Update(args) => Box::pin(registry::update(&args, config)).await,
        Command::Schema { markdown: true } => {
            raw!("{}", config::reference().trim_end());
            Ok(OK)
        }
        Command::Schema { markdown: false } => {
            raw!("{}", serde_json::to_string_pretty(&config::schema())?);
            Ok(OK)
        }
        Command::Eval { arguments } => moved::eval(&arguments),
        Command::Reload { accept, json } => reload::run(accept, json, config).await,
        Command::Status { json, follow, way } => {
            status::run(config, profile, status::StatusArgs { json, follow, way }).await
        }
        Command::Logs { server, lines, follow, json } => {
            let wanted = logs::LogsArgs { server, lines, follow, json };
            logs::run(log_file.as_deref(), config, wanted).await
        }
        Command::Stop(args) => stop::run(&args, config, false).await,
        Command::Restart(args) => stop::run(&args, config, true).await,
        Command::Ui(ui::UiArgs { url: Some(url), .. }) => Err(ui::of_address(&url)),
        command @ (Command::Search { .. }
        | Command::Tools { .. }
        | Command::Get { .. }
        | Command::Call { .. }
        | Command::Run(_)
        | Command::Types { .. }) => Box::pin(ask::run(command, config, profile)).await,
        Command::Serve { http } => {
            Box::pin(run_loaded(Command::Serve { http: http.or(http_address) }, config, profile)).await
        }
        Command::Doctor { yes, verbose } => {
            let check = Command::Check { json: false, verbose, person: None, fix: true, yes };
            Box::pin(run_loaded(check, config, profile)).await
        }
        command => Box::pin(run_loaded(command, config, profile)).await,
    }
}

/// Runs a command that needs a usable configuration.
async fn run_loaded(command: Command, config: Option<&Path>, profile: Option<String>) -> anyhow::Result<u8> {
    let found = match &command {
        Command::Serve { .. } | Command::Ui(_) => found_or_begun(config)?,
        Command::Shared { by_trust } => FoundFile { path: config::find(config)?, by_trust: *by_trust },
        _ => found::find(config)?,
    };
    let file = found.path.clone();
    let loaded = match &command {
        Command::Check { json, .. } => match found.load() {
            Ok(loaded) => loaded,
            Err(unusable) => {
                match json {
                    true => show::raw(&check::unusable(&unusable).to_string()),
                    false => show::complain(show::causes(&unusable.into())),
                }
                return Ok(UNUSABLE);
            }
        },
        _ => match usable(&found, profile.as_deref(), false)? {
            Some(loaded) => {
                // Faults of entries that the command does not use are not printed.
                let of = match &command {
                    Command::Login(args) => Some(format!("servers.{}", args.server)),
                    Command::Logout { server } => Some(format!("servers.{server}")),
                    Command::Ui(_) => Some(String::new()),
                    _ => None,
                };
                let is_used = |fault: &&config::ConfigFault| {
                    of.as_ref().is_none_or(|of| fault.entry.as_ref() == Some(of))
                };
                loaded.faults.iter().filter(is_used).chain(loaded.remarks()).for_each(show::complain);
                loaded
            }
            None => return Ok(UNUSABLE),
        },
    };
    found::ensure_trusted(&loaded)?;
    has_profile(&loaded, profile.as_deref())?;
    match command {
        Command::Serve { http } => Box::pin(serve::run(loaded, profile, http)).await,
        Command::Connect { .. } => connect::to_shared(&file, profile, found.by_trust).await,
        Command::Shared { .. } => connect::be_shared(loaded).await,
        Command::Check { json, person: Some(person), .. } => {
            as_person::run(&loaded.config, profile.as_deref(), &person, json)
        }
        Command::Check { json, verbose, fix: false, .. } => check::run(loaded, json, verbose, None).await,
        Command::Check { verbose, yes, .. } => {
            let mut offers = Vec::new();
            let code = check::run(loaded, false, verbose, Some(&mut offers)).await?;
            if signal::is_stop(code) {
                return Ok(code);
            }
            match Box::pin(doctor::run(offers, &file, doctor::OfferMode::here(yes))).await? {
                true => Box::pin(doctor::again(&found, verbose)).await,
                false => Ok(code),
            }
        }
        Command::Trust(args) => trust::lock(loaded, args.check, args.json).await,
        Command::Lock { check, json } => {
            moved::lock(check);
            trust::lock(loaded, check, json).await
        }
        Command::Ui(args) => Box::pin(ui::run(loaded, &args)).await,
        Command::Login(args) => tokio::select! {
            code = login::login(&loaded.config, &args) => code,
            code = signal::stopped() => Ok(code),
        },
        Command::Logout { server } => login::logout(&loaded.config, &server).await,
        _ => Ok(OK),
    }
}

/// Returns the configuration file. If none exists and none was named, returns the user's own, as if it were
/// empty.
fn found_or_begun(config: Option<&Path>) -> anyhow::Result<FoundFile> {
    let missing = match found::find(config) {
        Ok(found) => return Ok(found),
        Err(missing) => missing,
    };
    let file = config::user_file().filter(|_| config.is_none() && missing.is::<config::ConfigNotFound>());
    let Some(path) = file else { return Err(missing) };
    show::complain(format_args!(
        "no servers yet: there is no {}. Run `nonet setup` to take over your clients' servers, or `nonet add` to add one",
        path.display()
    ));
    Ok(FoundFile { path, by_trust: false })
}

/// Reads a configuration; a missing one is empty. Prints the faults of an unusable one and returns none;
/// fails if the profile does not exist, or if the user does not trust the file as it is now.
fn usable(found: &FoundFile, profile: Option<&str>, as_json: bool) -> anyhow::Result<Option<LoadedConfig>> {
    let loaded = match found.load() {
        Ok(loaded) => loaded,
        Err(unusable) => {
            show::refuse(FaultCode::InvalidParams, show::causes(&unusable.into()), as_json);
            return Ok(None);
        }
    };
    found::ensure_trusted(&loaded)?;
    has_profile(&loaded, profile)?;
    Ok(Some(loaded))
}

fn has_profile(loaded: &LoadedConfig, profile: Option<&str>) -> anyhow::Result<()> {
    let Some(profile) = profile.filter(|profile| !loaded.config.profiles.contains_key(*profile)) else {
        return Ok(());
    };
    let known: Vec<&str> = loaded.config.profiles.keys().map(String::as_str).collect();
    anyhow::bail!(
        "there is no [profiles.{profile}] in {}; profiles: {}",
        loaded.config.file.display(),
        or_none(&known)
    );
}

/// Reads a configuration with this process's environment and this system's keyring.
fn load(file: &Path) -> Result<LoadedConfig, config::LoadError> {
    load_sources(|sources| config::load(file, sources))
}

/// Returns the `[cluster]` table of a file. A file without that table need not be valid.
fn cluster_of(file: &Path) -> Result<Option<config::ClusterSettings>, config::LoadError> {
    match config::read_text(file) {
        Ok(text) if config::has_cluster(&text) => Ok(load_text(&text, file)?.config.cluster),
        _ => Ok(None),
    }
}

/// Reads a configuration from the text of a file.
fn load_text(text: &str, file: &Path) -> Result<LoadedConfig, config::LoadError> {
    load_sources(|sources| config::load_text(text, file, sources))
}

/// Runs `read` with this process's environment and this system's keyring.
fn load_sources<T>(read: impl FnOnce(ValueSources<'_>) -> T) -> T {
    ValueSources::of_this_machine(read)
}

fn or_none(names: &[&str]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// Creates a gateway for a configuration. `embed`: whether to search by meaning.
fn gateway(loaded: LoadedConfig, embed: bool) -> Arc<Gateway> {
    let options = GatewayOptions { without_embedder: !embed, ..options(&loaded) };
    Gateway::new(loaded.config, options)
}

/// Creates a gateway that leaves nothing behind of the servers that it tries.
fn gateway_of_trial(loaded: LoadedConfig) -> Arc<Gateway> {
    let options = GatewayOptions { without_embedder: true, cache: None, is_trial: true, ..options(&loaded) };
    Gateway::new(loaded.config, options)
}

fn options(loaded: &LoadedConfig) -> GatewayOptions {
    GatewayOptions {
        executable: std::env::current_exe().ok(),
        cache: loaded.config.embedder.cache_folder(),
        state: store::folder(),
        ..GatewayOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_as_promised() {
        args::command(None).debug_assert();
        let mut help = args::command(None).render_long_help().to_string();
        let mut all = args::command(None);
        all.build();
        for command in all.get_subcommands_mut().filter(|command| !command.is_hide_set()) {
            help.push_str(&format!(
                "\n--- nonet {}\n{}",
                command.get_name(),
                command.clone().render_long_help()
            ));
        }
        insta::assert_snapshot!(help);
    }

    #[test]
    fn every_command_is_in_one_group_and_help_breaks_at_words() {
        for width in [40, 60, 80] {
            let mut command = args::command(Some(width));
            let help = command.render_long_help().to_string();
            let groups = help.split("\nOptions:").next().unwrap_or_default();
            let names = command.get_subcommands().filter(|one| !one.is_hide_set()).map(|one| one.get_name());
            for name in names.filter(|name| *name != "help") {
                let is_its = |line: &&str| {
                    line.strip_prefix("  ").is_some_and(|line| line.starts_with(&format!("{name} ")))
                };
                assert_eq!(groups.lines().filter(is_its).count(), 1, "{name}: {help}");
            }
            let long = groups.lines().skip(4).find(|line| line.chars().count() > width);
            assert_eq!(long, None, "{width}");
        }
    }
}
