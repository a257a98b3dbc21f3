//! The C library's heap.

use libc::{M_MMAP_MAX, M_TRIM_THRESHOLD, mallopt};

/// Gives back to the kernel what `malloc` holds and nobody uses (glibc). Says whether there was anything to give back.
pub fn trim_heap() -> bool {
    // SAFETY: a function of the C library that any thread may call at any time; memory in use is not touched.
    unsafe { libc::malloc_trim(0) != 0 }
}

/// Has `malloc` keep what is freed for what comes next (glibc). Otherwise it gives the end of its heap back to the kernel and asks for it
/// anew, in every training step or in none, by what happens to lie there. Says whether it obeys.
pub fn keep_heap() -> bool {
    // SAFETY: sets parameters of the C library, which lets any thread do so at any time.
    unsafe { mallopt(M_MMAP_MAX, 0) == 1 && mallopt(M_TRIM_THRESHOLD, i32::MAX) == 1 }
}
