"""{
"inference-mode": {"use": "inference", "short": "nothing kept for a backward pass", "frees": {"needless_graphs": 1}, "line": "forward passes of a script that never trains without the graph that a backward pass would need"}
}"""

from .shared.technique import Technique, technique


@technique
class InferenceMode(Technique):
    def begin(self):
        self.around_forward(self.first)
        self.before_backward(lambda: self.refuse("the script goes backward, which needs what forward passes keep: see no-grad"))

    def first(self, root):
        torch = self.torch
        if next(root.parameters(), None) is None:
            return
        if not torch.is_grad_enabled():
            # A later pass may have gradients: that is an evaluation which left them on.
            if self.said is None:
                self.refused("the script's forward passes are without gradients already")
            return
        torch.set_grad_enabled(False)
        self.applied(
            """
with torch.inference_mode():  # around the loop; or @torch.inference_mode() above its function
    outputs = model(inputs)
"""
        )
