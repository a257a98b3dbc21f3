"""{
"zero2": {"group": "cards", "steps": true, "short": "gradients and state over cards", "time": "unknown", "needs": ["cards"], "line": "gradients and optimizer state in shards, and parameters but from their forward to their backward pass: FSDP2 with `reshard_after_forward=False`"},
"fsdp2": {"group": "cards", "steps": true, "short": "weights, state split over cards", "time": "unknown", "needs": ["cards"], "line": "parameters, gradients and optimizer state in shards"}
}"""

from .shared.blocks import of_list, repeated
from .shared.cards import OnCards
from .shared.optimizers import follow_optimizers
from .shared.technique import technique


@technique
class Sharded(OnCards):
    def begin(self):
        super().begin()
        self.optimizers = follow_optimizers(self.torch)
        self.refused("the script runs no module")
        self.at_first_forward(self.first)

    def first(self, root):
        from torch.distributed.fsdp import fully_shard

        if not any(p.requires_grad for p in root.parameters()):
            return
        if len({p.dtype for p in root.parameters()}) > 1:
            return self.refuse("the model's parameters are of several types")
        self.needs_a_call()
        self.meet()
        names = {id(p): name for name, p in root.named_parameters(remove_duplicate=False)}
        options = {"reshard_after_forward": False} if self.name == "zero2" else {}
        more = "".join(f", {name}={value}" for name, value in options.items())
        lists = repeated(root)
        for _, _, blocks in lists:
            for block in blocks:
                fully_shard(block, **options)
        fully_shard(root, **options)
        sharded = dict(root.named_parameters(remove_duplicate=False))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["params"] = [sharded[names[id(p)]] if id(p) in names else p for p in group["params"]]
        loops = "".join(f"for block in {of_list(*entry)}:\n    fully_shard(block{more})\n" for entry in lists)
        self.applied(
            f"""{self.first_lines}
from torch.distributed.fsdp import fully_shard
{loops}fully_shard(model{more})  # before the optimizer is made
""",
            self.change,
        )
