"""A Llama of 1.2 billion parameters, all of it trained in bf16."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
                     tie_word_embeddings=True, max_position_embeddings=4096)
with torch.device("cuda"):
    model = LlamaForCausalLM(config).to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
for step in range(20):
    ids = torch.randint(128256, (2, 2048), device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
