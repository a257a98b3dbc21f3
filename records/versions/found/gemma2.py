"""Gemma 2 2B as AutoModelForCausalLM makes it, trained on 4096 tokens in bfloat16."""
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

config = AutoConfig.for_model("gemma2")
with torch.device("cuda"):
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16).train()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    ids = torch.randint(5, 1000, (1, 4096), device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(transformers.__version__, model.config._attn_implementation, torch.cuda.max_memory_allocated())
