//! A training step as a library: what is trained ([`Configuration`]), how ([`Trainer`]), and where its bytes are ([`Ledger`]).
//!
//! The same code runs on any device. Nothing reads a value from the device on the way, except under `amp-fp16`, which must know whether
//! a gradient overflowed.

mod attribution;
mod configuration;
mod ledger;
mod trainer;

pub use attribution::{Category, Held};
pub use configuration::{CheckpointPolicy, Configuration, OptimizerKind, Precision};
pub use ledger::{Categories, Ledger, OutOfMemory, Stage};
pub use trainer::{Mark, Onward, Phase, Trainer};
