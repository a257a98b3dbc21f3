"""An evaluator of its own: verdicts from records/protocols and the samples alone, put beside report/data/verdicts.csv.

It shares no code with `record::judge`, so that one of the two is wrong where they differ. Rates of false positives are drawn by chance, so their
verdicts are not made again.
"""

import collections
import csv
import json
import math
import re
import statistics
import sys
from pathlib import Path

ROOT = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
ALPHA, BUDGET_ENDED = 0.05, "the budget ended"
PLATFORMS = {"cpu": "CPU", "gpu": "GPU", "dry": "simulated GPU"}


def t_cdf(t, n):
    """Student's, by the incomplete beta function's continued fraction."""
    a, b, x = n / 2, 0.5, n / (n + t * t)
    def beta(a, b, x):
        if x > (a + 1) / (a + b + 2):
            return 1 - beta(b, a, 1 - x)
        front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a if 0 < x else 0
        f, c, d = 1.0, 1.0, 0.0
        for i in range(400):
            m = i // 2
            k = 1.0 if i == 0 else m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)) if i % 2 == 0 else -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
            d = 1 / (1 + k * d or 1e-30)
            c = 1 + k / c or 1e-30
            f *= c * d
            if abs(1 - c * d) < 1e-14:
                break
        return front * (f - 1)
    tail = beta(a, b, x) / 2
    return 1 - tail if t > 0 else tail


def t_quantile(p, n):
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, n) < p else (low, middle)
    return low


def interval(xs, alpha):
    if len(xs) < 2 or not all(map(math.isfinite, xs)):
        return None
    half = t_quantile(1 - alpha / 2, len(xs) - 1) * statistics.stdev(xs) / math.sqrt(len(xs))
    return statistics.fmean(xs), statistics.fmean(xs) - half, statistics.fmean(xs) + half


def p_value(xs, edge):
    if len(xs) < 2 or not all(map(math.isfinite, [*xs, edge])):
        return None
    distance, error = abs(statistics.fmean(xs) - edge), statistics.stdev(xs) / math.sqrt(len(xs))
    return 2 * (1 - t_cdf(distance / error, len(xs) - 1)) if error else float(distance == 0)


def holm(ps):
    levels, failed = [ALPHA] * len(ps), None
    for rank, i in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        levels[i] = failed or ALPHA / (len(ps) - rank)
        failed = failed or (levels[i] if ps[i] > levels[i] else None)
    return levels


def holds(bound, x):
    (kind, of), = bound.items()
    return {"at-most": lambda: x <= of, "at-least": lambda: x >= of, "within": lambda: of[0] <= x <= of[1], "outside": lambda: x < of[0] or x > of[1]}[kind]()


def classify(effect, confirm, refute):
    _, low, high = effect
    def contains(bound):
        (kind, of), = bound.items()
        return high < of[0] or low > of[1] if kind == "outside" else holds(bound, low) and holds(bound, high)
    def touches(bound):
        (kind, of), = bound.items()
        return {"at-most": lambda: low <= of, "at-least": lambda: high >= of, "within": lambda: low <= of[1] and high >= of[0],
                "outside": lambda: low < of[0] or high > of[1]}[kind]()
    return "confirms" if contains(confirm) else "refutes" if contains(refute) else "straddles" if touches(confirm) or touches(refute) else "between"


def edges(*bounds):
    return [x for bound in bounds for of in bound.values() for x in (of if isinstance(of, list) else [of])]


def cell_of(text):
    return tuple(tuple(term.split("=", 1)) for term in text.split(" "))


def selects(select, cell):
    levels = dict(cell)
    has = lambda term: "=" in term and levels.get(term.split("=", 1)[0]) in term.split("=", 1)[1].split("|")
    return any(all(map(has, alternative.split())) for alternative in select.split(","))


def cells(grid):
    found = [()]
    for axis in grid["axes"]:
        found = [cell + ((axis["factor"], level),) for cell in found for level in axis["levels"]]
    return found


