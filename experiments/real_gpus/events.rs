//! Each allocation and free of whole steps.

use super::*;

const PREDICTED_EVENTS: Metric = Metric::counted("events_predicted", "events of the simulated GPU", "1");
const MEASURED_EVENTS: Metric = Metric::counted("events_measured", "events of the real GPU", "1");
const IDENTICAL: Metric = Metric::counted("events_identical", "identical events", "1");
const PREDICTED_PEAK: Metric = Metric::counted("predicted_peak", "predicted peak of requested bytes", "B");
const MEASURED_PEAK: Metric = Metric::counted("measured_peak", "peak of requested bytes on the real GPU", "B");

name! { Record "file of events" }
cell! { RecordedStep { record: Record, by: By } }

pub fn grid() -> Grid<RecordedStep> {
    let records = [
        "2.7b_128_autocast",
        "2.7b_128_forward",
        "2.7b_128_training",
        "2.7b_256_autocast",
        "2.7b_256_forward",
        "2.7b_256_training",
        "2.7b_512_autocast",
        "2.7b_512_forward",
        "2.7b_512_training",
        "large_256_training",
        "medium_128_inference",
        "medium_128_training",
        "medium_512_inference",
        "medium_512_training",
        "small_256_gradients",
        "small_cnn",
    ];
    replayed::<RecordedStep>("events")
        .compare::<Record>()
        .quick(RecordedStep::cross(["medium_128_inference", "medium_128_training"], By::Pytorch))
        .full(RecordedStep::cross(records, By::Pytorch))
        .metrics(&[PREDICTED_EVENTS, MEASURED_EVENTS, IDENTICAL, PREDICTED_PEAK, MEASURED_PEAK])
        .claim(
            Claim::ours(
                "real-gpu-events",
                "the simulated GPU makes each allocation and free of a step that a real GPU made, in order and size",
            )
            .rule(agreement(IDENTICAL, MEASURED_EVENTS, 1.0..=1.0, 1.0))
            .rule(agreement(IDENTICAL, PREDICTED_EVENTS, 1.0..=1.0, 1.0))
            .rule(agreement(PREDICTED_PEAK, MEASURED_PEAK, 1.0..=1.0, 1.0)),
        )
}
