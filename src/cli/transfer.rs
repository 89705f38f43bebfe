//! `nonet export`, and `nonet import` of what it wrote: a whole set-up in one file, sealed with a passphrase.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, IsTerminal, Read},
    path::{Component, Path, PathBuf},
};

use anyhow::Context;
use base64::{Engine, engine::general_purpose::STANDARD};
use clap::Args;
use nonet_base::{
    clock::{system_time, unix_ms},
    files,
};
use nonet_config::{
    AppKind, LoadedConfig, Transport,
    keyring::{self, Keyring},
    secrets_file::{self, SecretsFile},
    shell,
};
use nonet_core::Gateway;
use nonet_hosts::{NamedSecret, SecretStore, keep_secret, named_secrets};
use nonet_store::{CarriedPin, CarriedRecord};
use nonet_wire::sealing::SealedByPassphrase;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{FAILED, OK, found, hosts as commands, load, show};

/// How an export begins.
const MARK: &str = "{\"nonet_export\":";
/// The version of its format.
const FORMAT: u32 = 1;
/// The longest export, in bytes; and the files beside servers.toml: their bytes together, and their number.
const MOST_BYTES: usize = 128 << 20;
const MOST_FILES: (u64, usize) = (20 << 20, 2_000);
/// The variable with the passphrase, for scripts.
const VARIABLE: &str = "NONET_PASSPHRASE";
/// The shortest passphrase, in characters.
const SHORTEST: usize = 8;

/// What to export.
#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// File to write
    pub file: PathBuf,
    /// Replace the file if it is there
    #[arg(long)]
    pub force: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The file as it is written.
#[derive(Serialize, Deserialize)]
struct ExportFile {
    nonet_export: u32,
    /// The version of Nonet that wrote it.
    version: String,
    #[serde(flatten)]
    sealed: SealedByPassphrase,
}

/// What is sealed in it.
#[derive(Serialize, Deserialize)]
struct Setup {
    /// servers.toml, as it is.
    config: String,
    /// Values for `${NAME}`, and for `${keyring:NAME}`.
    secrets: BTreeMap<String, String>,
    keyring: BTreeMap<String, String>,
    /// Files below the folder of servers.toml that it names: scripts of apps, and skills; Base64 by path.
    files: BTreeMap<String, String>,
    records: Vec<CarriedRecord>,
    pins: Vec<CarriedPin>,
}

/// What of a set-up was carried, for people.
#[derive(Serialize)]
struct Counts {
    servers: usize,
    secrets: usize,
    files: usize,
    records: usize,
    definitions: usize,
}

impl Setup {
    fn counts(&self, loaded: &LoadedConfig) -> Counts {
        Counts {
            servers: loaded.config.servers.len() + loaded.config.left_out.len(),
            secrets: self.secrets.len() + self.keyring.len(),
            files: self.files.len(),
            records: self.records.len(),
            definitions: self.pins.len(),
        }
    }
}

impl Counts {
    fn told(&self) -> String {
        let parts = [
            show::count(self.servers as u64, "server"),
            show::count(self.secrets as u64, "secret"),
            show::count(self.definitions as u64, "trusted definition"),
            format!(
                "{} (facts, goals, to-dos, watches, schedules)",
                show::count(self.records as u64, "record")
            ),
            show::count(self.files as u64, "file"),
        ];
        parts.join(", ")
    }
}

/// Returns whether a file is an export.
pub(super) fn is_export(path: &Path) -> bool {
    let mut start = vec![0; MARK.len()];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == MARK.as_bytes()
}

