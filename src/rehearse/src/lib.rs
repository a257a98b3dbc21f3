//! `vramlab rehearse`: the user's own training script on a GPU that is not there.
//!
//! The script runs unmodified, in its own Python with its own PyTorch, on a simulated GPU: nothing is computed, and every allocation is made
//! by PyTorch's own caching allocator. A library that is preloaded into every
//! process (`src/sim/native/start.cpp`) has Python begin with our half (`python/`), which puts the device in place and tells what the script is doing; what it tells is read here ([`Trace`]) and made into an answer ([`Answer`]). Needs no libtorch of this program's own.

mod answer;
mod capture;
#[cfg(test)]
mod damaged;
mod explore;
mod run;
pub mod show;
mod words;

pub use answer::technique::remedies;
pub use answer::{Answer, ProcessAnswer, RehearsalVerdict, play_ranks, time};
pub use capture::held::{HeldBack, HeldBy, HeldFile, Sent};
pub use capture::process::{Exception, Frame, Process, Trace, is_library};
pub use capture::session::{Capture, ScriptFailed};
pub use capture::witness::Witness;
pub use explore::needs::RehearsalResult;
pub use explore::template::FlagTemplate;
pub use explore::{ci, fit, plan, preset, snapshot, versions, what_if};
pub use run::executor::{Rehearsal, was_interrupted};
pub use run::nvidia_smi::{NAME as NVIDIA_SMI, nvidia_smi};
pub use show::{check, diff, files, schema};
