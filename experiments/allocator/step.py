"""Training on sequences of varying length, with and without a pass over the longest batch before it, for experiments/allocator."""

import random

import lab
import presets
import torch


class Run:
    def __init__(self, cell, bench):
        self.model, (self.inputs, self.targets) = presets.prepared(cell, bench.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)
        self.longest = self.inputs.shape[1]
        pick = random.Random(bench.seed)
        self.lengths = [pick.randint(self.longest // 8, self.longest) for _ in range(cell.number("steps"))]
        self.first, self.on_gpu = cell["first-pass"], bench.device.type == "cuda"

    def gradients(self, length):
        targets = self.targets[:, :length] if self.targets.dim() > 1 else self.targets
        presets.loss_of(self.model, (self.inputs[:, :length], targets)).backward()

    def train(self, length):
        self.optimizer.zero_grad()
        self.gradients(length)
        self.optimizer.step()

    def pass_first(self):
        self.gradients(self.longest)
        self.optimizer.zero_grad()

    def calls(self):
        return torch.cuda.memory_stats()["num_device_alloc"] if self.on_gpu else 0

    def run(self, probe):
        self.optimizer.zero_grad()
        if self.on_gpu:
            # As a process that begins: what was kept of the run before is given back.
            torch.cuda.empty_cache()
            probe.reset_peaks()
        refused = 0
        if self.first == "longest":
            refused += self.fails(self.pass_first)
        before = self.calls()
        refused += sum(self.fails(self.train, length) for length in self.lengths)
        probe.figure("device_allocations", "1", self.calls() - before)
        probe.figure("refused", "1", refused / len(self.lengths))

    @staticmethod
    def fails(step, *arguments):
        try:
            step(*arguments)
        except RuntimeError as error:
            if not lab.is_out_of_memory(error):
                raise
            return True
        return False


def prepare(cell, bench):
    return Run(cell, bench)


if __name__ == "__main__":
    lab.main(prepare)
