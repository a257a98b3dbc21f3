"""A word-level language model with cuDNN's LSTM, as in PyTorch's examples."""

import torch
from torch import nn


class Words(nn.Module):
    def __init__(self, words=33278, width=650):
        super().__init__()
        self.drop, self.encoder, self.rnn = nn.Dropout(0.5), nn.Embedding(words, width), nn.LSTM(width, width, 2, dropout=0.5)
        self.decoder = nn.Linear(width, words)

    def forward(self, x, hidden):
        out, hidden = self.rnn(self.drop(self.encoder(x)), hidden)
        return nn.functional.log_softmax(self.decoder(self.drop(out)).flatten(0, 1), 1), hidden


model = Words().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
hidden = tuple(torch.zeros(2, 64, 650, device="cuda") for _ in range(2))
for step in range(30):
    data = torch.randint(33278, (36, 64), device="cuda")
    hidden = tuple(part.detach() for part in hidden)
    out, hidden = model(data[:-1], hidden)
    model.zero_grad()
    nn.functional.nll_loss(out, data[1:].flatten()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
