"""Writes tests/reference/checkpoint.json: what torch.utils.checkpoint (use_reentrant=False) gives in small scenes, for
tests/torch/checkpoint_scenes.rs.

    .venv/bin/python tests/reference/make/checkpoint.py

Each scene is played there again, under the same name. Leaves are matrices of 4 x 4 from a formula that both sides compute; random numbers
come from the CPU's generator, which gives both the same. Noted are outputs, gradients, and how often each segment was begun: in the
forward pass, and in all.
"""

import json
from pathlib import Path

import torch
from torch.utils.checkpoint import checkpoint

OUT = Path(__file__).resolve().parents[1] / "checkpoint.json"
SIDE = 4


def matrix(i):
    values = torch.cos(0.3 + 1.1 * torch.arange(SIDE * SIDE, dtype=torch.float64) + 2.3 * i)
    return values.float().reshape(SIDE, SIDE)


class Scene:
    """Leaves, segments and what becomes of them."""

    def __init__(self):
        torch.manual_seed(7)
        self.leaves, self.runs, self.preserve = [], {}, True

    def leaf(self, gradient=True):
        self.leaves.append(matrix(len(self.leaves)).requires_grad_(gradient))
        return self.leaves[-1]

    def segment(self, name, body, *inputs):
        """Runs a checkpointed segment that is counted under a name."""

        def counted(*arguments):
            self.runs[name] = self.runs.get(name, 0) + 1
            return body(*arguments)

        return checkpoint(counted, *inputs, use_reentrant=False, preserve_rng_state=self.preserve)


def loss(*outputs):
    return sum((output * output).sum() for output in outputs)


# ---- scenes: each gives its outputs, and what the backward passes are to begin with ---------------------------------------------------


def one_segment(scene):
    x, w = scene.leaf(), scene.leaf()
    y = scene.segment("only", lambda x, w: (x @ w).tanh(), x, w)
    return [y], [loss(y)]


def in_a_row(scene):
    x, w = scene.leaf(), scene.leaf()
    y = x
    for name in ["first", "second", "third"]:
        y = scene.segment(name, lambda y: (y @ w).tanh(), y)
    return [y], [loss(y)]


def nested(scene):
    x, w = scene.leaf(), scene.leaf()

    def outer(x):
        return scene.segment("inner", lambda x: (x @ w).tanh(), x.sin()) @ w

    y = scene.segment("outer", outer, x)
    return [y], [loss(y)]


def nested_three_deep(scene):
    x, w = scene.leaf(), scene.leaf()

    def middle(x):
        return scene.segment("inner", lambda x: (x @ w).sin(), x).tanh() @ w

    def outer(x):
        return scene.segment("middle", middle, x.sin()) * x

    y = scene.segment("outer", outer, x)
    return [y], [loss(y)]


def nested_siblings(scene):
    x, w = scene.leaf(), scene.leaf()

    def outer(x):
        first = scene.segment("first", lambda x: (x @ w).tanh(), x)
        return scene.segment("second", lambda x: (x @ w).sin(), first) * first

    y = scene.segment("outer", outer, x)
    return [y], [loss(y)]


def several_inputs_and_outputs(scene):
    a, b = scene.leaf(), scene.leaf()
    index = torch.tensor([2, 0])
    out = scene.segment("only", lambda a, b, index: (a * b, a.index_select(0, index), index, b.sin()), a, b, index)
    # The last output is used by nobody.
    return list(out), [out[0].sum() + 3.0 * loss(out[1])]


def an_output_is_an_input(scene):
    a, b = scene.leaf(), scene.leaf()
    out = scene.segment("only", lambda a, b: (a, a * b), a, b)
    return list(out), [loss(*out)]


def one_tensor_twice(scene):
    x = scene.leaf()
    y = scene.segment("only", lambda a, b: a.sin() @ b, x, x)
    return [y], [loss(y)]


def used_inside_and_outside(scene):
    x, w = scene.leaf(), scene.leaf()
    y = scene.segment("only", lambda x: (x @ w).tanh(), x)
    z = y @ w + x
    return [z], [loss(z)]


def some_inputs_without_gradient(scene):
    x, w = scene.leaf(gradient=False), scene.leaf()
    y = scene.segment("only", lambda x, w: (x @ w).tanh() * x, x, w)
    return [y], [loss(y)]


