//! Does training get faster? An epoch of a training whose batches lie in host memory.

use super::*;
use models::Model;
use tch::nn::{OptimizerConfig, Sgd};
use torch::transfer::record_stream;

levels! {
    Bound "what limits the training":
    Transfer "a batch takes longer to send than to train on",
    Even "sending and training take about as long",
    Compute "sending is a small part of the step",
    SmallData "guide 5's own example: 100 samples of 3 numbers in batches of 10",
}
number! { Batch "samples in a batch" }

cell! { Epochs { bound: Bound, model: ModelName, batch: Batch, recipe: Recipe } }

pub const TRAINED: [Recipe; 6] = [
    Recipe::Pageable,
    Recipe::PageableNonblocking,
    Recipe::Pinned,
    Recipe::PinnedNonblocking,
    Recipe::Prefetched,
    Recipe::PinInline,
];

pub fn grid() -> Grid<Epochs> {
    use Bound::*;
    let small = || Epochs::cross(SmallData, "mlp-1x3", 10, [Recipe::Pageable, Recipe::PinnedNonblocking]);
    let under_transfer = |recipe| move |c: &Epochs| c.bound == Transfer && c.recipe == recipe;
    Grid::new("an epoch", step)
        .compare::<Recipe>()
        .full(Epochs::cross(Transfer, "mlp-1x64", 262144, TRAINED))
        .full(Epochs::cross(Even, "mlp-1x1024", 16384, TRAINED))
        .full(Epochs::cross(Compute, "mlp-8x4096", 4096, TRAINED))
        .quick(Epochs::cross(Transfer, "mlp-1x64", 262144, [Recipe::Pageable, Recipe::PinnedNonblocking]))
        .quick(Epochs::cross(Compute, "mlp-8x4096", 4096, [Recipe::Pageable, Recipe::PinnedNonblocking]))
        .quick_and_full(small())
        .passes(CHECK | ROUNDS)
        .on(&[Platform::Gpu])
        .check(|_| equal(1e-6)) // the same kernels on the same numbers
        .claim(
            Claim::ours("pin-training", "an epoch over batches that lie in pinned memory already is faster by a twentieth or more")
                .on(&[Platform::Gpu])
                .rule(
                    ratio(TIME)
                        .of(|c: &Epochs| c.bound != SmallData && c.recipe == Recipe::PinnedNonblocking)
                        .holds(at_most(1.0 / 1.05)),
                ),
        )
        .claim(
            Claim::new("pin-small", "5", "there is no gain on small data")
                .on(&[Platform::Gpu])
                .rule(ratio(TIME).at(SmallData).at(Recipe::PinnedNonblocking).confirm(within(0.95..=1.05)).refute(at_most(0.95))),
        )
        .claim(
            Claim::published(
                "pin-2x2",
                "ml-engineering, A100",
                "pinned and non-blocking 0.459, pinned 0.522, non-blocking 0.658, neither 0.646: 0.71, 0.81 and 1.02 of neither",
            )
            .rule(ratio(TIME).of(under_transfer(Recipe::PinnedNonblocking)).reproduces(0.711))
            .rule(ratio(TIME).of(under_transfer(Recipe::Pinned)).reproduces(0.808))
            .rule(ratio(TIME).of(under_transfer(Recipe::PageableNonblocking)).reproduces(1.019))
            .setup("There a loader with workers fills the batches; here they lie ready, so the copy is a larger part of the step."),
        )
        .plot(bars(TIME).named("training").caption("Time of an epoch against batches from ordinary memory").by::<Bound>())
}

/// Different batches in host memory; an epoch goes through them several times.
const BUFFERS: usize = 4;

