"""Optimizers as a script makes them, and others in their place."""

import functools
import gc
import inspect
import types
import weakref

from ... import imports
from ...guard import instead
from .technique import Technique


def optimizer_kinds(torch):
    """PyTorch's own."""
    kinds = [kind for kind in vars(torch.optim).values() if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)]
    return [kind for kind in kinds if kind is not torch.optim.Optimizer]


def is_there(torch):
    """Whether the script has made any optimizer."""
    return any(issubclass(type(each), torch.optim.Optimizer) for each in gc.get_objects())


def follow_optimizers(torch, made=lambda optimizer: None):
    """Calls back with each optimizer that is made, and gives all that there are, as they come."""
    optimizers = weakref.WeakSet()

    @instead("__init__", torch.optim.Optimizer)
    def init(optimizer, *arguments, **more):
        init.__wrapped__(optimizer, *arguments, **more)
        optimizers.add(optimizer)
        made(optimizer)

    return optimizers


def replace_steps(torch, step):
    """Has every optimizer call `step(optimizer, original, ...)` for its step; gives all that there are, as they come."""
    def made(optimizer):
        def replaced(self, *arguments, **more):
            return step(self, functools.partial(type(self).step, self), *arguments, **more)

        # A bound method, because schedulers look into it.
        optimizer.step = types.MethodType(functools.wraps(type(optimizer).step)(replaced), optimizer)

    return follow_optimizers(torch, made)


def when_scaler_is_made(torch, callback):
    """Calls back with each GradScaler that is switched on."""

    @instead("__init__", torch.amp.GradScaler)
    def init(scaler, *arguments, **more):
        init.__wrapped__(scaler, *arguments, **more)
        if scaler.is_enabled():
            callback(scaler)


class Instead(Technique):
    """Another optimizer for Adam and AdamW, however the script came by these classes; under a Trainer the one that its arguments name."""

    # What TrainingArguments call it.
    by_trainer = ""

    def begin(self):
        self.refused("the script makes no Adam or AdamW")
        for name in ("Adam", "AdamW"):
            self.swap(getattr(self.torch.optim, name))
        imports.when_imported("transformers.trainer", self.in_trainer)

    def swap(self, kind):
        signature = inspect.signature(kind.__init__)

        @instead("__init__", kind)
        def init(optimizer, *arguments, **more):
            # What is derived from it, as AdamW is from Adam, is another one.
            if type(optimizer) is not kind:
                return init.__wrapped__(optimizer, *arguments, **more)
            given = signature.bind(optimizer, *arguments, **more)
            given.apply_defaults()
            given = given.arguments
            optimizer.__class__ = self.kind(kind.__name__)
            optimizer.__init__(given["params"], **{name: given[name] for name in self.taken})
            self.applied(self.lines(kind.__name__), self.change)

    def in_trainer(self, module):
        @instead("create_optimizer", module.Trainer)
        def create_optimizer(trainer, *arguments, **more):
            names = type(trainer.args.optim)
            if trainer.optimizer is None and trainer.args.optim in (names("adamw_torch"), names("adamw_torch_fused")):
                if getattr(trainer, "optimizer_cls_and_kwargs", None) is None:
                    trainer.args.optim = names(self.by_trainer)
                    self.applied(f'TrainingArguments(..., optim="{self.by_trainer}")', self.change)
            return create_optimizer.__wrapped__(trainer, *arguments, **more)
