"""Techniques switched on from outside, for a script that does not know of them: what `--what-if` tries.

Each says in the trace what it did (`technique`, `applied`, `change`) with the lines that do the same in the script (`snippet`), or why there is
nothing for it to do (`reason`). The lines and the hook must ask for the same bytes, so a hook does what its lines do, at the same moment.
"""

import functools
import importlib.util
import inspect
import os
import re
import sys
import textwrap
import types
import weakref

from . import calls, compiling, imports, reach
from .notes import note
from .session import settings

TECHNIQUES = {}


def begin(torch):
    """Switches on what is asked for, right after torch was imported."""
    for name in settings.techniques:
        TECHNIQUES[name](torch, name)


def technique(*names):
    def register(made):
        for name in names:
            TECHNIQUES[name] = made
        return made

    return register


class Technique:
    """One that says what became of it, once; the last word counts, so that what shows later can withdraw it."""

    def __init__(self, torch, name):
        self.torch = torch
        self.name = name
        self.said = None
        # What the script calls the model.
        self.model = "model"
        self.begin()
        self.end_where_nothing_comes_of_it()

    def applied(self, snippet, change=""):
        snippet = re.sub(r"\bmodel\b", self.model, snippet.strip("\n"))
        self._say(applied=True, change=change, snippet=snippet)

    def refused(self, reason):
        self._say(applied=False, reason=reason)

    def refuse(self, reason):
        """Nothing that the script does can change it."""
        self.refused(reason)
        os._exit(0)

    def _say(self, **more):
        if self.said != more:
            self.said = more
            note(technique=self.name, **more)

    def end_where_nothing_comes_of_it(self):
        """What a whole step had nothing for is not waited for any longer."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        stepped = set()

        def begins(optimizer, *_):
            if id(optimizer) in stepped and self.said is not None and not self.said["applied"]:
                os._exit(0)

        register_optimizer_step_pre_hook(begins)
        register_optimizer_step_post_hook(lambda optimizer, *_: stepped.add(id(optimizer)))

    def around_forward(self, enters, leaves=lambda: None):
        """Calls back around each outermost forward pass, before the module's hooks are looked up: a callback may add some."""
        depth = 0

        def enter(module, *_):
            nonlocal depth
            depth += 1
            if depth == 1:
                enters(module)

        def leave(_):
            nonlocal depth
            depth -= 1
            if depth == 0:
                leaves()

        enters, leaves = self.or_refused(enters), self.or_refused(leaves)
        calls.around(enter, leave)

    def or_refused(self, callback):
        """What fails in a script's own call is left out there, and with it the technique."""

        @functools.wraps(callback)
        def call(*arguments):
            try:
                return callback(*arguments)
            except self.torch.OutOfMemoryError:
                raise
            except Exception as error:
                self.refused(f"it could not be switched on here: {type(error).__name__}: {error}")

        return call

    def at_first_forward(self, callback):
        """Calls back with each outermost module before its first forward pass."""
        seen = weakref.WeakSet()

        def enters(module):
            # Children come inside of their parent's call; a second model (a critic, a teacher) is an outermost one, too.
            # A loss is one without parameters, and has nothing to say about the model.
            if module not in seen and next(module.parameters(), None) is not None:
                seen.update(module.modules())
                self.model = variable_of(module)
                callback(module)

        self.around_forward(enters)

    def before_backward(self, callback):
        torch, callback = self.torch, self.or_refused(callback)
        original = torch.autograd.graph._engine_run_backward

        @functools.wraps(original)
        def engine_run_backward(*arguments, **more):
            callback()
            return original(*arguments, **more)

        torch.autograd.graph._engine_run_backward = engine_run_backward
        torch.autograd._engine_run_backward = engine_run_backward


class OfModel(Technique):
    """One that changes a model before its first forward pass."""

    nothing = "the script runs no module"

    def begin(self):
        self.refused(self.nothing)
        self.at_first_forward(self.first)


def variable_of(module):
    """What the script calls a module: a variable of its outermost frame that has it, or what `self` has there, `model` where it can be; `model`, too,
    where none has it."""
    # Without this one: a frame that refers to itself lives on, and the arguments of those that called it with it.
    frames, frame = [], sys._getframe(1)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    for frame in reversed(frames):
        file = frame.f_code.co_filename
        if "site-packages" in file or file.startswith(os.path.dirname(__file__)):
            continue
        variables = frame.f_locals
        names = [name for name, value in variables.items() if value is module and not name.startswith("_")]
        own = getattr(variables.get("self"), "__dict__", {})
        names = names or [f"self.{name}" for name, value in {**own, **own.get("_modules", {})}.items() if value is module]
        if isinstance(variables, dict) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            # Before Python 3.13 it is a copy that the frame keeps, and with it tensors that the script lets go of.
            variables.clear()
        if names:
            return "model" if "model" in names else names[0]
    return "model"


def uses_trainer():
    """Whether the script trains by Hugging Face's Trainer, whose arguments switch on what others write themselves."""
    return "transformers.trainer" in sys.modules


class Region(Technique):
    """A context manager from the outermost module's forward pass to the backward pass: model and loss."""

    region = None

    def begin(self):
        self.around_forward(self.enters, self.leaves)
        self.at_first_forward(self.first)
        self.before_backward(self.leave)

    def active(self):
        return self.said is not None and self.said["applied"]

    def enters(self, _):
        # What a backward pass computes again has what its forward pass had by itself.
        if self.region is None and self.active() and self.torch._C._current_graph_task_id() == -1:
            self.region = self.make()
            self.region.__enter__()

    def leaves(self):
        # Nothing goes back through what an evaluation computes.
        if not self.torch.is_grad_enabled():
            self.leave()

    def leave(self):
        if self.region is not None:
            region, self.region = self.region, None
            region.__exit__(None, None, None)


# ---- precision ------------------------------------------------------------------------------------------------------------------------


CRITERION = """
output = model(inputs)
loss = criterion(output, targets)
"""


def loss_of(torch, output):
    """The lines from a model to its loss, by what the model gives: losses, one of them, or what a criterion takes."""

    def is_loss(value):
        return isinstance(value, torch.Tensor) and value.numel() == 1 and value.requires_grad

    if is_loss(output):
        return "loss = model(...)"
    if is_loss(getattr(output, "loss", None)):
        return "loss = model(...).loss"
    if isinstance(output, dict):
        if output and all(map(is_loss, output.values())):
            return "losses = model(...)\nloss = sum(losses.values())"
        if is_loss(output.get("loss")):
            return 'loss = model(...)["loss"]'
    if isinstance(output, (tuple, list)) and sum(map(is_loss, output)) == 1:
        return ", ".join("loss" if is_loss(value) else "_" for value in output) + " = model(...)"
    return CRITERION


