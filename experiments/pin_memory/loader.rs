//! What does `DataLoader(pin_memory=True)`, guide 5's own line, take of the host, and what does it gain on a GPU?
//!
//! A thread of the loader copies each batch to locked memory, beside the workers' own batches. PyTorch in Python runs every cell
//! (`experiments/pin_memory/step.py`).

use super::without_gpu::Pinning;
use super::*;

const LOCKED_BATCHES: Metric =
    Metric::counted("locked_batches", "locked memory beside the batches, in batches", "1").nondeterministic();
const LOCKED_LOADER: Metric = Metric::counted("locked_by_loader", "locked memory", "B").nondeterministic();

number! { Images "images of 3 x 64 x 64 in a batch" }
number! { Workers "worker processes" }

cell! { Loaded { by: By, images: Images, workers: Workers, pinning: Pinning } }

pub fn grid() -> Grid<Loaded> {
    let pinned = |c: &Loaded| c.pinning == Pinning::On;
    Grid::new("the loader's pinned batches", in_python)
        .compare::<Pinning>()
        .quick_and_full(Loaded::cross(By::Pytorch, [16, 64, 256], [0, 4], Pinning::ALL))
        .passes(CHECK | COUNT | ROUNDS)
        .on(CUDA)
        .metrics(&[LOCKED_LOADER, LOCKED_BATCHES, TIME, VALUES_ERROR])
        .check(|_| equal(1e-6))
        .claim(
            // Set on 25 November 2026, before any figure of a loader: a whole batch is locked beside those that the loader has anyway, or none.
            Claim::new("pin-host-memory", "5", "pinning takes more host memory, and locks it")
                .on(BY_PYTHON)
                .rule(value(LOCKED_BATCHES).of(pinned).confirm(at_least(1.0)).refute(at_most(0.1))),
        )
        .claim(
            Claim::new("pin-loader", "5", "training data arrive faster with DataLoader(pin_memory=True)")
                .on(BY_PYTHON)
                .rule(ratio(TIME).of(pinned).less())
                .changed(
                    "29 November 2026: the guide's own line, DataLoader(pin_memory=True). It had been judged by batches that lie in pinned \
                     memory already (pin-training), and the loader's times by nothing.",
                ),
        )
        .plot(
            amounts(LOCKED_LOADER)
                .named("locked")
                .caption("Host memory that the loader locks for its pinned batches")
                .of(pinned)
                .by::<Images>()
                .by::<Workers>(),
        )
}
