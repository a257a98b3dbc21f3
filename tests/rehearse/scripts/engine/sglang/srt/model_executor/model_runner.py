from types import SimpleNamespace as Of

import torch
from cutlass.base_dsl.dsl import BaseDSL
from flashinfer.jit.core import JitSpec
from torch import nn


class Pool:
    """One slot more than there are tokens, in each of a layer's two buffers."""

    dtype = torch.bfloat16

    def __init__(self, tokens):
        self.k_buffer, self.v_buffer = ([torch.zeros(tokens + 1, 1024, dtype=self.dtype, device="cuda")] for _ in range(2))

    def get_kv_size_bytes(self):
        return self.k_buffer[0].nbytes, self.v_buffer[0].nbytes


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 1024, bias=False)

    def forward(self, x, runner):
        x = self.linear(x)
        runner.kernels.store_cache(x, runner.token_to_kv_pool.k_buffer[0], runner.token_to_kv_pool.v_buffer[0])
        runner.norm(x)
        return x


class ModelRunner:
    page_size = 1

    def __init__(self, arguments):
        self.server_args, self.model_config = Of(max_total_tokens=None, **arguments), Of(context_len=4096)
        self.pre_model_load_memory = torch.cuda.mem_get_info()[0] / (1 << 30)
        # A group for the host has its barrier.
        torch.distributed.init_process_group("nccl", rank=0, world_size=1)
        torch.distributed.monitored_barrier(torch.distributed.new_group(backend="gloo"))
        self.model = Model().bfloat16().cuda().eval()
        self.kernels = JitSpec("page").build_and_load()
        self.norm = BaseDSL()._func(Model.forward, compile_only=True)

    def alloc_memory_pool(self):
        kept = self.pre_model_load_memory * (1 << 30) * (1 - self.server_args.mem_fraction_static)
        self.max_total_num_tokens = int(torch.cuda.mem_get_info()[0] - kept) // (2 * 1024 * 2)
        if self.max_total_num_tokens <= 0:
            raise RuntimeError("Not enough memory. Please try to increase --mem-fraction-static.")
        self.token_to_kv_pool = Pool(self.max_total_num_tokens)
        sizes = self.token_to_kv_pool.get_kv_size_bytes()
        print(f"meter {sum(sizes)}\ntokens {self.max_total_num_tokens}", flush=True)
