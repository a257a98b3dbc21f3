//! The safe wrapper of `allocations.cpp`: every allocation of a device and its end, in order.

use super::{Message, NativeError, checked};
use std::ffi::{CStr, c_char, c_void};
use tch::Device;

type TakeAllocation = extern "C" fn(*mut c_void, *const Raw, usize);

#[repr(C)]
struct Raw {
    address: u64,
    bytes: i64,
    operation: *const c_char,
    allocated: i32,
}

unsafe extern "C" {
    fn vl_allocations_record(device: i32, with_operations: i32) -> Message;
    fn vl_allocations_stop();
    fn vl_allocations_take(taker: *mut c_void, take: TakeAllocation);
}

/// One allocation of a tensor's memory, or its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    pub address: u64,
    /// Bytes that were asked for.
    pub bytes: i64,
    /// Whether this is the end of an allocation.
    pub freed: bool,
    /// The operation in which it was made (`aten::linear`), as the program called it; none outside of any, and where names were not
    /// asked for.
    pub operation: Option<&'static str>,
}

/// Starts to record every allocation of a device: on the CPU those of the counting allocator, on CUDA those of PyTorch's caching
/// allocator, whichever thread makes them. What was recorded before is forgotten. Not while time is taken, least of all with operations.
///
/// # Errors
/// A device without such an allocator; CUDA's is not in this process, or is one (`backend:cudaMallocAsync`) that tells nothing.
pub fn record(device: Device, with_operations: bool) -> Result<(), NativeError> {
    let device = match device {
        Device::Cpu => -1,
        Device::Cuda(index) => i32::try_from(index).map_err(|e| NativeError(e.to_string()))?,
        other => return Err(NativeError(format!("allocations on {other:?} cannot be recorded"))),
    };
    // SAFETY: no pointers.
    checked(unsafe { vl_allocations_record(device, with_operations.into()) })
}

/// Ends the recording; what was recorded can still be taken.
pub fn stop() {
    // SAFETY: no pointers.
    unsafe { vl_allocations_stop() };
}

/// What was recorded since the last call, in order; forgets it.
pub fn take() -> Vec<Allocation> {
    let mut taken: Vec<Allocation> = Vec::new();
    // SAFETY: `push` only runs during the call, while `taken` is borrowed by nothing else.
    unsafe { vl_allocations_take((&raw mut taken).cast(), push) };
    taken
}

extern "C" fn push(taken: *mut c_void, first: *const Raw, count: usize) {
    if count == 0 {
        return;
    }
    // SAFETY: the vector is that of `take`, and C++ gives `count` records.
    let (taken, records) = unsafe { (&mut *taken.cast::<Vec<Allocation>>(), std::slice::from_raw_parts(first, count)) };
    let name = |operation: *const c_char| -> Option<&'static str> {
        // SAFETY: a name that is not null is a C string that C++ keeps for the life of the process.
        (!operation.is_null()).then(|| unsafe { CStr::from_ptr(operation) }.to_str().unwrap_or("unnamed"))
    };
    taken.extend(records.iter().map(|r| Allocation {
        address: r.address,
        bytes: r.bytes,
        freed: r.allocated == 0,
        operation: name(r.operation),
    }));
}
