"""Activations and the optimizer in host memory, in plain PyTorch, for experiments/offloading."""

import collections
import contextlib
import functools

import lab
import presets
import torch


class OnHost:
    """PyTorch's save_on_cpu, whose copies are counted."""

    # Bytes that went to the host, and were used on the GPU before they had left it.
    stayed = 0

    def __init__(self, pinned):
        self.kept = torch.autograd.graph.save_on_cpu(pin_memory=pinned)
        pack, self.bytes = self.kept.pack_hook, 0

        def counted(tensor):
            self.bytes += tensor.nbytes
            return pack(tensor)

        self.kept.pack_hook = counted

    def around(self, forward):
        """A function whose saved tensors wait on the host."""

        @functools.wraps(forward)
        def called(*arguments):
            with self.kept:
                return forward(*arguments)

        return called


class OnSecondStream(OnHost):
    """Copies on a stream of their own, as torchtune's OffloadActivations makes them: small tensors stay, and parameters, but not the views of them that
    linear layers save; of the others the last five of the forward pass do, until their copies are done."""

    AT_ONCE, LEAST = 5, 1024

    def __init__(self, device):
        self.device, self.bytes, self.leaving = device, 0, collections.deque()
        self.pinned = device.type == "cuda"
        self.stream = torch.cuda.Stream() if self.pinned else None
        self.kept = torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, tensor):
        if isinstance(tensor, torch.nn.Parameter) or tensor.nbytes < self.LEAST:
            return None, tensor.detach(), None
        while len(self.leaving) >= self.AT_ONCE:
            left = self.leaving.popleft()
            if self.stream:
                torch.cuda.current_stream().wait_event(left[2])
            left[1] = None
        if self.stream:
            self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            host = torch.empty_like(tensor, device="cpu", pin_memory=self.pinned).copy_(tensor, non_blocking=True)
            self.leaving.append([host, tensor.detach(), self.stream and self.stream.record_event()])
        self.bytes += tensor.nbytes
        return self.leaving[-1]

    def unpack(self, saved):
        host, tensor, _ = saved
        if tensor is not None:
            if host is not None:
                self.stayed, saved[1] = self.stayed + tensor.nbytes, None
            return tensor
        with torch.cuda.stream(self.stream):
            tensor = host.to(self.device, non_blocking=True, copy=True)
        if self.stream:
            torch.cuda.current_stream().wait_stream(self.stream)
            tensor.record_stream(torch.cuda.current_stream())
        return tensor


class HostAdamW:
    """AdamW on the CPU over copies of the parameters, as torchao's CPUOffloadOptimizer and ZeRO-Offload have it: gradients go to the host and new
    parameters come back."""

    def __init__(self, parameters):
        self.parameters = list(parameters)
        pinned = self.parameters[0].is_cuda
        self.copies = [torch.empty_like(parameter, device="cpu", pin_memory=pinned).copy_(parameter.detach()) for parameter in self.parameters]
        for copy in self.copies:
            copy.grad = torch.empty_like(copy, pin_memory=pinned)
        self.optimizer = torch.optim.AdamW(self.copies, 1e-3, fused=True)

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    def step(self):
        for parameter, copy in zip(self.parameters, self.copies):
            copy.grad.copy_(parameter.grad)
        self.optimizer.step()
        with torch.no_grad():
            for parameter, copy in zip(self.parameters, self.copies):
                parameter.copy_(copy)

    def bytes(self):
        state = [value for of in self.optimizer.state.values() for value in of.values()]
        return sum(tensor.nbytes for tensor in [*self.copies, *(copy.grad for copy in self.copies), *state])


class Training:
    def __init__(self, cell, bench):
        self.model, self.batch = presets.prepared(cell, bench.device)
        self.what, self.host = cell["offloaded"], None
        if self.what == "optimizer":
            self.optimizer = HostAdamW(self.model.parameters())
        else:
            # Not all at once, as on the host.
            self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3, foreach=False)
        if self.what == "activations-second-stream":
            self.host = OnSecondStream(bench.device)
        elif self.what.startswith("activations"):
            self.host = OnHost(pinned="pageable" not in self.what and bench.device.type == "cuda")
        if self.what == "activations-of-every-second-block":
            for block in self.model.block[::2]:
                block.forward = self.host.around(block.forward)

    def run(self, probe):
        self.optimizer.zero_grad()
        whole = self.what in ("activations", "activations-pageable", "activations-second-stream")
        if self.host:
            self.host.bytes = self.host.stayed = 0
        with self.host.kept if whole else contextlib.nullcontext():
            loss = presets.loss_of(self.model, self.batch)
        loss.backward()
        del loss
        self.optimizer.step()
        kept = self.host.bytes if self.host else 0
        if self.what == "optimizer":
            kept = self.optimizer.bytes()
        probe.figure("host", "B", kept)
        # Out and back again: activations, or gradients and parameters.
        moved = 2 * sum(map(torch.Tensor.numel, self.model.parameters())) * 4 if self.what == "optimizer" else 2 * kept - (self.host.stayed if self.host else 0)
        probe.figure("moved", "B", moved)

    def outcome(self):
        return {"parameter": [parameter.detach() for parameter in self.model.parameters()]}


if __name__ == "__main__":
    lab.main(Training)
