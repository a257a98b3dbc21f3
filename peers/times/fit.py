"""Fits the constants of the time model on operators that others timed, and writes them to src/rehearse/src/answer/time/constants.csv.

    python peers/times/fit.py FOLDER [--held-out CARD]

FOLDER holds the records (docs/time.md lists them with their sources); needs numpy. A kernel's time is

    t = fixed + sqrt((FLOPs / (peak * compute))^2 + (bytes / (bandwidth * memory))^2)

with peak and bandwidth from the card's specification. Each card and class of kernels has three constants: fixed, compute and memory. They are
those that minimise the mean of |log(predicted / recorded)| over a grid. No whole model is looked at. With --held-out a card's own records
are left out and the error on them is printed: what a card without records has to expect.
"""

import argparse
import ast
import csv
import gzip
import json
import pathlib
import re
import zlib

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Cards that only records have: bandwidth in GB/s, TFLOP/s in fp32, tf32 and half precision; NVIDIA's datasheets.
ELSEWHERE = {
    "v100-pcie": (900, 14.0, 14.0, 112),
}
# A card of ours takes the constants of the same chip on another board where it has none of its own.
SAME_CHIP = {
    "a100-80g": "a100-pcie-80g",
    "a100-40g": "a100-pcie-40g",
    "a100-pcie-80g": "a100-80g",
    "v100": "v100-pcie",
    "v100-32g": "v100",
    "gh200": "h200",
    "h200": "h100",
    "h100-pcie": "h100",
    "rtx-5090": "rtx-4090",
    "a10": "rtx-3090",
    "l40s": "l4",
    "l4": "l40s",
}
HALF, SINGLE = 2, 4


def rows_of(path):
    with gzip.open(path, "rt") as file:
        yield from csv.DictReader(file)


def product(m, n, k, batch, size):
    return 2.0 * batch * m * n * k, float(size) * batch * (m * k + k * n + m * n)


def aiconfigurator(folder):
    names = {"a100_sxm": "a100-80g", "b200_sxm": "b200", "h100_sxm": "h100", "h200_sxm": "h200", "l40s": "l40s"}
    for row in rows_of(folder / "aiconfigurator_gemm_bf16_wide.csv.gz"):
        m, n, k = (int(row[name]) for name in "mnk")
        # Training has few products of less than 32 rows.
        if min(m, n, k) < 32:
            continue
        for theirs, card in names.items():
            if row[theirs]:
                yield card, "matmul_half", *product(m, n, k, 1, HALF), float(row[theirs]) * 1e-3
    for row in rows_of(folder / "aiconfigurator_attention_fwd_bf16.csv.gz"):
        card = names.get(row["gpu"])
        # FlashAttention 2, which PyTorch has; the other sources are kernels of inference engines.
        if card is None or row["kernel_source"] != "vllm_flash_attn" or row["window_size"] not in ("", "0.0"):
            continue
        batch, length, heads, kv = (int(row[name]) for name in ("batch_size", "isl", "num_heads", "num_key_value_heads"))
        width = int(row["head_dim"])
        if length < 256 or kv not in (0, heads) and heads > 4 * kv:
            continue
        kv = kv or heads
        # Causal: half of the scores.
        flops = 2.0 * batch * heads * length * length * width
        yield card, "attention", flops, 2.0 * HALF * batch * length * width * (heads + kv), float(row["latency"]) * 1e-3


