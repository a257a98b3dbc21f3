import torch

if torch.cuda.is_available():
    torch.cuda.reset_peak_memory_stats()

# Code snippets

print(torch.cuda.max_memory_allocated())  # Print max memory allocated
