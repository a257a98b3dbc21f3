"""PyTorch's DistributedDataParallel in one process, and accumulation in several, for experiments/ddp_buckets.

Bytes are counted without collectives, which would ask a simulated GPU for values: the mean over one rank leaves a bucket as it is. Checked and timed
cells take Gloo or NCCL.
"""

import collections
import contextlib
import gc
import multiprocessing

import lab
import presets
import torch
import torch.distributed as distributed
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

OPTIMIZERS = {"sgd": lambda parameters: torch.optim.SGD(parameters, 1e-2, foreach=False), "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-4)}


def left_as_it_is(sent, bucket):
    """The mean over one rank."""
    sent["bytes"] += bucket.buffer().nbytes
    done = torch.futures.Future(devices=[bucket.buffer().device] if bucket.buffer().is_cuda else [])
    done.set_result(bucket.buffer())
    return done


class Echo(TorchDispatchMode):
    """Gives back what was copied to the GPU: the reducer sends the order of its new buckets there and relies on what it reads, and a simulated GPU holds
    no values."""

    def __init__(self):
        super().__init__()
        self.sent = {}

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        result = operator(*arguments, **(options or {}))
        if operator is torch.ops.aten.copy_.default:
            to, source = arguments[:2]
            if to.is_cuda and not source.is_cuda:
                self.sent[to.data_ptr()] = source.clone()
            elif source.is_cuda and source.data_ptr() in self.sent:
                operator(to, self.sent[source.data_ptr()])
        return result


class Training:
    """A model that trains, with or without DDP. `reached` is called with each phase's name when it ends."""

    def __init__(self, cell, bench, way, optimizer, reached=lambda moment: None, backend="fake"):
        if way != "none" and not distributed.is_initialized():
            distributed.init_process_group(backend, store=FakeStore() if backend == "fake" else distributed.HashStore(), rank=0, world_size=1)
        # The same parameters and data, however often a cell trains.
        torch.manual_seed(bench.seed)
        self.model, self.batch = presets.prepared(cell, bench.device)
        self.network, self.iteration, self.reached = self.model, 0, reached
        # By itself: a hook that kept the training would keep it for good.
        self.sent = collections.Counter()
        self.keeps_gradients = cell.get("zero-grad") == "zeros"
        self.model.register_forward_pre_hook(lambda *_: self.ended("rebuilt"))
        if way != "none":
            self.network = DistributedDataParallel(self.model, bucket_cap_mb=cell.number("cap"), gradient_as_bucket_view=way == "views", init_sync=backend != "fake")
            if backend == "fake":
                self.network.register_comm_hook(self.sent, left_as_it_is)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        reached("load")

    def ended(self, phase):
        self.reached(f"{self.iteration}-{phase}")

    def iterate(self, micro_batches=1, reduces=lambda index: True):
        self.iteration += 1
        self.optimizer.zero_grad(set_to_none=not self.keeps_gradients)
        for index, part in enumerate(zip(*(tensor.chunk(micro_batches) for tensor in self.batch))):
            if isinstance(self.network, DistributedDataParallel):
                # As its forward pass would begin.
                with Echo():
                    self.network.reducer._rebuild_buckets()
            with contextlib.nullcontext() if reduces(index) else self.network.no_sync():
                loss = presets.loss_of(self.network, part)
                if micro_batches > 1:
                    loss = loss / micro_batches
                self.ended("forward")
                loss.backward()
                del loss
        self.ended("backward")
        self.optimizer.step()

    def gradient_bytes(self):
        return sum(parameter.nbytes for parameter in self.model.parameters() if parameter.requires_grad)


class Moments:
    """What lives at a moment of three iterations, beyond the same training without DDP."""

    def __init__(self, cell, bench):
        self.cell, self.bench = cell, bench

    def live_at(self, way, probe):
        # Modules hold each other in circles.
        gc.collect()
        before, found = probe.live(), []
        training = Training(self.cell, self.bench, way, "sgd", lambda moment: moment == self.cell["moment"] and found.append(probe.live() - before))
        for _ in range(3):
            training.iterate()
        return found[0], training.gradient_bytes()

    def run(self, probe):
        way = self.cell["ddp"]
        plain = None if way == "none" else self.live_at("none", probe)[0]
        gc.collect()
        probe.reset_peaks()
        live, gradients = self.live_at(way, probe)
        probe.figure("live", "B", live)
        if plain is not None:
            probe.figure("extra", "1", (live - plain) / gradients)


class Peaks:
    """Peak of the third iteration, and by what views lower it."""

    def __init__(self, cell, bench):
        self.cell, self.bench = cell, bench

    def peak(self, way, probe):
        gc.collect()
        training = Training(self.cell, self.bench, way, "adamw")
        training.iterate()
        training.iterate()
        probe.reset_peaks()
        training.iterate()
        return probe.peak(), training.gradient_bytes()

    def run(self, probe):
        way = self.cell["ddp"]
        copies = None if way == "copies" else self.peak("copies", probe)[0]
        peak, gradients = self.peak(way, probe)
        if copies is not None:
            probe.figure("saved", "1", (copies - peak) / gradients)


class Price:
    """A training step whose buckets have been built anew."""

    def __init__(self, cell, bench):
        backend = "nccl" if bench.device.type == "cuda" else "gloo"
        self.training = Training(cell, bench, cell["ddp"], "adamw", backend=backend)
        self.training.iterate()
        self.training.iterate()

    def run(self, probe):
        self.training.iterate()

    def outcome(self):
        return {"gradient": [parameter.grad for parameter in self.training.model.parameters()]}


class Accumulated:
    """A step of several micro-batches, of which each backward pass reduces the gradients, or the last alone."""

    MICRO_BATCHES = 4

    def __init__(self, cell, bench, backend="fake"):
        self.training, self.reduced = Training(cell, bench, cell["ddp"], "adamw", backend=backend), cell["reduced"]

    def reduces(self, index):
        return self.reduced == "every" or index == self.MICRO_BATCHES - 1

    def run(self, probe):
        before = self.training.sent["bytes"]
        self.training.iterate(self.MICRO_BATCHES, self.reduces)
        probe.figure("sent", "1", (self.training.sent["bytes"] - before) / self.training.gradient_bytes())


class Together(Accumulated):
    """The same in several processes over Gloo. The first starts the others, whose targets are others, and they take part in its steps until it is gone."""

    def __init__(self, cell, bench, rank=0, port=0):
        processes = cell.number("processes")
        store = distributed.TCPStore("127.0.0.1", port, processes, is_master=rank == 0, wait_for_workers=False)
        for other in range(1, processes) if rank == 0 else ():
            # Not a copy: OpenMP's threads do not survive one.
            multiprocessing.get_context("spawn").Process(target=accompany, args=(cell, bench, other, store.port), daemon=True).start()
        torch.set_num_threads(bench.threads)
        if distributed.is_initialized():
            distributed.destroy_process_group()
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=processes)
        super().__init__(cell, bench, "gloo")
        inputs, targets = self.training.batch
        self.training.batch = inputs, targets.roll(rank, 0)

    def outcome(self):
        return {"gradient": [parameter.grad for parameter in self.training.model.parameters()]}


def accompany(cell, bench, rank, port):
    step = Together(cell, bench, rank, port)
    # The first process's end closes the connection.
    with contextlib.suppress(RuntimeError):
        while True:
            step.run(lab.Probe())


def prepare(cell, bench):
    if "reduced" in cell:
        return (Together if "processes" in cell else Accumulated)(cell, bench)
    return (Moments if "moment" in cell else Peaks if "zero-grad" in cell else Price)(cell, bench)


if __name__ == "__main__":
    lab.main(prepare)
