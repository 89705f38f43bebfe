//! `nonet update`: how this Nonet was installed, the command that updates it and, only when asked, the newest version.
//!
//! The newest version comes from the package manager that installed Nonet: its settings (mirrors, proxies, sign-ins) are the
//! user's own. Nonet contacts nobody by itself.

use std::{
    env, fs,
    path::{Component, Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use nonet_base::text::{clip, line};
use nonet_config::shell;
use nonet_hosts as hosts;
use semver::Version;
use serde_json::{Value, json};
use tokio::{process::Command, time::timeout};

use super::{FAILED, OK};

/// How long a package manager may take to find the newest version.
const LIMIT: Duration = Duration::from_secs(120);
/// The most of a package manager's fault that is shown, in characters.
const MOST_SHOWN: usize = 300;

/// npm, which is a script on Windows.
const NPM: &str = if cfg!(windows) { "npm.cmd" } else { "npm" };

/// The arguments of an update.
#[derive(Debug, Args)]
pub(super) struct UpdateArgs {
    /// Ask the package manager that installed Nonet for the newest version
    #[arg(long)]
    check: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What installed this Nonet.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Installer {
    /// A command that fetches Nonet into a cache, such as `npx`.
    Cache(&'static str),
    /// A package manager of Node.js, with the command that updates.
    Node(&'static str, &'static str),
    /// pip, with the Python of its environment.
    Pip(PathBuf),
    /// `uv tool install`.
    Uv,
    /// pipx.
    Pipx,
    /// Homebrew.
    Brew,
    /// `cargo install` or `cargo binstall`.
    Cargo,
    /// Nothing that is known: an archive, a container image or a build.
    Unknown,
}

/// How to ask for the newest version: a command line, and what its output is.
struct Question {
    command: Vec<String>,
    read: fn(&str) -> Option<String>,
}

impl Installer {
    /// Recognises the installer by the program's path.
    fn of(exe: &Path) -> Self {
        if let Some(command) = hosts::fetching_command(exe) {
            return Self::Cache(command);
        }
        let parts: Vec<_> = exe
            .components()
            .filter(|part| matches!(part, Component::Normal(_)))
            .map(|part| part.as_os_str().to_string_lossy())
            .collect();
        let follows = |one: &str, next: &str| parts.windows(2).any(|pair| pair[0] == one && pair[1] == next);
        if let Some(at) = parts.iter().position(|part| part == "node_modules") {
            let before = &parts[..at];
            let is_in = |name: &str| before.iter().any(|part| part == name);
            return match before.last().map(|part| &**part) {
                // PREFIX/lib/node_modules, on Windows %APPDATA%\npm\node_modules.
                Some("lib" | "npm") => Self::Node("npm", "npm install -g nonet@latest"),
                _ if is_in("pnpm") && is_in("global") => Self::Node("pnpm", "pnpm add -g nonet@latest"),
                _ if is_in(".bun") && is_in("global") => Self::Node("bun", "bun add -g nonet@latest"),
                _ if is_in("yarn") && is_in("global") => Self::Node("yarn", "yarn global add nonet@latest"),
                _ => Self::Node("npm", "npm install nonet@latest"),
            };
        }
        if follows("Cellar", "nonet") {
            return Self::Brew;
        }
        if follows("tools", "nonet") && parts.iter().any(|part| part == "uv") {
            return Self::Uv;
        }
        if follows("venvs", "nonet") && parts.iter().any(|part| part == "pipx") {
            return Self::Pipx;
        }
        if follows(".cargo", "bin") {
            return Self::Cargo;
        }
        python_of(exe).map_or(Self::Unknown, Self::Pip)
    }

    fn name(&self) -> &str {
        match self {
            Self::Cache(command) => command,
            Self::Node(name, _) => name,
            Self::Pip(_) => "pip",
            Self::Uv => "uv",
            Self::Pipx => "pipx",
            Self::Brew => "Homebrew",
            Self::Cargo => "cargo",
            Self::Unknown => "unknown",
        }
    }

    /// Returns the command that updates, for a person.
    fn command(&self) -> Option<String> {
        Some(match self {
            Self::Cache("npx") => "npx -y nonet@latest -V".into(),
            Self::Cache("bunx") => "bunx nonet@latest -V".into(),
            Self::Cache("pnpm") => "pnpm dlx nonet@latest -V".into(),
            Self::Cache(_) => "uvx nonet@latest -V".into(),
            Self::Node(_, command) => (*command).into(),
            Self::Pip(python) => {
                format!("{} -m pip install --upgrade nonet", shell::word(&python.display().to_string()))
            }
            Self::Uv => "uv tool upgrade nonet".into(),
            Self::Pipx => "pipx upgrade nonet".into(),
            Self::Brew => "brew upgrade nonet".into(),
            Self::Cargo | Self::Unknown => return None,
        })
    }

    /// Returns how to ask for the newest version; none where there is nobody to ask.
    fn question(&self) -> Option<Question> {
        let question = |command: &[&str], read| {
            let command = command.iter().map(ToString::to_string).collect();
            Some(Question { command, read })
        };
        match self {
            Self::Cache("uvx") | Self::Uv => question(&["uvx", "nonet@latest", "-V"], last_word),
            Self::Cache(_) | Self::Node(..) => question(&[NPM, "view", "nonet", "version"], last_word),
            Self::Pip(python) => {
                let python = python.display().to_string();
                question(
                    &[&python, "-m", "pip", "--disable-pip-version-check", "index", "versions", "nonet"],
                    in_brackets,
                )
            }
            Self::Pipx => question(&["pipx", "runpip", "nonet", "index", "versions", "nonet"], in_brackets),
            Self::Brew => question(&["brew", "info", "--json=v2", "nonet"], of_brew),
            Self::Cargo | Self::Unknown => None,
        }
    }
}

/// Returns the Python of the environment in which pip has put a program.
fn python_of(exe: &Path) -> Option<PathBuf> {
    let bin = exe.parent()?;
    let is_of_nonet = |site: PathBuf| {
        let entries = fs::read_dir(site).ok()?;
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .find(|name| name.starts_with("nonet-") && name.ends_with(".dist-info"))
    };
    let versions = fs::read_dir(bin.parent()?.join("lib")).into_iter().flatten().flatten();
    let unix = versions.map(|entry| entry.path().join("site-packages"));
    let windows = bin.parent()?.join("Lib").join("site-packages");
    unix.chain([windows]).find_map(is_of_nonet)?;
    ["python", "python3", "python.exe"].iter().map(|name| bin.join(name)).find(|file| file.is_file())
}

/// Reads `0.2.0` or `nonet 0.2.0`.
fn last_word(output: &str) -> Option<String> {
    Some(output.split_whitespace().last()?.to_string())
}

/// Reads `nonet (0.2.0)`, the first line of `pip index versions`.
fn in_brackets(output: &str) -> Option<String> {
    Some(output.split_once('(')?.1.split_once(')')?.0.to_string())
}

/// Reads `brew info --json=v2`.
fn of_brew(output: &str) -> Option<String> {
    let info: Value = serde_json::from_str(output).ok()?;
    Some(info["formulae"][0]["versions"]["stable"].as_str()?.to_string())
}

/// Reports how to update. With `--check`: exit code 0 if this is the newest version, 1 if there is a newer one.
pub(super) async fn run(args: &UpdateArgs) -> anyhow::Result<u8> {
    let exe = env::current_exe().context("the path of this program is unknown")?;
    // Not a link to it in a folder for programs.
    let exe = exe.canonicalize().unwrap_or(exe);
    let installer = Installer::of(&exe);
    let own = Version::parse(env!("CARGO_PKG_VERSION")).context("the version of this program")?;
    let newest = match (args.check, installer.question()) {
        (false, _) => None,
        (true, Some(question)) => Some(newest(&question).await?),
        (true, None) => bail!(
            "cannot find out the newest version: `{}` was not installed by a package manager that has an index of Nonet. Compare \
             with the releases where you got it",
            exe.display()
        ),
    };
    let is_newer = newest.as_ref().is_some_and(|newest| *newest > own);
    let command = installer.command();
    if args.json {
        let newest = newest.map(|newest| newest.to_string());
        let told = json!({
            "version": own.to_string(),
            "newest": newest,
            "is_newer": args.check.then_some(is_newer),
            "installed_by": installer.name(),
            "program": exe,
            "command": command,
        });
        raw!("{}", serde_json::to_string_pretty(&told)?);
        return Ok(if is_newer { FAILED } else { OK });
    }
    let update = match &command {
        Some(command) => format!("To update: {command}"),
        None => "To update, replace it in the way it was installed.".into(),
    };
    match newest {
        Some(newest) if is_newer => {
            say!("Nonet {newest} is available; this is {own}.");
            raw!("{update}");
        }
        Some(newest) => say!("Nonet {own} is the newest version ({} has {newest}).", installer.name()),
        None => {
            say!("Nonet {own}, {}.", exe.display());
            raw!("{update}");
        }
    }
    Ok(if is_newer { FAILED } else { OK })
}

async fn newest(question: &Question) -> anyhow::Result<Version> {
    let shown = question.command.join(" ");
    let (program, arguments) = question.command.split_first().context("a command has a program")?;
    let program = hosts::on_path(program).unwrap_or_else(|| program.into());
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(LIMIT, command.output()).await;
    let output = output.with_context(|| format!("`{shown}` did not answer within {} s", LIMIT.as_secs()))?;
    let output = output.with_context(|| format!("cannot run `{shown}`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`{shown}` failed ({}): {}",
            output.status,
            clip(&line(said.trim(), MOST_SHOWN * 4), MOST_SHOWN)
        );
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let found = (question.read)(&said).and_then(|found| Version::parse(&found).ok());
    found.with_context(|| {
        format!(
            "`{shown}` did not print a version, but: {}",
            clip(&line(said.trim(), MOST_SHOWN * 4), MOST_SHOWN)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installer_is_known_by_the_programs_path() {
        let check = |path: &str, name: &str, command: Option<&str>| {
            let installer = Installer::of(Path::new(path));
            assert_eq!((installer.name(), installer.command().as_deref()), (name, command), "{path}");
        };
        let package = "node_modules/@nonet/linux-x64-gnu/bin/nonet";
        check(&format!("/home/ann/.npm/_npx/8a1f/{package}"), "npx", Some("npx -y nonet@latest -V"));
        check(&format!("/usr/lib/node_modules/nonet/{package}"), "npm", Some("npm install -g nonet@latest"));
        check(&format!("/home/ann/shop/{package}"), "npm", Some("npm install nonet@latest"));
        let global = format!("/home/ann/.local/share/pnpm/global/5/{package}");
        check(&global, "pnpm", Some("pnpm add -g nonet@latest"));
        let global = format!("/home/ann/.bun/install/global/{package}");
        check(&global, "bun", Some("bun add -g nonet@latest"));
        check("/home/ann/.cache/uv/archive-v0/Xy1/bin/nonet", "uvx", Some("uvx nonet@latest -V"));
        check("/home/ann/.local/share/uv/tools/nonet/bin/nonet", "uv", Some("uv tool upgrade nonet"));
        check("/home/ann/.local/pipx/venvs/nonet/bin/nonet", "pipx", Some("pipx upgrade nonet"));
        check("/opt/homebrew/Cellar/nonet/0.1.0/bin/nonet", "Homebrew", Some("brew upgrade nonet"));
        check("/home/ann/.cargo/bin/nonet", "cargo", None);
        check("/usr/local/bin/nonet", "unknown", None);
    }

    #[test]
    fn versions_are_read_as_each_manager_prints_them() {
        let check = |read: fn(&str) -> Option<String>, output: &str, expected: Option<&str>| {
            assert_eq!(read(output).as_deref(), expected, "{output}");
        };
        check(last_word, "0.2.0\n", Some("0.2.0"));
        check(last_word, "nonet 0.2.0\n", Some("0.2.0"));
        check(last_word, "", None);
        check(in_brackets, "nonet (0.2.0)\nAvailable versions: 0.2.0, 0.1.0\n", Some("0.2.0"));
        check(in_brackets, "nothing", None);
        check(of_brew, r#"{"formulae":[{"versions":{"stable":"0.2.0"}}]}"#, Some("0.2.0"));
        check(of_brew, "{}", None);
    }
}
