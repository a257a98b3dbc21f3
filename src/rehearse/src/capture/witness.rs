//! The witness of a rehearsal: a digest of what its processes asked for, in order, which every version of this program gives that sees the same.
//!
//! Of each allocation its bytes, phase, step and operator; of each operator what it has for the GPU to do; and the most that was allocated in
//! each phase of each step. No addresses, no frees, no times, and nothing that is read of names in the script.

use super::process::Trace;
use super::session::Capture;
use sim::trace::Kind;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};

/// What processes asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Witness(Vec<String>);

impl Witness {
    pub fn of(capture: &Capture) -> Witness {
        Witness(capture.traces.iter().flat_map(rows).collect())
    }

    /// What this asks for first that another does not, with the place; none where both ask for the same.
    pub fn difference(&self, other: &Witness) -> Option<String> {
        let same = self.0.iter().zip(&other.0).take_while(|(a, b)| a == b).count();
        let at = |rows: &[String]| rows.get(same).cloned().unwrap_or_else(|| "nothing more".to_string());
        (self != other).then(|| format!("{} there, {} here (row {} of {})", at(&other.0), at(&self.0), same + 1, self.0.len()))
    }
}

/// 16 hexadecimal digits: FNV-1a over the rows.
impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let bytes = self.0.iter().flat_map(|row| row.bytes().chain([b'\n']));
        let hash =
            bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        write!(f, "{hash:016x}")
    }
}

fn rows(trace: &Trace) -> Vec<String> {
    let name = |operator: u32| trace.operators.get(&operator).map_or("?", String::as_str);
    let mut rows = Vec::new();
    let mut live: HashMap<u64, i64> = HashMap::new();
    let mut allocated = 0;
    let mut most: BTreeMap<_, i64> = BTreeMap::new();
    for event in &trace.events {
        match event.kind {
            Kind::Alloc => {
                let (bytes, rounded, operator) = (event.bytes, event.rounded, name(event.operator.into()));
                rows.push(format!("{operator}: {bytes} B in {rounded}, {} of step {}", event.phase, event.step));
                live.insert(event.address, rounded);
                allocated += rounded;
                let level = most.entry((event.step, event.phase)).or_default();
                *level = allocated.max(*level);
            }
            Kind::FreeRequested => allocated -= live.remove(&event.address).unwrap_or(0),
            _ => {}
        }
    }
    for work in trace.work.iter().filter(|work| work.is_of_card()) {
        let mut row =
            format!("{}: {:?}, {:?}, {} of step {}", name(work.operator), work.kind, work.precision, work.phase, work.step);
        let (m, n, k, batch) = (work.m, work.n, work.k, work.batch);
        // Writing to a string does not fail.
        let _ = write!(row, ", {} launches, {} FLOP, {} B, {m} x {n} x {k} x {batch}", work.launches, work.flops, work.bytes);
        rows.push(row);
    }
    rows.extend(most.into_iter().map(|((step, phase), bytes)| format!("{phase} of step {step}: {bytes} B at most")));
    rows
}
