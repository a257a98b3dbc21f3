"""What is turned off or changed because nothing is computed; each is told in the report."""

import functools
import os

from . import device, imports
from .notes import note


def follow(torch):
    if "VRAMLAB_REHEARSAL_NO_INIT" in os.environ:
        _leave_uninitialised(torch)
    _do_not_compile(torch)
    imports.when_imported("triton.runtime.jit", _launch_nothing)
    imports.when_imported("triton.runtime.autotuner", _tune_nothing)
    _tell_of_graphs(torch)


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


def _launch_nothing(jit):
    def run(self, *arguments, **more):
        note(note="Triton kernels were not launched: what they are given is allocated, and nothing is computed")

    jit.JITFunction.run = run


def _tune_nothing(autotuner):
    def run(self, *arguments, **more):
        return self.fn.run(*arguments, **more)

    autotuner.Autotuner.run = run
    autotuner.Heuristics.run = run


def _tell_of_graphs(torch):
    begin = torch.cuda.CUDAGraph.capture_begin

    @functools.wraps(begin)
    def capture_begin(self, *arguments, **more):
        note(note="CUDA graphs: what is captured ran as it is, once; a replay has nothing to do")
        return begin(self, *arguments, **more)

    torch.cuda.CUDAGraph.capture_begin = capture_begin


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
