"""Fits the constants of the time model on operators that others timed (records/times/operators) and writes
src/rehearse/src/answer/time/constants.csv.

    python records/times/fit.py [--without CARD...] [--out FILE]

Needs numpy and scipy. A kernel's time is

    t = fixed * launches + sqrt((FLOPs / (peak * compute))^2 + (bytes / rate)^2)

with the card's specification, a rate of bandwidth * memory, and that of L2 for what L2 holds (model.py). Of each card and class of kernels that
has records there are three constants, those that minimise a robust sum of log(predicted / recorded)^2. A card without its own takes those of a
card with its chip, of its architecture, or those of all (`any`, the median); which is decided where they are used, so that only what was fitted
is written. With --without a card's records are left out and the error on them is printed: what a card without records has to expect.
"""

import argparse
import csv
import collections
import gzip
import pathlib
import warnings

import numpy as np
from scipy.optimize import least_squares

import model

OPERATORS = model.ROOT / "records/times/operators"
# What `vramlab calibrate` timed, in graphs: CARD-operators-graphs.csv, and in channels first: CARD-operators-first.csv.
CALIBRATED = model.ROOT / "records/gpus"
# Convolutions of three dimensions, which the constants of those of two are held to.
HELD_OUT = ("xwang233",)
STEPS = model.ROOT / "records/times/steps"
# Where nothing else is known: microseconds, and shares of the peak and of the bandwidth.
USUAL = (2.5, 0.6, 0.8)
# The highest bandwidth of any kernel beside the specification: te42kyfo/gpu-benches' best on A40, L40, A100 and V100 is 0.97 to 0.99 of it.
STREAM = 0.97
# KernelBench's clock has the launch in it: assumed.
LAUNCH = 1e-5
# Fewer rows of a class say nothing.
LEAST = 3
# Of these, what they compute is not what they wait for.
IS_MOVED = ("pointwise", "reduction", "reduction_backward", "layout")
# One chip's records of these say more of other chips than what is near: consumer cards have none.
FROM_ONE = ("depthwise_half", "grouped_half")
# Products with other leading dimensions take longer by factors of their own (device.rs).
ALIGNED = {"matmul_half": 8, "matmul_single": 8}


def operators():
    """Each source's name, card and row."""
    for path in sorted(OPERATORS.glob("*.csv.gz")):
        with gzip.open(path, "rt") as file:
            yield from ((path.name.split(".")[0], row["card"], row) for row in csv.DictReader(file))
    for path in sorted([*CALIBRATED.glob("*-operators-graphs.csv"), *CALIBRATED.glob("*-operators-first.csv")]):
        for row in csv.DictReader(path.open()):
            # In channels first depthwise convolutions, and those without tensor cores, have kernels of their own.
            if row["kind"] == "host" or path.name.endswith("first.csv") and not model.changes_layout(model.cards()[path.name.split("-operators")[0]], row):
                continue
            # Of a first layer's few channels the gradient is asked of nobody, and the rate of one such row is not that of others.
            if row["kind"] != "convolution" or int(row["groups"]) > 1 or int(row["k"]) >= model.FEW_CHANNELS * int(row["taps"]):
                yield "calibrate", path.name.split("-operators")[0], row


def records(without=(), held_out=False):
    """By card and class: rows of FLOPs, bytes, launches, peak, seconds, and whether a change of layout is in it; and by source how many."""
    all_cards, found = model.cards(), collections.defaultdict(list)
    for source, name, row in operators():
        kind, peak = model.class_of(all_cards[name], row)
        # FlashAttention has kernels for heads of 256 at most.
        if row["kind"] == "attention" and int(row["k"]) > 256:
            continue
        if not int(row["alignment"]) % ALIGNED.get(kind, 1) and name not in without and (source in HELD_OUT) == held_out:
            found[name, kind].append((model.flops(all_cards[name], row), float(row["bytes"]), int(row["launches"]), peak, float(row["seconds"]),
                                      model.changes_layout(all_cards[name], row), *blocks_of(row), source))
    if held_out:
        return found
    for card, row, seconds in problems():
        # Norms that were rehearsed before their blocks were recorded say nothing of the rate.
        if row["kind"] == "reduction" and "norm" in row["operator"] and row["m"] == "0":
            continue
        # Theirs are of one or three dimensions.
        if card not in without and int(row["groups"]) in (0, 1, int(row["n"])):
            kind, peak = model.class_of(all_cards[card], row)
            relaid = model.changes_layout(all_cards[card], row)
            found[card, kind].append((model.flops(all_cards[card], row), float(row["bytes"]), int(row["launches"]), peak, seconds, relaid, *blocks_of(row),
                                      "kernelbench"))
    return found


