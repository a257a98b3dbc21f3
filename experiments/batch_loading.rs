//! A whole data set at once, in batches, or sample by sample: what does it take of memory and time?
//!
//! Guides 1 and 2 say that `Dataset` and `DataLoader` keep memory small because only what is needed is loaded, that batches and iterators
//! save the device's memory, and that batches need fewer transfers than single samples.

use harness::lab::*;
use std::collections::VecDeque;

const FEATURES_ERROR: Metric = Metric::compared("features_error", "difference of features");

/// Copies from the host to the device.
const TRANSFERS: Metric = Metric::counted("transfers", "transfers to the device", "1");

number! { Samples "samples in the data set" }
number! { Side "side of an image in pixels" }
number! { Batch "samples that are computed with at once" }
levels! {
    How "how samples come":
    Everything "one tensor with all samples, moved to the device at once and used in parts" => "loading everything at once",
    Batches "batches from a loader that is two ahead, each moved to the device when its turn comes" => "loading in batches",
    OneByOne as "samples" "single samples from such a loader, moved and used one by one" => "loading single samples",
}

cell! { Loading { samples: Samples, side: Side, batch: Batch, how: How } }

harness::main!(protocol);

pub fn protocol() -> Protocol {
    let saves = |of: fn(&Loading) -> bool| ratio(PEAK).of(move |c: &Loading| c.how == How::Batches && of(c));
    let grid = Grid::new("memory and time", loading)
        .compare::<How>()
        .smoke(Loading::cross(64, 16, 8, How::ALL))
        .quick(Loading::cross(2048, 48, [16, 64, 256], How::ALL))
        // Does it grow with the data set?
        .quick(Loading::cross(1024, 48, [16, 64, 256], How::ALL).passes(CHECK | COUNT))
        .quick(Loading::cross(4096, 48, 64, How::ALL).passes(CHECK | COUNT))
        .full(Loading::cross(8192, 224, [16, 64, 256], How::ALL))
        .full(Loading::cross([2048, 4096], 224, 64, How::ALL).passes(CHECK | COUNT))
        .metrics(&[PEAK, STEP_PEAK, TRANSFERS, FEATURES_ERROR, TIME.labelled("time per sample")])
        .check(|_| equal(1e-5))
        .claim(
            Claim::new("loading-memory", "1 2", "a data set behind a loader keeps memory small")
                .on(&[Platform::Cpu])
                .rule(saves(|c| c.samples != Samples(1024) || c.batch == Batch(64)).less())
                .rule(
                    growth(PEAK)
                        .along::<Samples>()
                        .at(How::Batches)
                        .at(Batch(64))
                        .confirm(at_most(0.1))
                        .refute(at_least(0.5))
                        .informational(),
                )
                .changed(
                    "29 November 2026: less than all at once, without the half that no guide names. 20 November 2026: the data set of the quick profile was made twice as large (2048 samples for 1024), since the loader's \
                     few batches of 256 had been seen to be most of the smaller one. 22 November 2026: it asks for growth, too.",
                )
                .before(
                    saves(|c| c.samples != Samples(2048) && c.samples != Samples(4096)).confirm(at_most(0.5)).refute(at_least(0.9)),
                ),
        )
        .claim(
            Claim::new("batch-loading", "2", "batches and iterators save device memory")
                .on(CUDA)
                .rule(ratio(PEAK).of(|c: &Loading| c.how != How::Everything).less()),
        )
        .plot(bars(PEAK).caption("Peak memory against loading everything at once").by::<Samples>().by::<Batch>());
    Protocol::new("batch_loading", "Batches instead of the whole data set")
        .question("What do batches from a loader save against loading a data set at once, and what do single samples cost?")
        .hypothesis(
            "A data set that is loaded at once takes its whole size, on the host and again on the device. Batches take the loader's few \
             batches on the host and one on the device, whatever the size of the data set. Single samples take still less and pay for each \
             with a transfer and a kernel launch of its own.",
        )
        .grid(grid)
        .shows(Shown::new("Move batches, not the data set").at(How::Batches).memory(PEAK).time(TIME))
        .threat(
            "Samples are made up in memory: time is handing over and computing, without a disk or a decoder, which would hide the price of \
             single samples.",
        )
        .threat("On the CPU nothing is moved, so one peak holds what would be host and device memory.")
}