@technique("autocast-bf16", "autocast-fp16")
class Autocast(Region):
    """Model and loss under autocast, as PyTorch's recipe has it."""

    def begin(self):
        torch = self.torch
        self.half = self.name.endswith("fp16")
        self.dtype = torch.float16 if self.half else torch.bfloat16
        super().begin()
        if self.half:
            self.scale()

    def make(self):
        return self.torch.autocast("cuda", dtype=self.dtype)

    def first(self, root):
        torch = self.torch
        if self.region is None and torch.is_autocast_enabled("cuda"):
            return self.refused("the script uses autocast itself")
        if any(p.dtype in (torch.float16, torch.bfloat16) for p in root.parameters()):
            return self.refused("the model's parameters are in half precision already")
        text = "float16" if self.half else "bfloat16"
        change = f"matrix products and convolutions in {text}"
        if uses_trainer():
            return self.applied(f"TrainingArguments(..., {'fp16' if self.half else 'bf16'}=True)", change)
        if self.half:
            change += ", loss scaled"
        self.applied(self.lines(CRITERION), change)

        # How the script comes from the model to its loss shows in what the model gives.
        def gave(_, __, output):
            handle.remove()
            if self.active():
                self.applied(self.lines(loss_of(torch, output)), change)

        handle = root.register_forward_hook(gave)

    def lines(self, body):
        body = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
        if not self.half:
            return f'with torch.autocast("cuda", dtype=torch.bfloat16):\n{body}\nloss.backward()'
        return f'''scaler = torch.amp.GradScaler("cuda")  # once
with torch.autocast("cuda", dtype=torch.float16):
{body}
scaler.scale(loss).backward()
# scaler.unscale_(optimizer)  # before gradients are clipped
scaler.step(optimizer)
scaler.update()'''

    def scale(self):
        torch = self.torch
        self.scaler = None
        mine = False

        def made(_):
            if not mine:
                self.refused("the script has a GradScaler itself")

        when_scaler_is_made(torch, made)
        backward = torch.Tensor.backward

        @functools.wraps(backward)
        def scaled(loss, *arguments, **more):
            nonlocal mine
            if not self.active() or loss.numel() != 1 or not loss.is_cuda:
                return backward(loss, *arguments, **more)
            self.leave()
            if self.scaler is None:
                mine = True
                self.scaler = torch.amp.GradScaler("cuda")
                mine = False
            return backward(self.scaler.scale(loss), *arguments, **more)

        torch.Tensor.backward = scaled
        stepping, unscaled = False, set()

        def step(optimizer, original, *arguments, **more):
            nonlocal stepping
            if stepping or self.scaler is None or not self.active():
                return original(*arguments, **more)
            stepping = True
            try:
                result = self.scaler.step(optimizer, *arguments, **more)
            finally:
                stepping = False
            self.scaler.update()
            unscaled.clear()
            return result

        optimizers = replace_steps(torch, step)
        clip = torch.nn.utils.clip_grad_norm_

        @functools.wraps(clip)
        def clipped(*arguments, **more):
            if self.scaler is not None and self.active():
                for optimizer in optimizers:
                    if id(optimizer) not in unscaled:
                        unscaled.add(id(optimizer))
                        self.scaler.unscale_(optimizer)
            return clip(*arguments, **more)

        torch.nn.utils.clip_grad_norm_ = clipped
        torch.nn.utils.clip_grad.clip_grad_norm_ = clipped


def when_scaler_is_made(torch, callback):
    """Calls back with each GradScaler that is switched on."""
    scalers = torch.amp.GradScaler
    original = scalers.__init__

    @functools.wraps(original)
    def init(scaler, *arguments, **more):
        original(scaler, *arguments, **more)
        if scaler.is_enabled():
            callback(scaler)

    scalers.__init__ = init


# ---- optimizers -----------------------------------------------------------------------------------------------------------------------


def optimizer_kinds(torch):
    """PyTorch's own."""
    kinds = [kind for kind in vars(torch.optim).values() if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)]
    return [kind for kind in kinds if kind is not torch.optim.Optimizer]


def follow_optimizers(torch, made=lambda optimizer: None):
    """Calls back with each optimizer that is made, and gives all that there are, as they come."""
    optimizers = weakref.WeakSet()
    init = torch.optim.Optimizer.__init__

    @functools.wraps(init)
    def followed(optimizer, *arguments, **more):
        init(optimizer, *arguments, **more)
        optimizers.add(optimizer)
        made(optimizer)

    torch.optim.Optimizer.__init__ = followed
    return optimizers


def replace_steps(torch, step):
    """Has every optimizer call `step(optimizer, original, ...)` for its step; gives all that there are, as they come."""
    def made(optimizer):
        def replaced(self, *arguments, **more):
            return step(self, functools.partial(type(self).step, self), *arguments, **more)

        # A bound method, because schedulers look into it.
        optimizer.step = types.MethodType(functools.wraps(type(optimizer).step)(replaced), optimizer)

    return follow_optimizers(torch, made)


@technique("fused", "foreach", "for-loop")
class Implementation(Technique):
    """Which of PyTorch's implementations of an optimizer's step runs."""

    def begin(self):
        self.wanted = {"fused": (True, None), "foreach": (None, True), "for-loop": (False, False)}[self.name]
        for kind in optimizer_kinds(self.torch):
            names = inspect.signature(kind.__init__).parameters
            if "foreach" in names:
                self.choose(kind, "fused" in names)

    def choose(self, kind, has_fused):
        original = kind.__init__
        fused, foreach = self.wanted

        @functools.wraps(original)
        def init(optimizer, *arguments, **more):
            asked = (more.get("fused") if has_fused else False, more.get("foreach"))
            if type(optimizer) is not kind:
                # AdamW is an Adam: what was chosen for it has been passed on.
                pass
            elif fused and not has_fused:
                self.refused(f"{kind.__name__} has no fused implementation")
            elif asked == self.wanted or (self.name == "foreach" and not any(asked) and asked != (False, False)):
                self.refused("the script does, or PyTorch by itself")
            else:
                more["foreach"] = foreach
                if has_fused:
                    more["fused"] = fused
                keywords = {"fused": "fused=True", "foreach": "foreach=True", "for-loop": "foreach=False, fused=False"}[self.name]
                if not has_fused:
                    keywords = keywords.replace(", fused=False", "")
                self.applied(
                    f'TrainingArguments(..., optim="adamw_torch_fused")'
                    if uses_trainer() and self.name == "fused"
                    else f"optimizer = torch.optim.{kind.__name__}(..., {keywords})"
                )
            original(optimizer, *arguments, **more)

        kind.__init__ = init


