//! How much memory does it save, and of what?

use super::*;

const PARAMETERS: Metric = Metric::counted("parameters", "parameters", "B");
const STATE: Metric = Metric::counted("optimizer_state", "optimizer state", "B");

number! { Samples as "batch" "samples of a step" }

cell! { Memory { model: ModelName, samples: Samples, how: How } }

pub fn grid() -> Grid<Memory> {
    let half = |metric| ratio(metric).at(How::Bf16).confirm(within(0.49..=0.51)).refute(at_least(0.55));
    let saved = |least| ratio(PEAK).at(How::Bf16).holds(at_most(1.0 - least));
    Grid::new("memory", step)
        .compare::<How>()
        .quick(Memory::cross("gpt-4x128", [2, 8], How::ALL))
        .full(Memory::cross("gpt2", [1, 4], How::ALL))
        .full(Memory::cross("gpt2-large", 1, How::ALL))
        .full(Memory::cross(["bert-large", "vit-l16"], 8, How::ALL))
        .smoke(Memory::cross("gpt-2x32", 2, How::ALL))
        .passes(CHECK | COUNT)
        .metrics(&[PEAK, PARAMETERS, GRADIENTS, STATE])
        // As `amp` has it: bf16 keeps eight bits of each product.
        .check(|_| equal(0.1))
        .claim(
            // Set on 23 November 2026, before any figure.
            Claim::ours("bf16-weights-half", "weights in bfloat16 halve parameters, gradients and optimizer state")
                .rule(half(PARAMETERS))
                .rule(half(GRADIENTS))
                .rule(half(STATE)),
        )
        .claim(
            // Set on 23 November 2026, before any figure.
            Claim::ours("bf16-weights-peak", "weights in bfloat16 take 40 % and more off a step's peak").rule(saved(0.40)),
        )
        .plot(bars(PEAK).caption("Peak of a training step with AdamW, against fp32"))
}

fn step(cell: Memory, bench: &Bench) -> Result<Step> {
    let how = cell.how;
    let model = model(cell.model.0, how, bench.device)?;
    let batch = model.batch(cell.samples.0);
    let mut optimizer = AdamW::new(model.parameters(), how, 1e-4);
    Ok(Step::new(move |probe| {
        zero_gradients(&model);
        loss(how, &model, &batch)?.f_backward()?;
        if probe.is_reading() {
            probe.emit(PARAMETERS, bytes(&model.parameters()));
            probe.emit(GRADIENTS, bytes(&model.gradients()));
            probe.emit(STATE, optimizer.state());
        }
        probe.compare(GRADIENT_ERROR, || Ok(gradients(&model)))?;
        optimizer.step();
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn bf16_weights_are_half_and_the_check_sees_another_batch() {
        let cell = Memory { model: ModelName("gpt-2x32"), samples: Samples(2), how: How::Bf16 };
        check(&protocol(), cell).holds();
        broken(&protocol(), cell, |bench| step(with(cell, Samples(1)), bench)).sees("gradient: expected equal");
        let [whole, half, sums] = [How::Fp32, How::Bf16, How::Kahan].map(|how| count(&protocol(), with(cell, how)));
        for metric in [PARAMETERS, GRADIENTS, STATE] {
            assert_eq!(whole.figure(metric), 2.0 * half.figure(metric));
        }
        assert_eq!(sums.figure(STATE), 1.5 * half.figure(STATE));
    }
}
