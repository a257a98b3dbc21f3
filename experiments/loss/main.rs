//! The loss over a large vocabulary: logits and what cross-entropy makes of them, whole, in chunks, or never whole.
//!
//! A language model's logits have a number for each token and each word of the vocabulary, and cross-entropy makes three more tensors of
//! that size in fp32. Chunking over tokens (torchtune) and a fused head (Liger-Kernel, Cut Your Losses: Wijmans et al., arXiv 2411.09009)
//! give the same value and gradient without them.

mod gpt2;
mod head;

use harness::lab::*;
use models::{Block, IGNORED, Model};
use torch::{Checkpoint, autocast};

/// Chunks of a chunked loss: as many as torchtune's `CEWithChunkedOutputLoss` makes by default.
const CHUNKS: u64 = 8;
/// Tokens of a fused head's chunk at least.
const LEAST: u64 = 256;
const LEAST_WAS_SET: &str = "23 November 2026: a fused head's chunk has 256 tokens at least. Chunks by Liger-Kernel's rule alone were seen to be \
                             too slow on a CPU; bytes of the simulated GPU had been seen, too.";

number! { Tokens "tokens of a step" }
levels! {
    How "how the loss is computed":
    Plain "whole logits, cast to fp32 for cross-entropy, as autocast and most libraries do" => "plain loss",
    NoUpcast "whole logits, cross-entropy in their own type",
    Chunked "whole logits, cross-entropy of an eighth of the tokens at a time, recomputed in the backward pass" => "chunked loss",
    Fused "head and cross-entropy of some tokens at a time, both recomputed in the backward pass: the logits are never whole" => "fused head and loss",
}

fn main() -> ExitCode {
    harness::run(protocol())
}

pub fn protocol() -> Protocol {
    Protocol::new("loss", "Chunked and fused loss")
        .question(
            "How much memory do the logits and their loss need with vocabularies of 32,000 to 256,000, how much of it do chunks and a fused \
             head save, and what do they cost in time?",
        )
        .hypothesis(
            "With logits in bf16 a plain loss needs 12 to 14 bytes for each logit: the logits, and fp32 tensors for log-softmax, its \
             gradient and the cast. In eight chunks only the bf16 logits are whole. A fused head keeps no logits, so what is left is the \
             gradient of the head's weights, whatever the number of tokens. The price is the head's product once more: a third of the \
             head's own time at most.",
        )
        .grid(head::grid())
        .grid(gpt2::grid())
        .shows(Shown::new("Fused head and loss", "Language models with a large vocabulary").at(How::Fused).memory(PEAK).time(TIME))
        .shows(Shown::new("Chunked loss", "Language models with a large vocabulary").at(How::Chunked).memory(PEAK).time(TIME))
        .threat("Chunks are recomputed by checkpointing. Liger-Kernel and Cut Your Losses compute gradients in the forward pass or in one kernel, and are faster.")
        .threat("Targets are random, and the loss is that of a model at its start. Bytes and time do not depend on it.")
        .threat("The time of a CPU, whose products take a larger share of the step than on a GPU: the head's second product weighs more here.")
}

impl How {
    /// Tokens of a chunk. A fused head's are as many as give logits of the size of the hidden states, rounded up to a power of two: the rule
    /// of Liger-Kernel's `fused_linear_cross_entropy`. With fewer than [`LEAST`] each product would only read the head's weights.
    fn chunk(self, tokens: i64, width: i64, vocabulary: i64) -> i64 {
        let [all, width, vocabulary] = [tokens, width, vocabulary].map(i64::unsigned_abs);
        let chunk = match self {
            How::Plain | How::NoUpcast => return tokens,
            How::Chunked => all.div_ceil(CHUNKS),
            How::Fused => all.div_ceil(vocabulary.div_ceil(width)).next_power_of_two().max(LEAST),
        };
        chunk as i64
    }
}

/// Mean cross-entropy of hidden states `[1, tokens, width]`, whose logits `head` gives, against targets `[tokens]`.
fn loss(how: How, head: &dyn Block, hidden: &Tensor, targets: &Tensor, chunk: i64) -> Result<Tensor> {
    let tokens = targets.size()[0];
    let parts = hidden.split(chunk, 1).into_iter().zip(targets.split(chunk, 0));
    let sums: Result<Vec<Tensor>> = match how {
        How::Plain => return Ok(entropy(&head.forward(hidden, true), targets) / tokens as f64),
        How::NoUpcast => {
            let logits = head.forward(hidden, true);
            return Ok(logits.cross_entropy_loss::<Tensor>(targets, None, Reduction::Mean, IGNORED, 0.0));
        }
        How::Chunked => {
            let logits: Vec<(Tensor, Tensor)> = parts.map(|(hidden, targets)| (head.forward(&hidden, true), targets)).collect();
            logits.into_iter().map(|(logits, targets)| recomputed(logits, targets, |logits| logits.shallow_clone())).collect()
        }
        How::Fused => parts
            .map(|(hidden, targets)| {
                let head = head.share();
                recomputed(hidden, targets, move |hidden| head.forward(hidden, true))
            })
            .collect(),
    };
    Ok(Tensor::stack(&sums?, 0).sum(Kind::Float) / tokens as f64)
}

/// Sum over tokens, in fp32.
fn entropy(logits: &Tensor, targets: &Tensor) -> Tensor {
    logits.to_kind(Kind::Float).cross_entropy_loss::<Tensor>(targets, None, Reduction::Sum, IGNORED, 0.0)
}

fn recomputed(x: Tensor, targets: Tensor, logits: impl Fn(&Tensor) -> Tensor + Send + 'static) -> Result<Tensor> {
    let segment = move |x: &[Tensor]| Ok(vec![entropy(&logits(&x[0]), &x[1])]);
    Ok(Checkpoint { preserve_random: false }.run(&[&x, &targets], segment)?.remove(0))
}
