"""{
"checkpoint-every": {"group": "checkpointing", "short": "each block is computed again", "frees": {"blocks": 1}, "again": 0.75, "unless": ["checkpoints", "no_blocks"], "line": "the model's repeated blocks (found in its module tree) keep only their input; non-reentrant"},
"checkpoint-second": {"group": "checkpointing", "short": "every second block computed again", "frees": {"blocks": 0.5}, "again": 0.37, "unless": ["checkpoints", "no_blocks", "transformers_model"], "line": "the model's repeated blocks (found in its module tree) keep only their input; non-reentrant"},
"checkpoint-sqrt": {"group": "checkpointing", "short": "groups of blocks computed again", "again": 1, "unless": ["checkpoints", "no_blocks", "transformers_model"], "line": "the model's repeated blocks (found in its module tree) keep only their input; non-reentrant"},
"checkpoint-selective": {"group": "checkpointing", "short": "blocks computed again in part", "frees": {"blocks_in_part": 1}, "again": 0.75, "unless": ["checkpoints", "no_blocks", "transformers_model"], "line": "each block keeps its input, every second matrix product and attention's result"}
}"""

import functools
import inspect
import sys
import textwrap
import traceback

from .. import calls, passes
from .shared.blocks import of_list, repeated
from .shared.technique import OfModel, technique, uses_trainer


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
    from functools import partial
    from math import ceil, sqrt

    from torch.utils.checkpoint import checkpoint

    def run(forwards, x, *arguments, **more):
        for forward in forwards:
            x = forward(x, *arguments, **more)
        return x

    blocks = list(blocks)
    size = ceil(sqrt(len(blocks)))
    for start in range(0, len(blocks), size):
        first, *others = blocks[start : start + size]
        # Bound to their blocks, so that a copy of the model has its own.
        forwards = [block.forward for block in (first, *others)]
        # The first block of a segment runs all of it, the others hand on what they are given.
        first.forward = partial(checkpoint, partial(run, forwards), use_reentrant=False)
        for block in others:
            block.forward = partial(run, [])


def is_functional():
    """Whether a function of torch.func calls with other weights than the model's: they are its own again when a backward pass computes."""
    files = (frame.f_code.co_filename for frame, _ in traceback.walk_stack(sys._getframe(1)))
    return any(file.endswith(("torch/nn/utils/stateless.py", "torch/_functorch/functional_call.py")) for file in files)


@technique
class Checkpoint(OfModel):
    def first(self, root):
        if not passes.keeps_graph(root, calls.given):
            return False
        if is_functional():
            return self.refused("the script calls the model by functional_call: what is computed again would take the model's own weights")
        pretrained = next((m for m in root.modules() if getattr(m, "supports_gradient_checkpointing", False)), None)
        if pretrained is not None:
            return self.by_transformers(pretrained)
        lists = repeated(root)
        if not lists:
            return self.refused("no list of repeated blocks in the model")
        second = functools.partial(self.every, stride=2)
        selective = functools.partial(self.every, context_fn=keep_products)
        kinds = {"every": self.every, "second": second, "sqrt": self.segments, "selective": selective}
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

    def every(self, lists, stride=1, **options):
        from torch.utils.checkpoint import checkpoint

        for _, _, blocks in lists:
            for block in blocks[::stride]:
                block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, **options)
        slices = f"[::{stride}]" if stride > 1 else ""
        more = "".join(f", {name}={function.__name__}" for name, function in options.items())
        sources = "".join(f"\n{inspect.getsource(function).strip()}\n\n" for function in options.values())
        loops = "".join(
            f"""
for block in {of_list(*entry)}{slices}:
    block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False{more})"""
            for entry in lists
        )
        return f"import functools\nfrom torch.utils.checkpoint import checkpoint\n{sources}{loops}", self.statistics(lists)

    def segments(self, lists):
        lists = [entry for entry in lists if entry[2] == list(entry[1])]
        if not lists:
            return self.refused("the blocks do not follow one another")
        for _, _, blocks in lists:
            in_segments(blocks)
        calls = "".join(f"\nin_segments({of_list(path, module, blocks)})" for path, module, blocks in lists)
        source = textwrap.dedent(inspect.getsource(in_segments)).strip()
        return f"{source}\n\n{calls}", self.statistics(lists)

    def statistics(self, lists):
        """What computing a block twice does to it beside its time."""
        batch_norm = self.torch.nn.modules.batchnorm._BatchNorm
        modules = [module for _, _, blocks in lists for block in blocks for module in block.modules()]
        # A pass without gradients, as of a validation before the training, says nothing of the others.
        counts = [module.training or not self.torch.is_grad_enabled() for module in modules if isinstance(module, batch_norm) and module.track_running_stats]
        seen = any(counts)
        return "BatchNorm's running statistics are updated twice a step" if seen else ""
