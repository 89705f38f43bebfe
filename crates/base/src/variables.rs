//! The environment of the process, and what is taken out of it at the start.
//!
//! A gateway reads `${TOKEN}` again at each reload, but no program that it starts should inherit the token by accident. So
//! the variables are copied once, and those that are for servers only leave the process's own environment.

use std::{ffi::OsString, sync::OnceLock};

/// All variables of the start, once some are hidden.
static ALL: OnceLock<Vec<(OsString, OsString)>> = OnceLock::new();

/// Returns a variable as it was at the start; `None` also where it is not UTF-8.
pub fn var(name: &str) -> Option<String> {
    match ALL.get() {
        Some(all) => {
            // Windows does not look at the case of a name.
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

/// Keeps a copy of all variables for [`var`] and [`all`], and removes from the process those that `stays` refuses by name and
/// value. For the beginning of `main` only: does nothing where the process has a second thread.
#[allow(unsafe_code)] // Removing a variable has no safe form; the reason stands beside it.
pub fn hide(stays: impl Fn(&str, &str) -> bool) {
    if !is_single_threaded() || ALL.set(std::env::vars_os().collect()).is_err() {
        return;
    }
    for (name, value) in all() {
        if !stays(&name.to_string_lossy(), &value.to_string_lossy()) {
            // SAFETY: no other thread reads the environment, because there is none.
            unsafe { std::env::remove_var(&name) };
        }
    }
}

/// Whether this is the only thread, as far as the system says so.
fn is_single_threaded() -> bool {
    match std::fs::read_dir("/proc/self/task") {
        Ok(tasks) => tasks.count() == 1,
        // Other systems do not say; the caller is the beginning of `main`.
        Err(_) => !cfg!(target_os = "linux"),
    }
}

/// Keeps open files that this process was given, besides the standard three, from the programs that it starts.
#[allow(unsafe_code)] // One call on a number; the reason stands beside it.
pub fn close_on_exec() {
    #[cfg(unix)]
    {
        let folder = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
        let Ok(open) = std::fs::read_dir(folder) else { return };
        for number in open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
            if number > 2 {
                // SAFETY: F_SETFD takes a number of a file and a flag, and touches no memory.
                unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
            }
        }
    }
}
