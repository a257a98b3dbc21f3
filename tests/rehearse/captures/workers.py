"""Workers of a DataLoader, pinned batches of several lengths, and a checkpoint."""

import torch
from torch.utils.data import DataLoader


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.randn(128 + index, 256)


def padded(rows):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


if __name__ == "__main__":
    model = torch.nn.LSTM(256, 512, batch_first=True).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for batch in DataLoader(Rows(), batch_size=8, num_workers=2, pin_memory=True, collate_fn=padded):
        model(batch.cuda(non_blocking=True))[0].square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.save(model.state_dict(), "model.pt")
