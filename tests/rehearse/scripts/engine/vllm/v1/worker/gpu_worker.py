import torch


class Worker:
    def initialize_from_config(self, made):
        self.pool = torch.empty(made.num_blocks, 1 << 20, dtype=torch.int8, device="cuda")
        self.model_runner.kv_caches = [self.pool.view(4, -1)[layer] for layer in range(4)]
