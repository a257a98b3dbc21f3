"""What is turned off or changed because nothing is computed; each is told in the report."""

import functools

from . import compiling, device, fail, imports, settings
from .notes import note


def follow(torch):
    _share_with_nobody(torch)
    if settings.no_init:
        _leave_uninitialised(torch)
    if settings.eager:
        _do_not_compile(torch)
    else:
        compiling.follow(torch)
    _do_not_load_the_compiler(torch)
    imports.when_imported("triton.runtime.jit", _launch_nothing)
    imports.when_imported("triton.runtime.autotuner", _tune_nothing)


def _do_not_compile(torch):
    """torch.compile gives back what it was given: a compiled model's memory is another, mostly less."""
    # Every way in: torch.compile, Module.compile, torch._dynamo.optimize.
    compile_module = torch.nn.Module.compile

    def told():
        note(note="torch.compile was turned off: this is the memory of eager execution, mostly more than the compiled one's")

    @functools.wraps(torch.compile)
    def compile(model=None, **more):
        told()
        if model is None:
            return lambda function: function
        return model

    @functools.wraps(compile_module)
    def compile_in_place(self, *arguments, **more):
        told()

    torch.compile = compile
    torch.nn.Module.compile = compile_in_place


_undo = []


def load_the_compiler():
    """It is there, and sees PyTorch as it is."""
    while _undo:
        _undo.pop()()


def _do_not_load_the_compiler(torch):
    """Optimizers and checkpoints would load it to tell it to leave them alone: a third of a short rehearsal's time. Where somebody else does, they do."""
    optimizers = torch.optim.Optimizer

    def leave_alone(owner):
        for function in vars(owner).values():
            # Where `torch._compile._disable_dynamo` keeps the function as the compiler gives it back.
            if getattr(getattr(function, "__code__", None), "co_filename", "") == torch._compile.__file__:
                setattr(function.__wrapped__, "__dynamo_disable", function.__wrapped__)
                _undo.append(functools.partial(delattr, function.__wrapped__, "__dynamo_disable"))

    leave_alone(optimizers)
    imports.when_imported("torch.utils.checkpoint", leave_alone)
    for kind in vars(torch.optim).values():
        step = vars(kind).get("step") if isinstance(kind, type) and issubclass(kind, optimizers) else None
        code = getattr(step, "__code__", None)
        if getattr(code, "co_name", "") == "_use_grad" and code.co_freevars == ("func",):
            step.__code__ = _as_differentiable(None).__code__
            _undo.append(functools.partial(setattr, step, "__code__", code))


def _as_differentiable(func):
    """What `torch.optim.optimizer._use_grad_for_differentiable` makes of a step, without its breaks in a compiler's graph."""

    def use_grad(*args, **kwargs):
        before = torch.is_grad_enabled()  # noqa: F821 - of the module that the code is put into
        try:
            torch.set_grad_enabled(args[0].defaults["differentiable"])  # noqa: F821
            return func(*args, **kwargs)
        finally:
            torch.set_grad_enabled(before)  # noqa: F821

    return use_grad


def _share_with_nobody(torch):
    """A CUDA tensor that goes to another process would be refused in a queue's own thread, and its reader would wait for ever."""

    def share(storage, *_, **__):
        fail(
            "the script sends a CUDA tensor to another process (torch.multiprocessing), and the simulated card's memory belongs to one process; "
            "send it from the CPU (.cpu()), or keep both ends in one process"
        )

    torch.UntypedStorage._share_cuda_ = share


def _launch_nothing(jit):
    def run(self, *arguments, **more):
        note(note="Triton kernels were not launched: what they are given is allocated, and nothing is computed")
        device.lose((*arguments, *more.values()))

    jit.JITFunction.run = run


def _tune_nothing(autotuner):
    def run(self, *arguments, **more):
        return self.fn.run(*arguments, **more)

    autotuner.Autotuner.run = run
    autotuner.Heuristics.run = run
    init = autotuner.Autotuner.__init__

    @functools.wraps(init)
    def begin(self, *arguments, **more):
        # Triton before 3.4 opens a driver to learn how it would time kernels.
        if more.get("do_bench", init) is None:
            more["do_bench"] = run
        init(self, *arguments, **more)

    autotuner.Autotuner.__init__ = begin


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
