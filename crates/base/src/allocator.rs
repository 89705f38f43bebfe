//! Returns freed memory to the system.
//!
//! glibc keeps freed memory: after the model is loaded, over a hundred megabytes without a user. Its one call against that has
//! no safe form, so this is the second place with `unsafe`.

/// Returns free pages to the system, which takes up to a few milliseconds. Does nothing with other allocators than glibc's.
#[allow(unsafe_code)] // One call, with its reason.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim(3) takes a number of bytes, locks each arena while it works on it, and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}
