"""Functions around each call of a module, which torch.compile does not see."""

import inspect
import sys

import torch

# Each a pair: what is called before, what after.
_around = []
# What the outermost call was given that begins; it is not kept longer.
given = ()


def around(enters, leaves):
    """Calls `enters(module, arguments, named_arguments)` before a module's own hooks are looked up; the last pair is the outermost. `leaves(module)`
    is called after it."""
    if not _around:
        _begin()
    _around.insert(0, (enters, leaves))


def around_outermost(enters, leaves=lambda: None):
    """Calls `enters(module)` and `leaves()` around each call that is within no other."""
    depth = 0

    def enter(module, *own):
        global given
        nonlocal depth
        depth += 1
        if depth == 1:
            given = own
            try:
                enters(module)
            finally:
                given = ()

    def leave(_):
        nonlocal depth
        depth -= 1
        if depth == 0:
            leaves()

    around(enter, leave)


def variables_of(frame):
    variables = frame.f_locals
    found = list(variables.items())
    # Before Python 3.13 a function's frame keeps this copy, which would hold its tensors longer than the script does.
    if type(variables) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        variables.clear()
    return found


def owner_of(module):
    """The model whose `forward` calls this module, where the script calls that method and not the model."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_wrapped_call_impl":
        frame = frame.f_back
    frame, owner = frame and frame.f_back, None
    while frame is not None and frame.f_code.co_argcount:
        first = dict(variables_of(frame)).get(frame.f_code.co_varnames[0])
        # Through methods that it calls itself, and those that it inherits.
        if not issubclass(type(first), torch.nn.Module) or owner not in (None, first):
            break
        owner = first
        if frame.f_code.co_name == "forward":
            module, owner = owner, None
        frame = frame.f_back
    return module


def _begin():
    module = torch.nn.modules.module
    # As a function of that file: Dynamo goes through it without a trace and takes it for PyTorch's own.
    names = dict(__package__=__package__, around=_around, call=torch.nn.Module.__call__, is_compiling=torch.compiler.is_compiling)
    names["set_eval_frame"] = torch._C._dynamo.eval_frame.set_eval_frame
    exec(compile(_SOURCE, module.__file__, "exec"), names)
    call = names["_wrapped_call_impl"]
    call.__module__ = module.__name__
    call.__wrapped__ = names["call"]
    torch.nn.Module.__call__ = call


_SOURCE = """
def _wrapped_call_impl(self, *args, **kwargs):
    if is_compiling():
        return call(self, *args, **kwargs)
    # Dynamo would compile what our functions call of Python's own library.
    compiler = set_eval_frame(None)
    for enters, _ in around:
        enters(self, args, kwargs)
    set_eval_frame(compiler)
    try:
        return call(self, *args, **kwargs)
    finally:
        set_eval_frame(None)
        for _, leaves in reversed(around):
            leaves(self)
        set_eval_frame(compiler)
"""
