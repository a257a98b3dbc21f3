//! How long a card takes for an operator's kernels:
//! `fixed * launches + sqrt((flops / (peak * compute))^2 + (bytes / rate)^2)`, and of a convolution whose library changes the layout of its
//! tensors, the reading and writing of them all once more. The rate is `bandwidth * memory`, and that of L2 for what it holds.
//!
//! Peak and bandwidth are the card's specification (`src/sim/src/cards.csv`). Fixed, compute and memory are constants of the card and the class of
//! kernels ([`super::constants`]), fitted by `records/times/fit.py` on operators that others timed.

use super::constants::{self, CONVOLUTION, Constants, DEPTHWISE, GROUPED, Grade};
use crate::capture::work::{Precision, Work, WorkKind};
use sim::cards::{Card, Speed};
use sim::trace::Phase;
use std::collections::HashMap;

sim::listed! {
    /// What a kernel takes longest for.
    Limit {
        Compute as "compute",
        Bandwidth as "bandwidth",
        /// What a kernel takes however little it does.
        Fixed as "launches",
    }
}

/// What an operator takes of a card, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct OperatorTime {
    pub seconds: f64,
    pub limit: Limit,
    pub class: &'static str,
    /// Whose records its constants are from.
    pub grade: Grade,
}

/// What a class is called in an answer.
pub fn class_title(class: &str) -> &'static str {
    match class {
        "attention" => "attention",
        "attention_backward" => "attention's backward passes",
        "reduction" => "norms, softmax and sums",
        "reduction_backward" => "backward passes of norms and softmax",
        "matmul_half" | "matmul_single" => "products",
        "pointwise" => "elementwise kernels",
        "layout" => "changes of layout",
        "recurrent" => "recurrent layers",
        _ if class.starts_with("grouped") => "grouped convolutions",
        _ if class.starts_with("depthwise") => "depthwise convolutions",
        _ if class.starts_with("volume") => "convolutions of three dimensions with few channels, or transposed",
        _ if class.starts_with("convolution") => "convolutions",
        _ => "copies",
    }
}

/// A card's kernels.
#[derive(Debug, Clone)]
pub struct CardModel {
    speed: Speed,
    capability: (u32, u32),
    multiprocessors: f64,
    l2: f64,
    constants: HashMap<&'static str, (Constants, Grade, Option<String>)>,
}

/// L2 gives each multiprocessor so many bytes a second: small kernels of gpu-benches on an A40, L40, A100 and H200 (33 to 43).
const CACHE: f64 = 36e9;

/// Bytes a second that one block of threads of a norm draws: KernelBench's layer, group and batch norms of few rows and channels on ten cards (2.4
/// to 7).
const BLOCK: f64 = 5e9;

/// A backward pass of attention reaches so much of the rate of a forward pass (FlashAttention-2, arXiv:2307.08691, figures 4 to 6).
const BACKWARD: f64 = 0.75;

/// Products in half precision whose leading dimensions are no multiples of 8 elements take other kernels. Times as long on an H100, by the
/// tables of TraceLens: odd ones 2.4 to 3.5 (4 rows), even ones 2.3 (1 row).
const ODD: f64 = 2.7;
const EVEN: f64 = 2.0;

/// In fp32 those take so many times as long, by NeuSight's products (A100, H100, L4, T4, V100: 1.02 to 1.32 in the median).
const ODD_SINGLE: f64 = 1.15;

/// Multiplications of 3 x 3 filters in fp32 by Winograd's algorithm, four results at a time, for each of the plain one's. Such filters reach 105
/// TFLOP/s on an H100, whose peak is 67 (`records/gpus`), and 12.5 of 8.1 on a T4 (DeepBench); those of one position reach 39 and 5.
const WINOGRAD: f64 = 16.0 / 36.0;

/// From memory that is not pinned the driver copies through a buffer of its own; of the bandwidth to the host so much is left. Assumed.
const PAGEABLE: f64 = 0.4;
const COPY_SECONDS: f64 = 1e-5;

/// Convolutions of three dimensions, and of 3 x 3 filters in fp32, with fewer channels have kernels of their own.
const FEW_CHANNELS: u32 = 16;

impl CardModel {
    pub fn of(card: &Card) -> Result<CardModel, String> {
        let speed = card.speed.ok_or(
            "a size alone has no speed: bandwidth and FLOP/s are those of a card; name one, such as rtx-4090, for the time of a step",
        )?;
        let constants = constants::classes().map(|class| (class, constants::of(card, class))).collect();
        Ok(CardModel {
            speed,
            capability: card.capability,
            multiprocessors: f64::from(card.multiprocessors),
            l2: card.l2 as f64,
            constants,
        })
    }

    pub fn constants(&self, class: &str) -> &Constants {
        &self.constants[class].0
    }

    pub fn set(&mut self, class: &'static str, constants: Constants) {
        self.constants.insert(class, (constants, Grade::Chip, None));
    }

    /// The card whose records the constants of a class are from, where it is another.
    pub fn whose(&self, class: &str) -> Option<&str> {
        self.constants.get(class)?.2.as_deref()
    }

