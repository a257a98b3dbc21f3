"""zero-grad-to-none (gradients): gradients are dropped instead of filled with zeros"""

import functools

from .shared.technique import Technique, technique


@technique
class ToNone(Technique):
    def begin(self):
        self.refused("the script does, as PyTorch does by itself")
        for kind in (self.torch.optim.Optimizer, self.torch.nn.Module):
            original = kind.zero_grad

            @functools.wraps(original)
            def zero_grad(self_, set_to_none=True, original=original):
                if not set_to_none:
                    self.applied("optimizer.zero_grad(set_to_none=True)", "")
                return original(self_, set_to_none=True)

            kind.zero_grad = zero_grad
