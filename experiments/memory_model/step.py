"""A step beside what guide 3's formula says of it, for experiments/memory_model."""

import lab
import presets
import training

# Numbers of state for each parameter.
STATE = {"sgd": 0, "adam": 2, "adamw": 2}


class Counting(training.Trainer):
    def run(self, probe):
        # A step begins by dropping the gradients of the one before.
        gradients, kept = training.size(presets.gradients(self.model)), 0
        before = probe.live() - gradients

        def ended(phase):
            nonlocal kept, before
            if phase == "forward":
                kept = max(kept, probe.live() - before)
            else:
                # Without gradients of micro-batches before it, which are no activations.
                before = probe.live()

        super().run(probe, ended)
        if not probe.reading:
            return
        needed, said = probe.peak(), formula(sum(map(presets.torch.numel, self.model.parameters())), self.cell["optimizer"], kept)
        for metric, bytes in [("activations", kept), ("gradients", gradients), ("formula", said), ("missing", needed - said)]:
            probe.figure(metric, "B", bytes)
        probe.figure("formula_signed", "1", said / needed - 1)
        probe.figure("formula_error", "1", abs(said / needed - 1))
        probe.figure("formula_wrong", "1", wrong_calls(said, needed))


def formula(parameters, optimizer, activations):
    """The guide's formula in bytes, for parameters and optimizer state of four bytes."""
    return 4 * parameters * (1 + STATE[optimizer]) + activations


def wrong_calls(predicted, needed):
    """Share of GPU sizes around the true need for which a prediction says the wrong thing about fitting."""
    cards = [needed * 2 ** (quarters / 4) for quarters in range(-8, 9)]
    return sum((predicted <= card) != (needed <= card) for card in cards) / len(cards)


class Fitting(training.Trainer):
    """A step on a device of limited memory. One that ran out of it is not done again: it left the optimizer's state half made."""

    fits = 1

    def run(self, probe):
        try:
            if self.fits:
                super().run(probe)
        except RuntimeError as error:
            if not lab.is_out_of_memory(error):
                raise
            self.fits = 0
        probe.figure("fits", "1", self.fits)


def prepare(cell, bench):
    return (Fitting if "device-memory" in cell else Counting)(cell, bench)


if __name__ == "__main__":
    lab.main(prepare)
