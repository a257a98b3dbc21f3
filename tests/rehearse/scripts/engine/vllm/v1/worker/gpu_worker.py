import sys
from types import SimpleNamespace as Of

import torch
from torch import nn
from vllm.v1.core.sched.utils import check_stop


class Served(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 1024)

    def forward(self, x, pool=None):
        x = self.linear(x)
        if pool is not None:
            pool.view(-1)[: x.numel() * 4] = x.view(-1).view(torch.int8)
        return x


class Worker:
    def init_device(self):
        torch.cuda.init()
        free, total = torch.cuda.mem_get_info()
        self.init_snapshot = Of(free_memory=free, total_memory=total)
        if free < total * self.vllm_config.cache_config.gpu_memory_utilization:
            raise ValueError("Free memory on device cuda:0 on startup is less than desired GPU memory utilization")

    def determine_available_memory(self):
        """What its passes take at most."""
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        # Releases give it something, or want something back.
        assert self.model_runner.profile_run(is_first=True)
        torch.cuda.empty_cache()
        return torch.cuda.max_memory_allocated() - before

    def initialize_from_config(self, made):
        if "layers" in sys.argv:
            self.model_runner.kv_caches = [torch.empty(made.num_blocks, 1 << 15, dtype=torch.int8, device="cuda") for _ in range(32)]
            self.pool = self.model_runner.kv_caches[0]
            return
        self.pool = torch.empty(made.num_blocks, 1 << 20, dtype=torch.int8, device="cuda")
        self.model_runner.kv_caches = [self.pool.view(4, -1)[layer] for layer in range(4)]

    def generate(self, model, stops):
        """A request's last token, which ends it for its number, or by its value."""
        token = model(torch.zeros(8, 1024, device="cuda"), self.pool).argmax().item()
        check_stop(Of(status=Of(name="FINISHED_STOPPED" if stops else "FINISHED_LENGTH_CAPPED"), token=token), 4096)
