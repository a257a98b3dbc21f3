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

from . import process

TECHNIQUES = {}


def begin(torch):
    """Switches on what the environment names, right after torch was imported."""
    for name in os.environ.get("VRAMLAB_REHEARSAL_TECHNIQUES", "").split(","):
        if name:
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
        self.begin()
        self.end_where_nothing_comes_of_it()

    def applied(self, snippet, change=""):
        self._say(applied=True, change=change, snippet=snippet.strip("\n"))

    def refused(self, reason):
        self._say(applied=False, reason=reason)

    def never(self, reason):
        """Nothing that the script does can change it."""
        self.refused(reason)
        os._exit(0)

    def _say(self, **more):
        if self.said != more:
            self.said = more
            process.note(technique=self.name, **more)

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
        call = self.torch.nn.Module.__call__
        inside = False

        @functools.wraps(call)
        def outermost(module, *arguments, **more):
            nonlocal inside
            if inside:
                return call(module, *arguments, **more)
            inside = True
            try:
                enters(module)
                return call(module, *arguments, **more)
            finally:
                inside = False
                leaves()

        self.torch.nn.Module.__call__ = outermost

    def at_first_forward(self, callback):
        """Calls back with each outermost module before its first forward pass."""
        seen = weakref.WeakSet()

        def enters(module):
            # Children come inside of their parent's call; a second model (a critic, a teacher) is an outermost one, too.
            # A loss is one without parameters, and has nothing to say about the model.
            if module not in seen and next(module.parameters(), None) is not None:
                seen.update(module.modules())
                callback(module)

        self.around_forward(enters)

    def before_backward(self, callback):
        torch = self.torch
        original = torch.autograd.graph._engine_run_backward

        @functools.wraps(original)
        def engine_run_backward(*arguments, **more):
            callback()
            return original(*arguments, **more)

        torch.autograd.graph._engine_run_backward = engine_run_backward
        torch.autograd._engine_run_backward = engine_run_backward


def uses_trainer():
    """Whether the script trains by Hugging Face's Trainer, whose arguments switch on what others write themselves."""
    return "transformers.trainer" in sys.modules


# ---- precision ------------------------------------------------------------------------------------------------------------------------


@technique("autocast-bf16", "autocast-fp16")
class Autocast(Technique):
    """From the outermost module's forward pass to the backward pass: model and loss, as PyTorch's recipe has it."""

    def begin(self):
        torch = self.torch
        self.half = self.name.endswith("fp16")
        self.dtype = torch.float16 if self.half else torch.bfloat16
        self.region = None
        self.around_forward(self.enters, self.leaves)
        self.at_first_forward(self.first)
        self.before_backward(self.leave)
        if self.half:
            self.scale()

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
        if not self.half:
            return self.applied(
                """
with torch.autocast("cuda", dtype=torch.bfloat16):
    output = model(inputs)
    loss = criterion(output, targets)
loss.backward()
""",
                change,
            )
        self.applied(
            """
scaler = torch.amp.GradScaler("cuda")  # once
with torch.autocast("cuda", dtype=torch.float16):
    output = model(inputs)
    loss = criterion(output, targets)
scaler.scale(loss).backward()
# scaler.unscale_(optimizer)  # before gradients are clipped
scaler.step(optimizer)
scaler.update()
""",
            change + ", loss scaled",
        )

    def active(self):
        return self.said is not None and self.said["applied"]

    def enters(self, _):
        # What a backward pass computes again has its forward pass's precision by itself.
        if self.region is None and self.active() and self.torch._C._current_graph_task_id() == -1:
            self.region = self.torch.autocast("cuda", dtype=self.dtype)
            self.region.__enter__()

    def leaves(self):
        # Nothing goes back through what an evaluation computes.
        if not self.torch.is_grad_enabled():
            self.leave()

    def leave(self):
        if self.region is not None:
            region, self.region = self.region, None
            region.__exit__(None, None, None)

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


def replace_steps(torch, step):
    """Has every optimizer call `step(optimizer, original, ...)` for its step; gives all that there are, as they come."""
    optimizers = weakref.WeakSet()
    init = torch.optim.Optimizer.__init__

    @functools.wraps(init)
    def followed(optimizer, *arguments, **more):
        init(optimizer, *arguments, **more)
        optimizers.add(optimizer)

        def replaced(self, *arguments, **more):
            return step(self, functools.partial(type(self).step, self), *arguments, **more)

        # A bound method, because schedulers look into it.
        optimizer.step = types.MethodType(functools.wraps(type(optimizer).step)(replaced), optimizer)

    torch.optim.Optimizer.__init__ = followed
    return optimizers


@technique("fused", "foreach", "for-loop")
class Implementation(Technique):
    """Which of PyTorch's implementations of an optimizer's step runs."""

    def begin(self):
        optim = self.torch.optim
        self.wanted = {"fused": (True, None), "foreach": (None, True), "for-loop": (False, False)}[self.name]
        for kind in vars(optim).values():
            if isinstance(kind, type) and issubclass(kind, optim.Optimizer) and kind is not optim.Optimizer:
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
        init = torch.optim.Optimizer.__init__

        @functools.wraps(init)
        def followed(optimizer, *arguments, **more):
            init(optimizer, *arguments, **more)
            if not self.making:
                self.made.add(optimizer)

        torch.optim.Optimizer.__init__ = followed
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