@technique("optimizer-in-backward")
class InBackward(Technique):
    """Each parameter is updated, and its gradient dropped, as soon as the gradient is complete.

    The script's own step finds no gradients, and so has nothing to do.
    """

    def begin(self):
        from torch.optim.optimizer import register_optimizer_step_post_hook

        torch = self.torch
        self.made = weakref.WeakSet()
        self.making = False
        follow_optimizers(torch, lambda optimizer: self.making or self.made.add(optimizer))
        self.backwards = 0
        self.before_backward(self.attach)

        def stepped(*_):
            self.backwards = 0

        register_optimizer_step_post_hook(stepped)
        when_scaler_is_made(torch, lambda _: self.refused("the script scales its loss, and unscales all gradients at once"))
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            original = getattr(torch.nn.utils, name)

            @functools.wraps(original)
            def clipped(*arguments, original=original, **more):
                self.refused("the script clips gradients, for which it needs all of them at once")
                return original(*arguments, **more)

            setattr(torch.nn.utils, name, clipped)
            setattr(torch.nn.utils.clip_grad, name, clipped)

    def attach(self):
        self.backwards += 1
        if self.backwards > 1:
            self.refused("the script goes back several times before it updates")
        for optimizer in list(self.made):
            self.made.discard(optimizer)
            kind = type(optimizer)
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.requires_grad:
                        self.one(kind, group, parameter)
            if self.said is None:
                self.applied(
                    f"""
# Instead of the optimizer; delete optimizer.zero_grad() and optimizer.step()
optimizers = {{p: torch.optim.{kind.__name__}([p], ...) for p in model.parameters()}}

def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()

for p in model.parameters():
    p.register_post_accumulate_grad_hook(step)
""",
                    "no gradients to clip or to accumulate",
                )

    def one(self, kind, group, parameter):
        self.making = True
        own = kind([{**group, "params": [parameter]}])
        self.making = False
        # Without the hooks that count the script's own steps.
        update = getattr(kind.step, "__wrapped__", kind.step)

        def step(parameter):
            # Schedulers change the script's own.
            own.param_groups[0]["lr"] = group["lr"]
            update(own)
            own.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)


@technique("zero-grad-to-none")
class ToNone(Technique):
    def begin(self):
        self.refused("the script does, as PyTorch does by itself")
        for kind in (self.torch.optim.Optimizer, self.torch.nn.Module):
            original = kind.zero_grad

            @functools.wraps(original)
            def zero_grad(self_, set_to_none=True, original=original):
                if not set_to_none:
                    self.applied("optimizer.zero_grad(set_to_none=True)", "")
                return original(self_, set_to_none=True)

            kind.zero_grad = zero_grad


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
        original = kind.__init__
        signature = inspect.signature(original)

        @functools.wraps(original)
        def init(optimizer, *arguments, **more):
            # What is derived from it, as AdamW is from Adam, is another one.
            if type(optimizer) is not kind:
                return original(optimizer, *arguments, **more)
            given = signature.bind(optimizer, *arguments, **more)
            given.apply_defaults()
            given = given.arguments
            optimizer.__class__ = self.kind(kind.__name__)
            optimizer.__init__(given["params"], **{name: given[name] for name in self.taken})
            self.applied(self.lines(kind.__name__), self.change)

        kind.__init__ = init

    def in_trainer(self, module):
        create = module.Trainer.create_optimizer

        @functools.wraps(create)
        def create_optimizer(trainer, *arguments, **more):
            names = type(trainer.args.optim)
            if trainer.optimizer is None and trainer.args.optim in (names("adamw_torch"), names("adamw_torch_fused")):
                if getattr(trainer, "optimizer_cls_and_kwargs", None) is None:
                    trainer.args.optim = names(self.by_trainer)
                    self.applied(f'TrainingArguments(..., optim="{self.by_trainer}")', self.change)
            return create(trainer, *arguments, **more)

        module.Trainer.create_optimizer = create_optimizer


@technique("8-bit-torchao", "8-bit-bitsandbytes")
class EightBit(Instead):
    """Adam or AdamW whose moments have 8 bits a value."""

    change = "another optimizer: its moments rounded to 8 bits"
    # Whether the step is fused, for instance, is not the script's choice there.
    taken = ("lr", "betas", "eps", "weight_decay")

    def begin(self):
        self.package = self.name.removeprefix("8-bit-")
        if importlib.util.find_spec(self.package) is None:
            self.refuse(f"{self.package} is not installed")
        self.by_trainer = {"torchao": "adamw_torch_8bit", "bitsandbytes": "adamw_bnb_8bit"}[self.package]
        super().begin()

    def kind(self, name):
        return getattr(importlib.import_module(f"{self.package}.optim"), f"{name}8bit")

    def lines(self, name):
        return f"import {self.package}.optim\noptimizer = {self.package}.optim.{name}8bit(model.parameters(), lr=...)  # instead of {name}"


@technique("factored")
class Factored(Instead):
    """Adafactor, whose second moment is a row and a column, instead of Adam or AdamW."""

    change = "another optimizer: no first moment, a factored second one"
    taken = ("lr", "weight_decay")
    by_trainer = "adafactor"

    def kind(self, name):
        return self.torch.optim.Adafactor

    def lines(self, name):
        return f"optimizer = torch.optim.Adafactor(model.parameters(), lr=...)  # instead of {name}"


# ---- modules ------------------------------------------------------------------------------------------------------------------------------


