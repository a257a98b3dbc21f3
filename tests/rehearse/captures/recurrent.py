"""A language model of LSTM layers, by cuDNN."""

import torch
from torch import nn

words, lstm, head = nn.Embedding(10000, 512).cuda(), nn.LSTM(512, 1024, num_layers=2, batch_first=True, dropout=0.1).cuda(), nn.Linear(1024, 10000).cuda()
optimizer = torch.optim.Adam([*words.parameters(), *lstm.parameters(), *head.parameters()])
for step in range(3):
    tokens = torch.randint(10000, (64, 129), device="cuda")
    hidden, _ = lstm(words(tokens[:, :-1]))
    nn.functional.cross_entropy(head(hidden).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
