//! `vramlab rehearse`: the user's own training script on a GPU that is not there.
//!
//! The script runs unmodified, in its own Python with its own PyTorch, on a simulated GPU: nothing is computed, and every allocation is made
//! by PyTorch's own caching allocator. A library that is preloaded into every
//! process (`src/sim/native/start.cpp`) has Python begin with our half (`python/`), which puts the device in place and tells what the script is doing; what it tells is read here ([`Trace`]) and made into an answer ([`Answer`]). Needs no libtorch of this program's own.

mod answer;
pub mod check;
pub mod files;
pub mod fit;
mod growth;
mod launch;
mod libraries;
mod nvidia_smi;
pub mod preset;
mod replay;
mod session;
pub mod show;
pub mod snapshot;
mod template;
pub mod time;
mod trace;
pub mod what_if;

pub use answer::{Answer, ProcessAnswer, RehearsalVerdict};
pub use launch::{Rehearsal, RehearsalResult, ScriptFailed};
pub use nvidia_smi::{NAME as NVIDIA_SMI, nvidia_smi};
pub use template::FlagTemplate;
pub use trace::{Exception, Frame, Process, Trace, is_library};
