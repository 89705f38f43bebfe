//! ONNX Runtime, a library found at run time: it runs the models of folders.
//!
//! Probing a shared library is the only place in the crate with `unsafe`. Each library is probed before the
//! binding sees it: a failed first load leaves the binding (2.0.0-rc.14) in an unsound state, and the binding
//! keeps its first choice for the life of the process.

use std::{
    env,
    error::Error,
    ffi::CStr,
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use ort::environment::Environment;

use super::embedder::Backend;

/// The library of this process, and what sessions are made with.
pub(super) struct Engine {
    pub(super) environment: Environment,
    pub(super) backend: Backend,
}

static ENGINE: OnceLock<Result<Engine, String>> = OnceLock::new();

/// Returns the library. The first caller's `library` decides for the whole process.
pub(super) fn engine(library: Option<&Path>) -> Result<&'static Engine, &'static str> {
    ENGINE.get_or_init(|| choose(&candidates(library))).as_ref().map_err(String::as_str)
}

/// A possible library file, and why it is probed.
struct Candidate {
    file: PathBuf,
    because: &'static str,
}

fn choose(candidates: &[Candidate]) -> Result<Engine, String> {
    let mut refused = String::new();
    for Candidate { file, because } in candidates {
        match probe(file) {
            Ok(version) => {
                let detail = format!("{} ({because})", file.display());
                return start(file, &version, detail);
            }
            Err(reason) => {
                tracing::warn!(library = %file.display(), %reason, "not usable as ONNX Runtime");
                let _ = write!(refused, "{} ({because}): {reason}; ", file.display());
            }
        }
    }
    if refused.is_empty() {
        refused.push_str("no ONNX Runtime library found");
    }
    let refused = refused.trim_end_matches("; ");
    Err(format!(
        "{refused}; a model of your own needs ONNX Runtime: `pip install onnxruntime` (1.{} or later), or name the library in \
         `[embedder] onnxruntime` or ORT_DYLIB_PATH",
        ort::MINOR_VERSION
    ))
}

fn start(file: &Path, version: &str, detail: String) -> Result<Engine, String> {
    let builder = ort::init_from(file).map_err(|error| error.to_string())?;
    let environment =
        builder.with_name("nonet").with_telemetry(false).build().map_err(|error| error.to_string())?;
    let backend = Backend { name: format!("onnxruntime {version}"), detail };
    tracing::info!(engine = %backend.name, library = %backend.detail, "search by meaning runs on ONNX Runtime");
    Ok(Engine { environment, backend })
}

/// Returns the version of the ONNX Runtime in this file, if usable.
#[expect(unsafe_code, reason = "loading code is what a probe does; each step gives its reason")]
fn probe(file: &Path) -> Result<String, String> {
    if !file.is_absolute() {
        return Err("the path is not absolute".to_owned());
    }
    if !file.is_file() {
        return Err("there is no such file".to_owned());
    }
    // SAFETY: opening a library runs its initialisers, which cannot be checked from here. The path is
    // absolute and comes from the operator (setting, environment) or from a package folder of the
    // installation, never from the working directory or a client.
    let library = unsafe { libloading::Library::new(file) }.map_err(|error| whole(&error))?;
    // SAFETY: only ONNX Runtime exports this name, with this signature since 1.0 (onnxruntime_c_api.h).
    let base =
        unsafe { library.get::<unsafe extern "C" fn() -> *const ort::sys::OrtApiBase>(b"OrtGetApiBase\0") }
            .map_err(|_| "it is not ONNX Runtime: no `OrtGetApiBase`".to_owned())?;
    // SAFETY: takes no arguments and returns a pointer to static data of the library, which stays loaded
    // until the end of this function, and for ever if usable. `as_ref` handles null.
    let base = unsafe { base().as_ref() }.ok_or("`OrtGetApiBase` returned null")?;
    // SAFETY: `base` has the layout of the header, which never changed; the result is a static, terminated
    // string.
    let version = unsafe { (base.GetVersionString)() };
    if version.is_null() {
        return Err("it does not report its version".to_owned());
    }
    // SAFETY: not null (above), terminated and static (as above); copied before the library can be closed.
    let version = unsafe { CStr::from_ptr(version) }.to_string_lossy().into_owned();
    if !is_new_enough(&version) {
        return Err(format!("version {version} is older than 1.{}", ort::MINOR_VERSION));
    }
    // SAFETY: as for the version; requests the table of functions that the binding will request, null if
    // unknown.
    if unsafe { (base.GetApi)(ort::MINOR_VERSION) }.is_null() {
        return Err(format!("version {version} does not offer API {}", ort::MINOR_VERSION));
    }
    // The binding opens the library again; closing it in between might run its finalisers.
    std::mem::forget(library);
    Ok(version)
}

/// Formats an error with its source, which has the loader's own words.
pub(super) fn whole(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().ok());
    let major = numbers.next().flatten();
    let minor = numbers.next().flatten();
    match (major, minor) {
        (Some(1), Some(minor)) => minor >= ort::MINOR_VERSION,
        _ => false,
    }
}

