import torch

if torch.cuda.is_available():
    device = torch.device("cuda")
    print("GPU device available")
else:
    device = torch.device("cpu")
    print("No GPU device available, using CPU")
