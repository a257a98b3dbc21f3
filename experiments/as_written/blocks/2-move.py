tensor = torch.tensor([1, 2, 3])
tensor = tensor.to(device)
