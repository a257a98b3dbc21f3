//! Transfer learning: what does it save to train only the last part of a model, and what must be done for that?
//!
//! Guide 3 says that its techniques serve transfer learning and large models as well. A frozen backbone needs no gradients and no
//! optimizer state, and autograd need not keep its activations: unless it is only left out of the optimizer. PyTorch in Python runs every
//! cell (`experiments/transfer_learning/step.py`).

use harness::lab::*;

const STATE: Metric = Metric::counted("state", "optimizer state", "B");
/// Of all parameters, those that the optimizer moves.
const SHARE: Metric = Metric::counted("trained_share", "share trained", "1").share();

levels! { Part "the part that is trained in any case": Head "the classifier", LastBlock "the last block and the classifier" }
levels! {
    Rest "what is done with the rest of the model":
    Trained "trained as well" => "training everything",
    Frozen "its parameters need no gradient" => "freezing the backbone",
    FrozenNoGrad "frozen, and run under no_grad" => "freezing the backbone under no_grad",
    LeftOut "not given to the optimizer, and nothing else" => "leaving the backbone out of the optimizer",
}

cell! { Transfer { model: ModelName, batch: Batch, part: Part, rest: Rest, by: By } }

harness::main!(protocol);

pub fn protocol() -> Protocol {
    use {Part::*, Rest::*};
    let is_frozen = |c: &Transfer| match c.rest {
        Frozen | FrozenNoGrad => true,
        Trained | LeftOut => false,
    };
    let grid = Grid::new("memory and time", in_python)
        .compare::<Rest>()
        .quick(Transfer::cross("resnet-6x16-bn", 16, Head, Rest::ALL, By::Pytorch))
        .quick(Transfer::cross("resnet-6x16-bn", 16, LastBlock, Rest::ALL, By::Pytorch).passes(CHECK | COUNT))
        .quick(Transfer::cross("gpt-6x128", 8, Head, Rest::ALL, By::Pytorch))
        .quick(Transfer::cross("gpt-6x128", 8, LastBlock, [Trained, Frozen], By::Pytorch).passes(CHECK | COUNT))
        .full(Transfer::cross("resnet50", 128, Part::ALL, Rest::ALL, By::Pytorch))
        .full(Transfer::cross("bert-base", 16, Part::ALL, Rest::ALL, By::Pytorch))
        .smoke(Transfer::cross("gpt-2x32", 8, Head, [Trained, Frozen], By::Pytorch))
        .on(EVERYWHERE)
        .metrics(&[PEAK, STEP_PEAK, ACTIVATIONS, GRADIENTS, STATE, SHARE])
        // Of the part that is trained in any case; the same kernels on the same numbers.
        .check(|_| equal(1e-5))
        .claim(
            // Guide 3 proposes to try it, and says nothing of what comes of it.
            Claim::ours(
                "scale",
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
        .shows(Shown::new("Freeze the backbone").at(Rest::Frozen).memory(PEAK).time(TIME))
        .threat(
            "Frozen layers run as in training: their batch norm still normalises by the batch and dropout still drops, so that gradients \
             can be compared with full training. Who sets them to evaluation saves a little more.",
        )
        .threat("Where the backbone is frozen for good its outputs could be computed once and kept, which saves the forward pass as well.")
        .threat("Adam in PyTorch's default implementation: a loop on the CPU, foreach on a GPU.")
}

python_test! {
    /// The cells' own checks; then what is frozen too much, and other data.
    the_check_sees_what_is_frozen_too_much_and_other_data: "transfer_learning", r#"
def of(model="gpt-2x32", batch=4, part="last-block", rest="trained"):
    return f"model={model} batch={batch} part={part} rest={rest} by=pytorch"

def checked(cell, baseline):
    try:
        return check(transfer_learning.Transfer, cell, baseline, 1e-5)
    except ValueError as error:
        return error

for model in ("resnet-2x8-bn", "gpt-2x32"):
    for part in ("head", "last-block"):
        print(*(checked(of(model, 4, part, rest), of(model, 4, part)) for rest in ("frozen", "frozen-no-grad", "left-out")))
print(checked(of(part="head", rest="frozen"), of()))
print(checked(of(batch=3, rest="frozen"), of()))
"#, &("ok ok ok\n".repeat(4) + "4 tensors to compare with 16\ninvalid\n")
}
