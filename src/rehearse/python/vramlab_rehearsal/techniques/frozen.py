"""{
"frozen-fp8": {"group": "frozen weights", "short": "frozen weights kept in fp8", "frees": {"frozen_weights": 0.45}, "changes": "rounding", "line": "linear layers whose weights are not trained keep them in fp8 (e4m3) or in bfloat16, and compute in the type of their input; a backward pass casts them once more"},
"frozen-half": {"group": "frozen weights", "short": "frozen weights kept in bf16", "frees": {"frozen_weights": 0.45}, "changes": "rounding", "unless": ["half_weights"], "line": "linear layers whose weights are not trained keep them in fp8 (e4m3) or in bfloat16, and compute in the type of their input; a backward pass casts them once more"},
"frozen-nf4": {"group": "frozen weights", "short": "frozen weights kept in 4 bits", "frees": {"frozen_weights": 0.7}, "time": "unknown", "changes": "rounding", "line": "linear layers whose weights are not trained keep them in 4 bits (nf4), where bitsandbytes is installed"},
"frozen-offload": {"group": "frozen weights", "short": "frozen weights wait on the host", "frees": {"frozen_weights": 0.9}, "time": "host", "needs": ["host_memory"], "line": "weights of linear layers that are not trained wait in pinned host memory; each comes to the GPU for its layer's forward and backward pass"}
}"""

import inspect

from .shared.four_bits import frozen_in_four_bits
from .shared.technique import OfModel, technique


def keep_frozen(model, kind=None, device=None):
    """Linear layers whose weights are not trained keep them in another type, or on the host, and compute in the type of their input."""
    import torch

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(context, x, weight):
            kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
            context.weight, context.kind, context.of = weight, kind, x.dtype
            return torch.nn.functional.linear(x.to(kind), weight.to(x.device, kind, non_blocking=True))

        @staticmethod
        def backward(context, gradient):
            weight = context.weight.to(gradient.device, context.kind, non_blocking=True)
            return (gradient.to(context.kind) @ weight).to(context.of), None

    def forward(x, layer, weight):
        y = Linear.apply(x, weight)
        return y if layer.bias is None else y + layer.bias.to(y.dtype)

    # An embedding reads its weights as they are, also those that a head shares with it.
    others = {weight for each in model.modules() if type(each) is not torch.nn.Linear for weight in each.parameters(recurse=False)}
    linear = [each for each in model.modules() if type(each) is torch.nn.Linear and each.weight not in others]
    for layer in [each for each in linear if not each.weight.requires_grad]:
        weight = layer.weight.data.to(kind or layer.weight.dtype)
        weight = torch.empty_like(weight, device="cpu", pin_memory=True).copy_(weight) if device == "cpu" else weight
        layer.weight.data = weight
        # Not the parameter, which is none of a graph's.
        layer.forward = lambda x, layer=layer, weight=weight: forward(x, layer, weight)


HOW = {"frozen-fp8": "kind=torch.float8_e4m3fn", "frozen-half": "kind=torch.bfloat16", "frozen-offload": 'device="cpu"'}


@technique
class Frozen(OfModel):
    nothing = "no model with frozen linear layers came by"

    def begin(self):
        if self.name == "frozen-nf4":
            self.needs("bitsandbytes")
        super().begin()

    def first(self, root):
        torch = self.torch
        frozen = [each.weight for each in root.modules() if type(each) is torch.nn.Linear and not each.weight.requires_grad]
        if not frozen:
            return self.refused(self.nothing)
        if self.name == "frozen-half" and all(each.dtype != torch.float32 for each in frozen):
            return self.refused("its frozen weights are in half precision already")
        if self.name == "frozen-nf4":
            return frozen_in_four_bits(self, root)
        how = HOW[self.name]
        keep_frozen(root, **eval(f"dict({how})", {"torch": torch, "dict": dict}))
        change = "" if self.name == "frozen-offload" else f"frozen weights rounded to {how.rsplit('.', 1)[-1]}"
        self.applied(f"{inspect.getsource(keep_frozen).strip()}\n\n\nkeep_frozen(model, {how})", change)
