"""{
"8-bit-torchao": {"group": "update", "steps": true, "short": "moments in 8 bits", "frees": {"optimizer_state": 0.74}, "changes": "numbers", "unless": ["other_optimizer"], "compiles": true, "line": "Adam or AdamW with 8 bits for each moment, where the library is installed"},
"8-bit-bitsandbytes": {"group": "update", "steps": true, "short": "moments in 8 bits", "frees": {"optimizer_state": 0.74}, "changes": "numbers", "unless": ["other_optimizer"], "compiles": true, "line": "Adam or AdamW with 8 bits for each moment, where the library is installed"}
}"""

import importlib

from .shared.optimizers import Instead
from .shared.technique import technique


@technique
class EightBit(Instead):
    change = "stores AdamW's moments in 8 bits"
    # Whether the step is fused, for instance, is not the script's choice there.
    taken = ("lr", "betas", "eps", "weight_decay")

    def begin(self):
        self.package = self.name.removeprefix("8-bit-")
        self.needs(self.package)
        self.by_trainer = {"torchao": "adamw_torch_8bit", "bitsandbytes": "adamw_bnb_8bit"}[self.package]
        super().begin()

    def kind(self, name):
        return getattr(importlib.import_module(f"{self.package}.optim"), f"{name}8bit")

    def lines(self, name):
        return f"import {self.package}.optim\noptimizer = {self.package}.optim.{name}8bit(model.parameters(), lr=...)  # instead of {name}"
