//! The simulated GPU's libraries, which this program carries inside, and the door to them; see [`crate::dry`].

use super::{checked, vl_dry_open};
use anyhow::Result;
use std::ffi::CString;
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
pub fn open(backend: &Path) -> Result<()> {
    let path = CString::new(backend.as_os_str().as_bytes())?;
    // SAFETY: the path is a C string that outlives the call.
    checked(unsafe { vl_dry_open(path.as_ptr()) })
}
