//! How many bytes do a step's operations read and write?
//!
//! PyTorch in Python counts them (`experiments/amp/step.py`): each operation of the forward and the backward pass reads its inputs once and writes
//! its outputs once, whatever a cache may save of it.

use super::*;

const TRAFFIC: Metric = Metric::counted("traffic", "read and written by operations", "B");
/// Casts between precisions are among them.
const CASTS: Metric = Metric::counted("cast_traffic", "of it by casts", "B");

cell! { Bandwidth { model: ModelName, batch: Batch, precision: Computed, by: By } }

pub fn grid() -> Grid<Bandwidth> {
    use Computed::{AmpBf16, Fp32};
    let of = |model, batches: [i64; 2]| Bandwidth::cross(model, batches, [Fp32, AmpBf16], By::Pytorch);
    Grid::new("bytes read and written", |_: Bandwidth, _: &Bench| bail!("experiments/amp/step.py runs this"))
        .compare::<Computed>()
        .quick(of("mlp-8x256", [64, 1024]))
        .quick(of("gpt-4x128", [2, 32]))
        .full(of("mlp-8x1024", [1024, 16384]))
        .full(of("gpt-12x768", [4, 32]))
        .full(of("resnet-8x64-gn", [32, 128]))
        .passes(CHECK | COUNT)
        .on(EVERYWHERE)
        .metrics(&[TRAFFIC, CASTS])
        .check(|_| rounded())
        .claim(
            // Set on 22 November 2026, before any figure: as amp-memory-half.
            Claim::new("amp-bandwidth", "3", "mixed precision saves nearly half of the bandwidth")
                .on(BY_PYTHON)
                .rule(ratio(TRAFFIC).at(AmpBf16).holds(at_most(0.60))),
        )
        .no_plots()
}
