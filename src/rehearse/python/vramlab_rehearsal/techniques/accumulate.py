"""{
"accumulate": {"steps": true, "short": "half of the batch, twice a step", "frees": {"activations": 0.5, "loss": 0.5}, "needs": ["flags"], "compiles": true, "line": "the same effective batch in more, smaller ones, by the command's own flags: 2, 4 or 8 times as many"},
"batch": {"use": "inference", "short": "a smaller batch", "needs": ["flags"], "line": "a smaller batch"}
}"""

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
