"""Sets what was predicted (predictions.csv, written first) beside what others measured: steps.csv and ratios.csv of experiments/real_times, the
tables in docs/time.md, and the intervals in src/rehearse/src/answer/time/intervals.csv.

    python peers/times/comparison.py FOLDER
"""

import csv
import gzip
import json
import math
import pathlib
import statistics
import sys

from predictions import HERE, NEUSIGHT, ROOT, rows_of

COMMITS = {
    "timm": "huggingface/pytorch-image-models@aa4b5850",
    "neusight": "sitar-lab/NeuSight@6945927d",
    "liger": "linkedin/Liger-Kernel@ead96b61",
    "kineto": "pytorch/kineto@041e7ce9",
}
CELLS = ("anchored", "specification", "host")
EXPERIMENT = ROOT / "experiments/real_times"
# Of timm's names; the others are convolutional networks.
TRANSFORMERS = ("vit", "deit", "xcit", "crossvit", "cait", "swin", "beit", "coat", "mixer", "gmixer", "gmlp", "pit", "tnt", "volo", "jx")


def measured(folder):
    """Seconds of a step by source, case and card."""
    found = {}
    for row in rows_of(folder / "neusight_labels.csv"):
        if row["gpu"] in NEUSIGHT:
            found["neusight", row["run"], NEUSIGHT[row["gpu"]]] = float(row["e2e_ms"]) / 1e3
    for layout in ("nchw", "nhwc"):
        for row in rows_of(folder / f"timm-train-amp-{layout}-pt112-cu113-rtx3090.csv.gz"):
            case = f"{row['model']} {row['train_batch_size']} {row['train_img_size']} {layout}"
            found["timm", case, "rtx-3090"] = float(row["train_step_time"]) / 1e3
    cards = {"NVIDIA A100-SXM4-80GB": "a100-80g", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA GeForce RTX 3090": "rtx-3090"}
    for row in rows_of(folder / "liger-speed.csv.gz"):
        card, name = cards.get(row["gpu_name"]), row["kernel_name"]
        if card is None or row["metric_name"] != "speed" or row["kernel_provider"] not in ("huggingface", "torch"):
            continue
        more = json.loads(row["extra_benchmark_config_str"])
        end = {"softmax": f" {more.get('dtype', '')[6:]}", "embedding": f" {more.get('D')} {more.get('B')} {more.get('T')}"}.get(name, "")
        found["liger", f"{name} {row['kernel_operation_mode']} {row['x_value']}{end}", card] = float(row["y_value_50"]) / 1e3
    with gzip.open(folder / "traces/v100_resnet50_train_b32__kineto_tb_plugin.pt.trace.json.gz", "rt") as file:
        trace = json.load(file)
    durations = [event["dur"] for event in trace["traceEvents"] if event.get("name", "").startswith("ProfilerStep") and "dur" in event]
    found["kineto", "", "v100"] = statistics.median(durations) * 1e-6
    return found


def quantile(values, share):
    values = sorted(values)
    at = min(max(share * (len(values) - 1), 0), len(values) - 1)
    low = math.floor(at)
    return values[low] + (values[min(low + 1, len(values) - 1)] - values[low]) * (at - low)


def cell_of(row):
    if row["source"] == "liger":
        return "operator"
    if row["bound_by"] in ("launches", "synchronisation") and float(row["device_seconds"]) < 0.9 * float(row["seconds"]):
        return "host"
    return "anchored" if row["anchored"] == "true" else "specification"


def band(errors):
    """Tenth and ninetieth percentile, a little wider where there are few."""
    tail = 0.1 * (1 - 1 / math.sqrt(len(errors) + 1))
    return math.exp(quantile(errors, tail)), math.exp(quantile(errors, 1 - tail))


def widest(by_source):
    """What holds a new source's rows: the widest of the bands of those that are here, where they have ten rows."""
    bands = [band(errors) for errors in by_source if len(errors) >= 10]
    return min(low for low, _ in bands), max(high for _, high in bands)


def median_and_p90(errors):
    sizes = [abs(math.expm1(error)) for error in errors]
    return f"{quantile(sizes, 0.5):.1%} / {quantile(sizes, 0.9):.1%}".replace("%", " %")


def family(row):
    if row["source"] == "liger":
        return "operator"
    if row["source"] == "neusight":
        return "language-model"
    return "vision-transformer" if row["words"] and row["words"][0].startswith(TRANSFORMERS) else "convolutional"


def pairs(rows):
    """Pairs of one source on one card that are variants of one script."""
    for at, one in enumerate(rows):
        for other in rows[:at]:
            # Variants of one script: the same model, or the same operator, with one word changed.
            words = list(zip(one["words"], other["words"]))
            if one["card"] != other["card"] or one["words"][:1] != other["words"][:1] or sum(a != b for a, b in words) != 1:
                continue
            yield other, one


def kind(pair):
    """What is changed: a layout picks other kernels, a batch or a pass has more of the same."""
    return "layout" if {one["words"][-1] for one in pair} == {"nchw", "nhwc"} else "size"


def logarithms(pair):
    return tuple(math.log(pair[1][name] / pair[0][name]) for name in ("predicted", "measured"))


def ratios(rows):
    """Of such pairs: predicted against measured, as logarithms, and how often the sign is right of those beyond 3 %."""
    found = [logarithms(pair) for pair in pairs(rows)]
    return [real - predicted for predicted, real in found], [(real > 0) == (predicted > 0) for predicted, real in found
                                                             if abs(math.expm1(real)) > 0.03]


def both_ways(errors):
    """Which of a pair comes first is nobody's choice."""
    return [sign * error for error in errors for sign in (1, -1)]


def band_of_ratios(pairs, *changes):
    return band(both_ways([real - predicted for predicted, real in (logarithms(pair) for pair in pairs if kind(pair) in changes)]))


def model_of(pair):
    return pair[0]["words"][0]


def name_of(row):
    return row["case"].replace(" ", ";").replace("-", ";") or "resnet50;32"


def write(name, header, rows):
    with open(EXPERIMENT / name, "w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(header.split(","))
        out.writerows([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows)


def main():
    folder = pathlib.Path(sys.argv[1])
    real, rows = measured(folder), []
    for row in rows_of(HERE / "predictions.csv"):
        seconds = real.get((row["source"], row["case"], row["card"]))
        if seconds:
            figures = {name: float(row[name]) for name in ("roofline", "pytorch")}
            # Liger's are the device's time for an operator (triton.testing.do_bench), not that of a step.
            predicted = float(row["device_seconds" if row["source"] == "liger" else "seconds"])
            rows.append({**row, **figures, "predicted": predicted, "measured": seconds, "cell": cell_of(row),
                         "words": row["case"].replace("-", " ").split() if row["source"] == "neusight" else row["case"].split()})
    error = lambda row, name="predicted": math.log(row["measured"] / row[name])
    lines = ["| records | rows | predicted | median of measured / predicted | plain roofline | PyTorch's estimate | ratios of variants | sign right |",
             "|---|---:|---:|---:|---:|---:|---:|---:|"]
    groups = [(f"{source}, {card}", [row for row in rows if (row["source"], row["card"]) == (source, card)])
              for source, card in sorted({(row["source"], row["card"]) for row in rows})]
    groups += [(f"{cell} (all)", [row for row in rows if row["cell"] == cell]) for cell in CELLS]
    steps = [row for row in rows if row["cell"] != "operator"]
    # Whose band is told by the other sources alone.
    band_without = {}
    for source in COMMITS:
        others = [[error(row) for row in steps if row["source"] == one] for one in COMMITS if one != source]
        band_without[source] = widest(others) if any(len(errors) >= 10 for errors in others) else (math.nan, math.nan)
    write("steps.csv", "source,case,card,family,constants,bound_by,predicted,low,high,measured,roofline,pytorch,commit", (
        (row["source"], name_of(row), row["card"], family(row), row["cell"], row["bound_by"], row["predicted"],
         *(row["predicted"] * end for end in band_without[row["source"]]), row["measured"], row["roofline"], row["pytorch"], COMMITS[row["source"]])
        for row in rows))
    of_steps = list(pairs(steps))
    write("ratios.csv", "source,change,card,from,to,predicted,measured,roofline,pytorch,commit", (
        (to["source"], kind((of, to)), to["card"], name_of(of), name_of(to),
         *(to[name] / of[name] for name in ("predicted", "measured", "roofline", "pytorch")), COMMITS[to["source"]]) for of, to in of_steps))
    groups += [("all steps", steps)]
    for name, some in groups:
        if not some:
            continue
        between, signs = ratios(some)
        lines.append(f"| {name} | {len(some)} | {median_and_p90([-error(row) for row in some])} | "
                     f"{math.exp(quantile([error(row) for row in some], 0.5)):.2f} | "
                     + " | ".join(median_and_p90([-error(row, one) for row in some]) for one in ("roofline", "pytorch"))
                     + f" | {median_and_p90(between) if between else '-'} | {f'{sum(signs) / len(signs):.0%} of {len(signs)}'.replace('%', ' %') if signs else '-'} |")
    with open(ROOT / "src/rehearse/src/answer/time/intervals.csv", "w") as file:
        file.write("cell,low,high,residuals\n")
        for cell in CELLS:
            # A cell of few takes all; there is no record of a step bound by its host, whose own speed is unknown besides: assumed, the square.
            own = [row for row in steps if row["cell"] == cell]
            some = own if len(own) >= 30 else steps
            low, high = widest([[error(row) for row in some if row["source"] == source] for source in COMMITS])
            power = 2 if cell == "host" and some is steps else 1
            file.write(f"{cell},{low**power:.2f},{high**power:.2f},{len(some)}\n")
        for cell, change in (("ratio", "size"), ("layout", "layout")):
            low, high = band_of_ratios(of_steps, change)
            file.write(f"{cell},{low:.2f},{high:.2f},{sum(kind(pair) == change for pair in of_steps)}\n")
    lines += ["", "| held out | rows | inside the band of the others |", "|---|---:|---:|"]
    for source in sorted(COMMITS):
        held = [row for row in steps if row["source"] == source]
        inside = 0
        for row in held:
            low, high = band_without[source]
            inside += low <= math.exp(error(row)) <= high
        if held:
            lines.append(f"| {source} | {len(held)} | {inside / len(held):.0%} |".replace("%", " %"))
    lines += ["", "| ratios, each model held out | pairs | median / p90 | band of all | inside the band of the others of its kind | of both kinds |",
              "|---|---:|---:|---:|---:|---:|"]
    for change, what in (("size", "batch, or passes that are run"), ("layout", "channels last")):
        own = [pair for pair in of_steps if kind(pair) == change]
        errors = [real - predicted for predicted, real in map(logarithms, own)]
        inside = []
        for kinds in ((change,), ("size", "layout")):
            bands = [band_of_ratios([one for one in of_steps if model_of(one) != model_of(pair)], *kinds) for pair in own]
            inside.append(sum(low <= math.exp(error) <= high for error, (low, high) in zip(errors, bands)) / len(own))
        low, high = band_of_ratios(own, change)
        lines.append(f"| {what} | {len(own)} | {median_and_p90(errors)} | {low:.2f} to {high:.2f} | "
                     + " | ".join(f"{share:.0%}".replace("%", " %") for share in inside) + " |")
    text = (ROOT / "docs/time.md").read_text()
    begin, end = "<!-- comparison: written by peers/times/comparison.py -->\n", "<!-- end of comparison -->"
    head, rest = text.split(begin)
    (ROOT / "docs/time.md").write_text(head + begin + "\n" + "\n".join(lines) + "\n\n" + rest[rest.index(end):])
    print("\n".join(lines))


if __name__ == "__main__":
    main()
