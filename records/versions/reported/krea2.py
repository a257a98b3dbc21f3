"""ai-toolkit#990: a LoRA of rank 32 for Krea 2 on one image of 1328 x 1328 with checkpoints: their transformer, `krea2/src/mmdit.py`.

Their loop around it, its quantization (here weights in float8 that are cast where they are used) and the text's 512 tokens are in our words.
"""
import importlib.util
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import nn

file = next(file for folder in sys.path if (file := pathlib.Path(folder, "extensions_built_in/diffusion_models/krea2/src/mmdit.py")).exists())
spec = importlib.util.spec_from_file_location("mmdit", file)
mmdit = sys.modules["mmdit"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mmdit)


class Adapted(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.weight, self.bias = nn.Parameter(linear.weight.to(torch.float8_e4m3fn), requires_grad=False), linear.bias
        self.down = nn.Linear(linear.in_features, 32, bias=False, dtype=torch.float32)
        self.up = nn.Linear(32, linear.out_features, bias=False, dtype=torch.float32)

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype), self.bias) + self.up(self.down(x))


sizes = dict(features=6144, tdim=256, txtdim=2560, heads=48, kvheads=12, multiplier=4, layers=28, patch=2, channels=16, txtheads=20, txtkvheads=20, txtlayers=12)
with torch.device("cuda"):
    torch.set_default_dtype(torch.bfloat16)
    model = mmdit.SingleStreamDiT(mmdit.SingleMMDiTConfig(**{**sizes, "layers": 0}))
    model.requires_grad_(False)
    for _ in range(sizes["layers"]):
        block = mmdit.SingleStreamBlock(6144, 48, 4, False, 12).requires_grad_(False)
        for module in [block.attn, block.mlp]:
            for name, linear in list(module.named_children()):
                if isinstance(linear, nn.Linear):
                    setattr(module, name, Adapted(linear))
        model.blocks.append(block)
    torch.set_default_dtype(torch.float32)
model.enable_gradient_checkpointing()
optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
text, side = 512, 1328 // 16
for step in range(3):
    image = torch.randn(1, side * side, 64, device="cuda", dtype=torch.bfloat16)
    words = torch.randn(1, text, 12, 2560, device="cuda", dtype=torch.bfloat16)
    place = torch.zeros(1, text + side * side, 3, device="cuda")
    mask = torch.ones(1, text + side * side, dtype=torch.bool, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        predicted = model(image, words, torch.rand(1, device="cuda"), place, mask)
    F.mse_loss(predicted.float(), image.float()).backward()
    optimizer.step()
    optimizer.zero_grad()
print(torch.__version__, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