    pub fn takes(&self, work: &Work) -> OperatorTime {
        if work.kind == WorkKind::Copy {
            // What does not wait is pinned.
            let share = if work.synchronises && work.m == 0 { PAGEABLE } else { 1.0 };
            let seconds = COPY_SECONDS + work.bytes / (self.speed.host_bandwidth * share);
            return OperatorTime { seconds, limit: Limit::Bandwidth, class: "copy", grade: Grade::None };
        }
        // Each gradient is a kernel of its own.
        if work.kind == WorkKind::Convolution && work.direction == 3 {
            let half = |direction| self.takes(&Work { direction, flops: work.flops / 2.0, bytes: work.bytes / 2.0, ..*work });
            let (one, other) = (half(1), half(2));
            return OperatorTime { seconds: one.seconds + other.seconds, ..one };
        }
        let (class, peak, factor) = self.class(work);
        let (constants, grade, _) = &self.constants[class];
        let fixed = constants.fixed * f64::from(work.launches);
        let compute = work.flops * factor / (peak * constants.compute);
        let memory = work.bytes / self.rate(work, constants.memory);
        // Few rows leave most of the card idle.
        let memory = match work.kind {
            WorkKind::Reduction if work.m > 0 => memory.max(work.bytes / (BLOCK * f64::from(work.m))),
            _ => memory,
        };
        // Attention's second term is for the slower arithmetic of short sequences.
        let is_attention = matches!(work.kind, WorkKind::Attention | WorkKind::AttentionBackward);
        let limit = if fixed > compute.max(memory) {
            Limit::Fixed
        } else if compute > memory || is_attention {
            Limit::Compute
        } else {
            Limit::Bandwidth
        };
        let layout = match self.changes_layout(work, class) {
            true => {
                let (Constants { fixed, memory, .. }, ..) = &self.constants["layout"];
                fixed + 2.0 * work.bytes / (self.speed.bandwidth * memory)
            }
            false => 0.0,
        };
        OperatorTime { seconds: fixed + compute.hypot(memory) + layout, limit, class, grade: *grade }
    }

    /// Whether cuDNN takes a convolution's tensors to channels last, for which its kernels for tensor cores are, and the result back. On an H100
    /// (`records/gpus`) it does so in TF32, too, around grouped ones, and in half precision around filters of one position.
    fn changes_layout(&self, work: &Work, class: &str) -> bool {
        let is_first = work.kind == WorkKind::Convolution && !work.is_channels_last;
        let is_plain = is_first && !class.starts_with("depthwise") && !class.starts_with("volume");
        let on_hopper = self.capability == (9, 0)
            && is_plain
            && (work.precision == Precision::Half || work.precision == Precision::Tf32 && work.taps > 1);
        work.changes_layout || on_hopper
    }

    /// Bytes a second. What L2 holds from the kernel before is not read again: in a backward pass that is the gradient and what is written,
    /// not what the forward pass left; an optimizer finds nothing.
    fn rate(&self, work: &Work, memory: f64) -> f64 {
        let reuse = match work.phase {
            _ if work.kind == WorkKind::Optimizer => 0.0,
            Phase::Backward => 2.0 / 3.0,
            _ => 1.0,
        };
        let held = reuse * (2.0 - 2.0 * work.bytes / self.l2.max(1.0)).clamp(0.0, 1.0);
        let cache = (CACHE * self.multiprocessors).max(self.speed.bandwidth);
        1.0 / ((1.0 - held) / (self.speed.bandwidth * memory) + held / cache)
    }

