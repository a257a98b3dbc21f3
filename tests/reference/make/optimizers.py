"""Writes tests/reference/optimizers.json: what PyTorch's own optimizers make of a few small parameters, and the state that they keep.

    .venv/bin/python tests/reference/make/optimizers.py

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
    ("momentum", "SGD", {"momentum": 0.9}),
    ("rmsprop", "RMSprop", {}),
    ("adam", "Adam", {}),
    ("adamw", "AdamW", {}),
]
TYPES = ["float32", "float64", "bfloat16", "float16"]


def start(i: int, shape: list[int]) -> torch.Tensor:
    values = [math.cos(0.3 + 1.1 * k + 2.3 * i) for k in range(math.prod(shape))]
    return torch.tensor(values, dtype=torch.float64).to(torch.float32).reshape(shape)


def gradient(i: int, step: int, shape: list[int]) -> torch.Tensor:
    values = [math.sin(1.0 + 0.7 * k + 1.3 * step + 2.1 * i) for k in range(math.prod(shape))]
    return torch.tensor(values, dtype=torch.float64).to(torch.float32).reshape(shape)


def run(name: str, algorithm: str, options: dict, dtype: str, zeroed: bool) -> dict:
    """Steps; where `zeroed`, gradients are filled with zeros where there is none, and such a parameter is stepped all the same."""
    own = getattr(torch, dtype)
    parameters = [torch.nn.Parameter(start(i, shape).to(own)) for i, shape in enumerate(SHAPES)]
    optimizer = getattr(torch.optim, algorithm)(parameters, lr=0.05, foreach=False, **options)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=not zeroed)
        for i, (parameter, shape) in enumerate(zip(parameters, SHAPES)):
            if (i, step) not in WITHOUT_GRADIENT:
                parameter.grad = gradient(i, step, shape).to(own)
        optimizer.step()
    states = []
    for parameter in parameters:
        state = optimizer.state[parameter]
        states.append({key: value.flatten().tolist() for key, value in sorted(state.items()) if value is not None})
    return {
        "name": name,
        "dtype": dtype,
        "zeroed": zeroed,
        "parameters": [parameter.detach().flatten().tolist() for parameter in parameters],
        "states": states,
    }


def main() -> None:
    cases = [run(*case, dtype, zeroed) for case in CASES for dtype in TYPES for zeroed in [False, True]]
    path = pathlib.Path(__file__).parents[1] / "optimizers.json"
    lines = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(f'{{"torch": "{torch.__version__}", "cases": [\n{lines}\n]}}\n')
    print(f"{path}: {len(cases)} cases")


if __name__ == "__main__":
    main()
