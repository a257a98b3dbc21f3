//! The largest batch that fits, found as timm's benchmark finds it.

use super::*;

/// Model, layout of its images and weights, pixels of an edge, and batch.
const IMAGE_MODELS: &str = include_str!("../../records/real_gpus/image_models.csv");

const PREDICTED_BATCH: Metric = Metric::counted("predicted_batch", "largest batch tried that fits the simulated GPU", "1");
const MEASURED_BATCH: Metric = Metric::counted("measured_batch", "largest batch tried that fitted the real GPU", "1");

name! { ImageModel "timm's model" }
name! { ImageLayout "order of channels in memory" }
cell! { LargestBatch { model: ImageModel, layout: ImageLayout, by: By } }

pub fn grid() -> Grid<LargestBatch> {
    let mut batches: Vec<LargestBatch> = Vec::new();
    for row in csv::Reader::from_reader(IMAGE_MODELS.as_bytes()).records() {
        let row = row.expect("image_models.csv is a table");
        let kept = |i: usize| -> &'static str { row[i].to_string().leak() };
        batches.push(LargestBatch { model: ImageModel(kept(0)), layout: ImageLayout(kept(1)), by: By::Pytorch });
    }
    // Each a whole grid: some models were tried in one layout alone.
    let (first, last): (Vec<LargestBatch>, Vec<LargestBatch>) =
        batches.into_iter().partition(|cell| cell.layout == ImageLayout("nhwc"));
    Grid::new("largest_batches", in_python)
        .compare::<ImageModel>()
        .passes(COUNT)
        .on(&[Platform::Dry])
        .quick(first[..2].to_vec())
        .full(first)
        .full(last)
        .metrics(&[PREDICTED_BATCH, MEASURED_BATCH])
        .claim(
            Claim::new(
                "real-gpu-batches",
                "this lab",
                "of the batches that timm's benchmark tries, the simulated GPU says which is the largest that fits",
            )
            .rule(agreement(PREDICTED_BATCH, MEASURED_BATCH, 1.0..=1.0, 0.9))
            .changed(
                "25 November 2026: what a process of PyTorch 1.12 held outside the allocator is taken off the card since a first run without it, \
                 in which 15 of 18 batches were equal and 3 one step too large. Three round sizes were tried on nine rows before a source was found.",
            )
            .on(&[Platform::Dry, Platform::Python]),
        )
        .no_plots()
}
