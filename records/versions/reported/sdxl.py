"""sd-scripts#661: a LoRA for the U-Net of SDXL, one image of 1024 x 1024, in half precision with checkpoints, by `sdxl_train_network.py`.

The reporter's settings are in bmaltais/kohya_ss#1184: LoRA, latents in a cache, checkpoints. The part that we have ends before the others. Only without
training the text encoders, and without a cache of what they give, can the two states differ; SDPA stands for xformers. The models have no weights.
"""
import json
import pathlib
import sys
import tempfile
from unittest.mock import MagicMock

import torch
from PIL import Image
from transformers import CLIPTokenizer

place = pathlib.Path(tempfile.mkdtemp())
(place / "images/10_a").mkdir(parents=True)
Image.new("RGB", (1024, 1024)).save(place / "images/10_a/a.png")
(place / "vocab.json").write_text(json.dumps({"<|startoftext|>": 0, "<|endoftext|>": 1, "a</w>": 2}))
(place / "merges.txt").write_text("#version: 0.2\n")
tokenizer = CLIPTokenizer(place / "vocab.json", place / "merges.txt", model_max_length=77)
for name in ["openai_clip-vit-large-patch14", "laion_CLIP-ViT-bigG-14-laion2B-39B-b160k"]:
    tokenizer.save_pretrained(place / "tokenizers" / name)

sys.modules["albumentations"] = MagicMock()
import sdxl_train_network  # noqa: E402
from library import model_util, sdxl_model_util  # noqa: E402

# The checkpoint: nothing but what is asked for by name.
key = "conditioner.embedders.1.model."
given = {key + "text_projection": torch.zeros(1280, 1280), key + "logit_scale": torch.zeros(())}
(place / "sdxl.safetensors").touch()
sdxl_model_util.load_file = lambda *_, **__: dict(given)
model_util.convert_ldm_vae_checkpoint = lambda *_: {}
torch.nn.Module.load_state_dict = lambda self, *_, **__: "weights are left as they are"

words = {
    "pretrained_model_name_or_path": place / "sdxl.safetensors",
    "tokenizer_cache_dir": place / "tokenizers",
    "train_data_dir": place / "images",
    "output_dir": place / "out",
    "resolution": "1024,1024",
    "network_module": "networks.lora",
    "network_dim": 8,
    "optimizer_type": "AdamW8bit",
    "mixed_precision": "fp16",
    "max_train_steps": 3,
    "max_grad_norm": 0,
    "max_data_loader_n_workers": 0,
}
flags = ["--network_train_unet_only", "--gradient_checkpointing", "--cache_latents", "--sdpa"]
asked = [part for name, value in words.items() for part in (f"--{name}", str(value))]
sdxl_train_network.SdxlNetworkTrainer().train(sdxl_train_network.setup_parser().parse_args(asked + flags))
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
