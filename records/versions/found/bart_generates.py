"""BART, two layers, generates 16 tokens of 8 x 512 without gradients."""
import torch
import transformers
from transformers import AutoConfig, AutoModelForSeq2SeqLM

with torch.device("cuda"):
    config = AutoConfig.for_model("bart", encoder_layers=2, decoder_layers=2)
    model = AutoModelForSeq2SeqLM.from_config(config).to(torch.bfloat16).eval()
ids = torch.randint(5, 1000, (8, 512), device="cuda")
for prompt in range(3):
    model.generate(ids, max_new_tokens=16, min_new_tokens=16, do_sample=False)
print(transformers.__version__, torch.cuda.max_memory_allocated())
