"""Writes tests/reference/grad_scaler.json: what PyTorch's GradScaler does, for the tests of src/torch/src/grad_scaler.rs to compare with.

    .venv/bin/python tests/reference/make/grad_scaler.py

Everything runs on the CPU. Each parameter is one vector; its loss is its dot product with a given vector, so that vector times the scale is
its gradient. Numbers stand as text, because JSON has no infinity.
"""

import json
from pathlib import Path

import torch

OUT = Path(__file__).resolve().parents[1] / "grad_scaler.json"
RATE = 0.5


def text(values):
    return [repr(float(value)) for value in values]


def scenario(name, settings, iterations, parameters=([1.0, 2.0],), clip=None, passes=1):
    """Runs iterations: in each a list of vectors, one for each parameter, or None where that gets no gradient. Notes what is to be seen
    after each."""
    scaler = torch.amp.GradScaler("cpu", **settings)
    tensors = [torch.tensor(vector, requires_grad=True) for vector in parameters]
    optimizer = torch.optim.SGD(tensors, lr=RATE)
    seen = []
    for vectors in iterations:
        optimizer.zero_grad()
        for _ in range(passes):
            for tensor, vector in zip(tensors, vectors):
                if vector is not None:
                    scaler.scale((tensor * torch.tensor(vector)).sum()).backward()
        if clip is not None:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(tensors, clip)
        scaler.step(optimizer)
        gradients = [None if tensor.grad is None else text(tensor.grad) for tensor in tensors]
        scaler.update()
        seen.append(
            {
                "vectors": [None if vector is None else text(vector) for vector in vectors],
                "gradients": gradients,
                "parameters": [text(tensor.detach()) for tensor in tensors],
                "scale": scaler.get_scale(),
            }
        )
    return {
        "name": name,
        "settings": settings,
        "parameters": [text(vector) for vector in parameters],
        "clip": clip,
        "passes": passes,
        "iterations": seen,
    }


def misuse(calls):
    """The message of the last of these calls, all before it being right."""
    scaler, other = torch.amp.GradScaler("cpu"), torch.tensor([1.0], requires_grad=True)
    tensor = torch.tensor([1.0, 2.0], requires_grad=True)
    optimizer = torch.optim.SGD([tensor], lr=RATE)
    actions = {
        "scale": lambda: scaler.scale(tensor.sum()).backward(),
        "scale another": lambda: scaler.scale(other.sum()).backward(),
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
    fine, overflow, no_number = [[0.5, -3.0]], [[0.5, inf]], [[nan, 1.0]]
    scenarios = [
        scenario("defaults", {}, [fine, fine, fine]),
        scenario("overflow by the scale itself", {"init_scale": 2.0**100}, [[[2.0**40, 1.0]]] * 14 + [fine]),
        scenario("infinity and NaN back off", {}, [fine, overflow, no_number, fine, overflow]),
        scenario("growth interval", {"growth_interval": 3}, [fine] * 7),
        scenario("an overflow starts the interval again", {"growth_interval": 3}, [fine, fine, overflow, fine, fine, fine, fine]),
        scenario(
            "own factors",
            {"init_scale": 10.0, "growth_factor": 1.5, "backoff_factor": 0.2, "growth_interval": 2},
            [fine, fine, overflow, fine, fine],
        ),
        scenario("growth stops before infinity", {"init_scale": 2.0**127, "growth_interval": 1}, [[[0.0, 0.0]]] * 2),
        scenario("clipping unscaled gradients", {}, [[[3.0, 4.0]], [[0.3, 0.4]], overflow, [[30.0, 40.0]]], clip=1.0),
        scenario("gradients of several backward passes", {"growth_interval": 2}, [fine, fine, overflow, fine], passes=3),
        scenario("gradients of several backward passes, clipped", {}, [[[3.0, 4.0]]] * 2, passes=2, clip=1.0),
        scenario(
            "parameters without gradient",
            {"growth_interval": 2},
            [[None, [2.0, 3.0]], [[inf], None], [[1.0], None], [[1.0], [2.0, 3.0]]],
            parameters=([3.0], [4.0, 5.0]),
        ),
        scenario("gradients below the least number", {"init_scale": 2.0**-100}, [[[2.0**-60, 1.0]]] * 2),
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
            ["scale another", "step"],
            ["scale only", "unscale", "step"],
            ["scale only", "unscale", "update"],
            ["scale", "step", "update", "step", "step"],
            ["scale", "step", "update", "update"],
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
