"""architectures.py NAME: trains a model of transformers, a few layers of it in their usual width, in bfloat16 with AdamW."""
import sys
import torch
import transformers
from transformers import AutoConfig

NAME = sys.argv[1]
CAUSAL = dict(num_hidden_layers=4, hidden_size=2048, intermediate_size=5632, num_attention_heads=16, num_key_value_heads=8)
# The class, the configuration, samples, and tokens of each.
MODELS = {
    "qwen2": ("AutoModelForCausalLM", CAUSAL, 2, 2048),
    "gemma2": ("AutoModelForCausalLM", dict(CAUSAL, head_dim=128), 2, 2048),
    "mixtral": ("AutoModelForCausalLM", dict(CAUSAL, intermediate_size=3584, num_local_experts=8), 2, 2048),
    "t5": ("AutoModelForSeq2SeqLM", {}, 16, 512),
    "bert": ("AutoModelForMaskedLM", {}, 16, 512),
    "whisper": ("AutoModelForSpeechSeq2Seq", {}, 16, 256),
}
kind, sizes, samples, length = MODELS[NAME]
config = AutoConfig.for_model(NAME, **sizes)
model = getattr(transformers, kind).from_config(config).to("cuda", torch.bfloat16).train()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    ids = torch.randint(3, config.vocab_size, (samples, length), device="cuda")
    given = {"input_ids": ids, "labels": ids}
    if NAME == "whisper":
        given = {"input_features": torch.randn(samples, 80, 3000, device="cuda", dtype=torch.bfloat16), "labels": ids}
    model(**given).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(transformers.__version__, torch.cuda.max_memory_allocated())
