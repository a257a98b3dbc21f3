//! Transfer learning: what does it save to train only the last part of a model, and what must be done for that?
//!
//! Guide 3 says that its techniques serve transfer learning and large models as well. A frozen backbone needs no gradients and no
//! optimizer state, and autograd need not keep its activations: unless it is only left out of the optimizer.

use harness::lab::*;
use models::{Block, Model};
use std::collections::HashSet;
use torch::optimizers::{Algorithm, Implementation, Optimizer, ZeroGrad, named_parameters};

const STATE: Metric = Metric::counted("state", "optimizer state", "B");
/// Of all parameters, those that the optimizer moves.
const SHARE: Metric = Metric::counted("trained_share", "share trained", "1").share();

number! { Batch "samples" }
levels! { Part "the part that is trained in any case": Head "the classifier", LastBlock "the last block and the classifier" }
levels! {
    Rest "what is done with the rest of the model":
    Trained "trained as well" => "training everything",
    Frozen "its parameters need no gradient" => "freezing the backbone",
    FrozenNoGrad "frozen, and run under no_grad" => "freezing the backbone under no_grad",
    LeftOut "not given to the optimizer, and nothing else" => "leaving the backbone out of the optimizer",
}

cell! { Transfer { model: ModelName, batch: Batch, part: Part, rest: Rest } }

fn main() -> ExitCode {
    harness::run(protocol())
}

pub fn protocol() -> Protocol {
    use {Part::*, Rest::*};
    let is_frozen = |c: &Transfer| match c.rest {
        Frozen | FrozenNoGrad => true,
        Trained | LeftOut => false,
    };
    let grid = Grid::new("memory and time", training)
        .compare::<Rest>()
        .quick(Transfer::cross("resnet-6x16-bn", 16, Head, Rest::ALL))
        .quick(Transfer::cross("resnet-6x16-bn", 16, LastBlock, Rest::ALL).passes(CHECK | COUNT))
        .quick(Transfer::cross("gpt-6x128", 8, Head, Rest::ALL))
        .quick(Transfer::cross("gpt-6x128", 8, LastBlock, [Trained, Frozen]).passes(CHECK | COUNT))
        .full(Transfer::cross("resnet50", 128, Part::ALL, Rest::ALL))
        .full(Transfer::cross("bert-base", 16, Part::ALL, Rest::ALL))
        .smoke(Transfer::cross("gpt-2x32", 8, Head, [Trained, Frozen]))
        .metrics(&[PEAK, STEP_PEAK, ACTIVATIONS, GRADIENTS, STATE, SHARE])
        // Of the part that is trained in any case; the same kernels on the same numbers.
        .check(|_| equal(1e-5))
        .claim(
            Claim::new(
                "scale",
                "3",
                "transfer learning scales: with a frozen backbone a step needs much less memory and time than full training",
            )
            .rule(ratio(PEAK).of(is_frozen).confirm(at_most(0.60)).refute(at_least(0.90)))
            .rule(ratio(TIME).of(is_frozen).confirm(at_most(0.60)).refute(at_least(0.90))),
        )
        .plot(bars(PEAK).caption("Peak memory of a training step against training the whole model"));
    Protocol::new("transfer_learning", "Transfer learning with a frozen backbone")
        .question(
            "How much memory and time does it save to train only the last part of a model, and does it matter how the rest is frozen?",
        )
        .hypothesis(
            "A frozen backbone costs a forward pass, a third of the step's time, and its parameters: no gradients, no state, no saved \
             activations. Running it under no_grad saves nothing more, because autograd records nothing where nothing needs a gradient. \
             Leaving it out of the optimizer saves the state alone.",
        )
        .grid(grid)
        .shows(Shown::new("Freeze the backbone", "Only the last part is trained").at(Rest::Frozen).memory(PEAK).time(TIME))
        .threat(
            "Frozen layers run as in training: their batch norm still normalises by the batch and dropout still drops, so that gradients \
             can be compared with full training. Who sets them to evaluation saves a little more.",
        )
        .threat("Where the backbone is frozen for good its outputs could be computed once and kept, which saves the forward pass as well.")
        .threat("Adam in PyTorch's default implementation: a loop on the CPU, foreach on a GPU.")
}

