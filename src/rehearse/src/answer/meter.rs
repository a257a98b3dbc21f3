//! The meters of PyTorch's allocator, from the events of a trace.

use crate::capture::process::Trace;
use sim::trace::Kind;
use std::collections::HashMap;

/// What the allocator's meters show of one card.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Meter {
    pub requested: i64,
    pub allocated: i64,
    pub reserved: i64,
    /// Of what is reserved, what an engine gave back without telling the allocator; and of that, what it takes again when it wakes.
    pub given_back: i64,
    pub asleep: i64,
}

/// The meters after each event.
pub fn meters(trace: &Trace, device: u16) -> impl Iterator<Item = Meter> {
    let mut meter = Meter::default();
    // By address: live blocks, and those that were given back but are not free for others yet.
    let (mut live, mut pending) = (HashMap::new(), HashMap::new());
    trace.events.iter().map(move |event| {
        match event.kind {
            _ if event.device != device => {}
            Kind::Alloc => {
                meter.requested += event.bytes;
                meter.allocated += event.rounded;
                live.insert(event.address, (event.bytes, event.rounded));
            }
            Kind::FreeRequested => {
                if let Some((bytes, rounded)) = live.remove(&event.address) {
                    meter.allocated -= rounded;
                    pending.insert(event.address, bytes);
                }
            }
            Kind::FreeCompleted => meter.requested -= pending.remove(&event.address).unwrap_or(0),
            Kind::SegmentAlloc | Kind::SegmentMap => meter.reserved += event.bytes,
            Kind::SegmentFree | Kind::SegmentUnmap => meter.reserved -= event.bytes,
            Kind::Outside if event.rounded != 0 => {
                meter.given_back -= event.bytes;
                meter.asleep -= if event.rounded == 1 { event.bytes } else { 0 };
            }
            _ => {}
        }
        meter
    })
}
