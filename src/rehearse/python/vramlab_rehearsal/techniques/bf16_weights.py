"""{
"bf16-weights": {"against": "weights", "short": "weights, gradients, state in bf16", "frees": {"weights": 0.5, "gradients": 0.5, "optimizer_state": 0.5, "fp32_activations": 0.5, "fp32_loss": 0.5}, "changes": "numbers", "unless": ["half_weights"], "line": "weights, gradients and optimizer state in bfloat16"}
}"""

from .shared.optimizers import is_there
from .shared.technique import OfModel, narrow, technique


@technique
class HalfWeights(OfModel):
    def first(self, root):
        torch = self.torch
        if any(p.dtype in (torch.float16, torch.bfloat16) for p in root.parameters()):
            return self.refused("the model's parameters are in half precision already")
        narrow(root, torch.bfloat16)
        before, change = "", "weights and gradients in bfloat16"
        if is_there(torch):
            before = "  # before the optimizer is made"
            change = "weights and optimizer state in bfloat16: updates smaller than 1/512 to 1/256 of a weight are rounded away"
        self.applied(
            f"""
model = model.to(torch.bfloat16){before}
inputs = inputs.to(torch.bfloat16)  # in the loop, where they are floating-point
""",
            change,
        )
