"""What the benchmarks and scripts of peaks.csv and events/ run, written anew, for a simulated GPU.

    replay.py peaks SERIES     each row of a series of peaks.csv, a JSON object a line
    replay.py events NAME      one step of events/NAME.csv.gz held against it: one JSON object

A series is rows of one benchmark, GPU and configuration, by its number. Each row's benchmark takes its tensors as Liger-Kernel's script of
that version does, makes ten calls, and counts the peak of each after a reset; the figure is the median, in MiB as 32 bits hold it, which is
how it was recorded. README.md has the verdicts.
"""

import csv
import ctypes
import gzip
import json
import math
import os
import struct
import sys
from pathlib import Path

import language_model
import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cuda"


def open_simulated_gpu():
    """Registers what cannot run over the pretended CUDA runtime, which was preloaded."""
    torch.cuda.init()
    # Its symbols are theirs, which Python loads for itself alone.
    for name in ("libc10.so", "libc10_cuda.so", "libtorch_cpu.so", "libtorch_cuda.so"):
        ctypes.CDLL(Path(torch.__file__).parent / "lib" / name, mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(os.environ["VRAMLAB_DRY_BACKEND"])
    library.vramlab_dry_open.restype = ctypes.c_char_p
    message = library.vramlab_dry_open()
    if message:
        raise SystemExit(message.decode())


# ---- Liger-Kernel's benchmarks ---------------------------------------------------------------------------------------------------------


class Mlp(nn.Module):
    """Hugging Face's LlamaMLP."""

    def __init__(self, hidden, intermediate, activation, dtype):
        super().__init__()
        linear = lambda n, m: nn.Linear(n, m, bias=False, device=DEVICE, dtype=dtype)
        self.gate, self.up = linear(hidden, intermediate), linear(hidden, intermediate)
        self.down = linear(intermediate, hidden)
        self.activation = activation

    def forward(self, x):
        return self.down(self.activation(self.gate(x)) * self.up(x))


def mlp(c, mode, activation):
    x = torch.randn(c["bsz"], c["x"], c["hidden_size"], device=DEVICE, dtype=c["dtype"], requires_grad=True)
    layer = Mlp(c["hidden_size"], c["intermediate_size"], activation, c["dtype"])
    if mode == "forward":
        return lambda: layer(x)
    if mode == "backward":
        gradient = torch.randn_like(x)
        y = layer(x)
        return lambda: y.backward(gradient, retain_graph=True)

    def full():
        y = layer(x)
        y.backward(torch.randn_like(y), retain_graph=True)

    return full


def geglu(c, mode):
    return mlp(c, mode, lambda x: F.gelu(x, approximate="tanh"))


def tiled_swiglu(c, mode):
    return mlp(c, mode, F.silu)


def cross_entropy(c, _):
    rows = c["B"] * c["T"]
    x = torch.randn(rows, c["x"], requires_grad=True, device=DEVICE)
    target = torch.randint(c["x"], (rows, 1), device=DEVICE).squeeze(1)

    def full():
        F.cross_entropy(x, target).backward()

    return full


def embedding(c, _):
    tables = [nn.Embedding(c["x"], c["D"]).to(DEVICE).to(c["dtype"]) for _ in range(2)]
    ids = torch.randint(0, c["x"], (c["B"], c["T"]), device=DEVICE)

    def full():
        y = tables[0](ids)
        y.backward(torch.randn_like(y))

    return full


def normalised(layers, x):
    """The layer of PyTorch's first, then that of Liger's, whose weights are there, too."""
    gradient = torch.randn_like(x)
    x.requires_grad_(True)

    def full():
        y = layers[0](x)
        y.backward(gradient, retain_graph=True)

    return full


def layer_norm(c, _):
    layers = [nn.LayerNorm(c["x"], eps=c["eps"], device=DEVICE) for _ in range(2)]
    return normalised(layers, torch.randn(c["M"], c["x"], dtype=c["dtype"], device=DEVICE))


def group_norm(c, _):
    groups = c["x"] // c["channels_per_group"]
    layers = [nn.GroupNorm(groups, c["x"], eps=c["eps"], device=DEVICE) for _ in range(2)]
    return normalised(layers, torch.randn(c["M"], c["x"], c["H"], dtype=c["dtype"], device=DEVICE))


def rope(c, _):
    hidden = c.get("hidden_size", c["x"])
    length = c.get("seq_len", c["x"])
    heads, kv_heads = c["num_q_heads"], c["num_kv_heads"]
    width = hidden // heads
    frequencies = 1.0 / (10000.0 ** (torch.arange(0, width, 2, dtype=torch.int64).float().to(DEVICE) / width))
    take = lambda n: torch.randn((1, length, n, width), device=DEVICE, requires_grad=True, dtype=c["dtype"]).transpose(1, 2)
    q, k = take(heads), take(kv_heads)
    dq, dk = torch.randn_like(q), torch.randn_like(k)
    positions = torch.arange(length, device=DEVICE, dtype=torch.long).unsqueeze(0)
    with torch.no_grad():
        angles = (frequencies[None, :, None].float() @ positions[:, None, :].float()).transpose(1, 2)
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos().to(c["dtype"]), angles.sin().to(c["dtype"])
        del angles

    def rotated(x):
        first, second = x[..., : width // 2], x[..., width // 2 :]
        return torch.cat((-second, first), dim=-1)

    def apply(q, k):
        across_cos, across_sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return (q * across_cos) + (rotated(q) * across_sin), (k * across_cos) + (rotated(k) * across_sin)

    def full():
        q_out, k_out = apply(q, k)
        torch.autograd.grad((q_out, k_out), (q, k), (dq, dk), allow_unused=True, retain_graph=True)

    # Kept, as the module and the call keep them.
    full.kept = frequencies, positions
    return full


def jsd(c, _):
    vocabulary = c.get("vocab_size", c["x"])
    rows = c["x"] if "vocab_size" in c else c["B"] * c["T"]
    beta = 0.5
    divergence = nn.KLDivLoss(reduction="none", log_target=True)
    log_q = torch.randn(rows, vocabulary, requires_grad=True, device=DEVICE).log_softmax(dim=-1)
    log_p = torch.randn(rows, vocabulary, device=DEVICE).log_softmax(dim=-1)

    def loss(log_q, log_p):
        log_p, log_q = log_p.to(torch.float), log_q.to(torch.float)
        log_p, log_q = log_p.view(-1, log_p.size(-1)), log_q.view(-1, log_q.size(-1))
        m = torch.lerp(torch.exp(log_q), torch.exp(log_p), beta)
        both = beta * divergence(torch.log(m), log_p).sum(dim=-1) + (1 - beta) * divergence(torch.log(m), log_q).sum(dim=-1)
        both = (both / log_q.shape[0]).sum()
        return both.to(torch.float)

    def full():
        y = loss(log_q, log_p)
        y.backward(retain_graph=True)

    return full


def sparsemax(c, _):
    x = torch.randn(c["B"] * c["T"], c["x"], dtype=c["dtype"], device=DEVICE)
    gradient = torch.randn_like(x)
    x.requires_grad_(True)

    def forward(x, dim):
        sorted_, _ = torch.sort(x, dim=dim, descending=True)
        sums = torch.cumsum(sorted_, dim=dim)
        size = x.size(dim)
        ranks = torch.arange(1, size + 1, device=x.device, dtype=x.dtype)
        ranks = ranks.view([1, size])
        bound = 1 + ranks * sorted_
        support = bound > sums
        k = support.sum(dim=dim, keepdim=True).clamp(min=1)
        support_sum = (sorted_ * support).sum(dim=dim, keepdim=True)
        tau = (support_sum - 1) / k
        return torch.clamp(x - tau, min=0)

    def full():
        y = forward(x, 1)
        y.backward(gradient, retain_graph=True)

    return full


def softmax(c, _):
    x = torch.randn(c["x"], device=DEVICE, dtype=c["dtype"], requires_grad=True)

    def full():
        y = F.softmax(x, dim=-1)
        y.backward(torch.ones_like(y), retain_graph=True)

    return full


class Linear(nn.Linear):
    """With a bias PyTorch multiplies by cuBLASLt; until 2.8 it took a workspace of 1 MiB for each such product and gave it back, where it
    now shares cuBLAS's or keeps one."""

    def forward(self, x):
        y = super().forward(x)
        torch.empty(1 << 20, dtype=torch.uint8, device=x.device)
        return y


class NeighbourhoodAttention(nn.Module):
    def __init__(self, hidden, heads, kernel, dilation, bias, dtype):
        super().__init__()
        linear = lambda: Linear(hidden, hidden, bias=bias).to(DEVICE).to(dtype)
        self.q, self.k, self.v, self.out = linear(), linear(), linear(), linear()
        self.heads, self.width, self.kernel, self.dilation = heads, hidden // heads, kernel, dilation
        self.scale = 1.0 / math.sqrt(self.width)

    def mask(self, length):
        # The benchmark sets element by element, which takes no memory beside the mask.
        return torch.zeros(length, length, device=DEVICE, dtype=torch.bool)

    def forward(self, x):
        batch, length, hidden = x.shape
        q, k, v = self.q(x), self.k(x), self.v(x)
        q = q.view(batch, length, self.heads, self.width).transpose(1, 2)
        k = k.view(batch, length, self.heads, self.width).transpose(1, 2)
        v = v.view(batch, length, self.heads, self.width).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-2, -1)) * self.scale
        mask = self.mask(length)
        scores = scores.masked_fill(~mask, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        output = torch.matmul(weights, v)
        output = output.transpose(1, 2).contiguous().view(batch, length, hidden)
        output = self.out(output)
        return output


def fused_neighborhood_attention(c, _):
    take = lambda: NeighbourhoodAttention(c["hidden_size"], c["num_heads"], c["kernel_size"], c["dilation"], c["bias"], c["dtype"])
    layers = [take(), take()][::-1]
    x = torch.randn(c["batch_size"], c["x"], c["hidden_size"], dtype=c["dtype"], device=DEVICE)
    return normalised(layers, x)


def heads(c):
    """The output layer of PyTorch's side and that of Liger's, which is there, too."""
    return [nn.Linear(c["H"], c["V"], bias=False, device=DEVICE, dtype=c["dtype"]) for _ in range(2)]


def fused_linear_cross_entropy(c, _):
    layers = heads(c)
    x = torch.randn(c["x"], c["H"], requires_grad=True, dtype=c["dtype"], device=DEVICE)
    target = torch.randint(c["V"], (c["x"], 1), dtype=torch.long, device=DEVICE).squeeze(1)

    def forward():
        logits = layers[0](x)
        return F.cross_entropy(logits, target)

    def full():
        y = forward()
        y.backward()

    return full


def fused_linear_orpo_loss(c, _):
    layers = heads(c)
    x = torch.randn(c["x"], c["T"], c["H"], requires_grad=True, dtype=c["dtype"], device=DEVICE)
    target = torch.randint(c["V"], (c["x"], c["T"]), dtype=torch.long, device=DEVICE)
    ignored, beta = -100, 0.1

    def nll(logits, labels):
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1), ignore_index=ignored)

    def log_probabilities(logits, labels):
        mask = labels != ignored
        labels = torch.where(labels == ignored, 0, labels)
        per_token = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
        return (per_token * mask).sum(-1) / mask.sum(-1)

    def forwards(weight):
        chosen = x.shape[0] // 2
        outputs = x @ weight.t()
        # The rows of 4096 tokens were taken 40 minutes before the others, by an earlier script: their growth is that of bf16 all through.
        logits = outputs if c["T"] == 4096 else outputs.float()
        chosen_nll = nll(logits[:chosen], target[:chosen])
        logps = log_probabilities(logits, target)
        return logps[:chosen], logps[chosen:], logits[:chosen], logits[chosen:], chosen_nll

    def odds(chosen, rejected):
        log_odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
        return beta * F.logsigmoid(log_odds)

    def loss():
        output = forwards(layers[0].weight)
        chosen, rejected, _, _, chosen_nll = output
        losses = odds(chosen, rejected)
        return chosen_nll - losses.mean()

    def full():
        y = loss()
        y.backward()

    return full


