//! The project's own files: its manifests and scripts.

mod manifests;
mod setup;
