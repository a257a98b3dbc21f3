//! How long a step takes on a card that is not there: predicted from what its operators have for the GPU to do, never measured.
//!
//! A rehearsal records the work of each operator ([`Work`](crate::capture::work::Work)); `device` says how long the card takes for it with the
//! `constants` of its kernels, `kernels` which of them were timed one by one, `timeline` how host and device go side by side, `wire` what ranks take to
//! move something, `stretch` what of a trace is timed, `predict` the `prediction` of it, `rows` its phases, modules and kernels, `bands` how far it may
//! be off, `power` the clock that is left to it, `prices` what it costs, `loading` what the
//! script's DataLoader gives beside it. docs/time.md has the formulas, what they were fitted on and how far they were off.

mod bands;
mod clock;
mod constants;
mod device;
mod kernels;
mod loading;
mod own;
mod power;
mod predict;
mod prediction;
mod prices;
mod rows;
mod stretch;
mod timeline;
pub mod tokens;
mod wire;

pub use crate::capture::work::Work;
pub use clock::clock;
pub use constants::{leave_out, use_launch_seconds};
pub use kernels::{HEADER as KERNELS, work_of};
pub use loading::Loading;
pub use own::{SCRIPT as TIMING, checked as checked_kernels, of_step as kernels_of, use_file as use_constants};
pub use power::use_limit as use_power_limit;
pub use predict::{play_ranks, predict};
pub use prediction::{Communication, HostWait, Prediction, RanksTogether, TOKEN, TimeChange};
pub use prices::{Cost, an_hour, use_file as use_prices};
pub use rows::by_class;
pub use timeline::Lane;
