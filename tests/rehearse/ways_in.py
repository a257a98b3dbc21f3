"""Starts one Python after the other, each of which comes to PyTorch in its own way. Arguments: names of ways; all without any."""

import os
import subprocess
import sys

# What each trains, once it has torch: it would go on for ever. `way` is what the way is called.
TRAIN = """
def train(torch):
    import os
    print("trains:", os.getpid(), way, flush=True)
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.randn(8, 1024, device="cuda")).sum().backward()
        optimizer.step()
"""

# Scripts, each of which comes to `torch` in another way.
SCRIPTS = {
    # transformers, accelerate, datasets and peft look whether torch is there before anybody imports it.
    "find_spec": """
import importlib.util
assert all(importlib.util.find_spec("torch") for _ in range(3))
import torch
train(torch)
""",
    "lazy_loader": """
import importlib.util, sys
spec = importlib.util.find_spec("torch")
spec.loader = importlib.util.LazyLoader(spec.loader)
torch = sys.modules["torch"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(torch)
train(torch)
""",
    "own_finders": """
import importlib.machinery, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.PathFinder.find_spec(name, path, target)
kept = [finder for finder in sys.meta_path if finder in (importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter)]
sys.meta_path.clear()
sys.meta_path = [*kept, Finder()]
import torch
train(torch)
""",
    "second_try": """
import sys
path, sys.path = sys.path, [part for part in sys.path if "site-packages" not in part]
try:
    import torch
    raise SystemExit("torch is elsewhere, too")
except ImportError:
    sys.path = path
sys.modules["torch._C"] = None
try:
    import torch
    raise SystemExit("torch needs no torch._C")
except ImportError:
    del sys.modules["torch._C"]
import importlib
train(importlib.import_module("torch"))
""",
}


def begin(way):
    with open(f"{way}.py", "w") as file:
        file.write(f"way = {way!r}\n{TRAIN}{SCRIPTS[way]}")
    return subprocess.Popen([sys.executable, f"{way}.py"])


if __name__ == "__main__":
    ways = sys.argv[1:] or list(SCRIPTS)
    os.environ["OMP_NUM_THREADS"] = "1"
    while ways:
        # Two at a time.
        for process in [begin(way) for way in ways[:2]]:
            process.wait()
        ways = ways[2:]
