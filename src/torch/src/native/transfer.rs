//! Moving tensors between host and device: page-locked memory, streams and events, and copies that run beside the computation. The safe
//! wrapper of `transfer.cpp`.

pub use super::CudaEvent;

use super::{Message, RawCudaEvent, checked};
use anyhow::{Result, bail, ensure};
use std::marker::PhantomData;
use tch::{Device, Kind, Tensor};
use torch_sys::C_tensor;

unsafe extern "C" {
    fn vl_stream_current(device: i32, id: *mut i64) -> Message;
    fn vl_stream_from_pool(device: i32, id: *mut i64) -> Message;
    fn vl_stream_exchange(device: i32, id: i64, before: *mut i64) -> Message;
    fn vl_stream_wait(device: i32, id: i64, event: *const RawCudaEvent) -> Message;
    fn vl_stream_synchronize(device: i32, id: i64) -> Message;
    fn vl_event_record_on(device: i32, id: i64, out: *mut *mut RawCudaEvent) -> Message;
    fn vl_event_synchronize(event: *const RawCudaEvent) -> Message;
    fn vl_has_cuda_device() -> i32;
    fn vl_pinned_empty(sizes: *const i64, dimensions: usize, like: *const C_tensor, out: *mut *mut C_tensor) -> Message;
    fn vl_host_memory_read(out: *mut HostMemory) -> Message;
    fn vl_copy(to: *const C_tensor, from: *const C_tensor, non_blocking: i32) -> Message;
    fn vl_record_stream(tensor: *const C_tensor, device: i32, id: i64) -> Message;
}

/// A queue of work of one CUDA device: what is launched on one stream runs in order, different streams run side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stream {
    device: i32,
    id: i64,
}

impl Stream {
    /// The stream on which this thread's work for a device is launched now.
    ///
    /// # Errors
    /// The device is no CUDA device, or this process has none.
    pub fn current(device: Device) -> Result<Stream> {
        let (device, mut id) = (index(device)?, 0);
        // SAFETY: the function writes one value.
        checked(unsafe { vl_stream_current(device, &mut id) })?;
        Ok(Stream { device, id })
    }

    /// Another stream than the one that work is launched on by default, from libtorch's pool of 32 for each device, which it hands out in
    /// turns.
    pub fn side(device: Device) -> Result<Stream> {
        let (device, mut id) = (index(device)?, 0);
        // SAFETY: the function writes one value.
        checked(unsafe { vl_stream_from_pool(device, &mut id) })?;
        Ok(Stream { device, id })
    }

    pub fn device(&self) -> Device {
        Device::Cuda(usize::try_from(self.device).unwrap_or_default())
    }

    /// Has this thread launch its work for the device on this stream until the guard is dropped, also by a panic. Memory that tensors take
    /// meanwhile belongs to this stream. Guards nest, and must end in the reverse order of their beginning.
    pub fn enter(self) -> Result<OnStream> {
        let mut before = 0;
        // SAFETY: the function writes one value.
        checked(unsafe { vl_stream_exchange(self.device, self.id, &mut before) })?;
        Ok(OnStream { before: Stream { device: self.device, id: before }, _thread: PhantomData })
    }

    /// Has what is launched on this stream from now on wait for an event; the calling thread goes on at once.
    pub fn wait(self, event: &CudaEvent) -> Result<()> {
        // SAFETY: the event is alive.
        checked(unsafe { vl_stream_wait(self.device, self.id, event.0) })
    }

    /// An event that passes when all that this stream has been given so far is done. It takes no time; see [`CudaEvent::record`] for one that
    /// does.
    pub fn event(self) -> Result<CudaEvent> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the function writes an owned event where it succeeds, and nothing where it fails.
        checked(unsafe { vl_event_record_on(self.device, self.id, &mut raw) })?;
        Ok(CudaEvent(raw))
    }

    /// Has the calling thread wait until all that this stream has been given is done.
    ///
    /// # Errors
    /// CUDA's message; errors of kernels show here.
    pub fn synchronize(self) -> Result<()> {
        // SAFETY: no pointers.
        checked(unsafe { vl_stream_synchronize(self.device, self.id) })
    }
}

