//! How many workers, and should they stay between epochs?

use super::*;

const RATE: Metric = Metric::timed("rate", "samples per second", "1");
const FIRST: Metric = Metric::timed("first_batch", "time to the first batch", "s");
const GAP_NEW: Metric = Metric::timed("gap_new", "gap between epochs, persistent_workers off", "s");
const GAP_KEPT: Metric = Metric::timed("gap_kept", "gap between epochs, persistent_workers on", "s");
const GAP_RATIO: Metric = Metric::timed("gap_ratio", "gap between epochs, persistent_workers on / off", "x");
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
    let three_per_core = |c: &Loading| c.transform == Work::Heavy && c.workers == ThreePerCore;
    let one_per_core = |c: &Loading| c.transform == Work::Heavy && c.workers == PerCore;
    Grid::new("loading alone", step)
        .compare::<Workers>()
        .quick(Loading::cross(By::Vramlab, Work::Heavy, 128, BY_CORES))
        .quick(Loading::cross(By::Pytorch, Work::Heavy, 128, BY_CORES))
        .full(Loading::cross(By::Vramlab, Work::Heavy, 2048, WITH_ONE))
        .full(Loading::cross(By::Pytorch, Work::Heavy, 2048, WITH_ONE))
        .full(Loading::cross(By::Vramlab, Work::Light, 50000, WITH_ONE))
        .full(Loading::cross(By::Pytorch, Work::Light, 50000, WITH_ONE))
        .smoke(Loading::cross(By::Vramlab, Work::Small, 16, [Nobody, PerCore]))
        .passes(CHECK | ROUNDS)
        .metrics(&[RATE, FIRST, GAP_NEW, GAP_KEPT, GAP_RATIO, GAP_SHARE, PROPORTIONAL, SAMPLES_ERROR])
        .check(|_| equal(0.0))
        .claim(
            Claim::new("workers-faster", "1 3", "more workers load faster").on(&[Platform::Cpu, Platform::Python]).rule(
                ratio(RATE)
                    .of(|c: &Loading| c.transform == Work::Heavy && matches!(c.workers, One | PerCore))
                    .confirm(at_least(1.2))
                    .refute(at_most(1.02)),
            ),
        )
        .claim(
            Claim::new("workers-too-many", "1", "too many workers make loading slower")
                .on(&[Platform::Cpu, Platform::Python])
                .rule(
                    lowest(RATE)
                        .of(beyond_cores)
                        .over(|c: &Loading| c.transform == Work::Heavy)
                        .confirm(at_most(0.95))
                        .refute(at_least(0.98)),
                )
                .changed(BEYOND)
                .before(
                    lowest(RATE)
                        .of(three_per_core)
                        .over(|c: &Loading| c.transform == Work::Heavy && matches!(c.workers, Nobody | PerCore | ThreePerCore))
                        .confirm(at_most(0.95))
                        .refute(at_least(0.98)),
                ),
        )
        .claim(
            Claim::new("workers-2-4x", "3", "two to four workers for each core are right")
                .on(&[Platform::Python])
                .rule(highest(RATE).of(beyond_cores).over(one_per_core).confirm(at_least(1.05)).refute(at_most(1.02)))
                .changed(BEYOND)
                .before(highest(RATE).of(three_per_core).over(one_per_core).confirm(at_least(1.05)).refute(at_most(1.02))),
        )
        .claim(
            Claim::new("persistent-workers", "3", "workers that stay save the start of each epoch")
                .on(&[Platform::Python])
                .rule(value(GAP_RATIO).of(one_per_core).holds(at_most(0.5))),
        )
        .plot(bars(RATE).caption("Samples per second by number of workers, against none").by::<By>().by::<Work>())
}

fn step(cell: Loading, _: &Bench) -> Result<Step> {
    match (cell.by, cell.transform) {
        (By::Pytorch, _) => bail!("the PyTorch reference runs this cell"),
        (By::Vramlab, Work::Heavy | Work::Small) => Ok(loading(images(cell.transform, cell.samples)?, cell.workers)),
        (By::Vramlab, Work::Light) => {
            let samples = usize::try_from(cell.samples.0)?;
            let pixels: Vec<u8> = (0..samples * 3 * 32 * 32).map(|at| (at * 31 % 251) as u8).collect();
            let light = FnDataset::new(samples, &[3, 32, 32], move |index, _, into: &mut [f32]| {
                let bytes = &pixels[index * into.len()..][..into.len()];
                into.iter_mut().zip(bytes).for_each(|(value, byte)| *value = f32::from(*byte) / 127.5 - 1.0);
                Ok((index % 10) as i64)
            });
            Ok(loading(Arc::new(light), cell.workers))
        }
    }
}

/// Loads epochs and does nothing with them.
fn loading<D: Dataset>(data: Arc<D>, workers: Workers) -> Step {
    let step = Step::new(move |probe| {
        let start = Instant::now();
        let mut loader = Loader::<D>::new(Arc::clone(&data), workers.config())?;
        if !probe.is_timing() {
            let batches = loader.epoch(0)?.collect::<Result<Vec<LoadedBatch>>>()?;
            let given = batches.into_iter().flat_map(|batch| [batch.samples, batch.labels]);
            return probe.compare(SAMPLES_ERROR, || Ok(given.collect()));
        }
        let mut first = loader.epoch(0)?;
        drop(first.next().context("an epoch without a batch")??);
        probe.emit(FIRST, start.elapsed().as_secs_f64());
        drain(first)?;
        let start = Instant::now();
        drain(loader.epoch(1)?)?;
        let seconds = start.elapsed().as_secs_f64();
        probe.emit(RATE, data.len() as f64 / seconds);
        let mut third = loader.epoch(2)?;
        let held = third.next().transpose()?;
        probe.emit(PROPORTIONAL, proportional_of_tree(std::process::id())?);
        drop((held, third));
        drop(loader);
        // What is judged of gaps is judged at as many workers as cores; starting more of them would take its time.
        if workers.count() == cores() {
            let (new, kept) = (gap(&data, workers, false)?, gap(&data, workers, true)?);
            probe.emit(GAP_NEW, new);
            probe.emit(GAP_KEPT, kept);
            probe.emit(GAP_RATIO, kept / new);
            probe.emit(GAP_SHARE, new / (new + seconds));
        }
        Ok(())
    });
    step.timing(ONCE).times_itself()
}

/// Seconds from the last batch of an epoch to the first of the next, for epochs of two batches a worker.
fn gap<D: Dataset>(data: &Arc<D>, workers: Workers, persistent: bool) -> Result<f64> {
    let few = (2 * BATCH * workers.count().max(1)).min(data.len());
    let few = Subset::new(Arc::clone(data), (0..few as u32).collect())?;
    let mut loader = Loader::new(few, Config { persistent, ..workers.config() })?;
    drain(loader.epoch(0)?)?;
    let start = Instant::now();
    let mut second = loader.epoch(1)?;
    second.next().context("an epoch without a batch")??;
    Ok(start.elapsed().as_secs_f64())
}

/// Takes all batches of an epoch.
fn drain<D: Dataset>(mut epoch: Epoch<'_, D>) -> Result<()> {
    epoch.try_for_each(|batch| batch.map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn the_check_sees_an_order_that_depends_on_the_workers() {
        let cell = Loading { by: By::Vramlab, transform: Work::Small, samples: Samples(16), workers: Workers::PerCore };
        check(&protocol(), cell).holds();
        let reversed = |bench: &Bench| Ok(step(cell, bench)?.altered(|tensor| tensor.flip([0])));
        broken(&protocol(), cell, reversed).sees("samples: expected equal");
    }
}
