//! The loader: worker threads fill the batches of a ring together, sample by sample, and batches come out in order.
//!
//! All workers fill the same batch, so that the first one is there early and no worker's whole batch waits for a slow one. Which samples a
//! batch has is decided by the epoch's order alone, and what is random in a sample by its own seed: the number of workers changes nothing
//! but the speed.
//!
//! Against PyTorch's `DataLoader` (`tests/loader/reference.rs`): without shuffling the batches are the same. Shuffled orders differ, because
//! the generators do, and change from epoch to epoch by themselves. What is random in a sample does not depend on the worker here; there each
//! worker has a generator of its own.

use super::dataset::Dataset;
use super::order::{epoch_order, sample_random};
use super::ring::{BatchRing, lock};
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tch::Tensor;
use torch::batch_memory::{Element, Filling};
use torch::panic_message;

/// How to load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Samples in a batch.
    pub batch: usize,
    /// Threads that load. With 0 the caller's own thread loads when it asks for a batch.
    pub workers: usize,
    /// Batches that workers may be ahead of the caller, for all workers together. The loader's memory is `prefetch + 1` batches.
    pub prefetch: usize,
    pub shuffle: bool,
    pub seed: u64,
    /// Whether threads stay between epochs; else each epoch starts its own and ends them.
    pub persistent: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            batch: 64,
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            prefetch: 2,
            shuffle: true,
            seed: 0,
            persistent: true,
        }
    }
}

/// Samples as tensors. Their memory goes back to the loader when all tensors over it are dropped, views included.
#[derive(Debug)]
pub struct LoadedBatch {
    /// `[n, ...shape of a sample]`.
    pub samples: Tensor,
    /// `[n]`, 64-bit integers.
    pub labels: Tensor,
    /// Where each sample stands in the data set.
    pub indices: Vec<u32>,
}

/// Loads a data set in batches.
///
/// ```no_run
/// use loader::{Config, ImageFolder, Images, Loader, Transform};
///
/// let images = Images::new(ImageFolder::open("train".as_ref())?, Transform::training(224));
/// let mut loader = Loader::new(images, Config { batch: 64, workers: 2, ..Config::default() })?;
/// for epoch in 0..3 {
///     for batch in loader.epoch(epoch)? {
///         let batch = batch?;
///         println!("{:?} {:?}", batch.samples.size(), batch.labels);
///     }
/// }
/// # anyhow::Ok(())
/// ```
pub struct Loader<D: Dataset> {
    core: Arc<Core<D>>,
    threads: Vec<JoinHandle<()>>,
    /// Of the caller's own thread, where it is the one that loads.
    scratch: Option<D::Scratch>,
}

impl<D: Dataset> Loader<D> {
    /// Prepares to load; takes the memory for all batches and starts no thread yet.
    ///
    /// # Errors
    /// A configuration that cannot work; no memory.
    pub fn new(data: impl Into<Arc<D>>, config: Config) -> Result<Loader<D>> {
        let data = data.into();
        ensure!(config.batch > 0, "a batch needs at least one sample");
        ensure!(config.workers == 0 || config.prefetch > 0, "workers need at least one batch to prefetch");
        ensure!(u32::try_from(data.len()).is_ok(), "a data set of {} samples is too large", data.len());
        let keep = 1 + if config.workers == 0 { 0 } else { config.prefetch };
        let samples = BatchRing::new(keep, config.batch, data.shape());
        let labels = BatchRing::new(keep, config.batch, vec![]);
        let bytes = config.batch * data.shape().iter().product::<i64>() as usize * size_of::<D::Element>();
        let no_memory = || format!("taking memory for {keep} batches of {bytes} bytes");
        let core = Core {
            samples: samples.with_context(no_memory)?,
            labels: labels.with_context(no_memory)?,
            data,
            config,
            state: Mutex::new(QueueState::default()),
            work: Condvar::new(),
            ready: Condvar::new(),
        };
        Ok(Loader { core: Arc::new(core), threads: Vec::new(), scratch: None })
    }

    /// The batches of an epoch.
    ///
    /// # Errors
    /// Threads cannot be started.
    pub fn epoch(&mut self, epoch: u64) -> Result<Epoch<'_, D>> {
        self.core.cancel();
        self.core.begin(epoch);
        self.start_threads()?;
        Ok(Epoch { loader: self, done: false })
    }

    fn start_threads(&mut self) -> Result<()> {
        while self.threads.len() < self.core.config.workers {
            let core = Arc::clone(&self.core);
            let number = self.threads.len();
            let thread = std::thread::Builder::new().name(format!("loader-{number}")).spawn(move || core.work());
            self.threads.push(thread.with_context(|| format!("starting worker {number} of {}", self.core.config.workers))?);
        }
        Ok(())
    }

    fn end_threads(&mut self) {
        lock(&self.core.state).stop = true;
        self.core.work.notify_all();
        for thread in self.threads.drain(..) {
            // Workers catch the panics of what they run.
            let _ = thread.join();
        }
        lock(&self.core.state).stop = false;
    }
}

