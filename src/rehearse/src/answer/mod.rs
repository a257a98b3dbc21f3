//! What a capture means: blocks with what they are for, the peak and what fills it, whether the card suffices, the time of a step.

mod account;
pub mod advice;
mod bounds;
mod cards;
mod contents;
mod ends;
mod facts;
mod findings;
mod host;
mod loss;
mod meter;
mod nccl;
mod out_of_memory;
mod passes;
mod peak;
mod phases;
mod place;
mod process;
pub mod reply;
mod streams;
pub(crate) mod technique;
pub mod time;
mod verdict;

pub use account::{Account, AccountRow, Part};
pub use cards::{CardAnswer, OnCard, Outside};
pub use contents::BlockGroup;
pub use findings::placeholders::may_decide;
pub use findings::{Finding, FindingKind};
pub use host::HostMemory;
pub use meter::meters;
pub use out_of_memory::Caught;
pub use passes::{Leftover, NeedlessGraphs, makes_steps, trains};
pub use phases::PhaseRow;
pub use place::{LiveBytes, MOST_ROWS, module_of, moment};
pub use process::{Checkpoint, ProcessAnswer};
pub use verdict::{Answer, FittingRun, RehearsalVerdict, SCHEMA, SimulatedGpu, answer, answers, is_near, surely};
