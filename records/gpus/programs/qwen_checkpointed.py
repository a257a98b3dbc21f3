"""A Qwen3 of 0.6 B parameters in bf16 with gradient checkpointing, accumulating over two micro-batches."""

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

config = Qwen3Config(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
                     vocab_size=151936, tie_word_embeddings=True)
with torch.device("cuda"):
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
model.gradient_checkpointing_enable()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
for step in range(12):
    for part in range(2):
        ids = torch.randint(151936, (4, 2048), device="cuda")
        (model(input_ids=ids, labels=ids, use_cache=False).loss / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
