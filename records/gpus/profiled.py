"""What each operator of a step takes on the GPU that is there, by PyTorch's own profiler: to see which predictions of a step's parts are off.

    profiled.py FILE PROGRAM...    programs of programs/, or cases of records/times/clock.py (gpt-plain, convnet-last, ...)

A row is an operator with the shapes of its inputs, over three steps: how often, and seconds of its own kernels.
"""

import csv
import json
import runpy
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
STEPS = (5, 8)


class Enough(BaseException):
    pass


def profile(name):
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.profiler import ProfilerActivity

    profiler = torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True)
    steps = 0

    def mark(*_):
        nonlocal steps
        steps += 1
        if steps in STEPS:
            torch.cuda.synchronize()
            if steps == STEPS[0]:
                profiler.start()
            else:
                profiler.stop()
                raise Enough

    register_optimizer_step_post_hook(mark)
    program = HERE / "programs" / f"{name}.py"
    if program.exists():
        sys.argv = [str(program)]
    else:
        program = HERE.parent / "times/clock.py"
        sys.argv = [str(program), "step", name]
    try:
        runpy.run_path(str(program), run_name="__main__")
    except Enough:
        pass
    for event in profiler.key_averages(group_by_input_shape=True):
        if event.self_device_time_total and event.device_type.name == "CPU":
            print(json.dumps([name, event.key, str(event.input_shapes), event.count, f"{event.self_device_time_total / 1e6:.4g}"]), flush=True)


def main():
    file, names = sys.argv[1], sys.argv[2:]
    if file == "-":
        return profile(*names)
    with open(file, "w", newline="") as to:
        out = csv.writer(to, lineterminator="\n")
        out.writerow(["program", "operator", "shapes", "count", "seconds"])
        for name in names:
            done = subprocess.run([sys.executable, "-B", __file__, "-", name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
            out.writerows(rows)
            to.flush()
            print(f"{name}: {len(rows)} rows {done.stderr[-400:] if not rows else ''}", flush=True)


if __name__ == "__main__":
    main()
