//! Does it learn as fp32 does?

use super::*;

number! { Steps "training steps" }

cell! { Learned { steps: Steps, precision: Computed, by: By } }

pub fn grid() -> Grid<Learned> {
    Grid::new("does it learn?", in_python)
        .compare::<Computed>()
        .quick_and_full(Learned::cross([8, 32, 128], [Computed::Fp32, Computed::AmpBf16, Computed::AmpFp16], By::Pytorch))
        .passes(CHECK | COUNT)
        .on(&[Platform::Cpu, Platform::Gpu])
        .metrics(&[LOSS, SKIPPED, LOWEST, LAST, RUINED])
        .check(|_| equal(0.1))
        .no_plots()
}

python_test! {
    gradients_are_fp32s_and_the_task_is_learned: "amp", r#"
of = "steps={} precision={} by=pytorch"
for kind in ("amp-bf16", "amp-fp16"):
    loss = {steps: memory(amp.Task, of.format(steps, kind))["loss"] for steps in (1, 32)}
    print(check(amp.Task, of.format(32, kind), of.format(32, "fp32"), 0.1), loss[32] < 0.9 * loss[1])
"#, "ok True\nok True\n"
}
