//! How long a card takes for an operator's kernels:
//! `fixed * launches + sqrt((flops / (peak * compute))^2 + (bytes / rate)^2)`, and of a convolution whose library changes the layout of its
//! tensors, the reading and writing of them all once more. The rate is `bandwidth * memory`, and that of L2 for what it holds. Of attention `memory`
//! is the share of its rate that it reaches at a length of 1024.
//!
//! Peak and bandwidth are the card's specification (`src/sim/src/cards.csv`). Fixed, compute and memory are constants of the card and the class of
//! kernels ([`super::constants`]), fitted by `records/times/fit.py` on operators that others timed.

use super::constants::{self, CONVOLUTION, Constants, DEPTHWISE, GROUPED, Grade};
use super::kernels::{self, Timed};
use super::wire::Wires;
use crate::capture::work::{Precision, Work, WorkKind};
use sim::cards::{Card, Speed};
use sim::trace::Phase;
use std::collections::HashMap;
use std::sync::Arc;

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
    /// The kernel itself was timed on this card.
    pub is_timed: bool,
}

/// What a class is called in an answer.
pub fn class_title(class: &str) -> &'static str {
    match class {
        "attention" | "attention_narrow" => "attention",
        "attention_backward" => "attention's backward passes",
        "reduction" => "norms, softmax and sums",
        "reduction_backward" => "backward passes of norms and softmax",
        "matmul_half" | "matmul_single" => "products",
        "pointwise" => "elementwise kernels",
        "compiled" => "kernels of torch.compile",
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
    between_cards: f64,
    wires: Wires,
    speed: Speed,
    capability: (u32, u32),
    multiprocessors: f64,
    l2: f64,
    constants: HashMap<&'static str, (Constants, Grade, Option<String>)>,
    timed: Arc<Timed>,
    /// Whether a pass reads more weights than L2 holds, so that each comes from memory.
    streams_weights: bool,
}

/// L2 gives each multiprocessor so many bytes a second: small kernels of gpu-benches on an A40, L40, A100 and H200 (33 to 43).
const CACHE: f64 = 36e9;

/// Bytes a second that one block of threads of a norm draws: KernelBench's layer, group and batch norms of few rows and channels on ten cards (2.4
/// to 7).
const BLOCK: f64 = 5e9;

/// A backward pass of attention reaches so much of the rate of a forward pass (FlashAttention-2, arXiv:2307.08691, figures 4 to 6).
const BACKWARD: f64 = 0.75;

/// Heads of fewer elements leave tensor cores waiting for softmax; the length that attention's constants are of; the queries of one block of threads.
const NARROW: u32 = 64;
const LENGTH: f64 = 1024.0;
const QUERIES: u32 = 128;