def neusight(folder):
    names = {
        "Tesla T4": "t4",
        "Tesla V100-PCIE-32GB": "v100-pcie",
        "NVIDIA A100-PCIE-40GB": "a100-pcie-40g",
        "NVIDIA A100 80GB PCIe": "a100-pcie-80g",
        "NVIDIA L4": "l4",
        "NVIDIA H100 80GB HBM3": "h100",
    }
    for path in sorted((folder / "neusight").glob("*.csv.gz")):
        for row in rows_of(path):
            card, kind, seconds = names.get(row["Device"]), row["OPName"], float(row["Latency"]) * 1e-3
            # Below this their clock shows the launch and not the kernel.
            if card is None or seconds < 1e-4:
                continue
            if kind in ("bmm", "linear"):
                m, n, k = (int(row[name]) for name in "MNK")
                if min(m, n, k) < 32:
                    continue
                yield card, "matmul_single", *product(m, n, k, int(row["B"]), SINGLE), seconds
            elif kind in ("add", "gelu", "mul", "relu", "tanh", "div"):
                elements = int(row["B"]) * int(row["H"])
                tensors = 3 if kind in ("add", "mul", "div") else 2
                yield card, "pointwise", float(elements), float(SINGLE * elements * tensors), seconds
            elif kind in ("ln", "softmax"):
                elements = int(row["B"]) * int(row["H"])
                yield card, "reduction", float(elements), 2.0 * SINGLE * elements, seconds


def deepbench(folder):
    names = {"NV_V100": "v100-pcie", "NV_T4": "t4"}
    for row in rows_of(folder / "deepbench_train.csv.gz"):
        card = names.get(row["file"])
        if card is None:
            continue
        size, kind = (HALF, "half") if "FP16" in row["sheet"] else (SINGLE, "single")
        cells = {name.strip(): value for name, value in json.loads(row["row"]).items()}
        number = lambda name: float(cells[name]) if isinstance(cells.get(name), (int, float)) else 0.0
        if row["kind"] == "Dense Matrix Multiplication":
            m, n, k, time = (number(name) for name in ("M", "N", "K", "Time (msec)"))
            if min(m, n, k) >= 64 and time:
                yield card, "matmul_" + kind, *product(m, n, k, 1, size), time * 1e-3
        elif row["kind"] == "W" and number("P") and number("C") >= 16:
            w, h, c, n, k, p, q = (number(name) for name in ("W", "H", "C", "N", "K", "P", "Q"))
            taps = number("S (Filter width)") * number("R (Filter height)")
            flops, moved = 2 * n * k * c * p * q * taps, size * (n * c * w * h + n * k * p * q + k * c * taps)
            for name in ("Forward (msec)", "wrt Inputs (msec)", "wrt Parameters (msec)"):
                if number(name):
                    # NCHW: in half precision the time has the changes of layout in it, but for filters of one position.
                    relaid = 2 * moved if kind == "half" and taps > 1 else 0.0
                    yield card, "convolution_" + kind, flops, moved, number(name) * 1e-3, relaid


def llmservingsim(folder):
    """Products of Llama 3.1 8B's layers, and its activation, in bf16."""
    shapes = {"q_proj": (4096, 4096), "o_proj": (4096, 4096), "gate_proj": (14336, 4096), "up_proj": (14336, 4096),
              "down_proj": (4096, 14336), "gate_up_proj": (28672, 4096), "qkv_proj": (6144, 4096)}
    files = {"RTX3090_llama3.1-8b_layers": "rtx-3090", "RTX4090_llama3.1-8b_dense": "rtx-4090"}
    for name, card in files.items():
        for row in rows_of(folder / "llmservingsim" / f"{name}.csv.gz"):
            layer, tokens = row.get("layer_name") or row["layer"], int(row.get("input") or row["tokens"])
            seconds = float(row["time_us"]) * 1e-6 if "time_us" in row else float(row["latency(ns)"]) * 1e-9
            if row.get("tp_size", "1") != "1" or tokens < 32:
                continue
            if layer in shapes:
                n, k = shapes[layer]
                yield card, "matmul_half", *product(tokens, n, k, 1, HALF), seconds
            elif layer == "act_fn" and "time_us" in row:
                # silu(a) * b in one kernel.
                yield card, "pointwise", 14336.0 * tokens, 3.0 * HALF * 14336 * tokens, seconds


