//! The simulated GPU's libraries, which this program carries inside, and the door to them; see [`crate::dry`].

use super::{
    NativeError, checked, vl_dry_blocks, vl_dry_clear_workspaces, vl_dry_give, vl_dry_open, vl_dry_take, vl_dry_workspaces,
};
use std::ffi::{CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The simulated CUDA runtime, to be preloaded; empty where the program was built with a libtorch without CUDA.
pub const RUNTIME: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/runtime.so"));

/// The simulated CUDA driver, to be preloaded beside it.
pub const DRIVER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/driver.so"));

/// The simulated compilers of kernels that PyTorch compiles while it runs, under the names of CUDA 12's and 13's, to be preloaded, too.
pub const COMPILERS: [&[u8]; 2] =
    [include_bytes!(concat!(env!("OUT_DIR"), "/nvrtc12.so")), include_bytes!(concat!(env!("OUT_DIR"), "/nvrtc13.so"))];

/// The kernels that take the place of PyTorch's where those cannot run, to be opened in a process that has the runtime; empty as [`RUNTIME`] is.
pub const BACKEND: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dry_backend.so"));

/// The cuDNN that the simulated GPU has.
pub const CUDNN: &str = "cuDNN 9.19";

/// Why there is no simulated GPU where [`is_built`] says so.
pub const NOT_BUILT: &str = "this program was built with a libtorch without CUDA, whose caching allocator a simulated GPU runs; build it \
                             with PyTorch's CUDA build";

/// Whether this program carries the simulated GPU.
pub fn is_built() -> bool {
    !RUNTIME.is_empty() && !BACKEND.is_empty()
}

/// Opens the simulated GPU in this process, from a file that holds [`BACKEND`].
///
/// # Errors
/// The process has no simulated runtime, or has a real GPU's libraries; libtorch has no CUDA half; the loader's message.
pub fn open(backend: &Path) -> Result<(), NativeError> {
    let path = CString::new(backend.as_os_str().as_bytes()).map_err(|e| NativeError(e.to_string()))?;
    // SAFETY: the path is a C string that outlives the call.
    checked(unsafe { vl_dry_open(path.as_ptr()) })
}

/// Bytes of the simulated GPU's memory, from its caching allocator; they are given back where this goes out of scope.
#[derive(Debug)]
pub struct DeviceAllocation(u64);

impl DeviceAllocation {
    /// Takes bytes as a tensor does; none where memory runs out, for no bytes at all, and before the device is open.
    pub fn take(bytes: u64) -> Option<DeviceAllocation> {
        // SAFETY: no pointers; the address is given back once, by `drop`.
        let address = unsafe { vl_dry_take(bytes) };
        (address != 0).then_some(DeviceAllocation(address))
    }

    pub fn address(&self) -> u64 {
        self.0
    }
}

impl Drop for DeviceAllocation {
    fn drop(&mut self) {
        // SAFETY: the address came from `take`, and this is the only one that gives it back.
        unsafe { vl_dry_give(self.0) };
    }
}

/// Gives back the workspaces that cuBLAS keeps for each thread that has multiplied; the next product of a thread takes a new one.
///
/// # Errors
/// The simulated GPU is not open.
pub fn clear_workspaces() -> Result<(), NativeError> {
    // SAFETY: no pointers.
    checked(unsafe { vl_dry_clear_workspaces() })
}

/// Addresses of the workspaces that cuBLAS was given.
///
/// # Errors
/// The simulated GPU is not open.
pub fn workspaces() -> Result<Vec<u64>, NativeError> {
    let mut found: Vec<u64> = Vec::new();
    // SAFETY: `push_address` only runs during the call, while `found` is borrowed by nothing else.
    checked(unsafe { vl_dry_workspaces((&raw mut found).cast(), push_address) })?;
    Ok(found)
}

extern "C" fn push_address(found: *mut c_void, fields: *const i64) {
    // SAFETY: the vector is that of `workspaces`, and C++ gives one value.
    let (found, fields) = unsafe { (&mut *found.cast::<Vec<u64>>(), *fields) };
    found.push(fields as u64);
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

/// What the allocator of this process's simulated GPU holds, segment by segment.
///
/// # Errors
/// The simulated GPU is not open.
pub fn held_blocks() -> Result<Vec<HeldBlock>, NativeError> {
    let mut held: Vec<HeldBlock> = Vec::new();
    // SAFETY: `push_block` only runs during the call, while `held` is borrowed by nothing else.
    checked(unsafe { vl_dry_blocks((&raw mut held).cast(), push_block) })?;
    Ok(held)
}

extern "C" fn push_block(held: *mut c_void, fields: *const i64) {
    // SAFETY: the vector is that of `held_blocks`, and C++ gives six values.
    let (held, fields) = unsafe { (&mut *held.cast::<Vec<HeldBlock>>(), &*fields.cast::<[i64; 6]>()) };
    let [segment, segment_bytes, address, bytes, requested, large] = *fields;
    held.push(HeldBlock { segment: segment as u64, segment_bytes, address: address as u64, bytes, requested, large: large != 0 });
}
