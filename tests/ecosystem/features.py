"""Small training scripts, each around one thing of PyTorch's that scripts do. versions.py rehearses each: `python features.py NAME`."""

import dataclasses
import sys

STEPS = 4


@dataclasses.dataclass
class Feature:
    """How a script is rehearsed. `{python}` and `{script}` stand in `command`, which is `python features.py NAME` where it is empty."""

    title: str
    flags: list = dataclasses.field(default_factory=list)
    command: str = ""
    environment: dict = dataclasses.field(default_factory=dict)
    # What the answer must say.
    says: str = ""


FEATURES = {}


def feature(title, **more):
    def add(function):
        FEATURES[function.__name__] = (Feature(title, **more), function)
        return function

    return add


RANK = ["--world-size", "4", "--rank", "1"]


# ---- what the scripts share --------------------------------------------------------------------------------------------------------------


def block(width=512):
    from torch import nn

    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def network(width=512, depth=4):
    from torch import nn

    return nn.Sequential(*(block(width) for _ in range(depth)))


def batches(count=STEPS, width=512, **more):
    import torch

    samples = torch.utils.data.TensorDataset(torch.randn(32 * count, width), torch.randn(32 * count, width))
    return torch.utils.data.DataLoader(samples, batch_size=32, **more)


def train(model, data=None, optimizer=None):
    import torch

    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    for x, y in data or batches():
        loss = torch.nn.functional.mse_loss(model(x.cuda()).float(), y.cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def in_group():
    import torch

    torch.distributed.init_process_group("nccl")
    torch.cuda.set_device(0)


# ---- PyTorch -----------------------------------------------------------------------------------------------------------------------------


@feature("a plain loop")
def plain():
    train(network().cuda())


@feature("fp16 autocast, GradScaler, gradient clipping")
def grad_scaler():
    import torch

    model = network().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", growth_interval=2)
    for x, y in batches():
        with torch.autocast("cuda", torch.float16):
            loss = torch.nn.functional.mse_loss(model(x.cuda()), y.cuda())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.get_scale() >= 65536, "a healthy run's scale does not shrink"


@feature("activation checkpointing, both kinds")
def checkpoint():
    import torch
    from torch.utils.checkpoint import checkpoint

    model = network(depth=8).cuda()
    peaks = []
    for reentrant in (None, True, False):
        torch.cuda.reset_peak_memory_stats()
        x = torch.randn(1 << 14, 512, device="cuda", requires_grad=True)
        for part in model:
            x = part(x) if reentrant is None else checkpoint(part, x, use_reentrant=reentrant)
        x.sum().backward()
        peaks.append(torch.cuda.max_memory_allocated())
    assert max(peaks[1:]) < 0.5 * peaks[0], peaks


@feature("torch.compile")
def compile():
    import torch

    model = torch.compile(network().cuda(), mode="max-autotune")
    loss_of = torch.compile(torch.nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in batches():
        loss_of(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()


@feature("CUDA graphs: captured whole, and make_graphed_callables", says="CUDA graphs")
def graphs():
    import torch

    model = network().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    x, y = torch.randn(32, 512, device="cuda"), torch.randn(32, 512, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for data, target in batches():
        x.copy_(data)
        y.copy_(target)
        graph.replay()
    graphed = torch.cuda.make_graphed_callables(network().cuda(), (x,))
    train(graphed)


@feature("DataLoader with worker processes and pinned memory")
def loader():
    train(network().cuda(), batches(num_workers=2, pin_memory=True, persistent_workers=True, prefetch_factor=2))


@feature("streams, events, record_stream, prefetching")
def streams():
    import torch

    model, copies = network().cuda(), torch.cuda.Stream()
    optimizer = torch.optim.AdamW(model.parameters())
    begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for x, y in batches(pin_memory=True):
        begun.record()
        with torch.cuda.stream(copies):
            x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        torch.cuda.current_stream().wait_stream(copies)
        for tensor in (x, y):
            tensor.record_stream(torch.cuda.current_stream())
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        ended.record()
        torch.cuda.synchronize()
        assert begun.elapsed_time(ended) > 0


@feature("mem_get_info, memory statistics, set_per_process_memory_fraction")
def statistics():
    import torch

    free, total = torch.cuda.mem_get_info()
    assert total == torch.cuda.get_device_properties(0).total_memory and 0 < free < total
    torch.cuda.set_per_process_memory_fraction(0.5)
    try:
        torch.empty(int(0.6 * total), dtype=torch.uint8, device="cuda")
        raise AssertionError("more than half of the card was to be had")
    except torch.OutOfMemoryError:
        pass
    train(network().cuda())
    torch.cuda.empty_cache()
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == torch.cuda.max_memory_allocated()
    assert "CUDA memory summary" in torch.cuda.memory_summary()
    assert torch.cuda.memory_snapshot()
    torch.cuda.memory._record_memory_history()


def _with_settings(title, settings):
    name = settings.split(":")[0]

    def run():
        train(network().cuda())

    run.__name__ = name
    feature(title, environment={"PYTORCH_ALLOC_CONF": settings, "PYTORCH_CUDA_ALLOC_CONF": settings})(run)


_with_settings("allocator: expandable segments", "expandable_segments:True")
_with_settings("allocator: max_split_size_mb, garbage collection", "max_split_size_mb:64,garbage_collection_threshold:0.8")
_with_settings("allocator: roundup_power2_divisions", "roundup_power2_divisions:4")


@feature("a Triton kernel of one's own, autotuned", says="Triton kernels were not launched")
def triton():
    import torch
    import triton
    import triton.language as tl

    @triton.autotune([triton.Config({"BLOCK": 1024}), triton.Config({"BLOCK": 2048})], key=["n"])
    @triton.jit
    def double(x, y, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

    @triton.jit
    def fill(y, n, value, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, value, mask=at < n)

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            y = torch.empty_like(x)
            double[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
            fill[(1,)](y, x.numel(), 1.0, BLOCK=128)
            return y

        @staticmethod
        def backward(_, gradient):
            return Double.apply(gradient)

    model = network().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in batches():
        torch.nn.functional.mse_loss(Double.apply(model(x.cuda())), y.cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()


@feature("attention: flash, memory-efficient, flex, with masks")
def attention():
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v = (torch.randn(2, 8, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    mask = torch.ones(256, 256, dtype=torch.bool, device="cuda").tril()
    scaled_dot_product_attention(q, k, v, attn_mask=mask).sum().backward()
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH):
        with sdpa_kernel(backend):
            scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()


@feature("recurrent networks, embedding bags, CTC, FFT, linear algebra")
def others():
    import torch
    from torch import nn

    # Lengths of sequences decide on memory.
    torch.manual_seed(0)
    model = nn.LSTM(128, 256, num_layers=2, batch_first=True).cuda()
    bag = nn.EmbeddingBag(1000, 128, mode="sum").cuda()
    optimizer = torch.optim.AdamW([*model.parameters(), *bag.parameters()])
    for _ in range(STEPS):
        x = bag(torch.randint(1000, (32 * 20, 5), device="cuda")).view(32, 20, 128)
        y, _ = model(x)
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.randint(1, 20, (32,)), batch_first=True, enforce_sorted=False)
        z, _ = nn.utils.rnn.pad_packed_sequence(model(packed)[0], batch_first=True)
        log_probabilities = y.transpose(0, 1).log_softmax(-1)
        ctc = nn.functional.ctc_loss(log_probabilities, torch.randint(1, 250, (32, 8)).cuda(), torch.full((32,), 20), torch.full((32,), 8))
        spectrum = torch.fft.rfft(y).abs().mean()
        gram = y[0] @ y[0].T + torch.eye(20, device="cuda")
        (ctc + spectrum + torch.linalg.cholesky(gram).sum() + torch.linalg.svdvals(gram).sum() + z.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()


# ---- many processes ----------------------------------------------------------------------------------------------------------------------


@feature("DDP, rank 1 of 4", flags=RANK)
def ddp():
    import torch

    in_group()
    model = torch.nn.parallel.DistributedDataParallel(network().cuda(), device_ids=[0], gradient_as_bucket_view=True)
    samples = batches(4 * STEPS).dataset
    sampler = torch.utils.data.distributed.DistributedSampler(samples)
    train(model, torch.utils.data.DataLoader(samples, batch_size=32, sampler=sampler))


@feature("FSDP, rank 1 of 4", flags=RANK)
def fsdp():
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

    in_group()
    precision = MixedPrecision(torch.bfloat16, torch.bfloat16)
    model = FullyShardedDataParallel(network(), device_id=0, mixed_precision=precision, use_orig_params=True)
    train(model)


@feature("FSDP2, mixed precision, rank 1 of 4", flags=RANK)
def fsdp2():
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    in_group()
    model = network().cuda()
    for part in model:
        fully_shard(part, mp_policy=MixedPrecisionPolicy(torch.bfloat16))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in batches():
        torch.nn.functional.mse_loss(model(x.cuda()).float(), y.cuda()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


@feature("ZeroRedundancyOptimizer, rank 1 of 4", flags=RANK)
def zero():
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer

    in_group()
    model = torch.nn.parallel.DistributedDataParallel(network().cuda())
    train(model, optimizer=ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3))


@feature("a pipeline's stage, rank 1 of 4, 1F1B", flags=RANK)
def pipeline():
    import torch
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    in_group()
    model = block().cuda()
    # Both: else newer versions of PyTorch ask the rank before for the shapes.
    sample = torch.randn(8, 512, device="cuda", requires_grad=True)
    stage = PipelineStage(model, 1, 4, torch.device("cuda"), input_args=sample, output_args=sample)
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        schedule.step()
        optimizer.step()
        optimizer.zero_grad()


@feature("tensor parallel by DTensor, rank 1 of 4", flags=RANK)
def tensor_parallel():
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    in_group()
    mesh = init_device_mesh("cuda", (4,))
    model = network().cuda()
    for part in model:
        parallelize_module(part, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})
    # A fused step does not take plain and distributed parameters in one list.
    train(model, optimizer=torch.optim.AdamW(model.parameters(), foreach=False))


@feature("two cards in one process, DataParallel and a split model", flags=["--gpus", "2"])
def two_cards():
    import torch

    assert torch.cuda.device_count() == 2
    train(torch.nn.DataParallel(network().cuda()))
    first, second = block().to("cuda:0"), block().to("cuda:1")
    second(first(torch.randn(8, 512, device="cuda:0")).to("cuda:1")).sum().backward()


@feature("torchrun, two processes, DDP", command="{python} -m torch.distributed.run --nproc-per-node 2 {script} torchrun")
def torchrun():
    import os

    import torch

    torch.distributed.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    train(torch.nn.parallel.DistributedDataParallel(network().cuda()))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    FEATURES[sys.argv[1]][1]()
