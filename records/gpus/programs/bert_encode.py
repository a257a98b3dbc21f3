"""Embeddings of 4096 sentences by a BERT base in half precision, mean of the last layer, kept on the CPU."""

import torch
from transformers import BertConfig, BertModel

model = BertModel(BertConfig(), add_pooling_layer=False).half().eval().cuda()
kept = []
with torch.inference_mode():
    for batch in range(16):
        ids = torch.randint(1000, 30000, (256, 128)).cuda()
        mask = torch.ones_like(ids)
        last = model(ids, attention_mask=mask).last_hidden_state
        pooled = (last * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        kept.append(torch.nn.functional.normalize(pooled.float(), dim=1).cpu())
print(torch.cat(kept).shape)
