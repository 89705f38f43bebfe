//! Returns freed memory to the system.
//!
//! glibc keeps freed memory: after the model is loaded, over a hundred megabytes without a user. Its calls against that have no
//! safe form, so this is the second place with `unsafe`.

/// Blocks from this size on go back to the system as soon as they are freed. Larger than the answers of most calls, which would
/// otherwise be mapped again and again.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: i32 = 2 << 20;

/// Has the allocator keep little of what is freed. For the beginning of `main`. Does nothing with other allocators than glibc's.
///
/// Left to itself, glibc keeps blocks of the largest size that was ever freed, up to 32 MB, and twice as much at the end of the
/// heap of each thread, where [`give_back`] does not reach.
#[allow(unsafe_code)] // Two calls, with their reason.
pub fn keep_little() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt(3) takes two numbers, of those that its documentation names, and changes when memory is given back only.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * LARGE);
    }
}

/// Returns free pages to the system, which takes up to a few milliseconds. Does nothing with other allocators than glibc's.
#[allow(unsafe_code)] // One call, with its reason.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim(3) takes a number of bytes, locks each arena while it works on it, and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets the system take the memory of bytes that are compiled in and were read: they are in the program's file. Does nothing on
/// other systems than Linux, or if the file is someone else's.
#[allow(unsafe_code)] // One call, with its reason.
pub fn page_out(compiled_in: &'static [u8]) {
    #[cfg(target_os = "linux")]
    // SAFETY: madvise(2) with MADV_PAGEOUT takes any range and keeps its content, wherever that comes from. The range is widened
    // to whole pages, as the call wants.
    unsafe {
        let page = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).unwrap_or(4096);
        let before = compiled_in.as_ptr().addr() % page;
        let start = compiled_in.as_ptr().wrapping_sub(before).cast_mut().cast();
        libc::madvise(start, compiled_in.len() + before, libc::MADV_PAGEOUT);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = compiled_in;
}
