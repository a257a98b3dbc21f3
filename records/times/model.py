"""The time model of src/rehearse/src/answer/time/device.rs over many rows at once, for fitting its constants; examples/steps.rs is what predicts."""

import csv
import math
import pathlib

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIME = ROOT / "src/rehearse/src/answer/time"
# L2 gives each multiprocessor so many bytes a second: gpu-benches' small kernels, A40, L40, A100 and H200 (33 to 43).
CACHE = 36e9
# One block of threads of a norm draws so many (device.rs).
BLOCK = 5e9
# Convolutions of three dimensions with fewer channels have kernels of their own (device.rs).
FEW_CHANNELS = 16
# Heads of fewer elements leave tensor cores waiting for softmax (device.rs).
NARROW = 64
# A backward pass of attention reaches so much of the rate of a forward pass (device.rs).
BACKWARD = 0.75
# The length that its constants are of, and the share of the bandwidth that it reads keys and values with.
LENGTH, USUAL_MEMORY = 1024, 0.87
# Multiplications of 3 x 3 filters in fp32 by Winograd's algorithm, four results at a time, for each of the plain one's (device.rs).
WINOGRAD = 16 / 36
TRANSPOSED, VOLUME, CHANNELS_LAST, RELAID = 32, 64, 16, 4


class Card:
    def __init__(self, bandwidth, single, tf32, half, multiprocessors, l2, capability):
        self.bandwidth, self.single, self.tf32, self.half = bandwidth * 1e9, single * 1e12, tf32 * 1e12, half * 1e12
        self.multiprocessors, self.l2, self.capability = multiprocessors, l2, capability

    def double(self):
        return self.single / (2 if self.capability in (7.0, 8.0, 9.0, 10.0) else 32 if self.capability < 8 else 64)


def cards():
    found = {}
    for row in csv.DictReader(open(ROOT / "src/sim/src/cards.csv")):
        names = ("bandwidth", "single", "tf32", "half", "multiprocessors", "l2", "capability")
        if all(row[name] for name in names):
            found[row["name"]] = Card(*(float(row[name]) for name in names))
    # Cards that only records have.
    elsewhere = {row.pop("name"): Card(*map(float, row.values())) for row in csv.DictReader(open(TIME / "elsewhere.csv"))}
    return {**elsewhere, **found}


def chips():
    return {row["card"]: row["chip"] for row in csv.DictReader(open(TIME / "chips.csv"))}


def class_of(card, row):
    """Class of constants and peak; `row` has the fields of steps.py."""
    precision = "single" if row["precision"] == "tf32" and card.capability < 8 else row["precision"]
    peak = {"half": card.half, "tf32": card.tf32, "single": card.single, "double": card.double()}[precision]
    kind, direction, flags = row["kind"], int(row["direction"]), int(row["flags"])
    cores = {"half": "half", "tf32": "tf32"}.get(precision, "single")
    if kind in ("matmul", "recurrent"):
        return "matmul_single" if cores == "single" else "matmul_half", peak
    if kind == "convolution":
        groups, is_transposed = int(row["groups"]), bool(flags & TRANSPOSED)
        # A transposed one is the gradient of the input of another.
        part = {0: "data" if is_transposed else "forward", 1: "data", 2: "weights", 3: "both"}[direction]
        if groups > 1 and int(row["k"]) == int(row["taps"]):
            return f"depthwise_{cores}_{part}", card.single
        if groups > 1:
            return f"grouped_{cores}_{part}", peak
        if flags & VOLUME and (is_transposed or int(row["k"]) < FEW_CHANNELS * int(row["taps"])):
            return f"volume_{cores}", peak
        return f"convolution_{cores}_{part}", peak
    if kind in ("attention", "attention_backward"):
        narrow = "_narrow" if kind == "attention" and int(row["k"]) <= NARROW else ""
        return ("matmul_single" if cores == "single" else kind + narrow), peak
    if kind == "reduction":
        return "reduction_backward" if direction and "batch_norm" not in row.get("operator", "") else "reduction", peak
    return ("layout" if kind == "layout" else "pointwise"), peak


def flops(card, row):
    """Those that are done: of a 3 x 3 filter that moves by one position in fp32 fewer than told. Records of operators tell no stride."""
    is_square = row["kind"] == "convolution" and int(row["taps"]) == 9 and int(row.get("stride") or 1) <= 1 and not int(row["flags"]) & VOLUME
    is_winograd = is_square and class_of(card, row)[0].startswith("convolution_single") and int(row["k"]) >= FEW_CHANNELS * 9
    return float(row["flops"]) * (WINOGRAD if is_winograd else 1 / BACKWARD if row["kind"] == "attention_backward" else 1.0)


def changes_layout(card, row):
    """Whether cuDNN takes a convolution's tensors to channels last and the result back (device.rs)."""
    flags, groups, taps = int(row["flags"]), int(row["groups"]), int(row["taps"])
    if row["kind"] != "convolution" or row["precision"] == "single" or flags & CHANNELS_LAST or groups > 1 and int(row["k"]) == taps:
        return False
    on_hopper = card.capability == 9.0 and not class_of(card, row)[0].startswith("volume")
    return bool(flags & RELAID) or on_hopper and (row["precision"] == "half" or row["precision"] == "tf32" and taps > 1)


def cached(card, moved):
    """Share of the bytes that L2 gives where the same are read again at once: all up to half of it, none beyond it."""
    return np.clip(2.0 - 2.0 * moved / card.l2, 0.0, 1.0)


def beside_products(row):
    """Of attention its blocks of threads, of 128 queries, and the FLOPs of half of its products for a key each: softmax and what a causal mask leaves
    of a block are work that grows with the length alone, masked or not, where products grow with its square."""
    queries, keys, width = (int(row[name]) for name in "mnk")
    if not queries * keys * width:
        return 0.0, 0.0
    backward = row["kind"] == "attention_backward"
    half = (5.0 if backward else 2.0) * queries * keys * width
    # Of records that do not tell them, which are causal.
    heads = int(row.get("batch") or 0) or float(row["flops"]) / half
    return heads * math.ceil(queries / 128), heads * half / keys / (BACKWARD if backward else 1.0)


def seconds(card, peak, flops, moved, launches, fixed, compute, memory, blocks=0.0, beside=None):
    """Of attention `memory` is the share of its rate that it reaches at a length of 1024, `beside` what a position is worth of FLOPs (`beside_products`)."""
    if beside is not None:
        # Half a round of blocks is lost where they do not fill the card.
        idle = np.where(blocks > 0, 0.5 * card.multiprocessors / np.maximum(blocks, 1), 0.0)
        arithmetic = (flops + beside * LENGTH * (1 / memory - 1)) / (peak * compute) * (1 + idle)
        return fixed * launches + np.hypot(arithmetic, moved / (card.bandwidth * USUAL_MEMORY))
    share = cached(card, moved)
    rate = 1.0 / ((1.0 - share) / (card.bandwidth * memory) + share / max(CACHE * card.multiprocessors, card.bandwidth))
    least = np.where(blocks > 0, moved / (BLOCK * np.maximum(blocks, 1)), 0.0)
    return fixed * launches + np.hypot(flops / (peak * compute), np.maximum(moved / rate, least))
