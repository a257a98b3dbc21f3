//! The safe wrapper of `memory_history.cpp`; see [`crate::MemoryHistory`] for what to use.

use super::{Message, NativeError, checked};
use std::ffi::{CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

unsafe extern "C" {
    fn vl_memory_history_begin(entries: u64) -> Message;
    fn vl_memory_history_end();
    fn vl_memory_history_save(path: *const c_char, entries: *mut u64, allocated: *mut i64) -> Message;
}

/// Begins to keep the last `entries` allocations and frees of every CUDA device.
///
/// # Errors
/// There is no such allocator in this process.
pub fn begin(entries: u64) -> Result<(), NativeError> {
    // SAFETY: no pointers.
    checked(unsafe { vl_memory_history_begin(entries) })
}

/// Ends it, and forgets what was kept.
pub fn end() {
    // SAFETY: no pointers.
    unsafe { vl_memory_history_end() };
}

/// Writes a snapshot; gives how many allocations and frees were kept, and the bytes that the allocations asked for.
///
/// # Errors
/// There is no such allocator in this process; the file cannot be written.
pub fn save(path: &Path) -> Result<(u64, i64), NativeError> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|e| NativeError(e.to_string()))?;
    let (mut entries, mut allocated) = (0, 0);
    // SAFETY: the path outlives the call, which writes the two numbers.
    checked(unsafe { vl_memory_history_save(path.as_ptr(), &mut entries, &mut allocated) })?;
    Ok((entries, allocated))
}
