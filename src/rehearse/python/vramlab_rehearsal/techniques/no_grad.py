"""{
"no-grad": {"short": "nothing kept for a backward pass", "frees": {"needless_graphs": 1}, "line": "forward passes of a script that trains which no backward pass follows, without the graph that one would need"}
}"""

import weakref

from .shared.technique import Technique, technique


@technique
class NoGrad(Technique):
    def begin(self):
        # Models that were trained, their parts, and their classes: a copy of averages is of the same.
        self.in_training = weakref.WeakSet()
        self.is_off = self.was_evaluation = False
        self.around_forward(self.enters, self.leaves)
        self.before_backward(self.goes_back)

    def enters(self, root):
        torch = self.torch
        # What a backward pass computes again is no pass of its own; and a loss has no parameters.
        is_again = torch._C._current_graph_task_id() != -1
        if is_again or not torch.is_grad_enabled() or not any(each.requires_grad for each in root.parameters()):
            return
        self.was_evaluation = not root.training and (root in self.in_training or type(root) in self.in_training)
        if self.was_evaluation:
            torch.set_grad_enabled(False)
            self.is_off = True
            self.applied(
                """
with torch.no_grad():  # around the evaluation; or @torch.no_grad() above its function
    outputs = model(inputs)
"""
            )
        elif root.training and root not in self.in_training:
            self.in_training.update(root.modules())
            self.in_training.add(type(root))

    def leaves(self):
        if self.is_off:
            self.is_off = False
            self.torch.set_grad_enabled(True)

    def goes_back(self):
        if self.was_evaluation:
            self.refuse("the script goes backward after a pass in which the model is set to evaluation")
