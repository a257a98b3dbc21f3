"""Floating-point operations of one optimizer step: matrix products, convolutions and attention, forward and backward.

Counted in the step after the last that is recorded, because what counts can hold tensors for longer.
"""

from .guard import guarded
from .notes import note

_counter = None


def begin():
    """Counts from now on."""
    global _counter
    _counter = _made()
    _counter.__enter__()


def end():
    """Tells what was counted; True where anything was being counted."""
    global _counter
    if _counter is None:
        return False
    counter, _counter = _counter, None
    counter.__exit__(None, None, None)
    note(flops=counter.flops)
    return True


def _made():
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    class Counter(TorchDispatchMode):
        flops = 0

        @classmethod
        def _should_skip_dynamo(cls):
            # Nothing is compiled, and to say so would load the compiler.
            return False

        def __torch_dispatch__(self, operator, types, arguments=(), more=None):
            more = more or {}
            result = operator(*arguments, **more)
            self.count(operator, arguments, more, result)
            return result

        @guarded("floating-point operations")
        def count(self, operator, arguments, more, result):
            count = flop_registry.get(getattr(operator, "_overloadpacket", None))
            if count is not None:
                self.flops += int(count(*arguments, **more, out_val=result))

    return Counter()
