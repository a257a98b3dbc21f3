//! Experiments as programs: measured, stopped, added.

mod adding;
mod dry_transfer;
mod faults;
mod load_checkpoint;
mod real_gpus;
mod tracker;
