"""{
"zero-grad-to-none": {"steps": true, "short": "gradients dropped, not zeroed", "compiles": true, "line": "gradients are dropped instead of filled with zeros"}
}"""

from ..guard import instead
from .shared.technique import Technique, technique


@technique
class ToNone(Technique):
    def begin(self):
        self.refused("the script does, as PyTorch does by itself")
        self.drop(self.torch.optim.Optimizer)
        self.drop(self.torch.nn.Module)

    def drop(self, kind):
        @instead("zero_grad", kind)
        def zero_grad(owner, set_to_none=True):
            if not set_to_none:
                self.applied("optimizer.zero_grad(set_to_none=True)")
            return zero_grad.__wrapped__(owner, set_to_none=True)
