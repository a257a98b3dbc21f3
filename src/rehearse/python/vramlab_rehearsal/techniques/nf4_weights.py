"""{
"nf4-weights": {"group": "inference precision", "use": "inference", "short": "weights in 4 bits", "frees": {"weights": 0.7}, "time": "unknown", "changes": "rounding", "line": "weights of the linear layers in repeated blocks in 4 bits (nf4), where bitsandbytes is installed"}
}"""

import inspect

from .shared.blocks import of_lists, repeated
from .shared.four_bits import in_four_bits
from .shared.technique import OfModel, technique


@technique
class FourBits(OfModel):
    nothing = "no model with parameters came by"

    def begin(self):
        self.needs("bitsandbytes")
        super().begin()
        self.before_backward(lambda: self.refuse("the script goes back through a model: see qlora"))

    def first(self, root):
        linear = self.torch.nn.Linear
        lists = [entry for entry in repeated(root) if any(type(module) is linear for block in entry[2] for module in block.modules())]
        if not lists:
            return self.refused("no linear layers in repeated blocks of the model")
        in_four_bits([block for _, _, blocks in lists for block in blocks])
        source = inspect.getsource(in_four_bits).strip()
        self.applied(f"{source}\n\n\nin_four_bits({of_lists(lists)})", "weights rounded to 4 bits")
