"""transformers#29484 in small: a Llama with a long context, trained in bfloat16 with SDPA, as AutoModelForCausalLM gives it."""
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=4, num_attention_heads=16, max_position_embeddings=16384)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    ids = torch.randint(config.vocab_size, (1, 8192), device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(transformers.__version__, torch.cuda.max_memory_allocated())
