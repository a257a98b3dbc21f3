"""{
"factored": {"group": "update", "steps": true, "short": "Adafactor's state is small", "frees": {"optimizer_state": 0.97}, "changes": "training", "unless": ["other_optimizer"], "compiles": true, "line": "Adafactor instead of Adam or AdamW"}
}"""

from .shared.optimizers import Instead
from .shared.technique import technique


@technique
class Factored(Instead):
    change = "Adafactor: no first moment, a factored second one"
    taken = ("lr", "weight_decay")
    by_trainer = "adafactor"

    def kind(self, name):
        return self.torch.optim.Adafactor

    def lines(self, name):
        return f"optimizer = torch.optim.Adafactor(model.parameters(), lr=...)  # instead of {name}; its learning rate is another one"
