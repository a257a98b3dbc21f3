//! An answer as text, JSON, pages and files of other programs.

mod badge;
mod cards;
pub mod check;
mod course;
pub mod diff;
pub mod files;
mod page;
mod perfetto;
mod pickle;
mod snapshot;
pub(crate) mod text;
mod time;
pub(crate) mod words;

pub use badge::badge;
pub use text::{answer, wrapped};
pub use time::side_by_side;
