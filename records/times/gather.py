"""Takes the operators that others timed out of their files, in one form: records/times/operators/SOURCE.csv.gz, which fit.py reads.

    python records/times/gather.py FOLDER

FOLDER holds the sources' files (records/times/README.md says which, with commits and licences). A row is a card, a kernel in the terms of
src/sim/native/python/work.h, and seconds; of long lists a part is kept, chosen by checksum.
"""

import ast
import csv
import gzip
import json
import pathlib
import re
import sys
import zlib

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPERATORS = ROOT / "records/times/operators"
FIELDS = "card,kind,precision,direction,alignment,flags,flops,bytes,m,n,k,batch,groups,taps,launches,seconds".split(",")
HALF, SINGLE = 2, 4
CHANNELS_LAST, TRANSPOSED, VOLUME, RELAID = 16, 32, 64, 4


def rows_of(path):
    with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
        yield from csv.DictReader(file)


def is_kept(one_in, *words):
    return zlib.crc32(",".join(map(str, words)).encode()) % one_in == 0


def row(card, kind, precision, seconds, flops, moved, direction=0, alignment=0, flags=0, m=0, n=0, k=0, batch=0, groups=0, taps=0, launches=1):
    return [card, kind, precision, direction, alignment, flags, f"{flops:.6g}", f"{moved:.6g}", m, n, k, batch, groups, taps, launches,
            f"{seconds:.5g}"]


def product(card, precision, seconds, m, n, k, batch=1):
    size = HALF if precision == "half" else SINGLE
    return row(card, "matmul", precision, seconds, 2.0 * batch * m * n * k, float(size) * batch * (m * k + k * n + m * n),
               alignment=int(np.gcd.reduce([n, k, 8])), m=m, n=n, k=k, batch=batch)


def passes(card, kind, precision, seconds, elements, tensors, direction=0, rows=0):
    size = HALF if precision == "half" else SINGLE
    return row(card, kind, precision, seconds, 0, float(size) * elements * tensors, direction, m=rows)


AICONFIGURATOR = {"a100_sxm": "a100-80g", "b200_sxm": "b200", "h100_sxm": "h100", "h200_sxm": "h200", "l40s": "l40s",
                  "rtx_pro_6000_server": "rtx-pro-6000"}


def aiconfigurator(folder):
    for one in rows_of(folder / "aiconfigurator_gemm_bf16_wide.csv.gz"):
        m, n, k = (int(one[name]) for name in "mnk")
        # Training has few products of less than 32 rows.
        if min(m, n, k) < 32 or not is_kept(12, m, n, k):
            continue
        for theirs, card in AICONFIGURATOR.items():
            if one[theirs]:
                yield product(card, "half", float(one[theirs]) * 1e-3, m, n, k)
    for one in rows_of(folder / "aiconfigurator_attention_fwd_bf16.csv.gz"):
        card = AICONFIGURATOR.get(one["gpu"])
        # FlashAttention 2, which PyTorch has; the other sources are kernels of inference engines.
        if card is None or one["kernel_source"] != "vllm_flash_attn" or one["window_size"] not in ("", "0.0"):
            continue
        batch, length, heads, kv = (int(one[name]) for name in ("batch_size", "isl", "num_heads", "num_key_value_heads"))
        width = int(one["head_dim"])
        if length < 128 or kv not in (0, heads) and heads > 4 * kv or not is_kept(4, *one.values()):
            continue
        kv = kv or heads
        # Causal: half of the scores.
        yield row(card, "attention", "half", float(one["latency"]) * 1e-3, 2.0 * batch * heads * length * length * width,
                  2.0 * HALF * batch * length * width * (heads + kv), m=length, n=length, k=width, batch=batch * heads)


NEUSIGHT = {"Tesla T4": "t4", "Tesla V100-PCIE-32GB": "v100-pcie", "NVIDIA A100-PCIE-40GB": "a100-pcie-40g",
            "NVIDIA A100 80GB PCIe": "a100-pcie-80g", "NVIDIA L4": "l4", "NVIDIA H100 80GB HBM3": "h100"}


