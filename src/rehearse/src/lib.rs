//! `vramlab rehearse`: the user's own training script on a GPU that is not there.
//!
//! The script runs unmodified, in its own Python with its own PyTorch, on a simulated GPU: nothing is computed, and every allocation is made
//! by PyTorch's own caching allocator. A library that is preloaded into every
//! process (`src/sim/native/start.cpp`) has Python begin with our half (`python/`), which puts the device in place and tells what the script is doing; what it tells is read here ([`Trace`]) and made into an answer ([`Answer`]). Needs no libtorch of this program's own.

// Its macros are the whole crate's.
#[macro_use]
extern crate base;

mod answer;
mod check;
mod command;
mod files;
mod fit;
mod growth;
mod launch;
mod libraries;
mod nvidia_smi;
mod preset;
mod replay;
mod session;
mod show;
pub mod snapshot;
mod template;
mod time;
mod trace;
mod what_if;

pub use answer::{Answer, Block, Category, ProcessAnswer, Verdict};
pub use command::rehearse;
pub use fit::{FitOptions, fit};
pub use launch::RehearseOptions;
pub use nvidia_smi::{NAME as NVIDIA_SMI, nvidia_smi};
pub use trace::{Event, Exception, Frame, Kind, Label, Phase, Process, Trace, is_library};
