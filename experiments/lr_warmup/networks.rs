//! Many small networks at once, and the optimizer over them.

use super::*;
use tch::nn::{self, OptimizerConfig, VarStore};

/// Networks of three layers with ReLU between them, each tensor with the member as its first dimension.
pub struct Networks {
    /// Weight `[members, inputs, outputs]` and bias `[members, 1, outputs]` of each layer.
    parameters: [Tensor; 6],
    /// Each number's step depends on its own past alone, so that members share the optimizer and nothing else.
    pub optimizer: nn::Optimizer,
}

impl Networks {
    pub fn new(start: &[Tensor; 6], members: &Range<i64>, algorithm: Algorithm) -> Result<Networks> {
        let store = VarStore::new(start[0].device());
        let own = |t: &Tensor| t.narrow(0, members.start, members.end - members.start).copy();
        let parameters = start.each_ref().map(|t| store.root().add("parameter", own(t), true));
        // The rate is the schedule's, and set for each step.
        let optimizer = match algorithm {
            Algorithm::Momentum => nn::Sgd { momentum: 0.9, ..nn::Sgd::default() }.build(&store, 0.0)?,
            Algorithm::Adam => nn::Adam::default().build(&store, 0.0)?,
        };
        Ok(Networks { parameters, optimizer })
    }

    /// Mean loss of each member `[members]`, for samples `[members, samples, features]` and targets `[members, samples]`.
    pub fn losses(&self, x: &Tensor, targets: &Tensor) -> Tensor {
        let [w1, b1, w2, b2, w3, b3] = &self.parameters;
        let x = x.bmm(w1) + b1;
        let x = x.relu().bmm(w2) + b2;
        let logits = (x.relu().bmm(w3) + b3).to_kind(Kind::Float).transpose(1, 2);
        logits.cross_entropy_loss::<Tensor>(targets, None, Reduction::None, -100, 0.0).mean_dim(1, false, None::<Kind>)
    }

    pub fn gradients(&self) -> Vec<Tensor> {
        self.parameters.iter().map(Tensor::grad).collect()
    }
}