def neusight(folder):
    """fp32 without TF32."""
    for path in sorted((folder / "neusight").glob("*.csv.gz")):
        for one in rows_of(path):
            card, kind, seconds = NEUSIGHT.get(one["Device"]), one["OPName"], float(one["Latency"]) * 1e-3
            # Below this their clock shows the launch and not the kernel.
            if card is None or seconds < 1e-4:
                continue
            if kind in ("bmm", "linear"):
                m, n, k = (int(one[name]) for name in "MNK")
                # Most of their sizes are odd, those of models are not.
                is_aligned = n % 4 == 0 and k % 4 == 0
                if min(m, n, k) >= 32 and is_kept(2 if is_aligned else 20, *one.values()):
                    yield product(card, "single", seconds, m, n, k, int(one["B"]))
            elif kind in ("add", "gelu", "mul", "relu", "tanh", "div") and is_kept(3, *one.values()):
                yield passes(card, "pointwise", "single", seconds, int(one["B"]) * int(one["H"]), 3 if kind in ("add", "mul", "div") else 2)
            elif kind in ("ln", "softmax") and is_kept(2, *one.values()):
                yield passes(card, "reduction", "single", seconds, int(one["B"]) * int(one["H"]), 2, rows=int(one["B"]))


def deepbench(folder):
    for one in rows_of(folder / "deepbench_train.csv.gz"):
        card = {"NV_V100": "v100-pcie", "NV_T4": "t4"}.get(one["file"])
        if card is None:
            continue
        precision, size = ("half", HALF) if "FP16" in one["sheet"] else ("single", SINGLE)
        cells = {name.strip(): value for name, value in json.loads(one["row"]).items()}
        number = lambda name: float(cells[name]) if isinstance(cells.get(name), (int, float)) else 0.0
        if one["kind"] == "Dense Matrix Multiplication":
            m, n, k, time = (number(name) for name in ("M", "N", "K", "Time (msec)"))
            if min(m, n, k) >= 64 and time:
                yield product(card, precision, time * 1e-3, int(m), int(n), int(k))
        elif one["kind"] == "W" and number("P") and number("C") >= 16:
            w, h, c, n, k, p, q = (number(name) for name in ("W", "H", "C", "N", "K", "P", "Q"))
            taps = number("S (Filter width)") * number("R (Filter height)")
            flops, moved = 2 * n * k * c * p * q * taps, size * (n * c * w * h + n * k * p * q + k * c * taps)
            for direction, name in enumerate(("Forward (msec)", "wrt Inputs (msec)", "wrt Parameters (msec)")):
                if number(name):
                    # NCHW: in half precision the time has the changes of layout in it, but for filters of one position.
                    yield row(card, "convolution", precision, number(name) * 1e-3, flops, moved, direction,
                              flags=RELAID if precision == "half" and taps > 1 else 0, m=int(n * p * q), n=int(k), k=int(c * taps), batch=1, groups=1,
                              taps=int(taps))


SHAPES = {"q_proj": (4096, 4096), "k_proj": (1024, 4096), "v_proj": (1024, 4096), "o_proj": (4096, 4096), "gate_proj": (14336, 4096),
          "up_proj": (14336, 4096), "down_proj": (4096, 14336), "gate_up_proj": (28672, 4096), "qkv_proj": (6144, 4096)}


def llmservingsim(folder):
    """Products of Llama 3.1 8B's layers, its activation and norms, in bf16."""
    files = {"RTX3090_llama3.1-8b_layers": "rtx-3090", "A6000_llama3.1-8b_layers": "a6000", "H100_llama3.1-8b_layers": "h100",
             "RTX4090_llama3.1-8b_dense": "rtx-4090", "RTXPRO6000_llama3.1-8b_dense": "rtx-pro-6000"}
    for name, card in files.items():
        for one in rows_of(folder / "llmservingsim" / f"{name}.csv.gz"):
            layer, tokens = one.get("layer_name") or one["layer"], int(one.get("input") or one["tokens"])
            seconds = float(one["time_us"]) * 1e-6 if "time_us" in one else float(one["latency(ns)"]) * 1e-9
            if one.get("tp_size", "1") != "1" or tokens < 32:
                continue
            if layer in SHAPES:
                yield product(card, "half", seconds, tokens, *SHAPES[layer])
            elif layer == "act_fn" and "time_us" in one:
                # silu(a) * b in one kernel.
                yield passes(card, "pointwise", "half", seconds, 14336.0 * tokens, 3)


