"""Asks a calculator of serving for the rows of public.csv, whose KV cache is known, and writes what it says to rivals.csv.

    ENV/bin/python rivals.py hf-mem | llm-d-planner | aisimulate

ENV is a virtual environment with that package of PyPI: `hf-mem`, `llm-d-planner[estimation]`, `aisimulate` (a wheel of 0.13.0 is NVIDIA's own index's, one
before it PyPI's: `pip install --pre`). Nothing is downloaded: models have the configuration of models.py, and headers of their weights' files are made
of it, as publishers have them. A card has the memory that the row's log says; a calculator that is to know how many tokens are batched has its own default.
"""

import asyncio
import csv
import importlib
import importlib.metadata
import json
import math
import struct
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from models import MODELS

HERE = Path(__file__).resolve().parent
PUBLIC, ROWS = HERE / "public.csv", HERE / "rivals.csv"
KEYS = ["version", "model", "card", "cards", "arguments"]
FIELDS = ["rival", "rival_version", *KEYS, "weights_gib", "weights_gib_logged", "kv_gib", "kv_gib_logged", "off_percent", "why"]
GIB = 2**30
#: As CUDA has them, in GiB.
CARDS = {"h100:79.18GiB": 79.18, "l40s": 44.39, "a100-40g": 39.39}
BYTES = {"BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1, "I32": 4}


def tensors(config):
    """Of a publisher's files: what is a product of matrices in the form that its quantisation has, the rest as it is."""
    quantised = config.get("quantization_config", {}).get("quant_method")
    plain = {"float16": "F16"}.get(config["torch_dtype"], "BF16")
    wide, vocabulary, layers = config["hidden_size"], config["vocab_size"], config["num_hidden_layers"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    head = config.get("head_dim", wide // heads)
    inner = config.get("shared_intermediate_size", config["intermediate_size"])
    found = {"model.embed_tokens.weight": (plain, [vocabulary, wide]), "model.norm.weight": (plain, [wide])}
    if not config.get("tie_word_embeddings"):
        found["lm_head.weight"] = (plain, [vocabulary, wide])

    def product(name, out, into):
        if quantised == "compressed-tensors":
            found[f"{name}.weight"], found[f"{name}.weight_scale"] = ("F8_E4M3", [out, into]), (plain, [out, 1])
        elif quantised == "awq":
            found[f"{name}.qweight"], found[f"{name}.scales"] = ("I32", [into, out // 8]), (plain, [into // 128, out])
            found[f"{name}.qzeros"] = ("I32", [into // 128, out // 8])
        else:
            found[f"{name}.weight"] = (plain, [out, into])

    for layer in range(layers):
        at = f"model.layers.{layer}"
        for name, out, into in [("q", heads * head, wide), ("k", groups * head, wide), ("v", groups * head, wide), ("o", wide, heads * head)]:
            product(f"{at}.self_attn.{name}_proj", out, into)
        found |= {f"{at}.{name}.weight": (plain, [wide]) for name in ("input_layernorm", "post_attention_layernorm")}
        experts = config.get("num_local_experts") or 0
        if experts:
            found[f"{at}.mlp.router.weight"] = (plain, [experts, wide])
            # MXFP4: blocks of 32 numbers in 16 bytes, and a byte to scale them.
            for name, out, into in [("gate_up_proj", 2 * inner, wide), ("down_proj", wide, inner)]:
                found[f"{at}.mlp.experts.{name}_blocks"] = ("U8", [experts, out, math.ceil(into / 32), 16])
                found[f"{at}.mlp.experts.{name}_scales"] = ("U8", [experts, out, math.ceil(into / 32)])
                found[f"{at}.mlp.experts.{name}_bias"] = (plain, [experts, out])
        else:
            for name, out, into in [("gate", inner, wide), ("up", inner, wide), ("down", wide, inner)]:
                product(f"{at}.mlp.{name}_proj", out, into)
    return found


def header(config):
    at, about = 0, {}
    for name, (kind, shape) in tensors(config).items():
        size = BYTES[kind] * math.prod(shape)
        about[name] = dict(dtype=kind, shape=shape, data_offsets=[at, at + size])
        at += size
    return json.dumps(about).encode()


def hf_mem(row, folder):
    """Reads the hub over httpx2: answered here."""
    import httpx2

    run = importlib.import_module("hf_mem.run")

    config = MODELS[row["model"]]
    file = header(config)
    file = struct.pack("<Q", len(file)) + file

    def answer(request):
        path = request.url.path
        if "/api/models/" in path:
            return httpx2.Response(200, json=[dict(type="file", path=name) for name in ("model.safetensors", "config.json")])
        if path.endswith("/config.json"):
            return httpx2.Response(200, json=config)
        first, last = request.headers["range"].removeprefix("bytes=").split("-")
        return httpx2.Response(206, content=file[int(first) : int(last) + 1])

    client = httpx2.AsyncClient
    run.httpx2 = SimpleNamespace(**{name: getattr(httpx2, name) for name in ("Limits", "Timeout")}, AsyncClient=lambda **_: client(transport=httpx2.MockTransport(answer)))
    found = asyncio.run(run.arun(row["model"], experimental=False))
    return found.memory / GIB, None, "it says what weights and the cache of given requests take, of no card"


def llm_d_planner(row, folder):
    from planner import capacity_planner

    count = {}
    for kind, shape in tensors(MODELS[row["model"]]).values():
        count[kind] = count.get(kind, 0) + math.prod(shape)
    capacity_planner._get_safetensors_metadata_cached = lambda *_: SimpleNamespace(parameter_count=count)
    cards, length = int(row["cards"]), setting(row, "max_model_len")
    found = capacity_planner.calculate_capacity(
        str(folder), int(length) if length else None, 1, CARDS[row["card"]], tp=cards, pp=1, dp=1, gpu_mem_util=share(row), block_size=int(setting(row, "block_size") or 16)
    )
    return found["per_gpu_model_memory_gb"], found["allocatable_kv_cache_memory_gb"] / cards, ""


def aisimulate(row, folder):
    from aisimulate_core.sdk.memory import estimate_kv_cache

    system = {"h100:79.18GiB": "h100_sxm", "l40s": "l40s", "a100-40g": "a100_sxm"}[row["card"]]
    found = estimate_kv_cache(
        str(folder), system, "vllm", max_num_tokens=int(setting(row, "max_num_batched_tokens") or 8192), max_batch_size=int(setting(row, "max_num_seqs") or 256),
        memory_fraction_kind="of_total", memory_fraction_value=share(row), tp_size=int(row["cards"]), gpu_memory_capacity_bytes_override=int(CARDS[row["card"]] * GIB),
    )  # fmt: skip
    return found["memory_breakdown"]["weights_bytes"] / GIB, found["total_kv_size_bytes"] / GIB, ""


def setting(row, name):
    words = row["arguments"].replace("=", " ").replace("--", "").replace("-", "_").split()
    return words[words.index(name) + 1] if name in words else None


def share(row):
    return float(setting(row, "gpu_memory_utilization") or 0.9)


ASK = {"hf-mem": hf_mem, "llm-d-planner": llm_d_planner, "aisimulate": aisimulate}


def asked(rival, version, row):
    weights = kv = None
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODELS[row["model"]]))
        try:
            weights, kv, why = ASK[rival](row, Path(folder))
        except Exception as error:
            why = f"{type(error).__name__}: {' '.join(str(error).replace(folder, row['model']).split())}"[:200]
    logged = float(row["kv_gib"])
    return {
        "rival": rival, "rival_version": version, **{key: row[key] for key in KEYS}, "weights_gib": "" if weights is None else f"{weights:.2f}", "weights_gib_logged": row["weights_gib"],
        "kv_gib": "" if kv is None else f"{kv:.2f}", "kv_gib_logged": row["kv_gib"], "off_percent": f"{(kv / logged - 1) * 100:+.2f}" if kv is not None and logged > 0 else "", "why": why,
    }  # fmt: skip


def main():
    rival = sys.argv[1]
    version = importlib.metadata.version(rival)
    found = [asked(rival, version, row) for row in csv.DictReader(PUBLIC.open())]
    for row in found:
        print(", ".join(f"{name} {value}" for name, value in row.items() if value))
    kept = list(csv.DictReader(ROWS.open())) if ROWS.exists() else []
    with ROWS.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows([*(one for one in kept if one["rival"] != rival), *found])


if __name__ == "__main__":
    main()
