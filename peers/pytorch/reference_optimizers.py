"""Writes tests/reference/optimizers.json: what PyTorch's own optimizers make of a few small parameters, and the state that they keep.

    .venv/bin/python peers/pytorch/reference_optimizers.py

tests/torch/optimizers.rs holds vramlab's optimizers to these values. Gradients come from a formula that both sides compute in double precision.
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
    # Settings at the edge of what is taken.
    ("sgd-rate-zero", "SGD", {"lr": 0.0, "weight_decay": 0.1}),
    ("momentum-above-one", "SGD", {"momentum": 1.5}),
    ("momentum-dampening-below-zero", "SGD", {"momentum": 0.9, "dampening": -0.5}),
    ("momentum-no-dampening-left", "SGD", {"momentum": 0.9, "dampening": 1.0}),
    ("nesterov-maximize", "SGD", {"momentum": 0.9, "nesterov": True, "maximize": True}),
    ("rmsprop-alpha-zero", "RMSprop", {"alpha": 0.0}),
    ("rmsprop-everything", "RMSprop", {"alpha": 0.5, "centered": True, "momentum": 0.3, "weight_decay": 0.2, "maximize": True}),
    ("adam-betas-zero", "Adam", {"betas": [0.0, 0.0]}),
    ("adam-first-beta-zero", "Adam", {"betas": [0.0, 0.9], "amsgrad": True}),
    ("adam-epsilon-large", "Adam", {"eps": 10.0, "lr": 3.0}),
    ("adam-epsilon-zero", "Adam", {"eps": 0.0}),
    ("adam-decay-maximize-amsgrad", "Adam", {"amsgrad": True, "maximize": True, "weight_decay": 0.3}),
    ("adamw-decay-all", "AdamW", {"weight_decay": 20.0}),
    ("adamw-no-decay", "AdamW", {"weight_decay": 0.0}),
]
# Gradients that are filled with zeros where there is none: such a parameter is stepped all the same.
ZEROED = [
    ("momentum-zeroed", "SGD", {"momentum": 0.9, "weight_decay": 0.1}),
    ("rmsprop-zeroed", "RMSprop", {"momentum": 0.5}),
    ("adam-zeroed", "Adam", {}),
    ("adamw-zeroed", "AdamW", {}),
]
# Numbers of other types than 32-bit floats.
TYPES = [
    (f"{name}-{dtype}", algorithm, options, dtype)
    for dtype in ["float64", "bfloat16", "float16"]
    for name, algorithm, options in [
        ("momentum", "SGD", {"momentum": 0.9, "weight_decay": 0.1}),
        ("rmsprop", "RMSprop", {"centered": True, "eps": 1e-3}),
        ("adam", "Adam", {"amsgrad": True, "eps": 1e-3}),
        ("adamw", "AdamW", {"eps": 1e-3}),
    ]
]
# Groups of parameters, by their numbers, with settings of their own.
GROUPED = [
    ("sgd-groups", "SGD", {"momentum": 0.9}, [{"parameters": [0, 2]}, {"parameters": [1, 3, 4], "momentum": 0.0, "lr": 0.2}]),
    (
        "adam-groups",
        "Adam",
        {"weight_decay": 0.1},
        [{"parameters": [4, 0]}, {"parameters": [1], "amsgrad": True, "lr": 0.5}, {"parameters": [2, 3], "betas": [0.5, 0.6]}],
    ),
    ("adamw-groups", "AdamW", {}, [{"parameters": [0, 1, 2], "weight_decay": 0.0}, {"parameters": [3, 4], "weight_decay": 0.5}]),
    ("rmsprop-groups", "RMSprop", {}, [{"parameters": [0, 1]}, {"parameters": [2, 3, 4], "centered": True, "momentum": 0.1}]),
]
# Settings that are taken, or refused.
SETTINGS = [
    ("SGD", {"lr": -0.1}),
    ("SGD", {"lr": 0.0}),
    ("SGD", {"momentum": -0.1}),
    ("SGD", {"momentum": 2.0}),
    ("SGD", {"momentum": 0.9, "dampening": -1.0}),
    ("SGD", {"weight_decay": -0.1}),
    ("SGD", {"nesterov": True}),
    ("SGD", {"nesterov": True, "momentum": 0.9, "dampening": 0.1}),
    ("RMSprop", {"lr": -0.1}),
    ("RMSprop", {"alpha": -0.1}),
    ("RMSprop", {"alpha": 2.0}),
    ("RMSprop", {"eps": -1e-8}),
    ("RMSprop", {"momentum": -0.1}),
    ("RMSprop", {"weight_decay": -0.1}),
    ("Adam", {"lr": -0.1}),
    ("Adam", {"betas": [-0.1, 0.9]}),
    ("Adam", {"betas": [1.0, 0.9]}),
    ("Adam", {"betas": [0.9, 1.0]}),
    ("Adam", {"betas": [0.0, 0.0]}),
    ("Adam", {"eps": -1e-8}),
    ("Adam", {"eps": 0.0}),
    ("Adam", {"weight_decay": -0.1}),
    ("AdamW", {"weight_decay": -0.1}),
    ("AdamW", {"weight_decay": 20.0}),
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


def run(
    name: str,
    algorithm: str,
    options: dict,
    dtype: str = "float32",
    groups: list[dict] | None = None,
    scaled: bool = False,
    zeroed: bool = False,
) -> dict:
    own = getattr(torch, dtype)
    parameters = [torch.nn.Parameter(start(i, shape).to(own)) for i, shape in enumerate(SHAPES)]
    grouped = [group | {"params": [parameters[i] for i in group["parameters"]]} for group in groups or []]
    settings = {"lr": 0.05} | options
    how = {"fused": True} if scaled else {"foreach": False}
    optimizer = getattr(torch.optim, algorithm)(grouped or parameters, **settings, **how)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=not zeroed)
        if step == 3:
            optimizer.param_groups[0]["lr"] = 0.02
        for i, (parameter, shape) in enumerate(zip(parameters, SHAPES)):
            if scaled:
                parameter.grad = gradient(i, step, shape) * SCALE
            elif (i, step) not in WITHOUT_GRADIENT:
                parameter.grad = gradient(i, step, shape).to(own)
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
        "dtype": dtype,
        "groups": groups or [],
        "scaled": scaled,
        "zeroed": zeroed,
        "parameters": [parameter.detach().flatten().tolist() for parameter in parameters],
        "states": states,
    }


def is_refused(algorithm: str, options: dict) -> bool:
    try:
        getattr(torch.optim, algorithm)([torch.nn.Parameter(torch.ones(2))], **({"lr": 0.05} | options))
    except ValueError:
        return True
    return False


def main() -> None:
    cases = [run(*case) for case in CASES + TYPES]
    cases += [run(*case, scaled=True) for case in SCALED]
    cases += [run(*case, zeroed=True) for case in ZEROED]
    cases += [run(name, algorithm, options, groups=groups) for name, algorithm, options, groups in GROUPED]
    settings = [{"algorithm": algorithm, "options": options, "refused": is_refused(algorithm, options)} for algorithm, options in SETTINGS]
    path = pathlib.Path(__file__).parents[2] / "tests" / "reference" / "optimizers.json"
    lines, settings = (",\n".join(json.dumps(item) for item in items) for items in [cases, settings])
    path.write_text(f'{{"torch": "{torch.__version__}", "cases": [\n{lines}\n], "settings": [\n{settings}\n]}}\n')
    print(f"{path}: {len(cases)} cases")


if __name__ == "__main__":
    main()
