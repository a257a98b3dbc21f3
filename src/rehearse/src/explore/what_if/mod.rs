//! Techniques tried on a script: what each saves and costs.

mod picture;
mod row;
mod show;
mod trials;

pub(crate) use row::VariantRow;
pub use trials::{BatchFlags, Trials, WhatIf, only_help, what_if};
