"""Writes tests/reference/meter.json: what PyTorch's profiler sees of the memory of single operations on the CPU.

    .venv/bin/python tests/reference/make/meter.py

tests/torch/meter.rs runs the same operations under vramlab's counting allocator and compares every allocation: its bytes, and when it is freed.
Both run the same libtorch on one thread, so nothing may differ. Tensors are made before the profiler begins, and each operation runs once
before. There is no convolution: what oneDNN needs for one depends on the CPU.
"""

import json
from pathlib import Path

import torch
from torch._C._profiler import _EventType
from torch.nn import functional as F

OUT = Path(__file__).resolve().parents[1] / "meter.json"


def tensor(*shape):
    return torch.randn(*shape)


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def backward_of(output):
    output.sum().backward()


# Each makes its tensors and gives what is measured; what that gives back lives on.


def add():
    a, b = tensor(100, 7), tensor(100, 7)
    return lambda: a + b


def add_with_broadcasting():
    a, b = tensor(100, 1), tensor(7)
    return lambda: a + b


def add_in_place():
    a, b = tensor(100, 7), tensor(100, 7)
    return lambda: a.add_(b)


def views():
    a = tensor(10, 20)
    return lambda: [a.view(200), a.t(), a[3], a.unsqueeze(0).expand(4, 10, 20)]


def contiguous():
    a = tensor(10, 20).t()
    return lambda: a.contiguous()


def to_double():
    a = tensor(33)
    return lambda: a.double()


def nothing():
    return lambda: torch.empty(0)


def concatenate():
    a, b = tensor(3, 5), tensor(4, 5)
    return lambda: torch.cat([a, b])


def reduce():
    a = tensor(50, 60)
    return lambda: [a.sum(), a.mean(1), a.max(1)[0], a.var(0)]


def sort():
    a = tensor(50, 60)
    return lambda: a.sort(1)


def matmul():
    a, b = tensor(30, 40), tensor(40, 50)
    return lambda: a @ b


def batched_matmul():
    a, b = tensor(3, 30, 40), tensor(40, 50)
    return lambda: a @ b


def linear():
    x, w, b = leaf(16, 30), leaf(20, 30), leaf(20)
    return lambda: F.linear(x, w, b).relu()


def linear_backward():
    x, w, b = leaf(16, 30), leaf(20, 30), leaf(20)
    return lambda: backward_of(F.linear(x, w, b).relu())


def two_branches_meet():
    x = leaf(16, 30)
    return lambda: backward_of(x.tanh() * x.sin() + x)


def layer_norm_backward():
    x, w, b = leaf(16, 30), leaf(30), leaf(30)
    return lambda: backward_of(F.layer_norm(x, [30], w, b))


def batch_norm_backward():
    x, w, b = leaf(4, 5, 6, 6), leaf(5), leaf(5)
    mean, variance = torch.zeros(5), torch.ones(5)
    return lambda: backward_of(F.batch_norm(x, mean, variance, w, b, True))


def pooling_backward():
    x = leaf(2, 3, 9, 9)
    pools = [lambda: F.max_pool2d(x, 3, 2, 1), lambda: F.avg_pool2d(x, 3), lambda: x.mean([2, 3])]
    return lambda: [backward_of(pool()) for pool in pools]


def cross_entropy_backward():
    x, targets = leaf(16, 10), torch.arange(16) % 10
    return lambda: backward_of(F.cross_entropy(x, targets))


def embedding_backward():
    table, indices = leaf(50, 8), torch.arange(40) % 7
    return lambda: backward_of(F.embedding(indices, table))


def dropout_backward():
    x = leaf(100, 10)
    return lambda: backward_of(F.dropout(x, 0.25, True))


def explicit_attention_backward():
    q, k, v = leaf(2, 3, 11, 8), leaf(2, 3, 11, 8), leaf(2, 3, 11, 8)
    return lambda: backward_of((q @ k.transpose(-2, -1)).softmax(-1) @ v)


def fused_attention_backward():
    q, k, v = leaf(2, 3, 11, 8), leaf(2, 3, 11, 8), leaf(2, 3, 11, 8)
    return lambda: backward_of(F.scaled_dot_product_attention(q, k, v, is_causal=True))


def gradients_that_are_added_up():
    x, w = tensor(16, 30), leaf(20, 30)
    return lambda: [backward_of(F.linear(x, w)) for _ in range(2)]


def without_gradients():
    x, w, b = leaf(16, 30), leaf(20, 30), leaf(20)

    def body():
        with torch.no_grad():
            return F.linear(x, w, b).relu().exp()

    return body


OPERATIONS = [
    add,
    add_with_broadcasting,
    add_in_place,
    views,
    contiguous,
    to_double,
    nothing,
    concatenate,
    reduce,
    sort,
    matmul,
    batched_matmul,
    linear,
    linear_backward,
    two_branches_meet,
    layer_norm_backward,
    batch_norm_backward,
    pooling_backward,
    cross_entropy_backward,
    embedding_backward,
    dropout_backward,
    explicit_attention_backward,
    fused_attention_backward,
    gradients_that_are_added_up,
    without_gradients,
]


def allocations(events):
    """Bytes of each allocation (above 0) and of each free (below 0), in order."""
    found = []
    waiting = list(events)
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.tag == _EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields.alloc_size))
    return [size for _, size in sorted(found, key=lambda event: event[0])]


def measure(operation):
    operation()()
    body = operation()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = body()
    sizes = allocations(profiler.profiler.kineto_results.experimental_event_tree())
    live, peak = 0, 0
    for size in sizes:
        live += size
        peak = max(peak, live)
    del kept
    return {"name": operation.__name__, "kept": live, "peak": peak, "sizes": sizes}


def main():
    torch.set_num_threads(1)
    operations = ",\n  ".join(json.dumps(measure(operation)) for operation in OPERATIONS)
    OUT.write_text(f'{{\n "torch": "{torch.__version__.split("+")[0]}",\n "operations": [\n  {operations}\n ]\n}}\n')
    print(OUT, len(OPERATIONS), "operations")


if __name__ == "__main__":
    main()