fn training(cell: Transfer, bench: &Bench) -> Result<Step> {
    let model = Model::named(cell.model.0, bench.device)?;
    let batch = model.batch(cell.batch.0);
    // Blocks before this one are the backbone.
    let cut = match cell.part {
        Part::Head => model.blocks.len(),
        Part::LastBlock => model.blocks.len() - 1,
    };
    let part = parameters_after(&model, cut)?;
    let (of_part, others): (Vec<_>, Vec<_>) = named_parameters(&model.store).into_iter().partition(|(name, _)| part.contains(name));
    let kept: Vec<Tensor> = of_part.iter().map(|(_, parameter)| parameter.shallow_clone()).collect();
    let trained = match cell.rest {
        Rest::Trained => of_part.into_iter().chain(others).collect(),
        Rest::LeftOut => of_part,
        Rest::Frozen | Rest::FrozenNoGrad => {
            others.into_iter().for_each(|(_, parameter)| drop(parameter.set_requires_grad(false)));
            of_part
        }
    };
    let mut optimizer = Optimizer::over(trained, Algorithm::Adam, 1e-4, Implementation::default_on(bench.device))?;
    Ok(Step::new(move |probe| {
        optimizer.zero_grad(ZeroGrad::ToNone)?;
        probe.at_rest();
        let loss = probe.forward(|| {
            let backbone = || backbone(&model, &batch.inputs, cut);
            let features = if cell.rest == Rest::FrozenNoGrad { no_grad(backbone) } else { backbone() };
            Ok(loss(&model, &features, cut, &batch.targets))
        })?;
        loss.f_backward()?;
        drop(loss);
        if probe.is_reading() {
            let parameters = model.store.trainable_variables();
            probe.emit(GRADIENTS, bytes(&parameters.iter().map(Tensor::grad).collect::<Vec<_>>()));
            let trained = bytes(optimizer.parameters().map(|(_, p)| p));
            probe.emit(SHARE, trained as f64 / bytes(&parameters) as f64);
        }
        optimizer.step()?;
        if probe.is_reading() {
            probe.emit(STATE, optimizer.state_bytes(batch.inputs.device())?);
        }
        probe.compare(GRADIENT_ERROR, || Ok(kept.iter().map(Tensor::grad).collect()))
    }))
}

/// Names of the parameters that get a gradient where everything before block `cut` is cut off.
fn parameters_after(model: &Model, cut: usize) -> Result<HashSet<String>> {
    let batch = model.batch(2);
    let features = no_grad(|| backbone(model, &batch.inputs, cut));
    loss(model, &features, cut, &batch.targets).f_backward()?;
    let mut found = HashSet::new();
    for (name, mut parameter) in named_parameters(&model.store) {
        if parameter.grad().defined() {
            found.insert(name);
            parameter.zero_grad();
        }
    }
    Ok(found)
}

/// The stem and the blocks before `cut`.
fn backbone(model: &Model, inputs: &Tensor, cut: usize) -> Tensor {
    run(&model.blocks[..cut], model.stem.forward(inputs, true))
}

/// The blocks from `cut` on, and the head.
fn loss(model: &Model, features: &Tensor, cut: usize, targets: &Tensor) -> Tensor {
    let x = run(&model.blocks[cut..], features.shallow_clone());
    model.loss(&model.head.forward(&x, true), targets, Reduction::Mean)
}

fn run(blocks: &[Box<dyn Block>], x: Tensor) -> Tensor {
    blocks.iter().fold(x, |x, block| block.forward(&x, true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::lab::testing::*;

    #[test]
    fn the_check_sees_what_is_frozen_too_much_and_other_data() {
        for cell in Transfer::cross(["resnet-2x8-bn", "gpt-2x32"], 4, Part::ALL, Rest::ALL) {
            check(&protocol(), cell).holds();
        }
        let cell = Transfer { model: ModelName("gpt-2x32"), batch: Batch(8), part: Part::LastBlock, rest: Rest::Frozen };
        broken(&protocol(), cell, |bench| training(with(cell, Part::Head), bench)).sees("to compare with");
        broken(&protocol(), cell, |bench| training(with(cell, Batch(7)), bench)).sees("gradient: expected equal");
    }
}
