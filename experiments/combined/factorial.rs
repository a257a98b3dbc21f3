//! What does each give alone, and with the others?

use super::*;
use vramlab::torch::empty_cuda_cache;

/// The plain peak less what each technique saves alone.
const PROMISED: Metric = Metric::counted("promised", "single savings added", "B");
/// The plain peak times what each technique leaves of it alone.
const MULTIPLIED: Metric = Metric::counted("multiplied", "single ratios multiplied", "B");
/// The peak over the single ratios multiplied: above 1 the techniques save the same bytes twice, below 1 they help one another.
const INTERACTION: Metric = Metric::counted("interaction", "interaction", "1");
const OF_BETTER: Metric = Metric::counted("of_better", "peak relative to the best single technique", "1");

cell! { Factorial { model: Net, batch: Batch, optimizer: OptimizerKind, with: With } }

pub fn grid() -> Grid<Factorial> {
    use OptimizerKind::{AdamW, Sgd};
    let few = [With::Nothing, With::Amp, With::Checkpoint, With::AmpCheckpoint];
    let pareto_of = |name, caption, models: [Net; 2]| {
        let of = move |c: &Factorial| c.optimizer == AdamW && models.contains(&c.model);
        pareto(PEAK, &[TIME, FORWARDS]).named(name).caption(caption).of(of)
    };
    Grid::new("factorial", step)
        .compare::<With>()
        .quick(Factorial::cross(Net::SmallGpt, 16, AdamW, With::ALL))
        .quick(Factorial::cross(Net::SmallGpt, 16, Sgd, few).passes(CHECK | COUNT))
        .quick(Factorial::cross(Net::SmallResnet, 32, AdamW, few).passes(CHECK | COUNT))
        .full(Factorial::cross(Net::Gpt2, 8, [Sgd, AdamW], With::ALL))
        .full(Factorial::cross(Net::Resnet50, 64, [Sgd, AdamW], With::ALL))
        .smoke(Factorial::cross(Net::Mlp, 64, Sgd, few).passes(CHECK | COUNT))
        .metrics(&[PEAK, PROMISED, MULTIPLIED, INTERACTION, OF_BETTER, FORWARDS, TIME.labelled("time per sample")])
        .check(|c| match c.model {
            // Batch norm sees each micro-batch by itself, so its gradients are those of other samples.
            Net::Resnet50 if c.with.uses(With::Accumulate) => differs(1e-3..=2.0),
            Net::Resnet50 => equal(0.5),
            // Eight bits of bf16, added up over a model.
            Net::Mlp | Net::SmallGpt | Net::Gpt2 | Net::SmallResnet => equal(0.1),
        })
        .claim(
            Claim::new("amp-and-checkpoint", "3", "mixed precision and checkpointing together save the most")
                .on(&[Platform::Gpu, Platform::Dry])
                .rule(value(OF_BETTER).of(|c: &Factorial| c.with == With::AmpCheckpoint).holds(at_most(0.90)))
                .confirmed("Use both where memory is short: together they bring the peak to {effect} of the better one's.")
                .refuted(
                    "The second one is hardly worth its price: together the peak is still {effect} of the better one's, because what is \
                     left is parameters, gradients, optimizer state and what one segment needs.",
                )
                .depends("Both together pay where {where}; elsewhere what is left after the better one is not activations.")
                .inconclusive("Together the peak is {effect} of the better one's."),
        )
        .plot(pareto_of("pareto-gpt", "Peak memory against what it costs, for a GPT: left and low is better", [Net::SmallGpt, Net::Gpt2]))
        .plot(pareto_of(
            "pareto-resnet",
            "Peak memory against what it costs, for a ResNet: left and low is better",
            [Net::SmallResnet, Net::Resnet50],
        ))
        .plot(
            bars(PEAK)
                .caption("What each technique and each combination leaves of the plain step's peak")
                .by::<Net>()
                .by::<OptimizerKind>(),
        )
        .plot(
            effects(PEAK)
                .named("effects")
                .caption(
                    "What each does to the peak, averaged over all combinations of the others; of two: above 1x they save the same bytes, \
                     below they help one another",
                )
                .by::<With>()
                .by::<OptimizerKind>(),
        )
        .plot(
            effects(TIME)
                .named("effects-time")
                .caption(
                    "What each does to the time per sample, averaged over all combinations of the others; of two: above 1x they get into \
                     one another's way",
                )
                .by::<With>()
                .by::<OptimizerKind>(),
        )
}

