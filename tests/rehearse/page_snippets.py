"""Runs the lines of PyTorch of every technique's page, each after the names that a reader has already; prints how many ran."""

import os
import sys
import tempfile
import types
from pathlib import Path

import step as as_written
import torch
import torch.distributed
from torch.utils.data import DataLoader, TensorDataset

SIZE = 64
# The guides' blocks, which have names of their own around them.
CORRECTED = {file.read_text().strip(): file.name.removesuffix("-corrected.py") for file in as_written.BLOCKS.glob("*-corrected.py")}


class Model(torch.nn.Module):
    """Four blocks and a head, as pages speak of models; `forward` of the class is replaced where a page writes another."""

    def __init__(self):
        super().__init__()
        block = lambda: torch.nn.Sequential(torch.nn.Linear(SIZE, SIZE), torch.nn.GELU())
        self.backbone = self.blocks = torch.nn.ModuleList(block() for _ in range(4))
        self.head = torch.nn.Linear(SIZE, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def stand_in_for_peft():
    """PEFT's two names, for it is not installed everywhere: that a page's call of them is a call they take is what can be checked without it."""
    peft = types.ModuleType("peft")
    peft.LoraConfig = lambda r, target_modules: types.SimpleNamespace(r=r, target_modules=target_modules)
    peft.get_peft_model = lambda model, config: model
    return peft


def run_corrected(block):
    trial = as_written.Trial(block, "corrected", "cuda")
    trial.run(lambda *figure: None, lambda run: run())
    if trial.raised:
        raise RuntimeError(trial.raised)


def run(code, path):
    if block := CORRECTED.get(code.strip()):
        return run_corrected(block)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    criterion = torch.nn.CrossEntropyLoss()
    x, y = torch.randn(8, SIZE, device="cuda"), torch.randint(10, (8,), device="cuda")

    def train_step():
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    names = {
        "torch": torch, "os": os, "DataLoader": DataLoader, "model": model, "optimizer": optimizer, "criterion": criterion, "x": x,
        "y": y, "accumulate": 4, "device": "cuda", "path": path, "block": model.blocks[0], "train_step": train_step, "dataset": TensorDataset(torch.randn(128, SIZE), torch.zeros(128)),
        "output": model(x), "total_loss": 0.0, "loader": [(x, y)], "sequences": [torch.arange(3), torch.arange(5)],
        "images": torch.randn(8, 3, 16, 16, device="cuda"),
        **{name: torch.randn(1, 2, 8, 4) for name in "qkv"},
    }  # fmt: skip
    names["loss"] = criterion(names["output"], y)
    exec(compile(code, "<a page>", "exec"), names)
    # A page that writes `forward` has written a model's.
    if "forward" in names:
        criterion(names["forward"](model, x), y).backward()


sys.modules["peft"] = stand_in_for_peft()
torch.distributed.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/group", rank=0, world_size=1)
checkpoint = str(Path(tempfile.mkdtemp()) / "model.pt")
torch.save(Model().state_dict(), checkpoint)
os.chdir(tempfile.mkdtemp())
ran = 0
for page in sys.argv[1:]:
    parts = Path(page).read_text().split("```python\n")[1:]
    for part in parts:
        code = part.split("\n```")[0]
        try:
            run(code, checkpoint)
        except Exception as e:
            sys.exit(f"the lines of {page} do not run: {type(e).__name__}: {e}\n{code}")
        ran += 1
print(f"{ran} snippets ran")
