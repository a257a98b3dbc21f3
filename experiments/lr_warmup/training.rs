//! The task, and how many starts are trained on it.

use super::*;
use networks::Networks;
use torch::{allow_tf32, autocast};

/// Starts of each cell: where all of them diverge, with warm-up and without, the ratio's interval lies within a tenth of 1.
pub const MEMBERS: i64 = 96;
pub const STEPS: i64 = 48;
const SAMPLES: i64 = 1024;
const FEATURES: i64 = 20;
const WIDTH: i64 = 32;
const CLASSES: i64 = 10;

#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    pub algorithm: Algorithm,
    pub rate: f64,
    /// Steps.
    pub warm_up: i64,
}

impl Schedule {
    /// The rate of a step, which counts from 0.
    fn at(&self, step: i64) -> f64 {
        if step < self.warm_up { self.rate * (step + 1) as f64 / self.warm_up as f64 } else { self.rate }
    }
}

/// One schedule, tried from many starts.
pub struct WarmupTask {
    schedule: Schedule,
    precision: Precision,
    batch: i64,
    inputs: Tensor,
    targets: Tensor,
    start: [Tensor; 6],
    /// Samples of each step `[members, steps, batch]`.
    order: Tensor,
}

impl WarmupTask {
    pub fn new(schedule: Schedule, precision: Precision, batch: i64, bench: &Bench) -> Result<WarmupTask> {
        allow_tf32(false, false)?;
        let float = (Kind::Float, bench.device);
        let inputs = Tensor::randn([SAMPLES, FEATURES], float);
        // What is to be learned: the largest of ten outputs of a network.
        let (first, second) = (Tensor::randn([FEATURES, 16], float), Tensor::randn([16, CLASSES], float));
        let targets = inputs.matmul(&first).tanh().matmul(&second).argmax(-1, false);
        let layer = |inputs: i64, outputs: i64| {
            let bound = 1.0 / (inputs as f64).sqrt();
            let weight = (Tensor::rand([MEMBERS, inputs, outputs], float) * 2.0 - 1.0) * bound;
            [weight, Tensor::zeros([MEMBERS, 1, outputs], float)]
        };
        let ([w1, b1], [w2, b2], [w3, b3]) = (layer(FEATURES, WIDTH), layer(WIDTH, WIDTH), layer(WIDTH, CLASSES));
        // Each step draws its samples without replacement.
        let draws = Tensor::rand([MEMBERS, STEPS, SAMPLES], float).argsort(-1, false);
        let order = draws.narrow(2, 0, batch).contiguous();
        Ok(WarmupTask { schedule, precision, batch, inputs, targets, start: [w1, b1, w2, b2, w3, b3], order })
    }

    /// Trains some members for so many steps; gives the networks and each member's loss over all samples, before and after.
    pub fn train(&self, members: Range<i64>, steps: i64) -> Result<(Networks, [Vec<f64>; 2])> {
        let count = members.end - members.start;
        let mut networks = Networks::new(&self.start, &members, self.schedule.algorithm)?;
        let before = self.all_losses(&networks, count)?;
        for step in 0..steps {
            let chosen = self.order.narrow(0, members.start, count).select(1, step).reshape([-1]);
            let x = self.inputs.index_select(0, &chosen).reshape([count, self.batch, FEATURES]);
            let targets = self.targets.index_select(0, &chosen).reshape([count, self.batch]);
            networks.optimizer.zero_grad();
            let losses = autocast(x.device(), self.precision.kind(), || networks.losses(&x, &targets))?;
            // A sum, so that each member gets the gradient of its own mean.
            losses.sum(Kind::Float).f_backward()?;
            networks.optimizer.set_lr(self.schedule.at(step));
            networks.optimizer.step();
        }
        let after = self.all_losses(&networks, count)?;
        Ok((networks, [before, after]))
    }

    fn all_losses(&self, networks: &Networks, count: i64) -> Result<Vec<f64>> {
        let x = self.inputs.unsqueeze(0).expand([count, SAMPLES, FEATURES], false);
        let targets = self.targets.unsqueeze(0).expand([count, SAMPLES], false);
        Ok(Vec::<f64>::try_from(no_grad(|| networks.losses(&x, &targets)).to_kind(Kind::Double))?)
    }
}
