"""torchtitan#191: Llama 13B, two ways data parallel and four ways tensor parallel, batch 8, checkpoints by operator, as the first of eight ranks.

Runs `train.py` of torchtitan (which was torchtrain) with its `llama_13b.toml`: FSDP1 before, FSDP2 after. Random tokens are the data. Names of a nightly
of April 2024 that PyTorch 2.6 has no more are given to it.
"""
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
train.main(config)
