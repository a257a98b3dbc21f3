"""transformers#28024 and #27373: eight of Llama 7B's 32 layers with flash-attention and checkpoints on 2 x 2048 tokens; `use_cache` is left as it is.

The first was bisected by its reporter to the pull request that made caches a class.
"""
import flash  # noqa: F401
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(num_hidden_layers=8)
# As both threads ask for it; 4.36 knows this no more and takes SDPA, whose kernel is the same.
config._flash_attn_2_enabled = True
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
model.gradient_checkpointing_enable()
model.train()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(3):
    ids = torch.randint(32000, (2, 2048), device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(transformers.__version__, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
