//! The loss over a large vocabulary: logits and what cross-entropy makes of them, whole, in chunks, or never whole.
//!
//! A language model's logits have a number for each token and each word of the vocabulary, and cross-entropy makes three more tensors of
//! that size in fp32. Chunking over tokens (torchtune) and a fused head (Liger-Kernel, Cut Your Losses: Wijmans et al., arXiv 2411.09009)
//! give the same value and gradient without them. PyTorch in Python runs every cell (`experiments/loss/step.py`).

mod gpt2;
mod head;

use harness::lab::*;

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

harness::main!(protocol);

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
        .shows(Shown::new("Fused head and loss").at(How::Fused).memory(PEAK).time(TIME))
        .shows(Shown::new("Chunked loss").at(How::Chunked).memory(PEAK).time(TIME))
        .threat("Chunks are recomputed by checkpointing. Liger-Kernel and Cut Your Losses compute gradients in the forward pass or in one kernel, and are faster.")
        .threat("Targets are random, and the loss is that of a model at its start. Bytes and time do not depend on it.")
        .threat("The time of a CPU, whose products take a larger share of the step than on a GPU: the head's second product weighs more here.")
}

python_test! {
    /// The cells' own checks: 601 tokens are no multiple of a chunk's, so that the last is shorter. A plain loss keeps log-softmax's output, a chunked one
    /// the logits themselves, a fused one neither. Then with means of chunks in the place of sums.
    every_loss_is_the_plain_one_and_the_check_sees_a_mean_of_means: "loss", r#"
def checks():
    for dtype, tolerance in [("fp32", 1e-5), ("bf16", 2e-2)]:
        of = f"width=16 vocabulary=1000 tokens=601 dtype={dtype} by=pytorch how="
        print(*(check(loss.prepare, of + how, of + "plain", tolerance) for how in ("no-upcast", "chunked", "fused")))
    of = "model=gpt-2x32 batch=8 by=pytorch how="
    print(*(check(loss.prepare, of + how, of + "plain", 5e-2) for how in ("chunked", "fused")))

checks()
of = "width=16 vocabulary=1000 tokens=601 dtype=fp32 by=pytorch how="
print(*(round(memory(loss.prepare, of + how)["activations"] / (4 * 601 * 1000), 1) for how in ("plain", "chunked", "fused")))
loss.entropy = lambda logits, targets: torch.nn.functional.cross_entropy(logits.float(), targets)
checks()
"#, "ok ok ok\nok ok ok\nok ok\n1.0 1.0 0.0\ninvalid invalid invalid\ninvalid invalid invalid\ninvalid invalid\n"
}
