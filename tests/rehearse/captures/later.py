"""What is evaluated and saved after the steps that a rehearsal sees, and batches of two lengths; a teacher is asked in every step."""

import sys

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(256, 256)

    def forward(self, ids, mask=None):
        return torch.utils.checkpoint.checkpoint(self.up, ids, use_reentrant=False)


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        for x in loader:
            model(x.cuda())


teacher = Net().cuda()
teacher.eval()
model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters())
val_loader = torch.utils.data.DataLoader(torch.randn(64, 256), batch_size=32)
if "early" in sys.argv:
    evaluate(model, val_loader)
for step in range(4):
    length = 10 + 7 * (step % 2)
    x = torch.randn(8, length, 256, device="cuda")
    with torch.no_grad():
        teacher(x)
    model(x, mask=torch.ones(8, length, device="cuda")).sum().backward()
    optimizer.step()
evaluate(model, val_loader)
torch.save(model.state_dict(), "/dev/null")
