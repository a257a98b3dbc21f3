//! Does it learn as fp32 does?

use super::task::{Task, scaler_in};
use super::*;

number! { Steps "training steps" }

cell! { Learned { steps: Steps, precision: Computed } }

pub fn grid() -> Grid<Learned> {
    Grid::new("does it learn?", step)
        .compare::<Computed>()
        .quick_and_full(Learned::cross([8, 32, 128], [Computed::Fp32, Computed::AmpBf16, Computed::AmpFp16]))
        .passes(CHECK | COUNT)
        .on(&[Platform::Cpu, Platform::Gpu])
        .metrics(&[LOSS, SKIPPED, LOWEST, LAST, RUINED])
        .check(|_| equal(0.1))
        .no_plots()
}

fn step(cell: Learned, bench: &Bench) -> Result<Step> {
    let (precision, mut task) = (cell.precision.set()?, Task::new(bench.device)?);
    let is_scaled = precision == Kind::Half;
    Ok(Step::new(move |probe| {
        if !probe.is_reading() {
            return task.compare(precision, is_scaled, probe);
        }
        let mut scaler = scaler_in(is_scaled.then(ScalerState::default))?;
        let trained = task.train(cell.steps.0, precision, &mut scaler, Task::batch)?;
        task.tell(&trained, &scaler, probe);
        if is_scaled {
            probe.emit(RUINED, task.ruined());
        }
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn gradients_are_fp32s_and_the_task_is_learned() {
        for cell in Learned::cross(32, [Computed::AmpBf16, Computed::AmpFp16]) {
            check(&protocol(), cell).holds();
            let loss = |steps| count(&protocol(), with(cell, Steps(steps))).figure(LOSS);
            assert!(loss(32) < 0.9 * loss(1));
        }
    }
}
