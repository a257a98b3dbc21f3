//! The lab's own commands that train a model: what they share, and each in a file of its own.

// Its macros are the whole crate's.
#[macro_use]
extern crate base;

mod compare;
mod gpu_day;
mod replay;
mod table;

pub use compare::{CompareOptions, compare};
pub use gpu_day::{GpuDayOptions, gpu_day};
pub use replay::{ReplayOptions, replay};
