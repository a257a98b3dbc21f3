//! What NCCL takes of a card for itself, of which a rehearsal has nothing: its communicators' buffers, a range by NCCL's sources.

use crate::capture::process::{Communicator, Trace};
use serde::Serialize;
use sim::cards::Card;

/// What a process's communicators would take of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct NcclBuffers {
    pub communicators: usize,
    pub least: i64,
    pub most: i64,
}

/// A connection to a neighbour on one channel, from its buffers by NCCL's defaults (`src/include/device.h`): 512 KiB for LL, 4.69 MiB for LL128 and
/// 4 MiB for Simple, in whole pages of 2 MiB, with those of the other direction (`src/transport/p2p.cc`): 10 and 2 MiB, as its log of an all-to-all of
/// eight H100s has them ([nccl#1685](https://github.com/NVIDIA/nccl/issues/1685)).
const CONNECTION: i64 = 12 << 20;

/// Multicast over NVSwitch from Hopper on, for each rank of a node: both directions of 16 channels, each a buffer of 4 MiB, and up to NCCL 2.26 a
/// page beside it (`src/transport/nvls.cc`).
const NVLS: (i64, i64) = ((16 * 2 * 4) << 20, (16 * 2 * 6) << 20);

/// What one communicator takes at least and at most, by what it has moved: rings for every collective, trees for reductions over all, multicast where
/// more than two ranks of a node have it, and for sends, receives and all-to-all a connection to each peer.
///
/// From NCCL 2.22 on each is connected when it is first used. NVLink has 24 channels for collectives and 32 for a pair, PCIe 2 to 4. On four A100s others
/// saw 544 MiB for two ranks and 688 MiB for more ([nccl#964](https://github.com/NVIDIA/nccl/issues/964)), on eight H100s 3.1 GiB for an all-to-all.
fn of_one(communicator: &Communicator, card: &Card) -> (i64, i64) {
    let has_nvlink = card.nvlink().is_some();
    let (few, many, of_a_pair) = if has_nvlink { (24, 24, (32, 40)) } else { (2, 4, (2, 4)) };
    let moves = |way: &str| communicator.ways.iter().any(|known| known == way);
    let (reduces, gathers) = (moves("all_reduce") || communicator.ways.is_empty(), moves("all_gather") || moves("reduce_scatter"));
    let (mut least, mut most) = (0, 0);
    if reduces || gathers || moves("broadcast") {
        (least, most) = (few * CONNECTION, many * CONNECTION);
    }
    if reduces {
        // A tree has other neighbours than a ring.
        most = if has_nvlink { 2 * most } else { most };
    }
    let local = i64::from(communicator.ranks.div_ceil(communicator.nodes.max(1)));
    if has_nvlink && card.capability.0 >= 9 && local > 2 && (reduces || (gathers && communicator.nodes <= 1)) {
        (least, most) = (least + local * NVLS.0, most + local * NVLS.1);
    }
    // Over a network a pair has as few channels as over PCIe.
    let near = i64::from(communicator.pairs).min(local - 1);
    let far = (i64::from(communicator.pairs) - near) * CONNECTION;
    (least + near * CONNECTION * of_a_pair.0 + far * 2, most + near * CONNECTION * of_a_pair.1 + far * 4)
}

/// None where no group of ranks moved anything on the GPU, or an engine has them already (`distributed.py`).
pub fn buffers(trace: &Trace, card: &Card) -> Option<NcclBuffers> {
    let all = &trace.communicators;
    let of_all = || all.values().map(|communicator| of_one(communicator, card));
    (!all.is_empty() && trace.engine.is_none()).then(|| NcclBuffers {
        communicators: all.len(),
        least: of_all().map(|(least, _)| least).sum(),
        most: of_all().map(|(_, most)| most).sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What others measured of a communicator, in MiB: a card, its ranks, how many peers it sent to, and what moved.
    #[test]
    fn what_others_measured_is_in_a_range_of_a_factor_of_two() {
        let cases = [
            ("a100-80g", 2, 0, "all_reduce", Some(544)),
            ("h100", 8, 7, "pairs", Some(3_050)),
            ("h100", 8, 0, "all_reduce", None),
            ("h100", 8, 0, "all_gather", None),
            ("rtx-4090", 2, 1, "all_reduce", None),
            ("h100", 2, 1, "pairs", None),
        ];
        for (card, ranks, pairs, way, measured) in cases {
            let communicator = Communicator { ranks, nodes: 1, pairs, ways: vec![way.to_string()], group: 1, members: vec![] };
            let (least, most) = of_one(&communicator, &card.parse().unwrap());
            assert!(0 < least && least <= most && most <= 2 * least, "{card} {way}: {least} to {most}");
            let is_in = |mib: i64| (least..=most).contains(&(mib << 20));
            assert!(measured.is_none_or(is_in), "{card} {way}: {measured:?} in {} to {}", least >> 20, most >> 20);
        }
    }
}
