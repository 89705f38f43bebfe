//! The process's environment, and the variables removed from it at the start.
//!
//! A gateway reads `${TOKEN}` again at each reload, but no child process should inherit the token by
//! accident. So the variables are copied once, and the ones meant only for servers are removed from the
//! process's own environment.

use std::{ffi::OsString, sync::OnceLock};

/// The variable by which a gateway finds what a server without a sandbox has started. A program that outlives
/// its starter on purpose is started without it.
pub const STARTED_BY: &str = "NONET_STARTED_BY";

/// All variables at the start, once some are hidden.
static ALL: OnceLock<Vec<(OsString, OsString)>> = OnceLock::new();

/// Returns a variable as it was at the start; `None` also if its value is not UTF-8.
pub fn var(name: &str) -> Option<String> {
    match ALL.get() {
        Some(all) => {
            // Windows ignores the case of a variable's name.
            let is = |key: &OsString| key == name || (cfg!(windows) && key.eq_ignore_ascii_case(name));
            all.iter().find(|(key, _)| is(key))?.1.clone().into_string().ok()
        }
        None => std::env::var(name).ok(),
    }
}

/// Returns all variables as they were at the start.
pub fn all() -> Vec<(OsString, OsString)> {
    match ALL.get() {
        Some(all) => all.clone(),
        None => std::env::vars_os().collect(),
    }
}

/// Copies all variables for [`var`] and [`all`], and removes from the process those that `stays` rejects by
/// name and value. Only for the beginning of `main`: does nothing if the process has a second thread.
#[expect(unsafe_code, reason = "removing a variable has no safe form; see SAFETY below")]
pub fn hide(stays: impl Fn(&str, &str) -> bool) {
    if !is_single_threaded() || ALL.set(std::env::vars_os().collect()).is_err() {
        return;
    }
    for (name, value) in all() {
        if !stays(&name.to_string_lossy(), &value.to_string_lossy()) {
            // SAFETY: there is no other thread that could read the environment.
            unsafe { std::env::remove_var(&name) };
        }
    }
}

/// Whether this is the only thread, as far as the system reports it.
fn is_single_threaded() -> bool {
    match std::fs::read_dir("/proc/self/task") {
        Ok(tasks) => tasks.count() == 1,
        // Other systems do not report it; the caller is the beginning of `main`.
        Err(_) => !cfg!(target_os = "linux"),
    }
}

/// Keeps inherited open files, besides the standard three, from child processes.
#[expect(unsafe_code, reason = "one call on a number; see SAFETY below")]
pub fn close_on_exec() {
    #[cfg(unix)]
    {
        let folder = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
        let Ok(open) = std::fs::read_dir(folder) else { return };
        for number in open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
            if number > 2 {
                // SAFETY: F_SETFD takes a file descriptor and a flag, and touches no memory.
                unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
            }
        }
    }
}
