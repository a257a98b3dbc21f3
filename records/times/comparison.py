"""Sets what the program predicts of recorded steps (predicted first) beside what others measured: the tables in records/times/README.md, the bands in
src/rehearse/src/answer/time/intervals.csv.

    cargo build -p rehearse --example steps && python records/times/comparison.py

Steps are those of records/times/steps, measured times those of records/times/measured.csv.gz. KernelBench's problems of one operator (level 1) are
fitted, so that only its networks (level 3) are judged.
"""

import collections
import csv
import gzip
import math
import statistics

import evaluate
import model
from evaluate import quantile

SOURCES = ("timm-train", "timm-infer", "neusight", "kernelbench", "kernelbench-compiled")
# Rows that make a band of their own.
LEAST = 15
GRADES = ("chip", "architecture", "specification")
KINDS = ("products", "convolutions", "compiled", "passes")
# What a launch counts where nobody says (predict.rs).
LAUNCH = 2e-5


def baselines(source):
    """Of each case sums over its operators of max(FLOPs / peak, bytes / bandwidth); PyTorch's halves the FLOPs and has 0.75 of the peak."""
    cards, steps = model.cards(), collections.defaultdict(list)
    with gzip.open(evaluate.RECORDS / "steps" / f"{source}.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            steps[row["case"]].append(row)

    def of(case, card):
        card, roofline, pytorch = cards[card], 0.0, 0.0
        for row in steps[case]:
            compute = float(row["flops"]) / (card.half if row["precision"] == "half" else card.single)
            memory, count = float(row["bytes"]) / card.bandwidth, int(row["count"])
            roofline += count * max(compute, memory)
            pytorch += count * max(compute / 2 / 0.75, memory)
        return roofline, pytorch

    return of


def words(row):
    return row["case"].replace("-", " ").split() if row["source"] == "neusight" else row["case"].split()


def error(row, name="predicted"):
    return math.log(row["measured"] / row[name])


def band(errors):
    """Tenth and ninetieth percentile, a little wider where there are few."""
    tail = 0.1 * (1 - 1 / math.sqrt(len(errors) + 1))
    return math.exp(quantile(errors, tail)), math.exp(quantile(errors, 1 - tail))


def median_and_p90(errors):
    sizes = [abs(math.expm1(one)) for one in errors]
    return f"{quantile(sizes, 0.5):.1%} / {quantile(sizes, 0.9):.1%}".replace("%", " %")


def pairs(rows):
    """Pairs of one source on one card that are variants of one script: one word is another."""
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row["source"], row["card"], words(row)[0]].append(row)
    for (source, *_), own in sorted(groups.items()):
        for at, one in enumerate(own):
            for other in own[:at]:
                if not source.startswith("kernelbench") and sum(a != b for a, b in zip(words(one), words(other))) == 1:
                    yield other, one


def kind(pair):
    """What is changed: a layout picks other kernels, a batch or a pass has more of the same."""
    return "layout" if {words(one)[-1] for one in pair} == {"nchw", "nhwc"} else "size"


def difference(pair):
    return math.log(pair[1]["measured"] / pair[0]["measured"]) - math.log(pair[1]["predicted"] / pair[0]["predicted"])


def signs(some):
    """Whether the faster one is predicted to be faster, where they differ by more than 3 %."""
    real = [(math.log(to["measured"] / of["measured"]), math.log(to["predicted"] / of["predicted"])) for of, to in some]
    return [(measured > 0) == (predicted > 0) for measured, predicted in real if abs(math.expm1(measured)) > 0.03]


def cell_of(row):
    return f"{row['records']} {row['made_of']}"


def bands_of_cells(rows):
    """By whose the constants are and by what takes the time. Cells with few rows have the band of all of their grade."""
    found = {}
    for grade in GRADES:
        own = [row for row in rows if row["records"] == grade]
        for made_of in KINDS:
            some = [row for row in own if row["made_of"] == made_of]
            low, high = band([error(row) for row in (some if len(some) >= LEAST else own or rows)])
            # Who knows less is not surer.
            less = found.get(f"chip {made_of}", (0.95, 1.05))
            found[f"{grade} {made_of}"] = min(low, less[0], 0.95), max(high, less[1], 1.05), len(some)
    return found


