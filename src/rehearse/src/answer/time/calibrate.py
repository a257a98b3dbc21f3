"""Times some sixty operators on the GPU that is there and writes what each takes: run by `vramlab calibrate`, or by hand with a file's name.

A row is a kernel in the terms of vramlab's predictions (src/sim/native/python/work.h) and its seconds, the median of several rounds after a
warm-up. On a simulated GPU (`vramlab rehearse`) the times mean nothing, which the rows say.
"""

import csv
import math
import os
import statistics
import sys
import time

import torch
from torch.nn import functional

FIELDS = "kind,precision,direction,flags,alignment,flops,bytes,m,n,k,groups,taps,launches,seconds,simulated".split(",")
SIMULATED = bool(os.environ.get("VRAMLAB_REHEARSAL"))
ROUNDS, LEAST_SECONDS = 5, 0.01
CHANNELS_LAST, VOLUME, CHANGES_LAYOUT = 16, 64, 4


def seconds_of(call):
    """Of one call in a row of them, as a graph, which the host does not slow down: it takes longer to launch a small kernel than that runs."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    count = 3 if SIMULATED else max(3, min(200, math.ceil(LEAST_SECONDS / max(time.perf_counter() - began, 1e-6))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for _ in range(count):
            call()
    graph.replay()
    rounds = []
    for _ in range(1 if SIMULATED else ROUNDS):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        graph.replay()
        last.record()
        torch.cuda.synchronize()
        rounds.append(first.elapsed_time(last) / 1e3 / count)
    return max(statistics.median(rounds), 1e-9)


def products(dtype, precision):
    size = torch.empty((), dtype=dtype).element_size()
    for m, n, k in ((4096, 4096, 4096), (8192, 8192, 2048), (2048, 2048, 2048), (16384, 1024, 1024), (1024, 4096, 1024), (8192, 3072, 768),
                    (512, 4096, 4096), (65536, 64, 256), (2048, 32000, 1024)):
        a, b = (torch.randn(shape, device="cuda", dtype=dtype) for shape in ((m, k), (k, n)))
        yield dict(kind="matmul", precision=precision, alignment=8, flops=2 * m * n * k, bytes=size * (m * k + k * n + m * n), m=m, n=n, k=k), \
            lambda a=a, b=b: a @ b


def convolutions(dtype, precision):
    size = torch.empty((), dtype=dtype).element_size()
    # Most of them larger than L2, and one of each kind that fits.
    shapes = [(128, 64, 64, 56, 3, 1, 1), (128, 128, 256, 28, 3, 1, 1), (32, 512, 512, 14, 3, 1, 1), (256, 256, 1024, 14, 1, 1, 1),
              (64, 3, 64, 224, 7, 2, 1), (128, 256, 256, 28, 3, 1, 8), (32, 512, 512, 14, 3, 1, 32), (64, 128, 128, 56, 3, 1, 32),
              (64, 144, 144, 56, 3, 1, 144), (64, 384, 384, 14, 5, 1, 384), (64, 96, 96, 56, 7, 1, 96)]
    for batch, inputs, outputs, side, taps, stride, groups in shapes:
        x = torch.randn(batch, inputs, side, side, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
        w = torch.randn(outputs, inputs // groups, taps, taps, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
        arguments = ([stride, stride], [taps // 2, taps // 2], [1, 1], False, [0, 0], groups)
        y = torch.ops.aten.convolution(x, w, None, *arguments)
        gradient, positions = torch.randn_like(y), y.numel()
        row = dict(kind="convolution", precision=precision, flags=CHANNELS_LAST, flops=2 * positions * w[0].numel(),
                    bytes=size * (x.numel() + w.numel() + positions), m=positions // outputs, n=outputs, k=w[0].numel(), groups=groups,
                    taps=taps * taps)
        yield row, lambda x=x, w=w, a=arguments: torch.ops.aten.convolution(x, w, None, *a)
        # Of pictures nobody asks for the gradient.
        for direction, mask in ((1, [True, False, False]), (2, [False, True, False]))[inputs == 3:]:
            yield {**row, "direction": direction}, lambda g=gradient, x=x, w=w, a=arguments, mask=mask: torch.ops.aten.convolution_backward(
                g, x, w, None, *a, mask)


def attention(dtype):
    for batch, heads, length, width in ((8, 16, 1024, 64), (4, 32, 2048, 128), (16, 12, 512, 64), (2, 16, 4096, 128)):
        q, k, v = (torch.randn(batch, heads, length, width, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        gradient, scores = torch.randn_like(out), batch * heads * length * length * width
        row = dict(kind="attention", precision="half", flops=2 * scores, bytes=8 * q.numel(), m=length, n=length, k=width)
        with torch.no_grad():
            yield row, lambda q=q, k=k, v=v: functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        yield {**row, "kind": "attention_backward", "direction": 1, "flops": 5 * scores, "bytes": 18 * q.numel()}, \
            lambda out=out, gradient=gradient, of=(q, k, v): torch.autograd.grad(out, of, gradient, retain_graph=True)


def passes():
    for dtype, precision in ((torch.float16, "half"), (torch.float32, "single")):
        size = 2 if precision == "half" else 4
        for count in (1 << 16, 1 << 22, 1 << 26):
            x, y = (torch.randn(count, device="cuda", dtype=dtype) for _ in range(2))
            yield dict(kind="pointwise", precision=precision, bytes=2 * size * count), lambda x=x: functional.gelu(x)
            yield dict(kind="pointwise", precision=precision, bytes=3 * size * count), lambda x=x, y=y: x + y
        for rows, length in ((8192, 1024), (16384, 4096), (65536, 768)):
            x = torch.randn(rows, length, device="cuda", dtype=dtype)
            weight = torch.ones(length, device="cuda", dtype=dtype)
            _, mean, deviation = torch.ops.aten.native_layer_norm(x, [length], weight, weight, 1e-5)
            row = dict(kind="reduction", precision=precision, bytes=2 * size * x.numel(), m=rows)
            yield row, lambda x=x, length=length, w=weight: torch.ops.aten.native_layer_norm(x, [length], w, w, 1e-5)
            yield {**row, "direction": 1, "bytes": 3 * size * x.numel()}, \
                lambda x=x, length=length, w=weight, mean=mean, deviation=deviation: torch.ops.aten.native_layer_norm_backward(
                    x, x, [length], mean, deviation, w, w, [True, True, True])
            p = torch.softmax(x, -1)
            yield row, lambda x=x: torch.softmax(x, -1)
            yield {**row, "direction": 1, "bytes": 3 * size * x.numel()}, \
                lambda x=x, p=p: torch.ops.aten._softmax_backward_data(x, p, -1, x.dtype)


def host_seconds():
    """What PyTorch takes of the host to launch one small kernel after the other."""
    x, count = torch.zeros(1, device="cuda"), 100 if SIMULATED else 2000
    for _ in range(count):
        x.add_(1)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        x.add_(1)
    launched = time.perf_counter() - began
    torch.cuda.synchronize()
    return launched / count


def operators():
    half = torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16
    yield from products(half, "half")
    yield from products(torch.float32, "single")
    yield from convolutions(torch.float16, "half")
    torch.backends.cudnn.allow_tf32 = True
    yield from convolutions(torch.float32, "tf32")
    yield from attention(half)
    yield from passes()


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    with open(sys.argv[1], "w", newline="") as file:
        out = csv.DictWriter(file, FIELDS, restval=0, lineterminator="\n")
        out.writeheader()
        # A backward pass runs on the stream of its forward pass, and only one that is not the default can be captured.
        with torch.cuda.stream(torch.cuda.Stream()):
            for row, call in operators():
                try:
                    out.writerow({"launches": 1, **row, "seconds": f"{seconds_of(call):.4g}", "simulated": int(SIMULATED)})
                except torch.cuda.OutOfMemoryError:
                    torch.cuda.empty_cache()
        out.writerow({"kind": "host", "seconds": f"{host_seconds():.4g}", "simulated": int(SIMULATED)})
    print(torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
