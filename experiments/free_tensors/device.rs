//! The bytes that the allocator has from the device: only there is an allocator that keeps what is dropped.

use super::*;

pub fn grid() -> Grid<Dropping> {
    use Reference::*;
    const MOMENTS: [Moment; 3] = [Moment::Before, Moment::Dropped, Moment::EmptyCache];
    let of = |dropped: Dropped, size: &'static str, survivor: Reference| {
        Dropping::cross(Watched::Device, dropped, size, [Nothing, survivor], MOMENTS)
    };
    let alone = |moment: Moment| move |c: &Dropping| c.watched == Watched::Device && c.reference == Nothing && c.moment == moment;
    let keeps = |metric: Metric| value(metric).of(alone(Moment::Dropped)).confirm(at_most(0.01)).refute(at_least(0.50));
    let gives = |metric: Metric| value(metric).of(alone(Moment::EmptyCache)).confirm(at_least(0.99)).refute(at_most(0.50));
    Grid::new("bytes of the device", step)
        .compare::<Moment>()
        .quick(of(Dropped::Tensor, "64MiB", View))
        .quick(of(Dropped::SmallTensors, "64MiB", Few))
        .quick(of(Dropped::Model, "mlp-8x512", Optimizer))
        .full(of(Dropped::Tensor, "1GiB", View))
        .full(of(Dropped::SmallTensors, "1GiB", Few))
        .full(of(Dropped::Model, "gpt2-medium", Optimizer))
        .passes(CHECK | COUNT)
        .on(CUDA)
        .check(|_| equal(1e-6))
        .answers("del-frees", keeps(UNRESERVED))
        .answers("del-frees", keeps(RETURNED))
        .answers("del-frees", gives(UNRESERVED))
        .answers("del-frees", gives(RETURNED))
        .no_plots()
}
