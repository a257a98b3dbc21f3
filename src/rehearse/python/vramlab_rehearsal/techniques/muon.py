"""{
"muon": {"group": "update", "steps": true, "short": "one moment for matrices", "frees": {"optimizer_state": 0.4}, "changes": "training", "unless": ["other_optimizer"], "compiles": true, "line": "the matrices of the model's repeated blocks with Muon, the others with the script's Adam or AdamW, where PyTorch has it (2.9 on)"}
}"""

from .shared.blocks import of_lists, repeated
from .shared.optimizers import follow_optimizers, when_scaler_is_made
from .shared.technique import OfModel, technique, uses_trainer


@technique
class Muon(OfModel):
    nothing = "the script makes no Adam or AdamW"

    def begin(self):
        if not hasattr(self.torch.optim, "Muon"):
            self.refuse("PyTorch has Muon from 2.9 on")
        self.optimizers = follow_optimizers(self.torch)
        when_scaler_is_made(self.torch, lambda _: self.refuse("the script scales its loss, and would unscale one optimizer's gradients of two"))
        super().begin()

    def first(self, root):
        if uses_trainer():
            return self.refuse("a Trainer steps one optimizer")
        optim, lists = self.torch.optim, repeated(root)
        matrices = {p for _, _, blocks in lists for block in blocks for p in block.parameters() if p.ndim == 2 and p.requires_grad}
        for optimizer in [optimizer for optimizer in self.optimizers if type(optimizer) in (optim.Adam, optim.AdamW)]:
            groups = []
            for group in optimizer.param_groups:
                groups.append({"params": [p for p in group["params"] if p in matrices], "weight_decay": group["weight_decay"]})
                group["params"] = [p for p in group["params"] if p not in matrices]
            if not any(group["params"] for group in groups):
                self.refused("the script's Adam or AdamW has no matrices of repeated blocks of the model")
                continue
            self.beside(optimizer, optim.Muon(groups, lr=optimizer.param_groups[0]["lr"]))
            name = type(optimizer).__name__
            self.applied(
                f"""
matrices = [p for block in {of_lists(lists)} for p in block.parameters() if p.ndim == 2]
muon = torch.optim.Muon(matrices, lr=...)  # another learning rate than {name}'s
optimizer = torch.optim.{name}([p for p in model.parameters() if all(p is not matrix for matrix in matrices)], lr=...)
# in the loop, after the optimizer's own: muon.step() and muon.zero_grad()
""",
                "Muon for the blocks' weight matrices: one momentum buffer, orthogonalised updates",
            )

    def beside(self, optimizer, muon):
        # Without the hooks that count the script's own steps.
        update = getattr(type(muon).step, "__wrapped__", type(muon).step)
        optimizer.register_step_post_hook(lambda *_: update(muon))
        zero_grad = optimizer.zero_grad

        def both(*arguments, **more):
            zero_grad(*arguments, **more)
            muon.zero_grad(*arguments, **more)

        optimizer.zero_grad = both
