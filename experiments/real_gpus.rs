//! Does the simulated GPU ask for the bytes that real GPUs were asked for?
//!
//! Others recorded what PyTorch allocated on real GPUs (`peers/real_gpus`): peaks of single operators, and each allocation and free of
//! whole steps. PyTorch in Python runs the same again on a simulated GPU of the same kind; what it says is put beside the record. No real
//! GPU takes part: its figures are those that were published.

use vramlab::lab::*;

/// `peaks.csv`: benchmark, mode, GPU, name and value of what varies, configuration as JSON, peak, and where it is from.
const PEAKS: &str = include_str!("../peers/real_gpus/peaks.csv");

const PREDICTED: Metric = Metric::counted("predicted", "predicted peak", "B");
const MEASURED: Metric = Metric::counted("measured", "peak on the real GPU", "B");
const INFERRED: Metric = Metric::counted("inferred", "held from before, inferred", "B");
const PREDICTED_EVENTS: Metric = Metric::counted("events_predicted", "events of the simulated GPU", "1");
const MEASURED_EVENTS: Metric = Metric::counted("events_measured", "events of the real GPU", "1");
const IDENTICAL: Metric = Metric::counted("events_identical", "identical events", "1");
const PREDICTED_PEAK: Metric = Metric::counted("predicted_peak", "predicted peak of requested bytes", "B");
const MEASURED_PEAK: Metric = Metric::counted("measured_peak", "peak of requested bytes on the real GPU", "B");
const MATCH: Metric = Metric::counted("match", "events", "1");

name! { Benchmark "what runs" }
name! { Mode "passes that are run" }
name! { Gpu "the GPU of the record" }
name! { Setup "the configuration's values" }
name! { Size "what varies" }
name! { Record "file of events" }
cell! { Peak { benchmark: Benchmark, mode: Mode, gpu: Gpu, setup: Setup, size: Size, by: By } }
cell! { Step24 { record: Record, by: By } }

fn main() -> ExitCode {
    vramlab::run(protocol())
}

/// The rows of `peaks.csv` by series: one benchmark, mode, GPU and configuration.
fn series() -> Vec<Vec<Peak>> {
    let mut found: Vec<Vec<Peak>> = Vec::new();
    for row in csv::Reader::from_reader(PEAKS.as_bytes()).records() {
        let row = row.expect("peaks.csv is a table");
        let kept = |text: String| -> &'static str { text.leak() };
        let cell = Peak {
            benchmark: Benchmark(kept(row[0].to_string())),
            mode: Mode(kept(row[1].to_string())),
            gpu: Gpu(kept(row[2].replace(' ', "-"))),
            // As peers/real_gpus/replay.py spells it.
            setup: Setup(kept(row[5].replace(['{', '}', '"', ' '], "").replace("torch.", "").replace(',', ";"))),
            size: Size(kept(format!("{}{}", &row[3], &row[4]))),
            by: By::Pytorch,
        };
        match found.last_mut() {
            Some(known) if with_size(known[0], cell.size) == cell => known.push(cell),
            _ => found.push(vec![cell]),
        }
    }
    found
}

fn with_size(cell: Peak, size: Size) -> Peak {
    Peak { size, ..cell }
}

