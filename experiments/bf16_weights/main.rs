//! Parameters, gradients and optimizer state in bfloat16: half of the bytes, and what rounding loses.
//!
//! bfloat16 keeps eight bits of a number, so a parameter stays where it is when its step is less than about a 512th of it. Two ways keep
//! such steps: stochastic rounding (as `torchao.optim` has it) takes the farther neighbour as often as the step is near to it, and Kahan's
//! sum keeps what rounding left out in a second bfloat16 number (Zamirai et al., arXiv 2010.06192).

mod adamw;
mod learning;
mod memory;

use adamw::AdamW;
use harness::lab::*;
use models::{Batch, Model};
use torch::autocast;

levels! {
    How "what parameters are kept in":
    Fp32 "fp32, computed in fp32" => "fp32",
    Autocast "fp32, computed in bfloat16 where autocast does" => "bf16 autocast",
    Bf16 "bfloat16, each step rounded to the nearest" => "bf16 weights",
    Stochastic "bfloat16, each step rounded stochastically" => "bf16 weights, stochastic rounding",
    Kahan "bfloat16, with what rounding left out in another bfloat16" => "bf16 weights, Kahan's sum",
}

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("bf16_weights", "Weights in bfloat16")
        .question(
            "How much memory do parameters, gradients and optimizer state in bfloat16 save against fp32 and against autocast, at which \
             learning rates do steps get lost, and do stochastic rounding and Kahan's sum keep them?",
        )
        .hypothesis(
            "Parameters, gradients and AdamW's state take 8 bytes for each parameter in place of 16, and autocast's copies go. Steps of a \
             512th of a parameter and less are lost to rounding: at small learning rates a model stands still. Stochastic rounding and \
             Kahan's sum learn as fp32 does; the sum takes 2 more bytes for each parameter.",
        )
        .grid(memory::grid())
        .grid(learning::grid())
        .shows(Shown::new("bf16 weights").at(How::Bf16).memory(PEAK))
        .threat("AdamW is written here, one parameter after another, so that its steps differ in rounding alone; its temporaries are of one parameter.")
        .threat("The task that is learned is small, and what is lost there is a matter of rate and steps. A large model's loss curve is not measured.")
        .threat("The state is rounded to the nearest in all of bfloat16's ways, as PyTorch's AdamW does: a second moment that falls slowly stays.")
}

impl How {
    fn kind(self) -> Kind {
        match self {
            How::Fp32 | How::Autocast => Kind::Float,
            How::Bf16 | How::Stochastic | How::Kahan => Kind::BFloat16,
        }
    }
}

/// A model whose parameters are kept so. They are converted in their own order, in which the allocator then has them: a store's order changes
/// from run to run.
fn model(name: &str, how: How, device: Device) -> Result<Model> {
    let model = Model::without_dropout(name, device)?;
    no_grad(|| model.parameters().into_iter().for_each(|mut parameter| parameter.set_data(&parameter.to_kind(how.kind()))));
    Ok(model)
}

/// Mean over a batch, in fp32.
fn loss(how: How, model: &Model, batch: &Batch) -> Result<Tensor> {
    // Token ids stay what they are.
    let inputs = if batch.inputs.is_floating_point() { batch.inputs.to_kind(how.kind()) } else { batch.inputs.shallow_clone() };
    let loss = || model.loss(&model.forward(&inputs, true).to_kind(Kind::Float), &batch.targets, Reduction::Mean);
    Ok(if how == How::Autocast { autocast(inputs.device(), Kind::BFloat16, loss)? } else { loss() })
}

fn gradients(model: &Model) -> Vec<Tensor> {
    model.gradients().iter().map(|gradient| gradient.to_kind(Kind::Float)).collect()
}

fn zero_gradients(model: &Model) {
    model.parameters().iter().for_each(|parameter| parameter.shallow_clone().zero_grad());
}
