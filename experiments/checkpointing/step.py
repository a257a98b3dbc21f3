"""Segments that run again in the backward pass, whole or but for what some operators gave, for experiments/checkpointing."""

import functools
import gc
import math

import lab
import presets
import torch
from presets import train
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

aten = torch.ops.aten
PRODUCTS = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default}
ATTENTION = {
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
}


def keeping(share):
    """Contexts of a checkpoint that keeps attention's results and of the products' all (1), every second one (2), or none (0)."""
    counts = {False: 0, True: 0}

    def policy(context, operator, *_, **__):
        counts[context.is_recompute] += operator in PRODUCTS
        is_kept = operator in PRODUCTS and share > 0 and counts[context.is_recompute] % share == 0
        return CheckpointPolicy.MUST_SAVE if is_kept or operator in ATTENTION else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


KEPT = {"attention": 0, "every-second-product": 2, "products": 1}


class Selective:
    def __init__(self, cell, bench):
        self.model, self.batch = presets.prepared(cell, bench.device)
        if cell["keeps"] != "everything":
            options = {"use_reentrant": False}
            if cell["keeps"] != "inputs":
                options["context_fn"] = functools.partial(keeping, KEPT[cell["keeps"]])
            for block in self.model.block:
                block.forward = functools.partial(checkpoint, block.forward, **options)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.flops = None

    def run(self, probe):
        if self.flops is None and not probe.reading:
            with FlopCounterMode(display=False) as counter:
                self.passes(probe)
            self.flops = counter.get_total_flops()
            # Cycles hold what checkpoints made again under the counter, and the optimizer's state has no room beside it.
            gc.collect()
        else:
            self.passes(probe)
        self.optimizer.step()
        probe.figure("flops", "1", self.flops)

    def passes(self, probe):
        self.optimizer.zero_grad()
        probe.at_rest()
        loss = probe.forward(lambda: presets.loss_of(self.model, self.batch))
        loss.backward()
        del loss

    def outcome(self):
        return {"gradient": presets.gradients(self.model)}


SEGMENTS = {"none": 0, "every-block": 1, "every-4": 4, "every-16": 16}


class Training:
    """A model whose blocks are checkpointed in segments; the forward pass under autocast where that is the case."""

    def __init__(self, cell, bench):
        case, policy, batch = cell.get("case"), cell["policy"], cell.get("batch", "32")
        name = f"{cell.get('model', 'mlp')}-{cell.get('depth', 9)}x{cell.get('width', 64)}"
        if case == "dropout":
            with bench.device:
                self.model = train.Gpt2(4, 64, vocabulary=256, positions=64, dropout=0.1)
                self.batch = self.model.batch(4)
        else:
            self.model, self.batch = presets.prepared(lab.Cell(model=name, batch=batch), bench.device)
        blocks = len(self.model.block)
        length = math.ceil(math.sqrt(blocks)) if policy == "sqrt" else SEGMENTS[policy]
        if length:
            self.model.block = train.Segments(self.model.block, length)
        self.half, self.optimizer = case == "autocast", torch.optim.SGD(self.model.parameters(), 1e-2)

    def forward(self):
        with torch.autocast(self.batch[0].device.type, torch.bfloat16, enabled=self.half):
            return presets.loss_of(self.model, self.batch)

    def run(self, probe):
        self.optimizer.zero_grad()
        probe.at_rest()
        loss = probe.forward(self.forward)
        loss.backward()
        del loss
        self.optimizer.step()

    def outcome(self):
        return {"gradient": presets.gradients(self.model)}


def prepare(cell, bench):
    return (Selective if "keeps" in cell else Training)(cell, bench)


if __name__ == "__main__":
    lab.main(prepare)