/// A region of this thread whose work goes to another stream; see [`Stream::enter`].
#[derive(Debug)]
pub struct OnStream {
    before: Stream,
    /// The current stream is a state of the thread, so the guard must not leave it.
    _thread: PhantomData<*const ()>,
}

impl Drop for OnStream {
    fn drop(&mut self) {
        let mut left = 0;
        // SAFETY: writes one value. Going back to a stream that was current cannot fail.
        let _ = checked(unsafe { vl_stream_exchange(self.before.device, self.before.id, &mut left) });
    }
}

impl CudaEvent {
    /// Has the calling thread wait until the event has passed.
    ///
    /// # Errors
    /// CUDA's message; errors of kernels before it show here.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the event is alive.
        checked(unsafe { vl_event_synchronize(self.0) })
    }
}

/// Index of a CUDA device that this process has.
fn index(device: Device) -> Result<i32> {
    let Device::Cuda(index) = device else {
        bail!("{device:?} has no streams; CUDA devices have");
    };
    ensure!(has_cuda_device(), "there is no CUDA device in this process, so there are no streams");
    Ok(i32::try_from(index)?)
}

/// Whether this process has opened a CUDA device, real or simulated.
fn has_cuda_device() -> bool {
    // SAFETY: no arguments; it asks a registry and the driver, and throws nothing.
    unsafe { vl_has_cuda_device() != 0 }
}

/// A new tensor of page-locked host memory; its values are whatever was there.
///
/// # Errors
/// There is no CUDA device; the memory cannot be locked.
pub fn pinned(size: &[i64], kind: Kind) -> Result<Tensor> {
    ensure!(
        has_cuda_device(),
        "pinned memory is locked by a GPU's driver for that GPU, and there is no CUDA device in this process: leave pinning off"
    );
    let like = Tensor::empty([0], (kind, Device::Cpu));
    let mut raw = std::ptr::null_mut();
    // SAFETY: sizes and `like` outlive the call; the function writes an owned tensor where it succeeds.
    checked(unsafe { vl_pinned_empty(size.as_ptr(), size.len(), like.as_ptr(), &mut raw) })?;
    // SAFETY: a new tensor that belongs to us.
    Ok(unsafe { Tensor::from_ptr(raw) })
}

/// What PyTorch's allocator of page-locked host memory holds, for all GPUs of the process.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct HostMemory {
    /// Bytes of all blocks, those that wait in its cache among them. Each block is a power of two.
    pub locked: i64,
    pub locked_peak: i64,
    /// Blocks that it holds now.
    pub blocks: i64,
    /// How often it asked the driver for a block.
    pub locks: i64,
}

/// Reads the allocator of page-locked host memory.
///
/// # Errors
/// No CUDA device has been opened in this process.
pub fn host_memory() -> Result<HostMemory> {
    let mut memory = HostMemory::default();
    // SAFETY: the function writes four values, in the order of the struct's.
    checked(unsafe { vl_host_memory_read(&mut memory) })?;
    Ok(memory)
}

/// Copies `from` into `to`, of the same shape, without a gradient. `non_blocking` says that the calling thread need not wait for the end
/// of a copy between pinned memory and a device: it goes on, and **who reads a host tensor or refills one before the copy is done gets or
/// sends other values, and nobody says so**. A copy from or to pageable memory waits all the same.
pub fn copy(to: &mut Tensor, from: &Tensor, non_blocking: bool) -> Result<()> {
    // SAFETY: both tensors are alive.
    checked(unsafe { vl_copy(to.as_ptr(), from.as_ptr(), non_blocking.into()) })
}

/// Says that a stream uses a tensor that was allocated on another one: the caching allocator then gives its memory to nobody before what
/// the stream has been given until the tensor is freed is done. Without it memory of a side stream is reused under the reader's hands.
pub fn record_stream(tensor: &Tensor, stream: Stream) -> Result<()> {
    let (of, on) = (tensor.device(), stream.device());
    ensure!(of == on, "a tensor on {of:?} is not used by a stream of {on:?}");
    // SAFETY: the tensor is alive.
    checked(unsafe { vl_record_stream(tensor.as_ptr(), stream.device, stream.id) })
}