def vidur(folder):
    """Llama 2 7B's layers on A100, A40 and H100."""
    for name, card in {"a100": "a100-80g", "a40": "a40", "h100": "h100"}.items():
        for one in rows_of(folder / "vidur" / f"{name}_llama2-7b_mlp_median.csv.gz"):
            tokens, ways = int(one["num_tokens"]), int(one["num_tensor_parallel_workers"])
            if tokens < 64 or one["use_gated_mlp"] != "True" or not is_kept(5, *one.values()):
                continue
            hidden, wide = int(one["n_embd"]), int(one["n_expanded_embd"])
            number = lambda name: float(one[f"time_stats.{name}.median"] or 0) * 1e-3
            for layer, n, k in (("attn_pre_proj", 3 * hidden // ways, hidden), ("attn_post_proj", hidden, hidden // ways),
                                ("mlp_up_proj", 2 * wide // ways, hidden), ("mlp_down_proj", hidden, wide // ways)):
                if number(layer):
                    yield product(card, "half", number(layer), tokens, n, k)
            if number("add"):
                yield passes(card, "pointwise", "half", number("add"), hidden * tokens, 3)


def tracelens(folder):
    """Half of the rows of the tables of an H100, by a hash; the others are for looking at what the fit is worth."""
    for path in sorted((folder / "tracelens_h100").glob("*.csv.gz")):
        for at, one in enumerate(rows_of(path)):
            if zlib.crc32(f"{path.name}{at}".encode()) % 2:
                continue
            name, seconds = one["name"], float(one["total_direct_kernel_time_mean"] or 0) * 1e-6
            dims, types = ast.literal_eval(one["Input Dims"]), ast.literal_eval(one["Input type"])
            if not seconds or not types or types[0] not in ("c10::BFloat16", "c10::Half", "float"):
                continue
            precision, size = ("single", SINGLE) if types[0] == "float" else ("half", HALF)
            elements = float(np.prod(dims[0])) if dims[0] else 0.0
            if name in ("aten::mm", "aten::bmm", "aten::addmm") and precision == "half":
                a, b = (dims[1], dims[2]) if name == "aten::addmm" else (dims[0], dims[1])
                yield product("h100", precision, seconds, int(a[-2]), int(b[-1]), int(a[-1]), int(a[0]) if len(a) == 3 else 1)
            elif name in ("aten::add", "aten::mul", "aten::gelu", "aten::silu") and elements > 1e5:
                yield passes("h100", "pointwise", precision, seconds, elements, 3 if len(dims) > 1 and dims[1] == dims[0] else 2)
            elif name in ("aten::_softmax", "aten::native_layer_norm") and elements > 1e5:
                yield passes("h100", "reduction", precision, seconds, elements, 2)
            elif name == "aten::cudnn_convolution" and precision == "half":
                padding, stride = (ast.literal_eval(ast.literal_eval(one["Concrete Inputs"])[at]) for at in (2, 3))
                result = [(dims[0][2 + at] + 2 * padding[at] - filter) // stride[at] + 1 for at, filter in enumerate(dims[1][2:])]
                outputs = float(dims[0][0] * dims[1][0] * np.prod(result))
                moved = size * (elements + np.prod(dims[1]) + outputs)
                kernels = ast.literal_eval(re.sub(r"np\.float64\(([^)]*)\)", r"\1", one["kernel_details_summary"]))
                of = lambda layout: sum(kernel["total_duration_us"] for kernel in kernels
                                        if ("nchwToNhwc" in kernel["name"] or "nhwcToNchw" in kernel["name"]) == layout)
                scale = 1e-6 / int(one["operation_count"])
                # Some sixteen channels of each tensor, as below half of a transaction is padding.
                if min(dims[1][:2]) >= 16:
                    filter = float(np.prod(dims[1][1:]))
                    yield row("h100", "convolution", "half", of(False) * scale, 2 * outputs * filter, moved,
                              flags=VOLUME if len(dims[1]) == 5 else 0, m=int(outputs / dims[1][0]), n=int(dims[1][0]), k=int(filter), batch=1,
                              groups=1, taps=int(np.prod(dims[1][2:])))
                    if of(True):
                        yield row("h100", "layout", "half", of(True) * scale, 0, 2 * moved)


def liger(folder):
    """Norms, softmax and losses of one layer: forward, and what the backward pass takes beyond it."""
    cards = {"NVIDIA A100-SXM4-80GB": "a100-80g", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA GeForce RTX 3090": "rtx-3090"}
    found = {}
    for one in rows_of(folder / "liger-speed.csv.gz"):
        card, name = cards.get(one["gpu_name"]), one["kernel_name"]
        if card and one["metric_name"] == "speed" and one["kernel_provider"] in ("huggingface", "torch") and name in ("layer_norm", "softmax"):
            found[card, name, int(one["x_value"]), one["extra_benchmark_config_str"], one["kernel_operation_mode"]] = float(one["y_value_50"]) * 1e-3
    for (card, name, size, more, mode), seconds in sorted(found.items()):
        config = json.loads(more)
        precision = "half" if "16" in str(config.get("dtype", "float32")) else "single"
        count = int(config.get("M", 4096 if name == "layer_norm" else 2048))
        forward = found.get((card, name, size, more, "forward"))
        if mode == "forward":
            yield passes(card, "reduction", precision, seconds, count * size, 2, rows=count)
        elif mode == "full" and forward and seconds > forward:
            # Reads what came out and its gradient, writes the input's.
            yield passes(card, "reduction", precision, seconds - forward, count * size, 3, direction=1, rows=count)


def benches(folder):
    """Small kernels, many times over: what a launch takes of the device, and the rate of L2."""
    for one in rows_of(folder / "gpu_benches_l2_and_small_kernels.csv.gz"):
        card = {"a100_80": "a100-pcie-80g", "a40": "a40", "l40": "l40", "h200": "h200"}.get(one["card"])
        if card and one["bench"] == "small" and float(one["kB"]) < 1e6:
            yield passes(card, "pointwise", "single", float(one["kB"]) / float(one["GB_per_s"]) * 1e-6, float(one["kB"]) * 1e3 / SINGLE, 1)


def xwang233(folder):
    """Convolutions of three dimensions, forward, in both layouts (cuDNN 8.0); with few channels they have other kernels."""
    for name, card in {"a100": "a100-40g", "v100": "v100"}.items():
        with gzip.open(folder / f"xwang233/conv3d-channels-last_{name}_res-c8cd883.json.gz", "rt") as file:
            for key, times in json.load(file).items():
                if not key.startswith("("):
                    continue
                batch, inputs, side, outputs, filter, padding, stride = ast.literal_eval(key)
                out, taps = ((side + 2 * padding - filter) // stride + 1) ** 3, filter**3
                moved = float(HALF * (batch * (inputs * side**3 + outputs * out) + inputs * outputs * taps))
                for layout, flags in (("contiguous", RELAID if taps > 1 else 0), ("channels-last-3d", CHANNELS_LAST)):
                    seconds = times[f"{layout}-forward"] * 1e-3
                    # Below this their clock shows the launch.
                    if min(inputs, outputs) >= 16 and seconds > 2e-4:
                        yield row(card, "convolution", "half", seconds, 2.0 * batch * outputs * out * inputs * taps, moved, flags=VOLUME | flags,
                                  m=batch * out, n=outputs, k=inputs * taps, batch=1, groups=1, taps=taps)


SOURCES = (aiconfigurator, neusight, deepbench, llmservingsim, vidur, tracelens, liger, benches, xwang233)


def write(path, header, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write("\n".join([header, *(",".join(map(str, one)) for one in rows), ""]).encode())


def main():
    for source in SOURCES:
        rows = list(source(pathlib.Path(sys.argv[1])))
        write(OPERATORS / f"{source.__name__}.csv.gz", ",".join(FIELDS), rows)
        print(source.__name__, len(rows))


if __name__ == "__main__":
    main()
