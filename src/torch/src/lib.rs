//! What `tch` lacks, as a library that others could use. Errors are messages of libtorch or CUDA where nothing else is said.

mod attempt;
mod device;
pub mod dry;
#[allow(unsafe_code)]
mod native;

pub use attempt::{attempt, is_out_of_memory};
pub use device::{Backend, COUNTS, Cpu, Cuda, DEVICE_USED, Memory, caching_allocator};
pub use native::{
    CpuMemory, CudaMemory, Forked, MemoryFile, OutsideMemory, allocations, allow_tf32, autocast, clear_cuda_workspaces,
    compiled_version, cpu_memory, cuda_memory, empty_cuda_cache, end_process, fork_process, inference_mode, keep_heap,
    limit_cpu_memory, load_cuda, loaded_library, meter, panic_message, reset_cpu_peak, reset_cuda_peaks, settings, transfer,
    trim_heap, use_cpu_meter, witness,
};
