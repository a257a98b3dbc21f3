//! What `tch` lacks, as a library that others could use.

mod attempt;
mod autocast;
mod device;
pub mod dry;
mod grad_scaler;
mod inference;
#[allow(unsafe_code)]
mod native;

pub use attempt::{attempt, is_out_of_memory};
pub use autocast::{allow_tf32, autocast};
pub use device::{Backend, COUNTS, Cpu, Cuda, DEVICE_USED, Memory, caching_allocator};
pub use grad_scaler::{GradScaler, Scalable, ScalerState};
pub use inference::{inference_mode, is_inference};
pub use native::{
    CpuMemory, CudaMemory, Forked, MemoryFile, NativeError, OutsideMemory, allocations, clear_cuda_workspaces, compiled_version,
    cpu_memory, cuda_memory, empty_cuda_cache, end_process, fork_process, keep_heap, limit_cpu_memory, load_cuda, loaded_library,
    meter, panic_message, reset_cpu_peak, reset_cuda_peaks, settings, transfer, trim_heap, use_cpu_meter,
};
