//! The tests that experiments have in their own files, as one program: of those whose line in `experiments/Cargo.toml` says `test = false`, which
//! `build.rs` lists.
#![allow(dead_code, reason = "an experiment's main, and what it alone calls")]

include!(concat!(env!("OUT_DIR"), "/units.rs"));
