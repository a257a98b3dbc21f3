import torch
from torch.func import functional_call, grad, vmap

model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.Tanh(), torch.nn.Linear(4096, 10)).cuda()
weights = {name: value.detach() for name, value in model.named_parameters()}


def loss(weights, x, y):
    return torch.nn.functional.cross_entropy(functional_call(model, weights, (x,)), y)


of_samples = vmap(grad(loss), in_dims=(None, 0, 0))
for _ in range(4):
    x, y = torch.randn(64, 1024, device="cuda"), torch.randint(10, (64,), device="cuda")
    gradients = of_samples(weights, x, y)
    weights = {name: value - 0.1 * gradients[name].clamp(-1, 1).mean(0) for name, value in weights.items()}