pub fn protocol() -> Protocol {
    let mut peaks = Grid::new("peaks", |_: Peak, _: &Bench| bail!("peers/pytorch/real_gpus.py runs this"))
        .compare::<Size>()
        .passes(COUNT)
        .on(&[Platform::Dry])
        .metrics(&[PREDICTED, MEASURED, INFERRED])
        .claim(
            Claim::new(
                "real-gpu-peaks",
                "this lab",
                "the simulated GPU predicts the peak allocated memory of real GPUs to the byte",
            )
            .rule(agreement(PREDICTED, MEASURED, 1.0..=1.0, 0.95))
            .rule(agreement(PREDICTED, MEASURED, 0.995..=1.005, 1.0))
            .changed(
                "22 November 2026: what the processes of 24 rows held from before, and how neighbourhood attention and a part of ORPO are \
                 replayed, was found with the measured rows in view.",
            )
            .on(&[Platform::Dry, Platform::Python])
            .confirmed("Predictions can be trusted to the byte where PyTorch's own kernels run: {effect}.")
            .refuted("Do not plan to the byte with predictions: {effect}.")
            .depends("Predictions are right to the byte where {where}."),
        )
        .plot(
            against(PREDICTED, MEASURED)
                .named("peaks")
                .caption("Predicted peaks of allocated memory against those published of real GPUs")
                .by::<Benchmark>(),
        );
    for rows in series() {
        peaks = match rows[..] {
            [first, .., last] => peaks.quick(vec![first, last]),
            _ => peaks.quick(rows.clone()),
        };
        if rows[0].benchmark == Benchmark("softmax") {
            peaks = peaks.smoke(rows[..2].to_vec());
        }
        peaks = peaks.full(rows);
    }
    let records = ["medium_128_inference", "medium_128_training", "medium_512_inference", "medium_512_training", "small_cnn"];
    let events = Grid::new("events", |_: Step24, _: &Bench| bail!("peers/pytorch/real_gpus.py runs this"))
        .compare::<Record>()
        .passes(COUNT)
        .on(&[Platform::Dry])
        .quick(Step24::cross(["medium_128_inference", "medium_128_training"], By::Pytorch))
        .full(Step24::cross(records, By::Pytorch))
        .metrics(&[PREDICTED_EVENTS, MEASURED_EVENTS, IDENTICAL, PREDICTED_PEAK, MEASURED_PEAK])
        .claim(
            Claim::new(
                "real-gpu-events",
                "this lab",
                "the simulated GPU makes each allocation and free of a step that a real GPU made, in order and size",
            )
            .rule(agreement(IDENTICAL, MEASURED_EVENTS, 1.0..=1.0, 1.0))
            .rule(agreement(IDENTICAL, PREDICTED_EVENTS, 1.0..=1.0, 1.0))
            .rule(agreement(PREDICTED_PEAK, MEASURED_PEAK, 1.0..=1.0, 1.0))
            .on(&[Platform::Dry, Platform::Python])
            .confirmed("A rehearsed step is the step that a GPU runs, allocation for allocation: {effect}.")
            .refuted("Some allocations are missing or others than a GPU's: {effect}.")
            .depends("A step is the GPU's where {where}."),
        )
        .plot(
            shares(IDENTICAL, MATCH)
                .named("events")
                .caption("Allocations and frees of one step that are those of the real GPU's record, in order and size")
                .by::<Record>(),
        );
    Protocol::new("real_gpus", "Predictions beside real GPUs")
        .question("Does the simulated GPU allocate what real GPUs allocated: the same peaks, the same events in the same order?")
        .hypothesis(
            "The simulated GPU runs PyTorch's own CUDA code and caching allocator, so that everything but what libraries keep to \
             themselves should be equal to the byte: results, temporaries, workspaces, and the order of all of them.",
        )
        .grid(peaks)
        .grid(events)
        .threat("Records are of PyTorch 2.4 to 2.11; all are replayed with 2.11. Where a version took other memory, peers/real_gpus/README.md says so.")
        .threat(
            "What a process held from before its peaks is part of them. Where it was found from the figures themselves, and not from a \
             source, the column 'held from before, inferred' gives its bytes: these rows confirm less than the others.",
        )
        .threat("Replays were written with most of these rows in view. Rows that nobody looked at would be a harder test.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_a_cell_and_every_series_in_the_quick_profile() {
        let plain = protocol().plain().unwrap();
        let cells = |profile| plain.grids.iter().filter(|g| g.profiles.contains(&profile)).flat_map(|g| g.cells()).count();
        let rows = PEAKS.lines().count() - 1;
        assert_eq!(cells(vramlab::protocol::Profile::Full), rows + 5);
        assert_eq!(cells(vramlab::protocol::Profile::Quick), 2 * series().len() + 2);
    }
}
