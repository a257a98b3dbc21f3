x = torch.randn(3, 3).pin_memory()
