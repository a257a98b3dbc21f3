//! The device behind one small interface: where tensors live, what its memory meter says, what its clock says, what limits it.

use super::native::{self, CpuMemory};
use anyhow::{Result, anyhow, ensure};
use std::time::Instant;
use tch::Device;

/// What a memory meter shows, in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Memory {
    /// Bytes that live tensors asked for.
    pub requested: i64,
    /// Highest value of `requested` since the peaks were reset.
    pub requested_peak: i64,
    /// Bytes of the allocator's blocks in use, and of all that it holds from the driver; where there is no such allocator, `requested`.
    pub allocated: i64,
    pub reserved: i64,
    /// What else this device's meter knows, as metric and bytes.
    pub others: Vec<(&'static str, i64)>,
}

impl Memory {
    /// Bytes of the device that are in use, by whomever, as the driver says.
    ///
    /// # Errors
    /// There is no driver to say it: the CPU.
    pub fn used(&self) -> Result<i64> {
        let used = self.others.iter().find(|(metric, _)| *metric == DEVICE_USED);
        used.map(|(_, bytes)| *bytes).ok_or_else(|| anyhow!("only a GPU says how much of its memory is in use"))
    }
}

/// Of `Memory::others`, what is in use by whomever: other processes move it.
pub const DEVICE_USED: &str = "device_used";

/// Of `Memory::others`, those that count events and not bytes.
pub const COUNTS: [&str; 1] = ["allocation_retries"];

/// What PyTorch's caching allocator and the driver say of a CUDA device, real or simulated.
///
/// # Errors
/// CUDA is not initialised.
pub fn caching_allocator(index: i32) -> Result<Memory> {
    let m = native::cuda_memory(index)?;
    Ok(Memory {
        requested: m.requested,
        requested_peak: m.requested_peak,
        allocated: m.allocated,
        reserved: m.reserved,
        others: vec![
            ("allocated_peak", m.allocated_peak),
            ("reserved_peak", m.reserved_peak),
            ("inactive_split", m.inactive_split),
            (DEVICE_USED, m.total - m.free),
            ("allocation_retries", m.retries),
        ],
    })
}

/// A device to measure on.
pub trait Backend {
    fn device(&self) -> Device;

    /// Reads the memory meter.
    fn memory(&self) -> Result<Memory>;

    /// Sets the peaks of the meter to what is live now.
    fn reset_peaks(&self) -> Result<()>;

    /// Gives back what cuBLAS keeps of the device's memory for each thread that has multiplied; the next product takes it again.
    fn clear_workspaces(&self) -> Result<()> {
        Ok(())
    }

    /// Seconds that `body` takes by the device's clock, synchronised at its two edges and nowhere else.
    ///
    /// # Errors
    /// What `body` fails with; an error of the device that shows only now.
    fn time(&self, body: &mut dyn FnMut() -> Result<()>) -> Result<f64>;
}

/// The CPU: the counting allocator is its meter, the monotonic clock its timer.
#[derive(Debug)]
pub struct Cpu;

impl Cpu {
    /// Installs the counting allocator, with a limit on the bytes of all tensors where one is given.
    pub fn new(memory_limit: Option<u64>) -> Cpu {
        native::use_cpu_meter(true);
        native::limit_cpu_memory(memory_limit);
        Cpu
    }
}

impl Backend for Cpu {
    fn device(&self) -> Device {
        Device::Cpu
    }

    fn memory(&self) -> Result<Memory> {
        let CpuMemory { live, peak } = native::cpu_memory();
        Ok(Memory { requested: live, requested_peak: peak, allocated: live, reserved: live, others: Vec::new() })
    }

    fn reset_peaks(&self) -> Result<()> {
        native::reset_cpu_peak();
        Ok(())
    }

    fn time(&self, body: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        let start = Instant::now();
        body()?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// One CUDA device: PyTorch's caching allocator and the driver are its meter, events in its stream its timer. A limit on its memory is
/// the allocator's own (`per_process_memory_fraction`), set in the environment before the process starts.
#[derive(Debug)]
pub struct Cuda {
    index: i32,
}

impl Cuda {
    /// Opens a CUDA device; the first such call of a process must come before any other question about CUDA.
    ///
    /// # Errors
    /// This libtorch has no CUDA, there is no such device, or its context cannot be made.
    pub fn new(index: i32) -> Result<Cuda> {
        native::load_cuda().map_err(|e| anyhow!("libtorch's CUDA half cannot be loaded: {e}"))?;
        let count = tch::Cuda::device_count();
        ensure!(i64::from(index) < count, "there is no CUDA device {index}: libtorch sees {count}");
        // The allocator exists once something was allocated.
        drop(tch::Tensor::f_zeros([1], (tch::Kind::Float, Device::Cuda(index as usize)))?);
        Ok(Cuda { index })
    }
}

impl Backend for Cuda {
    fn device(&self) -> Device {
        Device::Cuda(self.index as usize)
    }

    fn memory(&self) -> Result<Memory> {
        tch::Cuda::synchronize(i64::from(self.index));
        caching_allocator(self.index)
    }

    fn reset_peaks(&self) -> Result<()> {
        tch::Cuda::synchronize(i64::from(self.index));
        native::reset_cuda_peaks(self.index)
    }

    fn clear_workspaces(&self) -> Result<()> {
        tch::Cuda::synchronize(i64::from(self.index));
        native::clear_cuda_workspaces()
    }

    fn time(&self, body: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        tch::Cuda::synchronize(i64::from(self.index));
        let start = native::CudaEvent::record(self.index)?;
        body()?;
        let end = native::CudaEvent::record(self.index)?;
        start.seconds_until(&end)
    }
}
