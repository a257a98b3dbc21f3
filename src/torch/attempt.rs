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
    ["out of memory", "can't allocate memory", "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation"]
        .iter()
        .any(|m| message.contains(m))
}
