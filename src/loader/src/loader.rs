//! The loader: worker threads fill the batches of a ring together, sample by sample, and batches come out in order.
//!
//! All workers fill the same batch, so that the first one is there early and no worker's whole batch waits for a slow one. Which samples a
//! batch has is decided by the epoch's order alone, and what is random in a sample by its own seed: the number of workers changes nothing
//! but the speed.
//!
//! Against PyTorch's `DataLoader` and `DistributedSampler` (`tests/loader/reference.rs`): without shuffling the batches are the same, also on
//! several ranks, where [`Uneven::Repeat`](super::Uneven::Repeat) is the sampler's default and [`Uneven::Drop`](super::Uneven::Drop) its
//! `drop_last`; our own default, [`Uneven::Keep`](super::Uneven::Keep), it does not have. Shuffled orders differ, because the generators do, and
//! change from epoch to epoch by themselves, which there takes `set_epoch`. What is random in a sample does not depend on the worker here;
//! there each worker has a generator of its own.

use super::dataset::Dataset;
use super::order::{Position, RankShare, Shard, epoch_order, sample_random};
use super::ring::{BatchRing, lock};
use anyhow::{Context, Result, anyhow, ensure};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tch::Tensor;
use torch::batch_memory::{Element, Filling, Residence};
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
    /// What of each epoch this process loads.
    pub shard: Shard,
    /// Whether to leave out a last batch that is not full.
    pub drop_last: bool,
    pub on_bad: OnBad,
    /// Whether threads stay between epochs; else each epoch starts its own and ends them.
    pub persistent: bool,
    /// Whether workers go on with the next epoch while the caller still takes the last batches of this one, so that no gap is left between
    /// epochs. Needs persistent workers. What was read ahead is thrown away if another epoch is asked for.
    pub across_epochs: bool,
    /// Where the memory of batches lies.
    pub residence: Residence,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            batch: 64,
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            prefetch: 2,
            shuffle: true,
            seed: 0,
            shard: Shard::default(),
            drop_last: false,
            on_bad: OnBad::Stop,
            persistent: true,
            across_epochs: false,
            residence: Residence::Pageable,
        }
    }
}

/// What a sample that cannot be loaded does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnBad {
    /// The epoch ends with an error when the sample's batch is due; batches before it still come.
    #[default]
    Stop,
    /// The sample is left out and counted; its batch is smaller.
    Skip,
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
    /// Where to resume to be given what comes after this batch; of several ranks, rank 0's counts.
    pub next: Position,
}

/// Samples that were left out because they could not be loaded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Skipped {
    pub count: usize,
    /// What was wrong with the first of them.
    pub first: Vec<String>,
}

