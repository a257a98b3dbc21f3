"""pytorch#177406: Qwen-Image's autoencoder decodes one image of 1664 x 928, that model's size for 16:9, in bfloat16.

The thread's script loads its weights; these have none. Its size is not known to us: this one takes the 7.5 GB that it names for one convolution.
"""
import torch
from diffusers import AutoencoderKLQwenImage

with torch.no_grad():
    vae = AutoencoderKLQwenImage().to("cuda", torch.bfloat16).eval()
    vae.decode(torch.randn(1, 16, 1, 928 // 8, 1664 // 8, device="cuda", dtype=torch.bfloat16))
print(torch.__version__, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
