"""fms-acceleration#128: Mixtral 8x7B whole, all weights trained in bfloat16 by the Trainer with FSDP on eight GPUs, as the second of eight ranks.

Theirs is `scripts/benchmarks` of that project, scenario `accelerated-moe-full-mixtral` without acceleration: batch 1, 16 accumulated passes that are each
synchronised, checkpoints. Weights of zeros; SDPA for flash-attention, and 1024 tokens, are ours.
"""
import sys
import tempfile
import types

# Both releases by one environment: each asks for a release of tokenizers of its own.
sys.modules["transformers.dependency_versions_check"] = types.SimpleNamespace(dep_version_check=lambda *_: None)
import torch  # noqa: E402
import transformers  # noqa: E402
import zeros  # noqa: E402
from transformers import AutoModelForCausalLM, MixtralConfig, Trainer, TrainingArguments  # noqa: E402

arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=1,
    gradient_accumulation_steps=16,
    gradient_checkpointing=True,
    accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}},
    fsdp="full_shard auto_wrap",
    fsdp_config={"transformer_layer_cls_to_wrap": ["MixtralDecoderLayer"], "cpu_ram_efficient_loading": True, "sync_module_states": True},
    learning_rate=5e-5,
    max_steps=3,
    report_to=[],
    save_strategy="no",
)
model = AutoModelForCausalLM.from_pretrained(zeros.model(MixtralConfig(use_cache=False)), torch_dtype=torch.bfloat16)
ids = list(range(1024))
Trainer(model=model, args=arguments, train_dataset=[{"input_ids": ids, "labels": ids}] * 512).train()
print(transformers.__version__, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