/// How many of the skipped samples are described.
const DESCRIBED: usize = 20;

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
        ensure!(config.shard.rank < config.shard.ranks, "rank {} of {} ranks", config.shard.rank, config.shard.ranks);
        ensure!(config.persistent || !config.across_epochs, "only persistent workers can load across epochs");
        ensure!(u32::try_from(data.len()).is_ok(), "a data set of {} samples is too large", data.len());
        let keep = 1 + if config.workers == 0 { 0 } else { config.prefetch };
        let samples = BatchRing::new(keep, config.batch, data.shape(), config.residence);
        let labels = BatchRing::new(keep, config.batch, vec![], config.residence);
        let bytes = config.batch * data.shape().iter().product::<i64>() as usize * size_of::<D::Element>();
        let no_memory = || format!("taking memory for {keep} batches of {bytes} bytes");
        let whole = RankShare::deal(&epoch_order(data.len(), false, 0, 0), config.shard, Position::default());
        let core = Core {
            batches_per_epoch: batches(&config, &whole, 0),
            samples: samples.with_context(no_memory)?,
            labels: labels.with_context(no_memory)?,
            data,
            config,
            state: Mutex::new(QueueState::default()),
            work: Condvar::new(),
            ready: Condvar::new(),
            skipped: Mutex::new(Skipped::default()),
        };
        Ok(Loader { core: Arc::new(core), threads: Vec::new(), scratch: None })
    }

    /// The batches of an epoch, from its start.
    ///
    /// # Errors
    /// Threads cannot be started.
    pub fn epoch(&mut self, epoch: u64) -> Result<Epoch<'_, D>> {
        self.resume(Position::start_of(epoch))
    }

    /// The batches of an epoch that come after a position: [`LoadedBatch::next`] of the last one that was used.
    ///
    /// # Errors
    /// Threads cannot be started.
    pub fn resume(&mut self, from: Position) -> Result<Epoch<'_, D>> {
        if !self.core.continues(from) {
            self.core.cancel();
            self.core.begin(from);
        }
        self.start_threads()?;
        Ok(Epoch { loader: self, epoch: from.epoch, done: false })
    }

    /// Batches in an epoch from its start, if no batch loses all its samples.
    pub fn batches_per_epoch(&self) -> usize {
        self.core.batches_per_epoch
    }

    /// What was left out so far.
    pub fn skipped(&self) -> Skipped {
        lock(&self.core.skipped).clone()
    }

    pub fn config(&self) -> &Config {
        &self.core.config
    }

    pub fn data(&self) -> &Arc<D> {
        &self.core.data
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
    epoch: u64,
    done: bool,
}

