//! Sets the commit that a program is built from: NONET_COMMIT, else git's answer for the folder, else
//! `unknown`. A debug build does not ask git, because each commit would trigger a rebuild.

use std::{env, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=NONET_COMMIT");
    let named = env::var("NONET_COMMIT").ok().filter(|commit| !commit.is_empty());
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = named.or_else(|| if is_release { of_git() } else { None });
    let commit = commit.unwrap_or_else(|| "unknown".into());
    println!("cargo::rustc-env=NONET_BUILT_FROM={commit}");
}

/// Returns the commit of a clone of this repository; none in a folder that is only inside another one.
fn of_git() -> Option<String> {
    let folder = env::var("CARGO_MANIFEST_DIR").ok()?;
    let top = git(&["rev-parse", "--show-cdup"])?;
    if !top.is_empty() || !std::path::Path::new(&folder).join(".git").exists() {
        return None;
    }
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(file) =
            git(&["rev-parse", "--git-path", name]).filter(|it| std::path::Path::new(it).exists())
        {
            println!("cargo::rerun-if-changed={file}");
        }
    }
    git(&["rev-parse", "--verify", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let folder = env::var("CARGO_MANIFEST_DIR").ok()?;
    let told = Command::new("git").arg("-C").arg(folder).args(arguments).output().ok()?;
    told.status.success().then(|| String::from_utf8_lossy(&told.stdout).trim().to_string())
}