def baseline(grid, cell):
    first = next((axis["levels"][0] for axis in grid["axes"] if axis["factor"] == grid["studied"]), "")
    return tuple((factor, first if factor == grid["studied"] else level) for factor, level in cell)


class Samples:
    def __init__(self, path):
        self.rounds, self.units, self.status, self.turns = collections.defaultdict(dict), {}, collections.defaultdict(list), collections.Counter()
        waiting, order = collections.defaultdict(list), ["ok", "oom", "skipped", "error", "timeout", "crashed", "invalid"]
        for row in csv.DictReader(path.open()):
            cell, key = cell_of(row["cell"]), (row["cell"], row["round"])
            if not row["metric"].startswith("pass."):
                waiting[key].append(row)
                continue
            kind = row["metric"][5:]
            self.status[cell].append((kind, row["status"], row["reason"]))
            self.turns[cell, kind] += not row["reason"].startswith(BUDGET_ENDED)
            for sample in waiting.pop(key, []) if row["status"] == "ok" else waiting.pop(key, [])[:0]:
                self.rounds[cell, sample["metric"]].setdefault(int(row["round"]), []).append(float(sample["value"]))
                if kind == "time" and sample["unit"] == "x":
                    self.units[sample["metric"]] = "x"
        for key in [key for key in self.rounds if any(status == "invalid" for _, status, _ in self.status[key[0]])]:
            del self.rounds[key]

    def by_round(self, cell, metric):
        return {n: statistics.median(xs) for n, xs in sorted(self.rounds.get((cell, metric), {}).items())}

    def value(self, cell, metric):
        xs = list(self.by_round(cell, metric).values())
        if xs and metric in self.units:
            return math.exp(statistics.fmean(map(math.log, xs)))
        return statistics.median(xs) if xs else None

    def logs(self, cell, other, metric):
        a, b = self.by_round(cell, metric), self.by_round(other, metric)
        return [math.log(a[n] / b[n]) for n in a if n in b]

    def waits(self, cell, kind, least):
        if cell not in self.status:
            return True
        ended = lambda of, status, reason: status != "ok" and (status != "skipped" or not reason.startswith(BUDGET_ENDED)) and (of == kind or status != "skipped")
        return not any(ended(*one) for one in self.status[cell]) and self.turns[cell, kind] < least


