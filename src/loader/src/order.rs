//! Which samples an epoch has, in which order, and what of them one rank loads.

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Random numbers of one sample. They depend on the loader's seed, the epoch and the sample's index alone: not on the worker, the rank, or
/// what was loaded before.
pub type SampleRandom = ChaCha8Rng;

/// The random numbers of sample `index` in `epoch`.
pub fn sample_random(seed: u64, epoch: u64, index: u64) -> SampleRandom {
    keyed(seed, epoch, index)
}

/// A generator keyed by three numbers. The last word of the key keeps those of samples apart from those of orders.
fn keyed(seed: u64, epoch: u64, index: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (bytes, word) in key.chunks_exact_mut(8).zip([seed, epoch, index, 1]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// One process's share of every epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    pub rank: usize,
    pub ranks: usize,
    pub uneven: Uneven,
}

impl Default for Shard {
    /// Everything.
    fn default() -> Self {
        Shard { rank: 0, ranks: 1, uneven: Uneven::Keep }
    }
}

/// What to do where the number of samples is no multiple of the number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Uneven {
    /// Every sample once; some ranks have one more than others.
    #[default]
    Keep,
    /// Leave out the last few of the epoch's order, so that all ranks have equally many.
    Drop,
    /// Load the first few of the epoch's order once more at its end, so that all ranks have equally many, as PyTorch's
    /// `DistributedSampler` does.
    Repeat,
}

/// A point between two batches of a training run, from which it can go on, also with another number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    pub epoch: u64,
    /// Samples of the epoch's order that all ranks together have been given.
    pub consumed: usize,
}

impl Position {
    pub fn start_of(epoch: u64) -> Position {
        Position { epoch, consumed: 0 }
    }
}

/// The order of an epoch, the same on every rank: data-set indices, shuffled by seed and epoch where `shuffle` says so.
pub fn epoch_order(len: usize, shuffle: bool, seed: u64, epoch: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..len as u32).collect();
    if shuffle {
        let mut random = keyed(seed, epoch, 0);
        // Away from the stream of sample 0.
        random.set_stream(1);
        order.shuffle(&mut random);
    }
    order
}

/// What one rank still has to load of an epoch.
///
/// Ranks take turns in the epoch's order: rank r has what stands at r, r + ranks, and so on. After equally many samples on each rank, what
/// was consumed is thus a prefix of the order, and what remains can be dealt to any number of ranks anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankShare {
    pub indices: Vec<u32>,
    /// Samples of the epoch's order that were consumed before.
    pub consumed: usize,
    /// Samples of the order that each of ours stands for.
    ranks: usize,
    /// Samples of the epoch on all ranks, after uneven ends were dealt with.
    total: usize,
    epoch: u64,
}

impl RankShare {
    /// Deals an epoch's order, from a position in it.
    pub fn deal(order: &[u32], shard: Shard, from: Position) -> RankShare {
        let ranks = shard.ranks.max(1);
        let consumed = from.consumed.min(order.len());
        let left = order.len() - consumed;
        let total = match shard.uneven {
            Uneven::Keep => left,
            Uneven::Drop => left / ranks * ranks,
            Uneven::Repeat if order.is_empty() => 0,
            Uneven::Repeat => left.div_ceil(ranks) * ranks,
        };
        let indices = (shard.rank..total).step_by(ranks).map(|at| order[(consumed + at) % order.len()]).collect();
        RankShare { indices, consumed, ranks, total: consumed + total, epoch: from.epoch }
    }

    /// Where the run stands when each rank was given `count` samples, or all that it had. Where ranks end with unequal shares, rank 0 has the
    /// most, and its position is the run's.
    pub fn position_after(&self, count: usize) -> Position {
        Position { epoch: self.epoch, consumed: (self.consumed + count * self.ranks).min(self.total) }
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }
}

/// A number in 0.0..1.0 from 53 random bits.
pub(super) fn unit(random: &mut SampleRandom) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sample_numbers_depend_on_seed_epoch_and_index_alone() {
        let first = |seed, epoch, index| sample_random(seed, epoch, index).next_u64();
        assert_eq!(first(1, 2, 3), first(1, 2, 3));
        let others = [first(1, 2, 3), first(2, 2, 3), first(1, 3, 3), first(1, 2, 4), first(3, 2, 1)];
        for (i, a) in others.iter().enumerate() {
            assert!(others[..i].iter().all(|b| a != b));
        }
    }

    #[test]
    fn shuffled_orders_differ_by_epoch_and_seed() {
        let order = |seed, epoch| epoch_order(100, true, seed, epoch);
        assert_eq!(order(0, 0), order(0, 0));
        assert!(order(0, 0) != order(0, 1) && order(0, 0) != order(1, 0));
        assert_eq!(epoch_order(5, false, 0, 7), [0, 1, 2, 3, 4]);
    }

    proptest! {
        #[test]
        fn ranks_together_load_every_sample_once(len in 0usize..200, ranks in 1usize..9, shuffle: bool, seed: u64) {
            let order = epoch_order(len, shuffle, seed, 3);
            let shard = |rank| Shard { rank, ranks, uneven: Uneven::Keep };
            let mut all: Vec<u32> = (0..ranks).flat_map(|r| RankShare::deal(&order, shard(r), Position::start_of(3)).indices).collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..len as u32).collect::<Vec<_>>());
        }

        #[test]
        fn even_ends_give_every_rank_as_many(len in 1usize..200, ranks in 1usize..9) {
            let order = epoch_order(len, true, 0, 0);
            for (uneven, each) in [(Uneven::Drop, len / ranks), (Uneven::Repeat, len.div_ceil(ranks))] {
                for rank in 0..ranks {
                    let share = RankShare::deal(&order, Shard { rank, ranks, uneven }, Position::default());
                    prop_assert_eq!(share.indices.len(), each);
                }
            }
        }

        #[test]
        fn resuming_gives_exactly_what_remains_also_with_other_ranks(
            len in 1usize..200, before in 1usize..6, after in 1usize..6, steps in 0usize..60,
        ) {
            let order = epoch_order(len, true, 9, 1);
            let start = Position::start_of(1);
            let deal = |ranks, from| (0..ranks).map(|rank| RankShare::deal(&order, Shard { rank, ranks, uneven: Uneven::Keep }, from)).collect::<Vec<_>>();
            let shares = deal(before, start);
            let mut seen: Vec<u32> = shares.iter().flat_map(|s| s.indices.iter().take(steps).copied()).collect();
            let stopped = shares[0].position_after(steps);
            seen.extend(deal(after, stopped).into_iter().flat_map(|s| s.indices));
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..len as u32).collect::<Vec<_>>());
        }
    }
}
