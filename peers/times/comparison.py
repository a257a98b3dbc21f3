"""Sets what was predicted (predictions.csv, written first) beside what others measured: peers/times/comparison.csv, the table in docs/time.md,
and the intervals in src/rehearse/src/time/intervals.csv.

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


def ratios(rows):
    """Of pairs of one source on one card: predicted against measured, as logarithms, and how often the sign is right of those beyond 3 %."""
    errors, signs = [], []
    for at, one in enumerate(rows):
        for other in rows[:at]:
            # Variants of one script: the same model, or the same operator, with one word changed.
            words = list(zip(one["words"], other["words"]))
            if one["card"] != other["card"] or one["words"][:1] != other["words"][:1] or sum(a != b for a, b in words) != 1:
                continue
            predicted, real = (math.log(one[name] / other[name]) for name in ("predicted", "measured"))
            errors.append(real - predicted)
            if abs(math.expm1(real)) > 0.03:
                signs.append((real > 0) == (predicted > 0))
    return errors, signs


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
    with open(HERE / "comparison.csv", "w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow("source,case,card,predicted,measured,roofline,pytorch,bound_by,cell,commit".split(","))
        for row in rows:
            out.writerow([row["source"], row["case"], row["card"], f"{row['predicted']:.6g}", f"{row['measured']:.6g}", row["roofline"], row["pytorch"],
                          row["bound_by"], row["cell"], COMMITS[row["source"]]])
    error = lambda row, name="predicted": math.log(row["measured"] / row[name])
    lines = ["| records | rows | predicted | median of measured / predicted | plain roofline | PyTorch's estimate | ratios of variants | sign right |",
             "|---|---:|---:|---:|---:|---:|---:|---:|"]
    groups = [(f"{source}, {card}", [row for row in rows if (row["source"], row["card"]) == (source, card)])
              for source, card in sorted({(row["source"], row["card"]) for row in rows})]
    groups += [(f"{cell} (all)", [row for row in rows if row["cell"] == cell]) for cell in CELLS]
    steps = [row for row in rows if row["cell"] != "operator"]
    groups += [("all steps", steps)]
    for name, some in groups:
        if not some:
            continue
        pairs, signs = ratios(some)
        lines.append(f"| {name} | {len(some)} | {median_and_p90([-error(row) for row in some])} | "
                     f"{math.exp(quantile([error(row) for row in some], 0.5)):.2f} | "
                     + " | ".join(median_and_p90([-error(row, one) for row in some]) for one in ("roofline", "pytorch"))
                     + f" | {median_and_p90(pairs) if pairs else '-'} | {f'{sum(signs) / len(signs):.0%} of {len(signs)}'.replace('%', ' %') if signs else '-'} |")
    with open(ROOT / "src/rehearse/src/time/intervals.csv", "w") as file:
        file.write("cell,low,high,residuals\n")
        for cell in CELLS:
            # A cell of few takes all; there is no record of a step bound by its host, whose own speed is unknown besides: assumed, the square.
            own = [row for row in steps if row["cell"] == cell]
            some = own if len(own) >= 30 else steps
            low, high = widest([[error(row) for row in some if row["source"] == source] for source in COMMITS])
            power = 2 if cell == "host" and some is steps else 1
            file.write(f"{cell},{low**power:.2f},{high**power:.2f},{len(some)}\n")
        # Which of a pair comes first is nobody's choice.
        pairs = ratios(steps)[0]
        low, high = band([sign * error for error in pairs for sign in (1, -1)])
        file.write(f"ratio,{low:.2f},{high:.2f},{len(pairs)}\n")
    lines += ["", "| held out | rows | inside the band of the others |", "|---|---:|---:|"]
    for source in sorted(COMMITS):
        held = [row for row in steps if row["source"] == source]
        inside = 0
        for row in held:
            others = [error(one) for one in steps if one["source"] != source]
            low, high = band(others)
            inside += low <= math.exp(error(row)) <= high
        if held:
            lines.append(f"| {source} | {len(held)} | {inside / len(held):.0%} |".replace("%", " %"))
    text = (ROOT / "docs/time.md").read_text()
    begin, end = "<!-- comparison: written by peers/times/comparison.py -->\n", "<!-- end of comparison -->"
    head, rest = text.split(begin)
    (ROOT / "docs/time.md").write_text(head + begin + "\n" + "\n".join(lines) + "\n\n" + rest[rest.index(end):])
    print("\n".join(lines))


if __name__ == "__main__":
    main()
