//! Rehearsals again and again: for the least memory that would do, for the largest batch, with techniques.

pub mod fit;
pub mod needs;
pub mod preset;
mod replay;
pub mod schema;
pub mod snapshot;
pub mod template;
mod unknown;
pub mod versions;
pub mod what_if;