impl<D: Dataset> Drop for Loader<D> {
    fn drop(&mut self) {
        self.core.cancel();
        self.end_threads();
    }
}

/// The batches of one epoch, in order. After an error there are no more. Dropping it early throws away what was loaded ahead.
pub struct Epoch<'a, D: Dataset> {
    loader: &'a mut Loader<D>,
    done: bool,
}

impl<D: Dataset> Iterator for Epoch<'_, D> {
    type Item = Result<LoadedBatch>;

    fn next(&mut self) -> Option<Result<LoadedBatch>> {
        if self.done {
            return None;
        }
        let Loader { core, scratch, .. } = &mut *self.loader;
        let next = core.next(scratch);
        match &next {
            None => self.done = true,
            Some(Err(_)) => {
                self.done = true;
                self.loader.core.cancel();
            }
            Some(Ok(_)) => {}
        }
        next
    }
}

impl<D: Dataset> Drop for Epoch<'_, D> {
    fn drop(&mut self) {
        if !self.done {
            self.loader.core.cancel();
        }
        if !self.loader.core.config.persistent {
            self.loader.end_threads();
        }
    }
}

/// What the caller and the workers share.
struct Core<D: Dataset> {
    data: Arc<D>,
    config: Config,
    samples: Arc<BatchRing<D::Element>>,
    labels: Arc<BatchRing<i64>>,
    state: Mutex<QueueState<D::Element>>,
    /// There may be something to load, or workers have to stop.
    work: Condvar,
    /// A batch is complete, or nobody loads any more.
    ready: Condvar,
}

struct QueueState<T: Element> {
    epoch: u64,
    /// Samples of this epoch in order, and how many of them were put into slots.
    order: Vec<u32>,
    opened: usize,
    /// Batches that are being filled or wait for the caller, in order. Only the last can have samples that nobody loads yet.
    slots: VecDeque<BatchSlot<T>>,
    /// Number of the first slot, counted from the loader's start.
    first: u64,
    /// Claims that are being worked on.
    busy: usize,
    /// Something cannot be loaded: no slot is opened any more.
    halted: bool,
    /// No memory for the next slot.
    fault: Option<anyhow::Error>,
    /// Threads have to end.
    stop: bool,
}

impl<T: Element> Default for QueueState<T> {
    fn default() -> Self {
        QueueState {
            epoch: 0,
            order: Vec::new(),
            opened: 0,
            slots: VecDeque::new(),
            first: 0,
            busy: 0,
            halted: false,
            fault: None,
            stop: false,
        }
    }
}

/// A batch on its way.
struct BatchSlot<T: Element> {
    filling: Arc<Filling<T>>,
    indices: Vec<u32>,
    labels: Vec<i64>,
    /// Samples that workers took.
    claimed: usize,
    /// Samples that are not loaded yet.
    left: usize,
    bad: Option<Bad>,
}

/// The first sample of a batch that could not be loaded.
struct Bad {
    row: usize,
    error: anyhow::Error,
}

/// A sample that one worker loads.
struct ClaimedSample<T: Element> {
    slot: u64,
    filling: Arc<Filling<T>>,
    epoch: u64,
    row: usize,
    index: u32,
}

impl<D: Dataset> Core<D> {
    fn begin(&self, epoch: u64) {
        let order = epoch_order(self.data.len(), self.config.shuffle, self.config.seed, epoch);
        let mut state = lock(&self.state);
        (state.epoch, state.order, state.opened) = (epoch, order, 0);
        drop(state);
        self.work.notify_all();
    }

