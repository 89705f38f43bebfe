//! Returns freed memory to the system.
//!
//! glibc keeps freed memory: after the model is loaded, over a hundred unused megabytes. The calls that
//! release it have no safe form, so this is the second place with `unsafe`.

/// Blocks of this size or larger go back to the system as soon as they are freed. Larger than most calls'
/// answers, which would otherwise be mapped again and again.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: i32 = 2 << 20;

/// Makes the allocator keep little freed memory. Call it at the beginning of `main`. Does nothing with
/// allocators other than glibc's.
///
/// By default, glibc keeps blocks as large as the largest one ever freed, up to 32 MB, and twice as much at
/// the end of each thread's heap, where [`give_back`] has no effect.
#[expect(unsafe_code, reason = "three calls, with their reason")]
pub fn keep_little() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt(3) takes two numbers, both from its documentation, and only changes where freed memory
    // goes.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * LARGE);
        // Each thread's cache suffices for small blocks. Blocks in the bins of this mechanism are merged with
        // their neighbours at every request for a large block, which every call makes.
        libc::mallopt(libc::M_MXFAST, 0);
    }
}

/// Returns free pages to the system, which takes up to a few milliseconds. Does nothing with allocators other
/// than glibc's.
#[expect(unsafe_code, reason = "one call, with its reason")]
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim(3) takes a number of bytes, locks each arena while trimming it, and touches only
    // free memory.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns how much memory this process has, in bytes, as far as the system tells.
pub fn resident() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    // Larger pages only make the figure smaller.
    pages.split(' ').nth(1)?.parse::<u64>().ok()?.checked_mul(4096)
}

/// Lets the system reclaim the memory of compiled-in bytes that were read: the program's file still has them.
/// Does nothing on systems other than Linux, or if the file belongs to another user.
#[expect(unsafe_code, reason = "one call, with its reason")]
pub fn page_out(compiled_in: &'static [u8]) {
    #[cfg(target_os = "linux")]
    // SAFETY: madvise(2) with MADV_PAGEOUT takes any range and keeps its content, whatever its source. The
    // range is widened to whole pages, as the call requires.
    unsafe {
        let page = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).unwrap_or(4096);
        let before = compiled_in.as_ptr().addr() % page;
        let start = compiled_in.as_ptr().wrapping_sub(before).cast_mut().cast();
        libc::madvise(start, compiled_in.len() + before, libc::MADV_PAGEOUT);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = compiled_in;
}
