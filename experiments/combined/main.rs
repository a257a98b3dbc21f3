//! Techniques together: what mixed precision, checkpointing and accumulation give when they are combined, against what each gives alone.
//!
//! Guide 3 says that mixed precision and checkpointing together save the most. A full factorial design over both, accumulation and the
//! optimizer answers that, and more: what the sum of the single savings would have promised, whether savings multiply or get into one
//! another's way, which combinations are worth their price, and which batch fits a fixed budget, how fast. PyTorch in Python runs every cell
//! (`experiments/combined/step.py`).

mod factorial;

use harness::lab::*;
/// Micro-batches, each as often as it is computed.
const FORWARDS: Metric = Metric::counted("forwards", "forward passes of each sample", "1");

levels! {
    Net as "model" "model":
    Mlp as "mlp-4x32" "",
    SmallGpt as "gpt-4x128" "",
    Gpt2 as "gpt2" "",
    SmallResnet as "resnet-9x16-gn" "",
    Resnet50 as "resnet50" "",
}
levels! { Optimizer "optimizer, with PyTorch's defaults": Sgd "", Adamw "" }
levels! {
    With "what is done about memory":
    Nothing as "none" "",
    Amp "autocast to bfloat16" => "autocast",
    Checkpoint "segments that are best for the model: every block, or sqrt(blocks) blocks of an MLP and GPT-2" => "checkpointing",
    Accumulate "4 micro-batches of a quarter of the samples" => "accumulation",
    AmpCheckpoint as "amp+checkpoint" "",
    AmpAccumulate as "amp+accumulate" "",
    CheckpointAccumulate as "checkpoint+accumulate" "",
    All as "amp+checkpoint+accumulate" "",
}

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("combined", "Techniques combined")
        .question("What do mixed precision, checkpointing and accumulation save together, against what each saves alone, and at what price?")
        .hypothesis(
            "Each works on the activations, so what one has saved the next cannot save again: together they save more than each alone and \
             less than their sum. What is left in the end is parameters, gradients and optimizer state, which none of them touches.",
        )
        .grid(factorial::grid())
        .grid(factorial::budget())
        .shows(Shown::new("Autocast, accumulate, checkpoint").at(With::All).memory(PEAK).time(TIME))
        .threat("Dropout is off, so that gradients can be compared across precisions.")
        .threat(
            "Gradients are compared with batch norms that normalise by their running statistics. With a batch's own, micro-batches and \
             rounding change a ResNet's training, which no check here judges.",
        )
        .threat("Each technique has one setting: bf16, the best segments of each model, 4 micro-batches. Others trade otherwise; `vramlab rehearse --what-if` tries more.")
        .threat("Without a device that computes, the price is the number of forward passes, which says nothing of how long each takes.")
}

impl With {
    fn uses(self, single: &str) -> bool {
        self.text().split('+').any(|used| used == single)
    }
}