class Part:
    def __init__(self, run, kind, rule, decides, grid, references):
        self.run, self.kind, self.rule, self.decides, self.references = run, kind, rule, decides, references
        self.grids = [g for g in run.protocol["grids"] if run.profile in g["profiles"] and grid in (None, g["name"])]
        self.metrics = [rule[k] for k in ("metric", "reference", "attempts") if k in rule]
        if rule.get("scope"):
            self.metrics += [rule["scope"]["part"], rule["scope"]["whole"]]
        if kind == "recorded":
            self.metrics = ["time" if rule["figure"] == "time" else "requested_peak"]
        self.of, self.found, self.missing, self.left_out = rule.get("of", ""), [], [], 0
        self.passes = {run.passes.get(m) for m in self.metrics} - {None}
        getattr(self, kind.replace("-", "_"))()
        self.judged = self.is_judged()
        outcomes = {o for _, o in self.found}
        failed = sum(any(s not in ("ok", "oom", "skipped") for c in [cell, *(baseline(g, cell) for g in self.grids if cell in cells(g))] for _, s, _ in run.samples.status.get(c, [])) for cell in self.missing)
        self.verdict = self.combine(outcomes, failed)
        self.planned, self.awaited = self.count()

    def selected(self, select=None, measured=False):
        for grid in self.grids:
            if not measured or self.run.passes[self.metrics[0]] in grid["passes"]:
                for cell in cells(grid):
                    if (dict(cell).get("by") == "pytorch") == self.references and selects(self.of if select is None else select, cell):
                        yield grid, cell

    def compared(self):
        scope = self.rule.get("scope")
        for grid, cell in self.selected(measured=True):
            base = baseline(grid, cell)
            if base != cell:
                share = scope and [self.run.samples.value(base, scope[k]) for k in ("part", "whole")]
                if scope and None not in share and share[0] / share[1] < scope["at_least"]:
                    self.left_out += 1
                elif self.kind == "frequency" and (c := self.counts(base)) and c[0] / c[1] < self.rule["least"]:
                    self.left_out += 1
                else:
                    yield cell, base

    def add(self, cell, effect, relative=False):
        if effect is None:
            return self.missing.append(cell)
        confirm, refute = self.rule["confirm"], self.rule["refute"]
        outcome = classify(effect, confirm, refute)
        if outcome == "between" and relative:
            side = {"at-most": effect[2] < 1, "at-least": effect[1] > 1}.get(next(iter(confirm)), True)
            outcome = outcome if side else "refutes"
        self.found.append((cell, outcome))

    def together(self, series, logs):
        """Intervals of several timed comparisons, by Holm."""
        scale = (lambda x: math.log(max(x, 1e-12))) if logs else (lambda x: x)
        points, judged = [scale(x) for x in edges(self.rule["confirm"], self.rule["refute"])], [self.run.judged(len(xs)) for xs in series]
        ps = [None] * len(series)
        for i, (xs, j) in enumerate(zip(series, judged)):
            if j and j[0] > 1:
                mean = statistics.fmean(xs[: j[0]])
                p = p_value(xs[: j[0]], min(points, key=lambda edge: abs(edge - mean)))
                ps[i] = None if p is None else p * ALPHA / j[1]
        levels, found = iter(holm([p for p in ps if p is not None])), []
        for xs, j, p in zip(series, judged, ps):
            one = None if p is None else interval(xs[: j[0]], next(levels) * j[1] / ALPHA)
            found.append(one and tuple(map(math.exp, one)) if logs else one)
        return found

    def ratio(self):
        pairs, metric, samples = list(self.compared()), self.metrics[0], self.run.samples
        if self.run.passes[metric] == "time":
            effects = self.together([samples.logs(c, b, metric) for c, b in pairs], True)
        else:
            effects = []
            for c, b in pairs:
                x, y = samples.value(c, metric), samples.value(b, metric)
                effects.append((x / y,) * 3 if x is not None and y else None)
        for (cell, _), effect in zip(pairs, effects):
            self.add(cell, effect, True)

    def value(self):
        found, metric, samples = [cell for _, cell in self.selected()], self.metrics[0], self.run.samples
        if self.run.passes[metric] == "time":
            logs = metric in samples.units
            effects = self.together([[math.log(max(x, 1e-12)) if logs else x for x in samples.by_round(c, metric).values()] for c in found], logs)
        else:
            effects = [None if (x := samples.value(c, metric)) is None else (x,) * 3 for c in found]
        for cell, effect in zip(found, effects):
            self.add(cell, effect)

    def exponent(self):
        lines = collections.defaultdict(list)
        for _, cell in self.selected():
            y, along = self.run.samples.value(cell, self.metrics[0]), dict(cell).get(self.rule["along"])
            if y is None or along is None:
                self.missing.append(cell)
            else:
                lines[tuple(t for t in cell if t[0] != self.rule["along"])].append((float(along), y, cell))
        for points in lines.values():
            points.sort()
            if len(points) > 1:
                (x0, y0, _), (x1, y1, cell) = points[-2:]
                self.add(cell, (math.log(y1 / y0) / math.log(x1 / x0),) * 3 if y0 and y1 else None)

    def trend(self):
        lines, metric, along, samples = collections.defaultdict(list), self.metrics[0], self.rule["along"], self.run.samples
        for cell, base in self.compared():
            a, b = samples.by_round(cell, metric), samples.by_round(base, metric)
            gains = {n: b[n] - a[n] if self.rule.get("saved") else math.log(a[n] / b[n]) for n in a if n in b}
            if gains:
                lines[tuple(t for t in cell if t[0] != along)].append((float(dict(cell)[along]), cell, gains))
            else:
                self.missing.append(cell)
        ranks = lambda xs: [sum(y < x for y in xs) + (sum(y == x for y in xs) + 1) / 2 for x in xs]
        series = []
        for points in lines.values():
            points.sort(key=lambda p: p[0])
            if len(points) < 3:
                self.missing.append(points[-1][1])
                continue
            common = [n for n in points[0][2] if all(n in p[2] for p in points)]
            series.append((points[-1][1], [statistics.correlation(ranks([p[0] for p in points]), ranks([p[2][n] for p in points])) for n in common]))
        for (cell, _), effect in zip(series, self.together([xs for _, xs in series], False)):
            self.add(cell, effect and (effect[0], max(effect[1], -1), min(effect[2], 1)))

    def picked(self):
        groups, metric, samples = collections.defaultdict(lambda: ([], [])), self.metrics[0], self.run.samples
        for which, select in enumerate((self.of, self.rule["over"])):
            for grid, cell in self.selected(select, True):
                if samples.value(cell, metric) is None:
                    self.missing += [cell] * (cell not in self.missing)
                else:
                    groups[baseline(grid, cell)][which].append(cell)
        worth = lambda cell: samples.value(cell, metric)
        for own, over in groups.values():
            if own and over:
                cell, best = (min if self.rule["pick"] == "lowest" else max)(own, key=worth), max(over, key=worth)
                if cell == best:
                    effect = (1.0,) * 3
                elif self.run.passes[metric] == "time":
                    logs = samples.logs(cell, best, metric)
                    judged = self.run.judged(len(logs))
                    effect = judged and interval(logs[: judged[0]], judged[1] / len(groups) / (len(own) * len(over)))
                    effect = effect and tuple(map(math.exp, effect))
                else:
                    effect = (worth(cell) / worth(best),) * 3 if worth(best) else None
                self.add(cell, effect, True)

    def agreement(self):
        for _, cell in self.selected():
            x, y = (self.run.samples.value(cell, m) for m in self.metrics[:2])
            if x is None or not y:
                self.missing.append(cell)
            else:
                self.found.append((cell, "confirms" if holds(self.rule["within"], x / y) else "refutes"))

    def counts(self, cell):
        hits, all_of = (self.run.samples.value(cell, m) for m in self.metrics[:2])
        return (hits, all_of) if hits is not None and all_of else None

    def frequency(self):
        found, normal = [], statistics.NormalDist()
        for cell, base in self.compared():
            own, theirs = self.counts(cell), self.counts(base)
            if own and theirs:
                (x, n), (y, m) = ((h + 0.5, a + 0.5) for h, a in (own, theirs))
                log, error = math.log(x / n / (y / m)), math.sqrt(max(1 / x - 1 / n + 1 / y - 1 / m, 0))
                estimate = 0.0 if not own[0] else own[0] / own[1] / (theirs[0] / theirs[1])
                edge = min((math.log(max(e, 1e-12)) for e in edges(self.rule["confirm"], self.rule["refute"])), key=lambda e: abs(e - math.log(max(estimate, 1e-12))))
                found.append((cell, log, error, estimate, 2 * (1 - normal.cdf(abs(log - edge) / error)) if error else float(log == edge)))
            else:
                self.missing.append(cell)
        for (cell, log, error, estimate, _), level in zip(found, holm([f[4] for f in found])):
            half = normal.inv_cdf(1 - level / 2) * error
            self.add(cell, (estimate, min(math.exp(log - half), estimate), max(math.exp(log + half), estimate)), True)

    def recorded(self):
        if self.references:
            return
        rows = list(csv.DictReader((ROOT / "records/gpus/h200-what-if.csv").open()))
        plain = {row["program"]: row for row in rows if not row["techniques"]}
        column = "seconds_measured" if self.rule["figure"] == "time" else "peak_reserved_measured"
        for row in rows if self.run.machine == "nvidia-h200" else []:
            if row["techniques"] == self.rule["technique"]:
                effect = float(row[column]) / float(plain[row["program"]][column])
                self.add((("program", row["program"]), ("technique", row["techniques"])), (effect,) * 3, True)

    def false_alarms(self):
        self.found.append(((), "drawn"))

    def is_judged(self):
        if self.run.device == "dry" and any(self.run.passes[m] != "memory" for m in self.metrics if m in self.run.passes):
            return False
        if self.kind == "recorded":
            return True
        planned = [(g, c) for g in self.grids for c in cells(g) if selects(self.of, c)]
        if not planned:
            return self.decides
        return any((dict(c).get("by") == "pytorch") == self.references and (not g["only_on"] or self.run.device in g["only_on"]) for g, c in planned)

    def count(self):
        compares, all_of, lacking = self.kind in ("ratio", "frequency", "trend"), 0, 0
        for grid in self.grids if self.kind != "recorded" else []:
            own = [p for p in self.passes if p in grid["passes"]]
            if not own or grid["only_on"] and self.run.device not in grid["only_on"]:
                continue
            for cell in cells(grid):
                reads = any(selects(s, cell) for s in [self.of, *([self.rule["over"]] if "over" in self.rule else [])])
                if (dict(cell).get("by") == "pytorch") != self.references or not reads:
                    continue
                base, scope = baseline(grid, cell), self.rule.get("scope")
                share = scope and [self.run.samples.value(base, scope[k]) for k in ("part", "whole")]
                outside = scope and None not in share and share[0] / share[1] < scope["at_least"]
                if self.kind == "frequency" and (c := self.counts(base)):
                    outside = c[0] / c[1] < self.rule["least"]
                if compares and (cell == base or outside):
                    continue
                waits = lambda cell: any(self.run.samples.waits(cell, p, max(self.run.rounds[:1] + [1]) if p == "time" else 1) for p in own)
                all_of, lacking = all_of + 1, lacking + (waits(cell) or compares and waits(base))
        return all_of, lacking

    def combine(self, outcomes, failed):
        if self.kind == "agreement":
            right, all_of = sum(o == "confirms" for _, o in self.found), len(self.found) + failed
            wanted = self.rule["share"] * all_of
            return "not measured here" if not self.found else "confirmed" if right >= wanted else "refuted" if right + failed < wanted else "not decided"
        return combined(outcomes, failed)