impl<D: Dataset> Iterator for Epoch<'_, D> {
    type Item = Result<LoadedBatch>;

    fn next(&mut self) -> Option<Result<LoadedBatch>> {
        if self.done {
            return None;
        }
        let Loader { core, scratch, .. } = &mut *self.loader;
        let next = core.next(self.epoch, scratch);
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

/// Batches that a share still has when some of its samples were opened.
fn batches(config: &Config, share: &RankShare, opened: usize) -> usize {
    let left = share.indices.len() - opened;
    if config.drop_last { left / config.batch } else { left.div_ceil(config.batch) }
}

/// What the caller and the workers share.
struct Core<D: Dataset> {
    data: Arc<D>,
    config: Config,
    batches_per_epoch: usize,
    samples: Arc<BatchRing<D::Element>>,
    labels: Arc<BatchRing<i64>>,
    state: Mutex<QueueState<D::Element>>,
    /// There may be something to load, or workers have to stop.
    work: Condvar,
    /// A batch is complete, or nobody loads any more.
    ready: Condvar,
    skipped: Mutex<Skipped>,
}

struct QueueState<T: Element> {
    /// What this epoch has, and how many of its samples were put into slots.
    share: Option<RankShare>,
    opened: usize,
    /// Batches that are being filled or wait for the caller, in order. Only the last can have samples that nobody loads yet.
    slots: VecDeque<BatchSlot<T>>,
    /// Number of the first slot, counted from the loader's start.
    first: u64,
    /// Where the first slot begins, or the next one to be opened.
    at: Position,
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
            share: None,
            opened: 0,
            slots: VecDeque::new(),
            first: 0,
            at: Position::default(),
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
    epoch: u64,
    indices: Vec<u32>,
    labels: Vec<i64>,
    /// Samples that workers took.
    claimed: usize,
    /// Samples that are not loaded yet.
    left: usize,
    bad: Vec<Bad>,
    next: Position,
}

/// A sample that could not be loaded.
struct Bad {
    /// Where in its batch.
    row: usize,
    error: anyhow::Error,
    /// A panic is a mistake in the program, not in the data, and is never skipped.
    panicked: bool,
}

/// Samples of one slot that one worker loads.
struct ClaimedBatch<T: Element> {
    slot: u64,
    filling: Arc<Filling<T>>,
    epoch: u64,
    first_row: usize,
    indices: Vec<u32>,
}

impl<D: Dataset> Core<D> {
    /// Whether what is on its way is what would be loaded from this position.
    fn continues(&self, from: Position) -> bool {
        let state = lock(&self.state);
        self.config.across_epochs && state.share.is_some() && !state.halted && state.at == from
    }

    fn begin(&self, from: Position) {
        let order = epoch_order(self.data.len(), self.config.shuffle, self.config.seed, from.epoch);
        let mut state = lock(&self.state);
        state.share = Some(RankShare::deal(&order, self.config.shard, from));
        state.opened = 0;
        state.at = from;
        drop(state);
        self.work.notify_all();
    }

    /// Waits until nobody loads and throws away what is on its way.
    fn cancel(&self) {
        let mut state = lock(&self.state);
        state.share = None;
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

    /// Samples to load, if there are any now.
    fn claim(&self, state: &mut QueueState<D::Element>) -> Option<ClaimedBatch<D::Element>> {
        if state.slots.back().is_none_or(|slot| slot.claimed == slot.indices.len()) && !self.open(state) {
            return None;
        }
        let number = state.first + state.slots.len() as u64 - 1;
        let slot = state.slots.back_mut()?;
        let first_row = slot.claimed;
        slot.claimed = (first_row + self.data.grain().max(1)).min(slot.indices.len());
        state.busy += 1;
        Some(ClaimedBatch {
            slot: number,
            filling: Arc::clone(&slot.filling),
            epoch: slot.epoch,
            first_row,
            indices: slot.indices[first_row..slot.claimed].to_vec(),
        })
    }

    /// Opens the next slot, if there is a batch left to load and the caller is not too far behind.
    fn open(&self, state: &mut QueueState<D::Element>) -> bool {
        if state.halted || state.slots.len() >= self.config.prefetch.max(1) {
            return false;
        }
        let Some(mut share) = state.share.as_ref() else {
            return false;
        };
        if batches(&self.config, share, state.opened) == 0 {
            if !self.config.across_epochs || self.batches_per_epoch == 0 {
                return false;
            }
            let next = Position::start_of(share.epoch() + 1);
            let order = epoch_order(self.data.len(), self.config.shuffle, self.config.seed, next.epoch);
            state.opened = 0;
            share = state.share.insert(RankShare::deal(&order, self.config.shard, next));
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
        let end = (state.opened + self.config.batch).min(share.indices.len());
        let indices = share.indices[state.opened..end].to_vec();
        let next = share.position_after(end);
        state.opened = end;
        state.slots.push_back(BatchSlot {
            filling: Arc::new(block.open()),
            epoch: share.epoch(),
            labels: vec![0; indices.len()],
            claimed: 0,
            left: indices.len(),
            bad: Vec::new(),
            next,
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
        claim: ClaimedBatch<D::Element>,
        scratch: &mut Option<D::Scratch>,
    ) -> MutexGuard<'a, QueueState<D::Element>> {
        drop(state);
        let ClaimedBatch { slot, filling, epoch, first_row, indices } = claim;
        let loaded: Vec<Result<i64, Bad>> =
            indices.iter().enumerate().map(|(i, index)| self.load(&filling, epoch, first_row + i, *index, scratch)).collect();
        // The caller may close the slot as soon as it is reported.
        drop(filling);
        let mut state = lock(&self.state);
        state.busy -= 1;
        let halts = |bad: &Bad| bad.panicked || self.config.on_bad == OnBad::Stop;
        state.halted |= loaded.iter().any(|outcome| outcome.as_ref().is_err_and(halts));
        let at = (slot - state.first) as usize;
        if let Some(slot) = state.slots.get_mut(at) {
            slot.left -= loaded.len();
            for (row, outcome) in (first_row..).zip(loaded) {
                match outcome {
                    Ok(label) => slot.labels[row] = label,
                    Err(bad) => slot.bad.push(bad),
                }
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
    ) -> Result<i64, Bad> {
        let body = || {
            let mut into = filling.part(row).with_context(|| format!("row {row} of the batch was taken twice"))?;
            let scratch = scratch.get_or_insert_with(|| self.data.scratch());
            let mut random = sample_random(self.config.seed, epoch, u64::from(index));
            self.data.load(index as usize, &mut random, scratch, &mut into)
        };
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(label)) => Ok(label),
            Ok(Err(error)) => Err(Bad { row, error: error.context(format!("loading sample {index}")), panicked: false }),
            Err(panic) => {
                // What it was doing may be half done.
                *scratch = None;
                let error = anyhow!("loading sample {index} panicked: {}", panic_message(&*panic));
                Err(Bad { row, error, panicked: true })
            }
        }
    }

    /// The next batch of an epoch; none where it is over.
    fn next(&self, epoch: u64, scratch: &mut Option<D::Scratch>) -> Option<Result<LoadedBatch>> {
        let mut state = lock(&self.state);
        loop {
            let front = state.slots.front().map(|slot| (slot.epoch, slot.left));
            match front {
                Some((of, _)) if of != epoch => return None,
                Some((_, 0)) => {
                    let slot = state.slots.pop_front()?;
                    state.first += 1;
                    state.at = slot.next;
                    if state.slots.front().is_some_and(|next| next.epoch != epoch)
                        || state.slots.is_empty() && !self.has_more(&state, epoch)
                    {
                        state.at = Position::start_of(epoch + 1);
                    }
                    drop(state);
                    self.work.notify_all();
                    match self.deliver(slot).transpose() {
                        Some(batch) => return Some(batch),
                        None => state = lock(&self.state),
                    }
                    continue;
                }
                Some(_) => {}
                None => {
                    if let Some(fault) = state.fault.take() {
                        return Some(Err(fault));
                    }
                    if !self.has_more(&state, epoch) {
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

    /// Whether batches of an epoch are still to be opened.
    fn has_more(&self, state: &QueueState<D::Element>, epoch: u64) -> bool {
        state.share.as_ref().is_some_and(|share| match share.epoch().cmp(&epoch) {
            // Workers are about to go on to it.
            Ordering::Less => self.config.across_epochs && self.batches_per_epoch > 0,
            Ordering::Equal => batches(&self.config, share, state.opened) > 0,
            Ordering::Greater => false,
        })
    }

    /// Makes a complete slot a batch; none where nothing of it could be loaded.
    fn deliver(&self, slot: BatchSlot<D::Element>) -> Result<Option<LoadedBatch>> {
        let BatchSlot { filling, mut indices, mut labels, mut bad, next, .. } = slot;
        let mut block = filling.close().ok().context("a complete batch is still being written to")?;
        bad.sort_by_key(|bad| bad.row);
        if let Some(stops) = bad.iter().position(|bad| bad.panicked || self.config.on_bad == OnBad::Stop) {
            self.samples.give_back(block);
            return Err(bad.swap_remove(stops).error);
        }
        if !bad.is_empty() {
            let len = self.samples.sample_len();
            let elements = block.as_mut_slice();
            let mut kept = 0;
            for row in (0..indices.len()).filter(|row| bad.binary_search_by_key(row, |bad| bad.row).is_err()).collect::<Vec<_>>() {
                elements.copy_within(row * len..(row + 1) * len, kept * len);
                (indices[kept], labels[kept]) = (indices[row], labels[row]);
                kept += 1;
            }
            indices.truncate(kept);
            labels.truncate(kept);
            let mut skipped = lock(&self.skipped);
            skipped.count += bad.len();
            let room = DESCRIBED.saturating_sub(skipped.first.len());
            skipped.first.extend(bad.iter().take(room).map(|bad| format!("{:#}", bad.error)));
        }
        if indices.is_empty() {
            self.samples.give_back(block);
            return Ok(None);
        }
        let mut label_block = self.labels.take()?;
        label_block.as_mut_slice()[..labels.len()].copy_from_slice(&labels);
        let samples = self.samples.lend(block, indices.len())?;
        let labels = self.labels.lend(label_block, indices.len())?;
        Ok(Some(LoadedBatch { samples, labels, indices, next }))
    }
}
