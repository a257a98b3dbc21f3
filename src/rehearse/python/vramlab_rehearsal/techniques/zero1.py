"""{
"zero1": {"group": "cards", "steps": true, "short": "optimizer state over cards", "time": "unknown", "needs": ["cards"], "line": "optimizer state in shards over `--cards N` cards (2), each with a batch of this size: `ZeroRedundancyOptimizer` beside `DistributedDataParallel`"}
}"""

import inspect

from ..guard import instead
from .shared.cards import OnCards
from .shared.optimizers import optimizer_kinds
from .shared.technique import technique


@technique
class ShardedState(OnCards):
    def begin(self):
        super().begin()
        self.refused("the script makes no optimizer of PyTorch's")
        self.kinds = []
        for kind in optimizer_kinds(self.torch):
            self.swap(kind)
        self.at_first_forward(self.replicate)

    def swap(self, kind):
        signature = inspect.signature(kind.__init__)

        @instead("__init__", kind)
        def init(optimizer, *arguments, **more):
            if type(optimizer) is not kind:
                return init.__wrapped__(optimizer, *arguments, **more)
            # Each card's own, for its shard, is made as the script makes it.
            kind.__init__ = init.__wrapped__
            if not self.kinds:
                self.meet()
            self.kinds.append(kind.__name__)
            from torch.distributed.optim import ZeroRedundancyOptimizer

            _, (_, parameters), *options = signature.bind(optimizer, *arguments, **more).arguments.items()
            optimizer.__class__ = ZeroRedundancyOptimizer
            optimizer.__init__(parameters, kind, **dict(options))
            kind.__init__ = init

    def replicate(self, root):
        """Gradients are averaged as DistributedDataParallel does it, with the script's module at its heart and in its place."""
        if not self.kinds or not any(p.requires_grad for p in root.parameters()):
            return
        replica = self.torch.nn.parallel.DistributedDataParallel(root, gradient_as_bucket_view=True)
        plain, inside = root.forward, False

        def forward(*arguments, **more):
            nonlocal inside
            if inside:
                return plain(*arguments, **more)
            inside = True
            try:
                return replica(*arguments, **more)
            finally:
                inside = False

        root.forward = forward
        self.applied(
            f"""{self.first_lines}
from torch.distributed.optim import ZeroRedundancyOptimizer
model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.{self.kinds[0]}, ...)  # instead of {self.kinds[0]}
""",
            self.change,
        )
