"""{
"chunked-loss": {"group": "loss", "short": "no fp32 copies of all logits", "frees": {"loss_copies": 1}, "again": 0, "unless": ["no_cross_entropy"], "line": "cross-entropy over 512 rows at a time: the logits and their gradient exist whole, but no fp32 copy of them does"}
}"""

import os
import sys

from .. import losses, reach
from .shared.cross_entropy import LARGE_LOGITS, replace_cross_entropy, without_module
from .shared.technique import Technique, rewritten, technique

# What cross-entropy has that nobody chose.
_PLAIN = {"ignore_index": -100, "reduction": "mean"}


@technique
class ChunkedLoss(Technique):
    def begin(self):
        self.refused("the script computes no cross-entropy of logits of 64 MiB or more")
        self.chunked = losses.chunked_cross_entropy
        self.source = without_module(losses.ChunkedCrossEntropy, losses.chunked_cross_entropy)
        replace_cross_entropy(self.torch, self.replaced)

    def replaced(self, given, plain):
        logits, targets = given["input"], given["target"]
        if not self.torch.is_grad_enabled() or not logits.is_cuda or logits.nbytes < LARGE_LOGITS:
            return plain()
        others = given["weight"] is not None or given["label_smoothing"] or given["reduction"] not in ("mean", "sum")
        if others or logits.dim() < 2 or targets.dim() != logits.dim() - 1:
            self.refused("the script's cross-entropy has weights, label smoothing, no reduction, or probabilities as targets")
            return plain()
        self.applied(f"{self.source}\n\n\n{self.line(given)}")
        return self.chunked(logits, targets, given["ignore_index"], given["reduction"])

    def line(self, given):
        """What calls it: the script in place of its own loss, or PyTorch where a library computes the loss."""
        frame = caller = sys._getframe(3)
        of_torch = os.path.dirname(self.torch.__file__)
        while caller.f_back is not None and caller.f_code.co_filename.startswith(of_torch):
            caller = caller.f_back
        file = caller.f_code.co_filename
        if reach.is_own(file):
            own = {} if frame is caller else {name: given[name] for name, plain in _PLAIN.items() if given[name] != plain}
            return rewritten(caller, "chunked_cross_entropy", ("input", "target"), _PLAIN, ("weight", "label_smoothing"), **own)
        at = f"{file.split('-packages/')[-1]}:{caller.f_lineno}"
        if frame is not caller:
            call = "chunked_cross_entropy(input, target, self.ignore_index, self.reduction)"
            return f"torch.nn.CrossEntropyLoss.forward = lambda self, input, target: {call}  # for {at}"
        return (
            f"plain_cross_entropy = F.cross_entropy\n\n\ndef cross_entropy(*arguments, **more):  # for {at}\n"
            "    # The chunks themselves are computed without gradients.\n"
            "    chosen = chunked_cross_entropy if torch.is_grad_enabled() else plain_cross_entropy\n"
            "    return chosen(*arguments, **more)\n\n\nF.cross_entropy = cross_entropy"
        )
