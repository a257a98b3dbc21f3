//! The lab's own commands that train a model: what they share, and each in a file of its own.

// Its macros are the whole crate's.
#[macro_use]
extern crate base;

mod gpu_day;

pub use gpu_day::{GpuDayOptions, gpu_day};