/// Features that are computed of each sample.
const FEATURES: i64 = 16;

fn loading(cell: Loading, bench: &Bench) -> Result<Step> {
    let Loading { samples: Samples(samples), side: Side(side), batch: Batch(batch), how } = cell;
    let at_once = match how {
        How::Everything => samples,
        How::Batches => batch,
        How::OneByOne => 1,
    };
    let weight = bench.randn(&[3 * side * side, FEATURES]) / (side as f64);
    let is_dry = bench.platform == Platform::Dry;
    let step = Step::new(move |probe| {
        probe.at_rest();
        let firsts = (0..samples).step_by(usize::try_from(at_once)?);
        let count = |first| at_once.min(samples - first);
        let (sums, transfers) = if is_dry {
            // Nothing is computed there: only how much is moved at once matters, and no host memory need be filled with gigabytes for it.
            let untouched = |first| Tensor::f_empty([count(first), 3, side, side], (Kind::Float, Device::Cpu));
            features(firsts.map(|first| Ok(untouched(first)?)), batch, &weight)?
        } else if how == How::Everything {
            features(firsts.map(|first| made(first, count(first), side)), batch, &weight)?
        } else {
            // As many lie ready as PyTorch's worker has; they are made in turn, so that the bytes are the same each time.
            let mut loads = firsts.map(|first| made(first, count(first), side));
            let mut ready: VecDeque<Result<Tensor>> = loads.by_ref().take(2).collect();
            let next = || {
                let load = ready.pop_front();
                ready.extend(loads.next());
                load
            };
            features(std::iter::from_fn(next), batch, &weight)?
        };
        probe.emit(TRANSFERS, transfers);
        probe.compare(FEATURES_ERROR, || Ok(vec![sums]))
    });
    // An epoch is a step, which is long enough for few of them.
    Ok(step.items(samples).timing(Timing { warm_up_steps: 2, samples: 5, ..Timing::default() }))
}

/// So many samples from that one on.
fn made(first: i64, count: i64, side: i64) -> Result<Tensor> {
    let len = 3 * side * side;
    // Cheap, and different for each sample and place.
    let values: Vec<f32> =
        (first..first + count).flat_map(|index| (0..len).map(move |at| ((index * 7 + at) % 256) as f32 / 255.0)).collect();
    Ok(Tensor::f_from_slice(&values)?.f_reshape([count, 3, side, side])?)
}

/// Computes features of all samples as they come, of so many at once, and adds them up; and counts what is moved to the device.
fn features(loads: impl Iterator<Item = Result<Tensor>>, at_once: i64, weight: &Tensor) -> Result<(Tensor, usize)> {
    let mut transfers = 0;
    let mut sums = Tensor::zeros([FEATURES], (Kind::Float, weight.device()));
    for load in loads {
        let samples = {
            let on_host = load?;
            transfers += usize::from(on_host.device() != weight.device());
            on_host.to_device(weight.device()).flatten(1, -1)
        };
        for part in samples.split(at_once, 0) {
            sums += part.matmul(weight).relu().sum_dim_intlist([0i64].as_slice(), false, Kind::Float);
        }
    }
    Ok((sums, transfers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn the_check_sees_a_lost_sample() {
        for cell in Loading::cross(64, 16, 8, [How::Batches, How::OneByOne]) {
            check(&protocol(), cell).holds();
            broken(&protocol(), cell, |bench| loading(with(cell, Samples(63)), bench)).sees("features: expected equal");
        }
    }
}
