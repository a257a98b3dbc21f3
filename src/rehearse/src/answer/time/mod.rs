//! How long a step takes on a card that is not there: predicted from what its operators have for the GPU to do, never measured.
//!
//! A rehearsal records the work of each operator ([`Work`](crate::capture::work::Work)); `device` says how long the card takes for it with the
//! `constants` of its kernels, `timeline` how host and device go side by side, `predict` the answer, `prices` what it costs, `loading` what the
//! script's DataLoader gives beside it. docs/time.md has the formulas, what they were fitted on and how far they were off.

mod calibrate;
mod clock;
mod constants;
mod device;
mod loading;
mod predict;
mod prices;
mod timeline;

pub use crate::capture::work::Work;
pub use calibrate::{SCRIPT as CALIBRATION, calibrated, work_of};
pub use clock::clock;
pub use constants::{use_file as use_constants, use_launch_seconds};
pub use loading::Loading;
pub use predict::{NOT_MODELLED, Prediction, TOKEN, TimeChange, by_class, predict};
pub use prices::{Cost, an_hour, use_file as use_prices};
