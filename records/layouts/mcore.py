"""One rank of a GPT by Megatron-core itself (`pip install megatron-core`, without Transformer Engine or Apex: its layers of plain PyTorch), with its own optimizer,
data parallel buffers and pipeline schedule; flags as in gpt.py beside it.

    vramlab rehearse --gpu a100-80g --world-size 8 --rank all -- python records/layouts/mcore.py --tp 2 --pp 2 --hidden 2048 --layers 24 --micro 4 --batch 16
"""

import argparse
import os

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig

parser = argparse.ArgumentParser()
for name, usual in dict(tp=1, pp=1, hidden=1024, layers=24, heads=16, length=1024, micro=1, batch=8, vocab=51200, recompute=0, distributed=0).items():
    parser.add_argument(f"--{name}", type=int, default=usual)
o = parser.parse_args()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.distributed.init_process_group("nccl")
parallel_state.initialize_model_parallel(o.tp, o.pp)
tensor_parallel.model_parallel_cuda_manual_seed(1)
again = dict(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1) if o.recompute else {}
config = TransformerConfig(
    num_layers=o.layers, hidden_size=o.hidden, num_attention_heads=o.heads, tensor_model_parallel_size=o.tp, pipeline_model_parallel_size=o.pp,
    bf16=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16, gradient_accumulation_fusion=False, **again,
)  # fmt: skip
model = GPTModel(
    config, get_gpt_layer_local_spec(), o.vocab, o.length,
    pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(),
)  # fmt: skip
of_ranks = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=bool(o.distributed))
model = DistributedDataParallel(config, of_ranks, model.cuda().bfloat16())
config.finalize_model_grads_func = finalize_model_grads
optimizer = OptimizerConfig(optimizer="adam", lr=1e-4, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=bool(o.distributed))
optimizer = get_megatron_optimizer(optimizer, [model])


def batches():
    while True:
        ids = torch.randint(o.vocab, (o.micro, o.length))
        mask = torch.ones(o.micro, 1, o.length, o.length).tril() < 0.5
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
