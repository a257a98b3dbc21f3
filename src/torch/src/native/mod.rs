//! The safe wrappers of the C++ that stands beside them, here that of `shim.cpp`: the only unsafe code of the project.

pub mod allocations;
pub mod amp;
mod autocast;
pub mod dry;
mod heap;
mod inference;
mod library;
pub mod meter;
mod process;
mod settings;
pub mod transfer;
mod witness;

pub use amp::allow_tf32;
pub use autocast::autocast;
pub use heap::{keep_heap, trim_heap};
pub use inference::inference_mode;
pub use library::MemoryFile;
pub use meter::{CpuMemory, cpu_memory, limit_cpu_memory, reset_cpu_peak, use_cpu_meter};
pub use process::{Forked, end_process, fork_process};
pub use settings::settings;
pub use witness::witness;

use anyhow::{Error, Result};
use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;

type Message = *mut c_char;

type RawCudaEvent = c_void;

unsafe extern "C" {
    fn vl_free_message(message: Message);
    fn vl_compiled_version() -> *const c_char;
    fn vl_loaded_library() -> *const c_char;
    fn vl_load_cuda() -> Message;
    fn vl_cuda_reset_peaks(device: i32) -> Message;
    fn vl_outside_allocate(bytes: i64, out: *mut *mut c_void) -> Message;
    fn vl_outside_free(memory: *mut c_void);
    fn vl_cuda_meter_read(device: i32, out: *mut CudaMemory) -> Message;
    fn vl_cuda_empty_cache() -> Message;
    fn vl_cuda_clear_workspaces() -> Message;
    fn vl_dry_open(backend: *const c_char) -> Message;
    fn vl_event_record(device: i32, out: *mut *mut RawCudaEvent) -> Message;
    fn vl_event_elapsed(start: *mut RawCudaEvent, end: *mut RawCudaEvent, milliseconds: *mut f64) -> Message;
    fn vl_event_free(event: *mut RawCudaEvent);
}

/// Turns a message of the shim into a result and frees it.
fn checked(message: Message) -> Result<()> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: a message that is not null is a C string made by strdup, and this is its only reader.
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
    // SAFETY: it came from strdup and is freed once.
    unsafe { vl_free_message(message) };
    Err(Error::msg(text))
}

/// Version of the libtorch whose headers the shim was compiled with, without the build suffix: `2.11.0`.
pub fn compiled_version() -> String {
    // SAFETY: the function returns a string constant.
    unsafe { CStr::from_ptr(vl_compiled_version()) }.to_string_lossy().into_owned()
}

/// File of the libtorch that this process has loaded.
pub fn loaded_library() -> Option<PathBuf> {
    // SAFETY: the pointer is null or a string that the dynamic loader keeps for the life of the process.
    let path = unsafe {
        let path = vl_loaded_library();
        (!path.is_null()).then(|| CStr::from_ptr(path).to_string_lossy().into_owned())
    };
    path.map(PathBuf::from)
}

/// Loads CUDA's half of libtorch; must come before the first question about CUDA in the life of the process.
///
/// # Errors
/// The dynamic loader's message, where this libtorch has no CUDA or a library of it is missing.
pub fn load_cuda() -> Result<()> {
    // SAFETY: no arguments; the message is freed by `checked`.
    checked(unsafe { vl_load_cuda() })
}

/// The caching allocator's statistics of one CUDA device, and what the driver says of it, in bytes.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct CudaMemory {
    pub requested: i64,
    pub requested_peak: i64,
    pub allocated: i64,
    pub allocated_peak: i64,
    pub reserved: i64,
    pub reserved_peak: i64,
    pub inactive_split: i64,
    pub retries: i64,
    pub out_of_memory_errors: i64,
    pub free: i64,
    pub total: i64,
}

/// Reads a CUDA device's memory statistics.
///
/// # Errors
/// CUDA is not initialised (allocate a tensor first), or the device does not exist.
pub fn cuda_memory(device: i32) -> Result<CudaMemory> {
    let mut memory = CudaMemory::default();
    // SAFETY: the function writes eleven values, in the order of the struct's.
    checked(unsafe { vl_cuda_meter_read(device, &mut memory) })?;
    Ok(memory)
}

/// Sets a CUDA device's peaks to its current values.
pub fn reset_cuda_peaks(device: i32) -> Result<()> {
    // SAFETY: no pointers.
    checked(unsafe { vl_cuda_reset_peaks(device) })
}

/// Gives the caching allocator's unused segments back to the device.
pub fn empty_cuda_cache() -> Result<()> {
    // SAFETY: no pointers.
    checked(unsafe { vl_cuda_empty_cache() })
}

/// Gives back the workspaces that cuBLAS keeps for each thread and stream that has multiplied; the next product takes a new one.
pub fn clear_cuda_workspaces() -> Result<()> {
    // SAFETY: no pointers.
    checked(unsafe { vl_cuda_clear_workspaces() })
}

/// Memory of the current CUDA device that PyTorch's allocator knows nothing of, as another process or library would take it.
#[derive(Debug)]
pub struct OutsideMemory(*mut c_void);

impl OutsideMemory {
    /// Takes memory from the driver.
    ///
    /// # Errors
    /// There is not so much; this process has no CUDA runtime.
    pub fn take(bytes: u64) -> Result<OutsideMemory> {
        let mut memory = std::ptr::null_mut();
        let bytes = i64::try_from(bytes)?;
        // SAFETY: the function writes an owned pointer where it succeeds, and nothing where it fails.
        checked(unsafe { vl_outside_allocate(bytes, &mut memory) })?;
        Ok(OutsideMemory(memory))
    }
}

impl Drop for OutsideMemory {
    fn drop(&mut self) {
        // SAFETY: the memory is owned and freed once.
        unsafe { vl_outside_free(self.0) };
    }
}

/// A point in the current stream of a CUDA device, as the device's clock sees it.
#[derive(Debug)]
pub struct CudaEvent(*mut RawCudaEvent);

impl CudaEvent {
    /// Records an event in the current stream.
    pub fn record(device: i32) -> Result<CudaEvent> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the function writes an owned event where it succeeds, and nothing where it fails.
        checked(unsafe { vl_event_record(device, &mut raw) })?;
        Ok(CudaEvent(raw))
    }

    /// Seconds from this event to a later one; waits for the later one.
    ///
    /// # Errors
    /// CUDA's message; errors of kernels in between show here.
    pub fn seconds_until(&self, end: &CudaEvent) -> Result<f64> {
        let mut milliseconds = 0.0;
        // SAFETY: both events are alive and owned.
        checked(unsafe { vl_event_elapsed(self.0, end.0, &mut milliseconds) })?;
        Ok(milliseconds / 1e3)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned and freed once.
        unsafe { vl_event_free(self.0) };
    }
}

/// Text of a caught panic. tch's plain methods unwrap libtorch's error, so the error is looked for inside the debug text.
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
    let text = text.unwrap_or_else(|| "a panic without a message".to_string());
    match text.split_once("Torch(\"") {
        Some((_, quoted)) => quoted.trim_end_matches("\")").replace("\\n", "\n").replace("\\\"", "\""),
        None => text,
    }
}
