//! `vramlab versions` and `vramlab bisect`: a script with other versions of what it imports, and which of them made its peak grow.

pub mod bisect;
mod environments;
mod figure;
mod followed;
mod ranges;
mod rows;
mod trial;

pub(super) use environments::in_path;
pub use environments::{Base, Environments, clear};
pub use figure::Figure;
pub use ranges::{Pin, Wanted, combinations};
pub use rows::{Table, rows};
pub use trial::Trial;
