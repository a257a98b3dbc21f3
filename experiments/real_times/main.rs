//! Is the predicted time of a step the time that others measured on real GPUs?
//!
//! Steps that others timed were rehearsed, and what was predicted was written to a file before
//! `peers/times/comparison.py` read what had been measured. This sets both beside each other, and beside two simpler ways to predict the
//! same rows. No real GPU takes part: its figures are those that were published, each with its commit in `steps.csv`.

mod ratios;
mod sources;
mod steps;

use harness::lab::*;
use serde::Deserialize;
use serde::de::DeserializeOwned;

name! { Source "whose records" }
name! { CardName as "card" "the card" }
levels! {
    Way "how it is predicted":
        Rehearsal "this lab: kernels of a rehearsal, with constants of the card",
        Roofline "the larger of FLOPs at the card's peak and bytes at its bandwidth, summed over the same operators",
        Pytorch "the formula of PyTorch's torch/utils/_runtime_estimation.py over them"
}
/// The runner's device takes no part.
const FILES: &[Platform] = &[Platform::Dry];

fn main() -> ExitCode {
    harness::run(protocol())
}

pub fn protocol() -> Protocol {
    Protocol::new("real_times", "Predicted times beside real GPUs")
        .question("How far is the predicted time of a step from what others measured, and does it put variants and models in the right order?")
        .hypothesis(
            "Operators that others timed give three constants for each card and class of kernels; sums of such times follow a step's within \
             10 to 15 % in the median, several times nearer than a roofline and than PyTorch's own estimate. Ratios of two variants are nearer \
             still, because most errors are in both.",
        )
        .grid(steps::grid())
        .grid(ratios::grid())
        .grid(ratios::kinds())
        .grid(sources::grid())
        .kind(SubjectKind::RealGpus)
        .threat(
            "Do not trust it where a step is bound by its host: no record of such a step was compared. Nor for grouped convolutions in half \
             precision, whose kernels differ between versions of cuDNN: a RegNet took 3.3 times as long in channels last on cuDNN 8, and is \
             predicted to take less.",
        )
        .threat(
            "Steps are of two collections of whole models, timm's on one card and NeuSight's in fp32 on five, and of one trace. bf16 training \
             of language models, the most common use, is in none of them. Liger's rows are single operators.",
        )
        .threat("Records are of PyTorch 1.12 to 2.1; all are rehearsed with PyTorch 2.11, which launches other kernels here and there.")
        .threat(
            "Constants are fitted on operators alone. That convolutions in half precision pay for changes of layout was added on 23 November \
             2026, after the signs of timm's first pairs had been seen to be wrong; what they pay is from other records (TraceLens, H100). On \
             the same day a defect was mended: backward passes of convolutions with a bias had no time.",
        )
}

/// The rows of a table that `peers/times/comparison.py` writes.
fn rows<T: DeserializeOwned>(table: &'static str) -> Vec<T> {
    csv::Reader::from_reader(table.as_bytes()).into_deserialize().collect::<Result<_, _>>().expect("comparison.py writes such rows")
}

/// Levels are names that live as long as the program.
fn kept(text: &str) -> &'static str {
    String::from(text).leak()
}

/// A grid of records, each predicted in all ways: the first in every profile, so that tests see one.
fn of_all<C: Has<Way>>(mut grid: Grid<C>, records: impl Iterator<Item = Vec<C>>) -> Grid<C> {
    for (at, record) in records.enumerate() {
        grid = if at == 0 { grid.always(record) } else { grid.quick_and_full(record) };
    }
    grid.compare::<Way>().passes(COUNT).on(FILES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use record::protocol::Profile;

    #[test]
    fn each_record_is_a_cell_once() {
        let plain = protocol().plain().unwrap();
        let cells = |name: &str, profile| {
            let grids = plain.grids.iter().filter(|grid| grid.name == name && grid.profiles.contains(&profile));
            grids.flat_map(|grid| grid.cells()).count()
        };
        for (name, rows) in
            [("steps", steps::rows().len()), ("ratios", ratios::rows().len()), ("sources", sources::records().len())]
        {
            assert_eq!(cells(name, Profile::Full), Way::ALL.len() * rows, "{name}");
            assert!(rows > 5, "{name}");
        }
    }

    #[test]
    fn order_is_counted_over_pairs() {
        assert_eq!(sources::concordance(&[(1.0, 10.0), (2.0, 30.0), (3.0, 20.0)]), Some(2.0 / 3.0));
        assert_eq!(sources::concordance(&[(1.0, 1.0)]), None);
    }
}
