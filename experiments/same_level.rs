//! A/A: levels that are one thing under ten names. How often would this lab call two of them different?
//!
//! A lab whose intervals hold at 95 % raises a false positive in one comparison of twenty, and no more often. What would make it worse: a
//! place in the round that is always slower, a machine that drifts within a round, samples that hang together taken for independent ones.
//! Nothing of that is evened out here: rounds are taken as any experiment takes them, and drawn from again as they are.

use harness::lab::*;
use models::Model;
use tch::nn::{OptimizerConfig, Sgd};

levels! {
    Name "what the one level is called": One "", Two "", Three "", Four "", Five "", Six "", Seven "", Eight "", Nine "", Ten ""
}

cell! { Named { model: ModelName, batch: Batch, name: Name } }

harness::main!(protocol);

pub fn protocol() -> Protocol {
    let one_level = Grid::new("one level", training)
        .compare::<Name>()
        .quick(Named::cross("mlp-4x256", 256, Name::ALL))
        .full(Named::cross("mlp-8x2048", 4096, Name::ALL))
        .smoke(Named::cross("mlp-2x32", 256, [Name::One, Name::Two]))
        .passes(CHECK | ROUNDS)
        .check(|_| equal(1e-6))
        .claim(
            Claim::ours("same-level", "at most 5 % of A/A comparisons are false positives")
                .rule(false_alarms(TIME, 0.10))
                .changed(
                    "22 November 2026: the rate's interval decides, below 10 %, and no longer the estimate, at most 5 %; the interval of a rate \
                     of 5 % never lies below 5 %. Ten names instead of six, and 60 rounds instead of 15, so that it can be decided. \
                     23 November 2026: 40 rounds, and steps of 256 samples in place of 1,024, so that a run of all is complete in a quarter of an hour; \
                     figures of both had been seen.",
                ),
        )
        .plot(bars(TIME).caption("One level under ten names: every ratio should be 1 within its interval").by::<ModelName>());
    Protocol::new("same_level", "False positives of A/A comparisons")
        .question("How often would this lab call two levels different that are one and the same?")
        .hypothesis(
            "In at most one comparison of twenty: intervals rest on rounds, each in a process of its own, with the levels in an order that \
             changes.",
        )
        .grid(one_level)
        .kind(SubjectKind::SelfCheck)
        .threat("Resamples of the same rounds are correlated: the interval of the rate counts sets of rounds without overlap, and discounts pairs that share a name.")
        .threat("Looks and their error rates, as the profile has them, are part of what is tested; Holm's widening is not.")
}

fn training(cell: Named, bench: &Bench) -> Result<Step> {
    let model = Model::named(cell.model.0, bench.device)?;
    let batch = model.batch(cell.batch.0);
    let mut optimizer = Sgd::default().build(&model.store, 1e-3)?;
    let flops = model.least_training_flops(cell.batch.0);
    let step = Step::new(move |probe| {
        optimizer.zero_grad();
        model.loss(&model.forward(&batch.inputs, true), &batch.targets, Reduction::Mean).f_backward()?;
        optimizer.step();
        probe.compare(GRADIENT_ERROR, || Ok(model.gradients()))
    });
    Ok(step.least_flops(flops))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn the_check_sees_another_batch() {
        let cell = Named { model: ModelName("mlp-2x32"), batch: Batch(256), name: Name::Two };
        check(&protocol(), cell).holds();
        broken(&protocol(), cell, |bench| training(with(cell, Batch(255)), bench)).sees("gradient: expected equal");
    }
}
