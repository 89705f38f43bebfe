//! Determines which files and folders a sandboxed program sees, from its command and its settings. Reads the
//! file system, but changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{SandboxSpec, SetUpFault};

mod sockets;

/// System paths that any program needs.
const SYSTEM: [&str; 15] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix/store",
    "/gnu/store",
    "/run/current-system",
    "/home/linuxbrew/.linuxbrew",
    "/var/lib/snapd/snap",
    "/sys/devices/system/cpu",
    "/var/lib/ca-certificates",
];
/// Parts of `/etc` that any program needs. The rest may contain secrets.
const ETC: [&str; 33] = [
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "fonts",
    "gai.conf",
    "gitconfig",
    "group",
    "host.conf",
    "hostname",
    "hosts",
    "inputrc",
    "java",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "lsb-release",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "pki",
    "protocols",
    "python3",
    "resolv.conf",
    "services",
    "ssl",
    "terminfo",
    "timezone",
];
/// Interpreters and launchers in a home folder.
const RUNTIMES: [&str; 24] = [
    ".asdf",
    ".bun/bin",
    ".cargo/bin",
    ".deno/bin",
    ".dotnet",
    ".local/bin",
    ".local/lib",
    ".local/pipx",
    ".local/share/fnm",
    ".local/share/mise",
    ".local/share/pipx",
    ".local/share/pnpm",
    ".local/share/uv/python",
    ".local/share/uv/tools",
    ".n",
    ".nix-profile",
    ".npm-global",
    ".nvm",
    ".pyenv",
    ".rbenv",
    ".sdkman/candidates",
    ".volta",
    "go/bin",
    "miniconda3",
];
/// Private paths in a home folder, hidden unless named explicitly.
const PRIVATE: [&str; 24] = [
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".netrc",
    ".git-credentials",
    ".npmrc",
    ".pypirc",
    ".bash_history",
    ".zsh_history",
    ".password-store",
    ".mozilla",
    ".thunderbird",
    ".config/gh",
    ".config/gcloud",
    ".config/google-chrome",
    ".config/chromium",
    ".config/nonet",
    ".config/op",
    ".config/rclone",
    ".local/share/keyrings",
    ".vault-token",
];
/// File extensions of scripts: such an argument is a program, not a file to write.
const SCRIPTS: [&str; 12] = ["js", "mjs", "cjs", "ts", "mts", "py", "pyz", "sh", "rb", "jar", "php", "pl"];
/// Files that mark a project folder.
const PROJECT: [&str; 6] =
    ["package.json", "pyproject.toml", "node_modules", ".venv", "requirements.txt", "Gemfile"];
/// How many interpreters and links are followed.
const DEEP: usize = 8;

/// The files and folders of a sandbox, by their paths outside.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Places {
    /// Readable and executable: the system, the interpreters, the program.
    pub system: BTreeSet<PathBuf>,
    /// Readable: named by the configuration and the command.
    pub read: BTreeSet<PathBuf>,
    /// Readable and writable.
    pub write: BTreeSet<PathBuf>,
    /// Hidden wherever another entry would show it.
    pub hidden: BTreeSet<PathBuf>,
    /// Sockets of other programs in a folder that is shown, by their real paths: nobody answers there.
    pub sockets: BTreeSet<PathBuf>,
    /// The program's working directory.
    pub cwd: Option<PathBuf>,
    /// Arguments that name a folder too broad to be opened because of an argument only.
    pub too_broad: BTreeSet<PathBuf>,
}

impl Places {
    /// Determines the places of a program. `variables` are the program's own, configured and inherited.
    ///
    /// # Errors
    ///
    /// Returns a configured path that does not exist or must not be written.
    pub fn of(
        spec: &SandboxSpec,
        command: &[OsString],
        variables: &BTreeMap<OsString, OsString>,
    ) -> Result<Self, SetUpFault> {
        let home = spec.home.as_deref();
        let path = variables.get(OsStr::new("PATH")).cloned().unwrap_or_default();
        let mut places = Self::of_system(spec, &path);
        places.write.extend(spec.write.iter().flatten().cloned());
        if let Some(program) = command.first() {
            places.add_program(&found(program, &path), home, &path, DEEP);
        }
        places.add_configured(spec)?;
        for argument in command.iter().skip(1) {
            places.add_argument(spec, &argument.to_string_lossy());
        }
        for value in variables.iter().filter(|(name, _)| *name != "PATH").map(|(_, value)| Path::new(value)) {
            if value.is_absolute() && value.is_file() {
                places.add_named(value, home, false);
            }
        }
        // A path that is writable anyway is not protected as a part of the program.
        let named = spec.write.iter().flatten();
        named.for_each(|named| places.system.retain(|path| !path.starts_with(named)));
        places.close_links(spec)?;
        let is_named = |real: &Path| {
            let mut named = spec.read.iter().chain(spec.write.iter().flatten());
            named.any(|named| fs::canonicalize(named).is_ok_and(|named| named == real))
        };
        places.sockets = sockets::below(places.read.iter().chain(&places.write), is_named);
        Ok(places)
    }

