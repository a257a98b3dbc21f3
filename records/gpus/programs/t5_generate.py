"""T5 base summarises 32 texts of 512 tokens in bf16, with four beams."""

import torch
from transformers import T5Config, T5ForConditionalGeneration

config = T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12, d_kv=64, decoder_start_token_id=0)
model = T5ForConditionalGeneration(config).to(torch.bfloat16).eval().cuda()
ids = torch.randint(3, 32000, (32, 512), device="cuda")
for batch in range(2):
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, min_new_tokens=64, num_beams=4)
