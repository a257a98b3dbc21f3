"""{
"fused-linear-loss": {"group": "loss", "use": "both", "short": "logits are never stored", "frees": {"loss": 1}, "again": 0, "unless": ["few_classes", "no_cross_entropy"], "line": "the product that makes the logits (by the last linear layer or with the embedding's weight) is computed inside the loss, 512 rows at a time: the logits never exist whole"}
}"""

import sys
import types

from .. import losses
from ..guard import instead
from .shared.blocks import in_script, repeated
from .shared.cross_entropy import without_module
from .shared.technique import OfModel, rewritten, technique


@technique
class FusedLinearLoss(OfModel):
    def begin(self):
        self.embeddings = set()
        super().begin()

    def first(self, root):
        if self.said["applied"]:
            return
        kind = self.torch.nn.Linear
        inside = {module for _, _, blocks in repeated(root) for block in blocks for module in block.modules()}
        outside = [(path, module) for path, module in root.named_modules() if module not in inside and type(module) is kind]
        heads = [(path, layer) for path, layer in outside if layer.out_features >= max(8192, 2 * layer.in_features)]
        technique = self

        class Watched(losses.DeferredLogits):
            @classmethod
            def __torch_dispatch__(cls, function, types, arguments=(), more=None):
                # An evaluation that wants its logits has them, beside the loss.
                if not technique.torch.is_grad_enabled():
                    return super().__torch_dispatch__(function, types, arguments, more)
                name = getattr(function, "__name__", str(function))
                is_shape = name.split(".")[0] in ("transpose", "permute", "movedim", "unsqueeze", "squeeze", "split", "chunk")
                why = f"shapes its logits by {name}; view, reshape, flatten and slices are followed" if is_shape else f"uses its logits for more than cross-entropy: {name}"
                technique.refused(f"the script {why}")
                return super().__torch_dispatch__(function, types, arguments, more)

        functions = [losses.LinearCrossEntropy, losses.DeferredLogits]
        if heads:
            path, head = heads[-1]
            source = without_module(*functions, losses.defer_logits)
            losses.DeferredLogits = Watched
            # Where a script begins with an evaluation, the loss of that may be the largest.
            always = not self.torch.is_grad_enabled()
            losses.defer_logits(head, always)
            return self.applied(f"{source}\n\n\ndefer_logits({in_script(path)}{', always=True' * always})")
        self.refused("no linear layer gives logits over 8,192 classes or more")
        self.embeddings.update(module.weight for module in root.modules() if isinstance(module, self.torch.nn.Embedding))
        if isinstance(losses.F, types.SimpleNamespace):
            return
        functional, losses.F = losses.F, types.SimpleNamespace(**vars(losses.F))

        @instead("linear", functional)
        def linear(x, weight, bias=None):
            if weight not in self.embeddings or len(weight) < 8192 or not self.torch.is_grad_enabled():
                return losses.F.linear(x, weight, bias)
            call = rewritten(sys._getframe(1), "DeferredLogits", ("input", "weight", "bias"))
            self.applied(f"{without_module(*functions)}\n\n\n{call}")
            return Watched(x, weight, bias)
