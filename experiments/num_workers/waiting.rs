//! How far should workers be ahead, where samples wait for storage?
//!
//! Samples wait, and a trainer takes as long for a batch as the workers do on average.

use super::*;

const STEADY: Metric = Metric::timed("steady_rate", "samples per second, steady samples", "1");
const JITTERING: Metric = Metric::timed("jittering_rate", "samples per second, jittering samples", "1");

number! { Prefetch "batches prefetched for each worker" }

cell! { Waiting { by: By, prefetch: Prefetch } }

pub fn grid() -> Grid<Waiting> {
    let gain = |metric| ratio(metric).at(Prefetch(4)).confirm(at_least(1.05)).refute(at_most(1.02));
    Grid::new("samples that wait for storage", in_python)
        .compare::<Prefetch>()
        .quick_and_full(Waiting::cross(By::Pytorch, [2, 4]))
        .passes(CHECK | ROUNDS)
        .metrics(&[PROPORTIONAL, STEADY, JITTERING, SAMPLES_ERROR])
        .check(|_| equal(0.0))
        .claim(
            Claim::new("prefetch-factor", "3", "more prefetched batches hide latency")
                .on(&[Platform::Python])
                .rule(gain(STEADY))
                .rule(gain(JITTERING)),
        )
        .no_plots()
}