def repeated(root):
    """The lists of repeated blocks of a model, the outermost ones: path, list, and the blocks in it."""
    from torch import nn

    containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict)

    def within(path, module):
        is_list = isinstance(module, (nn.Sequential, nn.ModuleList))
        if is_list:
            kinds = {}
            for child in module:
                if not isinstance(child, containers) and any(True for _ in child.children()):
                    kinds.setdefault(type(child), []).append(child)
            blocks = max(kinds.values(), key=len, default=[])
            if len(blocks) > 1:
                return [(path, module, blocks)]
        deeper = [entry for name, child in module.named_children() for entry in within(f"{path}.{name}" if path else name, child)]
        if is_list and not deeper:
            # Blocks that are written as sequences of layers.
            blocks = [child for child in module if isinstance(child, nn.Sequential) and len(child) > 1]
            if len(blocks) > 1:
                return [(path, module, blocks)]
        return deeper

    return within("", root)


def in_script(path):
    """A module's path as a script writes it: model.layers[0].blocks."""
    return "model" + re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", f".{path}") if path else "model"


def of_list(path, module, blocks):
    """The blocks of a list as a script writes them."""
    if len(blocks) == len(module):
        return in_script(path)
    return f"[block for block in {in_script(path)} if type(block).__name__ == {type(blocks[0]).__name__!r}]"


def of_lists(lists):
    """The blocks of all lists as a script writes them."""
    return of_list(*lists[0]) if len(lists) == 1 else "[" + ", ".join(f"*{of_list(*entry)}" for entry in lists) + "]"


@technique("muon")
class Muon(OfModel):
    """Matrices of repeated blocks are trained by Muon, which keeps one moment; the others stay with the script's Adam or AdamW."""

    nothing = "the script makes no Adam or AdamW"

    def begin(self):
        if not hasattr(self.torch.optim, "Muon"):
            self.refuse("PyTorch has Muon from 2.9 on")
        self.optimizers = follow_optimizers(self.torch)
        when_scaler_is_made(self.torch, lambda _: self.refuse("the script scales its loss, and would unscale one optimizer's gradients of two"))
        super().begin()

    def first(self, root):
        if uses_trainer():
            return self.refuse("a Trainer steps one optimizer")
        optim, lists = self.torch.optim, repeated(root)
        matrices = {p for _, _, blocks in lists for block in blocks for p in block.parameters() if p.ndim == 2 and p.requires_grad}
        for optimizer in [optimizer for optimizer in self.optimizers if type(optimizer) in (optim.Adam, optim.AdamW)]:
            groups = []
            for group in optimizer.param_groups:
                groups.append({"params": [p for p in group["params"] if p in matrices], "weight_decay": group["weight_decay"]})
                group["params"] = [p for p in group["params"] if p not in matrices]
            if not any(group["params"] for group in groups):
                self.refused("the script's Adam or AdamW has no matrices of repeated blocks of the model")
                continue
            self.beside(optimizer, optim.Muon(groups, lr=optimizer.param_groups[0]["lr"]))
            name = type(optimizer).__name__
            self.applied(
                f"""
matrices = [p for block in {of_lists(lists)} for p in block.parameters() if p.ndim == 2]
muon = torch.optim.Muon(matrices, lr=...)
optimizer = torch.optim.{name}([p for p in model.parameters() if all(p is not matrix for matrix in matrices)], lr=...)
# in the loop, after the optimizer's own: muon.step() and muon.zero_grad()
""",
                "another optimizer: one moment of the blocks' matrices, whose updates are made orthogonal",
            )

    def beside(self, optimizer, muon):
        # Without the hooks that count the script's own steps.
        update = getattr(type(muon).step, "__wrapped__", type(muon).step)
        optimizer.register_step_post_hook(lambda *_: update(muon))
        zero_grad = optimizer.zero_grad

        def both(*arguments, **more):
            zero_grad(*arguments, **more)
            muon.zero_grad(*arguments, **more)

        optimizer.zero_grad = both


@technique("checkpoint-every", "checkpoint-second", "checkpoint-sqrt", "checkpoint-selective")
class Checkpoint(OfModel):
    """Repeated blocks keep only their input and run again in the backward pass."""

    def first(self, root):
        if not any(p.requires_grad for p in root.parameters()):
            return
        pretrained = next((m for m in root.modules() if getattr(m, "supports_gradient_checkpointing", False)), None)
        if pretrained is not None:
            return self.by_transformers(pretrained)
        lists = repeated(root)
        if not lists:
            return self.refused("no list of repeated blocks in the model")
        kinds = {"every": self.every, "second": self.second, "sqrt": self.segments, "selective": self.selective}
        done = kinds[self.name.removeprefix("checkpoint-")](lists)
        if done:
            self.applied(*done)

    def by_transformers(self, model):
        """As its own switch does it, which later versions call activation checkpointing."""
        if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
            return self.refused("the script checkpoints itself")
        later = hasattr(model, "activation_checkpointing_enable")
        what = "activation_checkpointing" if later else "gradient_checkpointing"
        options = {"use_reentrant": False}
        strides = {"every_n_layers": 2} if self.name == "checkpoint-second" else {}
        if self.name in ("checkpoint-sqrt", "checkpoint-selective") or (strides and not later):
            return self.refused("transformers checkpoints single layers" + ("" if later else ", and all of them"))
        getattr(model, f"{what}_enable")(**{f"{what}_kwargs": options}, **strides)
        if uses_trainer():
            return self.applied(f"TrainingArguments(..., {what}=True, {what}_kwargs={options | strides})".replace("'", '"'))
        more = "".join(f", {name}={value}" for name, value in strides.items())
        self.applied(f"model.{what}_enable({what}_kwargs={options}{more})".replace("'", '"'))

    def every(self, lists, stride=1):
        from torch.utils.checkpoint import checkpoint

        for _, _, blocks in lists:
            for block in blocks[::stride]:
                block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
        slices = f"[::{stride}]" if stride > 1 else ""
        loops = "".join(
            f"""
for block in {of_list(path, module, blocks)}{slices}:
    block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)"""
            for path, module, blocks in lists
        )
        return f"import functools\nfrom torch.utils.checkpoint import checkpoint\n{loops}", self.statistics(lists)

    def second(self, lists):
        return self.every(lists, 2)

    def selective(self, lists):
        from torch.utils.checkpoint import checkpoint

        chosen = functools.partial(checkpoint, use_reentrant=False, context_fn=keep_products)
        for _, _, blocks in lists:
            for block in blocks:
                block.forward = functools.partial(chosen, block.forward)
        loops = "".join(
            f"""
for block in {of_list(*entry)}:
    block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, context_fn=keep_products)"""
            for entry in lists
        )
        source = inspect.getsource(keep_products).strip()
        return f"import functools\nfrom torch.utils.checkpoint import checkpoint\n\n{source}\n\n{loops}", self.statistics(lists)

    def segments(self, lists):
        lists = [entry for entry in lists if len(entry[2]) == len(entry[1])]
        if not lists:
            return self.refused("the blocks do not follow one another")
        for _, _, blocks in lists:
            in_segments(blocks)
        calls = "".join(f"\nin_segments({of_list(path, module, blocks)})" for path, module, blocks in lists)
        source = textwrap.dedent(inspect.getsource(in_segments)).strip()
        return (
            f"{source}\n\n{calls}",
            self.statistics(lists),
        )

    def statistics(self, lists):
        """What computing a block twice does to it beside its time."""
        batch_norm = self.torch.nn.modules.batchnorm._BatchNorm
        seen = any(isinstance(module, batch_norm) for _, _, blocks in lists for block in blocks for module in block.modules())
        return "BatchNorm's running statistics are updated twice a step" if seen else ""


