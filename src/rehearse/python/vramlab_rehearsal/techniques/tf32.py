"""{
"tf32": {"short": "products in TF32", "changes": "rounding", "line": "fp32 matrix products in TF32, on a card that has it"}
}"""

from .shared.technique import OfModel, technique


@technique
class Tf32(OfModel):
    def first(self, root):
        torch = self.torch
        if torch.get_float32_matmul_precision() != "highest":
            return self.refused("the script does")
        if torch.cuda.get_device_capability()[0] < 8:
            return self.refused("the card has no TF32")
        if torch.is_autocast_enabled("cuda") or all(p.dtype != torch.float32 for p in root.parameters()):
            return self.refused("the script's matrix products are in half precision")
        torch.set_float32_matmul_precision("high")
        self.applied('torch.set_float32_matmul_precision("high")', "factors of matrix products with 10 bits of mantissa")
