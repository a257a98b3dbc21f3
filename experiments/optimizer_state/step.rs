//! An optimizer's step, or copies of the bytes that it must move.

use super::*;
use torch::optimizers::{Algorithm, Implementation, Optimizer};

const RATE: f64 = 1e-3;
/// Steps before the one that is measured, so that there is a past to remember.
const STEPS_BEFORE: usize = 3;

impl Method {
    fn algorithm(self) -> Algorithm {
        match self {
            Method::Sgd => Algorithm::Sgd,
            Method::Momentum => Algorithm::Momentum,
            Method::Rmsprop => Algorithm::RmsProp,
            Method::Adam => Algorithm::Adam,
            Method::Adamw => Algorithm::AdamW,
        }
    }

    /// Numbers of state for each parameter.
    fn kept(self) -> i64 {
        match self {
            Method::Sgd => 0,
            Method::Momentum | Method::Rmsprop => 1,
            Method::Adam | Method::Adamw => 2,
        }
    }

    /// State over model as guide 4 says, where it does.
    fn claimed(self) -> Option<i64> {
        match self {
            Method::Rmsprop => Some(1),
            Method::Adam => Some(2),
            Method::Sgd | Method::Momentum | Method::Adamw => None,
        }
    }

    /// Numbers that a step must read and write for each parameter: the parameter, its gradient and its state in, all but the gradient out.
    fn moved(self) -> i64 {
        2 * (1 + self.kept()) + 1
    }
}

pub fn size(tensor: &Tensor) -> i64 {
    (tensor.numel() * tensor.kind().elt_size_in_bytes()) as i64
}

/// `model_bytes` are those of parameters and buffers.
pub fn step_of(parameters: Vec<(String, Tensor)>, model_bytes: i64, method: Method, how: How) -> Result<Step> {
    for (_, parameter) in &parameters {
        // The gradient of sum(p * g) is g.
        (parameter * parameter.detach().randn_like()).sum(Kind::Float).f_backward()?;
    }
    let start: Vec<Tensor> = parameters.iter().map(|(_, parameter)| parameter.detach().copy()).collect();
    let implementation = match how {
        How::Loop => Implementation::Loop,
        How::Foreach => Implementation::Foreach,
        How::Fused => Implementation::Fused,
        How::Copy => return Ok(copying(&start, method)),
    };
    let numbers: i64 = start.iter().map(|tensor| tensor.numel() as i64).sum();
    let begin = move |parameters: &[(String, Tensor)]| {
        let own = parameters.iter().map(|(name, parameter)| (name.clone(), parameter.shallow_clone())).collect();
        Optimizer::over(own, method.algorithm(), RATE, implementation)
    };
    let mut optimizer = Some(begin(&parameters)?);
    for _ in 0..STEPS_BEFORE {
        optimizer.iter_mut().try_for_each(Optimizer::step)?;
    }
    Ok(Step::new(move |probe| {
        let rest = probe.at_rest();
        let mut stepping = optimizer.take().map_or_else(|| begin(&parameters), Ok)?;
        stepping.step()?;
        match probe.memory() {
            None => optimizer = Some(stepping),
            Some(after) => {
                // What goes with the optimizer is its state. The next step would begin anew, and there is none after the one that is
                // counted.
                drop(stepping);
                let state = after.requested - probe.live();
                probe.emit(STATE, state);
                probe.emit(STATE_RATIO, state as f64 / model_bytes as f64);
                probe.emit(TEMPORARY_RATIO, (after.requested_peak - rest) as f64 / model_bytes as f64);
                probe.emit(TRAFFIC, 4 * method.moved() * numbers);
                if let Some(times) = method.claimed() {
                    probe.emit(CLAIMED, times * model_bytes);
                }
            }
        }
        probe.compare(UPDATE_ERROR, || Ok(parameters.iter().zip(&start).map(|((_, now), start)| now.detach() - start).collect()))
    }))
}

/// Copies between as many buffers as the step has tensors for each parameter, until as many bytes have moved.
fn copying(parameters: &[Tensor], method: Method) -> Step {
    let numbers: i64 = parameters.iter().map(|parameter| parameter.numel() as i64).sum();
    let options = (Kind::Float, parameters.first().map_or(Device::Cpu, Tensor::device));
    let buffers: Vec<Tensor> = (0..2 + method.kept()).map(|_| Tensor::zeros([numbers], options)).collect();
    let shapes: Vec<Vec<i64>> = parameters.iter().map(Tensor::size).collect();
    Step::new(move |probe| {
        probe.at_rest();
        let (count, moved) = (buffers.len(), method.moved());
        // A copy reads a number and writes one.
        for i in 0..moved as usize / 2 {
            let (from, mut to) = (buffers[i % count].shallow_clone(), buffers[(i + 1) % count].shallow_clone());
            to.f_copy_(&from)?;
        }
        if moved % 2 == 1 {
            let half = |i: usize| buffers[i].narrow(0, 0, numbers / 2);
            half(0).f_copy_(&half(count - 1))?;
        }
        probe.emit(TRAFFIC, 4 * moved * numbers);
        // No parameter moves.
        probe.compare(UPDATE_ERROR, || Ok(shapes.iter().map(|shape| Tensor::zeros(shape, options)).collect()))
    })
}