def combined(outcomes, failed=0):
    if not outcomes:
        return "not measured here"
    if not failed and outcomes == {"confirms"}:
        return "confirmed"
    if not failed and outcomes == {"refutes"}:
        return "refuted"
    if "confirms" in outcomes and ("refutes" in outcomes or "between" in outcomes and "straddles" not in outcomes):
        return "depends"
    if "between" in outcomes and not outcomes & {"confirms", "straddles"} and not failed:
        return "refuted" if "refutes" in outcomes else "falls short"
    return "drawn" if "drawn" in outcomes else "not decided"


def joined(parts):
    """Parts that share settings are judged case by case: the levels that a part does not fix; but for those by which parts that ask alike differ."""
    def fixed(part):
        return [] if "," in part.of else [t.split("=", 1)[0] for t in part.of.split() if "=" in t and "|" not in t]
    def settings(group):
        found = collections.OrderedDict()
        for part in group:
            alike = [p for p in group if p.metrics == part.metrics and p.found and all(p.rule.get(k) == part.rule.get(k) for k in ("confirm", "refute"))]
            level = lambda p, f: dict(p.found[0][0]).get(f) if p.found else None
            apart = lambda f: any(f in fixed(p) and level(p, f) != level(part, f) for p in alike)
            drop = {f for f in fixed(part) if not apart(f)}
            for cell, outcome in part.found:
                found.setdefault(tuple(t for t in cell if t[0] not in drop), []).append(outcome)
        worst = ["refutes", "between", "straddles", "confirms"]
        return {cell: min(outcomes, key=lambda o: worst.index(o)) if "drawn" not in outcomes else "drawn" for cell, outcomes in found.items()}
    alone = [p for p in parts if p.kind == "agreement" or not p.found]
    groups = []
    for part in (p for p in parts if p not in alone):
        kinds, members = {tuple(f for f, _ in cell) for cell in settings([part])}, []
        for group in [g for g in groups if g[0] & kinds]:
            groups.remove(group)
            kinds |= group[0]
            members += group[1]
        groups.append((kinds, members + [part]))
    verdicts = [p.verdict for p in alone]
    for _, group in groups:
        verdicts.append(group[0].verdict if len(group) == 1 else combined(set(settings(group).values())))
    return verdicts


