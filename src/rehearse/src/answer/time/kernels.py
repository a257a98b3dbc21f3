"""Times the kernels of a list on the GPU that is there: run by `vramlab calibrate`.

    kernels.py LIST OUT [SECONDS]

LIST has rows of src/rehearse/src/answer/time/kernels.rs, those that take longest first; OUT gets them with seconds, as they come. A kernel is made
again from its sizes: products, convolutions and attention are those that ran, other kernels read and write as many bytes. It is captured as often as
its tensors fill L2 twice, so that each call finds its own cold. What cannot be made, or is not reached in time, is left out and said.
"""

import csv
import math
import os
import statistics
import sys
import time

import torch
from torch.nn import functional

SIMULATED = bool(os.environ.get("VRAMLAB_REHEARSAL"))
ROUNDS, LEAST_SECONDS, MOST_COPIES, MOST_BYTES = 5, 0.002, 64, 2 << 30
CHANNELS_LAST, TRANSPOSED, VOLUME = 16, 32, 64
UNARY = "gelu silu relu sigmoid tanh exp rsqrt neg sqrt cos sin abs".split()


def product(row, dtype, m, n, k, batch):
    lead = (batch,) if batch > 1 else ()
    a = torch.randn(*lead, m, k, device="cuda", dtype=dtype)
    # A layer's weights are stored transposed.
    b = torch.randn(*lead, n, k, device="cuda", dtype=dtype).transpose(-1, -2)
    return lambda: torch.matmul(a, b)


def divided(positions, samples, dimensions):
    """Images and their side, of the sides that are whole with about as many images as the step has samples."""
    sides = ((images, round((positions / images) ** (1 / dimensions))) for images in range(1, positions + 1) if positions % images == 0)
    whole = [(images, side) for images, side in sides if images * side**dimensions == positions]
    return min(whole, key=lambda pair: abs(math.log(pair[0] / max(samples, 1))), default=(positions, 1))


