//! How many workers, and should they stay between epochs?

use super::*;

const RATE: Metric = Metric::timed("rate", "samples per second", "1");
const FIRST: Metric = Metric::timed("first_batch", "time to the first batch", "s");
const GAP_NEW: Metric = Metric::timed("gap_new", "gap between epochs, persistent_workers off", "s");
const GAP_KEPT: Metric = Metric::timed("gap_kept", "gap between epochs, persistent_workers on", "s");
const GAP_RATIO: Metric = Metric::timed("gap_ratio", "gap between epochs, persistent_workers on / off", "x");
/// Until the workers are there: `iter(loader)`, without the first batch.
const START_NEW: Metric = Metric::timed("start_new", "start of an epoch, persistent_workers off", "s");
const START_KEPT: Metric = Metric::timed("start_kept", "start of an epoch, persistent_workers on", "s");
const START_RATIO: Metric = Metric::timed("start_ratio", "start of an epoch, persistent_workers on / off", "x");
const GAP_SHARE: Metric = Metric::timed("gap_share", "gap between epochs with new workers, share of the epoch", "1").share();

/// What was changed of the claims about more workers than cores.
const BEYOND: &str =
    "22 November 2026: two, three and four workers for each core are judged. It had been three alone, in the quick profile.";

cell! { Loading { by: By, transform: Work, samples: Samples, workers: Workers } }

pub fn grid() -> Grid<Loading> {
    use Workers::*;
    const BY_CORES: [Workers; 5] = [Nobody, PerCore, TwoPerCore, ThreePerCore, FourPerCore];
    const WITH_ONE: [Workers; 6] = [Nobody, One, PerCore, TwoPerCore, ThreePerCore, FourPerCore];
    let beyond_cores = |c: &Loading| c.transform == Work::Heavy && matches!(c.workers, TwoPerCore | ThreePerCore | FourPerCore);
    let waits = |c: &Loading| c.transform == Work::Waits && matches!(c.workers, TwoPerCore | ThreePerCore | FourPerCore);
    let one_that_waits = |c: &Loading| c.transform == Work::Waits && c.workers == PerCore;
    let three_per_core = |c: &Loading| c.transform == Work::Heavy && c.workers == ThreePerCore;
    let one_per_core = |c: &Loading| c.transform == Work::Heavy && c.workers == PerCore;
    Grid::new("loading alone", in_python)
        .compare::<Workers>()
        .quick(Loading::cross(By::Pytorch, Work::Heavy, 128, BY_CORES))
        .quick_and_full(Loading::cross(By::Pytorch, Work::Waits, 256, [PerCore, TwoPerCore, ThreePerCore, FourPerCore]))
        .full(Loading::cross(By::Pytorch, Work::Heavy, 2048, WITH_ONE))
        .full(Loading::cross(By::Pytorch, Work::Light, 50000, WITH_ONE))
        .smoke(Loading::cross(By::Pytorch, Work::Light, 256, [Nobody, PerCore]))
        .passes(CHECK | ROUNDS)
        .metrics(&[RATE, FIRST, GAP_NEW, GAP_KEPT, GAP_RATIO, GAP_SHARE, START_NEW, START_KEPT, START_RATIO, PROPORTIONAL, SAMPLES_ERROR])
        .check(|_| equal(0.0))
        .judged_on(&[Platform::Python])
        .claim(
            Claim::new("workers-faster", "1", "more workers load faster")
                .rule(ratio(RATE).at(Work::Heavy).at([One, PerCore]).more()),
        )
        .claim(
            Claim::new("workers-too-many", "1", "too many workers make loading slower")
                .rule(lowest(RATE).of(beyond_cores).over_at(Work::Heavy).confirm(at_most(0.95)).refute(at_least(0.98)))
                .changed(BEYOND)
                .before(
                    lowest(RATE)
                        .of(three_per_core)
                        .over_at(Work::Heavy)
                        .over_at([Nobody, PerCore, ThreePerCore])
                        .confirm(at_most(0.95))
                        .refute(at_least(0.98)),
                ),
        )
        .claim(
            Claim::new("workers-2-4x", "3", "two to four workers for each core are right where samples are decoded")
                .rule(highest(RATE).of(beyond_cores).over(one_per_core).confirm(at_least(1.05)).refute(at_most(1.02)))
                .changed(BEYOND)
                .before(highest(RATE).of(three_per_core).over(one_per_core).confirm(at_least(1.05)).refute(at_most(1.02))),
        )
        .claim(
            Claim::new("workers-2-4x-waiting", "3", "two to four workers for each core are right where samples wait for storage")
                .rule(highest(RATE).of(waits).over(one_that_waits).confirm(at_least(1.05)).refute(at_most(1.02)))
                .changed("29 November 2026: made a claim beside workers-2-4x, which is about samples that are decoded."),
        )
        .claim(
            Claim::new("persistent-workers", "3", "workers that stay shorten the start of each epoch")
                .rule(value(START_RATIO).of(one_that_waits).less())
                .rule(value(GAP_RATIO).of(one_that_waits).less().informational())
                .changed(
                    "29 November 2026: the start itself is judged, and the guide says less, not half. The gap between epochs, which stands beside \
                     it, holds the loading of a batch, too. The start is that of workers whose samples wait: a start does not depend on \
                     what is done to samples, and nothing else then asks for a core. Workers that decode had been judged, on a machine \
                     whose cores others used; those rows were not kept, as they had two workers decode 9.6 times as much as none.",
                )
                .before(value(GAP_RATIO).of(one_per_core).holds(at_most(0.5))),
        )
        .plot(bars(RATE).caption("Samples per second by number of workers, against none").by::<Work>())
}
