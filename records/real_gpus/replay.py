"""What the benchmarks and scripts of peaks.csv and events/ run, written anew, for a simulated GPU.

    replay.py peaks SERIES     each row of a series of peaks.csv, a JSON object a line
    replay.py events NAME      one step of events/NAME.csv.gz held against it: one JSON object
    replay.py record PASS LENGTH FILE    a step's events on the GPU that is there, real or rehearsed: PASS is training, inference or gradients
    replay.py compare FILE FILE          two such files; fails where they differ

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
import re
import struct
import sys
from pathlib import Path
from unittest import mock

import language_model
import language_model_2_7b
import language_model_large
import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cuda"
H100, RTX_4090 = "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090"
# The card of each size's events, as far as it is known (README.md), and the model.
RECORDED = {
    "2.7b": (H100, language_model_2_7b),
    "large": (RTX_4090, language_model_large),
    "medium": (H100, language_model),
    "small": (RTX_4090, language_model),
}


def become(title):
    """Makes this process's simulated GPU the card that PyTorch calls so; before CUDA comes up."""
    with open(Path(__file__).parents[2] / "src/sim/src/cards.csv") as cards:
        line = next(line for line in cards if line.split(",")[1] == title)
    # As src/sim/src/cards.rs writes it.
    os.environ["VRAMLAB_DRY_CARD"] = ",".join(line.split(",")[:10])


def open_simulated_gpu():
    """Registers what cannot run over the simulated CUDA runtime, which was preloaded."""
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
    tables = [nn.Embedding(c["x"], c["D"], device=DEVICE, dtype=c["dtype"]) for _ in range(2)]
    ids = torch.randint(0, c["x"], (c["B"], c["T"]), device=DEVICE)

    def full():
        y = tables[0](ids)
        y.backward(torch.randn_like(y))

    return full


def before_embedding(rows):
    """The file's times of the second configuration, and the peaks of the first where these are the second's, have left what torch.compile was
    given: tables, and gradients where there was a backward pass. They are part of cycles, which stay until Python looks for them. When it
    did, the file's rows say: in no peak are the first configuration's tables from its times, and the last four of torch.compile's own peaks
    are without any."""
    first, second = (series for series in all_series() if series[0]["benchmark"] == "embedding")
    held = []

    def keep(series, copies):
        for row in series:
            c, _ = arguments(row)
            held.extend(torch.empty(c["x"], c["D"], dtype=c["dtype"], device=DEVICE) for _ in range(copies))

    keep(second, 1)
    keep(second, 2)
    if rows[0]["row"] == second[0]["row"]:
        keep(first, 2)
    benchmark_speed(rows)
    return held


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


def fused_linear_cross_entropy(c, mode):
    layers = heads(c)
    x = torch.randn(c["x"], c["H"], requires_grad=True, dtype=c["dtype"], device=DEVICE)
    target = torch.randint(c["V"], (c["x"], 1), dtype=torch.long, device=DEVICE).squeeze(1)

    def forward():
        logits = layers[0](x)
        return F.cross_entropy(logits, target)

    def full():
        y = forward()
        y.backward()

    return forward if mode == "forward" else full


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


