//! Which blocks of memory live at a peak, told apart by the operation that made them.

use super::native::allocations::{self, Allocation};
use anyhow::Result;
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
    allocations::record(device, true)?;
    let result = body();
    allocations::stop();
    let events = allocations::take();
    Ok((result?, at_peak(&events)))
}

fn at_peak(events: &[Allocation]) -> BTreeMap<String, i64> {
    let mut makers: HashMap<u64, &str> = HashMap::new();
    let (mut live, mut at_peak) = (BTreeMap::<(&str, i64), i64>::new(), BTreeMap::new());
    let (mut now, mut most) = (0, 0);
    for event in events {
        let (maker, change) = match event.freed {
            false => {
                let operation = event.operation.unwrap_or("-");
                makers.insert(event.address, operation);
                (operation, 1)
            }
            true => (makers.remove(&event.address).unwrap_or("before"), -1),
        };
        *live.entry((maker, event.bytes)).or_default() += change;
        now += change * event.bytes;
        if now > most {
            most = now;
            at_peak.clone_from(&live);
        }
    }
    let told = at_peak.into_iter().filter(|(_, blocks)| *blocks != 0);
    told.map(|((maker, bytes), blocks)| (format!("{maker}.{bytes}"), blocks)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lives_at_the_peak_is_told_by_operation_and_size() {
        let made = |address, bytes, operation| Allocation { address, bytes, freed: false, operation: Some(operation) };
        let freed = |address, bytes| Allocation { address, bytes, freed: true, operation: None };
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
        let told: Vec<(String, i64)> = at_peak(&events).into_iter().collect();
        assert_eq!(told, [("aten::add.50".into(), 1), ("aten::mm.100".into(), 2), ("before.30".into(), -1)]);
        assert!(at_peak(&[]).is_empty());
    }
}
