//! How far should workers be ahead, where samples wait for storage?
//!
//! Samples wait, and a trainer takes as long for a batch as the workers do on average.

use super::*;

const STEADY: Metric = Metric::timed("steady_rate", "samples per second, steady samples", "1");
const JITTERING: Metric = Metric::timed("jittering_rate", "samples per second, jittering samples", "1");

number! { Prefetch "batches prefetched for each worker" }

cell! { Waiting { by: By, prefetch: Prefetch } }

pub fn grid() -> Grid<Waiting> {
    let gain = |metric| ratio(metric).of(|c: &Waiting| c.prefetch == Prefetch(4)).confirm(at_least(1.05)).refute(at_most(1.02));
    Grid::new("samples that wait for storage", step)
        .compare::<Prefetch>()
        // The claim is about PyTorch's loader; ours is timed where there is time for it.
        .quick(Waiting::cross(By::Vramlab, [2, 4]).passes(CHECK))
        .full(Waiting::cross(By::Vramlab, [2, 4]))
        .quick_and_full(Waiting::cross(By::Pytorch, [2, 4]))
        .passes(CHECK | ROUNDS)
        .metrics(&[PROPORTIONAL, STEADY, JITTERING, SAMPLES_ERROR])
        .check(|_| equal(0.0))
        .claim(
            Claim::new("prefetch-factor", "3", "more prefetched batches hide latency")
                .on(&[Platform::Cpu, Platform::Python])
                .rule(gain(STEADY))
                .rule(gain(JITTERING)),
        )
        .no_plots()
}

/// What a sample waits, on average.
const WAIT: Duration = Duration::from_millis(2);
const BATCHES: usize = 16;

/// What one sample waits: nothing, always the same, or one in sixteen very long and the others half as long.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Storage {
    Instant,
    Steady,
    Jittering,
}

impl Storage {
    fn wait(self, index: usize) -> Duration {
        match self {
            Storage::Instant => Duration::ZERO,
            Storage::Steady => WAIT,
            // Fibonacci hashing spreads the long ones unevenly over batches.
            Storage::Jittering if (index as u32).wrapping_mul(0x9e37_79b1) >> 28 == 0 => WAIT.mul_f64(8.5),
            Storage::Jittering => WAIT / 2,
        }
    }
}

fn step(cell: Waiting, _: &Bench) -> Result<Step> {
    match cell.by {
        By::Pytorch => bail!("the PyTorch reference runs this cell"),
        By::Vramlab => {}
    }
    let prefetch = usize::try_from(cell.prefetch.0)? * cores();
    let step = Step::new(move |probe| {
        if !probe.is_timing() {
            let labels = epoch(prefetch, Storage::Instant)?.1;
            return probe.compare(SAMPLES_ERROR, || Ok(labels));
        }
        probe.emit(STEADY, epoch(prefetch, Storage::Steady)?.0);
        probe.emit(JITTERING, epoch(prefetch, Storage::Jittering)?.0);
        probe.emit(PROPORTIONAL, memory(prefetch)?);
        Ok(())
    });
    Ok(step.timing(ONCE).times_itself())
}

fn loader(prefetch: usize, storage: Storage) -> Result<Loader<impl Dataset>> {
    let data = FnDataset::new(BATCHES * BATCH, &[3, 224, 224], move |index, _, into: &mut [f32]| {
        std::thread::sleep(storage.wait(index));
        into.fill(index as f32);
        Ok(index as i64)
    });
    Loader::new(data, Config { batch: BATCH, workers: cores(), prefetch, ..Config::default() })
}

/// Samples per second of an epoch, and its labels. A trainer is busy where samples wait.
fn epoch(prefetch: usize, storage: Storage) -> Result<(f64, Vec<Tensor>)> {
    let mut loader = loader(prefetch, storage)?;
    let start = Instant::now();
    let mut labels = Vec::new();
    for batch in loader.epoch(0)? {
        labels.push(batch?.labels);
        if storage != Storage::Instant {
            std::thread::sleep(WAIT * BATCH as u32 / cores() as u32);
        }
    }
    Ok(((BATCHES * BATCH) as f64 / start.elapsed().as_secs_f64(), labels))
}

/// Bytes of all processes while one batch is in use and the next ones lie ready.
fn memory(prefetch: usize) -> Result<u64> {
    let mut loader = loader(prefetch, Storage::Instant)?;
    let mut epoch = loader.epoch(0)?;
    let held = epoch.next().transpose()?;
    std::thread::sleep(Duration::from_millis(100));
    let bytes = proportional_of_tree(std::process::id())?;
    drop(held);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn the_check_sees_an_order_that_depends_on_prefetching() {
        let cell = Waiting { by: By::Vramlab, prefetch: Prefetch(4) };
        check(&protocol(), cell).holds();
        let reversed = |bench: &Bench| Ok(step(cell, bench)?.altered(|tensor| tensor.flip([0])));
        broken(&protocol(), cell, reversed).sees("samples: expected equal");
    }
}
