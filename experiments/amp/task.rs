//! A task that is learned from made-up samples: which of ten directions a vector points to most.

use super::*;
use models::{Batch, Model};
use tch::nn::{Adam, Optimizer, OptimizerConfig};

const FEATURES: i64 = 32;
const CLASSES: i64 = 10;
pub const SAMPLES: i64 = 2048;
const BATCH: i64 = 128;
const RATE: f64 = 5e-3;

pub struct Task {
    pub model: Model,
    /// Parameters to begin with.
    start: Vec<Tensor>,
    pub optimizer: Optimizer,
    pub training: Batch,
    held_out: Batch,
}

/// The scale before each step and after the last, and the number of steps that were left out.
pub struct Trained {
    pub scales: Vec<f64>,
    pub skipped: i64,
}

impl Task {
    pub fn new(device: Device) -> Result<Task> {
        allow_tf32(false)?;
        let model = Model::named("mlp-3x32", device)?;
        let start = model.parameters().iter().map(Tensor::copy).collect();
        let teacher = Tensor::randn([FEATURES, CLASSES], (Kind::Float, device));
        let samples = |count: i64| {
            let inputs = Tensor::randn([count, FEATURES], (Kind::Float, device));
            let targets = inputs.matmul(&teacher).argmax(-1, false);
            Batch { inputs, targets }
        };
        let (training, held_out) = (samples(SAMPLES), samples(512));
        let optimizer = Adam::default().build(&model.store, RATE)?;
        Ok(Task { model, start, optimizer, training, held_out })
    }

    /// Everything as it was before the first step.
    fn begin(&mut self) -> Result<()> {
        no_grad(|| {
            for (mut parameter, start) in self.model.parameters().into_iter().zip(&self.start) {
                parameter.copy_(start);
            }
        });
        self.optimizer = Adam::default().build(&self.model.store, RATE)?;
        Ok(())
    }

    /// The samples of a step, in turn.
    pub fn batch(&self, step: i64) -> Batch {
        self.training.narrow(step * BATCH % SAMPLES, BATCH)
    }

    pub fn backward(&mut self, batch: &Batch, kind: Kind, scaler: &mut GradScaler, weight: f64) -> Result<()> {
        self.optimizer.zero_grad();
        let loss = autocast(batch.inputs.device(), kind, || {
            self.model.loss(&self.model.forward(&batch.inputs, true), &batch.targets, Reduction::Mean)
        })?;
        Ok(scaler.scale(&(loss * weight))?.f_backward()?)
    }

    /// Trains from the start, on what `batch` gives for each step.
    pub fn train(
        &mut self,
        steps: i64,
        kind: Kind,
        scaler: &mut GradScaler,
        batch: impl Fn(&Task, i64) -> Batch,
    ) -> Result<Trained> {
        self.begin()?;
        let mut trained = Trained { scales: vec![scaler.get_scale()?], skipped: 0 };
        for step in 0..steps {
            self.backward(&batch(self, step), kind, scaler, 1.0)?;
            trained.skipped += i64::from(!scaler.step(&mut self.optimizer)?);
            scaler.update()?;
            trained.scales.push(scaler.get_scale()?);
        }
        Ok(trained)
    }

    /// Compares the gradients of the first step.
    pub fn compare(&mut self, kind: Kind, is_scaled: bool, probe: &mut Probe) -> Result<()> {
        self.begin()?;
        let mut scaler = scaler_in(is_scaled.then(|| ScalerState { scale: 1024.0, ..ScalerState::default() }))?;
        self.backward(&self.batch(0), kind, &mut scaler, 1.0)?;
        scaler.unscale(&self.optimizer)?;
        probe.compare(GRADIENT_ERROR, || Ok(self.model.gradients()))
    }

    /// Tells how it was learned, and what the scaler did, where there is one.
    pub fn tell(&self, trained: &Trained, scaler: &GradScaler, probe: &mut Probe) {
        let loss = self.loss();
        if loss.is_finite() {
            probe.emit(LOSS, loss);
        }
        if scaler.is_enabled() {
            probe.emit(SKIPPED, trained.skipped);
            probe.emit(LOWEST, trained.scales.iter().copied().fold(f64::INFINITY, f64::min));
            probe.emit(LAST, trained.scales[trained.scales.len() - 1]);
        }
    }

    pub fn loss(&self) -> f64 {
        let batch = &self.held_out;
        let loss = no_grad(|| self.model.loss(&self.model.forward(&batch.inputs, false), &batch.targets, Reduction::Mean));
        loss.double_value(&[])
    }

    /// Share of parameters that are not finite.
    pub fn ruined(&self) -> f64 {
        let parameters = self.model.parameters();
        let finite: i64 = parameters.iter().map(|p| p.isfinite().sum(Kind::Int64).int64_value(&[])).sum();
        1.0 - finite as f64 / parameters.iter().map(Tensor::numel).sum::<usize>() as f64
    }
}

/// A scaler in this state; none scales nothing.
pub fn scaler_in(state: Option<ScalerState>) -> Result<GradScaler> {
    state.map_or_else(|| Ok(GradScaler::disabled()), GradScaler::new)
}
