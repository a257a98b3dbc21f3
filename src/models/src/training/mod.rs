//! A training step as a library: what is trained ([`Configuration`]), and how ([`Trainer`]). Where its bytes are is recorded by
//! [`torch::Recorder`].
//!
//! The same code runs on any device. Nothing reads a value from the device on the way, except under `amp-fp16`, which must know whether
//! a gradient overflowed.

mod configuration;
mod trainer;

pub use configuration::{CheckpointPolicy, Configuration, OptimizerKind, Precision};
pub use trainer::Trainer;
