//! A lab that measures what each PyTorch memory and speed technique saves and costs on the machine in front of you, and says which
//! of the guides' claims hold there.
//!
//! The layers, bottom up: [`stats`] and [`units`]; [`protocol`]; [`record`]; [`verdict`]; from there two branches that never meet:
//! what measures (feature `torch`) and what reports.

pub mod protocol;
pub mod record;
pub mod report;
pub mod stats;
pub mod units;
pub mod verdict;
