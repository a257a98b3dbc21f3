"""{
"compile": {"against": "activations", "group": "compiling", "use": "both", "short": "fused kernels keep less", "time": "unknown", "needs": ["compiler"], "unless": ["compiled"], "line": "`torch.compile` of the model"},
"memory-budget": {"against": "activations", "group": "compiling", "short": "half of what fused kernels keep", "time": "unknown", "needs": ["compiler"], "again": 0.5, "line": "`torch.compile` of the model, with half of the activations that the compiled model would keep by default"}
}"""

from .. import compiling
from ..session import settings
from .shared.technique import Technique, technique, uses_trainer


@technique
class Compile(Technique):
    def begin(self):
        self.refused("the script runs no module but what it compiles itself")
        if settings.eager:
            self.refuse("--eager turns torch.compile off")
        self.needs("triton", ", in which torch.compile writes its kernels,")
        compiling.when_it_fails.append(lambda why: self.refused(f"torch.compile fails: {why}"))
        self.at_first_forward(self.first)

    def first(self, root):
        from torch._dynamo import OptimizedModule

        if any(isinstance(module, OptimizedModule) or module._compiled_call_impl is not None for module in root.modules()):
            return self.refused("the script compiles the model itself")
        self.needs_a_call()
        if not any(p.requires_grad for p in root.parameters()):
            return
        lines = "TrainingArguments(..., torch_compile=True)" if uses_trainer() else "model.compile()"
        if self.name == "memory-budget":
            import torch._functorch.config

            torch._functorch.config.activation_memory_budget = 0.5
            lines = f"import torch._functorch.config\ntorch._functorch.config.activation_memory_budget = 0.5\n{lines}"
        root.compile()
        self.applied(lines)
