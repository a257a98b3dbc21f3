import torch

x = (torch.randn(64, 64, device="cuda") + torch.eye(64, device="cuda")).requires_grad_()
y = torch.linalg.inv(x @ x.mT)
z = torch.stft(torch.randn(4, 4096, device="cuda"), 256, window=torch.ones(256, device="cuda"), return_complex=True)
(y.sum() + z.abs().sum()).backward()
