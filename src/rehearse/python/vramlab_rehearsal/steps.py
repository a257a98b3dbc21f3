"""Phases and optimizer steps."""

import functools
import os
import threading
import time
import weakref

from . import device, hosting, imports, labels, loading, passes, pools, reach
from .guard import guarded, instead
from .notes import note
from .session import SESSION, settings

# What PyTorch's optimizers call around each step.
hooks = []


# As long as a script may train on the CPU before it uses the GPU, in seconds: a warm-up is over by then.
_ON_CPU = 20
_watched = None


def watch_cpu(torch, stop):
    """Steps on the CPU, until CUDA is used: a script that makes those alone is ended, with the reason. Without a GPU it would train for ever."""
    global _watched
    from torch.optim import optimizer

    made, began = 0, None

    def step(*_):
        nonlocal made, began
        made, began = made + 1, began or time.monotonic()
        late = time.monotonic() - began > _ON_CPU
        if late and settings.steps is not None and made >= settings.steps and not _is_gpu_used():
            stop(made)

    _watched = optimizer.register_optimizer_step_post_hook(step)


def _is_gpu_used():
    """Whether any process of this rehearsal has come to the GPU, as a parent's workers may."""
    return any(os.path.exists(os.path.join(SESSION, each, "events")) for each in os.listdir(SESSION))


def follow(torch, stop):
    if _watched is not None:
        _watched.remove()
    steps = _Steps(torch, settings.steps, stop)
    # Every backward pass goes through autograd's engine: PyTorch's own, and those of scripts that call it themselves, as Megatron's.
    variable = torch.autograd.Variable
    variable._execution_engine = _Engine(variable._execution_engine, steps)
    _as_pytorchs_own(torch.autograd.graph)
    device.tell_graphs(torch, steps.replay_begins, steps.replay_ended)
    # A step that has ended counts before the batch of the next one is seen.
    labels.before_roots.insert(0, steps.look)


def _run(engine, arguments, more):
    return engine.run_backward(*arguments, **more)


@guarded("the place of a backward pass")
def _as_pytorchs_own(module):
    """What the engine warns of is said of the line that called it: PyTorch's own, and none of ours."""
    with open(module.__file__) as file:
        line = next((number for number, text in enumerate(file, 1) if "_execution_engine.run_backward(" in text), 2)
    _run.__code__ = _run.__code__.replace(co_filename=module.__file__, co_firstlineno=line - 1)


class _Engine:
    """Autograd's engine, whose backward passes are recorded."""

    def __init__(self, engine, steps):
        self._engine = engine
        self._steps = steps
        self._depth = 0

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def run_backward(self, *arguments, **more):
        if self._depth:
            return _run(self._engine, arguments, more)
        before = self._begins(arguments, more)
        self._depth += 1
        try:
            return _run(self._engine, arguments, more)
        finally:
            self._depth -= 1
            self._ends(before)

    @guarded("the beginning of a backward pass")
    def _begins(self, arguments, more):
        # A process that was forked has no card where the one that forked it had it.
        if device.library is None:
            return None
        reach.has_gone_backward = True
        self._steps.has_captured |= self._steps.torch.cuda.is_current_stream_capturing()
        # Its last argument, by its place or by its name.
        if more.get("accumulate_grad", arguments[-1] if len(arguments) > 6 else False):
            _told_of_threads(threading.get_ident())
            self._steps.backward_begins()
            # By its place, and not where a graph of the gradients is made, which keeps it anyway.
            passes.goes_backward(len(arguments) > 3 and arguments[2] and not arguments[3])
        device.library.vl_set_backward_stack()
        return device.library.vl_enter(device.BACKWARD)

    @guarded("the end of a backward pass")
    def _ends(self, before):
        if device.library is None:
            return
        # An optimizer's step that calls backward (LBFGS) is an optimizer's step again after it.
        device.library.vl_enter(before or device.FORWARD)
        self._steps.backward_ended()


_threads = set()


def _told_of_threads(thread):
    """Of several that train, steps and backward passes come in any order."""
    if thread not in _threads:
        _threads.add(thread)
        if len(_threads) == 2:
            note(threads=True)


# Steps more than were asked for that a script may make before it captures a graph: PyTorch asks for 11 under DDP.
_WARM_UP = 12

_trials = 0
# By library, the function that tries batches or learning rates in training steps which are not the training.
_FINDERS = {"batch_size_scaling": "_scale_batch_size", "lr_finder": "_lr_find"}


def leave_out_trials():
    """Steps that a finder makes are trials: the training's are counted after it."""
    for package in ("lightning.pytorch", "pytorch_lightning"):
        for module, name in _FINDERS.items():
            imports.when_imported(f"{package}.tuner.{module}", functools.partial(guarded("trials of a finder")(_leave_out), name))


def _leave_out(name, module):
    @instead(name, module)
    def finding(*arguments, **more):
        global _trials
        note(note=f"the steps that {name} tried are not counted: the training's begin after it")
        _trials += 1
        try:
            return finding.__wrapped__(*arguments, **more)
        finally:
            _trials -= 1


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


def _apart(optimizer, closure):
    """What a closure does, as Lightning's, is no part of the step that calls it."""
    if closure is optimizer or not callable(closure):
        return closure

    def called(*arguments, **named):
        if device.library is not None:
            device.library.vl_enter(device.FORWARD)
        try:
            return closure(*arguments, **named)
        finally:
            if device.library is not None:
                labels.gradients(optimizer)
                device.library.vl_enter(device.OPTIMIZER)

    return called


