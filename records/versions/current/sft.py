"""trl: SFTTrainer with its own defaults, a Qwen3 of 0.6B and 151,936 words, on 4 x 1024 tokens; `kept`: without checkpoints."""
import sys
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

CHECKPOINTS = {"gradient_checkpointing": False} if "kept" in sys.argv else {}
config = AutoConfig.for_model(
    "qwen3", hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
    head_dim=128, tie_word_embeddings=True,
)
words = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", pad_token="</s>")
model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
with tempfile.TemporaryDirectory() as out:
    SFTTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"text": [" ".join(["a"] * 1100)] * 64}),
        args=SFTConfig(output_dir=out, per_device_train_batch_size=4, max_length=1024, max_steps=3, report_to=[], **CHECKPOINTS),
    ).train()
