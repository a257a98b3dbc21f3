//! The lab's own commands that train a model: what they share, and each in a file of its own.

mod compare;
mod ddp;
mod dry_child;
mod flags;
mod gpu_day;
mod measure;
mod plan;
mod predict;
mod replay;
mod table;

pub use compare::{CompareOptions, compare};
pub use ddp::{DdpFlags, ddp};
pub use flags::{ConfigurationFlags, SettingsFlags};
pub use gpu_day::{GpuDayOptions, gpu_day};
pub use measure::{MeasureOptions, measure};
pub use plan::{PlanOptions, plan};
pub use predict::{PredictOptions, predict};
pub use replay::{ReplayOptions, replay};
pub use table::bytes_by_phase;
