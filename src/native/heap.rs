//! The C library's heap.

unsafe extern "C" {
    fn malloc_trim(pad: usize) -> i32;
}

/// Gives back to the kernel what `malloc` holds and nobody uses (glibc). Says whether there was anything to give back.
pub fn trim_heap() -> bool {
    // SAFETY: a function of the C library that any thread may call at any time; memory in use is not touched.
    unsafe { malloc_trim(0) != 0 }
}
