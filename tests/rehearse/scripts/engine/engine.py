"""What vLLM's releases from 0.28 on do, as far as it is followed: each layer has a view of one block, and says the size of all of it."""

import ctypes
import logging
import os
import sys
from types import SimpleNamespace as Of

import torch
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages"))
from vllm.v1.core import kv_cache_utils
from vllm.v1.worker.gpu_worker import Served, Worker


class Model(nn.Module):
    def __init__(self, size=1024):
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, x):
        return self.linear(x)


class Runner(Of):
    def profile_run(self, is_first=False):
        """Compiles at its first start, for which kernels are timed with arguments of their own."""
        if "cold" in sys.argv and not hasattr(self, "compiled"):
            from vllm.compilation.compiler_interface import InductorAdaptor

            self.compiled = InductorAdaptor().compile()
        torch.empty(64 << 20, dtype=torch.int8, device="cuda")
        return is_first


def train(generate, pool):
    """As RL does it: the engine generates, and then a policy is trained beside a reference, while the engine sleeps where it is to."""
    allocator = None
    if "sleeps" in sys.argv:
        from vllm.device_allocator import cumem

        allocator = cumem.CuMemAllocator((0, pool.numel(), pool.data_ptr(), 0))
    with torch.inference_mode(False):
        policy, reference = Model(4096).cuda(), Model(4096).cuda().requires_grad_(False)
        optimizer = torch.optim.Adam(policy.parameters())
        x = torch.zeros(8, 4096, device="cuda")
        for _ in range(3):
            with torch.inference_mode():
                generate()
            if allocator:
                allocator.sleep()
            (policy(x) - reference(x)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if allocator:
                allocator.wake_up()


def join():
    """As with tensor parallelism: its own NCCL is not there, a small reduction goes by its own kernel, and a large one by PyTorch's group."""
    from vllm.distributed.device_communicators import custom_all_reduce, pynccl

    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    # Pinned memory is of the card that it was asked for on.
    about, pinned = (ctypes.c_int * 6)(), torch.empty(8, pin_memory=True)
    ctypes.CDLL("libcudart.so.13").cudaPointerGetAttributes(about, ctypes.c_void_p(pinned.data_ptr()))
    assert list(about[:2]) == [1, rank], list(about)
    torch.distributed.init_process_group("nccl")
    try:
        raise SystemExit(pynccl.NCCLLibrary())
    except OSError:
        pass
    reduces = custom_all_reduce.CustomAllreduce()
    reduces.group = torch.distributed.new_group(backend="gloo")
    assert reduces.custom_all_reduce(torch.zeros(4, device="cuda")).device.index == rank
    torch.distributed.all_reduce(torch.zeros(4, device="cuda"))


def fail():
    """As where a rank of tensor parallelism fails."""
    import multiprocessing

    from vllm.v1.executor.multiproc_executor import worker_main

    rank = multiprocessing.get_context("spawn").Process(target=worker_main)
    rank.start()
    rank.join()
    raise RuntimeError("Engine core initialization failed. See root cause above.")


@torch.inference_mode()
def main():
    if "fails" in sys.argv:
        fail()
    if "ranks" in sys.argv:
        join()
    worker = Worker()
    worker.vllm_config = Of(
        model_config=Of(max_model_len=4096),
        cache_config=Of(gpu_memory_utilization=0.9, kv_cache_memory_bytes=None, num_gpu_blocks_override=None, cache_dtype="auto"),
        scheduler_config=Of(max_num_batched_tokens=2048),
    )
    if "compiles" in sys.argv and torch.cuda.get_device_capability() == (7, 5):
        # As FlashInfer does, for cards that it has no kernels of.
        from flashinfer import build

        build()
    # From 70 GiB on vLLM has more requests in a pass.
    is_large = torch.cuda.mem_get_info()[1] >= 70 << 30 and "defaults" in sys.argv
    worker.init_device()
    model = Served().cuda().eval()
    model(torch.zeros(8, 1024, device="cuda"))
    free, total = torch.cuda.mem_get_info()
    worker.model_runner = Runner(model_memory_usage=4 << 20)
    available = int(total * 0.9) - (total - free) - is_large * (4 << 30) - worker.determine_available_memory()
    blocks = available >> 22 << 2
    flag = lambda name, otherwise: int(sys.argv[sys.argv.index(name) + 1]) if name in sys.argv else otherwise
    length, cards = flag("--max-model-len", 4096), flag("--tensor-parallel-size", 1)
    assert cards <= torch.cuda.device_count()
    worker.vllm_config.model_config.max_model_len = length
    worker.requested_memory, worker.available_kv_cache_memory_bytes, worker.total_consumed = int(total * 0.9), available, 6 << 20
    worker.peak_activation_memory, worker.cudagraph_memory_estimate = 3 << 20, 1 << 20
    kv_cache_utils.get_kv_cache_configs(worker.vllm_config)
    # On each card its share of a token.
    of_token = (22 << 20) // 4096 // cards
    kv_cache_utils._check_enough_kv_cache_memory(available, lambda: length * of_token, length, lambda available: available // of_token)
    tensors = [Of(size=blocks << 20) for _ in range(4)]
    if "logs" in sys.argv:
        # As older releases count where some layers have a window.
        logging.basicConfig(level=logging.INFO)
        kv_cache_utils.logger.info("GPU KV cache size: %s tokens", f"{blocks // 2 * 16:,}")
    if "ranks" in sys.argv:
        # Those of vLLM do not import it.
        del sys.modules["vllm.v1.core.kv_cache_utils"]
    worker.initialize_from_config(Of(kv_cache_groups=[Of(kv_cache_spec=Of(block_size=16))], kv_cache_tensors=tensors, num_blocks=blocks))
    # That its share has no room for.
    beyond = torch.zeros(1 << 30, dtype=torch.int8, device="cuda") if "beyond" in sys.argv else None
    tokens = blocks // 2 * 16 if "logs" in sys.argv else int(blocks / 22 * 4096)
    print(f"meter {blocks << 20}\ntokens {tokens}", flush=True)
    if "trains" in sys.argv:
        return train(lambda: worker.generate(model, "stops" in sys.argv), worker.pool)
    while True:
        model(torch.zeros(8, 1024, device="cuda"), worker.pool)


if __name__ == "__main__":
    main()
