"""A Llama of 1.1 billion parameters trains in bf16 on batches of 4 x 2048 tokens: as it is, or with one technique that is asked about today.

    train.py [fp8 | liger | paged-8-bit | context-parallel | async-checkpoint | galore | qat | empty-cache]

`context-parallel` wants two processes (`torchrun --nproc-per-node 2 train.py context-parallel`).
"""

import contextlib
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

technique = sys.argv[1] if len(sys.argv) > 1 else "none"
BATCH, TOKENS = 4, 2048

if technique == "liger":
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    apply_liger_kernel_to_llama()

mesh = None
if technique == "context-parallel":
    torch.distributed.init_process_group("nccl")
    torch.cuda.set_device(torch.distributed.get_rank())
    mesh = torch.distributed.init_device_mesh("cuda", (torch.distributed.get_world_size(),))
    from torch.distributed.tensor.experimental import context_parallel
if technique == "async-checkpoint":
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    torch.distributed.init_process_group("cpu:gloo,cuda:nccl", store=torch.distributed.HashStore(), rank=0, world_size=1)

torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=2048,
            intermediate_size=5632,
            num_hidden_layers=22,
            num_attention_heads=32,
            num_key_value_heads=4,
            vocab_size=32000,
            use_cache=False,
            # A mask of the whole context is none, which is what context parallelism can split.
            attn_implementation="sdpa",
        )
    )

if technique == "fp8":
    from torchao.float8 import convert_to_float8_training

    convert_to_float8_training(model, module_filter_fn=lambda module, name: name != "lm_head")
if technique == "qat":
    from torchao.quantization import quantize_
    from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

    activations = IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
    quantize_(model, QATConfig(activation_config=activations, weight_config=IntxFakeQuantizeConfig(torch.int4, group_size=32)))

if technique == "paged-8-bit":
    from bitsandbytes.optim import PagedAdamW8bit

    optimizer = PagedAdamW8bit(model.parameters(), lr=1e-4)
elif technique == "galore":
    from galore_torch import GaLoreAdamW

    low_rank = [each for name, each in model.named_parameters() if each.dim() == 2 and ("attn" in name or "mlp" in name)]
    ids = {id(each) for each in low_rank}
    others = [each for each in model.parameters() if id(each) not in ids]
    settings = {"rank": 128, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
    optimizer = GaLoreAdamW([{"params": others}, {"params": low_rank, **settings}], lr=1e-4)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

if mesh:
    # Each rank attends to keys of all, so that what it may see follows from positions, not from a mask of its own part.
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(lambda _, words, names: (words, {**names, "attention_mask": None}), with_kwargs=True)

saving = None
for step in range(3):
    ids = torch.randint(32000, (BATCH, TOKENS), device="cuda")
    positions = torch.arange(TOKENS, device="cuda").expand(BATCH, -1).clone()
    labels = ids.roll(-1, 1)
    split = context_parallel(mesh, buffers=[ids, positions, labels], buffer_seq_dims=[1, 1, 1]) if mesh else contextlib.nullcontext()
    with split:
        model(input_ids=ids, position_ids=positions, labels=labels, shift_labels=labels).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if technique == "empty-cache":
        torch.cuda.empty_cache()
    if technique == "async-checkpoint":
        weights, state = get_state_dict(model, optimizer)
        if saving is not None:
            saving.result()
        saving = dcp.async_save({"model": weights, "optimizer": state}, checkpoint_id=f"checkpoint-{step}")
