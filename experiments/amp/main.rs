//! Automatic mixed precision: the forward pass computes in half precision where that is safe, parameters stay fp32.
//!
//! Guide 3 promises nearly half of the memory and much more speed from tensor cores, guide 4 half of the forward pass's memory with
//! weights and gradients in fp32, and both that a `GradScaler` keeps fp16 from losing gradients that are too small or too large.
//! Memory is asked of real models, speed from steps that only launch kernels to steps that only compute, and the scaler of a
//! small task that is really learned.

mod bandwidth;
mod learning;
mod memory;
mod scaler;
mod time;

use harness::lab::*;
use torch::{allow_tf32, autocast};

/// Mean over samples that were not trained on, computed in fp32.
const LOSS: Metric = Metric::counted("loss", "loss after training", "1");
const SKIPPED: Metric = Metric::counted("skipped", "steps skipped", "1");
const LOWEST: Metric = Metric::counted("lowest_scale", "lowest scale", "1");
const LAST: Metric = Metric::counted("last_scale", "last scale", "1");
const RUINED: Metric = Metric::counted("ruined", "parameters not finite", "1");

levels! {
    Computed as "precision" "in what the forward pass computes":
    Fp32 "",
    Tf32 "fp32 whose products are rounded to TF32 on tensor cores",
    AmpBf16 as "amp-bf16" "autocast to bfloat16" => "bf16 autocast",
    AmpFp16 as "amp-fp16" "autocast to fp16, with a GradScaler" => "fp16 autocast",
}

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("amp", "Mixed precision (autocast)")
        // Of before are rows of an H200: other models, and without the loop that guides write.
        .revision(2)
        .question(
            "How much memory does autocast save, how much faster does it compute and where, does it learn as fp32 does, and what does the \
             GradScaler protect from?",
        )
        .hypothesis(
            "Activations of matrix products halve; what autocast keeps in fp32 (norms, softmax, the loss), parameters, gradients and \
             optimizer state do not, and copies of the parameters in half precision come on top: the whole peak falls by less than half. \
             Tensor cores make compute-bound steps much faster and overhead-bound ones slower, by the casts. bf16 has fp32's range and needs \
             no scaler; fp16 loses small gradients without one.",
        )
        .grid(memory::grid())
        .grid(bandwidth::grid())
        .grid(time::grid())
        .grid(time::recipe())
        .grid(learning::grid())
        .grid(scaler::grid())
        .shows(Shown::new("bf16 autocast").at(Computed::AmpBf16).memory(PEAK).time(TIME))
        .threat(
            "Gradients are compared with batch norms that normalise by their running statistics: with a batch's own, ResNet-50's at its random \
             start is another one in bf16.",
        )
        .threat(
            "Where steps are timed, fp32 is PyTorch's default: cuDNN's convolutions may round to TF32, products may not. In all other \
             cells of the lab TF32 is off, so that gradients can be compared.",
        )
        .threat("Dropout is off, so that two configurations differ in precision alone; a mask costs each precision the same byte per element.")
        .threat("A CPU has no tensor cores, and most have no fast fp16: its times are informational, and fp16 is not timed.")
        .threat("The task that is learned is small (32 features, 10 classes). What diverges in large models, diverges there in other ways.")
        .threat(
            "The scaler's cases are made: a converged model, a batch that overflows, a start too high. How often training meets them is not \
             measured here.",
        )
        .threat("Quick's sizes fit a CPU's time, so the share of activations there is not that of a large model.")
}

impl Computed {
    fn is_half(self) -> bool {
        match self {
            Computed::Fp32 | Computed::Tf32 => false,
            Computed::AmpBf16 | Computed::AmpFp16 => true,
        }
    }

    /// What autocast casts to, `Float` where there is none, after the process was set to it: convolutions may use TF32, as PyTorch's default is.
    fn set(self) -> Result<Kind> {
        allow_tf32(self == Computed::Tf32, true)?;
        Ok(match self {
            Computed::Fp32 | Computed::Tf32 => Kind::Float,
            Computed::AmpBf16 => Kind::BFloat16,
            Computed::AmpFp16 => Kind::Half,
        })
    }
}

/// What a gradient in half precision may be apart from fp32's: bf16 keeps eight bits of each product, and of these models it makes 0.5 to 3 %.
fn rounded() -> Relation {
    equal(5e-2)
}
