//! Batches that lie ready in host memory, in the place of a loader.

use super::*;
use std::sync::Arc;
use torch::transfer::{CudaEvent, Next, Ring, Source};

/// Host batches in their order, from a ring that is refilled with the same data: what a loader would do meanwhile is left out.
pub struct Ready {
    pub ring: Ring<Vec<Tensor>, CudaEvent>,
    /// Batches that are still to come.
    pub left: usize,
}

impl Source for Ready {
    type Host = Vec<Tensor>;
    type Done = CudaEvent;

    fn next(&mut self, _: bool) -> Result<Next<Vec<Tensor>>> {
        if self.left == 0 {
            return Ok(Next::End);
        }
        self.left -= 1;
        Ok(self.ring.take()?.map_or(Next::End, Next::Batch))
    }

    fn give_back(&mut self, batch: Vec<Tensor>, until: Arc<CudaEvent>) {
        self.ring.give_back(batch, Some(until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;
    use torch::Backend;
    use torch::transfer::{Prefetcher, SideStream, host_memory};

    const MIB: i64 = 1 << 20;

    #[test]
    fn copying_ahead_holds_one_batch_more_and_reuses_its_memory() {
        let Some(dry) = dry("ready::tests::copying_ahead_holds_one_batch_more_and_reuses_its_memory") else { return };
        let cuda = Device::Cuda(0);
        for (ahead, held) in [(0, 1), (1, 2), (3, 4)] {
            let buffer = || vec![pinned(&[32 * MIB], Kind::Uint8).unwrap(), pinned(&[64], Kind::Int64).unwrap()];
            let source = Ready { ring: Ring::of([buffer(), buffer()]), left: 20 };
            let mut batches = Prefetcher::ahead(source, SideStream::new(cuda).unwrap(), ahead);
            dry.reset_peaks().unwrap();
            let mut seen = 0;
            while let Some(batch) = batches.next().unwrap() {
                assert_eq!((batch[0].device(), batch[0].size(), batch[1].kind()), (cuda, vec![32 * MIB], Kind::Int64));
                seen += 1;
            }
            assert_eq!((seen, dry.memory().unwrap().requested_peak), (20, held * (32 * MIB + 512)), "{ahead} ahead");
            // Events are asked for where memory is.
            drop(Tensor::empty([MIB], (Kind::Uint8, cuda)));
            assert_eq!(dry.memory().unwrap().requested, 0);
            drop(batches);
            assert_eq!(host_memory().unwrap().locked, 2 * (32 * MIB + 512), "the ring is locked once and for all");
        }
    }
}
