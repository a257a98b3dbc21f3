"""A small language model whose loss needs more memory than all its layers. The tests write the snippets of --what-if at the mark."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width=256, depth=4, vocabulary=32768):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.lm_head = nn.Linear(width, vocabulary)

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(x)
        loss = F.cross_entropy(logits[..., :-1, :].reshape(-1, logits.size(-1)), targets[:, 1:].reshape(-1), ignore_index=-1)
        return logits, loss


def main():
    model = Model().cuda()
    # model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(4):
        tokens = torch.randint(32768, (4, 1025), device="cuda")
        _, loss = model(tokens, tokens)
        # loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


main()