pub fn step(cell: Epochs, bench: &Bench) -> Result<Step> {
    let (lies_in, non_blocking) = match cell.recipe {
        Recipe::Pageable => (Memory::Pageable, false),
        Recipe::PageableNonblocking | Recipe::PinInline => (Memory::Pageable, true),
        Recipe::Pinned => (Memory::Pinned, false),
        Recipe::PinnedNonblocking | Recipe::Prefetched => (Memory::Pinned, true),
        Recipe::Staged => bail!("no epoch is staged"),
    };
    // Guide 5's example has ten batches in an epoch.
    let steps = if cell.bound == Bound::SmallData { 10 } else { 4 * BUFFERS };
    let model = Model::named(cell.model.0, bench.device)?;
    let mut optimizer = Sgd::default().build(&model.store, 1e-3)?;
    let (mut batches, mut targets) = (Vec::new(), Vec::new());
    for _ in 0..BUFFERS {
        let batch = model.batch(cell.batch.0);
        let host = batch.inputs.f_to(Device::Cpu)?;
        batches.push(match lies_in {
            Memory::Pageable => host,
            Memory::Pinned => pin(&host)?,
        });
        targets.push(batch.targets);
    }
    // One for all epochs: each stream has memory of its own, which a new one would have to take from the driver first.
    let side = if cell.recipe == Recipe::Prefetched { Some(Stream::side(bench.device)?) } else { None };
    let (device, flops) = (bench.device, model.least_training_flops(cell.batch.0) * steps as f64);
    let step = Step::new(move |probe| {
        let mut train = |inputs: &Tensor, step: usize| -> Result<()> {
            optimizer.zero_grad();
            let outputs = model.forward(inputs, true);
            model.loss(&outputs, &targets[step % BUFFERS], Reduction::Mean).f_backward()?;
            optimizer.step();
            Ok(())
        };
        if let Some(side) = side {
            prefetched((0..steps).map(|step| &batches[step % BUFFERS]), side, train)?;
        } else {
            for step in 0..steps {
                let host = &batches[step % BUFFERS];
                let locked = if cell.recipe == Recipe::PinInline { Some(pin(host)?) } else { None };
                let inputs = locked.as_ref().unwrap_or(host).f_to_device_(device, host.kind(), non_blocking, true)?;
                train(&inputs, step)?;
            }
        }
        probe.compare(GRADIENT_ERROR, || Ok(model.gradients()))
    });
    Ok(step.least_flops(flops))
}

/// Trains on batches from pinned memory in their order. Each is copied on a side stream while the one before it is trained on.
fn prefetched<'a>(
    mut hosts: impl Iterator<Item = &'a Tensor>,
    side: Stream,
    mut train: impl FnMut(&Tensor, usize) -> Result<()>,
) -> Result<()> {
    let mut send = || -> Result<Option<_>> {
        let Some(host) = hosts.next() else { return Ok(None) };
        let _copying = side.enter()?;
        let inputs = host.f_to_device_(side.device(), host.kind(), true, true)?;
        Ok(Some((inputs, side.event()?)))
    };
    let computing = Stream::current(side.device())?;
    let mut next = send()?;
    for step in 0.. {
        let Some((inputs, sent)) = next else { break };
        computing.wait(&sent)?;
        // Their memory belongs to the side stream, which must not reuse it before the step is done with it.
        record_stream(&inputs, computing)?;
        next = send()?;
        train(&inputs, step)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;
    use torch::Backend;

    #[test]
    fn prefetched_epochs_stop_taking_new_memory() {
        let Some(dry) = dry(concat!(module_path!(), "::prefetched_epochs_stop_taking_new_memory")) else { return };
        let cell = Epochs { bound: Bound::Even, model: ModelName("mlp-1x64"), batch: Batch(64), recipe: Recipe::Prefetched };
        let bench = Bench { device: dry.device(), platform: Platform::Dry, seed: 1 };
        let mut epochs = step(cell, &bench).unwrap();
        let mut reserved = || {
            epochs.run(&mut Probe::idle()).unwrap();
            dry.memory().unwrap().reserved
        };
        reserved();
        let second = reserved();
        assert_eq!([reserved(), reserved(), reserved()], [second; 3]);
    }

    #[test]
    fn copying_ahead_holds_one_batch_more_and_reuses_its_memory() {
        let Some(dry) = dry(concat!(module_path!(), "::copying_ahead_holds_one_batch_more_and_reuses_its_memory")) else { return };
        const BYTES: i64 = 32 << 20;
        let hosts = [(); 2].map(|()| pinned(&[BYTES], Kind::Uint8).unwrap());
        dry.reset_peaks().unwrap();
        let mut seen = 0;
        let train = |inputs: &Tensor, step: usize| {
            assert_eq!((inputs.device(), inputs.size(), step), (dry.device(), vec![BYTES], seen));
            seen += 1;
            Ok(())
        };
        prefetched(hosts.iter().cycle().take(20), Stream::side(dry.device()).unwrap(), train).unwrap();
        assert_eq!((seen, dry.memory().unwrap().requested_peak), (20, 2 * BYTES));
        // Events are asked for where memory is.
        drop(Tensor::empty([1 << 20], (Kind::Uint8, dry.device())));
        assert_eq!(dry.memory().unwrap().requested, 0);
    }
}
