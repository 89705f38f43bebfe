//! MCPB bundles: a zip with a program and its `manifest.json` (MANIFEST.md 0.3 of modelcontextprotocol/mcpb).

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Cursor, Read},
    path::{Component, Path, PathBuf},
};

use nonet_base::text::line;
use nonet_wire::web;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use zip::ZipArchive;

use crate::{Package, detail::Input, entry::plain};

/// The most bytes of a bundle, of all its files together, and how many there may be.
const MOST_BYTES: usize = 200 << 20;
const MOST_UNPACKED: u64 = 1 << 30;
const MOST_FILES: usize = 50_000;
/// The most bytes of a manifest.
const MOST_MANIFEST: u64 = 1 << 20;

/// Why a bundle cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BundleFault {
    /// It was not loaded.
    #[error("the bundle at {0} cannot be loaded: {1}")]
    Unreached(String, String),
    /// It is not what the registry says.
    #[error("the bundle at {0} is not what the registry says: its SHA-256 is {1}")]
    Another(String, String),
    /// The registry does not say what it is.
    #[error("the registry gives no SHA-256 of the bundle at {0}, so what was loaded cannot be checked")]
    Unchecked(String),
    /// It is unusable.
    #[error("the bundle cannot be used: {0}")]
    Unusable(String),
    /// It cannot be written.
    #[error("the bundle cannot be unpacked into {folder}: {1}", folder = .0.display())]
    Unwritten(PathBuf, io::Error),
}

/// A bundle in a folder of its own.
#[derive(Clone, Debug)]
pub struct UnpackedBundle {
    /// The folder.
    pub folder: PathBuf,
    command: String,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    /// What its user chooses, by key.
    pub(crate) asked: BTreeMap<String, Input>,
}

#[derive(Deserialize)]
struct Manifest {
    server: ManifestServer,
    #[serde(default)]
    user_config: BTreeMap<String, UserOption>,
}

#[derive(Deserialize)]
struct ManifestServer {
    mcp_config: Option<Launch>,
}

#[derive(Deserialize)]
struct Launch {
    command: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    platform_overrides: BTreeMap<String, Override>,
}

#[derive(Deserialize)]
struct Override {
    command: Option<String>,
    args: Option<Vec<String>>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct UserOption {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    required: bool,
    #[serde(default)]
    sensitive: bool,
    default: Option<Value>,
}

/// The name of this system in a manifest.
const PLATFORM: &str = if cfg!(windows) {
    "win32"
} else if cfg!(target_os = "macos") {
    "darwin"
} else {
    "linux"
};

/// Loads the bundle of a package, checks it, and unpacks it into a new folder below `place`. A bundle that is there
/// already is loaded again, so that nobody has changed it.
///
/// # Errors
///
/// If it cannot be loaded, is not what the registry says, or is unusable.
pub async fn unpack(package: &Package, place: &Path, name: &str) -> Result<UnpackedBundle, BundleFault> {
    let at = web::place(&package.identifier);
    let wanted = package.file_sha256.as_deref().ok_or_else(|| BundleFault::Unchecked(at.clone()))?;
    let is_local =
        ["http://127.0.0.1:", "http://localhost:"].iter().any(|start| package.identifier.starts_with(start));
    if !package.identifier.starts_with("https://") && !is_local {
        return Err(BundleFault::Unreached(at, "only https is loaded".into()));
    }
    let bytes = load(&package.identifier).await.map_err(|why| BundleFault::Unreached(at.clone(), why))?;
    let hash: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    if !hash.eq_ignore_ascii_case(wanted) {
        return Err(BundleFault::Another(at, hash));
    }
    let folder = place.join(format!("{name}-{}", &hash[..12]));
    let to = folder.clone();
    let unpacked = tokio::task::spawn_blocking(move || written(bytes, &to)).await;
    unpacked.map_err(|error| BundleFault::Unusable(error.to_string()))??;
    let manifest = fs::File::open(folder.join("manifest.json")).map_err(|_| no_manifest())?;
    let mut text = String::new();
    manifest.take(MOST_MANIFEST).read_to_string(&mut text).map_err(|_| no_manifest())?;
    read(&text, folder)
}

fn no_manifest() -> BundleFault {
    BundleFault::Unusable("it has no manifest.json".into())
}

async fn load(url: &str) -> Result<Vec<u8>, String> {
    let follows = web::builder().redirect(reqwest::redirect::Policy::limited(5)).build();
    let client = follows.map_err(web::cause)?;
    let mut answer =
        client.get(url).send().await.map_err(web::cause)?.error_for_status().map_err(web::cause)?;
    let mut bytes = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(web::cause)? {
        if bytes.len() + piece.len() > MOST_BYTES {
            return Err(format!("it has more than {MOST_BYTES} bytes"));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// Writes the files of a zip into a folder, which is replaced whole.
fn written(bytes: Vec<u8>, folder: &Path) -> Result<(), BundleFault> {
    let unusable = |error: &dyn std::fmt::Display| BundleFault::Unusable(line(&error.to_string(), 200));
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|error| unusable(&error))?;
    if archive.len() > MOST_FILES {
        return Err(BundleFault::Unusable(format!("it has more than {MOST_FILES} files")));
    }
    let beside = folder.with_extension("part");
    let unwritten = |error: io::Error| BundleFault::Unwritten(folder.into(), error);
    let _ = fs::remove_dir_all(&beside);
    fs::create_dir_all(&beside).map_err(unwritten)?;
    let mut left = MOST_UNPACKED;
    for index in 0..archive.len() {
        let file = archive.by_index(index).map_err(|error| unusable(&error))?;
        let name = file.name().map_err(|error| unusable(&error))?.into_owned();
        let path = PathBuf::from(&name);
        let is_inside = path.components().all(|part| matches!(part, Component::Normal(_)));
        if !is_inside || file.is_symlink() || name.contains('\\') {
            return Err(BundleFault::Unusable(format!(
                "it has a file outside of itself: {}",
                line(&name, 100)
            )));
        }
        let to = beside.join(&path);
        if file.is_dir() {
            fs::create_dir_all(&to).map_err(unwritten)?;
            continue;
        }
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).map_err(unwritten)?;
        }
        let mode = file.unix_mode();
        let mut into = fs::File::create(&to).map_err(unwritten)?;
        let copied = io::copy(&mut file.take(left + 1), &mut into).map_err(unwritten)?;
        left = left.checked_sub(copied).ok_or_else(|| {
            BundleFault::Unusable(format!("its files have more than {MOST_UNPACKED} bytes"))
        })?;
        set_mode(&to, mode).map_err(unwritten)?;
    }
    let _ = fs::remove_dir_all(folder);
    fs::rename(&beside, folder).map_err(unwritten)
}

#[cfg(unix)]
fn set_mode(path: &Path, mode: Option<u32>) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let runs = mode.is_some_and(|mode| mode & 0o111 != 0);
    fs::set_permissions(path, fs::Permissions::from_mode(if runs { 0o755 } else { 0o644 }))
}

