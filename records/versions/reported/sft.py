"""sft.py MODEL BITS: trl#876, #999 and #1168: SFTTrainer on a quantized model with LoRA, and none of its arguments about checkpoints given.

The model has its published width and fewer layers, and weights of zeros. One sentence of 1024 words is the data.
"""
import sys

import torch
import zeros
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedTokenizerFast, TrainingArguments
from trl import SFTTrainer

FAMILY, BITS = sys.argv[1], sys.argv[2]
SIZES = {
    "gpt2": dict(n_layer=48, n_embd=1600, n_head=25),  # gpt2-xl, whole
    "mistral": dict(num_hidden_layers=8),  # of 32
    "llama": dict(num_hidden_layers=8),
}
TARGETS = {"gpt2": ["c_attn"], "mistral": ["q_proj", "v_proj"], "llama": ["q_proj", "v_proj"]}
config = AutoConfig.for_model(FAMILY, **SIZES[FAMILY])
folder = zeros.model(config)

words = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", pad_token="</s>")
quantized = BitsAndBytesConfig(load_in_8bit=BITS == "8", load_in_4bit=BITS == "4", bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=quantized, torch_dtype=torch.bfloat16, device_map={"": 0})
trainer = SFTTrainer(
    model=model,
    tokenizer=tokenizer,
    train_dataset=Dataset.from_dict({"text": [" ".join(["a"] * 1024)] * 64}),
    dataset_text_field="text",
    max_seq_length=1024,
    peft_config=LoraConfig(r=16, lora_alpha=32, task_type="CAUSAL_LM", target_modules=TARGETS[FAMILY]),
    args=TrainingArguments(output_dir=folder / "out", bf16=True, per_device_train_batch_size=4, max_steps=3, report_to=[]),
)
trainer.train()
