//! Figures that others published of what a training step's memory is made of: does this lab count the same?
//!
//! Three sources give bytes that can be counted on any device with PyTorch's kernels for CUDA, a dry one included: what a transformer
//! layer saves for the backward pass (Korthikanti et al., arXiv 2205.05198), what accumulation, checkpointing and fp16 leave of BERT-large's memory (Hugging Face's guide to
//! training on one GPU), and what the loss over a large vocabulary takes (Wijmans et al., arXiv 2411.09009); and recipes of others. PyTorch in
//! Python runs every cell (`experiments/published/step.py`). Published figures that other experiments are about stand with those.

mod layer;
mod loss;
mod recipes;
mod table;

use harness::lab::*;

number! { Vocabulary "tokens that there are" }
number! { Width "features of a token" }
number! { Tokens "tokens of a step" }

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("published", "Published memory figures")
        .question("Do formulas and tables that others published for the memory of a training step come out here, too?")
        .hypothesis(
            "A layer with explicit attention saves what the formula says, because the formula counts the tensors that autograd saves; \
             today's fused attention saves far less. Parameters, gradients and Adam's state are arithmetic. Ratios of a whole table depend \
             on what a driver shows beside PyTorch's own memory, and come out roughly.",
        )
        .grid(layer::grid())
        .grid(table::grid())
        .grid(loss::grid())
        .grid(recipes::in_backward())
        .grid(recipes::few_bits())
        .grid(recipes::tiled_loss())
        .grid(recipes::low_rank())
        .grid(recipes::cut_loss())
        .grid(recipes::offload())
        .grid(recipes::tuning())
        .kind(SubjectKind::Published)
        .threat(
            "Sources name neither every setting nor the version of every kernel; within a tenth of a figure says that it travels, not that \
             it is the same.",
        )
        .threat(
            "On the CPU dropout keeps masks of the values' own type, so there the formula is not about the same tensors.",
        )
}