def keep_products():
    """A checkpoint keeps every second matrix product and attention's result, and computes all else again."""
    import torch
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    aten, products = torch.ops.aten, {True: 0, False: 0}
    attention = {aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_efficient_attention.default}
    attention.add(aten._scaled_dot_product_cudnn_attention.default)

    def policy(context, operator, *_, **__):
        is_product = operator in (aten.mm.default, aten.addmm.default, aten.bmm.default)
        products[context.is_recompute] += is_product
        keeps = operator in attention or (is_product and products[context.is_recompute] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def in_segments(blocks):
    """Blocks that are called one after the other, as segments of sqrt(n) of which each keeps its input alone."""
    from math import ceil, sqrt

    from torch.utils.checkpoint import checkpoint

    blocks = list(blocks)
    size = ceil(sqrt(len(blocks)))
    for start in range(0, len(blocks), size):
        forwards = [block.forward for block in blocks[start : start + size]]

        def run(x, *arguments, forwards=forwards, **more):
            for forward in forwards:
                x = forward(x, *arguments, **more)
            return x

        # The first block of a segment runs all of it, the others hand on what they are given.
        blocks[start].forward = lambda x, *arguments, run=run, **more: checkpoint(run, x, *arguments, use_reentrant=False, **more)
        for block in blocks[start + 1 : start + size]:
            block.forward = lambda x, *arguments, **more: x


@technique("in-place")
class InPlace(OfModel):
    """Activations whose backward pass needs their result alone write it over their input."""

    KINDS = ("ReLU", "ReLU6", "LeakyReLU", "ELU", "CELU", "SELU", "Hardtanh")

    def first(self, root):
        from torch import nn

        kinds = tuple(getattr(nn, name) for name in self.KINDS)
        found = [module for module in root.modules() if isinstance(module, kinds) and not module.inplace]
        if not found:
            return self.refused("no activation module that could write in place, or all do")
        for module in found:
            module.inplace = True
        names = sorted({type(module).__name__ for module in found})
        text = ", ".join(f"torch.nn.{name}" for name in names)
        self.applied(
            f"""
for module in model.modules():
    if isinstance(module, ({text},)):
        module.inplace = True
"""
        )


@technique("channels-last")
class ChannelsLast(OfModel):
    def first(self, root):
        torch = self.torch
        if not any(isinstance(module, torch.nn.Conv2d) for module in root.modules()):
            return self.refused("the model has no two-dimensional convolution")
        root.to(memory_format=torch.channels_last)

        def channels_last(_, inputs):
            for x in inputs:
                if isinstance(x, torch.Tensor) and x.dim() == 4 and not x.requires_grad:
                    # In the script's own tensor: nothing else is left of it there, either.
                    x.data = x.contiguous(memory_format=torch.channels_last)

        root.register_forward_pre_hook(channels_last)
        grouped = any(isinstance(module, torch.nn.Conv2d) and module.groups > 1 for module in root.modules())
        # docs/time.md: on cuDNN 8 such models took longer so, on others less, and no record decides.
        doubt = "# it has convolutions with groups, which can take longer so: measure a step before you keep it" if grouped else ""
        self.applied(
            f"""
{doubt}
model = model.to(memory_format=torch.channels_last)
images = images.to(memory_format=torch.channels_last)  # in the loop
"""
        )


@technique("bf16-weights")
class HalfWeights(OfModel):
    """Weights, gradients and optimizer state in bfloat16."""

    def first(self, root):
        torch = self.torch
        if any(p.dtype in (torch.float16, torch.bfloat16) for p in root.parameters()):
            return self.refused("the model's parameters are in half precision already")
        root.to(torch.bfloat16)
        root.register_forward_pre_hook(lambda _, inputs: tuple(
            x.to(torch.bfloat16) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs
        ))
        self.applied(
            """
model = model.to(torch.bfloat16)  # before the optimizer is made
inputs = inputs.to(torch.bfloat16)  # in the loop, where they are floating-point
""",
            "weights and optimizer state in bfloat16: updates below 1/256 of a weight are lost",
        )


def add_lora(model, blocks, rank=8, alpha=16):
    """Freezes a model and adds to each linear layer of its blocks a product of two matrices of a low rank, which alone is trained."""
    import torch
    from torch import nn

    model.requires_grad_(False)
    for layer in [layer for block in blocks for layer in block.modules() if type(layer).__name__ in ("Linear", "Linear4bit")]:
        # Weights of 4 bits are stored in another type than they compute in.
        of = {"dtype": getattr(layer.weight, "quant_state", layer.weight).dtype, "device": layer.weight.device}
        layer.lora_a = nn.Parameter(torch.empty(rank, layer.in_features, **of))
        layer.lora_b = nn.Parameter(torch.zeros(layer.out_features, rank, **of))
        nn.init.kaiming_uniform_(layer.lora_a, a=5**0.5)

        def forward(x, layer=layer, plain=layer.forward):
            return plain(x) + nn.functional.linear(nn.functional.linear(x, layer.lora_a), layer.lora_b) * (alpha / rank)

        layer.forward = forward


def in_four_bits(blocks):
    """The weights of the linear layers in blocks take 4 bits each: nf4, the scales quantised once more."""
    import torch
    from bitsandbytes.nn import Linear4bit, Params4bit

    for parent in [module for block in blocks for module in block.modules()]:
        for name, layer in list(parent.named_children()):
            if type(layer) is torch.nn.Linear:
                linear = Linear4bit(layer.in_features, layer.out_features, bias=False, quant_type="nf4", device="meta")
                weight = Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4", module=linear)
                # It is quantised on its way to the GPU, even from there.
                linear.weight, linear.bias = weight.to("cuda"), layer.bias
                setattr(parent, name, linear)


@technique("lora", "qlora")
class LowRank(OfModel):
    """The model is frozen; what is trained are matrices of rank 8 beside the linear layers of its blocks, whose weights take 4 bits with `qlora`."""

    def begin(self):
        if self.name == "qlora" and importlib.util.find_spec("bitsandbytes") is None:
            self.refuse("bitsandbytes is not installed")
        self.optimizers = follow_optimizers(self.torch)
        super().begin()

    def first(self, root):
        if self.said is not None and self.said["applied"]:
            return
        trained = [p.requires_grad for p in root.parameters()]
        if not any(trained):
            return
        if self.torch.distributed.is_initialized():
            return self.refuse("the script uses several processes itself: freeze before the model is wrapped")
        if not all(trained):
            return self.refused("the script freezes parameters itself")
        linear = self.torch.nn.Linear

        def layers(blocks, kind):
            return [layer for block in blocks for layer in block.modules() if isinstance(layer, linear) and type(layer).__name__ == kind]

        lists = [entry for entry in repeated(root) if layers(entry[2], "Linear")]
        if not lists:
            return self.refused("no linear layers in repeated blocks of the model")
        blocks = [block for _, _, blocks in lists for block in blocks]
        # An optimizer that was made before takes the new matrices where it had the weight, which nothing else keeps then.
        at = {id(layer.weight): index for index, layer in enumerate(layers(blocks, "Linear"))}
        groups = []
        for group in [group for optimizer in self.optimizers for group in optimizer.param_groups]:
            groups.append((group, [at[id(p)] for p in group["params"] if id(p) in at]))
            group["params"] = [p for p in group["params"] if id(p) not in at]
        four_bits = self.name == "qlora"
        if four_bits:
            in_four_bits(blocks)
        add_lora(root, blocks)
        adapted = layers(blocks, "Linear4bit" if four_bits else "Linear")
        for group, indices in groups:
            group["params"] += [p for index in indices for p in (adapted[index].lora_a, adapted[index].lora_b)]
        blocks = of_lists(lists)
        functions, calls, weights = [add_lora], [f"add_lora(model, {blocks})  # before the optimizer is made"], "weights"
        if four_bits:
            functions, calls, weights = [in_four_bits, add_lora], [f"in_four_bits({blocks})", *calls], "weights of 4 bits"
        source = "\n\n\n".join(inspect.getsource(function).strip() for function in functions)
        lines = "\n".join(calls)
        self.applied(f"{source}\n\n\n{lines}", f"another thing is trained: matrices of rank 8 beside frozen {weights}")


@technique("sdpa")
class FusedAttention(OfModel):
    """Attention without its matrix of scores, where a model of transformers computes that explicitly."""

    nothing = "the script runs no model of transformers, whose attention could be chosen"

    def first(self, root):
        models = [m for m in root.modules() if hasattr(m, "set_attn_implementation") and getattr(m, "config", None) is not None]
        if not models:
            return
        chosen = getattr(models[0].config, "_attn_implementation", None)
        if chosen != "eager":
            return self.refused(f"the model's attention is {chosen} already")
        models[0].set_attn_implementation("sdpa")
        self.applied('model.set_attn_implementation("sdpa")')


# ---- the loss -------------------------------------------------------------------------------------------------------------------------------

LARGE_LOGITS = 64 << 20


def replace_cross_entropy(torch, replaced):
    """Has `replaced` called for each cross-entropy with its arguments by name and with the plain call; gives what puts that back."""
    functional = torch.nn.functional
    original = functional.cross_entropy
    signature = inspect.signature(original)

    @functools.wraps(original)
    def cross_entropy(*arguments, **more):
        given = signature.bind(*arguments, **more)
        given.apply_defaults()
        return replaced(given.arguments, functools.partial(original, *arguments, **more))

    functional.cross_entropy = cross_entropy
    return lambda *_: setattr(functional, "cross_entropy", original)


def without_module(*parts):
    """The source of functions of losses.py, as it is pasted into a script."""
    sources = [inspect.getsource(part).strip() for part in parts]
    return "import torch\nimport torch.nn.functional as F\n\n\n" + "\n\n\n".join(sources)


@technique("chunked-loss")
class ChunkedLoss(Technique):
    """Cross-entropy some rows at a time: of the logits' size are the logits and their gradient, and nothing in fp32."""

    def begin(self):
        from . import losses

        self.refused("the script computes no cross-entropy of logits of 64 MiB or more")
        self.chunked = losses.chunked_cross_entropy
        self.source = without_module(losses.ChunkedCrossEntropy, losses.chunked_cross_entropy)
        replace_cross_entropy(self.torch, self.replaced)

    def replaced(self, given, plain):
        logits, targets = given["input"], given["target"]
        if not self.torch.is_grad_enabled() or not logits.is_cuda or logits.nbytes < LARGE_LOGITS:
            return plain()
        others = given["weight"] is not None or given["label_smoothing"] or given["reduction"] not in ("mean", "sum")
        if others or logits.dim() != 2 or targets.dim() != 1:
            self.refused("the script's cross-entropy has weights, label smoothing, no reduction, or more than two dimensions")
            return plain()
        self.applied(f"{self.source}\n\n\n{self.line()}")
        return self.chunked(logits, targets, given["ignore_index"], given["reduction"])


    def line(self):
        """What calls it: the script in place of its own loss, or PyTorch where a library computes the loss."""
        frame = caller = sys._getframe(3)
        of_torch = os.path.dirname(self.torch.__file__)
        while caller.f_back is not None and caller.f_code.co_filename.startswith(of_torch):
            caller = caller.f_back
        file = caller.f_code.co_filename
        if reach.is_own(file):
            return "loss = chunked_cross_entropy(logits, targets)  # instead of F.cross_entropy, with its ignore_index and reduction"
        at = f"{file.split('-packages/')[-1]}:{caller.f_lineno}"
        if frame is not caller:
            call = "chunked_cross_entropy(input, target, self.ignore_index, self.reduction)"
            return f"torch.nn.CrossEntropyLoss.forward = lambda self, input, target: {call}  # for {at}"
        return (
            f"plain_cross_entropy = F.cross_entropy\n\n\ndef cross_entropy(*arguments, **more):  # for {at}\n"
            "    # The chunks themselves are computed without gradients.\n"
            "    chosen = chunked_cross_entropy if torch.is_grad_enabled() else plain_cross_entropy\n"
            "    return chosen(*arguments, **more)\n\n\nF.cross_entropy = cross_entropy"
        )


@technique("fused-linear-loss")
class FusedLinearLoss(OfModel):
    """The product that makes the logits, by a linear layer or with an embedding's weight, is put off into the loss, which computes both some rows
    at a time."""

    def begin(self):
        self.embeddings = set()
        super().begin()

    def first(self, root):
        from . import losses

        if self.said["applied"]:
            return
        kind = self.torch.nn.Linear
        inside = {module for _, _, blocks in repeated(root) for block in blocks for module in block.modules()}
        outside = [(path, module) for path, module in root.named_modules() if module not in inside and type(module) is kind]
        heads = [(path, layer) for path, layer in outside if layer.out_features >= max(8192, 2 * layer.in_features)]
        technique = self

        class Watched(losses.DeferredLogits):
            @classmethod
            def __torch_dispatch__(cls, function, types, arguments=(), more=None):
                technique.refused(f"the script uses its logits for more than cross-entropy: {getattr(function, '__name__', function)}")
                return super().__torch_dispatch__(function, types, arguments, more)

        functions = [losses.LinearCrossEntropy, losses.DeferredLogits]
        if heads:
            path, head = heads[-1]
            source = without_module(*functions, losses.defer_logits)
            losses.DeferredLogits = Watched
            losses.defer_logits(head)
            return self.applied(f"{source}\n\n\ndefer_logits({in_script(path)})")
        self.refused("no linear layer gives logits over 8,192 classes or more")
        self.embeddings.update(module.weight for module in root.modules() if isinstance(module, self.torch.nn.Embedding))
        if isinstance(losses.F, types.SimpleNamespace):
            return
        functional, losses.F = losses.F, types.SimpleNamespace(**vars(losses.F))

        @functools.wraps(functional.linear)
        def linear(x, weight, bias=None):
            if weight not in self.embeddings or len(weight) < 8192 or not self.torch.is_grad_enabled():
                return losses.F.linear(x, weight, bias)
            caller = sys._getframe(1)
            at = f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"
            call = f"DeferredLogits(hidden, weight, bias)  # instead of F.linear(hidden, weight, bias) at {at}"
            self.applied(f"{without_module(*functions)}\n\n\n{call}")
            return Watched(x, weight, bias)

        functional.linear = linear


# ---- offloading -----------------------------------------------------------------------------------------------------------------------------


class OffloadActivations:
    """What the forward pass keeps for the backward pass waits in pinned host memory; parameters and small tensors stay."""

    def __init__(self, least=1 << 20):
        import torch

        def pack(tensor):
            base = tensor if tensor._base is None else tensor._base
            if not tensor.is_cuda or isinstance(base, torch.nn.Parameter) or tensor.nbytes < least:
                return tensor
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
            # A view comes back without its gaps. The parts that torch.compile keeps are no views for PyTorch, and must lie as they lay.
            return host, host.stride() if tensor._is_view() else tensor.stride(), tensor.device

        def unpack(kept):
            if isinstance(kept, torch.Tensor):
                return kept
            host, stride, device = kept
            return torch.empty_strided(host.shape, stride, dtype=host.dtype, device=device).copy_(host, non_blocking=True)

        self.hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    def __enter__(self):
        self.hooks.__enter__()

    def __exit__(self, *exception):
        self.hooks.__exit__(*exception)


@technique("offload-activations")
class Offload(Region):
    def make(self):
        return OffloadActivations()

    def first(self, root):
        if any(p.requires_grad for p in root.parameters()):
            source = inspect.getsource(OffloadActivations).strip()
            self.applied(
                f"""
{source}


with OffloadActivations():
    output = model(inputs)
    loss = criterion(output, targets)
loss.backward()
"""
            )


def offload_state(optimizer, least=1 << 16):
    """Between steps an optimizer's state waits in pinned host memory; it is on the GPU while the optimizer steps."""
    import torch

    host = {}

    def large(optimizer, device):
        for parameter, state in optimizer.state.items():
            for name, value in state.items():
                if type(value) is torch.Tensor and value.nbytes >= least and value.device.type == device and parameter.is_cuda:
                    yield parameter, state, name, value

    def fetch(optimizer, *_):
        for parameter, state, name, value in large(optimizer, "cpu"):
            state[name] = value.to(parameter.device, non_blocking=True)

    def send(optimizer, *_):
        for parameter, state, name, value in large(optimizer, "cuda"):
            if (parameter, name) not in host:
                host[parameter, name] = torch.empty_like(value, device="cpu", pin_memory=True)
            state[name] = host[parameter, name].copy_(value)

    optimizer.register_step_pre_hook(fetch)
    optimizer.register_step_post_hook(send)


@technique("offload-optimizer")
class OffloadOptimizer(Technique):
    def begin(self):
        self.refused("the script's optimizer keeps no state of 64 KiB or more on the GPU")
        follow_optimizers(self.torch, self.made)

    def made(self, optimizer):
        offload_state(optimizer)
        optimizer.register_step_post_hook(self.stepped)

    def stepped(self, optimizer, *_):
        values = (value for state in optimizer.state.values() for value in state.values())
        if any(isinstance(value, self.torch.Tensor) and value.is_pinned() for value in values):
            call = "trainer.create_optimizer()\noffload_state(trainer.optimizer)" if uses_trainer() else "offload_state(optimizer)"
            self.applied(f"{inspect.getsource(offload_state).strip()}\n\n\n{call}")


# ---- the compiler -----------------------------------------------------------------------------------------------------------------------


@technique("compile", "memory-budget")
class Compile(Technique):
    """torch.compile of the model, and with half of the activations that it would keep by itself."""

    def begin(self):
        self.refused("the script runs no module but what it compiles itself")
        if settings.eager:
            self.refuse("--eager turns torch.compile off")
        if importlib.util.find_spec("triton") is None:
            self.refuse("triton, in which torch.compile writes its kernels, is not installed")
        compiling.when_it_fails.append(lambda why: self.refused(f"torch.compile fails: {why}"))
        self.at_first_forward(self.first)

    def first(self, root):
        from torch._dynamo import OptimizedModule

        if any(isinstance(module, OptimizedModule) or module._compiled_call_impl is not None for module in root.modules()):
            return self.refused("the script compiles the model itself")
        if not any(p.requires_grad for p in root.parameters()):
            return
        lines = "TrainingArguments(..., torch_compile=True)" if uses_trainer() else "model.compile()"
        if self.name == "memory-budget":
            import torch._functorch.config

            torch._functorch.config.activation_memory_budget = 0.5
            lines = f"import torch._functorch.config\ntorch._functorch.config.activation_memory_budget = 0.5\n{lines}"
        root.compile()
        self.applied(lines)


# ---- the batch ------------------------------------------------------------------------------------------------------------------------------


@technique("accumulate")
class Accumulate(Technique):
    """The command's own flags do it; what that changes in the result shows in the script."""

    def begin(self):
        self.changes = []
        self.applied("")
        self.at_first_forward(self.first)
        self.follow_targets()

    def changes_too(self, what):
        self.changes.append(what)
        self.applied("", " and ".join(self.changes))

    def first(self, root):
        batch_norm = self.torch.nn.modules.batchnorm._BatchNorm
        if not self.changes and any(isinstance(module, batch_norm) and module.training for module in root.modules()):
            self.changes_too("BatchNorm sees the smaller batch")

    def follow_targets(self):
        """A mean over more targets in one batch than in another weighs them differently."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        torch, counts = self.torch, set()

        def counted(given, plain):
            target = given["target"]
            if given["reduction"] == "mean" and torch.is_grad_enabled() and not target.is_floating_point():
                # Counted on the CPU, where it asks nothing of the GPU's memory.
                known = counts.copy()
                counts.add(int((target.detach().cpu() != given["ignore_index"]).sum()))
                if known and len(counts) == 2 and counts != known:
                    self.changes_too("targets weigh by how many others their batch has")
            return plain()

        # One step tells, and a clock may run in the others.
        register_optimizer_step_post_hook(replace_cross_entropy(torch, counted))


# ---- several cards --------------------------------------------------------------------------------------------------------------------------


class OnCards(Technique):
    """One of several processes, each with a card and a batch of its own."""

    def begin(self):
        self.cards = settings.cards
        self.change = f"{self.cards} cards, each with a batch of this size"
        self.first_lines = f"""
# torchrun --nproc-per-node={self.cards} train.py
import os
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl")"""

    def meet(self):
        """Makes this process one of them, unless the script has several itself."""
        if self.torch.distributed.is_initialized():
            return self.refuse("the script uses several processes itself")
        if uses_trainer():
            return self.refuse("a Trainer does it by itself: TrainingArguments(..., fsdp=True); rehearse that with --world-size and --rank")
        self.torch.distributed.init_process_group("nccl", world_size=self.cards, rank=0)


@technique("zero1")
class ShardedState(OnCards):
    """The optimizer's state in shards, one for each card; parameters and gradients are whole on each."""

    def begin(self):
        super().begin()
        self.refused("the script makes no optimizer of PyTorch's")
        self.kinds = []
        for kind in optimizer_kinds(self.torch):
            self.swap(kind)
        self.at_first_forward(self.replicate)

    def swap(self, kind):
        original = kind.__init__
        signature = inspect.signature(original)

        @functools.wraps(original)
        def init(optimizer, *arguments, **more):
            if type(optimizer) is not kind:
                return original(optimizer, *arguments, **more)
            # Each card's own, for its shard, is made as the script makes it.
            kind.__init__ = original
            if not self.kinds:
                self.meet()
            self.kinds.append(kind.__name__)
            from torch.distributed.optim import ZeroRedundancyOptimizer

            _, (_, parameters), *options = signature.bind(optimizer, *arguments, **more).arguments.items()
            optimizer.__class__ = ZeroRedundancyOptimizer
            optimizer.__init__(parameters, kind, **dict(options))
            kind.__init__ = init

        kind.__init__ = init

    def replicate(self, root):
        """Gradients are averaged as DistributedDataParallel does it, with the script's module at its heart and in its place."""
        if not self.kinds or not any(p.requires_grad for p in root.parameters()):
            return
        replica = self.torch.nn.parallel.DistributedDataParallel(root, gradient_as_bucket_view=True)
        plain, inside = root.forward, False

        def forward(*arguments, **more):
            nonlocal inside
            if inside:
                return plain(*arguments, **more)
            inside = True
            try:
                return replica(*arguments, **more)
            finally:
                inside = False

        root.forward = forward
        self.applied(
            f"""{self.first_lines}
from torch.distributed.optim import ZeroRedundancyOptimizer
model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.{self.kinds[0]}, ...)  # instead of {self.kinds[0]}
""",
            self.change,
        )


@technique("zero2", "fsdp2")
class Sharded(OnCards):
    """Parameters, gradients and optimizer state in shards, one for each card, gathered block by block; with `zero2` parameters stay gathered until
    their backward pass."""

    def begin(self):
        super().begin()
        self.optimizers = follow_optimizers(self.torch)
        self.refused("the script runs no module")
        self.at_first_forward(self.first)

    def first(self, root):
        from torch.distributed.fsdp import fully_shard

        if not any(p.requires_grad for p in root.parameters()):
            return
        if len({p.dtype for p in root.parameters()}) > 1:
            return self.refuse("the model's parameters are of several types")
        self.meet()
        names = {id(p): name for name, p in root.named_parameters(remove_duplicate=False)}
        options = {"reshard_after_forward": False} if self.name == "zero2" else {}
        more = "".join(f", {name}={value}" for name, value in options.items())
        lists = repeated(root)
        for _, _, blocks in lists:
            for block in blocks:
                fully_shard(block, **options)
        fully_shard(root, **options)
        sharded = dict(root.named_parameters(remove_duplicate=False))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["params"] = [sharded[names[id(p)]] if id(p) in names else p for p in group["params"]]
        loops = "".join(f"for block in {of_list(*entry)}:\n    fully_shard(block{more})\n" for entry in lists)
        self.applied(
            f"""{self.first_lines}
from torch.distributed.fsdp import fully_shard
{loops}fully_shard(model{more})  # before the optimizer is made
""",
            self.change,
        )