/// Writes a set-up into a file.
pub(super) async fn export(args: &ExportArgs, config: Option<&Path>) -> anyhow::Result<u8> {
    let file = found::path(config)?;
    let loaded = load(&file)?;
    anyhow::ensure!(
        args.force || !args.file.exists(),
        "{} exists; replace it with `--force`",
        args.file.display()
    );
    let mut notes = Vec::new();
    let (secrets, in_keyring) = values(&file, &mut notes)?;
    let carried = files_of(&file, &loaded, &mut notes)?;
    notes.extend(left_behind(&loaded));
    let servers: Vec<String> = loaded.config.servers.keys().map(ToString::to_string).collect();
    let text = nonet_config::read_text(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let gateway = super::gateway(load(&file)?, false);
    let kept = kept(&gateway, servers).await;
    gateway.stop().await;
    let (records, pins) = kept?;
    let setup = Setup { config: text, secrets, keyring: in_keyring, files: carried, records, pins };
    let counts = setup.counts(&loaded);
    let passphrase = passphrase(true)?;
    let sealed = SealedByPassphrase::seal(&passphrase, &about(FORMAT), &serde_json::to_vec(&setup)?)?;
    let export = ExportFile { nonet_export: FORMAT, version: env!("CARGO_PKG_VERSION").into(), sealed };
    files::replace_private(&args.file, serde_json::to_string(&export)?.as_bytes())
        .with_context(|| format!("cannot write {}", args.file.display()))?;
    if args.json {
        raw!(
            "{}",
            serde_json::to_string_pretty(&json!({ "file": args.file, "carried": counts, "notes": notes }))?
        );
        return Ok(OK);
    }
    say!("{} has {}, sealed with the passphrase.", args.file.display(), counts.told());
    notes.iter().for_each(|note| say!("{note}"));
    say!("On the other machine: nonet import {}", shell::word(&args.file.to_string_lossy()));
    Ok(OK)
}

/// What an export is sealed for.
fn about(format: u32) -> String {
    format!("nonet export {format}")
}

async fn kept(
    gateway: &Gateway,
    servers: Vec<String>,
) -> anyhow::Result<(Vec<CarriedRecord>, Vec<CarriedPin>)> {
    let records = gateway.keeping.records.carried().await?;
    let pins = gateway.publisher.pins.clone();
    let read =
        tokio::task::spawn_blocking(move || pins.kept().map(|kept| kept.carried(&servers)).transpose());
    Ok((records, read.await??.unwrap_or_default()))
}

/// Returns the values that servers.toml needs: those of `secrets.env`, and those of the keyring.
fn values(
    file: &Path,
    notes: &mut Vec<String>,
) -> anyhow::Result<(BTreeMap<String, String>, BTreeMap<String, String>)> {
    let path = secrets_file::beside(file);
    let kept = SecretsFile::read(&path).with_context(|| format!("cannot use {}", path.display()))?;
    let mut in_keyring = BTreeMap::new();
    let keyring = Keyring::system(keyring::ATTENDED);
    for NamedSecret { name, in_keyring: is_there, has_default, .. } in named_secrets(file)? {
        if is_there {
            match keyring.get(&name) {
                Ok(value) => drop(in_keyring.insert(name, value)),
                Err(error) => notes.push(format!("`{name}` of the keyring is not carried: {error}")),
            }
        } else if kept.get(&name).is_none() && !has_default {
            notes.push(format!(
                "`{name}` is not carried: it is a variable of this machine's environment, or not set"
            ));
        }
    }
    Ok((kept.values().clone(), in_keyring))
}

/// Returns the files below the folder of servers.toml that it names.
fn files_of(
    file: &Path,
    loaded: &LoadedConfig,
    notes: &mut Vec<String>,
) -> anyhow::Result<BTreeMap<String, String>> {
    let folder = file.parent().map(|folder| std::path::absolute(folder).unwrap_or_else(|_| folder.into()));
    let folder = folder.unwrap_or_default();
    let scripts = loaded.config.apps.values().filter_map(|app| match &app.kind {
        AppKind::Script { file } => Some(file.clone()),
        _ => None,
    });
    let mut waiting: Vec<PathBuf> = scripts.chain(loaded.config.gateway.skills.iter().cloned()).collect();
    let (mut carried, mut bytes) = (BTreeMap::new(), 0);
    while let Some(path) = waiting.pop() {
        let Ok(inside) = path.strip_prefix(&folder) else {
            notes.push(format!("{} is not carried: it is not below {}", path.display(), folder.display()));
            continue;
        };
        let Ok(about) = fs::symlink_metadata(&path) else { continue };
        if about.is_dir() {
            waiting.extend(fs::read_dir(&path)?.flatten().map(|entry| entry.path()));
        } else if about.is_file() {
            bytes += about.len();
            if bytes > MOST_FILES.0 || carried.len() >= MOST_FILES.1 {
                notes.push(format!(
                    "{} and the files after it are not carried: they are too many",
                    path.display()
                ));
                break;
            }
            let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            carried.insert(inside.to_string_lossy().replace('\\', "/"), STANDARD.encode(text));
        }
    }
    Ok(carried)
}

/// Says what stays on this machine.
fn left_behind(loaded: &LoadedConfig) -> Vec<String> {
    let mut notes = Vec::new();
    let signs_in = loaded.config.servers.iter().filter(|(_, settings)| {
        matches!(&settings.transport, Transport::Http { .. }) && settings.transport.sign_in().is_some()
    });
    let names: Vec<&str> = signs_in.map(|(name, _)| name.as_str()).collect();
    if !names.is_empty() {
        notes.push(format!(
            "Sign-ins are not carried, because most services accept a renewal from one machine only: run `nonet login` there \
             for the servers that need it ({})",
            names.join(", ")
        ));
    }
    notes
}

/// Takes over the set-up of another machine.
pub(super) async fn import(
    path: &Path,
    config: Option<&Path>,
    replace: bool,
    dry_run: bool,
    as_json: bool,
) -> anyhow::Result<u8> {
    let bytes =
        files::read_at_most(path, MOST_BYTES).with_context(|| format!("cannot read {}", path.display()))?;
    let export: ExportFile = serde_json::from_slice(&bytes)
        .with_context(|| format!("{} is damaged: it is not a whole export", path.display()))?;
    anyhow::ensure!(
        export.nonet_export == FORMAT,
        "{} was written by Nonet {}, which is newer than this one: update this one first",
        path.display(),
        nonet_base::text::line(&export.version, 40)
    );
    let target = commands::target(config)?;
    anyhow::ensure!(
        replace || dry_run || !target.exists(),
        "{} exists; `--replace` replaces it, and keeps a copy beside it",
        target.display()
    );
    let opened = export.sealed.open(&passphrase(false)?, &about(FORMAT));
    let opened = opened.context("the passphrase is wrong, or the file was changed")?;
    let setup: Setup = serde_json::from_slice(&opened).context("the export cannot be read")?;
    let folder = target.parent().context("servers.toml has no folder")?.to_path_buf();
    let places = places(&setup, &folder)?;
    if dry_run {
        let loaded = super::load_text(&setup.config, &target)?;
        let counts = setup.counts(&loaded);
        match as_json {
            true => raw!(
                "{}",
                serde_json::to_string_pretty(&json!({ "file": target, "carried": counts, "dry_run": true }))?
            ),
            false => {
                say!("{} would get {}. Nothing was written (--dry-run).", target.display(), counts.told())
            }
        }
        return Ok(OK);
    }
    files::private_folder(&folder)?;
    let mut notes = Vec::new();
    for (to, bytes) in places {
        if to.exists() && !replace {
            notes.push(format!("{} stays as it is", to.display()));
            continue;
        }
        fs::create_dir_all(to.parent().unwrap_or(&folder))?;
        fs::write(&to, bytes).with_context(|| format!("cannot write {}", to.display()))?;
    }
    if target.exists() {
        let copy = target.with_extension(format!("toml.before-{}", unix_ms(system_time()) / 1_000));
        fs::copy(&target, &copy).with_context(|| format!("cannot write {}", copy.display()))?;
        notes.push(format!("the servers.toml that was there is in {}", copy.display()));
    }
    let mut is_whole = true;
    for (name, value) in &setup.secrets {
        keep_secret(&target, name, value, SecretStore::File)?;
    }
    for (name, value) in &setup.keyring {
        if let Err(error) = keep_secret(&target, name, value, SecretStore::Keyring) {
            is_whole = false;
            notes.push(format!("`{name}` was not stored: {error} Store it with `nonet secret set {name}`"));
        }
    }
    files::replace_private(&target, setup.config.as_bytes())
        .with_context(|| format!("cannot write {}", target.display()))?;
    let loaded = load(&target)?;
    notes.extend(
        loaded.config.left_out.keys().map(|name| format!("`{name}` is left out: `nonet check` says why")),
    );
    notes.extend(missing_paths(&loaded));
    let counts = setup.counts(&loaded);
    let gateway = super::gateway(load(&target)?, false);
    let stored = take_in(&gateway, setup).await;
    gateway.stop().await;
    let left = stored?;
    if left > 0 {
        notes.push(format!("{} were here already and stay as they are", show::count(left as u64, "record")));
    }
    if as_json {
        raw!(
            "{}",
            serde_json::to_string_pretty(&json!({ "file": target, "carried": counts, "notes": notes }))?
        );
    } else {
        say!("{} has {}.", target.display(), counts.told());
        notes.iter().for_each(|note| say!("{note}"));
        say!(
            "Check it with `{}`, and add it to your clients with `nonet setup`.",
            commands::command("check", &target)
        );
    }
    Ok(if is_whole { OK } else { FAILED })
}

async fn take_in(gateway: &Gateway, setup: Setup) -> anyhow::Result<usize> {
    let (_, left) = gateway.keeping.records.take_in(setup.records).await?;
    let (pins, carried) = (gateway.publisher.pins.clone(), setup.pins);
    let stored = tokio::task::spawn_blocking(move || {
        pins.kept().map(|kept| kept.take_in(carried, unix_ms(system_time()))).transpose()
    });
    stored.await??.context("there is no folder to keep trusted definitions in; set XDG_STATE_HOME")?;
    Ok(left)
}

/// Returns where the files go, each below the folder.
fn places(setup: &Setup, folder: &Path) -> anyhow::Result<Vec<(PathBuf, Vec<u8>)>> {
    let place = |(name, text): (&String, &String)| {
        let path = Path::new(name);
        let is_inside = path.components().all(|part| matches!(part, Component::Normal(_)));
        anyhow::ensure!(
            is_inside,
            "the export has a file outside of its folder: {}",
            nonet_base::text::line(name, 100)
        );
        Ok((folder.join(path), STANDARD.decode(text).context("the export is damaged")?))
    };
    setup.files.iter().map(place).collect()
}

/// Names what servers.toml names by absolute paths that are not here.
fn missing_paths(loaded: &LoadedConfig) -> Vec<String> {
    let mut notes = Vec::new();
    for (name, settings) in &loaded.config.servers {
        let Transport::Stdio { command, args, cwd, .. } = &settings.transport else { continue };
        let words = args.iter().map(String::as_str).chain([command.as_str()]);
        let cwd = cwd.iter().map(|cwd| cwd.to_str().unwrap_or_default());
        for word in words.chain(cwd) {
            if Path::new(word).is_absolute() && !Path::new(word).exists() {
                notes.push(format!("[servers.{name}] names {word}, which is not on this machine"));
            }
        }
    }
    notes
}

/// Returns the passphrase: that of the environment, else the typed one. A new one is typed twice.
fn passphrase(is_new: bool) -> anyhow::Result<String> {
    let given = match nonet_base::variables::var(VARIABLE) {
        Some(given) => given,
        None => {
            anyhow::ensure!(
                io::stdin().is_terminal(),
                "there is no terminal for the passphrase: set {VARIABLE}"
            );
            let typed = rpassword::prompt_password("Passphrase (not shown): ")?;
            let again = if is_new { rpassword::prompt_password("Again: ")? } else { typed.clone() };
            anyhow::ensure!(typed == again, "the passphrases differ; nothing was written");
            typed
        }
    };
    let is_long = !is_new || given.chars().count() >= SHORTEST;
    anyhow::ensure!(
        is_long,
        "the passphrase has fewer than {SHORTEST} characters: whoever gets the file could guess it"
    );
    Ok(given)
}
