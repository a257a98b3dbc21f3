//! What measures: the language that experiments are written in, and the runner that plans, starts, times and records their cells.

// Its macros are the whole crate's.
#[macro_use]
extern crate base;

pub mod doctor;
pub mod lab;
pub mod machine;
pub mod measure;
pub mod process;
pub mod runner;

pub use runner::run;
