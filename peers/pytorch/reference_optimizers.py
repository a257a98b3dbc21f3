"""Writes tests/reference/optimizers.json: what PyTorch's own optimizers make of a few small parameters, and the state that they keep.

    .venv/bin/python peers/pytorch/reference_optimizers.py

tests/optimizers.rs holds vramlab's optimizers to these values. Gradients come from a formula that both sides compute in double precision.
"""

import json
import math
import pathlib

import torch

SHAPES = [[3, 4], [5], [], [0], [2]]
STEPS = 5
# The last parameter gets its first gradient at step 1 and none at step 3, the second none at step 2.
WITHOUT_GRADIENT = {(4, 0), (4, 3), (1, 2)}

CASES = [
    ("sgd", "SGD", {}),
    ("sgd-decay", "SGD", {"weight_decay": 0.1}),
    ("sgd-maximize", "SGD", {"maximize": True, "weight_decay": 0.1}),
    ("momentum", "SGD", {"momentum": 0.9}),
    ("momentum-dampening", "SGD", {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1}),
    ("momentum-maximize", "SGD", {"momentum": 0.9, "maximize": True}),
    ("nesterov", "SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("rmsprop", "RMSprop", {}),
    ("rmsprop-decay", "RMSprop", {"weight_decay": 0.1, "alpha": 0.9}),
    ("rmsprop-centered-momentum", "RMSprop", {"centered": True, "momentum": 0.9}),
    ("rmsprop-maximize", "RMSprop", {"maximize": True}),
    ("adam", "Adam", {}),
    ("adam-decay", "Adam", {"weight_decay": 0.1, "betas": [0.8, 0.95]}),
    ("adam-amsgrad", "Adam", {"amsgrad": True, "weight_decay": 0.1}),
    ("adam-maximize", "Adam", {"maximize": True, "weight_decay": 0.1}),
    ("adamw", "AdamW", {}),
    ("adamw-decay", "AdamW", {"weight_decay": 0.3, "eps": 1e-3}),
    ("adamw-amsgrad-maximize", "AdamW", {"amsgrad": True, "maximize": True}),
]
# A scaler's view: gradients come multiplied by 4, and those of steps 0 and 2 overflowed.
SCALED = [("adam", "Adam", {}), ("adamw", "AdamW", {}), ("sgd-decay", "SGD", {"weight_decay": 0.1})]
SCALE, SKIPPED = 4.0, {0, 2}


def start(i: int, shape: list[int]) -> torch.Tensor:
    values = [math.cos(0.3 + 1.1 * k + 2.3 * i) for k in range(math.prod(shape))]
    return torch.tensor(values, dtype=torch.float64).to(torch.float32).reshape(shape)


def gradient(i: int, step: int, shape: list[int]) -> torch.Tensor:
    values = [math.sin(1.0 + 0.7 * k + 1.3 * step + 2.1 * i) for k in range(math.prod(shape))]
    return torch.tensor(values, dtype=torch.float64).to(torch.float32).reshape(shape)


def run(name: str, algorithm: str, options: dict, scaled: bool) -> dict:
    parameters = [torch.nn.Parameter(start(i, shape)) for i, shape in enumerate(SHAPES)]
    optimizer = getattr(torch.optim, algorithm)(parameters, lr=0.05, fused=True, **options) if scaled else getattr(
        torch.optim, algorithm
    )(parameters, lr=0.05, foreach=False, **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        if step == 3:
            optimizer.param_groups[0]["lr"] = 0.02
        for i, (parameter, shape) in enumerate(zip(parameters, SHAPES)):
            if scaled:
                parameter.grad = gradient(i, step, shape) * SCALE
            elif (i, step) not in WITHOUT_GRADIENT:
                parameter.grad = gradient(i, step, shape)
        if scaled:
            optimizer.grad_scale = torch.tensor(SCALE)
            optimizer.found_inf = torch.tensor(float(step in SKIPPED))
        optimizer.step()
    states = []
    for parameter in parameters:
        state = optimizer.state[parameter]
        states.append({key: value.flatten().tolist() for key, value in sorted(state.items()) if value is not None})
    return {
        "name": name,
        "algorithm": algorithm,
        "options": options,
        "scaled": scaled,
        "parameters": [parameter.detach().flatten().tolist() for parameter in parameters],
        "states": states,
    }


def main() -> None:
    cases = [run(*case, scaled=False) for case in CASES] + [run(*case, scaled=True) for case in SCALED]
    path = pathlib.Path(__file__).parents[2] / "tests" / "reference" / "optimizers.json"
    lines = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(f'{{"torch": "{torch.__version__}", "cases": [\n{lines}\n]}}\n')
    print(f"{path}: {len(cases)} cases")


if __name__ == "__main__":
    main()
