"""One rank of a GPT by Megatron-core itself (`pip install megatron-core`, without Transformer Engine or Apex: its layers of plain PyTorch), with its own optimizer,
data parallel buffers and pipeline schedule; flags as in gpt.py beside it. With --ffn it is a Llama: RMSNorm, SwiGLU, rotary positions, --groups of keys and
values, sequence parallel norms, and PyTorch's fused attention in the place of Transformer Engine's.

    vramlab rehearse --gpu a100-80g --world-size 8 --rank all -- python records/layouts/mcore.py --tp 2 --pp 2 --hidden 2048 --layers 24 --micro 4 --batch 16
"""

import argparse
import os

import torch
import torch.nn.functional as F
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig

parser = argparse.ArgumentParser()
for name, usual in dict(tp=1, pp=1, hidden=1024, layers=24, heads=16, length=1024, micro=1, batch=8, vocab=51200, recompute=0, distributed=0, ffn=0, groups=0).items():
    parser.add_argument(f"--{name}", type=int, default=usual)
o = parser.parse_args()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl")
parallel_state.initialize_model_parallel(o.tp, o.pp)
tensor_parallel.model_parallel_cuda_manual_seed(1)
again = dict(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1) if o.recompute else {}
llama = dict(
    ffn_hidden_size=o.ffn, num_query_groups=o.groups or o.heads, gated_linear_unit=True, activation_func=F.silu, add_bias_linear=False, normalization="RMSNorm",
    hidden_dropout=0.0, attention_dropout=0.0, sequence_parallel=o.tp > 1, bias_activation_fusion=True, cross_entropy_loss_fusion=True,
)  # fmt: skip
config = TransformerConfig(
    num_layers=o.layers, hidden_size=o.hidden, num_attention_heads=o.heads, tensor_model_parallel_size=o.tp, pipeline_model_parallel_size=o.pp,
    bf16=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16, gradient_accumulation_fusion=False, **again, **(llama if o.ffn else {}),
)  # fmt: skip


class Attention(torch.nn.Module):
    def __init__(self, **_):
        super().__init__()

    def forward(self, q, k, v, *_, **__):
        q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).permute(2, 0, 1, 3).flatten(2)


class Norm(torch.nn.RMSNorm):
    def __init__(self, config, hidden_size, eps=1e-5):
        super().__init__(hidden_size, eps)
        self.weight.sequence_parallel = config.sequence_parallel


spec, more = get_gpt_layer_local_spec(), {}
if o.ffn:
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = Norm
    spec.submodules.self_attention.submodules.core_attention = Attention
    spec = TransformerBlockSubmodules([spec] * get_num_layers_to_build(config), Norm)
    more = dict(position_embedding_type="rope", share_embeddings_and_output_weights=False)
model = GPTModel(
    config, spec, o.vocab, o.length,
    pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(), **more,
)  # fmt: skip
of_ranks = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=bool(o.distributed))
model = DistributedDataParallel(config, of_ranks, model.cuda().bfloat16())
config.finalize_model_grads_func = finalize_model_grads
optimizer = OptimizerConfig(optimizer="adam", lr=1e-4, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=bool(o.distributed))
optimizer = get_megatron_optimizer(optimizer, [model])


def batches():
    while True:
        ids = torch.randint(o.vocab, (o.micro, o.length))
        # A Llama's attention makes its own.
        mask = torch.zeros(1, dtype=torch.bool) if o.ffn else torch.ones(o.micro, 1, o.length, o.length).tril() < 0.5
        yield dict(ids=ids, places=torch.arange(o.length).repeat(o.micro, 1), mask=mask)


def forward(batches, model):
    # As its pretrain_gpt.py: the first of those that share each product reads, the others are told.
    read = next(batches) if parallel_state.get_tensor_model_parallel_rank() == 0 else None
    told = tensor_parallel.broadcast_data(["ids", "places"], read, torch.int64) | tensor_parallel.broadcast_data(["mask"], read, torch.bool)
    out = model(told["ids"], told["places"], told["mask"], labels=told["ids"])
    return out, lambda losses: (losses.float().mean(), {})


run, own = get_forward_backward_func(), batches()
for _ in range(3):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    micro_batches = max(1, o.batch // parallel_state.get_data_parallel_world_size() // o.micro)
    run(forward_step_func=forward, data_iterator=own, model=model, num_microbatches=micro_batches, seq_length=o.length, micro_batch_size=o.micro, forward_only=False)
    optimizer.step()
print("max_memory_allocated", torch.cuda.max_memory_allocated())
