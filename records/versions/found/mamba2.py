"""Mamba 2, two layers of width 1024, trained on 2 x 1024 tokens in bfloat16, without the kernels of mamba-ssm."""
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

config = AutoConfig.for_model("mamba2", num_hidden_layers=2, hidden_size=1024, num_heads=32, head_dim=64, vocab_size=32000)
with torch.device("cuda"):
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16).train()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    ids = torch.randint(5, 1000, (2, 1024), device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(transformers.__version__, torch.cuda.max_memory_allocated())
