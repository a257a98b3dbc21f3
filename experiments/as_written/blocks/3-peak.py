# 학습 구간 후
torch.cuda.reset_peak_memory_stats()
# forward/backward 수행
peak = torch.cuda.max_memory_allocated() / (1024**2)
print(f"Peak GPU Memory: {peak:.1f} MB")
