//! What `tch` lacks, as a library that others could use.

mod attempt;
mod autocast;
mod checkpoint;
mod device;
mod grad_scaler;

pub use attempt::{attempt, is_out_of_memory};
pub use autocast::{Autocast, allow_tf32, autocast};
pub use checkpoint::{Checkpoint, checkpoint};
pub use device::{Backend, COUNTS, Cpu, Cuda, Memory, caching_allocator};
pub use grad_scaler::{GradScaler, Scalable, ScalerState};
