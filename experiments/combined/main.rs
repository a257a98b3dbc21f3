//! Techniques together: what mixed precision, checkpointing and accumulation give when they are combined, against what each gives alone.
//!
//! Guide 3 says that mixed precision and checkpointing together save the most. A full factorial design over both, accumulation and the
//! optimizer answers that, and more: what the sum of the single savings would have promised, whether savings multiply or get into one
//! another's way, which combinations are worth their price, and which batch fits a fixed budget, how fast.

mod budget;
mod factorial;

use harness::lab::*;
use models::Settings;
use models::training::{CheckpointPolicy, Configuration, OptimizerKind, Precision, Trainer};
use torch::allow_tf32;

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
number! { Batch "samples of a step" }
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

fn main() -> ExitCode {
    harness::run(protocol())
}

pub fn protocol() -> Protocol {
    Protocol::new("combined", "Techniques combined")
        .question("What do mixed precision, checkpointing and accumulation save together, against what each saves alone, and at what price?")
        .hypothesis(
            "Each works on the activations, so what one has saved the next cannot save again: together they save more than each alone and \
             less than their sum. What is left in the end is parameters, gradients and optimizer state, which none of them touches.",
        )
        .grid(factorial::grid())
        .grid(budget::grid())
        .shows(Shown::new("Autocast, accumulate, checkpoint", "One technique is not enough").at(With::All).memory(PEAK).time(TIME))
        .threat("Dropout is off, so that gradients can be compared across precisions.")
        .threat(
            "Gradients are compared with batch norms that normalise by their running statistics. With a batch's own, micro-batches and \
             rounding change a ResNet's training, which no check here judges.",
        )
        .threat("Each technique has one setting: bf16, the best segments of each model, 4 micro-batches. Others trade otherwise; `vramlab rehearse --what-if` tries more.")
        .threat("Without a device that computes, the price is the number of forward passes, which says nothing of how long each takes.")
}

impl With {
    /// The single techniques that it is made of.
    fn singles(self) -> &'static [With] {
        match self {
            With::Nothing => &[],
            With::Amp => &[With::Amp],
            With::Checkpoint => &[With::Checkpoint],
            With::Accumulate => &[With::Accumulate],
            With::AmpCheckpoint => &[With::Amp, With::Checkpoint],
            With::AmpAccumulate => &[With::Amp, With::Accumulate],
            With::CheckpointAccumulate => &[With::Checkpoint, With::Accumulate],
            With::All => &[With::Amp, With::Checkpoint, With::Accumulate],
        }
    }

    fn uses(self, single: With) -> bool {
        self.singles().contains(&single)
    }

    /// The plain configuration of a model with it.
    fn over(self, plain: &Configuration, model: Net) -> Configuration {
        Configuration {
            precision: if self.uses(With::Amp) { Precision::AmpBf16 } else { Precision::Fp32 },
            checkpoint: if self.uses(With::Checkpoint) { model.segments() } else { CheckpointPolicy::None },
            accumulate: if self.uses(With::Accumulate) { 4 } else { 1 },
            ..plain.clone()
        }
    }
}

impl Net {
    /// The segments with the lowest peak. That of GPT-2 lies in the loss over its vocabulary, where no block is recomputed and each saved
    /// input counts.
    fn segments(self) -> CheckpointPolicy {
        match self {
            Net::Mlp | Net::Gpt2 => CheckpointPolicy::Sqrt,
            Net::SmallGpt | Net::SmallResnet | Net::Resnet50 => CheckpointPolicy::EveryBlock,
        }
    }
}

fn plain(model: Net, batch: Batch, optimizer: OptimizerKind) -> Configuration {
    let settings = Settings { dropout: Some(0.0), ..Settings::default() };
    Configuration { settings, optimizer, ..Configuration::new(model.text(), batch.0) }
}

/// Training steps of a configuration.
fn training(configuration: &Configuration, device: Device) -> Result<Step> {
    allow_tf32(false)?;
    let mut trainer = Trainer::load(configuration, device)?;
    let flops = match configuration.precision {
        Precision::Fp32 => trainer.model().least_training_flops(configuration.batch),
        Precision::AmpBf16 | Precision::AmpFp16 => 0.0,
    };
    // Micro-batches divide a batch: each sample passes once, and once more where blocks are computed again.
    let (samples, forwards) = (configuration.batch, 1 + i64::from(configuration.checkpoint != CheckpointPolicy::None));
    let step = Step::new(move |probe| {
        if probe.is_comparing() {
            // With a batch's own statistics, ResNet-50's gradient at its random start is another one in bf16, or from a quarter of the
            // batch: 1.3 and 1.2 times its own norm away with 4 samples, which nothing could be told by.
            trainer.eval();
        }
        trainer.iterate(&mut |_, _| Ok(()))?;
        probe.emit(FORWARDS, forwards);
        probe.compare(GRADIENT_ERROR, || Ok(trainer.model().gradients().iter().map(Tensor::detach).collect()))
    });
    Ok(step.items(samples).least_flops(flops))
}
