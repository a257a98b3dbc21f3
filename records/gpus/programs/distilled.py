"""A student of six layers learns from a BERT of twelve that makes no gradients, bf16 autocast."""

import torch
from transformers import BertConfig, BertForMaskedLM

teacher, student = BertForMaskedLM(BertConfig()).cuda().eval(), BertForMaskedLM(BertConfig(num_hidden_layers=6)).cuda()
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-4, foreach=True)
for step in range(20):
    ids = torch.randint(30000, (32, 256), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        with torch.no_grad():
            wanted = teacher(ids).logits
        given = student(ids).logits
        loss = torch.nn.functional.kl_div((given / 2).log_softmax(-1), (wanted / 2).log_softmax(-1), reduction="batchmean", log_target=True)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
