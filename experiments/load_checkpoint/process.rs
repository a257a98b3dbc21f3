//! What does a load take of the whole process?

use super::*;

/// Bytes of tensors on the model's device over those of the model: at the peak of the load, while the loaded state is held, and when it
/// is dropped.
pub const LOAD_PEAK: Metric = Metric::counted("load_peak", "peak during the load, relative to the model", "1").ratio();
pub const HELD: Metric = Metric::counted("held", "memory with the state held, relative to the model", "1").ratio();
pub const DROPPED: Metric = Metric::counted("dropped", "memory with the state dropped, relative to the model", "1").ratio();
/// Share of the loaded state's bytes that are on the model's device.
pub const LANDED: Metric = Metric::counted("landed", "share of the state on the device", "1").share();
/// The same for the whole process: what the kernel counts beyond what there was before the model, over the bytes of the model.
pub const PROCESS_PEAK: Metric =
    Metric::timed("process_peak", "peak resident memory during the load, relative to the model", "1").ratio();
pub const PROCESS_HELD: Metric =
    Metric::timed("process_held", "resident memory with the state held, relative to the model", "1").ratio();
pub const PROCESS_DROPPED: Metric =
    Metric::timed("process_dropped", "resident memory after del, relative to the model", "1").ratio();
/// The last after the C library was told to give back what nobody uses.
const PROCESS_TRIMMED: Metric =
    Metric::timed("process_trimmed", "resident memory after del and malloc_trim, relative to the model", "1").ratio();

pub fn grid() -> Grid<Loaded> {
    let held = |metric| value(metric).of(|c: &Loaded| c.reader.holds_a_state());
    let of = |model, readers: &[Reader]| Loaded::cross(model, By::Pytorch, Saved::Cpu, Map::Cpu, readers);
    Grid::new("memory of a load", in_python)
        .compare::<Reader>()
        .quick(of(SMALL, &[Reader::AsSaved, Reader::Load, Reader::LoadMmap]))
        .full(of(LARGE, Reader::ALL))
        .smoke(of(ModelName("mlp-2x256"), &[Reader::AsSaved, Reader::Load]).on(EVERYWHERE))
        .on(&[Platform::Cpu])
        .metrics(&[LOAD_PEAK, HELD, DROPPED, PROCESS_PEAK, PROCESS_HELD, PROCESS_DROPPED, PROCESS_TRIMMED, LANDED])
        // Every bit of every parameter.
        .check(|_| equal(0.0))
        .claim(
            Claim::new("load-del", "4", "the loaded state keeps its memory until it is dropped")
                .on(&[Platform::Cpu, Platform::Gpu, Platform::Dry, Platform::Python])
                // Each pair of parts asks the same by what a device counts: on the CPU and for PyTorch in Python by the process, mapped files
                // and all, on a GPU by the bytes of its tensors, and where memory can be limited by what still fits.
                .rule(held(PROCESS_HELD).confirm(at_least(1.90)).refute(at_most(1.10)).informational())
                .rule(held(PROCESS_TRIMMED).confirm(at_most(1.10)).refute(at_least(1.90)).informational())
                .changed(
                    "20 November 2026: after the drop the process is judged when the C library has given back what nobody uses \
                     (malloc_trim). It had been seen to keep blocks of less than 32 MiB, state or no state.",
                )
                .before(held(PROCESS_HELD).confirm(at_least(1.90)).refute(at_most(1.10)))
                .before(held(PROCESS_DROPPED).confirm(at_most(1.10)).refute(at_least(1.90))),
        )
        .no_plots()
}
