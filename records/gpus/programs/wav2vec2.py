"""wav2vec 2.0 base of transformers with its CTC loss, fp16 with a GradScaler."""

import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

model = Wav2Vec2ForCTC(Wav2Vec2Config(mask_time_prob=0.0, layerdrop=0.0)).cuda()
model.freeze_feature_encoder()
model.train()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
scaler = torch.amp.GradScaler()
for step in range(20):
    sound, words = torch.randn(8, 160000, device="cuda"), torch.randint(1, 32, (8, 60), device="cuda")
    with torch.autocast("cuda", torch.float16):
        loss = model(sound, labels=words).loss
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
