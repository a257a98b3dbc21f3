"""{
"half-precision": {"group": "inference precision", "use": "inference", "short": "weights, activations in 16 bits", "frees": {"weights": 0.5, "activations": 0.5}, "time": "half", "changes": "rounding", "unless": ["half_weights"], "line": "weights and inputs of a script that never trains in bfloat16, or float16 on a card without it"}
}"""

from .shared.technique import OfModel, narrow, technique


@technique
class HalfPrecision(OfModel):
    nothing = "no model with parameters came by"

    def begin(self):
        super().begin()
        self.before_backward(lambda: self.refuse("the script goes back through a model: see autocast and bf16-weights"))

    def first(self, root):
        torch = self.torch
        wide = [each for each in root.parameters() if each.dtype == torch.float32]
        if not wide:
            return self.refused("its weights are in half precision already")
        name = "bfloat16" if torch.cuda.get_device_capability()[0] >= 8 else "float16"
        narrow(root, getattr(torch, name))
        self.applied(
            f"""
model = model.to(torch.{name})
inputs = inputs.to(torch.{name})  # in the loop, where they are no whole numbers
""",
            change=f"weights and results in {name}",
        )
