//! A training run in one process, with or without DDP, which can stop at any phase.

use super::*;
use models::{self, Model};
use tch::nn::{AdamW, Optimizer, OptimizerConfig, Sgd};
use torch::ddp::{Ddp, DdpOptions};
use torch::distributed::ProcessGroup;

/// What is trained, to be begun again and again from the same random state.
pub struct DdpRun {
    pub model: ModelName,
    pub batch: Batch,
    pub cap: Cap,
    pub zero_grad: ZeroGrad,
    pub processes: usize,
    pub bench: Bench,
}

/// What takes the gradients: plain SGD keeps nothing between steps, AdamW two moments.
pub enum Update {
    Sgd,
    AdamW,
}

/// Where an iteration can stop.
#[derive(Clone, Copy, PartialEq)]
pub enum DdpPhase {
    /// The forward pass has begun, and DDP has built its buckets anew.
    Begun,
    Forward,
    Backward,
}

impl DdpRun {
    pub fn start(&self, way: Way, update: Update) -> Result<DdpTraining> {
        tch::manual_seed(self.bench.seed);
        let model = Model::named(self.model.0, self.bench.device)?;
        let batch = model.batch(self.batch.0);
        let optimizer = match update {
            Update::Sgd => Sgd::default().build(&model.store, 1e-2)?,
            Update::AdamW => AdamW::default().build(&model.store, 1e-4)?,
        };
        let bucket_cap = Some(u64::try_from(self.cap.0)? << 20);
        let buckets = |gradient_as_bucket_view| {
            let group = ProcessGroup::alone(self.bench.device, self.processes)?;
            Ddp::of(&model.store, &group, DdpOptions { bucket_cap, gradient_as_bucket_view }).map(Some)
        };
        let ddp = match way {
            Way::Nothing => None,
            Way::Copies => buckets(false)?,
            Way::Views => buckets(true)?,
        };
        Ok(DdpTraining { model, batch, optimizer, ddp, zero_grad: self.zero_grad, kept: None })
    }
}

/// A model in training.
pub struct DdpTraining {
    pub model: Model,
    batch: models::Batch,
    optimizer: Optimizer,
    ddp: Option<Ddp>,
    zero_grad: ZeroGrad,
    /// Loss of an iteration that was stopped before its backward pass.
    kept: Option<Tensor>,
}

impl DdpTraining {
    /// One iteration, whole or to the end of a phase; what lives then is kept.
    pub fn iterate(&mut self, until: Option<DdpPhase>) -> Result<()> {
        match (self.zero_grad, &self.ddp) {
            (ZeroGrad::Zeros, _) => {
                let gradients = self.model.gradients().into_iter().filter(Tensor::defined);
                no_grad(|| gradients.for_each(|mut gradient| drop(gradient.zero_())));
            }
            (ZeroGrad::Nothing, Some(ddp)) => ddp.zero_grad(),
            (ZeroGrad::Nothing, None) => self.optimizer.zero_grad(),
        }
        let model = &self.model;
        let forward = || -> Result<Option<Tensor>> {
            let loss = || model.loss(&model.forward(&self.batch.inputs, true), &self.batch.targets, Reduction::Mean);
            Ok((until != Some(DdpPhase::Begun)).then(loss))
        };
        let loss = match &self.ddp {
            Some(ddp) => ddp.forward(forward)?,
            None => forward()?,
        };
        let Some(loss) = loss else { return Ok(()) };
        if until == Some(DdpPhase::Forward) {
            self.kept = Some(loss);
            return Ok(());
        }
        loss.f_backward()?;
        drop(loss);
        if until != Some(DdpPhase::Backward) {
            self.optimizer.step();
        }
        Ok(())
    }

    pub fn gradient_bytes(&self) -> i64 {
        let trained = self.model.store.trainable_variables();
        bytes(&trained)
    }
}
