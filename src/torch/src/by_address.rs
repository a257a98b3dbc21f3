//! Tables by address, for recordings that see many thousands of allocations in each step.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table by address. Rust's own hash withstands keys that strangers choose, and takes several times as long.
pub type ByAddress<T> = HashMap<u64, T, BuildHasherDefault<Numbers>>;

/// Hashes numbers, each mixed as by SplitMix64, so that every bit of one decides on every bit of the result.
#[derive(Debug, Clone, Copy, Default)]
pub struct Numbers(u64);

impl Hasher for Numbers {
    fn write_u64(&mut self, number: u64) {
        let mut mixed = (self.0 ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = mixed ^ mixed >> 31;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
