//! Many small networks at once, and the optimizer over them.

use super::*;
use torch::Scalable;

/// Networks of three layers with ReLU between them, each tensor with the member as its first dimension; and the optimizer over them.
pub struct Networks {
    /// Weight `[members, inputs, outputs]` and bias `[members, 1, outputs]` of each layer.
    parameters: [Tensor; 6],
    /// First and second moment of each.
    moments: Vec<(Tensor, Tensor)>,
    algorithm: Algorithm,
    pub rate: f64,
    steps: i32,
}

impl Networks {
    pub fn new(start: &[Tensor; 6], members: &Range<i64>, algorithm: Algorithm) -> Networks {
        let own = |t: &Tensor| t.narrow(0, members.start, members.end - members.start).copy();
        let parameters = start.each_ref().map(|t| own(t).set_requires_grad(true));
        let moments = start.iter().map(|t| (own(t).zeros_like(), own(t).zeros_like())).collect();
        Networks { parameters, moments, algorithm, rate: 0.0, steps: 0 }
    }

    /// Mean loss of each member `[members]`, for samples `[members, samples, features]` and targets `[members, samples]`.
    pub fn losses(&self, x: &Tensor, targets: &Tensor) -> Tensor {
        let [w1, b1, w2, b2, w3, b3] = &self.parameters;
        let x = x.bmm(w1) + b1;
        let x = x.relu().bmm(w2) + b2;
        let logits = (x.relu().bmm(w3) + b3).to_kind(Kind::Float).transpose(1, 2);
        logits.cross_entropy_loss::<Tensor>(targets, None, Reduction::None, -100, 0.0).mean_dim(1, false, None::<Kind>)
    }

    pub fn zero_grad(&mut self) {
        self.parameters.iter_mut().for_each(Tensor::zero_grad);
    }

    pub fn gradients(&self) -> Vec<Tensor> {
        self.parameters.iter().map(Tensor::grad).collect()
    }
}

impl Scalable for Networks {
    fn parameters(&self) -> Vec<Tensor> {
        self.parameters.iter().map(Tensor::shallow_clone).collect()
    }

    /// PyTorch's SGD with momentum 0.9 and its Adam, over all members at once.
    fn step(&mut self) -> Result<()> {
        self.steps += 1;
        let (steps, rate) = (self.steps, self.rate);
        no_grad(|| -> Result<()> {
            for (parameter, (first, second)) in self.parameters.iter_mut().zip(&mut self.moments) {
                let gradient = parameter.grad();
                let change = match self.algorithm {
                    Algorithm::Momentum => {
                        *first = &*first * 0.9 + gradient;
                        &*first * rate
                    }
                    Algorithm::Adam => {
                        *first = &*first * 0.9 + &gradient * 0.1;
                        *second = &*second * 0.999 + gradient.square() * 0.001;
                        let (mean, square) = (&*first / (1.0 - 0.9f64.powi(steps)), &*second / (1.0 - 0.999f64.powi(steps)));
                        mean * rate / (square.sqrt() + 1e-8)
                    }
                };
                let _ = parameter.f_sub_(&change)?;
            }
            Ok(())
        })
    }
}