/// Lists the files to probe, best first. Never the working directory: loading runs code.
fn candidates(setting: Option<&Path>) -> Vec<Candidate> {
    let mut found = Vec::new();
    let mut add = |file: PathBuf, because| {
        if !found.iter().any(|other: &Candidate| other.file == file) {
            found.push(Candidate { file, because });
        }
    };
    if let Some(file) = setting {
        add(file.to_owned(), "setting `onnxruntime`");
    }
    if let Some(file) = env::var_os("ORT_DYLIB_PATH").filter(|value| !value.is_empty()) {
        add(file.into(), "ORT_DYLIB_PATH");
    }
    if let Some(beside) = env::current_exe().ok().and_then(|file| file.parent().map(Path::to_owned)) {
        for folder in [
            beside.join("onnxruntime"),
            beside.join("onnxruntime/lib"),
            beside.join("lib"),
            beside.join("../lib"),
        ] {
            libraries_in(&folder).into_iter().for_each(|file| add(file, "beside the executable"));
        }
    }
    for folder in package_folders() {
        libraries_in(&folder.join("onnxruntime/capi"))
            .into_iter()
            .for_each(|file| add(file, "Python package"));
    }
    found
}

/// Lists the runtime libraries of a folder by name, without their helper libraries.
fn libraries_in(folder: &Path) -> Vec<PathBuf> {
    let is_library = |name: &str| {
        name.starts_with("libonnxruntime.so")
            || (name.starts_with("libonnxruntime.") && name.ends_with(".dylib"))
            || name == "onnxruntime.dll"
    };
    entries(folder, &is_library)
}

/// Lists Python's package folders without running Python: of the active environment, of `python3` on the
/// path, of the user, of the system.
fn package_folders() -> Vec<PathBuf> {
    let mut prefixes = Vec::new();
    prefixes.extend(env::var_os("VIRTUAL_ENV").map(PathBuf::from));
    for folder in env::var_os("PATH").iter().flat_map(env::split_paths) {
        let python = folder.join("python3");
        if folder.is_absolute() && python.is_file() {
            // A virtual environment's python is a symlink out of it; its packages are beside the symlink.
            prefixes.extend(folder.parent().map(Path::to_owned));
            let real = python.canonicalize().ok();
            prefixes.extend(real.iter().filter_map(|file| file.parent()?.parent()).map(Path::to_owned));
        }
    }
    prefixes.extend(env::home_dir().map(|home| home.join(".local")));
    prefixes.extend(["/usr/local", "/usr", "/opt/homebrew"].map(PathBuf::from));

    let mut folders = Vec::new();
    for prefix in prefixes.iter().filter(|prefix| prefix.is_absolute()) {
        for versioned in entries(&prefix.join("lib"), &|name| name.starts_with("python3")) {
            folders.extend([versioned.join("site-packages"), versioned.join("dist-packages")]);
        }
        folders.push(prefix.join("Lib/site-packages"));
    }
    folders
}

/// Lists the entries of a folder with matching names, highest name (newest version) first.
fn entries(folder: &Path, passes: &dyn Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(listing) = std::fs::read_dir(folder) else { return Vec::new() };
    let named = |entry: &std::fs::DirEntry| entry.file_name().to_str().is_some_and(passes);
    let mut found: Vec<PathBuf> = listing.flatten().filter(named).map(|entry| entry.path()).collect();
    found.sort_by(|a, b| b.cmp(a));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        let check = |version: &str, expected: bool| assert_eq!(is_new_enough(version), expected, "{version}");
        check(&format!("1.{}.0", ort::MINOR_VERSION), true);
        check("1.100.1", true);
        check("1.20.0", false);
        check("0.9", false);
        check("2.30.0", false);
        check("", false);
        check("one.two", false);
    }

    #[test]
    fn what_is_not_the_library_is_told_and_not_loaded() {
        let check = |file: &Path, expected: &str| {
            let reason = probe(file).expect_err("not a library");
            assert!(reason.contains(expected), "{reason}");
        };
        check(Path::new("libonnxruntime.so"), "not absolute");
        check(Path::new("/nowhere/libonnxruntime.so"), "no such file");
        let file = std::env::temp_dir().join(format!("nonet-not-a-library-{}", std::process::id()));
        std::fs::write(&file, "text").expect("the temporary folder can be written");
        assert!(probe(&file).is_err());
        let _ = std::fs::remove_file(&file);
    }
}
