"""generate() of a GPT-2 large in half precision: one prompt, 200 new tokens by sampling."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config(n_embd=1280, n_layer=36, n_head=20)).half().eval().cuda()
model.generation_config.pad_token_id = 0
ids = torch.randint(3, 50000, (1, 64), device="cuda")
with torch.inference_mode():
    for prompt in range(2):
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=200, min_new_tokens=200, do_sample=True, top_k=50)