def blocks_of(row):
    """Of a norm or attention blocks of threads, and of attention what softmax is worth."""
    return model.beside_products(row) if row["kind"].startswith("attention") else (float(row["m"]) if row["kind"] == "reduction" else 0.0, 0.0)


def problems():
    """KernelBench's problems of one operator (level 1): whose kernel takes most, so that its launch is not what is seen."""
    steps = collections.defaultdict(list)
    with gzip.open(STEPS / "kernelbench.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            # Sums along a row one after the other, and places of extremes, have kernels of their own.
            if float(row["bytes"]) > 1e5 and not row["operator"].startswith(("cum", "_cum", "arg", "max.dim", "min.dim", "sort")):
                steps[row["case"]].append(row)
    with gzip.open(STEPS.parent / "measured.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            own = steps.get(row["case"], [])
            if row["source"] == "kernelbench" and "/level1/" in row["case"] and len(own) == 1 and own[0]["count"] == "1" and float(row["seconds"]) > 2e-4:
                yield row["card"], own[0], float(row["seconds"]) - LAUNCH


def columns(rows):
    return [np.array(column) for column in zip(*(row[:8] for row in rows))]


def bounds(kind):
    # Several kernels of a library may be one call; others are one.
    most = 40.0 if kind.startswith(("convolution", "grouped", "attention", "layout")) else 15.0
    return np.array([0.8, 0.02, 0.08]), np.array([most, 1.1, 1.0])


def fitted(card, kind, rows, layout, usual):
    """A fit at a bound is none: what other cards have stands there, of bandwidth what STREAM reaches, and the rest is fitted again beside it."""
    low, high = bounds(kind)
    own, held = None, [False] * 3
    while own is None or any(is_new := [not fast and (value <= 1.01 * least or value >= 0.99 * most) and not (at == 1 and kind in IS_MOVED)
                                        for at, (fast, value, least, most) in enumerate(zip(held, own, low, high))]):
        held = held if own is None else [fast or new for fast, new in zip(held, is_new)]
        own = fitted_beside(card, kind, rows, layout, (*usual[:2], STREAM if held[2] else usual[2]), held)
    fixed, compute, memory = own
    error = np.abs(errors(card, kind, rows, own, layout))
    sources = collections.Counter(row[8] for row in rows)
    return (fixed, compute, memory, len(rows), float(np.median(error)), float(np.quantile(error, 0.9)),
            "+".join(f"{name} {count}" for name, count in sorted(sources.items())), held)


def fitted_beside(card, kind, rows, layout, usual, held):
    flops, moved, launches, peak, seconds, relaid, blocks, beside = columns(rows)
    more = np.where(relaid, 2 * moved / (card.bandwidth * layout), 0.0)
    # Each source as one voice, so that the longest list is not all.
    sources = collections.Counter(row[8] for row in rows)
    weight = np.sqrt(np.array([1.0 / max(sources[row[8]], 30) for row in rows]))
    weight /= weight.max()
    is_moved = kind in IS_MOVED

    def residuals(x):
        x = np.where(held, np.log(usual), x)
        fixed, compute, memory = np.exp(x[0]) * 1e-6, 1.0 if is_moved else np.exp(x[1]), np.exp(x[2])
        guess = model.seconds(card, peak, 0 * flops if is_moved else flops, moved, launches, fixed, compute, memory, blocks, beside if kind.startswith("attention") else None) + more
        return np.concatenate([weight * np.log(guess / seconds), drawn * (x - np.log(usual))])

    # Drawn to what the other cards have where few rows say otherwise.
    drawn = np.array([0.5, 0.5, 0.5])
    low, high = np.log(bounds(kind))
    usual = np.clip(usual, np.exp(low) * 1.01, np.exp(high) * 0.99)
    found = least_squares(residuals, np.log(usual), bounds=(low, high), loss="soft_l1", f_scale=0.1)
    fixed, compute, memory = np.exp(np.where(held, np.log(usual), found.x))
    return fixed, 1.0 if is_moved else compute, memory


def errors(card, kind, rows, values, layout):
    flops, moved, launches, peak, seconds, relaid, blocks, beside = columns(rows)
    more = np.where(relaid, 2 * moved / (card.bandwidth * layout), 0.0)
    guess = model.seconds(card, peak, flops * (kind not in IS_MOVED), moved, launches, values[0] * 1e-6, values[1], values[2],
                          blocks, beside if kind.startswith("attention") else None) + more
    return np.log(guess / seconds)


def kin(own, kind, card):
    """Constants for a card: its own, of its chip, of its architecture, of all; and which."""
    chips, all_cards = model.chips(), model.cards()
    if (card, kind) in own:
        return own[card, kind], card
    for grade, alike in (("chip", lambda one: chips.get(one) and chips.get(one) == chips.get(card)),
                         ("architecture", lambda one: all_cards[one].capability == all_cards[card].capability)):
        for _, one in sorted(((-values[3], name) for (name, of), values in own.items() if of == kind and name != "any" and alike(name))):
            return own[one, kind], f"{grade}: {one}"
    return None, "any"


def medians(own):
    """Each chip as one voice, where two speak of a class: one says nothing of others. What was held says nothing either."""
    chips, found = model.chips(), collections.defaultdict(lambda: collections.defaultdict(list))
    for (name, kind), values in own.items():
        found[kind][chips.get(name, name)].append(np.where(values[7], np.nan, values[:3]))
    with warnings.catch_warnings(action="ignore"):
        middle = {kind: np.nanmedian([np.nanmedian(of, axis=0) for of in by_chip.values()], axis=0) for kind, by_chip in found.items()}
    return {kind: np.where(np.isnan(values), USUAL, values) for kind, values in middle.items() if len(found[kind]) > 1 or kind.startswith(FROM_ONE)}


def fit(without=(), quiet=True):
    all_cards, rows, own, usual = model.cards(), records(without), {}, {}
    layout = 0.66
    for _ in range(3):
        for (card, kind), some in sorted(rows.items(), key=lambda item: (item[0][1] != "layout", item[0])):
            if len(some) >= LEAST:
                own[card, kind] = fitted(all_cards[card], kind, some, layout, usual.get(kind, USUAL))
                layout = own[card, kind][2] if kind == "layout" else layout
        usual = medians(own)
    if not quiet:
        for (card, kind), (fixed, compute, memory, count, median, p90, on, _) in sorted(own.items()):
            print(f"{card:14} {kind:26} {fixed:5.2f} us {compute:.3f} {memory:.3f} {count:6} median {median:6.1%} p90 {p90:6.1%}  {on}")
    for kind, values in usual.items():
        own["any", kind] = (*values, 0, 0.0, 0.0, "the median of the cards", None)
    return own, layout


def write(path, own):
    with open(path, "w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow("card,class,fixed_us,compute,memory,rows,median_error,fitted_on".split(","))
        for (card, kind), (fixed, compute, memory, count, median, _, on, _) in sorted(own.items()):
            out.writerow([card, kind, f"{fixed:.2f}", f"{compute:.3f}", f"{memory:.3f}", count, f"{median:.3f}", on])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without", nargs="*", default=[], metavar="CARD")
    parser.add_argument("--out", type=pathlib.Path, default=model.TIME / "constants.csv")
    options = parser.parse_args()
    own, layout = fit(options.without, quiet=False)
    for is_source in (False, True):
        for (card, kind), some in sorted(records(held_out=is_source).items()):
            if (is_source or card in options.without) and len(some) >= LEAST:
                values, of = kin(own, kind, card)
                if values or ("any", kind) in own:
                    error = np.abs(errors(model.cards()[card], kind, some, values or own["any", kind], layout))
                    print(f"held out {card} {kind} by {of}: median {np.median(error):.1%}, p90 {np.quantile(error, 0.9):.1%}")
    if not options.without or options.out != model.TIME / "constants.csv":
        write(options.out, own)


if __name__ == "__main__":
    main()
