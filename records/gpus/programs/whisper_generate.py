"""Whisper small of transformers transcribes 16 pieces of 30 seconds at a time, in half precision."""

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

config = WhisperConfig(d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12, decoder_attention_heads=12, encoder_ffn_dim=3072,
                       decoder_ffn_dim=3072)
model = WhisperForConditionalGeneration(config).half().eval().cuda()
for batch in range(2):
    sound = torch.randn(16, 80, 3000, device="cuda", dtype=torch.float16)
    model.generate(sound, max_new_tokens=100, min_new_tokens=100, do_sample=False)