#[cfg(not(unix))]
fn set_mode(_: &Path, _: Option<u32>) -> io::Result<()> {
    Ok(())
}

/// Reads a manifest.
fn read(text: &str, folder: PathBuf) -> Result<UnpackedBundle, BundleFault> {
    let unusable = |why: String| BundleFault::Unusable(line(&why, 200));
    let manifest: Manifest =
        serde_json::from_str(text).map_err(|error| unusable(format!("manifest.json: {error}")))?;
    let launch =
        manifest.server.mcp_config.ok_or_else(|| unusable("manifest.json has no `mcp_config`".into()))?;
    let Launch { mut command, mut args, mut env, mut platform_overrides } = launch;
    if let Some(own) = platform_overrides.remove(PLATFORM) {
        command = own.command.unwrap_or(command);
        args = own.args.unwrap_or(args);
        env.extend(own.env);
    }
    let asked = manifest.user_config.into_iter().map(|(key, option)| (key, option.input())).collect();
    // A program of the bundle is named by its place there.
    let own = folder.join(&command);
    if !command.contains("${") && Path::new(&command).is_relative() && own.is_file() {
        command = own.display().to_string();
    }
    Ok(UnpackedBundle { folder, command, args, env, asked })
}

impl UserOption {
    fn input(self) -> Input {
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let default = match &self.default {
            Some(Value::Array(all)) => all.first().map(text),
            Some(value) => Some(text(value)),
            None => None,
        };
        Input {
            description: Some(self.description),
            is_required: self.required,
            is_secret: self.sensitive,
            format: Some(self.kind),
            default,
            ..Input::default()
        }
    }
}

impl UnpackedBundle {
    /// Returns the command, its arguments and its variables, with the chosen values. An argument that is nothing but a
    /// choice is repeated for each of its values, and left out without one.
    pub(crate) fn filled(
        &self,
        chosen: &BTreeMap<&str, Vec<String>>,
    ) -> (String, Vec<String>, BTreeMap<String, String>) {
        let only = |text: &str| {
            let key = text.strip_prefix("${user_config.")?.strip_suffix('}')?;
            chosen.get(key)
        };
        let args = self.args.iter().flat_map(|arg| match only(arg) {
            Some(values) => values.clone(),
            None => vec![self.text(arg, chosen)],
        });
        let env = self.env.iter().filter(|(_, value)| only(value).is_none_or(|values| !values.is_empty()));
        let env = env.map(|(name, value)| (name.clone(), self.text(value, chosen)));
        (self.text(&self.command, chosen), args.collect(), env.collect())
    }

    fn text(&self, text: &str, chosen: &BTreeMap<&str, Vec<String>>) -> String {
        let mut filled = String::new();
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            filled.push_str(&rest[..at]);
            let behind = &rest[at + 2..];
            let Some(end) = behind.find('}') else { break };
            let name = &behind[..end];
            let own =
                name.strip_prefix("user_config.").map(|key| chosen.get(key).and_then(|all| all.first()));
            match (name, own) {
                ("__dirname", _) => filled.push_str(&plain(&self.folder.display().to_string())),
                ("pathSeparator" | "/", _) => filled.push(std::path::MAIN_SEPARATOR),
                ("HOME", _) => filled.push_str("${HOME}"),
                (_, Some(value)) => filled.push_str(value.map_or("", String::as_str)),
                // What nobody knows stays as it is.
                _ => filled.push_str(&format!("$${{{name}}}")),
            }
            rest = &behind[end + 1..];
        }
        filled.push_str(&plain(rest));
        filled
    }
}
