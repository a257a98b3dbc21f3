"""{
"optimizer-in-backward": {"group": "update", "steps": true, "short": "no gradient is kept", "frees": {"gradients": 1}, "unless": ["closure", "clips_gradients"], "compiles": true, "line": "each parameter is updated as soon as its gradient is complete"}
}"""

import weakref

from ..guard import instead
from .shared.optimizers import follow_optimizers, when_scaler_is_made
from .shared.technique import Technique, technique


@technique
class InBackward(Technique):
    """The script's own step finds no gradients, and so has nothing to do."""

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
            self.watch(name)

    def watch(self, name):
        utils = self.torch.nn.utils

        @instead(name, utils, utils.clip_grad)
        def clipped(*arguments, **more):
            self.refused("the script clips gradients, for which it needs all of them at once")
            return clipped.__wrapped__(*arguments, **more)

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
