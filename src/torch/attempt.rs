//! Panics as errors.

use crate::native;
use anyhow::Result;

/// Runs something that may panic, as tch's plain methods do on an error of libtorch, and gives the panic as an error.
///
/// # Errors
/// The error, or the panic's message.
pub fn attempt<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body))
        .unwrap_or_else(|panic| Err(anyhow::Error::msg(native::panic_message(&*panic))))
}
