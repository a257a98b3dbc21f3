"""accelerate: FSDP2 of a Llama over two GPUs, four of the 16 layers of the one of 1B, as `accelerate launch --use_fsdp --fsdp_version 2` prepares it,
2 x 2048 tokens on each."""
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from transformers import AutoConfig, AutoModelForCausalLM

plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["LlamaDecoderLayer"], state_dict_type="SHARDED_STATE_DICT"
)
accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)
config = AutoConfig.for_model(
    "llama", hidden_size=2048, intermediate_size=8192, num_hidden_layers=4, num_attention_heads=32, num_key_value_heads=8,
    head_dim=64, vocab_size=128256, tie_word_embeddings=True,
)
model = AutoModelForCausalLM.from_config(config)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
for step in range(3):
    ids = torch.randint(5, 1000, (2, 2048), device=accelerator.device)
    accelerator.backward(model(input_ids=ids, labels=ids).loss)
    optimizer.step()
    optimizer.zero_grad()
