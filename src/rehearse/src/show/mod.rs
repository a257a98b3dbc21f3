//! An answer as text, JSON, pages and files of other programs.

mod badge;
mod cards;
pub mod check;
pub mod ci;
mod course;
pub mod diff;
pub mod files;
mod page;
mod perfetto;
mod pickle;
mod schema;
mod short;
mod snapshot;
mod text;
mod time;

pub use crate::words::wrapped;
pub use badge::badge;
pub use schema::schema;
pub use short::{is_head, short};
pub use text::{answer, of_snapshot};
pub use time::side_by_side;
