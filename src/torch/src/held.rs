//! Which blocks of memory live at a peak, told apart by the operation that made them.

use super::native::allocations;
use anyhow::Result;
use sim::trace::{Event, Kind};
use std::collections::{BTreeMap, HashMap};
use tch::Device;

/// Runs `body` and tells what lives at the peak of the CPU's tensors in it, beyond what lived before: how many blocks of an operation and
/// size, as `aten::mm.4096`. Blocks that lived before and are gone at the peak count negative, as `before.4096`; `-` stands for no
/// operation. On other devices nothing is told.
///
/// # Errors
/// What `body` fails with.
pub fn held_at_peak<T>(device: Device, body: impl FnOnce() -> Result<T>) -> Result<(T, BTreeMap<String, i64>)> {
    if device != Device::Cpu {
        return Ok((body()?, BTreeMap::new()));
    }
    allocations::record(device)?;
    let result = body();
    allocations::stop();
    let events = allocations::take();
    Ok((result?, at_peak(&events, |event| allocations::operation(event).unwrap_or("-"))))
}

fn at_peak(events: &[Event], operation: impl Fn(&Event) -> &'static str) -> BTreeMap<String, i64> {
    let mut makers: HashMap<u64, &str> = HashMap::new();
    let (mut live, mut at_peak) = (BTreeMap::<(&str, i64), i64>::new(), BTreeMap::new());
    let (mut now, mut most) = (0, 0);
    for event in events {
        let (maker, blocks) = match event.kind {
            Kind::Alloc => {
                makers.insert(event.address, operation(event));
                (operation(event), 1)
            }
            _ => (makers.remove(&event.address).unwrap_or("before"), -1),
        };
        *live.entry((maker, event.bytes)).or_default() += blocks;
        now += event.change();
        if now > most {
            most = now;
            at_peak.clone_from(&live);
        }
    }
    let counted = at_peak.into_iter().filter(|(_, blocks)| *blocks != 0);
    counted.map(|((maker, bytes), blocks)| (format!("{maker}.{bytes}"), blocks)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::trace::RECORD;

    #[test]
    fn what_lives_at_the_peak_is_told_by_operation_and_size() {
        const OPERATIONS: [&str; 4] = ["-", "aten::mm", "aten::relu", "aten::add"];
        let event = |kind, address: u64, bytes: i64, operation: &str| {
            let operator = OPERATIONS.iter().position(|name| *name == operation).unwrap();
            let mut record = [0; RECORD];
            record[0] = kind;
            record[8..16].copy_from_slice(&address.to_le_bytes());
            record[16..24].copy_from_slice(&bytes.to_le_bytes());
            record[68] = operator as u8;
            Event::read(&record, &mut vec![0]).unwrap()
        };
        let made = |address, bytes, operation| event(1, address, bytes, operation);
        let freed = |address, bytes| event(3, address, bytes, "-");
        let operation = |event: &Event| OPERATIONS[usize::from(event.operator)];
        let events = [
            made(1, 100, "aten::mm"),
            freed(9, 30),
            made(2, 100, "aten::mm"),
            made(3, 8, "aten::relu"),
            freed(3, 8),
            made(4, 50, "aten::add"),
            freed(1, 100),
            made(5, 60, "aten::mm"),
        ];
        let counted: Vec<(String, i64)> = at_peak(&events, operation).into_iter().collect();
        assert_eq!(counted, [("aten::add.50".into(), 1), ("aten::mm.100".into(), 2), ("before.30".into(), -1)]);
        assert!(at_peak(&[], operation).is_empty());
    }
}
