//! Moving batches between host and device: page-locked memory, streams and events, and copies that run beside the computation.
//!
//! - [`pinned`] gives host tensors of page-locked memory, [`copy`] copies with or without waiting, [`host_memory`] says what is locked.
//! - [`Stream`] and [`CudaEvent`] order work: a copy on a [`Stream::side`] stream runs under a step on the current one.
//! - [`Ring`] keeps a few host buffers that are filled again and again: locking memory is slow (the driver maps every page), so it is done
//!   once. A buffer comes out of the ring only after the copy that reads it is done.
//! - [`Prefetcher`] copies the next batch while the current one is worked on, in order and without a thread of its own.
//!
//! ```no_run
//! # use tch::{Device, Kind, Tensor};
//! # use torch::transfer::{CudaEvent, Next, Prefetcher, Ring, SideStream, Source, pinned};
//! # use std::sync::Arc;
//! struct Batches { ring: Ring<Vec<Tensor>, CudaEvent>, left: usize }
//!
//! impl Source for Batches {
//!     type Host = Vec<Tensor>;
//!     type Done = CudaEvent;
//!
//!     fn next(&mut self, _wait: bool) -> anyhow::Result<Next<Vec<Tensor>>> {
//!         if self.left == 0 {
//!             return Ok(Next::End);
//!         }
//!         self.left -= 1;
//!         let Some(mut batch) = self.ring.take()? else { return Ok(Next::End) };
//!         let _ = batch[0].fill_(self.left as f64); // Here a loader fills the buffer.
//!         Ok(Next::Batch(batch))
//!     }
//!
//!     fn give_back(&mut self, batch: Vec<Tensor>, until: Arc<CudaEvent>) {
//!         self.ring.give_back(batch, Some(until));
//!     }
//! }
//!
//! # fn main() -> anyhow::Result<()> {
//! let device = Device::Cuda(0);
//! let buffers = (0..3).map(|_| Ok(vec![pinned(&[64, 3, 224, 224], Kind::Float)?])).collect::<anyhow::Result<Vec<_>>>()?;
//! let source = Batches { ring: Ring::of(buffers), left: 100 };
//! let mut batches = Prefetcher::new(source, SideStream::new(device)?);
//! while let Some(batch) = batches.next()? {
//!     // A training step with batch[0], on the device; the next batch is being copied.
//! }
//! # Ok(())
//! # }
//! ```

pub use super::native::CudaEvent;
pub use super::native::transfer::{
    HostMemory, OnStream, Stream, copy, has_cuda_device, host_memory, is_pinned, pinned, record_stream,
};

use anyhow::{Result, bail};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tch::{Device, Tensor};

/// The end of something that runs beside the calling thread: a copy, say.
pub trait Completion {
    /// Waits for it.
    ///
    /// # Errors
    /// What it failed with.
    fn wait(&self) -> Result<()>;
}

impl Completion for CudaEvent {
    fn wait(&self) -> Result<()> {
        Ok(self.synchronize()?)
    }
}

/// Host buffers `B` that are filled and read by a device in turns. A buffer is owned by whoever took it; it comes back with the event after
/// which the device no longer reads it, and [`Ring::take`] waits for that event: nobody can refill a buffer under a copy. Clones are
/// handles to the same ring, for threads that fill and threads that send.
#[derive(Debug)]
pub struct Ring<B, D> {
    shared: Arc<RingShared<B, D>>,
}

#[derive(Debug)]
struct RingShared<B, D> {
    state: Mutex<RingState<B, D>>,
    changed: Condvar,
}

#[derive(Debug)]
struct RingState<B, D> {
    /// Buffers that came back, the oldest first: its copy ends first.
    back: VecDeque<(B, Option<Arc<D>>)>,
    closed: bool,
}

impl<B, D> Clone for Ring<B, D> {
    fn clone(&self) -> Self {
        Ring { shared: Arc::clone(&self.shared) }
    }
}

impl<B, D: Completion> Ring<B, D> {
    /// A ring of these buffers. For a copy to run while the next batch is filled there must be two; a loader that works `n` batches ahead
    /// wants `n` more.
    pub fn of(buffers: impl IntoIterator<Item = B>) -> Ring<B, D> {
        let back = buffers.into_iter().map(|buffer| (buffer, None)).collect();
        Ring { shared: Arc::new(RingShared { state: Mutex::new(RingState { back, closed: false }), changed: Condvar::new() }) }
    }