    /// Returns what every program sees, and what none does unless the configuration names it.
    fn of_system(spec: &SandboxSpec, path: &OsStr) -> Self {
        let home = spec.home.as_deref();
        let below = |folder: Option<&Path>, names: &[&str]| -> Vec<PathBuf> {
            folder.into_iter().flat_map(|folder| names.iter().map(move |name| folder.join(name))).collect()
        };
        let mut system = below(Some(Path::new("/")), &SYSTEM);
        system.extend(below(Some(Path::new("/etc")), &ETC));
        system.extend(below(home, &RUNTIMES));
        let system = system.into_iter().filter(|path| path.exists()).collect();
        let is_named =
            |path: &PathBuf| spec.read.iter().chain(spec.write.iter().flatten()).any(|it| it == path);
        let private = below(home, &PRIVATE).into_iter().filter(|path| !is_named(path));
        let hidden = private.chain(spec.hidden.iter().cloned()).collect();
        let mut places = Self { system, hidden, cwd: spec.cwd.clone(), ..Self::default() };
        for folder in std::env::split_paths(path).filter(|folder| folder.is_absolute() && folder.is_dir()) {
            if !is_broad(&folder, home) && !places.is_hidden(&folder) {
                places.system.insert(folder);
            }
        }
        places
    }

    /// Adds the configured paths and the working directory.
    fn add_configured(&mut self, spec: &SandboxSpec) -> Result<(), SetUpFault> {
        let home = spec.home.as_deref();
        for path in &spec.read {
            self.read.insert(existing(path, "read")?);
        }
        for path in spec.write.iter().flatten() {
            if is_broad(path, home) || is_system(path) {
                return Err(SetUpFault::Settings(format!(
                    "`write` has {}, which would open the whole machine to changes. Name folders in it.",
                    path.display()
                )));
            }
            self.write.insert(existing(path, "write")?);
        }
        if let Some(cwd) = &spec.cwd {
            if spec.write.is_none() {
                self.add_named(cwd, home, true);
            }
            self.add_named(cwd, home, false);
        }
        Ok(())
    }

    /// Adds what an argument names, also as `--folder=/path`: a script as a program, anything else as a path.
    fn add_argument(&mut self, spec: &SandboxSpec, argument: &str) {
        let path = Path::new(argument.split_once('=').map_or(argument, |(_, path)| path));
        if !path.is_absolute() || !path.exists() {
            return;
        }
        let is_script = path.extension().is_some_and(|end| SCRIPTS.iter().any(|script| end == *script));
        match is_script && path.is_file() {
            true => self.add_program(path, spec.home.as_deref(), OsStr::new(""), DEEP),
            false => self.add_named(path, spec.home.as_deref(), spec.write.is_none()),
        }
    }

    /// Removes paths that lead elsewhere through links that the program may have made, and refuses a hidden
    /// file that the program could replace.
    fn close_links(&mut self, spec: &SandboxSpec) -> Result<(), SetUpFault> {
        // A link inside a writable folder could be redirected anywhere.
        let write = self.write.clone();
        let within = |path: &Path| write.iter().any(|write| path != write && path.starts_with(write));
        self.write.retain(|path| !within(path));
        // A link that the program may have made is not followed.
        let is_writable = |real: &Path| {
            write.iter().filter_map(|write| fs::canonicalize(write).ok()).any(|write| real.starts_with(write))
        };
        let leaves = |path: &Path| fs::canonicalize(path).map_or(true, |real| !is_writable(&real));
        self.read.retain(|path| !(write.contains(path) || within(path) && leaves(path)));
        let is_makeable = |file: &&PathBuf| {
            let folder = file.parent().and_then(|folder| fs::canonicalize(folder).ok());
            !file.is_dir() && folder.is_some_and(|folder| is_writable(&folder))
        };
        match spec.hidden.iter().find(is_makeable) {
            None => Ok(()),
            Some(file) => Err(SetUpFault::Settings(format!(
                "it may write into the folder of {}, and could replace that file. Name other folders in `write`, or move the file",
                file.display()
            ))),
        }
    }

    /// Adds a path named by the command or the working directory, unless that would open too much.
    fn add_named(&mut self, path: &Path, home: Option<&Path>, writable: bool) {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
        if self.system.iter().any(|system| path.starts_with(system))
            || path.starts_with("/proc")
            || path.starts_with("/dev")
        {
            return;
        }
        if is_broad(&path, home) || self.is_hidden(&path) || (writable && is_system(&path)) {
            self.too_broad.insert(path);
        } else if writable {
            self.write.insert(path);
        } else {
            self.read.insert(path);
        }
    }

