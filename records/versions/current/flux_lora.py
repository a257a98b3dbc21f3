"""diffusers: LoRA of rank 16 on Flux's transformer, 12 of its 57 blocks, in bfloat16, one image of 1024 x 1024, with checkpoints."""
import torch
from diffusers import FluxTransformer2DModel
from peft import LoraConfig

with torch.device("cuda"):
    torch.set_default_dtype(torch.bfloat16)
    model = FluxTransformer2DModel(num_layers=4, num_single_layers=8, guidance_embeds=True)
model.requires_grad_(False)
model.add_adapter(LoraConfig(r=16, lora_alpha=16, target_modules=["to_q", "to_k", "to_v", "to_out.0"]))
model.enable_gradient_checkpointing()
optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
on = {"device": "cuda", "dtype": torch.bfloat16}
for step in range(3):
    latents = torch.randn(1, 4096, 64, **on)
    said = model(
        hidden_states=latents, timestep=torch.rand(1, **on), guidance=torch.ones(1, **on), pooled_projections=torch.randn(1, 768, **on),
        encoder_hidden_states=torch.randn(1, 512, 4096, **on), txt_ids=torch.zeros(512, 3, **on), img_ids=torch.zeros(4096, 3, **on),
    ).sample
    (said.float() - latents.float()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
