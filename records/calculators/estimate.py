"""What calculators say of train.py's model, one line for each that is installed: `python estimate.py`. docs/calculators.md has their answers."""

import contextlib
import importlib.metadata
import io
import re

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import GPT2Config, GPT2LMHeadModel

GIB = 2**30


def say(name, package, gib):
    print(f"{name} ({package} {importlib.metadata.version(package)}): {gib:.2f} GiB")


def accelerate():
    """`accelerate estimate-memory` asks the hub for the configuration; this is what it does then."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    with torch.device("meta"):
        total, _ = calculate_maximum_sizes(GPT2LMHeadModel(GPT2Config()))
    say("accelerate estimate-memory, training with Adam", "accelerate", max(estimate_training_usage(total, "float32").values()) / GIB)


def deepspeed():
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs_all_live

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        estimate_zero2_model_states_mem_needs_all_live(GPT2LMHeadModel(GPT2Config()), num_gpus_per_node=1)
    on_gpu = re.search(r"([\d.]+)GB \| offload_optimizer=none", said.getvalue())
    say("DeepSpeed's estimator, ZeRO 2 on one GPU", "deepspeed", float(on_gpu[1]))


def mem_tracker():
    """On the CPU: the backward pass of fake CUDA tensors asks for a CUDA context, which needs a GPU."""
    with FakeTensorMode(), torch.device("cpu"):
        model = GPT2LMHeadModel(GPT2Config())
        optimizer = torch.optim.AdamW(model.parameters())
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            for step in range(2):
                if step:
                    tracker.reset_mod_stats()
                tokens = torch.randint(50257, (8, 1024))
                model(tokens, labels=tokens).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    say("MemTracker over fake tensors", "torch", peak["Total"] / GIB)


for estimate in (accelerate, deepspeed, mem_tracker):
    try:
        estimate()
    except ImportError as missing:
        print(f"{estimate.__name__}: {missing}")
