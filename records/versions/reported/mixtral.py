"""transformers#28339: Mixtral 8x7B in 4 bits with LoRA and checkpoints on 4 x 8192 tokens, two of its 32 layers, weights of zeros."""
import flash  # noqa: F401
import torch
import transformers
import zeros
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, MixtralConfig

quantized = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
folder = zeros.model(MixtralConfig(num_hidden_layers=2, use_cache=False))
how = dict(quantization_config=quantized, torch_dtype=torch.bfloat16, attn_implementation="flash_attention_2", device_map={"": 0})
model = prepare_model_for_kbit_training(AutoModelForCausalLM.from_pretrained(folder, **how))
targets = ["q_proj", "k_proj", "v_proj", "o_proj", "w1", "w2", "w3"]
model = get_peft_model(model, LoraConfig(r=32, lora_alpha=16, lora_dropout=0.05, target_modules=targets, task_type="CAUSAL_LM"))
model.train()
optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
for step in range(3):
    ids = torch.randint(32000, (4, 8192), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(transformers.__version__, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
