"""{
"offload-activations": {"short": "activations wait on the host", "frees": {"large_activations": 0.9}, "time": "host", "needs": ["host_memory"], "unless": ["captured_graphs"], "compiles": true, "line": "what the forward pass keeps is copied to pinned host memory on a second stream, while the GPU computes; parameters and tensors below 1 MiB stay"}
}"""

import inspect

from .. import calls, passes
from .shared.technique import Region, technique


class OffloadActivations:
    """What the forward pass keeps for the backward pass waits in pinned host memory; parameters and small tensors stay. Copies have a stream of
    their own, and at most so many of them are under way at once. What several operations keep, as q, k and v their input, is copied once."""

    def __init__(self, least=1 << 20, at_once=5):
        import collections
        import weakref

        import torch
        from torch.multiprocessing.reductions import StorageWeakRef

        stream, leaving, coming = torch.cuda.Stream(), collections.deque(), collections.deque()
        hosts, back = weakref.WeakValueDictionary(), []

        def left():
            # From here on what comes next on the GPU may write over the tensor.
            torch.cuda.current_stream().wait_event(leaving.popleft()[0])

        def pack(tensor):
            base = tensor if tensor._base is None else tensor._base
            if not tensor.is_cuda or isinstance(base, torch.nn.Parameter) or tensor.nbytes < least:
                return tensor
            back.clear()
            storage, lies = StorageWeakRef(tensor.untyped_storage()), (tensor.shape, tensor.stride(), tensor._is_view())
            of = storage.cdata, tensor.storage_offset(), tensor.dtype, tensor._version, *lies
            host = hosts.get(of)
            if host is None:
                if len(leaving) == at_once:
                    left()
                host = hosts[of] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                # No other storage has this one's address as long as something refers to it.
                host.of = storage
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    host.copy_(tensor, non_blocking=True)
                leaving.append((stream.record_event(), tensor.detach()))
            # A view comes back without its gaps. The parts that torch.compile keeps are no views for PyTorch, and must lie as they lay.
            return host, host.stride() if tensor._is_view() else tensor.stride(), tensor.device

        def unpack(kept):
            if isinstance(kept, torch.Tensor):
                return kept
            host, stride, device = kept
            if back and back[0] is host:
                return back[1]
            while leaving:
                left()
            if len(coming) == at_once:
                # Else a host that runs ahead of the GPU would have all of them come back at once.
                coming.popleft().synchronize()
            with torch.cuda.stream(stream):
                tensor = torch.empty_strided(host.shape, stride, dtype=host.dtype, device=device).copy_(host, non_blocking=True)
            compute = torch.cuda.current_stream()
            compute.wait_stream(stream)
            tensor.record_stream(compute)
            coming.append(compute.record_event())
            back[:] = host, tensor
            return tensor

        self.hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    def __enter__(self):
        self.hooks.__enter__()

    def __exit__(self, *exception):
        self.hooks.__exit__(*exception)


@technique
class Offload(Region):
    def enters(self, root):
        if self.torch.cuda.is_current_stream_capturing():
            self.refuse("a CUDA graph is captured, and its copies cannot wait for each other on the host")
        super().enters(root)

    def make(self):
        return OffloadActivations()

    def first(self, root):
        if not passes.keeps_graph(root, calls.given):
            return False
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
