//! Does a device of as much memory as the formula says suffice?
//!
//! Guide 3 would compute what fits beforehand, so that memory does not run out. The device is limited to the formula's bytes in whole MiB
//! (a test holds them to it), and the allocator says whether a step fits.

use super::*;
const FITS: Metric = Metric::counted("fits", "fits", "1");

cell! { Budget { device_memory: DeviceMemory, model: ModelName, batch: Batch, optimizer: Optimizer, by: By } }

/// What the formula says of the models below, in whole MiB.
const AS_TOLD: [&str; 3] = ["14MiB", "147MiB", "73MiB"];

pub fn grid() -> Grid<Budget> {
    use Optimizer::{Adam, Sgd};
    Grid::new("does it fit?", in_python)
        .compare::<DeviceMemory>()
        // And half as much again.
        .quick(Budget::cross(["14MiB", "21MiB"], "mlp-4x512", 64, Adam, By::Pytorch).on(&[Platform::Cpu]))
        .quick(Budget::cross(["147MiB", "221MiB"], "gpt-4x128", 64, Adam, By::Pytorch).on(&[Platform::Cpu]))
        .quick(Budget::cross(["73MiB", "110MiB"], "resnet-4x16-gn", 64, Sgd, By::Pytorch).on(&[Platform::Cpu]))
        .passes(COUNT)
        .metrics(&[FITS])
        .claim(
            // Set on 22 November 2026, before anything ran out.
            Claim::new("formula-fits", "3", "who computes memory by the formula beforehand does not run out of it")
                .on(&[Platform::Cpu])
                .rule(
                    value(FITS).of(|c: &Budget| AS_TOLD.contains(&c.device_memory.0)).confirm(at_least(1.0)).refute(at_most(0.0)),
                ),
        )
        .no_plots()
}

python_test! {
    a_device_has_what_the_formula_says: "memory_model", r#"
import math
for cell in ["model=mlp-4x512 optimizer=adam", "model=gpt-4x128 optimizer=adam", "model=resnet-4x16-gn optimizer=sgd"]:
    formula = memory(memory_model.prepare, cell + " batch=64 precision=fp32 accumulate=1 checkpoint=none by=pytorch")["formula"]
    print(f"{math.ceil(formula / 2**20)}MiB")
"#, &AS_TOLD.map(|told| format!("{told}\n")).concat()
}
