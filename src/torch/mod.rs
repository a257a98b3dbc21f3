//! What `tch` lacks, as a library that others could use.

mod attempt;
mod autocast;
mod checkpoint;
pub mod ddp;
mod device;
pub mod distributed;
mod grad_scaler;
mod held;
mod inference;
mod memory_history;
pub mod optimizers;
mod pickle;
pub mod profiler;
mod safetensors;
mod timeline;
pub mod transfer;

pub use crate::native::backward_keeping_graph;
pub use attempt::{attempt, is_out_of_memory};
pub use autocast::{Autocast, allow_tf32, autocast};
pub use checkpoint::{Checkpoint, checkpoint};
pub use device::{Backend, COUNTS, Cpu, Cuda, Memory, caching_allocator};
pub use grad_scaler::{GradScaler, Scalable, ScalerState};
pub use held::held_at_peak;
pub use inference::{Inference, inference_mode, is_inference};
pub use memory_history::{Kept, MemoryHistory};
pub use pickle::save_pickle;
pub use profiler::{Profiled, Profiler, Profiling, range};
pub use safetensors::SafetensorsFile;
pub use timeline::{Categories, Category, Event, Held, Made, Mark, Marked, Moment, Phase, Recorder, Recording, Stage, Timeline};
