
import torch
from torch import nn
rows = [torch.cat([torch.randint(1, 100, (length,)), torch.zeros(16 - length, dtype=torch.int64)]) for length in (4, 8, 12, 16) * 2]
if KNOWN == 'by mask':
    rows = [{'attention_mask': (row > 0).long(), 'ids': row} for row in rows]
model = nn.Sequential(nn.Embedding(100, 8, padding_idx=0 if KNOWN == 'by id' else None), nn.Linear(8, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(rows, batch_size=4):
    model((batch['ids'] if KNOWN == 'by mask' else batch).cuda()).sum().backward()
    optimizer.step()
