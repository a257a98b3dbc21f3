//! What each phase of each step has at most, and at its end.

use super::facts::Facts;
use super::meter::Meter;
use super::passes::phase_name;
use serde::Serialize;
use sim::trace::{Kind, Phase};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct PhaseRow {
    pub step: u32,
    pub phase: &'static str,
    /// Most allocated in it; allocated and reserved at its end.
    pub peak_allocated: i64,
    pub allocated: i64,
    pub reserved: i64,
}

pub fn phases(facts: &Facts) -> Vec<PhaseRow> {
    let mut rows: Vec<PhaseRow> = Vec::new();
    let mut at = 0;
    for stretch in facts.events().chunk_by(|a, b| (a.phase, a.step) == (b.phase, b.step)) {
        // Between two phases, and after the last step, nothing happens that is one of its own.
        let (mut has_allocated, mut peak, mut last) = (false, 0, Meter::default());
        for (event, meter) in stretch.iter().zip(&facts.levels[at..]) {
            last = *meter;
            if !facts.left_out.iter().any(|tried| tried.contains(&at)) {
                has_allocated |= matches!(event.kind, Kind::Alloc | Kind::OutOfMemory);
                peak = peak.max(meter.allocated);
            }
            at += 1;
        }
        if !has_allocated {
            continue;
        }
        let phase = stretch[0].phase;
        let step = if phase == Phase::Load { 0 } else { facts.step_of(&stretch[0]) };
        let name = phase_name(phase, facts.trains);
        let ended = PhaseRow { step, phase: name, peak_allocated: peak, allocated: last.allocated, reserved: last.reserved };
        match rows.iter_mut().rfind(|row| row.phase == name && row.step == step) {
            Some(row) => *row = PhaseRow { peak_allocated: row.peak_allocated.max(peak), ..ended },
            None => rows.push(ended),
        }
    }
    rows
}
