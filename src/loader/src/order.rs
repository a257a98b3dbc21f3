//! In which order an epoch has its samples, and what is random in each.

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Random numbers of one sample. They depend on the loader's seed, the epoch and the sample's index alone: not on the worker, or what was
/// loaded before.
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

/// The order of an epoch: data-set indices, shuffled by seed and epoch where `shuffle` says so.
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

/// A number in 0.0..1.0 from 53 random bits.
pub(super) fn unit(random: &mut SampleRandom) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
