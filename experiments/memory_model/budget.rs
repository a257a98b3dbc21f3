//! Does a device of as much memory as the formula says suffice?
//!
//! Guide 3 would compute what fits beforehand, so that memory does not run out. The device is limited to the formula's bytes in whole MiB
//! (a test holds them to it), and the allocator says whether a step fits.

use super::*;
use harness::measure::is_out_of_memory;

const FITS: Metric = Metric::counted("fits", "fits", "1");

cell! { Budget { device_memory: DeviceMemory, model: ModelName, batch: Batch, optimizer: OptimizerKind } }

/// What the formula says of the models below, in whole MiB.
const AS_TOLD: [&str; 3] = ["14MiB", "147MiB", "73MiB"];

pub fn grid() -> Grid<Budget> {
    use OptimizerKind::{Adam, Sgd};
    Grid::new("does it fit?", train)
        .compare::<DeviceMemory>()
        // And half as much again.
        .quick(Budget::cross(["14MiB", "21MiB"], "mlp-4x512", 64, Adam).on(&[Platform::Cpu]))
        .quick(Budget::cross(["147MiB", "221MiB"], "gpt-4x128", 64, Adam).on(&[Platform::Cpu]))
        .quick(Budget::cross(["73MiB", "110MiB"], "resnet-4x16-gn", 64, Sgd).on(&[Platform::Cpu]))
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

fn train(cell: Budget, bench: &Bench) -> Result<Step> {
    let configuration = Configuration { optimizer: cell.optimizer, ..Configuration::new(cell.model.0, cell.batch.0) };
    let mut trainer = Trainer::load(&configuration, bench.device)?;
    Ok(Step::new(move |probe| {
        probe.at_rest();
        let fits = match trainer.iterate(&mut |_, _| Ok(())) {
            Ok(()) => 1,
            Err(e) if is_out_of_memory(&format!("{e:#}")) => 0,
            Err(e) => return Err(e),
        };
        probe.emit(FITS, fits);
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use super::super::configurations::{Accumulate, FORMULA, Training, counting};
    use super::*;
    use harness::lab::testing::*;
    use harness::measure;
    use models::training::{CheckpointPolicy, Precision};
    use torch::Cpu;

    #[test]
    fn a_device_has_what_the_formula_says() {
        let models =
            [("mlp-4x512", OptimizerKind::Adam), ("gpt-4x128", OptimizerKind::Adam), ("resnet-4x16-gn", OptimizerKind::Sgd)];
        for (told, (model, optimizer)) in AS_TOLD.into_iter().zip(models) {
            let (accumulate, checkpoint) = (Accumulate(1), CheckpointPolicy::None);
            let (model, batch, precision) = (ModelName(model), Batch(64), Precision::Fp32);
            let _turn = alone();
            let cell = Training { model, batch, optimizer, precision, accumulate, checkpoint };
            let counted = measure::memory(&mut counting(cell, &BENCH, false).unwrap(), &Cpu::new(None)).unwrap();
            let formula = counted.iter().find(|sample| sample.metric == FORMULA.name).unwrap().value;
            assert_eq!(format!("{}MiB", (formula / f64::from(1 << 20)).ceil()), told, "{model:?}");
        }
    }
}
