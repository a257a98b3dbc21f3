"""torchtitan#191: Llama 13B, two ways data parallel and four ways tensor parallel, batch 8, checkpoints by operator, as the first of eight ranks.

Runs `train.py` of torchtitan (which was torchtrain) with its `llama_13b.toml`: FSDP1 before, FSDP2 after. Random tokens are the data. A name of a nightly
of April 2024 that PyTorch has no more is given to it. A rehearsal has a process group of its own, so what NCCL's did then is done here: tensors of
asynchronous collectives are free once its stream is there, unless TORCH_NCCL_AVOID_RECORD_STREAMS is set.
"""
import os
import pathlib
import sys
import tempfile
import types

import torch
import torch.utils.checkpoint
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts


def contexts(is_kept):
    def policy(context, *operation, **words):
        kept = is_kept("recompute" if context.is_recompute else "forward", *operation, **words)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


torch.utils.checkpoint._pt2_selective_checkpoint_context_fn_gen = contexts


def batches(_dataset, _path, _tokenizer, batch, length, *_place):
    while True:
        yield tuple(torch.randint(32000, (2, batch, length)))


data = types.SimpleNamespace(create_tokenizer=lambda *_: types.SimpleNamespace(n_words=32000), dataloader_fn={"openwebtext": batches})
sys.modules["torchtrain.datasets"] = data
sys.modules["torch.utils.tensorboard"] = types.SimpleNamespace(SummaryWriter=None)
import train  # noqa: E402

config = train.JobConfig()
toml = pathlib.Path(train.__file__).parent / "train_configs/llama_13b.toml"
words = ["--training.tensor_parallel_degree", "4", "--training.steps", "3", "--metrics.log_freq", "1"]
config.parse_args(["--job.config_file", str(toml), "--job.dump_folder", tempfile.mkdtemp(), *words])
config.profiling.run_profiler = config.metrics.enable_tensorboard = False
train.set_pg_timeouts = lambda **_: None


def recorded(collective):
    def run(group, output, given, options=None, *more):
        if getattr(options, "asyncOp", True) and os.environ.get("TORCH_NCCL_AVOID_RECORD_STREAMS", "0") == "0":
            for tensor in (output, given):
                tensor.record_stream(nccl)
        return collective(group, output, given, options, *more)

    return run


def connect(config, connect=train.init_distributed):
    global nccl
    connect(config)
    nccl, group = torch.cuda.Stream(), type(torch.distributed.group.WORLD)
    for name in ["_allgather_base", "_reduce_scatter_base"]:
        setattr(group, name, recorded(getattr(group, name)))


train.init_distributed = connect
train.main(config)
