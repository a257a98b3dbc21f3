"""Phases and optimizer steps."""

import functools

from . import device, labels, reach, settings

# What PyTorch's optimizers call around each step.
hooks = []


def follow(torch, stop):
    wanted = settings.get("VRAMLAB_REHEARSAL_STEPS", "3")
    _Steps(torch, None if wanted == "all" else int(wanted), stop)
    _follow_backward(torch)


def _follow_backward(torch):
    library = device.library
    original = torch.autograd.graph._engine_run_backward
    depth = 0

    def engine_run_backward(*arguments, **more):
        nonlocal depth
        if depth:
            return original(*arguments, **more)
        library.vl_set_backward_stack()
        before = library.vl_enter(device.BACKWARD)
        depth += 1
        try:
            return original(*arguments, **more)
        finally:
            depth -= 1
            # An optimizer's step that calls backward (LBFGS) is an optimizer's step again after it.
            library.vl_enter(before if before != 0 else device.FORWARD)

    torch.autograd.graph._engine_run_backward = engine_run_backward
    torch.autograd._engine_run_backward = engine_run_backward


def around(optimizers, compiled):
    """A compiled function in which these optimizers make a step."""

    @functools.wraps(compiled)
    def step(*arguments):
        begins, ends = hooks
        for optimizer in optimizers:
            begins(optimizer)
        result = compiled(*arguments)
        for optimizer in optimizers:
            ends(optimizer)
        return result

    return step


class _Steps:
    def __init__(self, torch, wanted, stop):
        from torch.optim import optimizer

        self.wanted = wanted
        self.stop = stop
        self.counts = {}
        self.depth = 0
        self.ended = 0
        self.before = device.FORWARD
        # Functions, which Dynamo knows again.
        hooks.extend([lambda optimizer, *_: self.begins(optimizer), lambda optimizer, *_: self.ends(optimizer)])
        optimizer.register_optimizer_step_pre_hook(hooks[0])
        optimizer.register_optimizer_step_post_hook(hooks[1])

    def begins(self, optimizer):
        if self.depth == 0:
            labels.gradients(optimizer)
            self.before = device.library.vl_enter(device.OPTIMIZER)
        self.depth += 1

    def ends(self, optimizer):
        # A step that raised has not come here.
        self.depth = max(self.depth - 1, 0)
        self.counts[id(optimizer)] = self.counts.get(id(optimizer), 0) + 1
        if self.depth:
            return
        labels.state(optimizer)
        # Several optimizers take turns: a step has ended when each has made it, or one begins to lead.
        steps = max(min(self.counts.values()), max(self.counts.values()) - 1)
        if steps == self.ended:
            device.library.vl_enter(device.FORWARD if self.before == 0 else self.before)
            return
        self.ended = steps
        reach.step = steps + 1
        device.library.vl_end_step()
        if self.wanted is not None and steps >= self.wanted:
            self.stop(steps)
