"""peft#1613: LoRA of rank 8 on a Llama, eight layers of 7B, 4 x 256 tokens, as LLM-Pruner's post_training.py sets it, with the package peft itself."""
import peft
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

with torch.device("cuda"):
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=8)).to(torch.float16)
targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj", "up_proj"]
model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, target_modules=targets, task_type="CAUSAL_LM")).to("cuda")
optimizer = torch.optim.AdamW(parameter for parameter in model.parameters() if parameter.requires_grad)
for step in range(3):
    ids = torch.randint(32000, (4, 256), device="cuda")
    with torch.autocast("cuda", torch.float16):
        model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(peft.__version__, torch.cuda.max_memory_allocated())
