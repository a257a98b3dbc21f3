//! Runs a command on the simulated GPU. What it leaves is a capture; what that means is said elsewhere.

mod caches;
pub mod clock;
pub mod executor;
mod held;
mod launched;
mod launcher;
pub mod libraries;
pub mod nvidia_smi;
pub mod session;
pub mod zygote;
