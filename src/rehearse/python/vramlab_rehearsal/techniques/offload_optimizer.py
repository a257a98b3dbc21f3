"""{
"offload-optimizer": {"steps": true, "short": "optimizer state waits on the host", "frees": {"optimizer_state": 1}, "time": "host", "needs": ["host_memory"], "unless": ["no_state"], "compiles": true, "line": "the optimizer's state is kept in pinned host memory and moved to the GPU for the optimizer's step; tensors below 64 KiB stay"}
}"""

import inspect

from .shared.optimizers import follow_optimizers
from .shared.technique import Technique, technique, uses_trainer


def offload_state(optimizer, least=1 << 16):
    """Between steps an optimizer's state waits in pinned host memory; it is on the GPU while the optimizer steps."""
    import torch

    host = {}

    def large(optimizer, device):
        for parameter, state in optimizer.state.items():
            for name, value in state.items():
                if type(value) is torch.Tensor and value.nbytes >= least and value.device.type == device and parameter.is_cuda:
                    yield parameter, state, name, value

    def fetch(optimizer, *_):
        for parameter, state, name, value in large(optimizer, "cpu"):
            state[name] = value.to(parameter.device, non_blocking=True)

    def send(optimizer, *_):
        for parameter, state, name, value in large(optimizer, "cuda"):
            if (parameter, name) not in host:
                host[parameter, name] = torch.empty_like(value, device="cpu", pin_memory=True)
            state[name] = host[parameter, name].copy_(value)

    optimizer.register_step_pre_hook(fetch)
    optimizer.register_step_post_hook(send)


@technique
class OffloadOptimizer(Technique):
    def begin(self):
        self.refused("the script's optimizer keeps no state of 64 KiB or more on the GPU")
        follow_optimizers(self.torch, self.made)

    def made(self, optimizer):
        offload_state(optimizer)
        optimizer.register_step_post_hook(self.stepped)

    def stepped(self, optimizer, *_):
        values = (value for state in optimizer.state.values() for value in state.values())
        if any(isinstance(value, self.torch.Tensor) and value.is_pinned() for value in values):
            call = "trainer.create_optimizer()\noffload_state(trainer.optimizer)" if uses_trainer() else "offload_state(optimizer)"
            self.applied(f"{inspect.getsource(offload_state).strip()}\n\n\n{call}")
