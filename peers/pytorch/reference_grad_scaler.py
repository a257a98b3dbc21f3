"""Writes tests/reference/grad_scaler.json: what PyTorch's GradScaler does, for the tests of src/torch/grad_scaler.rs to compare with.

    .venv/bin/python peers/pytorch/reference_grad_scaler.py

Everything runs on the CPU. Each parameter is one vector; its loss is its dot product with a given vector, so that vector times the scale is
its gradient. Numbers stand as text, because JSON has no infinity.
"""

import json
from pathlib import Path

import torch

OUT = Path(__file__).resolve().parents[2] / "tests" / "reference" / "grad_scaler.json"
RATE = 0.5


def text(values):
    return [repr(float(value)) for value in values]


def scenario(name, settings, iterations, parameters=(([1.0, 2.0],),), clip=None, restored=None):
    """Runs iterations: for each optimizer a list of vectors, one for each parameter. Notes what is to be seen after each."""
    scaler = torch.amp.GradScaler("cpu", **settings)
    if restored:
        scaler.load_state_dict(restored)
    tensors = [[torch.tensor(vector, requires_grad=True) for vector in group] for group in parameters]
    optimizers = [torch.optim.SGD(group, lr=RATE) for group in tensors]
    seen = []
    for iteration in iterations:
        for optimizer in optimizers:
            optimizer.zero_grad()
        for group, vectors in zip(tensors, iteration):
            for tensor, vector in zip(group, vectors):
                scaler.scale((tensor * torch.tensor(vector)).sum()).backward()
        for group, optimizer in zip(tensors, optimizers):
            if clip is not None:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(group, clip)
            scaler.step(optimizer)
        gradients = [[text(tensor.grad) for tensor in group] for group in tensors]
        scaler.update()
        seen.append(
            {
                "vectors": [[text(vector) for vector in vectors] for vectors in iteration],
                "gradients": gradients,
                "parameters": [[text(tensor.detach()) for tensor in group] for group in tensors],
                "scale": scaler.get_scale(),
                "growth_tracker": scaler._get_growth_tracker(),
            }
        )
    return {
        "name": name,
        "settings": settings,
        "restored": restored,
        "parameters": [[text(vector) for vector in group] for group in parameters],
        "clip": clip,
        "iterations": seen,
        "state": scaler.state_dict(),
    }


def misuse(calls):
    """The message of the last of these calls, all before it being right."""
    scaler = torch.amp.GradScaler("cpu")
    tensor = torch.tensor([1.0, 2.0], requires_grad=True)
    optimizer = torch.optim.SGD([tensor], lr=RATE)
    actions = {
        "scale": lambda: scaler.scale(tensor.sum()).backward(),
        "scale only": lambda: scaler.scale(tensor.sum()),
        "unscale": lambda: scaler.unscale_(optimizer),
        "step": lambda: scaler.step(optimizer),
        "update": lambda: scaler.update(),
        "half gradient": lambda: halve(scaler),
    }
    for call in calls[:-1]:
        actions[call]()
    try:
        actions[calls[-1]]()
    except (AssertionError, RuntimeError, ValueError) as error:
        return {"calls": calls, "message": str(error)}
    raise SystemExit(f"PyTorch allows {calls}")


def halve(scaler):
    tensor = torch.tensor([1.0, 2.0], dtype=torch.float16, requires_grad=True)
    scaler.scale(tensor.sum()).backward()
    scaler.unscale_(torch.optim.SGD([tensor], lr=RATE))


def main():
    inf, nan = float("inf"), float("nan")
    fine, overflow, no_number = [[[0.5, -3.0]]], [[[0.5, inf]]], [[[nan, 1.0]]]
    two = (([1.0, 2.0],), ([3.0], [4.0, 5.0]))
    scenarios = [
        scenario("defaults", {}, [fine, fine, fine]),
        scenario("overflow by the scale itself", {"init_scale": 2.0**100}, [[[[2.0**40, 1.0]]]] * 14 + [fine]),
        scenario("infinity and NaN back off", {}, [fine, overflow, no_number, fine, overflow]),
        scenario("growth interval", {"growth_interval": 3}, [fine] * 7),
        scenario("an overflow starts the interval again", {"growth_interval": 3}, [fine, fine, overflow, fine, fine, fine, fine]),
        scenario(
            "own factors",
            {"init_scale": 10.0, "growth_factor": 1.5, "backoff_factor": 0.2, "growth_interval": 2},
            [fine, fine, overflow, fine, fine],
        ),
        scenario("growth stops before infinity", {"init_scale": 2.0**127, "growth_interval": 1}, [[[[0.0, 0.0]]]] * 2),
        scenario("clipping unscaled gradients", {}, [[[[3.0, 4.0]]], [[[0.3, 0.4]]], overflow, [[[30.0, 40.0]]]], clip=1.0),
        scenario(
            "several optimizers",
            {"growth_interval": 2},
            [
                [[[1.0, 1.0]], [[1.0], [2.0, 3.0]]],
                [[[1.0, inf]], [[1.0], [2.0, 3.0]]],
                [[[1.0, 1.0]], [[1.0], [nan, 3.0]]],
                [[[1.0, 1.0]], [[1.0], [2.0, 3.0]]],
                [[[1.0, 1.0]], [[1.0], [2.0, 3.0]]],
            ],
            parameters=two,
        ),
        scenario("several optimizers, clipped", {}, [[[[3.0, 4.0]], [[6.0], [8.0, 0.0]]]] * 2, parameters=two, clip=0.5),
        scenario(
            "restored",
            {},
            [fine, fine],
            restored={"scale": 8.0, "growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 3, "_growth_tracker": 2},
        ),
    ]
    misuses = [
        misuse(calls)
        for calls in [
            ["unscale"],
            ["step"],
            ["update"],
            ["scale", "unscale", "unscale"],
            ["scale", "step", "unscale"],
            ["scale", "unscale", "step", "unscale"],
            ["scale", "step", "step"],
            ["scale", "update"],
            ["scale only", "step"],
            ["half gradient"],
        ]
    ]
    # A line for each scenario and misuse, so that a difference between two versions can be read.
    lines = [f'"torch": "{torch.__version__.split("+")[0]}"', f'"rate": {RATE}']
    for name, items in [("scenarios", scenarios), ("misuses", misuses)]:
        lines.append(f'"{name}": [\n  ' + ",\n  ".join(json.dumps(item) for item in items) + "\n ]")
    OUT.write_text("{\n " + ",\n ".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
