//! Techniques tried on a script: what each saves and costs.

mod picture;
mod row;
mod show;
mod techniques;
mod trials;

pub(crate) use row::VariantRow;
pub use techniques::{SETTINGS, only_help};
pub use trials::{BatchFlags, Trials, WhatIf, what_if};
