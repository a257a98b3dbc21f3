//! The simulated GPU as it is put into other processes: the cards, and the C++ of `native/` as sources and, where this program was built with
//! a libtorch, as libraries. And what recorders of memory write ([`trace`]).

pub mod cards;
pub mod trace;

include!(concat!(env!("OUT_DIR"), "/libraries.rs"));

/// A simulated library by the name that PyTorch opens it by; empty where this program carries none.
pub fn library(soname: &str) -> &'static [u8] {
    LIBRARIES.iter().find(|(name, ..)| *name == soname).map_or(&[], |(.., library)| library)
}