def convolution(row, dtype, m, n, k, samples):
    dimensions, taps, groups, stride = 3 if row["flags"] & VOLUME else 2, row["taps"], max(row["groups"], 1), max(row["stride"], 1)
    side = round(taps ** (1 / dimensions))
    # A filter that is no square has one row.
    filter = (side,) * dimensions if side**dimensions == taps else (1,) * (dimensions - 1) + (taps,)
    images, out = divided(m, samples, dimensions)
    layout = torch.channels_last_3d if dimensions == 3 else torch.channels_last
    layout = layout if row["flags"] & CHANNELS_LAST else torch.contiguous_format
    size = [out * stride if each > 1 or side == 1 else out for each in filter]
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=dtype).to(memory_format=layout)
    x, w = make(images, k // taps * groups, *size), make(n, k // taps, *filter)
    arguments = ([stride] * dimensions, [each // 2 for each in filter], [1] * dimensions, False, [0] * dimensions, groups)
    # A transposed one is the gradient of the input of another.
    direction = 1 if row["flags"] & TRANSPOSED and not row["direction"] else row["direction"]
    if not direction:
        return lambda: torch.ops.aten.convolution(x, w, None, *arguments)
    gradient = torch.randn_like(torch.ops.aten.convolution(x, w, None, *arguments))
    mask = [direction == 1, direction == 2, False]
    return lambda: torch.ops.aten.convolution_backward(gradient, x, w, None, *arguments, mask)


def attention(row, dtype, m, n, k, batch):
    whole = (10 if row["kind"] == "attention_backward" else 4) * batch * m * n * k
    size = torch.empty((), dtype=dtype).element_size()
    # Fewer heads of keys than of queries, by the bytes that are read.
    keys = max(1, round((row["bytes"] / size - 2 * batch * m * k) / (2 * n * k))) if row["kind"] == "attention" else batch
    keys = keys if batch % keys == 0 else batch
    q, key, value = (torch.randn(1, heads, length, k, device="cuda", dtype=dtype, requires_grad=True) for heads, length in ((batch, m), (keys, n), (keys, n)))
    settings = dict(is_causal=row["flops"] < 0.75 * whole and m == n, **({"enable_gqa": True} if keys != batch else {}))
    if row["kind"] == "attention":
        def forward():
            with torch.no_grad():
                return functional.scaled_dot_product_attention(q, key, value, **settings)
        return forward
    out = functional.scaled_dot_product_attention(q, key, value, **settings)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, key, value), gradient, retain_graph=True)


def reduction(row, dtype, rows, elements):
    rows = max(1, min(rows or 4096, elements))
    x = torch.randn(rows, max(1, elements // rows), device="cuda", dtype=dtype)
    backward = row["direction"] or "backward" in row["operator"]
    if "batch_norm" in row["operator"]:
        x = x.view(1, *x.shape)
        statistics_of = [torch.ones(x.shape[1], device="cuda") for _ in range(4)]
        if backward:
            return lambda: torch.ops.aten.native_batch_norm_backward(x, x, *statistics_of, statistics_of[0], True, 1e-5, [True] * 3)
        return lambda: torch.ops.aten.native_batch_norm(x, *statistics_of, True, 0.1, 1e-5)
    if "softmax" in row["operator"]:
        p = torch.softmax(x, -1)
        return (lambda: torch.ops.aten._softmax_backward_data(x, p, -1, dtype)) if backward else (lambda: torch.softmax(x, -1))
    if "norm" in row["operator"] and "vector" not in row["operator"]:
        shape, weight = [x.shape[1]], torch.ones(x.shape[1], device="cuda", dtype=dtype)
        out, mean, deviation = torch.ops.aten.native_layer_norm(x, shape, weight, weight, 1e-5)
        if backward:
            return lambda: torch.ops.aten.native_layer_norm_backward(out, x, shape, mean, deviation, weight, weight, [True] * 3)
        return lambda: torch.ops.aten.native_layer_norm(x, shape, weight, weight, 1e-5)
    return lambda: x.sum(-1)


def call_of(row):
    """A call of the kernel on tensors of its own; none where its sizes do not say what it is."""
    dtype = {"half": torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16, "double": torch.float64}.get(row["precision"], torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = row["precision"] == "tf32"
    kind, m, n, k, batch = (row[name] for name in ("kind", "m", "n", "k", "batch"))
    size = torch.empty((), dtype=dtype).element_size()
    if kind == "matmul" and m * n * k:
        return product(row, dtype, m, n, k, batch)
    if kind == "convolution" and m * n * k * row["taps"]:
        return convolution(row, dtype, m, n, k, row["samples"])
    if kind.startswith("attention") and m * n * k * batch:
        return attention(row, dtype, m, n, k, batch)
    if kind == "reduction":
        # A norm reads and writes, its backward pass reads both; a sum reads.
        moved = 3 if row["direction"] or "batch_norm" in row["operator"] else 2 if "norm" in row["operator"] or "softmax" in row["operator"] else 1
        return reduction(row, dtype, m, max(1, int(row["bytes"] / size / moved)))
    if kind in ("pointwise", "compiled", "index", "optimizer"):
        name = row["operator"].split(".")[0].rstrip("_")
        moved = 2 if name in UNARY or "copy" in name else 3
        elements = max(1, int(row["bytes"] / size / moved))
        x, out = (torch.randn(elements, device="cuda", dtype=dtype).abs_() for _ in range(2))
        if name in UNARY:
            return lambda: getattr(torch.ops.aten, name)(x)
        if moved == 2:
            return lambda: out.copy_(x)
        y = torch.randn_like(x)
        return lambda: torch.add(x, y, out=out)
    return None


def seconds_of(row):
    before = torch.cuda.memory_allocated()
    calls = [call_of(row)]
    if calls[0] is None:
        return None
    calls[0]()
    own = max(torch.cuda.memory_allocated() - before, 1)
    copies = 2 if SIMULATED else min(MOST_COPIES, max(1, MOST_BYTES // own), math.ceil(2 * torch.cuda.get_device_properties(0).L2_cache_size / own) + 1)
    calls += [call_of(row) for _ in range(copies - 1)]
    for call in calls:
        call()
    torch.cuda.synchronize()
    began = time.perf_counter()
    calls[0]()
    torch.cuda.synchronize()
    repeats = 1 if SIMULATED else max(1, min(20, math.ceil(LEAST_SECONDS / copies / max(time.perf_counter() - began, 1e-6))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for _ in range(repeats):
            for call in calls:
                call()
    graph.replay()
    rounds = []
    for _ in range(1 if SIMULATED else ROUNDS):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        graph.replay()
        last.record()
        torch.cuda.synchronize()
        rounds.append(first.elapsed_time(last) / 1e3 / repeats / copies)
    return max(statistics.median(rounds), 1e-9)


def main():
    given, out, *most = sys.argv[1:]
    ends, left_out = time.monotonic() + float(most[0] if most else "inf"), []
    with open(given, newline="") as file, open(out, "w", newline="") as written:
        reader = csv.DictReader(file)
        writer = csv.DictWriter(written, reader.fieldnames, lineterminator="\n")
        writer.writeheader()
        # A backward pass runs on the stream of its forward pass, and only one that is not the default can be captured.
        with torch.cuda.stream(torch.cuda.Stream()):
            for text in reader:
                row = {name: value if name in ("card", "operator", "kind", "precision") else float(value or 0) for name, value in text.items()}
                row = {name: int(value) if isinstance(value, float) and name not in ("flops", "bytes") else value for name, value in row.items()}
                try:
                    seconds = seconds_of(row) if time.monotonic() < ends else None
                except Exception as error:
                    seconds = None
                    print(f"{row['kind']} {row['operator']}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
                if seconds is None:
                    left_out.append(f"{row['operator'] or row['kind']}")
                else:
                    writer.writerow({**text, "seconds": f"{seconds:.4g}", "simulated": int(SIMULATED)})
                    written.flush()
                torch.cuda.empty_cache()
    if left_out:
        print(f"{len(left_out)} left out: " + ", ".join(sorted(set(left_out))[:12]), file=sys.stderr)
    print(torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