def no_input_needs_a_gradient(scene):
    x, w = scene.leaf(gradient=False), scene.leaf()
    y = scene.segment("only", lambda x: (x @ w).tanh(), x)
    return [y], [loss(y)]


def an_input_is_missing(scene):
    x, w = scene.leaf(), scene.leaf()
    y = scene.segment("only", lambda x, bias, w: (x @ w + (0.0 if bias is None else bias)).tanh(), x, None, w)
    return [y], [loss(y)]


def an_output_is_missing(scene):
    x, w = scene.leaf(), scene.leaf()
    y, _ = scene.segment("only", lambda x: ((x @ w).tanh(), None), x)
    return [y], [loss(y)]


def dropout(scene):
    x, w = scene.leaf(), scene.leaf()
    y = scene.segment("only", lambda x: torch.dropout(x @ w, 0.5, True), x)
    return [y, torch.rand(4)], [loss(y)]


def dropout_in_a_row(scene):
    x, w = scene.leaf(), scene.leaf()
    y = x
    for name in ["first", "second"]:
        y = scene.segment(name, lambda y: torch.dropout((y @ w).tanh(), 0.5, True), y)
    return [y, torch.rand(4)], [loss(y)]


def dropout_nested(scene):
    x, w = scene.leaf(), scene.leaf()

    def outer(x):
        dropped = torch.dropout(x, 0.25, True)
        inner = scene.segment("inner", lambda x: torch.dropout((x @ w).tanh(), 0.5, True), dropped)
        return torch.dropout(inner @ w, 0.25, True)

    y = scene.segment("outer", outer, x)
    return [y, torch.rand(4)], [loss(y)]


def dropout_that_is_not_replayed(scene):
    scene.preserve = False
    return dropout(scene)


def dropped_early(scene):
    x, w = scene.leaf(), scene.leaf()
    scene.segment("only", lambda x: (x @ w).tanh(), x)
    return [], []


def backward_twice(scene):
    x, w = scene.leaf(), scene.leaf()
    y = scene.segment("only", lambda x: (x @ w).tanh(), x)
    total = loss(y)
    return [y], [total, total]


def backward_twice_nested(scene):
    outputs, (total,) = nested(scene)
    return outputs, [total, total]


def an_output_at_a_time(scene):
    x, w = scene.leaf(), scene.leaf()
    out = scene.segment("only", lambda x: ((x @ w).tanh(), (x @ w).sin()), x)
    return list(out), [loss(out[0]), loss(out[1])]


def without_gradients(scene):
    x, w = scene.leaf(), scene.leaf()
    with torch.no_grad():
        y = scene.segment("only", lambda x: (x @ w).tanh(), x)
    return [y], []


SCENES = [
    one_segment,
    in_a_row,
    nested,
    nested_three_deep,
    nested_siblings,
    several_inputs_and_outputs,
    an_output_is_an_input,
    one_tensor_twice,
    used_inside_and_outside,
    some_inputs_without_gradient,
    no_input_needs_a_gradient,
    an_input_is_missing,
    an_output_is_missing,
    dropout,
    dropout_in_a_row,
    dropout_nested,
    dropout_that_is_not_replayed,
    dropped_early,
    backward_twice,
    backward_twice_nested,
    an_output_at_a_time,
    without_gradients,
]


def numbers(tensor):
    return None if tensor is None else tensor.detach().double().flatten().tolist()


def play(body):
    scene = Scene()
    outputs, losses = body(scene)
    forward = dict(scene.runs)
    for total in losses:
        total.backward(retain_graph=total is not losses[-1] or len(losses) > 1)
    return {
        "name": body.__name__,
        "outputs": [numbers(output) for output in outputs],
        "need_gradients": [output.requires_grad for output in outputs],
        "gradients": [numbers(leaf.grad) for leaf in scene.leaves],
        "runs": {name: [forward.get(name, 0), runs] for name, runs in sorted(scene.runs.items())},
        "random_afterwards": numbers(torch.rand(4)),
    }


def main():
    scenes = ",\n  ".join(json.dumps(play(body)) for body in SCENES)
    OUT.write_text(f'{{\n "torch": "{torch.__version__.split("+")[0]}",\n "scenes": [\n  {scenes}\n ]\n}}\n')
    print(OUT, len(SCENES), "scenes")


if __name__ == "__main__":
    main()
