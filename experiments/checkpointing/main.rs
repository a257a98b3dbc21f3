//! Activation checkpointing: keep a segment's input only, and compute the rest again when the backward pass needs it.
//!
//! Guides 3 and 4 promise activation memory for compute. With segments of sqrt(n) blocks the need should grow with the square root
//! of the depth (Chen et al., arXiv 1604.06174), for at most one more forward pass. What a block keeps can be chosen by operator, too. PyTorch in Python
//! runs every cell (`experiments/checkpointing/step.py`).

mod depth;
mod selective;

use harness::lab::*;

number! { Depth "blocks" }
levels! {
    Policy "what is checkpointed":
    Nothing as "none" "nothing" => "no checkpointing",
    EveryBlock "each block is a segment" => "checkpointing every block",
    Sqrt "segments of sqrt(depth) blocks, rounded up" => "checkpointing sqrt(n) segments",
    Every4 as "every-4" "segments of 4 blocks" => "checkpointing every 4 blocks",
    Every16 as "every-16" "segments of 16 blocks" => "checkpointing every 16 blocks",
}
levels! {
    Case "what the recomputation must get right":
    Dropout "random numbers: a GPT with dropout 0.1",
    Autocast "the autocast state: forward under bf16, backward outside",
}

cell! { Difficult { case: Case, policy: Policy, by: By } }

harness::main!(protocol);

pub fn protocol() -> Protocol {
    Protocol::new("checkpointing", "Activation checkpointing")
        .question(
            "How much activation memory does recomputation save, how does the saving grow with depth, what does it cost, and which operators' results \
             are worth keeping?",
        )
        .hypothesis(
            "Without checkpointing a step's memory grows linearly with depth; with segments of sqrt(n) blocks as its square root. The time \
             grows by one forward pass at most, about a third of the step. A product costs FLOPs by its width and saves bytes by its result, so that \
             keeping products leaves the cheap operators to run again: most of the FLOPs of a checkpoint for less of its bytes.",
        )
        .grid(depth::grid())
        .grid(depth::budget())
        .grid(same_gradients())
        .grid(selective::memory())
        .grid(selective::same_gradients())
        .shows(Shown::new("Checkpoint every block").at(Policy::EveryBlock).memory(PEAK).time(TIME))
        .shows(
            Shown::new("Checkpoints that keep every second product")
                .at(selective::Keeps::EverySecondProduct)
                .memory(PEAK),
        )
        .threat("Blocks are equal; a model whose blocks differ wants its segments chosen by bytes, not by number.")
        .threat("The last segment is checkpointed like the others; leaving it out would save its recomputation.")
        .threat("Llama trains in bfloat16 without a copy in fp32, with AdamW's state in bfloat16, so that it fits 24 GiB.")
        .threat("FLOPs are those of matrix products, convolutions and attention, as PyTorch's counter has them; what else runs again costs bandwidth, not FLOPs.")
}

fn same_gradients() -> Grid<Difficult> {
    Grid::new("the same gradients?", in_python)
        .compare::<Policy>()
        .quick_and_full(Difficult::cross(Case::ALL, [Policy::Nothing, Policy::EveryBlock, Policy::Sqrt], By::Pytorch))
        .smoke(Difficult::cross(Case::Dropout, [Policy::Nothing, Policy::EveryBlock], By::Pytorch))
        .passes(CHECK)
        .on(EVERYWHERE)
        .check(|_| equal(1e-6))
        .no_plots()
}

python_test! {
    /// A segment keeps its input, of 256 x 32, and the CPU's random state. The first segment's input is the batch, which was there before. Then the cells' own
    /// checks, and with blocks that give something else when they run again.
    a_segment_keeps_its_input_and_the_check_sees_a_block_that_gives_something_else_the_second_time: "checkpointing", r#"
kept = {policy: memory(checkpointing.prepare, f"model=mlp width=32 batch=256 depth=16 policy={policy} by=pytorch")["activations"]
        for policy in ("every-16", "every-4", "sqrt", "every-block")}
segment = 4 * 256 * 32 + 5056
print(kept["sqrt"] - kept["every-16"] == 3 * segment, kept["every-block"] - kept["sqrt"] == 12 * segment, kept["every-4"] == kept["sqrt"])

def checks():
    of = "model=small-gpt batch=2 by=pytorch keeps="
    policies = ["products", "every-second-product", "attention", "inputs"]
    print(*(check(checkpointing.prepare, of + keeps, of + "everything") for keeps in policies))
    of = "case={} by=pytorch policy={}"
    cases = [(case, policy) for case in ("dropout", "autocast") for policy in ("every-block", "sqrt")]
    print(*(check(checkpointing.prepare, of.format(*cell), of.format(cell[0], "none"), 1e-6) for cell in cases))

checks()
presets = checkpointing.presets
again = lambda: torch._C._current_graph_task_id() != -1
for block in (presets.train.PreNorm, presets.models.Layer):
    forward = block.forward
    block.forward = lambda self, x, forward=forward: forward(self, x * 1.1 if again() else x)
checks()
"#, "True True True\nok ok ok ok\nok ok ok ok\ninvalid invalid invalid invalid\ninvalid invalid invalid invalid\n"
}