    /// Waits until nobody loads and throws away what is on its way.
    fn cancel(&self) {
        let mut state = lock(&self.state);
        state.order.clear();
        state.opened = 0;
        if let Some(last) = state.slots.back_mut() {
            last.claimed = last.indices.len();
        }
        while state.busy > 0 {
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let slots = std::mem::take(&mut state.slots);
        state.first += slots.len() as u64;
        state.halted = false;
        state.fault = None;
        drop(state);
        for block in slots.into_iter().filter_map(|slot| slot.filling.close().ok()) {
            self.samples.give_back(block);
        }
    }

    /// What a worker runs.
    fn work(&self) {
        let mut scratch = None;
        let mut state = lock(&self.state);
        while !state.stop {
            state = match self.claim(&mut state) {
                Some(claim) => self.fulfil(state, claim, &mut scratch),
                None => self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// A sample to load, if there is one now.
    fn claim(&self, state: &mut QueueState<D::Element>) -> Option<ClaimedSample<D::Element>> {
        if state.slots.back().is_none_or(|slot| slot.claimed == slot.indices.len()) && !self.open(state) {
            return None;
        }
        let (number, epoch) = (state.first + state.slots.len() as u64 - 1, state.epoch);
        let slot = state.slots.back_mut()?;
        let row = slot.claimed;
        slot.claimed += 1;
        state.busy += 1;
        Some(ClaimedSample { slot: number, filling: Arc::clone(&slot.filling), epoch, row, index: slot.indices[row] })
    }

    /// Opens the next slot, if there is a batch left to load and the caller is not too far behind.
    fn open(&self, state: &mut QueueState<D::Element>) -> bool {
        let full = state.slots.len() >= self.config.prefetch.max(1);
        if state.halted || full || state.opened == state.order.len() {
            return false;
        }
        let block = match self.samples.take() {
            Ok(block) => block,
            Err(e) => {
                state.halted = true;
                state.fault = Some(anyhow!(e).context("taking memory for one more batch"));
                self.ready.notify_all();
                return false;
            }
        };
        let end = (state.opened + self.config.batch).min(state.order.len());
        let indices = state.order[state.opened..end].to_vec();
        state.opened = end;
        state.slots.push_back(BatchSlot {
            filling: Arc::new(block.open()),
            labels: vec![0; indices.len()],
            claimed: 0,
            left: indices.len(),
            bad: None,
            indices,
        });
        // Its other samples are for the others.
        self.work.notify_all();
        true
    }

    /// Loads what was claimed, without the lock, and reports it.
    fn fulfil<'a>(
        &'a self,
        state: MutexGuard<'a, QueueState<D::Element>>,
        claim: ClaimedSample<D::Element>,
        scratch: &mut Option<D::Scratch>,
    ) -> MutexGuard<'a, QueueState<D::Element>> {
        drop(state);
        let ClaimedSample { slot, filling, epoch, row, index } = claim;
        let loaded = self.load(&filling, epoch, row, index, scratch);
        // The caller may close the slot as soon as it is reported.
        drop(filling);
        let mut state = lock(&self.state);
        state.busy -= 1;
        state.halted |= loaded.is_err();
        let at = (slot - state.first) as usize;
        if let Some(slot) = state.slots.get_mut(at) {
            slot.left -= 1;
            match loaded {
                Ok(label) => slot.labels[row] = label,
                Err(_) if slot.bad.as_ref().is_some_and(|bad| bad.row < row) => {}
                Err(error) => slot.bad = Some(Bad { row, error }),
            }
            if slot.left == 0 || state.busy == 0 {
                self.ready.notify_all();
            }
        }
        state
    }

    fn load(
        &self,
        filling: &Arc<Filling<D::Element>>,
        epoch: u64,
        row: usize,
        index: u32,
        scratch: &mut Option<D::Scratch>,
    ) -> Result<i64> {
        let body = || {
            let mut into = filling.part(row).with_context(|| format!("row {row} of the batch was taken twice"))?;
            let scratch = scratch.get_or_insert_with(|| self.data.scratch());
            let mut random = sample_random(self.config.seed, epoch, u64::from(index));
            self.data.load(index as usize, &mut random, scratch, &mut into)
        };
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(loaded) => loaded.with_context(|| format!("loading sample {index}")),
            Err(panic) => {
                // What it was doing may be half done.
                *scratch = None;
                Err(anyhow!("loading sample {index} panicked: {}", panic_message(&*panic)))
            }
        }
    }

    /// The next batch of the epoch; none where it is over.
    fn next(&self, scratch: &mut Option<D::Scratch>) -> Option<Result<LoadedBatch>> {
        let mut state = lock(&self.state);
        loop {
            match state.slots.front().map(|slot| slot.left) {
                Some(0) => {
                    let slot = state.slots.pop_front()?;
                    state.first += 1;
                    drop(state);
                    self.work.notify_all();
                    return Some(self.deliver(slot));
                }
                Some(_) => {}
                None => {
                    if let Some(fault) = state.fault.take() {
                        return Some(Err(fault));
                    }
                    if state.opened == state.order.len() {
                        return None;
                    }
                }
            }
            state = if self.config.workers > 0 {
                self.ready.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else if let Some(claim) = self.claim(&mut state) {
                self.fulfil(state, claim, scratch)
            } else {
                state
            };
        }
    }

    /// Makes a complete slot a batch.
    fn deliver(&self, slot: BatchSlot<D::Element>) -> Result<LoadedBatch> {
        let BatchSlot { filling, indices, labels, bad, .. } = slot;
        let block = filling.close().ok().context("a complete batch is still being written to")?;
        if let Some(bad) = bad {
            self.samples.give_back(block);
            return Err(bad.error);
        }
        let mut label_block = self.labels.take()?;
        label_block.as_mut_slice()[..labels.len()].copy_from_slice(&labels);
        let samples = self.samples.lend(block, indices.len())?;
        let labels = self.labels.lend(label_block, indices.len())?;
        Ok(LoadedBatch { samples, labels, indices })
    }
}
