//! Memory that other streams may still use when it is given back: free at the next allocation here, and later on a GPU that is behind its host.

use crate::capture::process::Trace;
use base::units::Bytes;
use sim::trace::Kind;

/// Less than this is not worth a word.
const NOTED: i64 = 64 << 20;

/// None where no process gave back much of it.
pub fn note(trace: &Trace, lag: u32) -> Option<String> {
    let is_told = |kind| !matches!(kind, Kind::Mark | Kind::Label | Kind::Placeholder | Kind::Outside);
    let events: Vec<_> = trace.events.iter().filter(|event| is_told(event.kind)).collect();
    let (mut blocks, mut by_step) = (0, std::collections::BTreeMap::new());
    for (at, event) in events.iter().enumerate().filter(|(_, event)| event.kind == Kind::FreeRequested) {
        // What no other stream uses is free at once.
        if events.get(at + 1).is_none_or(|next| (next.kind, next.address) != (Kind::FreeCompleted, event.address)) {
            blocks += 1;
            *by_step.entry(event.step).or_insert(0) += event.bytes;
        }
    }
    let most = by_step.into_values().max().unwrap_or(0);
    (most >= NOTED).then(|| {
        let what = format!("{blocks} blocks were given back while another stream might use them, {} in one step at most", Bytes(most.unsigned_abs()));
        match lag {
            0 => format!("{what}: here they are free at the next allocation, on a GPU that is behind its host later. --lag 1000 shows what it would reserve then"),
            _ => format!("{what}; with --lag {lag} they are free {lag} kernels later"),
        }
    })
}