    /// Adds the folders of a program or script, of the links to it, and of its interpreter.
    fn add_program(&mut self, program: &Path, home: Option<&Path>, path: &OsStr, deep: usize) {
        if deep == 0 || !program.is_absolute() {
            return;
        }
        self.add_folder_of(program, home);
        // A path that the program can change itself must not open another one.
        if self.write.iter().any(|write| program.starts_with(write)) {
            return;
        }
        if let Ok(target) = fs::read_link(program) {
            let target = program.parent().unwrap_or(Path::new("/")).join(target);
            self.add_program(&tidy(&target), home, path, deep - 1);
        }
        // A folder in the path may be a link as well.
        if let Ok(real) = fs::canonicalize(program)
            && real != program
        {
            self.add_program(&real, home, path, deep - 1);
        }
        if let Some(interpreter) = shebang(program) {
            self.add_program(&found(&interpreter, path), home, path, deep - 1);
        }
    }

    /// Adds the folder of an executable: the installation around `bin`, its project, or its own folder.
    fn add_folder_of(&mut self, program: &Path, home: Option<&Path>) {
        let Some(folder) = program.parent() else { return };
        let usable = |path: &&Path| !is_broad(path, home) && !self.is_hidden(path);
        let modules = program.ancestors().filter(|path| path.ends_with("node_modules")).last();
        let project = || {
            let mut around = folder.ancestors().take(4);
            around.find(|path| PROJECT.iter().any(|name| path.join(name).exists()))
        };
        let is_bin = ["bin", "shims", "Scripts"].iter().any(|name| folder.ends_with(name));
        let installed = if is_bin { folder.parent() } else { None };
        let chosen = modules.or(installed.filter(usable)).or_else(project).filter(usable);
        let chosen = chosen.or(Some(folder).filter(usable)).unwrap_or(program).to_path_buf();
        // A virtual environment uses the installation that created it.
        let made_with = fs::read_to_string(chosen.join("pyvenv.cfg")).ok().and_then(|text| {
            let mut lines = text.lines().filter_map(|line| line.split_once('='));
            lines.find(|(key, _)| key.trim() == "home").map(|(_, bin)| PathBuf::from(bin.trim()))
        });
        let made_with = made_with.filter(|_| !self.write.iter().any(|write| chosen.starts_with(write)));
        if !self.is_hidden(&chosen) && !self.system.iter().any(|system| chosen.starts_with(system)) {
            self.system.insert(chosen);
        }
        if let Some(installed) = made_with.as_deref().and_then(Path::parent)
            && !is_broad(installed, home)
            && !self.is_hidden(installed)
        {
            self.system.insert(installed.into());
        }
    }

    /// Returns whether a path is hidden, even through a link.
    fn is_hidden(&self, path: &Path) -> bool {
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.into());
        self.hidden.iter().any(|hidden| path.starts_with(hidden) || real.starts_with(hidden))
    }
}

/// Returns whether a path is the root, the home folder or a parent of it, so that an argument that names it
/// opens too much.
fn is_broad(path: &Path, home: Option<&Path>) -> bool {
    let path = tidy(path);
    let real = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
    let above = |home: &Path| home.starts_with(&path) || home.starts_with(&real);
    let home = home.map(|home| (home.to_path_buf(), fs::canonicalize(home).unwrap_or_else(|_| home.into())));
    real.parent().is_none()
        || ["/home", "/Users", "/tmp", "/var", "/run", "/mnt", "/media"]
            .iter()
            .any(|folder| real == Path::new(folder))
        || home.is_some_and(|(home, real_home)| above(&home) || above(&real_home))
}

/// Returns whether a path belongs to the system.
fn is_system(path: &Path) -> bool {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    ["/usr", "/etc", "/bin", "/sbin", "/lib", "/lib64", "/boot", "/proc", "/sys", "/dev", "/run"]
        .iter()
        .any(|folder| real.starts_with(folder))
}

fn existing(path: &Path, key: &str) -> Result<PathBuf, SetUpFault> {
    match path.exists() {
        true => Ok(path.into()),
        false => {
            let message = format!(
                "`{key}` has {}, which does not exist. Create it, or remove it from the list",
                path.display()
            );
            Err(SetUpFault::Settings(message))
        }
    }
}

/// Returns a program as `PATH` finds it.
pub(super) fn found(program: &OsStr, path: &OsStr) -> PathBuf {
    if Path::new(program).components().count() > 1 {
        return program.into();
    }
    let mut candidates = std::env::split_paths(path).map(|folder| folder.join(program));
    candidates.find(|file| file.is_file()).unwrap_or_else(|| program.into())
}

/// Returns the interpreter in a script's first line.
fn shebang(program: &Path) -> Option<OsString> {
    let mut line = Vec::new();
    let file = fs::File::open(program).ok()?;
    BufReader::new(file.take(256)).read_until(b'\n', &mut line).ok()?;
    let line = String::from_utf8_lossy(line.strip_prefix(b"#!")?).into_owned();
    let mut words = line.split_whitespace();
    let interpreter = words.next()?;
    match interpreter.ends_with("/env") {
        true => words.find(|word| !word.starts_with('-') && !word.contains('=')).map(Into::into),
        false => Some(interpreter.into()),
    }
}

/// Resolves `.` and `..` lexically.
fn tidy(path: &Path) -> PathBuf {
    let mut tidy = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(tidy.pop()),
            std::path::Component::CurDir => {}
            part => tidy.push(part),
        }
    }
    tidy
}

#[cfg(test)]
mod tests;
