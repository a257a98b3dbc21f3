//! A lab that measures what each PyTorch memory and speed technique saves and costs on the machine in front of you, and says which
//! of the guides' claims hold there.
//!
//! The layers, bottom up: [`stats`] and [`units`]; [`protocol`]; [`rounds`]; [`results`]; [`judge`]; from there two branches that never meet:
//! what measures (feature `torch`) and what reports. [`rehearse`] stands beside both. docs/architecture.md is the map.

// First, so that its macros are everybody's.
#[macro_use]
pub mod console;

pub mod cards;
pub mod chart;
#[cfg(feature = "torch")]
pub mod commands;
#[cfg(feature = "torch")]
pub mod data;
#[cfg(feature = "torch")]
pub mod doctor;
#[cfg(feature = "torch")]
pub mod dry;
pub mod inline;
pub mod judge;
#[cfg(feature = "torch")]
pub mod lab;
#[cfg(feature = "torch")]
pub mod machine;
#[cfg(feature = "torch")]
pub mod measure;
#[cfg(feature = "torch")]
pub mod models;
pub mod pairs;
#[cfg(feature = "torch")]
pub mod process;
pub mod protocol;
pub mod rehearse;
pub mod report;
pub mod results;
pub mod rounds;
#[cfg(feature = "torch")]
pub mod runner;
pub mod snapshot;
pub mod stats;
#[cfg(feature = "torch")]
pub mod torch;
#[cfg(feature = "torch")]
pub mod training;
pub mod units;

#[cfg(feature = "torch")]
pub use runner::run;
