//! The step, as PyTorch's side has it in `experiments/agreement/step.py`.

use super::*;
use models::{self, Model};
use tch::nn::{self, OptimizerConfig};
use torch::autocast;

/// What accumulation splits a batch into.
const MICRO_BATCHES: i64 = 4;

pub struct Training {
    pub cell: Side,
    pub model: Model,
    pub batch: models::Batch,
    pub optimizer: nn::Optimizer,
    /// Of the last step; a program in Python holds it as long.
    loss: Option<Tensor>,
}

pub fn step(cell: Side, bench: &Bench) -> Result<Step> {
    use Technique::*;
    ensure!(cell.by == By::Vramlab, "the PyTorch reference runs this cell");
    let model = Model::named(cell.model.0, bench.device)?;
    let batch = model.batch(cell.batch.0);
    let optimizer = match cell.optimizer {
        Optimizer::Sgd => nn::Sgd::default().build(&model.store, 1e-2)?,
        Optimizer::Adamw => nn::AdamW::default().build(&model.store, 1e-3)?,
    };
    let flops = match cell.technique {
        Nothing | Autocast | Accumulate | Inplace => model.least_training_flops(cell.batch.0),
        OptimizerStep | NoGrad => 0.0,
    };
    let mut training = Training { cell, model, batch, optimizer, loss: None };
    if cell.technique == OptimizerStep {
        training.forward(&training.batch)?.f_backward()?;
    }
    let start = training.start();
    Ok(Step::new(move |probe| training.run(probe)).least_flops(flops).start(start))
}

impl Training {
    fn run(&mut self, probe: &mut Probe) -> Result<()> {
        use Technique::*;
        match self.cell.technique {
            OptimizerStep => {
                probe.at_rest();
                self.optimizer.step();
                self.tell(probe, LIVE_STEP, MATCHED_STEP);
                self.tell_peak(probe);
                return probe.compare(PARAMETER_ERROR, || Ok(self.model.parameters()));
            }
            NoGrad => {
                self.zero_grad();
                probe.at_rest();
                self.loss = Some(no_grad(|| self.forward(&self.batch))?);
                self.tell(probe, LIVE_FORWARD, MATCHED_FORWARD);
                self.tell_peak(probe);
                return self.compare_loss(probe);
            }
            Nothing | Autocast | Accumulate | Inplace => self.zero_grad(),
        }
        probe.at_rest();
        let parts = if self.cell.technique == Accumulate { MICRO_BATCHES } else { 1 };
        let samples = self.cell.batch.0 / parts;
        for part in 0..parts {
            let loss = self.forward(&self.batch.narrow(part * samples, samples))?;
            let loss = if parts > 1 { loss / parts } else { loss };
            self.loss = Some(loss.shallow_clone());
            self.tell(probe, LIVE_FORWARD, MATCHED_FORWARD);
            loss.f_backward()?;
        }
        self.tell(probe, LIVE_BACKWARD, MATCHED_BACKWARD);
        self.optimizer.step();
        self.tell(probe, LIVE_STEP, MATCHED_STEP);
        self.tell_peak(probe);
        probe.compare(GRADIENT_ERROR, || Ok(self.model.gradients()))?;
        self.compare_loss(probe)?;
        probe.compare(PARAMETER_ERROR, || Ok(self.model.parameters()))
    }

    fn compare_loss(&self, probe: &mut Probe) -> Result<()> {
        probe.compare(LOSS_ERROR, || Ok(self.loss.iter().map(Tensor::shallow_clone).collect()))
    }

    fn zero_grad(&mut self) {
        self.optimizer.zero_grad();
        self.loss = None;
    }

    fn forward(&self, batch: &models::Batch) -> Result<Tensor> {
        let loss = || Ok(self.model.loss(&self.logits(&batch.inputs)?, &batch.targets, Reduction::Mean));
        if self.cell.technique == Technique::Autocast {
            return autocast(batch.inputs.device(), Kind::BFloat16, loss)?;
        }
        loss()
    }

    fn logits(&self, inputs: &Tensor) -> Result<Tensor> {
        if self.cell.technique == Technique::Inplace { self.overwriting(inputs) } else { Ok(self.model.forward(inputs, true)) }
    }

    /// The MLP with an activation that overwrites its input.
    fn overwriting(&self, inputs: &Tensor) -> Result<Tensor> {
        let variables = self.model.store.variables();
        let linear = |x: &Tensor, path: &str| -> Result<Tensor> {
            let of =
                |name: &str| variables.get(&format!("{path}.{name}")).with_context(|| format!("the model has no {path}.{name}"));
            Ok(x.linear(of("weight")?, Some(of("bias")?)))
        };
        let mut x = inputs.shallow_clone();
        for block in 0..self.model.blocks.len() {
            x = linear(&x, &format!("block.{block}"))?.relu_();
        }
        linear(&x, "head")
    }

    /// Parameters and data, from which PyTorch's side begins, too.
    fn start(&self) -> Vec<(String, Tensor)> {
        let mut start: Vec<(String, Tensor)> = self.model.store.variables().into_iter().collect();
        start.sort_by(|a, b| a.0.cmp(&b.0));
        let data = [("inputs", &self.batch.inputs), ("targets", &self.batch.targets)];
        start.extend(data.map(|(name, tensor)| (name.to_string(), tensor.shallow_clone())));
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    /// What PyTorch's side gives is stood in for by ours: both sides compute the same, or the check says so.
    #[test]
    fn the_check_sees_another_optimizer_and_another_technique() {
        let cell = |model: &'static str, batch: i64, optimizer: Optimizer, technique: Technique| {
            Side::cross(model, batch, optimizer, technique, "1", By::Vramlab)[0]
        };
        let plain = cell("mlp-8x64", 32, Optimizer::Sgd, Technique::Nothing);
        let same = |bench: &Bench| {
            let step = step(plain, bench)?;
            assert!(step.begins_with().iter().any(|(name, _)| name == "inputs"), "both sides need one start");
            Ok(step)
        };
        beside(&protocol(), plain, same).holds();
        beside(&protocol(), plain, |bench| step(with(plain, Batch(31)), bench)).sees("gradient: expected equal");
        let alone = cell("mlp-8x64", 32, Optimizer::Adamw, Technique::OptimizerStep);
        beside(&protocol(), alone, |bench| step(with(alone, Optimizer::Sgd), bench)).sees("parameter: expected equal");
        let in_half = cell("mlp-9x64", 32, Optimizer::Adamw, Technique::Autocast);
        beside(&protocol(), in_half, |bench| step(with(in_half, Technique::Nothing), bench)).sees("gradient: expected equal");
    }
}
