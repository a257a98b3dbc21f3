"""accumulate: what the command's own flags for its batch change in the result"""

from .shared.cross_entropy import replace_cross_entropy
from .shared.technique import Technique, technique


@technique
class Accumulate(Technique):
    def begin(self):
        self.changes = []
        self.applied("")
        self.at_first_forward(self.first)
        self.follow_targets()

    def changes_too(self, what):
        self.changes.append(what)
        self.applied("", " and ".join(self.changes))

    def first(self, root):
        batch_norm = self.torch.nn.modules.batchnorm._BatchNorm
        if not self.changes and any(isinstance(module, batch_norm) and module.training for module in root.modules()):
            self.changes_too("BatchNorm sees the smaller batch")

    def follow_targets(self):
        """A mean over more targets in one batch than in another weighs them differently."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        torch, counts = self.torch, set()

        def counted(given, plain):
            target = given["target"]
            if given["reduction"] == "mean" and torch.is_grad_enabled() and not target.is_floating_point():
                # Counted on the CPU, where it asks nothing of the GPU's memory.
                known = counts.copy()
                counts.add(int((target.detach().cpu() != given["ignore_index"]).sum()))
                if known and len(counts) == 2 and counts != known:
                    self.changes_too("targets weigh by how many others their batch has")
            return plain()

        # One step tells, and a clock may run in the others.
        register_optimizer_step_post_hook(replace_cross_entropy(torch, counted))
