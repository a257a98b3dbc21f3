//! What a rehearsal leaves: the folder in which its processes wrote, and its reader.

pub mod held;
pub mod host;
pub mod loading;
pub mod occupancy;
pub mod plain;
pub mod process;
mod remarks;
pub mod session;
pub mod witness;
pub mod work;
