"""offload-activations (offloading): what the forward pass keeps is moved to pinned host memory; parameters and tensors below 1 MiB stay"""

import inspect

from .shared.technique import Region, technique


class OffloadActivations:
    """What the forward pass keeps for the backward pass waits in pinned host memory; parameters and small tensors stay."""

    def __init__(self, least=1 << 20):
        import torch

        def pack(tensor):
            base = tensor if tensor._base is None else tensor._base
            if not tensor.is_cuda or isinstance(base, torch.nn.Parameter) or tensor.nbytes < least:
                return tensor
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
            # A view comes back without its gaps. The parts that torch.compile keeps are no views for PyTorch, and must lie as they lay.
            return host, host.stride() if tensor._is_view() else tensor.stride(), tensor.device

        def unpack(kept):
            if isinstance(kept, torch.Tensor):
                return kept
            host, stride, device = kept
            return torch.empty_strided(host.shape, stride, dtype=host.dtype, device=device).copy_(host, non_blocking=True)

        self.hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    def __enter__(self):
        self.hooks.__enter__()

    def __exit__(self, *exception):
        self.hooks.__exit__(*exception)


@technique
class Offload(Region):
    def make(self):
        return OffloadActivations()

    def first(self, root):
        if any(p.requires_grad for p in root.parameters()):
            source = inspect.getsource(OffloadActivations).strip()
            self.applied(
                f"""
{source}


with OffloadActivations():
    output = model(inputs)
    loss = criterion(output, targets)
loss.backward()
"""
            )
