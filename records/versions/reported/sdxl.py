"""sdxl.py lora|whole: sd-scripts#661 and #1141: SDXL, whose models have no weights, by programs of sd-scripts; SDPA stands for xformers.

#661: a LoRA for the U-Net on one image of 1024 x 1024 in half precision with checkpoints, by `sdxl_train_network.py`. The reporter's settings are in
bmaltais/kohya_ss#1184: LoRA, latents in a cache, checkpoints; the part that we have ends before the others. Only without training the text encoders, and
without a cache of what they give, can the two states differ. #1141: all of the U-Net on two images, by `sdxl_train.py`, with the thread's settings; two
passes are accumulated, theirs 128.
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
from library import model_util, sdxl_model_util  # noqa: E402

# The checkpoint: nothing but what is asked for by name.
key = "conditioner.embedders.1.model."
given = {key + "text_projection": torch.zeros(1280, 1280), key + "logit_scale": torch.zeros(())}
(place / "sdxl.safetensors").touch()
sdxl_model_util.load_file = lambda *_, **__: dict(given)
sdxl_model_util._load_state_dict_on_device = lambda model, _, device, dtype=None: model.to_empty(device=device).to(dtype).training
model_util.convert_ldm_vae_checkpoint = lambda *_: {}
torch.nn.Module.load_state_dict = lambda self, *_, **__: "weights are left as they are"

words = {
    "pretrained_model_name_or_path": place / "sdxl.safetensors",
    "tokenizer_cache_dir": place / "tokenizers",
    "train_data_dir": place / "images",
    "output_dir": place / "out",
    "resolution": "1024,1024",
    "optimizer_type": "AdamW8bit",
    "mixed_precision": "fp16",
    "max_train_steps": 3,
    "max_data_loader_n_workers": 0,
}
flags = ["--gradient_checkpointing", "--sdpa"]
if sys.argv[1] == "lora":
    import sdxl_train_network as program

    train = program.SdxlNetworkTrainer().train
    words |= {"network_module": "networks.lora", "network_dim": 8, "max_grad_norm": 0}
    flags += ["--network_train_unet_only", "--cache_latents"]
else:
    import sdxl_train as program

    train = program.train
    words |= {"train_batch_size": 2, "gradient_accumulation_steps": 2, "max_token_length": 225, "learning_rate": "4e-6", "lr_scheduler": "constant"}
asked = [part for name, value in words.items() for part in (f"--{name}", str(value))]
train(program.setup_parser().parse_args(asked + flags))
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
