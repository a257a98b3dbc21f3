"""{
"autocast-bf16": {"group": "precision", "short": "products and activations in bf16", "frees": {"cast_activations": 0.5}, "time": "half", "changes": "rounding", "unless": ["half_precision"], "compiles": true, "line": "autocast over model and loss, fp16 with a GradScaler"},
"autocast-fp16": {"group": "precision", "short": "products and activations in fp16", "changes": "rounding", "unless": ["half_precision"], "compiles": true, "line": "autocast over model and loss, fp16 with a GradScaler"}
}"""

import textwrap

from ..guard import instead
from .shared.optimizers import is_there, replace_steps, when_scaler_is_made
from .shared.technique import Region, technique, uses_trainer

_STEP = """# scaler.unscale_(optimizer)  # before gradients are clipped
scaler.step(optimizer)
scaler.update()"""
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


@technique
class Autocast(Region):
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
        after = _STEP if is_there(self.torch) else "# gradients are larger by scaler.get_scale(), also those of torch.autograd.grad(scaler.scale(loss), ...)"
        return f'''scaler = torch.amp.GradScaler("cuda")  # once
with torch.autocast("cuda", dtype=torch.float16):
{body}
scaler.scale(loss).backward()
{after}'''

    def scale(self):
        torch = self.torch
        self.scaler = None
        mine = False

        def made(_):
            if not mine:
                self.refused("the script has a GradScaler itself")

        when_scaler_is_made(torch, made)

        @instead("backward", torch.Tensor)
        def backward(loss, *arguments, **more):
            nonlocal mine
            if not self.active() or loss.numel() != 1 or not loss.is_cuda:
                return backward.__wrapped__(loss, *arguments, **more)
            self.leave()
            if self.scaler is None:
                mine = True
                self.scaler = torch.amp.GradScaler("cuda")
                mine = False
            return backward.__wrapped__(self.scaler.scale(loss), *arguments, **more)

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

        @instead("clip_grad_norm_", torch.nn.utils, torch.nn.utils.clip_grad)
        def clip(*arguments, **more):
            if self.scaler is not None and self.active():
                for optimizer in optimizers:
                    if id(optimizer) not in unscaled:
                        unscaled.add(id(optimizer))
                        self.scaler.unscale_(optimizer)
            return clip.__wrapped__(*arguments, **more)
