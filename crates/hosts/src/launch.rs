//! How a client should start this Nonet: by its path, or with the command that fetched it into a cache.

use std::{
    env, io,
    path::{Component, Path, PathBuf},
};

use super::{Machine, Os};

/// How a host should start Nonet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchCommand {
    /// The program as an absolute path: hosts may not search the shell's PATH.
    pub command: String,
    /// Its arguments, such as `--config FILE`.
    pub args: Vec<String>,
}

/// Cache folders, each with the command that fetches programs into it. npx and uvx may clear their caches at
/// any time.
const CACHES: [(&str, &str, &[&str]); 5] = [
    ("_npx", "npx", &["-y", "nonet"]),
    ("archive-v0", "uvx", &["nonet"]),
    ("environments-v2", "uvx", &["nonet"]),
    ("bunx-", "bunx", &["nonet"]),
    ("dlx", "pnpm", &["dlx", "nonet"]),
];

impl LaunchCommand {
    /// Returns the command for this program with a configuration, and a profile if named.
    pub fn of(config: &Path, profile: Option<&str>, machine: &Machine) -> io::Result<Self> {
        let exe = env::current_exe()?;
        let mut launch = match fetched_by(&exe) {
            Some((command, args)) => fetched(command, args, machine.os),
            None => Self { command: exe.display().to_string(), args: Vec::new() },
        };
        launch.args.extend(["--config".into(), config.display().to_string()]);
        if let Some(profile) = profile {
            launch.args.extend(["--profile".into(), profile.into()]);
        }
        Ok(launch)
    }

    /// Returns this launch, in place of one whose program is gone, with that one's options.
    pub fn with_options_of(self, now: Vec<String>) -> Self {
        let is_option = |arg: &String| arg.starts_with("--");
        let mut args: Vec<String> = self.args.into_iter().take_while(|arg| !is_option(arg)).collect();
        args.extend(now.into_iter().skip_while(|arg| !is_option(arg)));
        Self { command: self.command, args }
    }
}

/// Returns the command that fetched a program into a cache; none for an installed program.
fn fetched_by(exe: &Path) -> Option<(&'static str, &'static [&'static str])> {
    let folders: Vec<_> = exe.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    let is_in = |name: &str| {
        folders.iter().any(|folder| {
            let folder = folder.as_os_str().to_string_lossy();
            folder == name || name.ends_with('-') && folder.starts_with(name)
        })
    };
    // A user's folder may be called `dlx`; pnpm's is below its cache.
    let is_cache = |name: &str| name != "dlx" || is_in("pnpm");
    CACHES.iter().find(|(name, ..)| is_in(name) && is_cache(name)).map(|(_, command, args)| (*command, *args))
}

/// Whether a client's command is a path without a program, or with a cached one that may vanish.
pub fn is_lost(command: &str) -> bool {
    let file = Path::new(command);
    file.is_absolute() && (!file.exists() || fetched_by(file).is_some())
}

/// Builds the launch of a fetched program, with the command's absolute path if found: clients may not have
/// the shell's PATH.
fn fetched(command: &str, args: &[&str], os: Os) -> LaunchCommand {
    let mut args: Vec<String> = args.iter().map(ToString::to_string).collect();
    // On Windows, `npx` is a script, which not every client can start.
    if os == Os::Windows && command != "uvx" {
        args.splice(0..0, ["/c".to_string(), command.to_string()]);
        return LaunchCommand { command: "cmd".into(), args };
    }
    LaunchCommand {
        command: on_path(command).map_or(command.into(), |file| file.display().to_string()),
        args,
    }
}

/// Finds a program on the PATH.
pub fn on_path(program: &str) -> Option<PathBuf> {
    // Skips caches: npx prepends a folder of its own.
    let path = env::var_os("PATH")?;
    let folders: Vec<_> = env::split_paths(&path).filter(|folder| fetched_by(folder).is_none()).collect();
    let is_whole = !cfg!(windows) || Path::new(program).extension().is_some();
    let name = if is_whole { program.to_string() } else { format!("{program}.exe") };
    folders.into_iter().map(|folder| folder.join(&name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_in_a_cache_is_known_by_its_path() {
        let check = |path: &str, expected: Option<&str>| {
            assert_eq!(fetched_by(Path::new(path)).map(|(command, _)| command), expected, "{path}");
        };
        check("/home/ann/.npm/_npx/8a1f/node_modules/@nonet/linux-x64-gnu/bin/nonet", Some("npx"));
        check("/home/ann/.cache/uv/archive-v0/Xy1/bin/nonet", Some("uvx"));
        check("/tmp/bunx-1000-nonet@latest/node_modules/@nonet/linux-x64-gnu/bin/nonet", Some("bunx"));
        check("/home/ann/.cache/pnpm/dlx/ab/node_modules/@nonet/linux-x64-gnu/bin/nonet", Some("pnpm"));
        check("/home/ann/dlx/nonet", None);
        check("/usr/lib/node_modules/nonet/node_modules/@nonet/linux-x64-gnu/bin/nonet", None);
        check("/home/ann/.local/share/uv/tools/nonet/bin/nonet", None);
        check("/home/ann/.cargo/bin/nonet", None);
    }

    #[test]
    fn windows_starts_scripts_through_cmd() {
        let npx = fetched("npx", &["-y", "nonet"], Os::Windows);
        assert_eq!((npx.command.as_str(), npx.args.join(" ")), ("cmd", "/c npx -y nonet".into()));
        let uvx = fetched("uvx", &["nonet"], Os::Windows);
        assert!(uvx.command.ends_with("uvx") && uvx.args == ["nonet"], "{uvx:?}");
    }
}
