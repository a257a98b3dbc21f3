"""Gemma 2 as AutoModelForCausalLM makes it, two layers, trained on 2 x 2048 tokens in bfloat16."""
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

config = AutoConfig.for_model("gemma2", num_hidden_layers=2)
with torch.device("cuda"):
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16).train()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    ids = torch.randint(5, 1000, (2, 2048), device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(transformers.__version__, model.config._attn_implementation, torch.cuda.max_memory_allocated())
