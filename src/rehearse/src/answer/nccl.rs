//! What NCCL takes of a card for itself, of which a rehearsal has nothing: its communicators' buffers, a range by NCCL's sources.

use crate::capture::process::Trace;
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
/// 4 MiB for Simple, in whole pages of 2 MiB for each direction (`src/transport/p2p.cc`).
const CONNECTION: i64 = 12 << 20;
/// Multicast over NVSwitch from Hopper on, for each rank of a node: a Simple buffer and a page in both directions of 24 channels
/// (`src/transport/nvls.cc`).
const NVLS: i64 = (24 * 2 * 6) << 20;

/// None where no group of ranks moved anything on the GPU.
///
/// A ring has one neighbour each way; a tree within a node connects the same ones the other way round, and is connected when it is first used, from NCCL
/// 2.22 on. Over NVLink there are 16 to 24 channels, over PCIe 2 to 4. On four A100s others saw 0.5 to 0.7 GiB for a communicator: 24 channels, both.
pub fn buffers(trace: &Trace, card: &Card) -> Option<NcclBuffers> {
    let has_nvlink = ["SXM", "HBM3", "H200", "B200"].iter().any(|kind| card.title.contains(kind));
    let (least, most) = if has_nvlink { (16, 2 * 24) } else { (2, 2 * 4) };
    let nvls = |ranks: u32| if has_nvlink && card.capability.0 >= 9 && ranks > 2 { i64::from(ranks.min(8)) * NVLS } else { 0 };
    let ranks = trace.communicators.as_slice();
    (!ranks.is_empty()).then(|| NcclBuffers {
        communicators: ranks.len(),
        least: ranks.len() as i64 * least * CONNECTION,
        most: ranks.iter().map(|ranks| most * CONNECTION + nvls(*ranks)).sum(),
    })
}
