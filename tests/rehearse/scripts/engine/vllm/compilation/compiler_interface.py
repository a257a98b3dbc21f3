import torch


class InductorAdaptor:
    def compile(self):
        torch.empty(256 << 20, dtype=torch.int8, device="cuda")
        return True
