//! One training step, phase by phase.

use super::{Configuration, OptimizerKind, Precision};
use crate::{Batch, Block, Model};
use anyhow::{Result, ensure};
use tch::{Device, Reduction, Tensor};
use torch::optimizers::{Optimizer, ZeroGrad};
use torch::{GradScaler, Mark, Phase, Recorder, ScalerState, attempt, autocast, checkpoint};

/// The loss scale that `amp-fp16` starts with. PyTorch's default of 65536 overflows in the first steps of many models and is halved until it
/// fits; those steps are left out, and an optimizer that was not stepped has no state. From 1024 on the first step counts.
const FIRST_LOSS_SCALE: f64 = 1024.0;

/// A model in training on made-up data: the same batch in each iteration.
#[derive(Debug)]
pub struct Trainer {
    configuration: Configuration,
    model: Model,
    optimizer: Optimizer,
    scaler: GradScaler,
    batch: Batch,
    iterations: u32,
    keeps_gradients: bool,
    /// Whether layers are as in training.
    trains: bool,
}

impl Trainer {
    /// Brings model and data onto the device, with values from libtorch's current random state.
    ///
    /// # Errors
    /// What [`Configuration::validate`] refuses; libtorch's message where memory runs out.
    pub fn load(configuration: &Configuration, device: Device) -> Result<Trainer> {
        configuration.validate()?;
        attempt(|| {
            let model = Model::with(&configuration.model, &configuration.settings, device)?;
            let optimizer = optimizer(configuration.optimizer, &model)?;
            let mut scaler = match configuration.precision {
                Precision::AmpFp16 => GradScaler::new(ScalerState { scale: FIRST_LOSS_SCALE, ..ScalerState::default() })?,
                _ => GradScaler::disabled(),
            };
            scaler.place_on(device)?;
            let batch = model.batch(configuration.batch);
            Ok(Trainer {
                configuration: configuration.clone(),
                model,
                optimizer,
                scaler,
                batch,
                iterations: 0,
                keeps_gradients: false,
                trains: true,
            })
        })
    }

    /// From now on an iteration begins by filling the gradients of the last one with zeros, as PyTorch's `zero_grad(set_to_none=False)`
    /// does, in place of dropping them.
    pub fn keep_gradients(&mut self) {
        self.keeps_gradients = true;
    }

    /// From now on layers are as PyTorch's `eval()` makes them: batch norms normalise by their running statistics, and nothing is dropped out.
    /// A sample's gradient then depends on no other sample.
    pub fn eval(&mut self) {
        self.trains = false;
    }

    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// The optimizer, which tells its state by parameter.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// Tells a recorder of a phase that has just ended.
    ///
    /// # Errors
    /// The meter's message.
    pub fn record(&self, mark: Mark, recorder: &mut Recorder) -> Result<()> {
        recorder.ended(mark, &self.model.store, &[&self.batch.inputs, &self.batch.targets])
    }

    /// Runs one iteration: frees the gradients of the last one (or fills them with zeros), then forward and backward for each micro-batch,
    /// then the optimizer's step. `ended` is called at the end of each phase, with what lives then: after forward the loss and what it leads to, after
    /// backward the gradients.
    ///
    /// # Errors
    /// libtorch's message, out of memory included; what `ended` fails with.
    pub fn iterate(&mut self, ended: &mut dyn FnMut(Mark, &Trainer) -> Result<()>) -> Result<()> {
        self.iterations += 1;
        attempt(|| self.iteration(ended))
    }

    fn iteration(&mut self, ended: &mut dyn FnMut(Mark, &Trainer) -> Result<()>) -> Result<()> {
        self.optimizer.zero_grad(if self.keeps_gradients { ZeroGrad::ToZero } else { ZeroGrad::ToNone })?;
        let (iteration, count, samples) = (self.iterations, self.configuration.accumulate, self.configuration.micro_batch());
        for micro_batch in 0..count {
            let micro = self.batch.narrow(micro_batch * samples, samples);
            let loss = {
                let unscaled = self.loss(&micro)?;
                self.scaler.scale(&unscaled)?
            };
            ended(Mark { iteration, phase: Phase::Forward, micro_batch }, self)?;
            loss.f_backward()?;
            drop(loss);
            ended(Mark { iteration, phase: Phase::Backward, micro_batch }, self)?;
        }
        self.scaler.step(&mut self.optimizer)?;
        self.scaler.update()?;
        ended(Mark { iteration, phase: Phase::Optimizer, micro_batch: count - 1 }, self)?;
        Ok(())
    }

    /// The loss of one micro-batch: its mean over the micro-batch's targets, divided by the number of micro-batches. The sum of these is the
    /// mean over the whole batch.
    fn loss(&self, micro: &Batch) -> Result<Tensor> {
        let kind = self.configuration.precision.kind();
        let loss = autocast(self.model.store.device(), kind, || -> Result<Tensor> {
            let logits = self.logits(&micro.inputs)?;
            Ok(self.model.loss(&logits, &micro.targets, Reduction::Mean))
        })??;
        let count = self.configuration.accumulate as f64;
        Ok(if count == 1.0 { loss } else { loss / count })
    }

    fn logits(&self, inputs: &Tensor) -> Result<Tensor> {
        let Some(length) = self.configuration.checkpoint.segment(self.model.blocks.len()) else {
            return Ok(self.model.forward(inputs, self.trains));
        };
        let mut x = self.model.stem.forward(inputs, self.trains);
        for blocks in self.model.blocks.chunks(length) {
            x = segment(blocks, &x, self.trains)?;
        }
        Ok(self.model.head.forward(&x, self.trains))
    }
}

/// Runs blocks as one checkpointed segment.
fn segment(blocks: &[Box<dyn Block>], x: &Tensor, trains: bool) -> Result<Tensor> {
    let own: Vec<Box<dyn Block>> = blocks.iter().map(|block| block.share()).collect();
    let mut outputs = checkpoint(&[x], move |x| {
        let mut x = x[0].shallow_clone();
        for block in &own {
            x = block.forward(&x, trains);
        }
        Ok(vec![x])
    })?;
    ensure!(outputs.len() == 1, "a segment gave {} outputs", outputs.len());
    Ok(outputs.remove(0))
}

/// An optimizer with PyTorch's default settings; rates are small, so that made-up data does not send the loss to infinity.
fn optimizer(kind: OptimizerKind, model: &Model) -> Result<Optimizer> {
    let (algorithm, implementation) = kind.algorithm();
    let rate = match kind {
        OptimizerKind::Sgd | OptimizerKind::Momentum => 1e-3,
        _ => 1e-5,
    };
    Optimizer::new(&model.store, algorithm, rate, implementation)
}
