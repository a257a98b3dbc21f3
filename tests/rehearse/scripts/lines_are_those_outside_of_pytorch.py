
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'site-packages'))
import torch
from models.mlp import Mlp
model = Mlp(1024, 1024).cuda()
model(torch.randn(1 << 14, 1024, device='cuda'))