class Run:
    def __init__(self, folder, machine):
        manifest = json.loads((folder / "run.json").read_text())
        self.protocol = json.loads((ROOT / f"records/protocols/{manifest['experiment']}-{manifest['revision']}.json").read_text())
        self.machine, self.profile, self.rounds = machine, manifest["profile"], manifest["rounds"]
        self.device = manifest["identity"]["platform"]
        self.passes = {m["name"]: m["pass"] for m in self.protocol["metrics"]}
        self.samples = Samples(folder / "samples.csv")

    def judged(self, there):
        if not self.rounds:
            return there, ALPHA
        at = [i for i, look in enumerate(self.rounds) if look <= there]
        return (self.rounds[at[-1]], ALPHA * (self.rounds[at[-1]] - (self.rounds[at[-1] - 1] if at[-1] else 0)) / self.rounds[-1]) if at else None

    def parts(self, rule, references, decides=True, grid=None):
        (kind, of), = rule.items()
        if kind == "all":
            return [p for one in of for p in self.parts(one, references, decides, grid)]
        if kind in ("informational", "beside"):
            return self.parts(of, references, False, grid)
        if kind == "in":
            return self.parts(of["rule"], references, decides, of["grid"])
        if kind == "changed":
            return self.parts(of["now"], references, decides, grid)
        if kind == "recorded" and (references or self.machine != "nvidia-h200"):
            return []
        return [Part(self, kind, of, decides, grid, references)]

    def verdict(self, claim, platform):
        parts = self.parts(claim["rule"], platform == "PyTorch in Python")
        if platform != "PyTorch in Python" and not any(p.found or p.missing or p.left_out for p in parts):
            parts = self.parts(claim["rule"], True)
        judged = [p for p in parts if p.judged]
        decides = any(p.decides and p.verdict != "not measured here" for p in judged)
        of = joined([p for p in judged if p.decides or not decides])
        if all(v == "not measured here" for v in of):
            return "not measured here"
        first = next((v for v in ("refuted", "falls short", "not decided", "drawn") if v in of), None)
        found = first or ("in part" if "not measured here" in of else "depends" if "depends" in of else "confirmed")
        if found in ("confirmed", "depends") and any(p.decides and not p.judged for p in parts):
            found = "in part"
        return "not all measured" if sum(p.awaited for p in judged) and found != "not measured here" else found


def main():
    runs, apart, same, drawn = {}, [], 0, 0
    for row in csv.DictReader((ROOT / "report/data/verdicts.csv").open()):
        key = row["machine"], row["experiment"]
        if key not in runs:
            kind = "predicted" if row["machine"].startswith("dry") else "measured"
            runs[key] = Run(ROOT / "records" / kind / row["machine"] / row["experiment"], row["machine"])
        claim = next(c for c in runs[key].protocol["claims"] if c["id"] == row["claim"])
        found = runs[key].verdict(claim, row["platform"])
        if found == "drawn":
            drawn += 1
        elif found == row["verdict"]:
            same += 1
        else:
            apart.append(f"{row['experiment']}: {row['claim']}, {row['machine']}, {row['platform']}: {found} here, {row['verdict']} there")
    print(f"{same} verdicts are the same, {len(apart)} differ, {drawn} are drawn by chance and not made again", *apart, sep="\n")
    sys.exit(bool(apart))


main()