def is_inside(row, bands):
    low, high, _ = bands[cell_of(row)]
    return low <= math.exp(error(row)) <= high


def told_of_models(rows):
    """Of each row whether the band holds it that was made without its model."""
    for model_name in {row["case"].split()[0] for row in rows}:
        bands = bands_of_cells([row for row in rows if row["case"].split()[0] != model_name])
        for row in rows:
            if row["case"].split()[0] == model_name:
                row["inside"] = is_inside(row, bands)


def inside_of_others(rows, name):
    """How often bands hold the rows of a source or card that they were not made from, the least and the most."""
    shares = []
    for value in sorted({row[name] for row in rows}):
        own, bands = [row for row in rows if row[name] == value], bands_of_cells([row for row in rows if row[name] != value])
        if len(own) >= LEAST:
            shares.append((sum(is_inside(row, bands) for row in own) / len(own), value))
    (least, of), (most, to) = min(shares), max(shares)
    return f"{least:.0%} ({of}) to {most:.0%} ({to})".replace("%", " %")


def hosts(rows):
    """By card steps that the host bounds, predicted by what the others of its machine take for each launch, in the median. No other step of the
    machine takes less than its launches do."""
    for card in sorted({row["card"] for row in rows}):
        of_machine = [row for row in rows if row["card"] == card and row["source"] == "kernelbench"]
        own = [row for row in of_machine if evaluate.is_of_host(row)]
        each = [row["measured"] / float(row["launches"]) for row in own]
        for at, row in enumerate(own):
            others = statistics.median(each[:at] + each[at + 1:] or each)
            row["predicted"] = max(float(row["device_seconds"]), others * float(row["launches"]))
        if len(own) >= 5:
            for row in of_machine:
                if evaluate.is_judged(row):
                    row["predicted"] = max(row["predicted"], statistics.median(each) * float(row["launches"]))
            yield card, statistics.median(each), own


def class_of(row):
    return row["classes"].split(":")[0]


