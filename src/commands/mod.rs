//! The lab's own commands that train a model: what they share, and each in a file of its own.

mod flags;
mod measure;
mod replay;
mod table;

pub use flags::ConfigurationFlags;
pub use measure::{MeasureOptions, measure};
pub use replay::{ReplayOptions, replay};
pub use table::bytes_by_phase;