fn step(cell: Factorial, bench: &Bench) -> Result<Step> {
    let (plain, device) = (plain(cell.model, cell.batch, cell.optimizer), bench.device);
    let singles = cell.with.singles();
    let step = training(&cell.with.over(&plain), device)?;
    Ok(step.wrapped(move |run, probe| {
        if singles.len() < 2 || !probe.is_reading() {
            return run(probe);
        }
        let alone = |with: With| peak_of(&with.over(&plain), device, probe);
        let without = alone(With::Nothing)?;
        let peaks = singles.iter().map(|single| alone(*single)).collect::<Result<Vec<f64>>>()?;
        // So that it runs in memory that it took itself, as in a process of its own.
        if device.is_cuda() {
            empty_cuda_cache()?;
            run(&mut Probe::idle())?;
        }
        probe.reset_peaks();
        run(probe)?;
        let peak = probe.memory().context("the meter says nothing")?.requested_peak as f64;
        let multiplied = peaks.iter().fold(without, |left, single| left * single / without);
        probe.emit(PROMISED, without - peaks.iter().map(|single| without - single).sum::<f64>());
        probe.emit(MULTIPLIED, multiplied);
        probe.emit(INTERACTION, peak / multiplied);
        probe.emit(OF_BETTER, peak / peaks.iter().copied().fold(f64::INFINITY, f64::min));
        Ok(())
    }))
}

/// Peak of a third step, as the memory pass counts one, of another configuration in this process.
fn peak_of(configuration: &Configuration, device: Device, probe: &Probe) -> Result<f64> {
    // Its own workspaces are part of its peak.
    probe.release_workspaces();
    let before = probe.live();
    let mut trainer = Trainer::load(configuration, device)?;
    for _ in 0..2 {
        trainer.iterate(&mut |_, _| Ok(()))?;
    }
    probe.reset_peaks();
    trainer.iterate(&mut |_, _| Ok(()))?;
    let memory = probe.memory().context("the meter says nothing")?;
    Ok((memory.requested_peak - before) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vramlab::lab::testing::*;

    fn cell(model: Net, batch: i64, with: With) -> Factorial {
        Factorial { model, batch: Batch(batch), optimizer: OptimizerKind::Sgd, with }
    }

    #[test]
    fn the_check_sees_a_lost_micro_batch() {
        for with in With::ALL {
            check(&protocol(), cell(Net::SmallGpt, 4, *with)).holds();
        }
        check(&protocol(), cell(Net::SmallResnet, 4, With::AmpCheckpoint)).holds();
        let all = cell(Net::SmallGpt, 8, With::All);
        broken(&protocol(), all, |bench| step(with(all, Batch(4)), bench)).sees("gradient: expected equal");
    }

    #[test]
    fn savings_are_put_beside_one_another() {
        let of = |with| count(&protocol(), cell(Net::Mlp, 2048, with));
        let [plain, amp, checkpoint] = [With::Nothing, With::Amp, With::Checkpoint].map(|with| of(with).figure(PEAK));
        let both = of(With::AmpCheckpoint);
        // Counted in one process with the combination, each single technique has the peak that it has in its own.
        assert_eq!(both.figure(PROMISED), amp + checkpoint - plain);
        assert_eq!(both.figure(OF_BETTER), both.figure(PEAK) / amp.min(checkpoint));
        assert_eq!(both.figure(FORWARDS), 2.0);
    }
}
