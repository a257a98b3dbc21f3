"""T5, two layers, trained on 8 x 512 tokens in bfloat16."""
import torch
import transformers
from transformers import AutoConfig, AutoModelForSeq2SeqLM

config = AutoConfig.for_model("t5", num_layers=2, num_decoder_layers=2, decoder_start_token_id=0)
with torch.device("cuda"):
    model = AutoModelForSeq2SeqLM.from_config(config).to(torch.bfloat16).train()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    ids = torch.randint(5, 1000, (8, 512), device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(transformers.__version__, torch.cuda.max_memory_allocated())
