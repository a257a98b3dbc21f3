x = torch.randn(3, 3)
if torch.cuda.is_available():
    x = x.pin_memory()
