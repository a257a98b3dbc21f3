"""The rows of peft_methods.csv run again: PEFT's methods on Llama 3.2 3B, one training step after another, written anew after PEFT's own comparison
(README.md names it). Needs transformers and peft.
"""

import csv
import json
from pathlib import Path

import torch

DEVICE, GPU = "cuda", "NVIDIA L40S"
BATCH = 4
# Batches come in buckets of 20, longest first. The mean of the lengths was found from the row of LoRA with rank 32, as the one that gives its
# bytes; that they are evenly spread is assumed.
MEAN, STEPS = 219, 20
LLAMA = dict(
    vocab_size=128256, hidden_size=3072, intermediate_size=8192, num_hidden_layers=28, num_attention_heads=24, num_key_value_heads=8, head_dim=128,
    max_position_embeddings=131072, tie_word_embeddings=True, bos_token_id=128000, eos_token_id=128001, pad_token_id=128001, rms_norm_eps=1e-5,
    rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                         original_max_position_embeddings=8192),
)  # fmt: skip


def rows():
    with open(Path(__file__).with_name("peft_methods.csv"), newline="") as file:
        return {row["method"]: row for row in csv.DictReader(file)}


def model_of(configuration):
    from peft import PEFT_TYPE_TO_CONFIG_MAPPING, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device(DEVICE):
        model = LlamaForCausalLM._from_config(LlamaConfig(**LLAMA), dtype=torch.bfloat16)
    if not configuration:
        return model
    kind = configuration.pop("peft_type")
    return get_peft_model(model, PEFT_TYPE_TO_CONFIG_MAPPING[kind](base_model_name_or_path="", **configuration), autocast_adapter_dtype=True)


def allocated(row):
    """Bytes allocated at the ends of the steps of a bucket, on average, counted as there: less what was reserved before the model."""
    torch.nn.Linear(1, 1).to(DEVICE)
    before = torch.cuda.max_memory_reserved()
    model = model_of(json.loads(row["configuration"]))
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if trainable != int(row["trainable"]):
        raise ValueError(f"{row['method']} trains {trainable} parameters here and {row['trainable']} there")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
    model.train()
    found = []
    for step in range(1, STEPS + 1):
        length = round(MEAN * (1.5 - (step - 0.5) / STEPS))
        ids = torch.randint(0, LLAMA["vocab_size"], (BATCH, length))
        mask = torch.ones_like(ids)
        # All but the longest are padded.
        mask[1:, -1] = 0
        tokens = int(mask.sum())
        batch = {"input_ids": ids.to(DEVICE), "attention_mask": mask.to(DEVICE)}
        batch["labels"] = batch["input_ids"].clone()
        optimizer.zero_grad()
        outputs = model(**batch, num_items_in_batch=tokens)
        loss = outputs.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if hasattr(getattr(model, "base_model", None), "update_and_allocate"):
            # AdaLoRA weighs its parameters.
            model.base_model.update_and_allocate(step)
        found.append(torch.cuda.memory_allocated() - before)
        if step % 10 == 0:
            torch.cuda.empty_cache()
    return round(sum(found) / len(found))
