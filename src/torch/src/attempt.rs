//! Panics as errors.

use super::native;
use anyhow::Result;

/// Runs something that may panic, as tch's plain methods do on an error of libtorch, and gives the panic as an error.
///
/// # Errors
/// The error, or the panic's message.
pub fn attempt<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body))
        .unwrap_or_else(|panic| Err(anyhow::Error::msg(native::panic_message(&*panic))))
}

/// Whether an error message is one of PyTorch's for memory that ran out, on any device.
pub fn is_out_of_memory(message: &str) -> bool {
    const MESSAGES: [&str; 7] = [
        "out of memory",
        "can't allocate memory",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "cudaErrorMemoryAllocation",
        // What libraries say that need memory of their own.
        "CUBLAS_STATUS_ALLOC_FAILED",
        "CUDNN_STATUS_ALLOC_FAILED",
        "unable to find an engine",
    ];
    MESSAGES.iter().any(|text| message.contains(text))
}
