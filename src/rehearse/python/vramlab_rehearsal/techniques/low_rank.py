"""{
"lora": {"group": "what is trained", "steps": true, "short": "only adapters are trained", "frees": {"gradients": 0.98, "optimizer_state": 0.98}, "changes": "training", "unless": ["no_products", "no_blocks", "distributed"], "line": "the model is frozen; matrices of rank 8 beside the linear layers of its repeated blocks are trained"},
"qlora": {"group": "what is trained", "steps": true, "short": "adapters train, the rest in 4 bits", "frees": {"gradients": 0.98, "optimizer_state": 0.98, "weights": 0.7}, "changes": "training", "unless": ["no_products", "no_blocks", "distributed"], "line": "the same, with 4-bit weights in those layers (nf4 with double quantisation), if bitsandbytes is installed"}
}"""

import inspect

from .shared.blocks import of_lists, repeated
from .shared.four_bits import frozen_in_four_bits, in_four_bits
from .shared.optimizers import follow_optimizers
from .shared.technique import OfModel, technique


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


@technique
class LowRank(OfModel):
    def begin(self):
        if self.name == "qlora":
            self.needs("bitsandbytes")
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
            frozen = [each for each in root.modules() if type(each) is self.torch.nn.Linear and not each.weight.requires_grad]
            if self.name == "qlora" and frozen:
                # Adapters are there already.
                return frozen_in_four_bits(self, root)
            return self.refused("the script freezes parameters itself: see frozen-nf4, frozen-fp8 and frozen-offload")
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
            functions, calls, weights = [in_four_bits, add_lora], [f"in_four_bits({blocks})", *calls], "4-bit weights"
        source = "\n\n\n".join(inspect.getsource(function).strip() for function in functions)
        lines = "\n".join(calls)
        self.applied(f"{source}\n\n\n{lines}", f"trains rank-8 adapters on frozen {weights}")