@technique("8-bit-state")
class EightBit(Technique):
    """Adam or AdamW whose moments have 8 bits a value, of torchao or of bitsandbytes, whichever is installed."""

    def begin(self):
        torch = self.torch
        package = next((name for name in ("torchao", "bitsandbytes") if importlib.util.find_spec(name)), None)
        if package is None:
            return self.never("neither torchao nor bitsandbytes is installed")
        self.refused("the script makes no Adam or AdamW")
        for name in ("Adam", "AdamW"):
            replaced = getattr(torch.optim, name)

            class Instead:
                # `fused` and its kin are not taken over.
                def __new__(cls, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=None, name=name, **more):
                    optim = importlib.import_module(f"{package}.optim")
                    self.applied(
                        f"import {package}\noptimizer = {package}.optim.{name}8bit(model.parameters(), lr=...)  # instead of {name}",
                        "another optimizer: its moments rounded to 8 bits",
                    )
                    if weight_decay is None:
                        weight_decay = 1e-2 if name == "AdamW" else 0
                    return getattr(optim, f"{name}8bit")(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

            Instead.__name__ = Instead.__qualname__ = name
            setattr(torch.optim, name, Instead)
            setattr(sys.modules[replaced.__module__], name, Instead)


@technique("factored")
class Factored(Technique):
    """Adafactor, whose second moment is a row and a column, instead of Adam or AdamW."""

    def begin(self):
        torch = self.torch
        for name in ("Adam", "AdamW"):
            replaced = getattr(torch.optim, name)

            class Instead(torch.optim.Adafactor):
                def __init__(instead, params, lr=1e-3, betas=None, eps=None, weight_decay=0.0, name=name, **more):
                    self.applied(f"optimizer = torch.optim.Adafactor(model.parameters(), lr=...)  # instead of {name}", "another optimizer: no first moment, a factored second one")
                    super().__init__(params, lr=lr, weight_decay=weight_decay)

            Instead.__name__ = Instead.__qualname__ = name
            setattr(torch.optim, name, Instead)
            setattr(sys.modules[replaced.__module__], name, Instead)
        self.refused("the script makes no Adam or AdamW")


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


@technique("checkpoint-every", "checkpoint-second", "checkpoint-sqrt")
class Checkpoint(Technique):
    """Repeated blocks keep their input alone and run again in the backward pass."""

    def begin(self):
        self.refused("the script runs no module")
        self.at_first_forward(self.first)

    def first(self, root):
        if not any(p.requires_grad for p in root.parameters()):
            return
        pretrained = next((m for m in root.modules() if getattr(m, "supports_gradient_checkpointing", False)), None)
        if pretrained is not None and self.name == "checkpoint-every":
            return self.by_transformers(pretrained)
        if pretrained is not None:
            return self.refused("transformers checkpoints every block or none")
        lists = repeated(root)
        if not lists:
            return self.refused("no list of repeated blocks in the model")
        done = {"checkpoint-every": self.every, "checkpoint-second": self.second, "checkpoint-sqrt": self.segments}[self.name](lists)
        if done:
            self.applied(*done)

    def by_transformers(self, model):
        if model.is_gradient_checkpointing:
            return self.refused("the script checkpoints itself")
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if uses_trainer():
            return self.applied('TrainingArguments(..., gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False})')
        self.applied('model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})')

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


def in_segments(blocks):
    """Blocks that are called one after the other, as about sqrt(n) segments of which each keeps its input alone."""
    from math import isqrt

    from torch.utils.checkpoint import checkpoint

    blocks = list(blocks)
    size = -(-len(blocks) // max(isqrt(len(blocks)), 1))
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
class InPlace(Technique):
    """Activations whose backward pass needs their result alone write it over their input."""

    KINDS = ("ReLU", "ReLU6", "LeakyReLU", "ELU", "CELU", "SELU", "Hardtanh")

    def begin(self):
        self.refused("the script runs no module")
        self.at_first_forward(self.first)

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
class ChannelsLast(Technique):
    def begin(self):
        self.refused("the script runs no module")
        self.at_first_forward(self.first)

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
        self.applied(
            """
model = model.to(memory_format=torch.channels_last)
images = images.to(memory_format=torch.channels_last)  # in the loop
"""
        )


# ---- several cards --------------------------------------------------------------------------------------------------------------------------


@technique("fsdp2")
class Sharded(Technique):
    """Parameters, gradients and optimizer state in shards, one for each card, gathered block by block; each card has its own batch."""

    def begin(self):
        torch = self.torch
        self.cards = int(os.environ["VRAMLAB_REHEARSAL_CARDS"])
        self.optimizers = weakref.WeakSet()
        init = torch.optim.Optimizer.__init__

        @functools.wraps(init)
        def followed(optimizer, *arguments, **more):
            init(optimizer, *arguments, **more)
            self.optimizers.add(optimizer)

        torch.optim.Optimizer.__init__ = followed
        self.refused("the script runs no module")
        self.at_first_forward(self.first)

    def first(self, root):
        from torch.distributed.fsdp import fully_shard

        distributed = self.torch.distributed
        if not any(p.requires_grad for p in root.parameters()):
            return
        if distributed.is_initialized():
            return self.never("the script uses several processes itself")
        if len({p.dtype for p in root.parameters()}) > 1:
            return self.never("the model's parameters are of several types")
        names = {id(p): name for name, p in root.named_parameters(remove_duplicate=False)}
        distributed.init_process_group("nccl", world_size=self.cards, rank=0)
        lists = repeated(root)
        for _, _, blocks in lists:
            for block in blocks:
                fully_shard(block)
        fully_shard(root)
        sharded = dict(root.named_parameters(remove_duplicate=False))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["params"] = [sharded[names[id(p)]] if id(p) in names else p for p in group["params"]]
        loops = "".join(f"for block in {of_list(*entry)}:\n    fully_shard(block)\n" for entry in lists)
        self.applied(
            f"""
# torchrun --nproc-per-node={self.cards} train.py
import os
from torch.distributed.fsdp import fully_shard
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl")
{loops}fully_shard(model)  # before the optimizer is made
""",
            f"{self.cards} cards, each with a batch of this size",
        )