/// In channels first the gradients of depthwise convolutions in half precision, of input and weights, take so many times as long (an H100's own,
/// three shapes: 1.0 to 2.6 and 1.5 to 11).
const FIRST: [f64; 3] = [1.0, 1.3, 3.2];

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
            wires: Wires::of(card),
            between_cards: card.nvlink().unwrap_or(speed.host_bandwidth),
            capability: card.capability,
            multiprocessors: f64::from(card.multiprocessors),
            l2: card.l2 as f64,
            constants,
            timed: Arc::new(kernels::of(card)),
            streams_weights: false,
        })
    }

    /// For the kernels of one pass or step.
    pub fn over<'a>(mut self, works: impl IntoIterator<Item = &'a Work>) -> CardModel {
        self.streams_weights = works.into_iter().map(weights).sum::<f64>() > self.l2;
        self
    }

    pub fn constants(&self, class: &str) -> &Constants {
        &self.constants[class].0
    }

    /// The card whose records the constants of a class are from, where it is another.
    pub fn whose(&self, class: &str) -> Option<&str> {
        self.constants.get(class)?.2.as_deref()
    }

    pub fn takes(&self, work: &Work) -> OperatorTime {
        if !work.is_of_card() {
            let seconds = if work.kind == WorkKind::Order { 0.0 } else { self.wires.seconds(work) };
            return OperatorTime { seconds, limit: Limit::Bandwidth, class: "wire", grade: Grade::None, is_timed: false };
        }
        if work.kind == WorkKind::Copy {
            // What does not wait is pinned.
            let share = if work.synchronises && work.m == 0 { PAGEABLE } else { 1.0 };
            let bandwidth = if work.n > 0 { self.between_cards } else { self.speed.host_bandwidth * share };
            let seconds = COPY_SECONDS + work.bytes / bandwidth;
            return OperatorTime { seconds, limit: Limit::Bandwidth, class: "copy", grade: Grade::None, is_timed: false };
        }
        // Each gradient is a kernel of its own.
        if work.kind == WorkKind::Convolution && work.direction == 3 {
            let half = |direction| self.takes(&Work { direction, flops: work.flops / 2.0, bytes: work.bytes / 2.0, ..*work });
            let (one, other) = (half(1), half(2));
            return OperatorTime { seconds: one.seconds + other.seconds, is_timed: one.is_timed && other.is_timed, ..one };
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
        let (compute, memory) = match class.starts_with("attention") {
            true => {
                let (blocks, beside) = beside_products(work);
                let flops = work.flops + beside * LENGTH * (1.0 / constants.memory - 1.0);
                // Half a round of blocks is lost where they do not fill the card.
                let idle = if blocks > 0.0 { 0.5 * self.multiprocessors / blocks } else { 0.0 };
                let (keys, ..) = &self.constants["pointwise"];
                (flops * factor / (peak * constants.compute) * (1.0 + idle), work.bytes / (self.speed.bandwidth * keys.memory))
            }
            false => (compute, memory),
        };
        let limit = if fixed > compute.max(memory) {
            Limit::Fixed
        } else if compute > memory {
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
        // Kernels of depthwise convolutions move their tensors again, too.
        let again = if class.starts_with("depthwise") { factor } else { 1.0 };
        let by_formula = fixed + (compute * compute + (memory * again).powi(2)).sqrt() + layout;
        match self.timed.seconds(work) {
            Some(seconds) => OperatorTime { seconds, limit, class, grade: Grade::Chip, is_timed: true },
            None => OperatorTime { seconds: by_formula, limit, class, grade: *grade, is_timed: false },
        }
    }

    /// Seconds that no kernel of these sizes can take less than: its FLOPs at the peak.
    pub fn least(&self, work: &Work) -> f64 {
        let (_, peak, _) = self.class(work);
        // Winograd's filters have fewer.
        let factor = if work.kind == WorkKind::Convolution { 0.4 } else { 1.0 };
        work.flops * factor / peak
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
        let held = if self.streams_weights { held * (1.0 - weights(work) / work.bytes.max(1.0)) } else { held };
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
                let is_first = cores == 0 && !work.is_channels_last;
                (DEPTHWISE[cores][part], self.speed.single, if is_first { FIRST[part] } else { 1.0 })
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
            WorkKind::Attention if on_tensor_cores && work.k <= NARROW => ("attention_narrow", peak, 1.0),
            WorkKind::Attention if on_tensor_cores => ("attention", peak, 1.0),
            WorkKind::AttentionBackward if on_tensor_cores => ("attention_backward", peak, 1.0 / BACKWARD),
            WorkKind::Attention => ("matmul_single", peak, 1.0),
            WorkKind::AttentionBackward => ("matmul_single", peak, 1.0 / BACKWARD),
            WorkKind::Reduction if work.direction != 0 && !work.of_batch => ("reduction_backward", peak, 1.0),
            WorkKind::Reduction => ("reduction", peak, 1.0),
            WorkKind::Compiled => ("compiled", peak, 1.0),
            WorkKind::Pointwise
            | WorkKind::Index
            | WorkKind::Optimizer
            | WorkKind::Copy
            | WorkKind::Collective
            | WorkKind::Order => ("pointwise", peak, 1.0),
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

/// Bytes of a forward product that are its weights: the second matrix, or of a vector's product the first. Gradients are of activations.
fn weights(work: &Work) -> f64 {
    if work.kind != WorkKind::Matmul || work.batch > 1 || work.phase == Phase::Backward {
        return 0.0;
    }
    let [m, n, k] = [work.m, work.n, work.k].map(f64::from);
    let own = if work.n == 1 { m * k } else { n * k };
    work.bytes * own / (m * k + n * k + m * n).max(1.0)
}

/// Of attention its blocks of threads, and the FLOPs of half of its products for a key each: softmax and what a causal mask leaves of a block are work
/// that grows with the length alone, masked or not, where products grow with its square.
fn beside_products(work: &Work) -> (f64, f64) {
    let [queries, keys, width] = [work.m, work.n, work.k].map(f64::from);
    if queries * keys * width == 0.0 {
        return (0.0, 0.0);
    }
    let half = if work.kind == WorkKind::AttentionBackward { 5.0 } else { 2.0 } * queries * keys * width;
    // Records of operators do not tell how many heads there are, and are causal.
    let heads = if work.batch > 1 { f64::from(work.batch) } else { work.flops / half };
    (heads * f64::from(work.m.div_ceil(QUERIES)), heads * half / keys)
}
