"""The rows of fine_tuning.csv run again: Mistral 7B fine-tuned whole in fp16, or in 4 bits with LoRA, as fms-acceleration's benchmark does (README.md
names it). Needs transformers.
"""

import csv
import functools
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

DEVICE, GPU = "cuda", "NVIDIA A100-SXM4-80GB"
RANK = 16


def rows():
    with open(Path(__file__).with_name("fine_tuning.csv"), newline="") as file:
        return list(csv.DictReader(file))


class FourBits(nn.Module):
    """A linear layer as bitsandbytes keeps it in nf4 with constants that are quantised, too; `adapted` has LoRA beside it."""

    def __init__(self, layer, adapted):
        super().__init__()
        self.shape, make = layer.weight.shape, functools.partial(torch.empty, device=DEVICE)
        count = layer.weight.numel()
        bytes = functools.partial(make, dtype=torch.uint8)
        # Codes, a constant for each 64, one for each 256 of those, the two tables and the constants' mean.
        self.quantised = [bytes(count // 2), bytes(count // 64), make(count // 64 // 256), make(16), make(256), make(())]
        if adapted:
            self.a, self.b = (nn.Parameter(make(shape)) for shape in [(RANK, self.shape[1]), (self.shape[0], RANK)])
        self.adapted = adapted

    def forward(self, x):
        y = F.linear(x, torch.empty(self.shape, dtype=torch.float16, device=DEVICE))
        return y + F.linear(F.linear(F.dropout(x, 0.1), self.a), self.b) if self.adapted else y


def model_of(weights):
    from transformers import MistralConfig, MistralForCausalLM

    # Its defaults are Mistral 7B.
    configuration = MistralConfig(use_cache=False)
    with torch.device(DEVICE if weights == "fp16" else "meta"):
        model = MistralForCausalLM._from_config(configuration, dtype=torch.float16)
    if weights == "nf4":
        model.requires_grad_(False)
        for name, layer in list(model.model.named_modules()):
            if isinstance(layer, nn.Linear):
                model.model.set_submodule(name, FourBits(layer, "self_attn" in name))
        for module in model.modules():
            for kept in (module._parameters, module._buffers):
                for name, tensor in kept.items():
                    if tensor is not None and tensor.is_meta:
                        new = torch.empty_like(tensor, device=DEVICE)
                        kept[name] = nn.Parameter(new, False) if isinstance(tensor, nn.Parameter) else new
        model.enable_input_require_grads()
    model.gradient_checkpointing_enable()
    return model.train()


def memory(row):
    """Bytes that stay after steps, and most of them in a step."""
    model = model_of(row["weights"])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, 2e-5)
    batch, tokens = int(row["batch"]), int(row["tokens"])
    shape = (1, batch * tokens) if row["texts"] == "padding-free" else (batch, tokens)
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):
            ids = torch.randint(0, model.config.vocab_size, shape).to(DEVICE)
            with torch.autocast(DEVICE, torch.float16, enabled=row["weights"] == "nf4"):
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            del ids, loss
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