BENCHMARKS = {
    f.__name__: f
    for f in (
        cross_entropy, embedding, fused_linear_cross_entropy, fused_linear_orpo_loss, fused_neighborhood_attention, geglu, group_norm, jsd,
        layer_norm, rope, softmax, sparsemax, tiled_swiglu,
    )
}


def arguments(row):
    config = json.loads(row["configuration"])
    config["x"] = int(row["x"])
    if "dtype" in config:
        config["dtype"] = getattr(torch, config["dtype"].removeprefix("torch."))
    return config, row["mode"]


def peak(row):
    call = BENCHMARKS[row["benchmark"]](*arguments(row))
    peaks = []
    for _ in range(10):
        torch.cuda.memory.reset_peak_memory_stats()
        call()
        peaks.append(torch.cuda.max_memory_allocated())
    return sorted(peaks)[len(peaks) // 2]


def benchmark_speed(rows):
    """Each file's benchmark of speed runs before in the same process, with a buffer that empties the L2 cache: both threads have multiplied
    and have a workspace, and the allocator has a cache."""
    for row in rows:
        call = BENCHMARKS[row["benchmark"]](*arguments(row))
        call()
        buffer = torch.empty(256_000_000 // 4, dtype=torch.int, device=DEVICE)
        call()
        del buffer, call


def as_recorded(size):
    return int(struct.unpack("f", struct.pack("f", size / 2**20))[0] * 2**20)


def all_series():
    """Rows of peaks.csv, with their place in it, by benchmark, GPU and configuration in the order of the file."""
    found = {}
    with open(Path(__file__).with_name("peaks.csv"), newline="") as file:
        for place, row in enumerate(csv.DictReader(file)):
            key = row["benchmark"], row["gpu"], row["configuration"]
            found.setdefault(key, []).append(row | {"row": place})
    return list(found.values())


def step(size):
    """What two neighbours of a recorded figure differ by: it was MiB in 32 bits."""
    return int(2 ** (math.floor(math.log2(size / 2**20)) - 23) * 2**20)


def verdicts(predicted, measured):
    above = [m - p for m, p in zip(measured, predicted)]
    offset = sorted(above)[len(above) // 2]
    # A constant that is larger than any rounding of blocks, and the same in most rows.
    common = offset > 2**24 and sum(abs(a - offset) <= step(m) for a, m in zip(above, measured)) > len(above) // 2
    for a, m in zip(above, measured):
        rest = a - offset if common else a
        if abs(rest) <= (step(m) if common else 0):
            yield "offset" if common else "equal"
        elif abs(rest) < 0.005 * m:
            yield "offset and blocks" if common else "blocks"
        else:
            yield "not"


def peaks(rows):
    benchmark_speed(rows)
    predicted = [as_recorded(peak(row)) for row in rows]
    measured = [int(row["peak_allocated_bytes"]) for row in rows]
    for row, p, m, verdict in zip(rows, predicted, measured, verdicts(predicted, measured)):
        kept = {key: row[key] for key in ("row", "benchmark", "mode", "gpu", "x_name", "x")}
        print(json.dumps(kept | {"predicted": p, "measured": m, "verdict": verdict}), flush=True)


def recorded_events(name):
    """Numbers of blocks as they are made; a block from before is -1."""
    numbers, events = {}, []
    with gzip.open(Path(__file__).with_name("events") / f"{name}.csv.gz", "rt", newline="") as file:
        for event in csv.DictReader(file):
            if event["action"] == "alloc":
                numbers[event["block"]] = len(numbers)
                events.append(("alloc", numbers[event["block"]], int(event["bytes"])))
            elif event["action"] == "free_completed":
                events.append(("free", numbers.get(event["block"], -1), int(event["bytes"])))
    return events


def most_at_once(events):
    live = most = 0
    for action, _, size in events:
        live += size if action == "alloc" else -size
        most = max(most, live)
    return most


def events(name):
    _, length, mode = name.split("_")
    predicted, measured = getattr(language_model, mode)(int(length)), recorded_events(name)
    differs = next((i for i, pair in enumerate(zip(predicted, measured)) if pair[0] != pair[1]), None)
    print(
        json.dumps(
            {
                "events": name,
                "predicted": len(predicted),
                "measured": len(measured),
                "first_difference": differs,
                "peaks": [most_at_once(predicted), most_at_once(measured)],
            }
        )
    )


def main():
    what, argument = sys.argv[1:3]
    if what == "peaks":
        rows = all_series()[int(argument)]
        if rows[0]["benchmark"] == "fused_neighborhood_attention":
            # PyTorch of that time had no workspace of cuBLASLt that stays; see Linear.
            os.environ["TORCH_CUBLASLT_UNIFIED_WORKSPACE"] = "1"
        open_simulated_gpu()
        peaks(rows)
    else:
        open_simulated_gpu()
        events(argument)


if __name__ == "__main__":
    main()
