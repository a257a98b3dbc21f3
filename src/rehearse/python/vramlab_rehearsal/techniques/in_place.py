"""{
"in-place": {"against": "activations", "short": "activations written in place", "line": "activation modules whose backward pass needs only their result"}
}"""

from .shared.technique import OfModel, technique


@technique
class InPlace(OfModel):
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
