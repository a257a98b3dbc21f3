"""Ten models' steps; prints each operator that launches kernels with what it counts as: its kind, its direction, whether it has FLOPs,
whether the host waits for it, and whether it copies from or to pinned memory."""

import glob
import json
import os
import struct

import torch
from torch import nn
from torch.nn import functional

KINDS = "pointwise matmul attention attention_backward convolution reduction index optimizer copy recurrent compiled".split()
cuda = torch.device("cuda")
torch.set_default_device(cuda)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, activation="gelu", batch_first=True)

    def forward(self, x):
        with torch.autocast("cuda", torch.float16):
            return functional.scaled_dot_product_attention(*(self.layer(x)[:, None] for _ in range(3)))


class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Conv2d(8, 8, 1)

    def forward(self, x):
        columns = functional.unfold(self.mix(x), 2, stride=2)
        return functional.fold(columns.clamp(min=0).minimum(columns + 1), (16, 16), 2, stride=2)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.bag = nn.Embedding(100, 32), nn.EmbeddingBag(100, 32)

    def forward(self, ids):
        x = self.words(ids) + self.bag(ids)[:, None]
        x = torch.cat([x.gather(1, ids[..., None].expand(-1, -1, 32) % ids.shape[1]), x.cumsum(1), x.masked_fill(x > 1, 0)], -1)
        return x.topk(4).values.sort().values.index_select(1, torch.arange(4))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.gru = nn.LSTM(16, 32, 2, batch_first=True), nn.GRU(32, 32, bidirectional=True, batch_first=True)

    def forward(self, x):
        return self.gru(self.lstm(x)[0])[0]


frozen = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)).eval()
images, rows = torch.randn(4, 8, 16, 16), torch.randn(4, 12, 16)
models = [
    (nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.AvgPool2d(2)), images),
    (nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 16, 3, groups=4), nn.GroupNorm(4, 16), nn.SiLU(inplace=True)), images),
    (nn.Sequential(nn.ConvTranspose2d(8, 8, 2, stride=2), nn.InstanceNorm2d(8), nn.Upsample(scale_factor=2), nn.AdaptiveAvgPool2d(1)), images),
    (nn.Sequential(frozen, nn.Hardswish(), nn.Dropout(0.1)), images),
    (nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.RMSNorm(64), nn.Softmax(-1), nn.Linear(64, 10)), rows),
    (Attention(), torch.randn(4, 16, 64)),
    (Patches(), images),
    (Words(), torch.randint(100, (4, 8))),
    (Recurrent(), rows),
    (nn.Sequential(nn.Conv3d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 6 * 14 * 14, 5), nn.LogSoftmax(-1)), images[:, None]),
]
optimizer = torch.optim.AdamW([parameter for model, _ in models for parameter in model.parameters()])
for _ in range(3):
    optimizer.zero_grad()
    for model, inputs in models:
        result = model(inputs).float()
        (result.logsumexp(-1).mean() + result.abs().amax(-1).norm() + result.var() + result.std(0).max()).backward()
    torch.where(result > 0)
    for is_pinned in (False, True):
        torch.empty(result.shape, device="cpu", pin_memory=is_pinned).copy_(result)
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
    optimizer.step()

folder = max(glob.glob(os.path.join(os.environ["VRAMLAB_REHEARSAL"], f"{os.getpid()}-*")))
names, found = {}, {}
with open(os.path.join(folder, "names")) as file:
    for line in file:
        told = json.loads(line)
        if "operator" in told:
            names[told["operator"]] = told["name"].removeprefix("aten::")
with open(os.path.join(folder, "work"), "rb") as file:
    records = file.read()[64:]
for at in range(0, len(records), 88):
    flops, = struct.unpack_from("<d", records, at + 16)
    operator, = struct.unpack_from("<I", records, at + 68)
    is_pinned = KINDS[records[at]] == "copy" and records[at + 32]
    row = (names[operator].split(".")[0], KINDS[records[at]], records[at + 86] & 63, records[at + 3] & 1, is_pinned)
    found[row] = found.get(row, False) or flops > 0
for (operator, kind, direction, waits, is_pinned), has_flops in sorted(found.items()):
    print(f"class {operator} {kind} {direction}{' flops' * has_flops}{' waits' * waits}{' pinned' * is_pinned}")
