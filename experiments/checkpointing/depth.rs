//! How much does it save, by depth, and what does it cost?

use super::*;

levels! { Family as "model" "model": Mlp "", Gpt "" }
number! { Width "features" }

cell! { ByDepth { model: Family, width: Width, batch: Batch, depth: Depth, policy: Policy } }

pub fn grid() -> Grid<ByDepth> {
    use {Family::*, Policy::*};
    let others = [8, 16, 32, 128];
    Grid::new("by depth", step)
        .compare::<Policy>()
        .quick(ByDepth::cross(Mlp, 64, 2048, others, [Nothing, EveryBlock, Sqrt, Every4]).passes(CHECK | COUNT))
        .quick(ByDepth::cross(Mlp, 64, 2048, 64, [Nothing, EveryBlock, Sqrt, Every4]))
        .quick(ByDepth::cross(Gpt, 128, 8, 9, [Nothing, EveryBlock, Sqrt]))
        .full(ByDepth::cross(Mlp, 1024, 16384, others, Policy::ALL).passes(CHECK | COUNT))
        .full(ByDepth::cross(Mlp, 1024, 16384, 64, Policy::ALL))
        .full(ByDepth::cross(Gpt, 1024, 128, [16, 25], [Nothing, EveryBlock, Sqrt]))
        .smoke(ByDepth::cross(Mlp, 32, 256, 16, [Nothing, Sqrt]))
        // The same kernels on the same numbers; cuBLAS and cuDNN may still choose other kernels for a recomputation.
        .check(|_| equal(1e-6))
        .claim(
            Claim::new("checkpoint-memory", "3 4", "checkpointing saves activation memory for compute")
                .rule(best(STEP_PEAK, Mlp).confirm(at_most(0.50)).refute(at_least(0.90)))
                .rule(best(STEP_PEAK, Gpt).confirm(at_most(0.50)).refute(at_least(0.90)))
                .rule(grows(Nothing).confirm(within(0.9..=1.1)).refute(at_most(0.75)))
                .rule(grows(Sqrt).confirm(within(0.35..=0.65)).refute(at_least(0.75)))
                // The price: a prediction has none.
                .rule(best(TIME, Mlp).holds(at_most(1.50)).informational())
                .rule(best(TIME, Gpt).holds(at_most(1.50)).informational())
                .changed(
                    "22 November 2026: each family is judged with its best segments, a GPT with every block. The MLP alone was judged before, \
                     and its sqrt(n) segments were recommended to everybody.",
                )
                .before(best(STEP_PEAK, Mlp).confirm(at_most(0.50)).refute(at_least(0.90)))
                .before(grows(Nothing).confirm(within(0.9..=1.1)).refute(at_most(0.75)))
                .before(grows(Sqrt).confirm(within(0.35..=0.65)).refute(at_least(0.75)))
                .before(best(TIME, Mlp).holds(at_most(1.50)).informational()),
        )
        .claim(
            Claim::new("checkpoint-segments", "this lab", "which segments are best depends on the family: every block in a GPT, sqrt(n) in an MLP")
                .rule(lowest(STEP_PEAK).of(|c: &ByDepth| is(c, Gpt, EveryBlock)).over(|c| is(c, Gpt, Sqrt)).holds(at_most(0.90)))
                .rule(lowest(STEP_PEAK).of(|c: &ByDepth| is(c, Mlp, Sqrt)).over(|c| is(c, Mlp, EveryBlock)).holds(at_most(0.90)))
                .changed("22 November 2026: made a claim when the bytes of both families had been seen."),
        )
        .published(
            Published::new(
                "chen-sqrt",
                "Chen et al., arXiv 1604.06174",
                "memory grows as the square root of the depth instead of linearly (1000 layers: 48 to 7 GB), at about 30 % more time",
            )
            .on(&[Platform::Cpu, Platform::Gpu, Platform::Dry])
            .rule(grows(Nothing).holds(within(0.9..=1.1)))
            .rule(grows(Sqrt).holds(within(0.4..=0.6)))
            .rule(best(TIME, Mlp).reproduces(1.30))
            .changed(
                "20 November 2026: the exponents' ranges (0.9 to 1.1 and 0.4 to 0.6) were set when the CPU's exponents were known. Without \
                 them it is a tenth of 1 and of 0.5 either way, as for every published figure.",
            )
            .before(grows(Nothing).reproduces(1.0))
            .before(grows(Sqrt).reproduces(0.5))
            .before(best(TIME, Mlp).reproduces(1.30))
            .setup(
                "The growth is compared, on an MLP up to 128 blocks, and the time at 64. The bytes of the 1000-layer ResNet are not: they \
                 hold parameters and a planner of memory that nobody uses today.",
            ),
        )
        .plot(
            lines(STEP_PEAK)
                .named("depth")
                .caption("Transient peak of a step (peak minus persistent memory) by depth; a line's slope is the exponent of its growth")
                .of(|c: &ByDepth| c.model == Mlp)
                .over::<Depth>()
                .by::<Policy>(),
        )
}

fn is(cell: &ByDepth, model: Family, policy: Policy) -> bool {
    cell.model == model && cell.policy == policy
}

/// The best segments of a family: sqrt(64) of an MLP of 64 blocks, every block of a GPT.
fn best(metric: Metric, model: Family) -> Rule<ByDepth> {
    ratio(metric).of(move |c: &ByDepth| match model {
        Family::Mlp => is(c, model, Policy::Sqrt) && c.depth == Depth(64),
        Family::Gpt => is(c, model, Policy::EveryBlock),
    })
}

fn grows(policy: Policy) -> Rule<ByDepth> {
    growth(STEP_PEAK).along::<Depth>().of(move |c: &ByDepth| is(c, Family::Mlp, policy))
}

fn step(cell: ByDepth, bench: &Bench) -> Result<Step> {
    let model = Model::named(&format!("{}-{}x{}", cell.model.text(), cell.depth.0, cell.width.0), bench.device)?;
    segmented(model, cell.batch, cell.policy)
}

/// Steps of a model in segments, in fp32.
pub fn segmented(model: Model, batch: Batch, policy: Policy) -> Result<Step> {
    let length = policy.segment(model.blocks.len());
    training(model, batch.0, Kind::Float, move |model, x| in_segments(&model.blocks, x, length, false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn a_segment_keeps_its_input_alone() {
        let kept = |policy| {
            let cell = ByDepth { model: Family::Mlp, width: Width(32), batch: Batch(256), depth: Depth(16), policy };
            check(&protocol(), cell).holds();
            count(&protocol(), cell).figure(ACTIVATIONS)
        };
        // An input of 256 x 32, and the CPU's random state. The first segment's input is the batch, which was there before.
        let segment = 4.0 * 256.0 * 32.0 + 5056.0;
        assert_eq!(kept(Policy::Sqrt) - kept(Policy::Every16), 3.0 * segment);
        assert_eq!(kept(Policy::EveryBlock) - kept(Policy::Sqrt), 12.0 * segment);
        assert_eq!(kept(Policy::Every4), kept(Policy::Sqrt));
    }
}
