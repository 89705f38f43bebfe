//! Giving memory back to the system after something large is over.
//!
//! glibc keeps what was freed: after the model is loaded over a hundred megabytes that nobody uses. Its one call against that
//! has no safe form, so this is the second place where `unsafe` is allowed.

/// Gives the pages that hold nothing back to the system; takes up to a few milliseconds. Does nothing where the allocator
/// is another one.
#[allow(unsafe_code)] // One call, with its reason.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim(3) takes a number of bytes, locks each arena while it works on it, and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}
