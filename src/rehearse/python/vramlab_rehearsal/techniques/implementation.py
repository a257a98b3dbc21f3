"""{
"fused": {"group": "update", "steps": true, "short": "the optimizer's implementation", "compiles": true, "line": "the optimizer's implementation"},
"foreach": {"group": "update", "steps": true, "short": "the optimizer's implementation", "compiles": true, "line": "the optimizer's implementation"},
"for-loop": {"group": "update", "steps": true, "short": "the optimizer's implementation", "compiles": true, "line": "the optimizer's implementation"}
}"""

import inspect

from ..guard import instead
from .shared.optimizers import optimizer_kinds
from .shared.technique import Technique, technique, uses_trainer


@technique
class Implementation(Technique):
    def begin(self):
        self.wanted = {"fused": (True, None), "foreach": (None, True), "for-loop": (False, False)}[self.name]
        for kind in optimizer_kinds(self.torch):
            names = inspect.signature(kind.__init__).parameters
            if "foreach" in names:
                self.choose(kind, "fused" in names)

    def choose(self, kind, has_fused):
        fused, foreach = self.wanted

        @instead("__init__", kind)
        def init(optimizer, *arguments, **more):
            asked = (more.get("fused") if has_fused else False, more.get("foreach"))
            if type(optimizer) is not kind:
                # AdamW is an Adam: what was chosen for it has been passed on.
                pass
            elif fused and not has_fused:
                self.refused(f"{kind.__name__} has no fused implementation")
            elif asked == self.wanted or (self.name == "foreach" and not any(asked) and asked != (False, False)):
                self.refused("the script does, or PyTorch by itself")
            else:
                more["foreach"] = foreach
                if has_fused:
                    more["fused"] = fused
                keywords = {"fused": "fused=True", "foreach": "foreach=True", "for-loop": "foreach=False, fused=False"}[self.name]
                if not has_fused:
                    keywords = keywords.replace(", fused=False", "")
                self.applied(
                    f'TrainingArguments(..., optim="adamw_torch_fused")'
                    if uses_trainer() and self.name == "fused"
                    else f"optimizer = torch.optim.{kind.__name__}(..., {keywords})"
                )
            init.__wrapped__(optimizer, *arguments, **more)
