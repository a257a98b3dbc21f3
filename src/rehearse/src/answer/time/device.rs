//! How long a card takes for an operator's kernels:
//! `fixed * launches + sqrt((flops / (peak * compute))^2 + (bytes / (bandwidth * memory))^2)`, and of a convolution whose library changes the
//! layout of its tensors, the reading and writing of them all once more.
//!
//! Peak and bandwidth are the card's specification (`src/sim/src/cards.csv`). Fixed, compute and memory are constants of the card and the class of
//! kernels (`constants.csv`), fitted by `peers/times/fit.py` on operators that others timed.

use crate::capture::work::{Precision, Work, WorkKind};
use sim::cards::{Card, Speed};
use std::collections::HashMap;
use std::sync::OnceLock;

/// What a kernel takes longest for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Limit {
    Compute,
    Bandwidth,
    /// What a kernel takes however little it does.
    Fixed,
}

impl Limit {
    pub fn name(self) -> &'static str {
        match self {
            Limit::Compute => "compute",
            Limit::Bandwidth => "bandwidth",
            Limit::Fixed => "launches",
        }
    }
}

/// What an operator takes of a card, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct OperatorTime {
    pub seconds: f64,
    pub limit: Limit,
    /// Whether its constants are from records of this card.
    pub anchored: bool,
}

#[derive(Debug, Clone, Copy)]
struct Constants {
    fixed: f64,
    compute: f64,
    memory: f64,
    anchored: bool,
}

/// Classes of kernels; each card has constants of all.
const CLASSES: [&str; 8] =
    ["matmul_half", "matmul_single", "convolution_half", "convolution_single", "layout", "attention", "pointwise", "reduction"];

type Table = HashMap<(&'static str, &'static str), Constants>;

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| include_str!("constants.csv").lines().skip(1).filter_map(read).collect())
}

/// `card,class,fixed_us,compute,memory,rows,median_error,fitted_on`; the tests read all of them.
fn read(line: &'static str) -> Option<((&'static str, &'static str), Constants)> {
    let mut fields = line.split(',');
    let key = (fields.next()?, fields.next()?);
    let mut number = || fields.next()?.parse::<f64>().ok();
    let (fixed, compute, memory) = (number()? * 1e-6, number()?, number()?);
    let on = fields.nth(2)?;
    Some((key, Constants { fixed, compute, memory, anchored: !on.starts_with("specification") }))
}

/// A card's kernels.
#[derive(Debug, Clone, Copy)]
pub struct CardModel {
    name: &'static str,
    speed: Speed,
    capability: (u32, u32),
}

/// A backward pass of attention reaches so much of the rate of a forward pass (FlashAttention-2, arXiv:2307.08691, figures 4 to 6).
const BACKWARD: f64 = 0.75;

/// Products in half precision whose leading dimensions are no multiples of 8 elements take other kernels. Times as long on an H100, by the
/// tables of TraceLens: odd ones 2.4 to 3.5 (4 rows), even ones 2.3 (1 row).
const ODD: f64 = 2.7;
const EVEN: f64 = 2.0;

/// From memory that is not pinned the driver copies through a buffer of its own; of the bandwidth to the host so much is left. Assumed.
const PAGEABLE: f64 = 0.4;
const COPY_SECONDS: f64 = 1e-5;

impl CardModel {
    /// # Errors
    /// What of the card's figures is missing.
    pub fn of(card: &Card) -> Result<CardModel, String> {
        let name = card.name.ok_or_else(|| {
            "a size alone has no speed: bandwidth and FLOP/s are those of a card; name one, such as rtx-4090, for the time of a step"
                .to_string()
        })?;
        let speed = card.speed.ok_or_else(|| {
            let figures = card.no_figures_of.join(", ");
            format!(
                "src/sim/src/cards.csv has no {figures} of {name}, which the time of a step needs: add them from its specification"
            )
        })?;
        let lacking: Vec<&str> = CLASSES.into_iter().filter(|class| !table().contains_key(&(name, *class))).collect();
        if !lacking.is_empty() {
            let classes = lacking.join(", ");
            return Err(format!(
                "src/rehearse/src/answer/time/constants.csv has no constants of {name} for {classes}: peers/times/fit.py writes them for each card of \
                 src/sim/src/cards.csv"
            ));
        }
        Ok(CardModel { name, speed, capability: card.capability })
    }

    pub fn takes(&self, work: &Work) -> OperatorTime {
        if work.kind == WorkKind::Copy {
            let share = if work.synchronises { PAGEABLE } else { 1.0 };
            let seconds = COPY_SECONDS + work.bytes / (self.speed.host_bandwidth * share);
            return OperatorTime { seconds, limit: Limit::Bandwidth, anchored: false };
        }
        let (class, peak, factor) = self.class(work);
        let constants = &table()[&(self.name, class)];
        let fixed = constants.fixed * f64::from(work.launches);
        let compute = work.flops * factor / (peak * constants.compute);
        let memory = work.bytes / (self.speed.bandwidth * constants.memory);
        // Attention's second term is for the slower arithmetic of short sequences.
        let is_attention = matches!(work.kind, WorkKind::Attention | WorkKind::AttentionBackward);
        let limit = if fixed > compute.max(memory) {
            Limit::Fixed
        } else if compute > memory || is_attention {
            Limit::Compute
        } else {
            Limit::Bandwidth
        };
        let layout = match work.changes_layout {
            true => {
                let Constants { fixed, memory, .. } = table()[&(self.name, "layout")];
                fixed + 2.0 * work.bytes / (self.speed.bandwidth * memory)
            }
            false => 0.0,
        };
        OperatorTime { seconds: fixed + compute.hypot(memory) + layout, limit, anchored: constants.anchored }
    }