class _Steps:
    # A script that leaves out every batch that is too large may never make as many steps one after the other.
    MOST_RESTARTS = 32
    backwards = out_of_memory = restarts = depth = ended = by_hand = before_task = 0
    is_backward = was_trial = False
    # Whether a CUDA graph has a backward pass in it.
    has_captured = False
    before = device.FORWARD
    # Without an optimizer of PyTorch's: a parameter, and the version that its gradient had after the last backward pass.
    witness = None

    def __init__(self, torch, wanted, stop):
        from torch.optim import optimizer

        self.torch, self.wanted, self.stop = torch, wanted, stop
        # By optimizer, its steps, and how many backward passes there had been at the last.
        self.counts = weakref.WeakKeyDictionary()
        self.at = weakref.WeakKeyDictionary()
        begins, ends = guarded("the beginning of an optimizer's step")(self.begins), guarded("the end of an optimizer's step")(self.ends)
        # Functions, which Dynamo knows again.
        hooks.extend([lambda *given: begins(*given), lambda optimizer, *_: ends(optimizer)])
        optimizer.register_optimizer_step_pre_hook(hooks[0])
        optimizer.register_optimizer_step_post_hook(hooks[1])

    def begins(self, optimizer, arguments=(), named=None):
        if self.depth == 0 and device.library is not None:
            labels.gradients(optimizer)
            reach.step_begins()
            passes.a_step_follows()
            self.before = device.library.vl_enter(device.OPTIMIZER)
        self.depth += 1
        if any(map(callable, (*arguments, *(named or {}).values()))):
            apart = functools.partial(_apart, optimizer)
            return tuple(map(apart, arguments)), {name: apart(value) for name, value in named.items()}

    def ends(self, optimizer):
        if device.library is None:
            return
        # A step that raised has not come here.
        self.depth = max(self.depth - 1, 0)
        self.restart_after_trials()
        # Several steps without a backward pass between them are parts of one: DeepSpeed's, for each group of parameters.
        is_part = self.backwards > 0 and self.at.get(optimizer) == self.backwards
        self.at[optimizer] = self.backwards
        if not is_part:
            # One that begins when others have made several, as L-BFGS after Adam, goes on with their number; and where those have gone, as between
            # the folds of a cross-validation, with that of the steps.
            before = max(self.counts.values()) - 1 if self.counts else self.ended
            self.counts[optimizer] = self.counts.get(optimizer, before) + 1
        if self.depth:
            return
        labels.state(optimizer)
        # Several optimizers take turns: a step has ended when each has made it, or one begins to lead.
        steps = max(min(self.counts.values()), max(self.counts.values()) - 1)
        if is_part or steps <= self.ended:
            device.library.vl_enter(device.FORWARD if self.before == 0 else self.before)
            return
        self.end_step(steps)

    def end_step(self, steps):
        self.ended = steps
        reach.step = steps + 1
        device.library.vl_end_step()
        loading.step_ended(self.backwards)
        hosting.look()
        if self.wanted is None or steps - self.before_task < self.wanted or _trials or self.warms_up(steps - self.before_task):
            return
        try:
            self.stop(steps)
        finally:
            if pools.here.was_stopped:
                # The next task of a pool's worker is a training of its own.
                self.before_task = steps
                self.counts.clear()
                self.at.clear()

    @guarded("steps before a CUDA graph")
    def warms_up(self, made):
        """Whether steps on a stream of their own come before a CUDA graph is captured, as PyTorch's documentation has it: the graph's pool comes then."""
        if self.has_captured or made >= self.wanted + _WARM_UP or self.torch.cuda.is_current_stream_capturing():
            return False
        return self.torch.cuda.current_stream() != self.torch.cuda.default_stream() and reach.captures()

    def restart_after_trials(self):
        """Steps are counted from where memory ran out last and the script went on, and from the end of a finder's trials."""
        out_of_memory = device.library.vl_out_of_memory()
        if out_of_memory != self.out_of_memory and self.restarts < self.MOST_RESTARTS or self.was_trial:
            self.restarts += not self.was_trial
            self.counts.clear()
            self.at.clear()
            self.ended = self.before_task = 0
        self.out_of_memory = out_of_memory
        self.was_trial = _trials > 0

    def backward_begins(self):
        self.look()
        passes.look_before_backward(self.backwards)
        reach.goes_backward(self.depth > 0)
        hosting.look()
        self.is_backward = True

    def backward_ended(self):
        self.is_backward = False
        self.backwards += 1
        if not self.counts:
            # A model in evaluation whose gradients are looked at, as for a map of what it sees, is not trained.
            gradients = labels.parameters_with_gradients(root for root in labels.own_roots() if root.training)
            self.witness = next(((weakref.ref(each), each.grad._version) for each in gradients), None)

    @guarded("the replay of a CUDA graph")
    def replay_begins(self):
        """Where nothing trains it is a forward pass."""
        if not (self.has_captured or self.backwards):
            passes.begin_replay()

    @guarded("the replay of a CUDA graph")
    def replay_ended(self):
        if (self.has_captured or self.backwards) and not self.is_backward:
            self.backward_ended()

    @guarded("steps without an optimizer")
    def look(self, *_):
        """Where no optimizer of PyTorch's makes steps: one has ended when gradients were cleared or written to since the backward pass."""
        if self.witness is None or self.counts or self.is_backward:
            return
        parameter, version = self.witness[0](), self.witness[1]
        if parameter is None or (parameter.grad is not None and parameter.grad._version == version):
            return
        self.witness = None
        if self.by_hand == 0 and reach.has_optimizer(self.torch):
            # It will make one.
            return
        if self.by_hand == 0:
            note(
                note="no step of a torch.optim.Optimizer was seen: steps are counted where gradients were cleared or written to after a backward pass"
            )
        self.by_hand += 1
        self.end_step(self.by_hand)
