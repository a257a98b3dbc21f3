"""Rehearses the steps that others timed and keeps what their operators have for a GPU to do: records/times/steps/SOURCE.csv.gz.

    python records/times/steps.py SOURCE [--records FOLDER] [--program VRAMLAB] [--python PYTHON] [--cases CASE...]

PYTHON has torch, and timm, torchvision and transformers where the source needs them. All steps of a source are rehearsed in one process, each
twice; the second is kept. Nothing that was measured is read, only names and sizes: what a step has to do is predicted from these files
(evaluate.py), so that a change of the constants needs no rehearsal. Columns are those of src/sim/native/python/work.h; alike rows of a step
are one with their `count`.
"""

import argparse
import collections
import csv
import glob
import gzip
import json
import os
import pathlib
import struct
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STEPS = ROOT / "records/times/steps"
KINDS = "pointwise matmul attention attention_backward convolution reduction index optimizer copy recurrent compiled".split()
PRECISIONS = "half single tf32 double".split()
# u8 kind, precision, phase, flags; u16 device, alignment; u32 step, launches; f64 FLOPs, bytes; m, n, k, batch; ...
RECORD = struct.Struct("<4B2H2I2d4IQ4IQIH2B")
FIELDS = "case,operator,kind,precision,flags,alignment,launches,flops,bytes,m,n,k,batch,groups,taps,direction,stride,count".split(",")
OF_SHAPE = 4 | 16 | 32 | 64


def records_of(folder):
    """Of each step of this process: its operators' rows, alike ones together."""
    names = {}
    with open(os.path.join(folder, "names")) as file:
        for line in file:
            told = json.loads(line)
            if "operator" in told:
                names[told["operator"]] = told["name"].removeprefix("aten::")
    with open(os.path.join(folder, "work"), "rb") as file:
        data = file.read()[64:]
    steps = collections.defaultdict(collections.Counter)
    for record in RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]):
        kind, precision, _, flags, _, alignment, step, launches, flops, moved, m, n, k, batch = record[:14]
        operator, groups, taps, direction, stride = record[18], *record[20:]
        if KINDS[kind] == "copy":
            continue
        if names.get(operator) in ("_conv_depthwise2d", "conv_depthwise3d"):
            groups = n
        steps[step][names.get(operator, "?"), KINDS[kind], PRECISIONS[precision], flags & OF_SHAPE, alignment, launches, f"{flops:.0f}",
                    f"{moved:.0f}", m, n, k, batch, groups, taps, direction, stride] += 1
    return steps


def inside(source, out, cases):
    """In the rehearsal: takes each case's step twice."""
    import torch
    import workloads

    folder = max(glob.glob(os.path.join(os.environ["VRAMLAB_REHEARSAL"], f"{os.getpid()}-*")))
    flush, ended, taken = workloads.marker(), 0, []
    flush(), flush()
    ended = 2
    for case in cases:
        began = time.process_time()
        try:
            step = workloads.step_of(source, case)
            for _ in range(2):
                step()
                ended += 1
            taken.append((case, ended - 1))
            print(case, f"{time.process_time() - began:.1f} s", file=sys.stderr, flush=True)
        except Exception as error:
            print(case, type(error).__name__, str(error)[:200].replace("\n", " "), file=sys.stderr, flush=True)
        step = None
        torch.cuda.empty_cache()
    flush()
    steps = records_of(folder)
    with gzip.GzipFile(out, "wb", mtime=0) as raw:
        lines = [",".join(FIELDS)]
        for case, step in taken:
            lines += [",".join(map(str, (case, *row, count))) for row, count in steps[step].items()]
        raw.write("\n".join([*lines, ""]).encode())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--cases", nargs="*")
    parser.add_argument("--records", type=pathlib.Path, default=ROOT / "records/times")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--program", default=ROOT / "target/debug/vramlab")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    out = options.out or STEPS / f"{options.source}.csv.gz"
    if os.environ.get("VRAMLAB_REHEARSAL"):
        return inside(options.source, out, options.cases)
    if not options.cases:
        import cases

        options.cases = list(dict.fromkeys(cases.of(options.source, options.records)))
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [options.program, "rehearse", "--quiet", "--writes", "--gpu", "a100-80g", "--no-init", "--steps", "all", "--timeout", "7200", "--",
               options.python, HERE / "steps.py", options.source, "--out", out, "--cases", *options.cases]
    subprocess.run(command, env={**os.environ, "VRAMLAB_REHEARSAL_TIMED_STEPS": "100000"}, check=False)


if __name__ == "__main__":
    main()
