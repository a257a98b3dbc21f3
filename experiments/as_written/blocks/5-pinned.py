from torch.utils.data import DataLoader, TensorDataset
import torch

data = torch.randn(100, 3)
labels = torch.randint(0, 2, (100,))

dataset = TensorDataset(data, labels)

dataloader = DataLoader(dataset, batch_size=10, shuffle=True, pin_memory=True)
