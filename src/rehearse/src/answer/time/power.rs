//! The clock that a card's power leaves it over a step.
//!
//! A step's kernels draw `idle + (FLOPs * pJ + bytes * pJ) / time` watts at the clock that their constants are of. Where that is more than the card's
//! limit the clock falls, and energy with its square (voltage falls with the clock; assumed): what computes takes `1 / clock` times as long.
//! `power.csv` has limits by data sheets, and docs what the energies follow from. Cards that are not in it have their limit in their constants, or
//! none that was seen.

use sim::cards::Card;
use std::sync::OnceLock;

/// Of the limit, with nothing to do. Assumed.
const IDLE: f64 = 0.12;

/// By compute capability: joules of a FLOP in half precision, at the clock of the constants, and of a byte of memory.
///
/// An H100's large products run at 645 TFLOP/s for long and at 750 in short loops, with 700 W; an L40S's at 187 and 210, with 350 W; an A40's at 112,
/// with 300 W (records/times/README.md). HBM2 takes 3.9 pJ a bit, GDDR about twice that (O'Connor and others, Fine-Grained DRAM, MICRO 2017).
const ENERGIES: [((u32, u32), f64, f64); 3] = [((8, 6), 2.36e-12, 60e-12), ((8, 9), 1.85e-12, 60e-12), ((9, 0), 1.11e-12, 31e-12)];

static LIMIT: OnceLock<f64> = OnceLock::new();

/// The target's limit in watts, for the rest of the program's life.
pub fn use_limit(watts: f64) {
    let _ = LIMIT.set(watts);
}

/// Share of its clock that a card keeps where in so many seconds it computes so many FLOPs in half precision and moves so many bytes; 1 where
/// nothing is known of its power.
pub fn clock(card: &Card, flops: f64, bytes: f64, seconds: f64) -> f64 {
    let rows = include_str!("power.csv").lines().skip(1).filter_map(|line| line.split_once(','));
    let of_card = rows.filter(|(name, _)| card.name == Some(name)).find_map(|(_, watts)| watts.parse::<f64>().ok());
    let energies = ENERGIES.iter().find(|(capability, ..)| *capability == card.capability);
    let Some((&(_, of_flop, of_byte), watts)) = energies.zip(of_card) else { return 1.0 };
    let watts = LIMIT.get().copied().unwrap_or(watts);
    let drawn = (flops * of_flop + bytes * of_byte) / seconds.max(f64::MIN_POSITIVE);
    (watts * (1.0 - IDLE) / drawn.max(f64::MIN_POSITIVE)).sqrt().min(1.0)
}
