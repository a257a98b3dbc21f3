//! Leaks: what a training loop keeps from step to step, and by how much memory grows.
//!
//! PyTorch's FAQ warns of `total_loss += loss`: it 'is accumulating history across your training loop'. A backward pass frees what its graph
//! had saved, so what such a sum keeps depends on whether there was one.

use harness::lab::*;
use models::{Batch, Model};

/// By how much memory grows from the end of a step to the end of the next.
const GROWN: Metric = Metric::counted("grown", "growth per step", "B");
const OF_ACTIVATIONS: Metric = Metric::counted("of_activations", "growth per step, of a step's activations", "1").share();

number! { Samples as "batch" "samples of a step" }
levels! {
    Kept "what the loop keeps of a step":
    Number "the loss's number, as item() gives it" => "a number",
    TotalLoss "total_loss += loss, after the backward pass" => "total_loss += loss, trained",
    Evaluated "total_loss += loss of an evaluation, which has no backward pass and no no_grad" => "total_loss += loss, evaluated",
    Outputs "the output of an evaluation, with its graph" => "outputs of an evaluation",
    Detached "the output of an evaluation, detached" => "detached outputs",
}

cell! { Keeping { model: ModelName, batch: Samples, kept: Kept } }

harness::main!(protocol);

pub fn protocol() -> Protocol {
    use Kept::{Evaluated, Outputs, TotalLoss};
    let keeps = |kept| value(OF_ACTIVATIONS).of(move |c: &Keeping| c.kept == kept).confirm(at_least(0.50)).refute(at_most(0.01));
    let grid = Grid::new("growth", step)
        .compare::<Kept>()
        .quick(Keeping::cross("gpt-4x128", 8, Kept::ALL))
        .quick(Keeping::cross("mlp-8x256", 1024, Kept::ALL))
        .full(Keeping::cross("gpt2", [1, 8], Kept::ALL))
        .full(Keeping::cross("vit-l16", 8, Kept::ALL))
        .smoke(Keeping::cross("mlp-2x32", 16, Kept::ALL))
        .passes(CHECK | COUNT)
        .metrics(&[GROWN, OF_ACTIVATIONS])
        // What is kept changes nothing that is computed.
        .check(|_| equal(0.0))
        .claim(
            // Set on 23 November 2026, before any figure.
            Claim::ours("leak-total-loss", "total_loss += loss keeps the memory of every step")
                .rule(keeps(TotalLoss))
                .rule(keeps(Evaluated)),
        )
        .claim(
            // Set on 23 November 2026, before any figure.
            Claim::ours("leak-outputs", "an output that is kept keeps its step's activations").rule(keeps(Outputs)),
        )
        .plot(amounts(GROWN).caption("By how much memory grows per step"));
    Protocol::new("leaks", "Common leaks")
        .question("By how much does memory grow with each step for what a loop keeps, and what does it take to keep nothing?")
        .hypothesis(
            "A loss that went through a backward pass keeps its number and an empty graph: total_loss += loss grows by 512 bytes a step at most. A loss \
             or an output without one keeps all that its graph saved, as much as a step's activations. Detached outputs keep themselves.",
        )
        .grid(grid)
        .threat("The loop is Rust's, whose variables end where they are dropped. In Python an exception's traceback and a closure keep them, too.")
        .threat("Growth is that of the third step. What is kept once, and does not grow, is no leak.")
}

fn step(cell: Keeping, bench: &Bench) -> Result<Step> {
    let model = Model::without_dropout(cell.model.0, bench.device)?;
    let batch = model.batch(cell.batch.0);
    let number = Tensor::zeros([], (Kind::Float, bench.device));
    Ok(Step::new(move |probe| {
        let mut holds = Holds { total: number.copy(), outputs: Vec::new(), activations: 0 };
        let losses = (0..3).map(|_| holds.take(cell.kept, &model, &batch, probe)).collect::<Result<Vec<_>>>()?;
        let [.., before, last] = &losses[..] else { bail!("three steps have three ends") };
        let grown = last.1 - before.1;
        probe.emit(GROWN, grown);
        probe.emit(OF_ACTIVATIONS, grown as f64 / holds.activations as f64);
        probe.compare(LOSS_ERROR, || Ok(vec![Tensor::from_slice(&[losses[0].0])]))
    }))
}

/// What a loop has.
struct Holds {
    total: Tensor,
    outputs: Vec<Tensor>,
    /// Bytes of the last forward pass.
    activations: i64,
}

impl Holds {
    /// Runs a step, and gives its loss and the bytes that live when all is dropped that the loop does not keep.
    fn take(&mut self, kept: Kept, model: &Model, batch: &Batch, probe: &Probe) -> Result<(f64, i64)> {
        let is_trained = matches!(kept, Kept::Number | Kept::TotalLoss);
        let number = {
            model.parameters().iter().for_each(|p| p.shallow_clone().zero_grad());
            let before = probe.live();
            let output = model.forward(&batch.inputs, is_trained);
            let loss = model.loss(&output, &batch.targets, Reduction::Mean);
            self.activations = probe.live() - before;
            let number = loss.double_value(&[]);
            if is_trained {
                loss.f_backward()?;
            }
            match kept {
                Kept::Number => {}
                Kept::TotalLoss | Kept::Evaluated => self.total = &self.total + loss,
                Kept::Outputs => self.outputs.push(output),
                Kept::Detached => self.outputs.push(output.detach()),
            }
            number
        };
        Ok((number, probe.live()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    const SMALL: Keeping = Keeping { model: ModelName("mlp-2x32"), batch: Samples(16), kept: Kept::Number };

    #[test]
    fn a_loop_grows_by_what_it_keeps_and_by_nothing_else() {
        let grown = |kept| count(&protocol(), with(SMALL, kept)).figure(GROWN);
        let logits = 4.0 * 16.0 * 10.0;
        assert_eq!([Kept::Number, Kept::Detached].map(grown), [0.0, logits]);
        assert!(grown(Kept::TotalLoss) < 64.0, "a number: {}", grown(Kept::TotalLoss));
        for kept in [Kept::Evaluated, Kept::Outputs] {
            assert!(grown(kept) > logits, "{kept:?}");
        }
    }

    #[test]
    fn the_check_sees_another_batch() {
        let cell = with(SMALL, Kept::Outputs);
        check(&protocol(), cell).holds();
        broken(&protocol(), cell, |bench| step(with(cell, Samples(8)), bench)).sees("loss: expected equal");
    }
}
