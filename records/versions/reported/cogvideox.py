"""diffusers#10035: CogVideoX's decoder on five frames of latents, without gradients."""
import diffusers
import torch
from diffusers import AutoencoderKLCogVideoX

with torch.no_grad():
    vae = AutoencoderKLCogVideoX().to(dtype=torch.bfloat16).eval()
    vae.decoder.to("cuda")
    latents = torch.randn(1, 16, 5, 96, 170).to("cuda", torch.bfloat16)
    vae.decode(latents)
print(diffusers.__version__, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
