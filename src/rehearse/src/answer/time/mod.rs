//! How long a step takes on a card that is not there: predicted from what its operators have for the GPU to do, never measured.
//!
//! A rehearsal records the work of each operator ([`Work`](crate::capture::work::Work)); `device` says how long the card takes for it, `timeline` how host and device go side by
//! side, `predict` the answer, `loading` what the script's DataLoader gives beside it. docs/time.md has the formulas, what they were fitted
//! on and how far they were off.

mod device;
mod loading;
mod predict;
mod timeline;

pub use loading::Loading;
pub use predict::{ModuleTime, NOT_MODELLED, Prediction, TimeChange, predict};
