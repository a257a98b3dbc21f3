"""transformers#30010: Llama 7B whole, weights of zeros, in 4 bits with LoRA and SDPA: three steps of 1280 tokens, as the thread's table has them.

What the thread shows of its script ends before LoRA's settings: rank 8 on all linear layers, and one sequence, are ours.
"""
import torch
import transformers
import zeros
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig

quantized = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
folder = zeros.model(LlamaConfig(use_cache=False))
how = dict(quantization_config=quantized, torch_dtype=torch.bfloat16, attn_implementation="sdpa", device_map={"": 0})
model = AutoModelForCausalLM.from_pretrained(folder, **how)
targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, lora_dropout=0.1, target_modules=targets, task_type="CAUSAL_LM"))
model.train()
optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])


def note(moment):
    print(f"{transformers.__version__}, {moment}: {torch.cuda.memory_allocated() / 2**30:.2f} GiB", flush=True)


for step in range(3):
    ids = torch.randint(32000, (1, 1280), device="cuda")
    note("before forward")
    loss = model(input_ids=ids, labels=ids, attention_mask=torch.ones_like(ids)).loss
    note("before backward")
    loss.backward()
    note("before the optimizer")
    optimizer.step()
    optimizer.zero_grad()
    print(f"at most {torch.cuda.max_memory_allocated() / 2**30:.2f}, reserved {torch.cuda.max_memory_reserved() / 2**30:.2f}")
