"""A script that comes through our functions in every way there is, and says what it sees."""

import copy
import traceback
import warnings

import resource
import torch
from torch.utils.data import DataLoader

print("its own module:", resource.MINE)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, at):
        return {"ids": torch.tensor([at % 7 + 1, 2, 0, 0]), "attention_mask": torch.tensor([1, 1, 0, 0])}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(16, 64, padding_idx=0)
        self.last = torch.nn.LazyLinear(64)

    def forward(self, ids, fails=False):
        if fails:
            raise ValueError("the script's own")
        return self.last(self.embed(ids))


with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    torch.cuda.memory._record_memory_history()
    model = Net().cuda()
    model(torch.ones(2, 4, dtype=torch.long, device="cuda"))
    with torch.inference_mode():
        kept = model(torch.ones(8, 4, dtype=torch.long, device="cuda"))
    optimizer = torch.optim.AdamW(model.parameters())
    ragged = torch.nested.nested_tensor([torch.randn(size, 64) for size in (3, 9)], layout=torch.jagged, device="cuda")
    for step, batch in enumerate(DataLoader(Rows(), batch_size=4)):
        ids = batch["ids"].cuda()
        (model(ids).square().mean() + model.last(ragged).values().square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", step, int(ids.max()), torch.arange(3, device="cuda")[torch.tensor([True, False, True], device="cuda")].tolist())
        if step == 0:
            traced = torch.jit.trace(model, torch.ones(2, 4, dtype=torch.long, device="cuda"))
            model.eval()
            with torch.no_grad():
                model(ids)
            model.train()
            copied = copy.deepcopy(model.state_dict())
            torch.save({"step": step}, "saved.pt")
            print("saved", torch.load("saved.pt"))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                still = kept.clone() * 2
            graph.replay()
try:
    model(ids, fails=True)
except ValueError:
    print(traceback.format_exc().count("forward"), "line of the script in its traceback")
print([str(each.message)[:60] for each in warned])
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
model(ids, fails=True)
