"""Techniques together, for experiments/combined."""

import lab
import training

# The segments with the lowest peak; of other models every block. GPT-2's peak lies in the loss over its vocabulary, where no block is recomputed and
# each saved input counts.
SEGMENTS = {"mlp-4x32": "sqrt", "gpt2": "sqrt"}


class Combined(training.Trainer):
    def __init__(self, cell, bench):
        used = cell["with"].split("+")
        segments = cell.get("checkpoint", SEGMENTS.get(cell["model"], "every-block"))
        levels = {
            "optimizer": cell.get("optimizer", "adamw"),
            "precision": "amp-bf16" if "amp" in used else "fp32",
            "checkpoint": segments if "checkpoint" in used else "none",
            "accumulate": "4" if "accumulate" in used else "1",
        }
        super().__init__(lab.Cell(cell | levels), bench, drops=False)
        # Micro-batches divide a batch: each sample passes once, and once more where blocks are computed again.
        self.items, self.forwards = cell.number("batch"), 1 + ("checkpoint" in used)

    def run(self, probe):
        super().run(probe)
        probe.figure("forwards", "1", self.forwards)


if __name__ == "__main__":
    lab.main(Combined)
