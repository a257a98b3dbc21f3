//! The dry device's two libraries, which this program carries inside, and the door to them; see [`crate::dry`].

use super::{NativeError, checked, vl_dry_blocks, vl_dry_open};
use std::ffi::{CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The pretended CUDA runtime, to be preloaded; empty where the program was built with a libtorch without CUDA.
pub const RUNTIME: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dry_runtime.so"));

/// The backend, to be opened in a process that has the runtime; empty as [`RUNTIME`] is.
pub const BACKEND: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dry_backend.so"));

/// What the dry device pretends of the card and its libraries where PyTorch asks.
pub const ASSUMPTION: &str = "compute capability 9.0, cuDNN 9.19";

/// Why there is no dry device where [`is_built`] says so.
pub const NOT_BUILT: &str = "this program was built with a libtorch without CUDA, whose caching allocator a dry device runs; build it \
                             with PyTorch's CUDA build";

/// Whether this program carries the dry device.
pub fn is_built() -> bool {
    !RUNTIME.is_empty() && !BACKEND.is_empty()
}

/// Opens the dry device in this process, from a file that holds [`BACKEND`].
///
/// # Errors
/// The process has no pretended runtime, or has a real GPU's libraries; libtorch has no CUDA half; the loader's message.
pub fn open(backend: &Path) -> Result<(), NativeError> {
    let path = CString::new(backend.as_os_str().as_bytes()).map_err(|e| NativeError(e.to_string()))?;
    // SAFETY: the path is a C string that outlives the call.
    checked(unsafe { vl_dry_open(path.as_ptr()) })
}

/// A piece of a segment of the caching allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldBlock {
    /// Address and bytes of the segment that it is a piece of.
    pub segment: u64,
    pub segment_bytes: i64,
    pub address: u64,
    pub bytes: i64,
    /// Bytes that its user asked for; 0 where it is free.
    pub requested: i64,
    /// Whether the segment is one for large allocations.
    pub large: bool,
}

/// What the allocator of this process's dry device holds, segment by segment.
///
/// # Errors
/// The dry device is not open.
pub fn held_blocks() -> Result<Vec<HeldBlock>, NativeError> {
    let mut held: Vec<HeldBlock> = Vec::new();
    // SAFETY: `push_block` only runs during the call, while `held` is borrowed by nothing else.
    checked(unsafe { vl_dry_blocks((&raw mut held).cast(), push_block) })?;
    Ok(held)
}

extern "C" fn push_block(held: *mut c_void, told: *const i64) {
    // SAFETY: the vector is that of `held_blocks`, and C++ gives six values.
    let (held, told) = unsafe { (&mut *held.cast::<Vec<HeldBlock>>(), &*told.cast::<[i64; 6]>()) };
    let [segment, segment_bytes, address, bytes, requested, large] = *told;
    held.push(HeldBlock { segment: segment as u64, segment_bytes, address: address as u64, bytes, requested, large: large != 0 });
}