def tracelens(folder):
    """Half of the rows of the tables of an H100, by a hash; the others are for looking at what the fit is worth."""
    for path in sorted((folder / "tracelens_h100").glob("*.csv.gz")):
        for at, row in enumerate(rows_of(path)):
            if zlib.crc32(f"{path.name}{at}".encode()) % 2:
                continue
            name, seconds = row["name"], float(row["total_direct_kernel_time_mean"] or 0) * 1e-6
            dims, types = ast.literal_eval(row["Input Dims"]), ast.literal_eval(row["Input type"])
            if not seconds or not types or types[0] not in ("c10::BFloat16", "c10::Half", "float"):
                continue
            size = SINGLE if types[0] == "float" else HALF
            elements = float(np.prod(dims[0])) if dims[0] else 0.0
            if name in ("aten::mm", "aten::bmm", "aten::addmm") and size == HALF:
                a, b = (dims[1], dims[2]) if name == "aten::addmm" else (dims[0], dims[1])
                m, k, n, batch = a[-2], a[-1], b[-1], a[0] if len(a) == 3 else 1
                aligned = np.gcd.reduce([int(n), int(k), 8])
                # Those that are not aligned have a factor of their own (src/rehearse/src/answer/time/device.rs).
                if aligned == 8:
                    yield "h100", "matmul_half", *product(m, n, k, batch, size), seconds
            elif name in ("aten::add", "aten::mul", "aten::gelu", "aten::silu") and elements > 1e5:
                tensors = 3 if len(dims) > 1 and dims[1] == dims[0] else 2
                yield "h100", "pointwise", elements, size * elements * tensors, seconds
            elif name in ("aten::_softmax", "aten::native_layer_norm") and elements > 1e5:
                yield "h100", "reduction", elements, 2.0 * size * elements, seconds
            elif name == "aten::cudnn_convolution" and size == HALF:
                padding, stride = (ast.literal_eval(ast.literal_eval(row["Concrete Inputs"])[at]) for at in (2, 3))
                result = [(dims[0][2 + at] + 2 * padding[at] - filter) // stride[at] + 1 for at, filter in enumerate(dims[1][2:])]
                outputs = float(dims[0][0] * dims[1][0] * np.prod(result))
                moved = size * (elements + np.prod(dims[1]) + outputs)
                kernels = ast.literal_eval(re.sub(r"np\.float64\(([^)]*)\)", r"\1", row["kernel_details_summary"]))
                of = lambda layout: sum(kernel["total_duration_us"] for kernel in kernels
                                        if ("nchwToNhwc" in kernel["name"] or "nhwcToNchw" in kernel["name"]) == layout)
                scale = 1e-6 / int(row["operation_count"])
                # Some sixteen channels of each tensor, as below half of a transaction is padding.
                if min(dims[1][:2]) >= 16:
                    yield "h100", "convolution_half", 2 * outputs * float(np.prod(dims[1][1:])), moved, of(False) * scale
                    if of(True):
                        yield "h100", "layout", moved, 2 * moved, of(True) * scale


SOURCES = (aiconfigurator, neusight, deepbench, llmservingsim, tracelens)
# Which peak a class's FLOPs are held against.
PEAKS = {"matmul_half": 3, "convolution_half": 3, "attention": 3}


def specifications():
    cards = {}
    for row in csv.DictReader(open(ROOT / "src/sim/src/cards.csv")):
        cards[row["name"]] = tuple(float(row[name]) for name in ("bandwidth", "single", "tf32", "half"))
    return {**cards, **ELSEWHERE}


def predicted(kind, card, flops, moved, fixed, compute, memory):
    peak = card[PEAKS.get(kind, 1)] * 1e12
    return fixed + np.sqrt((flops / (peak * compute)) ** 2 + (moved / (card[0] * 1e9 * memory)) ** 2)


def fitted(kind, card, flops, moved, seconds):
    """Fixed, compute and memory: by turns, on grids that get finer."""
    bound_by_memory = kind in ("pointwise", "reduction", "layout")
    found = np.array([3e-6, 0.6, 0.8])
    error = lambda values: np.mean(np.abs(np.log(predicted(kind, card, flops, moved, *values) / seconds)))
    # Records that begin at a tenth of a millisecond say nothing of what is fixed.
    free = [0] if seconds.min() < 5e-5 else []
    # Attention reads little: its second term is for short sequences, whose arithmetic is slower.
    free += [2] if bound_by_memory else [1, 2]
    if bound_by_memory:
        found[1] = 1.0
    for step in (1.6, 1.3, 1.12, 1.05, 1.02):
        for _ in range(12):
            for at in free:
                tries = [found.copy() for _ in range(3)]
                tries[1][at] *= step
                tries[2][at] /= step
                tries = [np.clip(one, (5e-7, 0.02, 0.1), (6e-6, 1.3, 1.3)) for one in tries]
                found = min(tries, key=error)
    return found


def gathered(folder, most=6000):
    records = {}
    for source in SOURCES:
        for card, kind, flops, moved, seconds, *relaid in source(folder):
            records.setdefault((card, kind), {}).setdefault(source.__name__, []).append((flops, moved, seconds, *(relaid or (0.0,))))
    generator = np.random.default_rng(0)
    result = {}
    for key, by_source in records.items():
        parts = []
        for rows in by_source.values():
            rows = np.array(rows)
            parts.append(rows[generator.permutation(len(rows))[:most]])
        result[key] = (np.concatenate(parts), "+".join(f"{name} {len(rows)}" for name, rows in by_source.items()))
    return result


def without_layout(card, rows, share):
    """FLOPs, bytes, and seconds without the changes of layout, which stand in their time; where these alone would take most of it, the
    library had kernels for the layout as it was."""
    flops, moved, seconds, relaid = rows.T
    layout = relaid / (card[0] * 1e9 * share)
    return flops, moved, np.where(layout < 0.6 * seconds, seconds - layout, seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--held-out", metavar="CARD")
    options = parser.parse_args()
    cards, records = specifications(), gathered(options.folder)
    own, share = {}, 1.0
    # Changes of layout first: other classes are taken without them.
    for (card, kind), (rows, said) in sorted(records.items(), key=lambda item: (item[0][1] != "layout", item[0])):
        if len(rows) < 7 or card == options.held_out:
            continue
        flops, moved, seconds = without_layout(cards[card], rows, share)
        values = fitted(kind, cards[card], flops, moved, seconds)
        share = values[2] if kind == "layout" else share
        error = np.log(predicted(kind, cards[card], flops, moved, *values) / seconds)
        own[card, kind] = (*values, len(rows), np.median(np.abs(error)), np.quantile(np.abs(error), 0.9), said)
        print(f"{card:14} {kind:18} {values[0] * 1e6:5.1f} us  {values[1]:.3f}  {values[2]:.3f}  "
              f"{len(rows):6} rows  median {own[card, kind][4]:6.1%}  p90 {own[card, kind][5]:6.1%}  {said}")
    kinds = sorted({kind for _, kind in own})
    median = {kind: np.median([values[:3] for (_, of), values in own.items() if of == kind], axis=0) for kind in kinds}
    if options.held_out:
        for (card, kind), (rows, _) in sorted(records.items()):
            if card == options.held_out and kind in median:
                relative = own.get((SAME_CHIP.get(card), kind))
                *work, seconds = without_layout(cards[card], rows, share)
                error = np.log(predicted(kind, cards[card], *work, *(relative[:3] if relative else median[kind])) / seconds)
                print(f"held out {card} {kind}: median {np.median(np.abs(error)):.1%}, p90 {np.quantile(np.abs(error), 0.9):.1%}")
        return
    with open(ROOT / "src/rehearse/src/answer/time/constants.csv", "w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow("card,class,fixed_us,compute,memory,rows,median_error,fitted_on".split(","))
        for card in [name for name in cards if name not in ELSEWHERE]:
            for kind in kinds:
                relative = SAME_CHIP.get(card)
                if (card, kind) in own:
                    values, on = own[card, kind], own[card, kind][6]
                elif (relative, kind) in own:
                    values, on = own[relative, kind], f"{relative}: {own[relative, kind][6]}"
                else:
                    values, on = (*median[kind], 0, 0.0), "specification: the median of the cards that have records"
                out.writerow([card, kind, f"{values[0] * 1e6:.2f}", f"{values[1]:.3f}", f"{values[2]:.3f}", values[3],
                              f"{values[4]:.3f}", on])


if __name__ == "__main__":
    main()
