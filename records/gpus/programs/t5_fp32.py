"""T5-base, fp32, an encoder and a decoder, SGD with momentum."""

import torch
from transformers import T5Config, T5ForConditionalGeneration

model = T5ForConditionalGeneration(T5Config(d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
for step in range(20):
    ids, labels = torch.randint(32000, (8, 512), device="cuda"), torch.randint(32000, (8, 128), device="cuda")
    model(input_ids=ids, labels=labels).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
