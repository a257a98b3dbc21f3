//! How long a step takes on a card that is not there: predicted from what its operators have for the GPU to do, never measured.
//!
//! `work` is what a rehearsal recorded of each operator, `device` how long the card takes for it, `timeline` how host and device go side by
//! side, `predict` the answer, `loading` what the script's DataLoader gives beside it. docs/time.md has the formulas, what they were fitted
//! on and how far they were off.

mod device;
mod loading;
mod predict;
mod show;
mod timeline;
mod work;

pub use loading::{Fetch, Loading, ScriptLoader};
pub use predict::{ModuleTime, Prediction, TimeChange, predict};
pub use show::{prediction, side_by_side};
pub use work::Work;
