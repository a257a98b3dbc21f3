import torch
from torch.utils.cpp_extension import load

torch.cuda.reset_max_memory_allocated()  # Reset memory stats

# Code snippets

print(torch.cuda.max_memory_allocated())  # Print max memory allocated