    /// The class of constants, the peak in FLOP/s, and how many times as long its arithmetic takes as that of the class.
    fn class(&self, work: &Work) -> (&'static str, f64, f64) {
        let has_tf32 = self.capability >= (8, 0);
        let precision = if work.precision == Precision::Tf32 && !has_tf32 { Precision::Single } else { work.precision };
        let peak = match precision {
            Precision::Half => self.speed.half,
            Precision::Tf32 => self.speed.tf32,
            Precision::Single => self.speed.single,
            Precision::Double => self.speed.single / self.singles_per_double(),
        };
        let on_tensor_cores = matches!(precision, Precision::Half | Precision::Tf32);
        let misaligned = match work.alignment {
            0 | 8 => 1.0,
            1 => ODD,
            _ => EVEN,
        };
        match work.kind {
            WorkKind::Matmul if on_tensor_cores => ("matmul_half", peak, misaligned),
            WorkKind::Matmul => ("matmul_single", peak, 1.0),
            WorkKind::Convolution if on_tensor_cores => ("convolution_half", peak, 1.0),
            WorkKind::Convolution => ("convolution_single", peak, 1.0),
            WorkKind::Attention if on_tensor_cores => ("attention", peak, 1.0),
            WorkKind::AttentionBackward if on_tensor_cores => ("attention", peak, 1.0 / BACKWARD),
            WorkKind::Attention => ("matmul_single", peak, 1.0),
            WorkKind::AttentionBackward => ("matmul_single", peak, 1.0 / BACKWARD),
            WorkKind::Reduction => ("reduction", peak, 1.0),
            WorkKind::Pointwise | WorkKind::Index | WorkKind::Optimizer | WorkKind::Copy => ("pointwise", peak, 1.0),
        }
    }

    /// FLOP/s in single precision for each in double: chips for computing centres have half, others a 32nd or a 64th.
    fn singles_per_double(&self) -> f64 {
        match self.capability {
            (7..=10, 0) => 2.0,
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
        assert_eq!(table().len(), include_str!("constants.csv").lines().count() - 1);
        for card in cards::all() {
            let name = card.name.unwrap();
            assert!(card.speed.is_some(), "{name}");
            let classes = [
                "matmul_half",
                "matmul_single",
                "convolution_half",
                "convolution_single",
                "layout",
                "attention",
                "pointwise",
                "reduction",
            ];
            for class in classes {
                let constants = table().get(&(name, class)).unwrap_or_else(|| panic!("{name} {class}"));
                assert!((5e-7..2e-5).contains(&constants.fixed), "{name} {class}");
                assert!((0.1..1.5).contains(&constants.compute) && (0.1..1.5).contains(&constants.memory), "{name} {class}");
            }
        }
    }

    #[test]
    fn a_large_product_is_bound_by_compute_and_an_odd_one_takes_longer() {
        let work = |n: u32, alignment| Work {
            kind: WorkKind::Matmul,
            precision: Precision::Half,
            phase: sim::trace::Phase::Forward,
            synchronises: false,
            waited: false,
            changes_layout: false,
            of_graph: false,
            device: 0,
            alignment,
            step: 1,
            launches: 1,
            flops: 2.0 * 8192.0 * 8192.0 * f64::from(n),
            bytes: 2.0 * (8192.0 * 8192.0 + 2.0 * 8192.0 * f64::from(n)),
            m: 8192,
            n,
            k: 8192,
            batch: 1,
            stream: 0,
            stack: 0,
            origin: 0,
            module: 0,
            operator: 0,
            host_nanoseconds: 0,
        };
        let device = CardModel::of(&"h100".parse().unwrap()).unwrap();
        let taken = device.takes(&work(8192, 8));
        // 1.1e12 FLOPs at 989e12 a second take 1.1 ms at least, and no H100 takes three times as long.
        assert!((1.1e-3..3.3e-3).contains(&taken.seconds) && taken.limit == Limit::Compute && taken.anchored, "{taken:?}");
        assert!(device.takes(&work(8191, 1)).seconds > 2.0 * taken.seconds);
        assert_eq!(device.takes(&work(1, 8)).limit, Limit::Bandwidth);
    }

    #[test]
    fn a_size_alone_has_no_time() {
        assert!(CardModel::of(&"24GiB".parse().unwrap()).unwrap_err().contains("name one"));
    }

    #[test]
    fn what_a_card_lacks_is_said_by_name() {
        let h100: Card = "h100".parse().unwrap();
        let error = CardModel::of(&Card { speed: None, no_figures_of: &["tf32", "host_bandwidth"], ..h100 }).unwrap_err();
        assert!(error.contains("no tf32, host_bandwidth of h100"), "{error}");
        let error = CardModel::of(&Card { name: Some("rtx-9090"), ..h100 }).unwrap_err();
        assert!(error.contains("rtx-9090 for matmul_half, matmul_single"), "{error}");
    }
}
