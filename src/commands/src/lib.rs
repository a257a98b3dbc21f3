//! The lab's own commands that train a model: what they share, and each in a file of its own.

mod gpu_day;

pub use gpu_day::{GpuDayOptions, gpu_day};
