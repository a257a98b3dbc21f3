//! Memory for batches that is used again and again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tch::Tensor;
use torch::NativeError;
use torch::batch_memory::{BatchBlock, Element};

/// A lock that a panic of its holder does not take from the others: all holders leave what they guard whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Blocks for batches of one size. A block goes out as a tensor and comes back when the tensor is dropped. There are always enough: where a
/// caller keeps many tensors, new blocks are taken, and those beyond `keep` are freed when they come back.
#[derive(Debug)]
pub(super) struct BatchRing<T: Element> {
    free: Mutex<Vec<BatchBlock<T>>>,
    keep: usize,
    samples: usize,
    shape: Vec<i64>,
}

impl<T: Element> BatchRing<T> {
    /// Takes `keep` blocks of `samples` samples each.
    pub fn new(keep: usize, samples: usize, shape: Vec<i64>) -> Result<Arc<BatchRing<T>>, NativeError> {
        let ring = BatchRing { free: Mutex::new(Vec::new()), keep, samples, shape };
        let blocks = (0..keep).map(|_| ring.take()).collect::<Result<Vec<_>, _>>()?;
        lock(&ring.free).extend(blocks);
        Ok(Arc::new(ring))
    }

    pub fn take(&self) -> Result<BatchBlock<T>, NativeError> {
        if let Some(block) = lock(&self.free).pop() {
            return Ok(block);
        }
        BatchBlock::take(self.samples, self.shape.iter().map(|side| *side as usize).product())
    }

    pub fn give_back(&self, block: BatchBlock<T>) {
        let mut free = lock(&self.free);
        if free.len() < self.keep {
            free.push(block);
        }
    }

    /// A tensor over the block's first samples; the block comes back when it is dropped, or is freed where the ring is gone by then.
    pub fn lend(self: &Arc<Self>, block: BatchBlock<T>, samples: usize) -> Result<Tensor, NativeError> {
        let ring = Arc::downgrade(self);
        block.into_tensor(samples, &self.shape, move |block| {
            if let Some(ring) = ring.upgrade() {
                ring.give_back(block);
            }
        })
    }
}
