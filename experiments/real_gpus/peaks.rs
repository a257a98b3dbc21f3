//! Peaks of single operators, on many cards.

use super::*;

/// Benchmark, mode, GPU, name and value of what varies, configuration as JSON, peak, and where it is from.
const PEAKS: &str = include_str!("../../records/real_gpus/peaks.csv");

const PREDICTED: Metric = Metric::counted("predicted", "predicted peak", "B");
const MEASURED: Metric = Metric::counted("measured", "peak on the real GPU", "B");
const INFERRED: Metric = Metric::counted("inferred", "held from before, inferred", "B");

name! { Benchmark "what runs" }
name! { Mode "passes that are run" }
name! { Gpu "the GPU of the record" }
name! { Setup "the configuration's values" }
name! { Size "what varies" }
cell! { Peak { benchmark: Benchmark, mode: Mode, gpu: Gpu, setup: Setup, size: Size, by: By } }

pub fn grid() -> Grid<Peak> {
    let mut peaks = replayed::<Peak>("peaks")
        .compare::<Size>()
        .metrics(&[PREDICTED, MEASURED, INFERRED])
        .claim(
            Claim::ours("real-gpu-peaks", "the simulated GPU predicts the peak allocated memory of real GPUs to the byte")
                .rule(agreement(PREDICTED, MEASURED, 1.0..=1.0, 0.95))
                .rule(agreement(PREDICTED, MEASURED, 0.995..=1.005, 1.0))
                .changed(
                    "22 November 2026: what the processes of 24 rows held from before, and how neighbourhood attention and a part of ORPO are \
                     replayed, was found with the measured rows in view. 25 November: so was the order in which Liger's own four rows are made.",
                ),
        );
    for cells in series() {
        peaks = match cells[..] {
            [first, .., last] => peaks.quick(vec![first, last]),
            _ => peaks.quick(cells.clone()),
        };
        if cells[0].benchmark == Benchmark("softmax") {
            peaks = peaks.smoke(cells[..2].to_vec());
        }
        peaks = peaks.full(cells);
    }
    peaks
}

/// The rows of `peaks.csv` by series: one benchmark, mode, GPU and configuration.
fn series() -> Vec<Vec<Peak>> {
    let mut found: Vec<Vec<Peak>> = Vec::new();
    for row in rows(PEAKS) {
        let cell = Peak {
            benchmark: Benchmark(row[0]),
            mode: Mode(row[1]),
            gpu: Gpu(row[2].replace(' ', "-").leak()),
            // As records/real_gpus/replay.py spells it.
            setup: Setup(row[5].replace(['{', '}', '"', ' '], "").replace("torch.", "").replace(',', ";").leak()),
            size: Size(format!("{}{}", row[3], row[4]).leak()),
            by: By::Pytorch,
        };
        match found.last_mut() {
            Some(known) if (Peak { size: cell.size, ..known[0] }) == cell => known.push(cell),
            _ => found.push(vec![cell]),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_a_cell_and_every_series_in_the_quick_profile() {
        let plain = protocol().plain().unwrap();
        let peaks = |profile| plain.grids.iter().filter(move |g| g.name == "peaks" && g.profiles.contains(&profile));
        let cells = |profile| peaks(profile).flat_map(|g| g.cells()).count();
        let rows = PEAKS.lines().count() - 1;
        assert_eq!(cells(record::protocol::Profile::Full), rows);
        assert_eq!(cells(record::protocol::Profile::Quick), 2 * series().len());
    }
}
