//! The safe wrapper of `meter.cpp`: the allocator that counts the bytes of CPU tensors; and the same as a library that another process can
//! load, with the recording of `allocations.cpp` and the settings of `settings.cpp`.

/// The library for another process that runs on the same libtorch, Python's above all: `vl_cpu_meter_use`, `vl_cpu_meter_read` and their
/// kin, `vl_allocations_record` and its, and `vl_settings`, as this program has them.
pub const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/meter.so"));

unsafe extern "C" {
    fn vl_cpu_meter_use(on: i32);
    fn vl_cpu_meter_limit(bytes: i64);
    fn vl_cpu_meter_reset_peak();
    fn vl_cpu_meter_read(out: *mut CpuMemory);
}

/// Bytes of the CPU's tensors, for all threads of the process.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct CpuMemory {
    pub live: i64,
    pub peak: i64,
}

/// Makes the counting allocator libtorch's allocator for CPU tensors, or libtorch's own again. Only tensors that are made while it is on
/// are counted.
pub fn use_cpu_meter(on: bool) {
    // SAFETY: replaces a global allocator; each block carries the deleter of the one that made it.
    unsafe { vl_cpu_meter_use(on.into()) };
}

/// Limits the bytes of CPU tensors; what goes beyond fails as out of memory. `None` lifts the limit.
pub fn limit_cpu_memory(bytes: Option<u64>) {
    let bytes = bytes.map_or(i64::MAX, |b| i64::try_from(b).unwrap_or(i64::MAX));
    // SAFETY: sets an atomic.
    unsafe { vl_cpu_meter_limit(bytes) };
}

pub fn reset_cpu_peak() {
    // SAFETY: sets an atomic.
    unsafe { vl_cpu_meter_reset_peak() };
}

pub fn cpu_memory() -> CpuMemory {
    let mut memory = CpuMemory::default();
    // SAFETY: the function writes two values, in the order of the struct's.
    unsafe { vl_cpu_meter_read(&mut memory) };
    memory
}
