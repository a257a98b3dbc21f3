"""What is turned off or changed because nothing is computed; each is named in the answer."""

import ast
import builtins
import functools
import inspect
import re
import textwrap

from . import compiling, device, imports
from .guard import instead
from .notes import note
from .session import fail, settings


def follow(torch):
    _share_with_nobody(torch)
    _freeze_nothing(torch)
    _pack_nothing(torch)
    _coalesce_to_the_most(torch)
    _tell_limits(torch)
    if settings.no_init:
        _leave_uninitialised(torch)
    if settings.eager:
        _do_not_compile(torch)
    else:
        compiling.follow(torch)
    compiling.leave_unloaded(torch)
    imports.when_imported("triton.runtime.jit", _launch_nothing)
    imports.when_imported("triton.runtime.autotuner", _tune_nothing)


def _do_not_compile(torch):
    """torch.compile gives back what it was given: a compiled model's memory is another, mostly less."""
    # Every way in: torch.compile, Module.compile, torch._dynamo.optimize.

    def say():
        note(note="torch.compile was turned off: this is the memory of eager execution, mostly more than the compiled one's")

    @instead("compile", torch)
    def compile(model=None, **more):
        say()
        if model is None:
            return lambda function: function
        return model

    @instead("compile", torch.nn.Module)
    def compile_in_place(self, *arguments, **more):
        say()


def _share_with_nobody(torch):
    """A CUDA tensor that goes to another process would be refused in a queue's own thread, and its reader would wait for ever."""

    def share(storage, *_, **__):
        fail(
            "the script sends a CUDA tensor to another process (torch.multiprocessing), and the simulated card's memory belongs to one process; "
            "send it from the CPU (.cpu()), or keep both ends in one process"
        )

    torch.UntypedStorage._share_cuda_ = share


def _freeze_nothing(torch):
    """To freeze a module is to merge those of its weights that are equal, of which nobody knows here which are."""

    def left_as_it_is(mod, *arguments, **more):
        note(note="torch.jit's modules were not frozen: that compares weights, which have no values here; folding takes a little less than is said here")
        return mod

    @instead("freeze", torch.jit)
    def freeze(mod, *arguments, **more):
        # PyTorch refuses one that is in training.
        return freeze.__wrapped__(mod, *arguments, **more) if getattr(mod, "training", False) else left_as_it_is(mod)

    @instead("optimize_for_inference", torch.jit)
    def optimize_for_inference(mod, *arguments, **more):
        return left_as_it_is(mod.eval() if hasattr(mod, "training") else mod)

    @instead("run_frozen_optimizations", torch.jit)
    def run_frozen_optimizations(mod, *arguments, **more):
        left_as_it_is(mod)


def _pack_nothing(torch):
    """Packed rows have no strides, which is what kernels are counted by, and how many there are is read from the mask."""

    @instead("_nested_tensor_from_mask_left_aligned", torch)
    def is_left_aligned(*_, **__):
        note(note="nn.TransformerEncoder kept padded rows; on a GPU it may pack them in inference, of which the sizes are others")
        return False


def _coalesce_to_the_most(torch):
    """How many entries of a sparse tensor have a place of their own is read from the GPU; at the most all have."""

    def made(tensor):
        indices, values = tensor._indices(), tensor._values()
        # As PyTorch's kernel: a key for each entry, its order, and where each place begins.
        temporaries = [indices.new_empty(indices.shape[1]) for _ in range(3)]
        result = torch.sparse_coo_tensor(indices.clone(), values.clone(), tensor.shape, is_coalesced=True, check_invariants=False)
        del temporaries
        return result

    class Coalesce(torch.autograd.Function):
        @staticmethod
        def forward(context, tensor):
            return made(tensor)

        @staticmethod
        def backward(context, gradient):
            return gradient

    @instead("coalesce", torch.Tensor)
    def coalesce(self):
        if not self.is_cuda or self.layout is not torch.sparse_coo or self.is_coalesced():
            return coalesce.__wrapped__(self)
        note(note="coalesce() took each entry of a sparse tensor for one with a place of its own: a real run takes less where places repeat")
        return Coalesce.apply(self) if self.requires_grad and torch.is_grad_enabled() else made(self)


def _tell_limits(torch):
    """A share of the card that the script sets as its own limit."""

    @instead("_cuda_setMemoryFraction", torch._C)
    def limit(fraction, device):
        note(limit=float(fraction), device=int(device))
        return limit.__wrapped__(fraction, device)


def _launch_nothing(jit):
    def run(self, *arguments, **more):
        note(note="Triton kernels were not launched: what they are given is allocated, and nothing is computed")
        written = _written(self.fn)
        named = [(name, value if isinstance(value, tuple) else (value,)) for name, value in (*zip(self.arg_names, arguments), *more.items())]
        device.lose([each for name, values in named if written is None or name in written for each in values])

    jit.JITFunction.run = run


def _names(node):
    """Those that a value is made of by addition and the like; what is loaded is made of what nobody writes to for that."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("load"):
        return set()
    own = {node.id} if isinstance(node, ast.Name) else set()
    return own.union(*map(_names, ast.iter_child_nodes(node)))


@functools.cache
def _written(function):
    """Names of what a kernel of Triton's may write to: what a store or an atomic operation has its address of, and all that goes to another function.
    None where its source is not to be had."""
    try:
        nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))))
    except (OSError, TypeError, SyntaxError):
        return None
    written, assigned = set(), []
    for node in nodes:
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if re.search(r"\b(store|atomic_\w+)$", called):
                written |= _names(node.func).union(*map(_names, node.args[:1]), *(_names(each.value) for each in node.keywords if each.arg == "pointer"))
            elif "asm" in called or not called.startswith("tl.") and not hasattr(builtins, called):
                written = written.union(*map(_names, node.args), *(_names(each.value) for each in node.keywords))
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            assigned.append((set().union(*map(_names, targets)), _names(node.value)))
    # An address is made of another in as many steps as there are.
    for _ in assigned:
        written = written.union(*(value for targets, value in assigned if targets & written))
    return written


def _tune_nothing(autotuner):
    def run(self, *arguments, **more):
        return self.fn.run(*arguments, **more)

    autotuner.Autotuner.run = run
    autotuner.Heuristics.run = run

    @instead("__init__", autotuner.Autotuner)
    def init(self, *arguments, **more):
        # Triton before 3.4 opens a driver to learn how it would time kernels.
        if more.get("do_bench", init) is None:
            more["do_bench"] = run
        init.__wrapped__(self, *arguments, **more)


def _leave_uninitialised(torch):
    """New parameters are memory that nobody touches, which a host gives only when it is written to."""
    note(note="--no-init: large floating-point tensors on the host were left uninitialised")
    device.leave_untouched(torch)
    init = torch.nn.init

    def untouched(tensor, *_, **__):
        return tensor

    for name in dir(init):
        if name.endswith("_") and not name.startswith("_") and callable(getattr(init, name)):
            setattr(init, name, untouched)
