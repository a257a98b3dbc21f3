//! A/A: levels that are one thing under six names. How often would this lab call two of them different?
//!
//! A lab whose intervals hold at 95 % raises a false alarm in one comparison of twenty, and no more often. What would make it worse: a
//! place in the round that is always slower, a machine that drifts within a round, samples that hang together taken for independent ones.
//! Nothing of that is evened out here: rounds are taken as any experiment takes them, and drawn from again as they are.

use tch::nn::{OptimizerConfig, Sgd};
use vramlab::lab::*;
use vramlab::models::Model;
use vramlab::torch::attempt;

name! { ModelName as "model" "model" }
number! { Batch "samples" }
levels! { Name "what the one level is called": One "", Two "", Three "", Four "", Five "", Six "" }

cell! { Named { model: ModelName, batch: Batch, name: Name } }

fn main() -> ExitCode {
    vramlab::run(protocol())
}

pub fn protocol() -> Protocol {
    let one_level = Grid::new("one level", training)
        .compare::<Name>()
        .quick(Named::cross("mlp-4x256", 1024, Name::ALL))
        .full(Named::cross("mlp-8x2048", 4096, Name::ALL))
        .smoke(Named::cross("mlp-2x32", 256, [Name::One, Name::Two]))
        .passes(CHECK | ROUNDS)
        .check(|_| equal(1e-6))
        .claim(
            Claim::new("same-level", "this lab", "the lab calls two levels that are the same different in at most 5 % of comparisons")
                .rule(false_alarms(TIME, 5, 0.05))
                .confirmed(
                    "No more false alarms than an interval at 95 % promises: {effect} of comparisons of a level with itself. How sure that \
                     is, the rate's own interval says; `--rounds 25` narrows it.",
                )
                .refuted(
                    "Distrust small effects in time on this machine: {effect} of comparisons of a level with itself were false alarms. It \
                     is busy with something else, or its clock changes; measure again with more rounds on a quiet machine.",
                )
                .depends("Intervals hold only where {where} ({effect} false alarms).")
                .inconclusive(
                    "False alarms in {effect} of comparisons of a level with itself: more than 5 %, and too few rounds to tell that from \
                     chance. `--rounds 25` settles it.",
                ),
        )
        .plot(bars(TIME).caption("One level under six names: every ratio should be 1 within its interval").by::<ModelName>());
    Protocol::new("same_level", "The lab's own false alarms")
        .question("How often would this lab call two levels different that are one and the same?")
        .hypothesis(
            "In at most one comparison of twenty: intervals rest on rounds, each in a process of its own, with the levels in an order that \
             changes.",
        )
        .grid(one_level)
        .threat("Drawings from the same rounds hang together: the interval of the rate counts only comparisons that share neither level nor round.")
        .threat("The rate is that of five rounds, the fewest that any experiment has; with more, intervals are narrower and the rate should be the same.")
        .threat("Stopping when an interval is narrow, as every experiment does, is part of what is tested; Holm's widening is not.")
}

fn training(cell: Named, bench: &Bench) -> Result<Step> {
    let model = Model::named(cell.model.0, bench.device)?;
    let batch = model.batch(cell.batch.0);
    let mut optimizer = Sgd::default().build(&model.store, 1e-3)?;
    let flops = model.least_training_flops(cell.batch.0);
    let step = Step::new(move |probe| {
        optimizer.zero_grad();
        let loss = attempt(|| Ok(model.loss(&model.forward(&batch.inputs, true), &batch.targets, Reduction::Mean)))?;
        loss.f_backward()?;
        optimizer.step();
        probe.compare(GRADIENT_ERROR, || Ok(model.gradients()))
    });
    Ok(step.least_flops(flops))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vramlab::lab::testing::*;

    #[test]
    fn the_check_sees_another_batch() {
        let cell = Named { model: ModelName("mlp-2x32"), batch: Batch(256), name: Name::Two };
        check(&protocol(), cell).holds();
        broken(&protocol(), cell, |bench| training(with(cell, Batch(255)), bench)).sees("gradient: expected equal");
    }
}
