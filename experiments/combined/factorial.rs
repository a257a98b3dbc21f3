//! What does each give alone, and with the others?

use super::*;

cell! { Factorial { model: Net, batch: Batch, optimizer: OptimizerKind, with: With } }

pub fn grid() -> Grid<Factorial> {
    use OptimizerKind::{AdamW, Sgd};
    /// What the claim is about.
    const FEW: [With; 5] = [With::Nothing, With::Amp, With::Checkpoint, With::Accumulate, With::AmpCheckpoint];
    // The peak of both over that of one.
    let both_over = |single: With| {
        lowest(PEAK).of(|c: &Factorial| c.with == With::AmpCheckpoint).over(move |c| c.with == single).holds(at_most(0.90))
    };
    Grid::new("factorial", step)
        .compare::<With>()
        .quick(Factorial::cross(Net::SmallGpt, 4, AdamW, With::ALL))
        .quick(Factorial::cross(Net::SmallGpt, 4, Sgd, FEW).passes(CHECK | COUNT))
        .quick(Factorial::cross(Net::SmallResnet, 8, AdamW, FEW).passes(CHECK | COUNT))
        .full(Factorial::cross(Net::Gpt2, 8, [Sgd, AdamW], With::ALL))
        .full(Factorial::cross(Net::Resnet50, 64, [Sgd, AdamW], With::ALL))
        .smoke(Factorial::cross(Net::Mlp, 64, Sgd, FEW).passes(CHECK | COUNT))
        .metrics(&[PEAK, FORWARDS, TIME.labelled("time per sample")])
        .check(|c| match c.model {
            // bf16 keeps eight bits of each product.
            _ if c.with.uses(With::Amp) => equal(5e-2),
            // The same sums in another order; on a GPU cuDNN chooses other algorithms for other batches.
            Net::SmallResnet | Net::Resnet50 => equal(1e-4),
            Net::Mlp | Net::SmallGpt | Net::Gpt2 => equal(1e-5),
        })
        .claim(
            Claim::new("amp-and-checkpoint", "3", "mixed precision and checkpointing together save the most")
                .on(&[Platform::Gpu, Platform::Dry])
                .rule(both_over(With::Amp))
                .rule(both_over(With::Checkpoint))
                .rule(both_over(With::Accumulate))
                .changed(
                    "22 November 2026: 'the most' is put against accumulation alone, too, and each model is checkpointed with its best \
                     segments. It had been compared with mixed precision and with segments of sqrt(blocks) alone.",
                )
                .before(both_over(With::Amp))
                .before(both_over(With::Checkpoint)),
        )
        .plot(
            bars(PEAK)
                .caption("What each technique and each combination leaves of the plain step's peak")
                .by::<Net>()
                .by::<OptimizerKind>(),
        )
}

fn step(cell: Factorial, bench: &Bench) -> Result<Step> {
    training(&cell.with.over(&plain(cell.model, cell.batch, cell.optimizer), cell.model), bench.device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

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
    fn the_check_sees_a_lost_micro_batch_through_batch_norms_and_half_precision() {
        let cell = |model, with| cell(model, 4, with);
        check(&protocol(), cell(Net::Resnet50, With::Accumulate)).holds();
        // Of four micro-batches that are alike, three.
        let lost = |bench: &Bench| Ok(step(cell(Net::Resnet50, With::Accumulate), bench)?.altered(|gradient| gradient * 0.75));
        broken(&protocol(), cell(Net::Resnet50, With::Accumulate), lost).sees("gradient: expected equal within 1e-4");
        let half = |bench: &Bench| step(cell(Net::SmallResnet, With::AmpAccumulate), bench);
        broken(&protocol(), cell(Net::SmallResnet, With::Accumulate), half).sees("gradient: expected equal within 1e-4");
    }

    #[test]
    fn each_family_has_its_own_segments() {
        let peak = |policy| {
            let _turn = alone();
            let plain = plain(Net::SmallGpt, Batch(4), OptimizerKind::Sgd);
            let configuration = Configuration { checkpoint: policy, ..plain };
            let mut step = training(&configuration, Device::Cpu).unwrap();
            let samples = harness::measure::memory(&mut step, &torch::Cpu::new(None)).unwrap();
            samples.iter().find(|sample| sample.metric == PEAK.name).unwrap().value
        };
        let own = count(&protocol(), cell(Net::SmallGpt, 4, With::Checkpoint));
        assert_eq!(own.figure(FORWARDS), 2.0);
        assert!(own.figure(PEAK) <= peak(CheckpointPolicy::Sqrt));
    }
}
