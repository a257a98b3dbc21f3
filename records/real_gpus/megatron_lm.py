"""The rows of megatron_lm.csv run again: the first training steps of Megatron-LM's functional tests, as the last of their 8 ranks, which is the one
that logs, with its own model, optimizer and schedules. The loop around them is written anew (README.md names it). Needs megatron-core.
"""

import csv
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

DEVICE = "cuda"
TITLES = {"a100": "NVIDIA A100-SXM4-80GB", "h100": "NVIDIA H100 80GB HBM3", "gb200": "NVIDIA B200"}
RANKS, STEPS, GLOBAL_BATCH = 8, 3, 32
LAYERS, HIDDEN, HEADS, LENGTH, BATCH = 12, 512, 8, 1024, 4
# GPT-2's; Megatron pads it to a multiple of 128 for each part of a tensor.
VOCABULARY = 50257
# Those of the tests' settings that PyTorch and Megatron read.
SETTINGS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def rows():
    with open(Path(__file__).with_name("megatron_lm.csv"), newline="") as file:
        return {(row["case"], row["gpu"]): row for row in csv.DictReader(file)}


def prepare():
    """What is to be set before CUDA comes up and before Megatron is imported."""
    os.environ.update(SETTINGS)
    # No kernel is compiled for a GPU that is not there.
    torch.compiler.set_stance("force_eager")
    # Stand-ins for Apex's kernels, which allocate alike: one result forward, none backward.
    softmax = SimpleNamespace(forward=lambda scores, _: torch.empty_like(scores), backward=lambda gradient, *_: gradient.contiguous())
    sys.modules["scaled_upper_triang_masked_softmax_cuda"] = softmax
    sys.modules["scaled_masked_softmax_cuda"] = SimpleNamespace(get_batch_per_block=lambda *_: 4)


def training(row):
    """The model, its optimizer and a function that makes a step."""
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.module import Float16Module
    from torch.testing._internal.distributed.fake_pg import FakeStore

    tensor, pipeline = int(row["tensor_parallel"]), int(row["pipeline_parallel"])
    distributed, bf16 = row["distributed_optimizer"] == "1", row["precision"] == "bf16"
    precision = dict(bf16=bf16, fp16=not bf16, params_dtype=torch.bfloat16 if bf16 else torch.float16)
    torch.distributed.init_process_group("fake", rank=RANKS - 1, world_size=RANKS, store=FakeStore())
    parallel_state.initialize_model_parallel(tensor, pipeline, create_gloo_process_groups=False)
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    config = TransformerConfig(
        num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline,
        pipeline_dtype=precision["params_dtype"], apply_query_key_layer_scaling=True, masked_softmax_fusion=row["fused_softmax"] == "1",
        bias_activation_fusion=True, bias_dropout_fusion=True, deterministic_mode=True, deallocate_pipeline_outputs=True, batch_p2p_comm=True, **precision,
    )  # fmt: skip
    first, last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
    multiple = 128 * tensor
    model = GPTModel(
        config, get_gpt_layer_local_spec(), vocab_size=-(-VOCABULARY // multiple) * multiple, max_sequence_length=LENGTH, pre_process=first,
        post_process=last, share_embeddings_and_output_weights=True,
    )  # fmt: skip
    buckets = DistributedDataParallelConfig(
        grad_reduce_in_fp32=bf16, overlap_grad_reduce=distributed, overlap_param_gather=distributed, use_distributed_optimizer=distributed,
        check_for_nan_in_grad=True, bucket_size=40_000_000 if distributed else None,
    )  # fmt: skip
    model = DistributedDataParallel(config, buckets, Float16Module(config, model.to(DEVICE)))
    settings = OptimizerConfig(
        lr=1.5e-4, min_lr=1e-5, weight_decay=0.01, clip_grad=1.0, log_num_zeros_in_grad=True, use_distributed_optimizer=distributed,
        overlap_param_gather=distributed, **precision,
    )  # fmt: skip
    optimizer = get_megatron_optimizer(settings, [model], use_gloo_process_groups=False)
    config.grad_scale_func, config.finalize_model_grads_func = optimizer.scale_loss, finalize_model_grads
    if distributed:
        config.no_sync_func, config.grad_sync_func = model.no_sync, model.start_grad_sync
    forward_backward = get_forward_backward_func()

    def forward(batches, model):
        tokens, labels, positions, weights, mask = next(batches) if first or last else [None] * 5

        def loss_of(output):
            loss = torch.sum(output.view(-1).float() * weights.view(-1))
            count = weights.sum().clone().detach().to(torch.int)
            return loss, count, {"loss": torch.cat([loss.clone().detach().view(1), count.view(1)])}

        return model(tokens, positions, mask, labels=labels), loss_of

    def batches():
        while True:
            numbers = lambda: torch.zeros(BATCH, LENGTH, dtype=torch.long, device=DEVICE)
            mask = torch.zeros(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool, device=DEVICE)
            yield numbers() if first else None, numbers(), numbers() if first else None, torch.ones(BATCH, LENGTH, device=DEVICE), mask

    def step():
        model.zero_grad_buffer()
        optimizer.zero_grad()
        micro_batches = GLOBAL_BATCH // BATCH * tensor * pipeline // RANKS
        losses = forward_backward(
            forward_step_func=forward, data_iterator=batches(), model=[model], num_microbatches=micro_batches, seq_length=LENGTH,
            micro_batch_size=BATCH, forward_only=False,
        )  # fmt: skip
        optimizer.step()
        return losses

    return step


def memory(row):
    """Bytes allocated after a step, and at most until then."""
    step = training(row)
    for _ in range(STEPS):
        # It logs before it forgets the losses.
        losses = step()
    return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
