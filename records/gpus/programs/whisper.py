"""Whisper small of transformers in bf16 autocast, fused AdamW."""

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

config = WhisperConfig(d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12, decoder_attention_heads=12, encoder_ffn_dim=3072,
                       decoder_ffn_dim=3072)
model = WhisperForConditionalGeneration(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
for step in range(20):
    sound = torch.randn(16, 80, 3000, device="cuda")
    words = torch.randint(50000, (16, 200), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_features=sound, labels=words).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
