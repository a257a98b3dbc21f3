"""Linear layers whose weights take 4 bits each, as bitsandbytes has them."""

import inspect


def in_four_bits(blocks, frozen=False):
    """The weights of the linear layers in blocks, or of those that are frozen, take 4 bits each: nf4, the scales quantised once more."""
    import torch
    from bitsandbytes.nn import Linear4bit, Params4bit

    for parent in [module for block in blocks for module in block.modules()]:
        for name, layer in list(parent.named_children()):
            if type(layer) is torch.nn.Linear and not (frozen and layer.weight.requires_grad):
                linear = Linear4bit(layer.in_features, layer.out_features, bias=False, quant_type="nf4", device="meta")
                weight = Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4", module=linear)
                # It is quantised on its way to the GPU, even from there.
                linear.weight, linear.bias = weight.to("cuda"), layer.bias
                setattr(parent, name, linear)


def frozen_in_four_bits(said, root):
    """Of a model that trains adapters, or has a frozen tower: its frozen linear layers in 4 bits."""
    in_four_bits([root], frozen=True)
    said.applied(f"{inspect.getsource(in_four_bits).strip()}\n\n\nin_four_bits([model], frozen=True)", "frozen weights rounded to 4 bits")
