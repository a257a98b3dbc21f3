"""pytorch#183387: PYTORCH_ALLOC_CONF=expandable_segments:True, with sequences of growing length."""
import os

os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
import torch

model = torch.nn.Sequential(
    torch.nn.Embedding(32000, 1024),
    torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True), 4),
    torch.nn.Linear(1024, 32000),
).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for length in range(256, 2049, 128):
    ids = torch.randint(0, 32000, (4, length), device="cuda")
    torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
