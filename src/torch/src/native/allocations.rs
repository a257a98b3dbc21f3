//! The safe wrapper of `allocations.cpp`: every allocation of a device and its end, in order.

use super::{Message, checked};
use anyhow::{Result, bail};
use sim::trace::{Event, RECORD};
use std::ffi::c_void;
use tch::Device;

type TakeRecord = extern "C" fn(*mut c_void, *const [u8; RECORD], usize);

unsafe extern "C" {
    fn vl_allocations_record(device: i32) -> Message;
    fn vl_allocations_stop();
    fn vl_allocations_take(taker: *mut c_void, take: TakeRecord);
}

/// Starts to record every allocation of a device: on the CPU those of the counting allocator, on CUDA those of PyTorch's caching
/// allocator, whichever thread makes them. What was recorded before is forgotten.
///
/// # Errors
/// A device without such an allocator; CUDA's is not in this process, or is one (`backend:cudaMallocAsync`) that tells nothing.
pub fn record(device: Device) -> Result<()> {
    let device = match device {
        Device::Cpu => -1,
        Device::Cuda(index) => i32::try_from(index)?,
        other => bail!("allocations on {other:?} cannot be recorded"),
    };
    // SAFETY: no pointers.
    checked(unsafe { vl_allocations_record(device) })
}

/// Ends the recording; what was recorded can still be taken.
pub fn stop() {
    // SAFETY: no pointers.
    unsafe { vl_allocations_stop() };
}

/// What was recorded since the last call, in order: a [`Kind::Alloc`](sim::trace::Kind::Alloc), and a
/// [`Kind::FreeCompleted`](sim::trace::Kind::FreeCompleted) when the meter counts the block down. Forgets it.
pub fn take() -> Vec<Event> {
    let mut taken: Vec<Event> = Vec::new();
    // SAFETY: `push` only runs during the call, while `taken` is borrowed by nothing else.
    unsafe { vl_allocations_take((&raw mut taken).cast(), push) };
    taken
}

extern "C" fn push(taken: *mut c_void, first: *const [u8; RECORD], count: usize) {
    if count == 0 {
        return;
    }
    // SAFETY: the vector is that of `take`, and C++ gives `count` records without padding.
    let (taken, records) = unsafe { (&mut *taken.cast::<Vec<Event>>(), std::slice::from_raw_parts(first, count)) };
    // The recorder tells no streams apart.
    let mut streams = vec![0];
    taken.extend(records.iter().filter_map(|record| Event::read(record, &mut streams)));
}
