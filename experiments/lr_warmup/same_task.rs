//! Is it the same task in each precision?

use super::*;
use training::{Schedule, WarmupTask};

cell! { SameTask { optimizer: Algorithm, batch: Batch, precision: Precision } }

pub fn grid() -> Grid<SameTask> {
    Grid::new("the same task?", step)
        .compare::<Precision>()
        .always(SameTask::cross(Algorithm::ALL, 32, [Precision::Fp32, Precision::AmpBf16]))
        .passes(CHECK)
        .on(NOT_DRY)
        .check(|_| equal(0.05))
}

fn step(cell: SameTask, bench: &Bench) -> Result<Step> {
    let schedule = Schedule { algorithm: cell.optimizer, rate: 1e-2, warm_up: 0 };
    let task = WarmupTask::new(schedule, cell.precision, cell.batch.0, bench)?;
    Ok(Step::new(move |probe| {
        let (networks, _) = task.train(0..2, 1)?;
        probe.compare(GRADIENT_ERROR, || Ok(networks.gradients()))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn the_check_sees_another_task() {
        let cell = SameTask { optimizer: Algorithm::Adam, batch: Batch(32), precision: Precision::AmpBf16 };
        check(&protocol(), cell).holds();
        broken(&protocol(), cell, |bench| step(with(cell, Batch(16)), bench)).sees("gradient: expected equal");
    }
}