def main():
    sources = [source for source in SOURCES if (evaluate.RECORDS / "steps" / f"{source}.csv.gz").exists()]
    every = list(evaluate.rows(sources))
    of_hosts = list(hosts(every))
    found = [row for row in every if evaluate.is_judged(row)]
    of = {source: baselines(source) for source in sources}
    for row in found:
        row["roofline"], row["pytorch"] = of[row["source"]](row["case"], row["card"])
    host = [row for row in found if row["bound_by"] in ("launches", "synchronisation")]
    steps = [row for row in found if row not in host]
    variants = list(pairs(steps))
    # The same with the records of a card's chip left out: what a card without records has to expect.
    apart = [row for card in sorted({row["card"] for row in steps}) for row in evaluate.rows(sources, without=card)
             if evaluate.is_judged(row) and row["bound_by"] not in ("launches", "synchronisation") and row["records"] != "chip"]
    bands = bands_of_cells([*(row for row in steps if row["records"] == "chip"), *apart])
    told_of_models(steps)
    told_of_models(apart)
    lines = ["| records | rows | predicted | measured / predicted | in the band | plain roofline |", "|---|---:|---:|---:|---:|---:|"]
    groups = [(f"{source}, {card}", [row for row in steps if (row["source"], row["card"]) == (source, card)])
              for source, card in sorted({(row["source"], row["card"]) for row in steps})]
    groups += [(f"{title}: {cell}", [row for row in steps if of(row) == cell]) for title, of in (
        ("made of", lambda row: row["made_of"]), ("bound by", lambda row: row["bound_by"]), ("source", lambda row: row["source"]),
        ("mostly", class_of)) for cell in sorted({of(row) for row in steps})]
    for row in apart:
        row["roofline"], row["pytorch"] = of[row["source"]](row["case"], row["card"])
    groups += [(f"its chip's records left out: {grade}, {made_of}", [row for row in apart if cell_of(row) == f"{grade} {made_of}"])
               for grade in GRADES[1:] for made_of in KINDS]
    for name, some in [*(group for group in groups if len(group[1]) >= 8), ("all steps", steps)]:
        inside = sum(row["inside"] for row in some) / len(some)
        lines.append(f"| {name} | {len(some)} | {median_and_p90([-error(row) for row in some])} | "
                     f"{math.exp(statistics.median(error(row) for row in some)):.2f} | {inside:.0%} | ".replace("%", " %").replace("  %", " %")
                     + median_and_p90([-error(row, "roofline") for row in some]) + " |")
    lines += ["", f"PyTorch's estimate of all these steps is {median_and_p90([-error(row, 'pytorch') for row in steps])} off."]
    lines += ["", f"Bands of the other sources hold {inside_of_others(steps, 'source')}, bands of the other cards {inside_of_others(steps, 'card')}."]
    lines += ["", "| ratios | pairs | median / p90 | band | sign right |", "|---|---:|---:|---:|---:|"]
    cells = [(name, *values) for name, values in bands.items()]
    of_any_host = [error(row) for _, _, own in of_hosts for row in own]
    cells.append(("host", *band(of_any_host), len(of_any_host)))
    # Where nothing is known of the target's host, and each launch counts as long.
    of_launches = [math.log(row["measured"] / max(float(row["device_seconds"]), LAUNCH * float(row["launches"]))) for _, _, own in of_hosts for row in own]
    cells.append(("other-host", *band(of_launches), len(of_launches)))
    for cell, change, what in (("ratio", "size", "batch, or passes that are run"), ("layout", "layout", "channels last")):
        own = [pair for pair in variants if kind(pair) == change]
        errors = [difference(pair) for pair in own]
        low, high = band([sign * one for one in errors for sign in (1, -1)])
        right = signs(own)
        cells.append((cell, low, high, len(own)))
        lines.append(f"| {what} | {len(own)} | {median_and_p90(errors)} | {low:.2f} to {high:.2f} | "
                     f"{sum(right) / max(1, len(right)):.0%} of {len(right)} |".replace("%", " %").replace("  %", " %"))
    lines += ["", "| steps bound by the host, machine with | rows | µs a launch | one number for each launch | measured / predicted, 80 % |",
              "|---|---:|---:|---:|---:|"]
    for name, each, own in [*of_hosts, ("all", None, [row for _, _, own in of_hosts for row in own])]:
        errors = [error(row) for row in own]
        lines.append(f"| {name} | {len(own)} | {f'{each * 1e6:.0f}' if each else ''} | {median_and_p90([-one for one in errors])} | "
                     "{:.2f} to {:.2f} |".format(*band(errors)))
    lines.append(f"| all, {LAUNCH * 1e6:.0f} us each | {len(of_launches)} | {LAUNCH * 1e6:.0f} | {median_and_p90([-one for one in of_launches])} | "
                 "{:.2f} to {:.2f} |".format(*band(of_launches)))
    # Steps of which a class takes a third or more, for its own band: what its kernels alone may be off.
    for name in ("grouped", "depthwise", "volume", "attention", "reduction", "convolution"):
        own = []
        for row in steps:
            whole = float(row["device_seconds"])
            share = sum(float(part.split(":")[1]) for part in row["classes"].split(";") if part.startswith(name)) / whole
            if share >= 1 / 3:
                own.append(error(row) / share)
        if len(own) >= 10:
            low, high = band(own)
            cells.append((name, min(low, 0.8), max(high, 1.25), len(own)))
    with open(model.TIME / "intervals.csv", "w") as file:
        file.write("cell,low,high,residuals\n")
        file.writelines(f"{cell},{low:.2f},{high:.2f},{count}\n" for cell, low, high, count in cells)
    page = model.ROOT / "records/times/README.md"
    text = page.read_text()
    begin, end = "<!-- comparison: written by records/times/comparison.py -->\n", "<!-- end of comparison -->"
    head, rest = text.split(begin)
    page.write_text(head + begin + "\n" + "\n".join(lines) + "\n\n" + rest[rest.index(end):])
    print("\n".join(lines))


if __name__ == "__main__":
    main()
