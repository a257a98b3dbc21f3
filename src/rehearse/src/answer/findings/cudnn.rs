//! Convolutions without cuDNN, and those for which cuDNN has other engines on a GPU than it offers without one.

use super::super::facts::Facts;
use super::{Finding, FindingKind};
use crate::capture::process::Frame;
use crate::capture::work::{Precision, Work, WorkKind};
use crate::words::{bytes, place_of};

/// How many times as much a GPU reserved as was rehearsed, the least and the most of the programs of `records/gpus` with such convolutions; and the
/// most where `cudnn.benchmark` tries algorithms.
const RESERVED: [f64; 3] = [0.79, 1.24, 1.54];
/// A part of the floating-point operations of the steps below which they decide nothing.
const LEAST_PART: f64 = 0.05;

pub fn find(line: Option<&Frame>) -> Option<Finding> {
    let line = line?;
    let title = "Convolutions run without cuDNN, in kernels of PyTorch's that take longer and of whose time there is no record:";
    let row = format!(
        "first at {}: torch.backends.cudnn.enabled is False there, as cudnn.flags(...) makes it where it is not given enabled=True",
        place_of(line)
    );
    Some(Finding::new(FindingKind::WithoutCudnn, title, [row])?.of(0, Some(line)))
}

pub fn engines(facts: &Facts, reserved: i64) -> Option<Finding> {
    let work = || facts.trace.work.iter().filter(|work| work.device == facts.device);
    let is_open = |of: &&Work| of.kind == WorkKind::Convolution && !of.is_channels_last && of.precision != Precision::Half;
    let [open, all] = [work().filter(is_open).map(|of| of.flops).sum::<f64>(), work().map(|of| of.flops).sum()];
    if open <= LEAST_PART * all {
        return None;
    }
    let tries = facts.trace.uncounted.values().any(|library| library.contains("cudnn.benchmark"));
    let [least, most] = [RESERVED[0], RESERVED[1 + usize::from(tries)]].map(|times| (reserved as f64 * times) as i64);
    let title = "On a GPU cuDNN offers other engines for convolutions in channels first, whose workspaces leave other gaps:";
    let allocated = if tries { "up to twice as much, with cudnn.benchmark" } else { "within 2 %" };
    let row = format!(
        "programs on GPUs reserved {:.2} to {:.2} times what was rehearsed, here {} to {}; allocated was {allocated}. Where the card is full PyTorch gives \
         back what it keeps",
        RESERVED[0],
        RESERVED[1 + usize::from(tries)],
        bytes(least),
        bytes(most)
    );
    Some(Finding::new(FindingKind::Engines, title, [row])?.of(most, None))
}
