"""transformers: all weights of a Qwen3 of 0.6B, trained by the Trainer on 4 x 2048 tokens in bfloat16, without checkpoints."""
import tempfile

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

config = AutoConfig.for_model(
    "qwen3", hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
    head_dim=128, tie_word_embeddings=True,
)
model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
data = [{"input_ids": torch.arange(2048), "labels": torch.arange(2048)}] * 64
with tempfile.TemporaryDirectory() as out:
    args = TrainingArguments(output_dir=out, bf16=True, per_device_train_batch_size=4, max_steps=3, report_to=[])
    Trainer(model=model, args=args, train_dataset=data).train()
