if torch.cuda.is_available():
    torch.cuda.reset_peak_memory_stats()
# forward/backward
peak = torch.cuda.max_memory_reserved() / (1024**2)
print(f"Peak GPU memory that PyTorch took: {peak:.1f} MB")
