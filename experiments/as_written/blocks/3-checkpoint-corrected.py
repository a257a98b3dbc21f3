import torch.utils.checkpoint as cp
import torch.nn as nn
class BigModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Sequential(...)
        self.layer2 = nn.Sequential(...)
    def forward(self, x):
        x = cp.checkpoint(self.layer1, x, use_reentrant=False)
        x = cp.checkpoint(self.layer2, x, use_reentrant=False)
        return x
