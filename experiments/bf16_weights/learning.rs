//! At which learning rates are steps lost?

use super::*;

/// Mean over samples that were not trained on.
const LOSS: Metric = Metric::counted("loss", "loss after training", "1");
/// Of those that had a gradient at all.
const STILL: Metric = Metric::counted("still", "parameters that the last step leaves as they are", "1").share();

const SAMPLES: i64 = 2048;
const SIZE: i64 = 128;
const CLASSES: i64 = 10;

number! { Rate: f64 "learning rate" }
number! { Steps "training steps" }

cell! { Learned { steps: Steps, rate: Rate, how: How } }

pub fn grid() -> Grid<Learned> {
    use How::{Bf16, Kahan, Stochastic};
    let small = |c: &Learned| c.rate.0 <= 1e-5 && c.steps.0 == 512;
    let is = move |how| move |c: &Learned| c.how == how && small(c);
    let learns = |how: How| ratio(LOSS).at(how).at(Steps(512)).confirm(within(0.97..=1.03)).refute(outside(0.90..=1.10));
    Grid::new("what is lost?", step)
        .compare::<How>()
        .quick_and_full(Learned::cross([32, 512], [1e-3, 1e-4, 1e-5], How::ALL))
        .smoke(Learned::cross(2, 1e-3, How::ALL))
        .passes(CHECK | COUNT)
        .on(&[Platform::Cpu, Platform::Gpu])
        .metrics(&[LOSS, STILL])
        .check(|_| equal(0.1))
        .claim(
            // Set on 23 November 2026, before any figure.
            Claim::ours("bf16-weights-still", "at a learning rate of 1e-5 rounding leaves most bfloat16 weights as they are")
                .rule(value(STILL).of(is(Bf16)).confirm(at_least(0.50)).refute(at_most(0.10))),
        )
        .claim(
            // Set on 23 November 2026, before any figure.
            Claim::ours("bf16-weights-kept", "with stochastic rounding and with Kahan's sum bfloat16 weights learn as fp32 does")
                .rule(learns(Stochastic))
                .rule(learns(Kahan)),
        )
        .plot(bars(LOSS).named("learning").caption("Loss on samples that were not trained on, against fp32's after as many steps"))
}

/// Which of ten directions a vector points to most, learned from made-up samples.
fn step(cell: Learned, bench: &Bench) -> Result<Step> {
    let Learned { steps: Steps(steps), rate: Rate(rate), how } = cell;
    let model = model("mlp-3x32", how, bench.device)?;
    let inputs = bench.randn(&[SAMPLES + 512, 32]);
    let targets = inputs.matmul(&bench.randn(&[32, CLASSES])).argmax(-1, false);
    let samples = Batch { inputs, targets };
    let start: Vec<Tensor> = model.parameters().iter().map(Tensor::copy).collect();
    Ok(Step::new(move |probe| {
        no_grad(|| model.parameters().into_iter().zip(&start).for_each(|(mut parameter, start)| parameter.copy_(start)));
        let mut optimizer = AdamW::new(model.parameters(), how, rate);
        let mut still = 0.0;
        for step in 0..if probe.is_reading() { steps } else { 1 } {
            zero_gradients(&model);
            loss(how, &model, &samples.narrow(step * SIZE % SAMPLES, SIZE))?.f_backward()?;
            let before: Vec<Tensor> = model.parameters().iter().map(|p| p.detach().copy()).collect();
            optimizer.step();
            still = share_unmoved(&model, &before);
        }
        if probe.is_reading() {
            let held_out = samples.narrow(SAMPLES, 512);
            probe.emit(LOSS, no_grad(|| loss(how, &model, &held_out))?.double_value(&[]));
            probe.emit(STILL, still);
        }
        probe.compare(GRADIENT_ERROR, || Ok(gradients(&model)))
    }))
}

/// Share of the parameters with a gradient that are what they were.
fn share_unmoved(model: &Model, before: &[Tensor]) -> f64 {
    let count = |t: Tensor| t.sum(Kind::Int64).int64_value(&[]);
    let [unmoved, all] = model.parameters().iter().zip(before).fold([0, 0], |[unmoved, all], (now, before)| {
        let moves = now.grad().not_equal(0.0);
        [unmoved + count(now.eq_tensor(before).logical_and(&moves)), all + count(moves)]
    });
    unmoved as f64 / all.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn a_small_rate_leaves_bf16_weights_as_they_are_and_a_large_one_does_not() {
        let cell = Learned { steps: Steps(4), rate: Rate(1e-6), how: How::Bf16 };
        check(&protocol(), cell).holds();
        assert!(count(&protocol(), cell).figure(STILL) > 0.9);
        assert!(count(&protocol(), with(cell, Rate(1e-2))).figure(STILL) < 0.5);
        assert!(count(&protocol(), with(cell, How::Fp32)).figure(STILL) < 0.1);
    }
}