def before_orpo(rows):
    """Liger's side runs before, and compiles its work on a chunk of two samples, with the first sample count and again with the second, four.
    What torch.compile saw there stays: the samples and their targets, the chunk's, the weight, and the gradients for both chunks and the
    weight. That it is this and nothing else was found from the rows, which are its bytes too high in both configurations."""
    held = benchmark_speed(rows)
    c, _ = arguments(rows[0])
    take = lambda *shape, dtype=c["dtype"]: torch.empty(shape, dtype=dtype, device=DEVICE)
    samples, chunk = 4, 2
    held += [take(samples, c["T"], c["H"]), take(chunk, c["T"], c["H"])]
    held += [take(samples, c["T"], dtype=torch.long), take(chunk, c["T"], dtype=torch.long)]
    held += [take(chunk, c["T"], c["H"]) for _ in range(samples // chunk)]
    return held + [take(c["V"], c["H"]) for _ in range(2)]


def liger_fused_linear_cross_entropy(c, mode):
    """Liger's own kernel, of which what it is given is allocated."""
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction
    from triton.runtime import jit

    layers = heads(c)
    x = torch.randn(c["x"], c["H"], requires_grad=True, dtype=c["dtype"], device=DEVICE)
    target = torch.randint(c["V"], (c["x"], 1), dtype=torch.long, device=DEVICE).squeeze(1)
    # It asks whether there is a target at all, which nobody computed.
    there_is = mock.patch.object(torch.Tensor, "__bool__", lambda _: True)
    launching_nothing = mock.patch.object(jit.JITFunction, "run", lambda *_, **__: None)

    def full():
        with there_is, launching_nothing:
            y = LigerFusedLinearCrossEntropyFunction.apply(x, layers[1].weight, target)
            if mode != "forward":
                y.backward()

    return full


def before_liger(rows):
    """Times of both sides, of forward passes and then of whole ones. PyTorch's have left a workspace of the thread that runs backward passes, in
    which Liger's kernel has no products."""
    for mode in ("forward", "full"):
        for benchmark in ("liger_fused_linear_cross_entropy", "fused_linear_cross_entropy"):
            for row in rows:
                benchmark_speed([row | {"benchmark": benchmark, "mode": mode}])
    return []


BENCHMARKS = {
    f.__name__: f
    for f in (
        cross_entropy, embedding, fused_linear_cross_entropy, fused_linear_orpo_loss, fused_neighborhood_attention, geglu, group_norm, jsd,
        layer_norm, liger_fused_linear_cross_entropy, rope, softmax, sparsemax, tiled_swiglu,
    )
}


def arguments(row):
    config = json.loads(row["configuration"])
    config["x"] = int(row["x"])
    if "dtype" in config:
        config["dtype"] = getattr(torch, config["dtype"].removeprefix("torch."))
    return config, row["mode"]


def peak_of(call):
    torch.cuda.memory.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated()


def benchmark(row):
    return BENCHMARKS[row["benchmark"]](*arguments(row))


def is_row(row, cell):
    """Whether a cell of records/protocols/real_gpus-1.json, which spells its levels so, is this row."""
    setup = re.sub(r'[{}" ]|torch\.', "", row["configuration"]).replace(",", ";")
    spelled = row["benchmark"], row["mode"], row["gpu"].replace(" ", "-"), setup, row["x_name"] + row["x"]
    return spelled == tuple(cell[factor] for factor in ("benchmark", "mode", "gpu", "setup", "size"))


def peak(row):
    """The median of ten calls: that of a call which is as the one before, since what nobody computes is the same from there on."""
    call = benchmark(row)
    peaks = [peak_of(call), peak_of(call)]
    while len(peaks) < 10 and peaks[-1] != peaks[-2]:
        peaks.append(peak_of(call))
    return peaks[-1]


def timed(call):
    """As Triton times it: with a buffer that empties the L2 cache."""
    buffer = torch.empty(256_000_000 // 4, dtype=torch.int, device=DEVICE)
    call()
    del buffer


def benchmark_speed(rows):
    """Each file's benchmark of speed runs before in the same process: both threads have multiplied and have a workspace, and the allocator
    has a cache."""
    for row in rows:
        call = benchmark(row)
        call()
        timed(call)
    return []


def before(rows):
    """What the process of a series does before it takes the peaks. Gives what it still holds then."""
    others = {
        "embedding": before_embedding,
        "fused_linear_orpo_loss": before_orpo,
        "liger_fused_linear_cross_entropy": before_liger,
    }
    return others.get(rows[0]["benchmark"], benchmark_speed)(rows)


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


def verdict(predicted, measured):
    if predicted == measured:
        return "equal"
    return "blocks" if abs(predicted - measured) < 0.005 * measured else "not"


def peaks(rows):
    held = before(rows)
    for row in rows:
        predicted, measured = as_recorded(peak(row)), int(row["peak_allocated_bytes"])
        kept = {key: row[key] for key in ("row", "benchmark", "mode", "gpu", "x_name", "x")}
        inferred = sum(tensor.nbytes for tensor in held)
        told = {"predicted": predicted, "measured": measured, "inferred": inferred, "verdict": verdict(predicted, measured)}
        print(json.dumps(kept | told), flush=True)


def read_events(path):
    """Numbers of blocks as they are made; a block from before is -1."""
    numbers, events = {}, []
    with gzip.open(path, "rt", newline="") as file:
        for event in csv.DictReader(file):
            if event["action"] == "alloc":
                numbers[event["block"]] = len(numbers)
                events.append(("alloc", numbers[event["block"]], int(event["bytes"])))
            elif event["action"] == "free_completed":
                events.append(("free", numbers.get(event["block"], -1), int(event["bytes"])))
    return events


def write_events(path, events):
    """As events/ has them, without Python's frames."""
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["action", "block", "bytes"])
        writer.writerows(("alloc" if action == "alloc" else "free_completed", block, size) for action, block, size in events)


def held_against(predicted, measured):
    """Each event of one that is the other's at the same place, up to the first that is not."""
    differs = next((i for i, pair in enumerate(zip(predicted, measured)) if pair[0] != pair[1]), min(len(predicted), len(measured)))
    return {
        "predicted": len(predicted),
        "measured": len(measured),
        "identical": differs,
        "predicted_peak": most_at_once(predicted),
        "measured_peak": most_at_once(measured),
    }


def most_at_once(events):
    live = most = 0
    for action, _, size in events:
        live += size if action == "alloc" else -size
        most = max(most, live)
    return most


def become_recorded(name):
    size = name.split("_")[0]
    card, model = RECORDED[size]
    become(card)
    open_simulated_gpu()
    if model is language_model:
        language_model.become(size)


def events(name):
    """A step held against its record."""
    size, length, mode = name.split("_")
    predicted = getattr(RECORDED[size][1], mode)(int(length))
    return {"events": name} | held_against(predicted, read_events(Path(__file__).with_name("events") / f"{name}.csv.gz"))


def prepare(rows):
    """Opens the simulated GPU as the rows' process had it; what must be set before CUDA comes up is."""
    become(rows[0]["gpu"])
    if rows[0]["benchmark"] == "fused_neighborhood_attention":
        # PyTorch of that time had no workspace of cuBLASLt that stays; see Linear.
        os.environ["TORCH_CUBLASLT_UNIFIED_WORKSPACE"] = "1"
    open_simulated_gpu()


def main():
    what, *arguments = sys.argv[1:]
    if what == "peaks":
        rows = all_series()[int(arguments[0])]
        prepare(rows)
        peaks(rows)
    elif what == "events":
        become_recorded(arguments[0])
        print(json.dumps(events(arguments[0])))
    elif what == "record":
        mode, length, path = arguments
        write_events(path, getattr(language_model, mode)(int(length)))
    elif what == "compare":
        found = held_against(*reversed([read_events(path) for path in arguments]))
        print(json.dumps(found))
        sys.exit(not found["predicted"] == found["measured"] == found["identical"])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