    /// Takes a buffer to fill: waits until one is back, and then until its last copy is done. None once the ring is closed.
    ///
    /// # Errors
    /// What the copy failed with; the buffer is lost then.
    pub fn take(&self) -> Result<Option<B>> {
        let mut state = self.lock();
        let (buffer, until) = loop {
            if state.closed {
                return Ok(None);
            }
            match state.back.pop_front() {
                Some(lent) => break lent,
                None => state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(state);
        if let Some(until) = until {
            until.wait()?;
        }
        Ok(Some(buffer))
    }

    /// Brings a buffer back; the device reads it until `until` has passed.
    pub fn give_back(&self, buffer: B, until: Option<Arc<D>>) {
        self.lock().back.push_back((buffer, until));
        self.shared.changed.notify_one();
    }

    /// Ends the waiting of all who want a buffer, for good.
    pub fn close(&self) {
        self.lock().closed = true;
        self.shared.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, RingState<B, D>> {
        // Nothing that can panic runs under the lock.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a source of batches says when it is asked for the next one.
#[derive(Debug)]
pub enum Next<H> {
    Batch(H),
    /// It is still being made; only where the asker did not want to wait.
    NotYet,
    End,
}

/// Who fills host batches, in order.
pub trait Source {
    type Host;
    type Done;

    /// The next batch; waits for it if `wait` says so.
    ///
    /// # Errors
    /// The batch cannot be made.
    fn next(&mut self, wait: bool) -> Result<Next<Self::Host>>;

    /// Takes a batch back whose buffer may be filled again once `until` has passed.
    fn give_back(&mut self, host: Self::Host, until: Arc<Self::Done>);
}

/// How a batch gets from the host to a device.
pub trait Transfer {
    type Host;
    type Device;
    type Done: Completion;

    /// Starts a copy and returns at once.
    ///
    /// # Errors
    /// The device's message.
    fn start(&mut self, host: &Self::Host) -> Result<(Self::Device, Self::Done)>;

    /// Makes the batch ready for what is launched from now on; the calling thread does not wait.
    ///
    /// # Errors
    /// The device's message.
    fn hand_over(&mut self, device: &Self::Device, done: &Self::Done) -> Result<()>;
}

/// Copies on a stream of its own, so that they run beside what is launched on the current one. Copies of pageable tensors are right too,
/// but keep the calling thread waiting.
#[derive(Debug)]
pub struct SideStream {
    device: Device,
    stream: Stream,
}

impl SideStream {
    /// Opens a stream for copies to a device.
    ///
    /// # Errors
    /// The device is no CUDA device.
    pub fn new(device: Device) -> Result<SideStream> {
        Ok(SideStream { device, stream: Stream::side(device)? })
    }
}

impl Transfer for SideStream {
    type Host = Vec<Tensor>;
    type Device = Vec<Tensor>;
    type Done = CudaEvent;

    fn start(&mut self, host: &Vec<Tensor>) -> Result<(Vec<Tensor>, CudaEvent)> {
        let region = self.stream.enter()?;
        let copies = host.iter().map(|t| t.f_to_device_(self.device, t.kind(), true, true)).collect::<Result<Vec<_>, _>>()?;
        drop(region);
        Ok((copies, self.stream.event()?))
    }

    fn hand_over(&mut self, device: &Vec<Tensor>, done: &CudaEvent) -> Result<()> {
        let computing = Stream::current(self.device)?;
        computing.wait(done)?;
        // Their memory belongs to the stream of the copies, which must not reuse it before the step is done with it.
        Ok(device.iter().try_for_each(|tensor| record_stream(tensor, computing))?)
    }
}

/// One that outlives the epoch that it copies for.
impl<T: Transfer> Transfer for &mut T {
    type Host = T::Host;
    type Device = T::Device;
    type Done = T::Done;

    fn start(&mut self, host: &T::Host) -> Result<(T::Device, T::Done)> {
        (**self).start(host)
    }

    fn hand_over(&mut self, device: &T::Device, done: &T::Done) -> Result<()> {
        (**self).hand_over(device, done)
    }
}

/// Gives the batches of a source on the device, in order, and copies the next ones meanwhile.
#[derive(Debug)]
pub struct Prefetcher<S, T: Transfer> {
    source: S,
    transfer: T,
    ahead: usize,
    under_way: VecDeque<(T::Device, Arc<T::Done>)>,
    ended: bool,
    /// What ended it, until the batches before have been given.
    failure: Option<anyhow::Error>,
}

impl<T: Transfer, S: Source<Host = T::Host, Done = T::Done>> Prefetcher<S, T> {
    /// Copies one batch ahead of the one that is worked on: the device holds two.
    pub fn new(source: S, transfer: T) -> Self {
        Self::ahead(source, transfer, 1)
    }

    /// Copies up to `ahead` batches ahead; 0 copies each when it is asked for.
    pub fn ahead(source: S, transfer: T, ahead: usize) -> Self {
        Prefetcher { source, transfer, ahead, under_way: VecDeque::new(), ended: false, failure: None }
    }

    /// The next batch on the device, for the current stream. Waits for the source only if no batch is under way: one that is late does not
    /// hold up the step before it.
    ///
    /// # Errors
    /// What the source or a copy fails with; the batches before it come first.
    #[allow(clippy::should_implement_trait)] // An error in the middle of `for` would be silence.
    pub fn next(&mut self) -> Result<Option<T::Device>> {
        if self.under_way.is_empty() {
            self.start(true)?;
        }
        let Some((device, done)) = self.under_way.pop_front() else {
            return self.failure.take().map_or(Ok(None), Err);
        };
        self.transfer.hand_over(&device, &done)?;
        while self.under_way.len() < self.ahead {
            match self.start(false) {
                Ok(true) => {}
                Ok(false) => break,
                Err(e) => {
                    self.ended = true;
                    self.failure = Some(e);
                    break;
                }
            }
        }
        Ok(Some(device))
    }

    /// Starts the copy of the source's next batch; false where there is none (yet).
    fn start(&mut self, wait: bool) -> Result<bool> {
        if self.ended {
            return Ok(false);
        }
        match self.source.next(wait)? {
            Next::Batch(host) => {
                let (device, done) = self.transfer.start(&host)?;
                let done = Arc::new(done);
                self.source.give_back(host, Arc::clone(&done));
                self.under_way.push_back((device, done));
                Ok(true)
            }
            Next::NotYet if wait => bail!("a source of batches had nothing to give when it was asked to wait for it"),
            Next::NotYet => Ok(false),
            Next::End => {
                self.ended = true;
                Ok(false)
            }
        }
    }

    /// The source, for what it knows besides batches.
    pub fn source(&self) -> &S {
        &self.source
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    /// A host buffer that says what it holds.
    type Buffer = Arc<AtomicU64>;

    /// A copy that reads its buffer as late as it may: when somebody waits for it, or the device gets round to it.
    #[derive(Debug)]
    struct Copying {
        host: Buffer,
        device: Buffer,
        done: AtomicBool,
    }

    impl Copying {
        fn finish(&self) {
            if !self.done.swap(true, Ordering::SeqCst) {
                self.device.store(self.host.load(Ordering::SeqCst), Ordering::SeqCst);
            }
        }
    }

    /// A handle to a copy; copies of one stream end in their order.
    #[derive(Debug)]
    struct Done {
        stream: Arc<Mutex<Vec<Arc<Copying>>>>,
        position: usize,
    }

    impl Completion for Done {
        fn wait(&self) -> Result<()> {
            self.stream.lock().unwrap()[..=self.position].iter().for_each(|copying| copying.finish());
            Ok(())
        }
    }

    #[derive(Debug, Default)]
    struct Device {
        stream: Arc<Mutex<Vec<Arc<Copying>>>>,
        handed_over: usize,
        /// Most copies that had been started and not been handed over.
        most_ahead: usize,
    }

    impl Transfer for Device {
        type Host = Buffer;
        type Device = Buffer;
        type Done = Done;

        fn start(&mut self, host: &Buffer) -> Result<(Buffer, Done)> {
            let device = Buffer::default();
            let mut stream = self.stream.lock().unwrap();
            stream.push(Arc::new(Copying { host: host.clone(), device: device.clone(), done: AtomicBool::new(false) }));
            self.most_ahead = self.most_ahead.max(stream.len() - self.handed_over);
            Ok((device, Done { stream: Arc::clone(&self.stream), position: stream.len() - 1 }))
        }

        fn hand_over(&mut self, _: &Buffer, _: &Done) -> Result<()> {
            // What is launched from now on waits; nothing has to have been copied yet.
            self.handed_over += 1;
            Ok(())
        }
    }

    /// Fills buffers of a ring with 1, 2, 3, and is sometimes late.
    struct Counting {
        ring: Ring<Buffer, Done>,
        next: u64,
        last: u64,
        late: Vec<bool>,
        asked: usize,
        fails_at: Option<u64>,
        forgets_the_event: bool,
    }

    impl Source for Counting {
        type Host = Buffer;
        type Done = Done;

        fn next(&mut self, wait: bool) -> Result<Next<Buffer>> {
            self.asked += 1;
            if !wait && !self.late.is_empty() && self.late[self.asked % self.late.len()] {
                return Ok(Next::NotYet);
            }
            if self.next == self.last {
                return Ok(Next::End);
            }
            let Some(buffer) = self.ring.take()? else { return Ok(Next::End) };
            self.next += 1;
            anyhow::ensure!(self.fails_at != Some(self.next), "batch {} cannot be read", self.next);
            buffer.store(self.next, Ordering::SeqCst);
            Ok(Next::Batch(buffer))
        }

        fn give_back(&mut self, host: Buffer, until: Arc<Done>) {
            let until = if self.forgets_the_event { None } else { Some(until) };
            self.ring.give_back(host, until);
        }
    }

    fn counting(buffers: usize, last: u64, late: &[bool]) -> Counting {
        let ring = Ring::of((0..buffers).map(|_| Buffer::default()));
        Counting { ring, next: 0, last, late: late.to_vec(), asked: 0, fails_at: None, forgets_the_event: false }
    }

    /// What the device holds of each batch in the end.
    fn received(mut batches: Prefetcher<Counting, Device>) -> (Vec<u64>, usize) {
        let mut devices = Vec::new();
        while let Some(device) = batches.next().unwrap() {
            devices.push(device);
        }
        batches.transfer.stream.lock().unwrap().iter().for_each(|copying| copying.finish());
        (devices.iter().map(|device| device.load(Ordering::SeqCst)).collect(), batches.transfer.most_ahead)
    }

    proptest! {
        #[test]
        fn every_batch_arrives_once_in_order_and_whole(
            buffers in 1usize..5, ahead in 0usize..5, last in 0u64..40, late in prop::collection::vec(any::<bool>(), 0..4),
        ) {
            let (found, most) = received(Prefetcher::ahead(counting(buffers, last, &late), Device::default(), ahead));
            prop_assert_eq!(found, (1..=last).collect::<Vec<_>>());
            prop_assert!(most <= ahead.max(1), "{} copies ahead", most);
        }
    }

    #[test]
    fn a_ring_that_forgets_its_events_is_seen() {
        let mut source = counting(2, 9, &[]);
        source.forgets_the_event = true;
        let (found, _) = received(Prefetcher::new(source, Device::default()));
        assert_ne!(found, (1..=9).collect::<Vec<_>>(), "a buffer that is refilled too early must show");
    }

    #[test]
    fn batches_before_a_failure_come_first() {
        let mut source = counting(3, 9, &[]);
        source.fails_at = Some(4);
        let mut batches = Prefetcher::ahead(source, Device::default(), 2);
        for _ in 1..4 {
            assert!(batches.next().unwrap().is_some());
        }
        assert!(batches.next().unwrap_err().to_string().contains("batch 4"));
        assert!(batches.next().unwrap().is_none(), "and nothing after it");
    }

    #[test]
    fn one_that_is_late_does_not_hold_up_the_one_before() {
        let mut batches = Prefetcher::new(counting(2, 2, &[true]), Device::default());
        assert!(batches.next().unwrap().is_some());
        assert_eq!(batches.transfer.stream.lock().unwrap().len(), 1, "the second was late");
        assert!(batches.next().unwrap().is_some() && batches.next().unwrap().is_none());
    }

    #[test]
    fn threads_wait_for_a_buffer_until_one_is_back_or_the_ring_is_closed() {
        let ring: Ring<Buffer, Done> = Ring::of([Buffer::default()]);
        let buffer = ring.take().unwrap().unwrap();
        let taker = |ring: &Ring<Buffer, Done>| {
            let ring = ring.clone();
            std::thread::spawn(move || ring.take().unwrap().map(|buffer| buffer.load(Ordering::SeqCst)))
        };
        let first = taker(&ring);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!first.is_finished());
        buffer.store(7, Ordering::SeqCst);
        ring.give_back(buffer, None);
        assert_eq!(first.join().unwrap(), Some(7));
        let second = taker(&ring);
        std::thread::sleep(Duration::from_millis(20));
        ring.close();
        assert_eq!(second.join().unwrap(), None);
    }

    #[test]
    fn without_a_gpu_pinning_is_refused_with_the_reason() {
        let error = pinned(&[4], tch::Kind::Float).unwrap_err().to_string();
        assert!(error.contains("no CUDA device") && error.contains("leave pinning off"), "{error}");
        assert!(Stream::current(tch::Device::Cpu).is_err() && Stream::side(tch::Device::Cuda(0)).is_err());
        assert!(host_memory().is_err());
        let x = Tensor::zeros([4], (tch::Kind::Float, tch::Device::Cpu));
        assert_eq!(is_pinned(&x), Ok(false));
        let mut y = Tensor::ones([4], (tch::Kind::Float, tch::Device::Cpu));
        copy(&mut y, &x, true).unwrap();
        assert_eq!(y, x);
    }
}