    /// The class of constants, the peak in FLOP/s, and how many times as long its arithmetic takes as that of the class.
    fn class(&self, work: &Work) -> (&'static str, f64, f64) {
        let has_tf32 = self.capability >= (8, 0);
        let precision = if work.precision == Precision::Tf32 && !has_tf32 { Precision::Single } else { work.precision };
        let (cores, peak) = match precision {
            Precision::Half => (0, self.speed.half),
            Precision::Tf32 => (1, self.speed.tf32),
            Precision::Single => (2, self.speed.single),
            Precision::Double => (2, self.speed.single / self.singles_per_double()),
        };
        let on_tensor_cores = cores < 2;
        let part = match (work.direction, work.is_transposed) {
            (0, false) => 0,
            // A transposed one is the gradient of the input of another.
            (0, true) | (1, _) => 1,
            _ => 2,
        };
        match work.kind {
            WorkKind::Matmul | WorkKind::Recurrent if on_tensor_cores => {
                let misaligned = match work.alignment {
                    0 | 8 => 1.0,
                    1 => ODD,
                    _ => EVEN,
                };
                ("matmul_half", peak, misaligned)
            }
            WorkKind::Matmul | WorkKind::Recurrent => {
                ("matmul_single", peak, if matches!(work.alignment, 1..8) { ODD_SINGLE } else { 1.0 })
            }
            // A channel alone has nothing for tensor cores.
            WorkKind::Convolution if work.groups > 1 && work.k == u32::from(work.taps) => {
                (DEPTHWISE[cores][part], self.speed.single, 1.0)
            }
            WorkKind::Convolution if work.groups > 1 => (GROUPED[cores][part], peak, 1.0),
            // With channels enough for tensor cores the third dimension is one more loop of the same kernels.
            WorkKind::Convolution if work.is_volume && (work.is_transposed || work.k < FEW_CHANNELS * u32::from(work.taps)) => {
                (["volume_half", "volume_tf32", "volume_single"][cores], peak, 1.0)
            }
            WorkKind::Convolution => {
                let is_square = work.taps == 9 && work.stride <= 1 && !work.is_volume && work.k >= 9 * FEW_CHANNELS;
                let is_winograd = is_square && precision == Precision::Single;
                (CONVOLUTION[cores][part], peak, if is_winograd { WINOGRAD } else { 1.0 })
            }
            WorkKind::Attention if on_tensor_cores => ("attention", peak, 1.0),
            WorkKind::AttentionBackward if on_tensor_cores => ("attention_backward", peak, 1.0 / BACKWARD),
            WorkKind::Attention => ("matmul_single", peak, 1.0),
            WorkKind::AttentionBackward => ("matmul_single", peak, 1.0 / BACKWARD),
            WorkKind::Reduction if work.direction != 0 && !work.of_batch => ("reduction_backward", peak, 1.0),
            WorkKind::Reduction => ("reduction", peak, 1.0),
            WorkKind::Pointwise | WorkKind::Index | WorkKind::Optimizer | WorkKind::Copy => ("pointwise", peak, 1.0),
        }
    }

    /// FLOP/s in single precision for each in double: chips for computing centres have half, others a 32nd or a 64th.
    fn singles_per_double(&self) -> f64 {
        match self.capability {
            (6..=10, 0) => 2.0,
            (7, _) => 32.0,
            _ => 64.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::cards;

    #[test]
    fn each_card_has_constants_of_each_class() {
        for card in cards::all().iter().filter(|card| card.speed.is_some()) {
            assert_eq!(CardModel::of(card).unwrap().constants.len(), constants::classes().count(), "{:?}", card.name);
        }
    }

    #[test]
    fn a_large_product_is_bound_by_compute_and_an_odd_one_takes_longer() {
        let work = |n, alignment| Work { alignment, ..Work::product(8192, n, 8192) };
        let device = CardModel::of(&"h100".parse().unwrap()).unwrap();
        let taken = device.takes(&work(8192, 8));
        // 1.1e12 FLOPs at 989e12 a second take 1.1 ms at least, and no H100 takes three times as long.
        assert!(
            (1.1e-3..3.3e-3).contains(&taken.seconds) && taken.limit == Limit::Compute && taken.grade == Grade::Chip,
            "{taken:?}"
        );
        assert!(device.takes(&work(8191, 1)).seconds > 2.0 * taken.seconds);
        assert_eq!(device.takes(&work(1, 8)).limit, Limit::Bandwidth);
    }

    #[test]
    fn a_third_dimension_is_one_more_loop_where_there_are_channels() {
        let device = CardModel::of(&"h200".parse().unwrap()).unwrap();
        let work = |channels: u32, groups, direction| Work {
            kind: WorkKind::Convolution,
            precision: Precision::Tf32,
            is_volume: true,
            k: 27 * channels,
            taps: 27,
            groups,
            direction,
            flops: 1e12,
            bytes: 1e9,
            ..Work::default()
        };
        let [many, few, alone] = [work(64, 1, 0), work(3, 1, 0), work(1, 64, 2)].map(|work| device.takes(&work));
        assert_eq!([many.class, few.class, alone.class], ["convolution_tf32_forward", "volume_tf32", "depthwise_tf32_weights"]);
        assert!(few.seconds > 2.0 * many.seconds, "{few:?} {many:?}");
        let flat = device.takes(&Work { is_volume: false, ..work(64, 1, 0) });
        assert!((many.seconds / flat.seconds - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_3x3_filter_in_fp32_has_fewer_multiplications() {
        let device = CardModel::of(&"t4".parse().unwrap()).unwrap();
        let work = Work { kind: WorkKind::Convolution, precision: Precision::Single, k: 576, taps: 9, ..Work::default() };
        let [one, two, half] =
            [work, Work { stride: 2, ..work }, Work { precision: Precision::Half, ..work }].map(|work| device.class(&work).2);
        assert!(one < 0.5 && two == 1.0 && half == 1.0);
    }

    #[test]
    fn a_copy_from_memory_that_is_not_pinned_takes_longer() {
        let device = CardModel::of(&"h200".parse().unwrap()).unwrap();
        let seconds =
            |synchronises, m| device.takes(&Work { kind: WorkKind::Copy, synchronises, m, bytes: 1e9, ..Work::default() }).seconds;
        assert!(seconds(true, 0) > 2.0 * seconds(true, 1) && seconds(true, 1) == seconds(false, 0));
    }
}
