"""Six programs that ran on an H200 (records/gpus/programs), and what calculators say of each: docs/calculators.md's table.

    estimate.py [--fakegpu CLONE]     runs each calculator that is installed on each model, and writes the table
    estimate.py PROGRAM [CALCULATOR]  what they say of one

What they have said is kept in answers.json beside this file, and not asked again as long as that is there.

Each is called as its documentation says, with the model, the batch, the precision and the optimizer of the program as far as it takes them. FakeGPU is
no package: CLONE is of github.com/FanBB2333/FakeGPU. Needs transformers, timm and torchvision; no GPU.
"""

import contextlib
import csv
import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
RECORDS, PAGE, ANSWERS = ROOT / "records/gpus", ROOT / "docs/calculators.md", Path(__file__).with_name("answers.json")
LLAMA = dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
             tie_word_embeddings=True, max_position_embeddings=4096)  # fmt: skip
#: Of each program the optimizer, the type of its weights, and that of autocast.
PROGRAMS = {
    "gpt2_bf16": ("adamw", torch.float32, torch.bfloat16),
    "llama_full": ("adamw", torch.bfloat16, None),
    "t5_fp32": ("sgd", torch.float32, None),
    "lstm": ("sgd", torch.float32, None),
    "vit_timm": ("adamw", torch.float32, torch.bfloat16),
    "resnet50_amp": ("sgd", torch.float32, torch.float16),
}


class Words(torch.nn.Module):
    """Of records/gpus/programs/lstm.py."""

    def __init__(self, words=33278, width=650):
        super().__init__()
        nn = torch.nn
        self.drop, self.encoder, self.rnn = nn.Dropout(0.5), nn.Embedding(words, width), nn.LSTM(width, width, 2, dropout=0.5)
        self.decoder = nn.Linear(width, words)

    def forward(self, x):
        return torch.nn.functional.log_softmax(self.decoder(self.drop(self.rnn(self.drop(self.encoder(x)))[0])).flatten(0, 1), 1)


def model_of(program, device="meta"):
    """The model, its input without the batch, and the batch."""
    with torch.device(device):
        return made(program)


def made(program):
    if program == "gpt2_bf16":
        from transformers import GPT2Config, GPT2LMHeadModel

        return GPT2LMHeadModel(GPT2Config()), (1024,), 8
    if program == "llama_full":
        from transformers import LlamaConfig, LlamaForCausalLM

        return LlamaForCausalLM._from_config(LlamaConfig(**LLAMA), dtype=torch.bfloat16), (2048,), 2
    if program == "t5_fp32":
        from transformers import T5Config, T5ForConditionalGeneration

        config = T5Config(d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0)
        return T5ForConditionalGeneration(config), (512,), 8
    if program == "lstm":
        return Words(), (35,), 64
    if program == "vit_timm":
        import timm

        return timm.create_model("vit_base_patch16_224"), (3, 224, 224), 128
    import torchvision

    return torchvision.models.resnet50(), (3, 224, 224), 128


class Loss(torch.nn.Module):
    """The program's step up to its loss, for those that trace one."""

    def __init__(self, program, model):
        super().__init__()
        self.model, self.program, self.autocast = model, program, PROGRAMS[program][2]

    def forward(self, x, target):
        with torch.autocast("cpu", self.autocast) if self.autocast else contextlib.nullcontext():
            if self.program in ("gpt2_bf16", "llama_full", "t5_fp32"):
                return self.model(input_ids=x, labels=target).loss
            kind = torch.nn.functional.nll_loss if self.program == "lstm" else torch.nn.functional.cross_entropy
            return kind(self.model(x), target)


def batch_of(program, shape, batch):
    if program == "t5_fp32":
        return torch.randint(32000, (8, 512)), torch.randint(32000, (8, 128))
    if program == "lstm":
        return torch.randint(33278, (35, 64)), torch.randint(33278, (35 * 64,))
    if len(shape) == 1:
        tokens = torch.randint(50257, (batch, *shape))
        return tokens, tokens
    return torch.randn(batch, *shape), torch.randint(1000, (batch,))


def parameters(program):
    model, _, _ = model_of(program)
    return 16 * sum(each.numel() for each in model.parameters())


def accelerate(program):
    """What `accelerate estimate-memory` does once it has the model on meta tensors."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    total, _ = calculate_maximum_sizes(model_of(program)[0])
    kind = "bf16" if PROGRAMS[program][1] == torch.bfloat16 else "float32"
    return max(estimate_training_usage(total, "float32" if kind == "float32" else "bfloat16").values())


def deepspeed(program):
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs_all_cold

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        estimate_zero2_model_states_mem_needs_all_cold(parameters(program) // 16, num_gpus_per_node=1)
    return float(re.search(r"([\d.]+)GB \| offload_optimizer=none", said.getvalue())[1]) * 2**30


def vram_check(program):
    import vram_check

    model, _, batch = model_of(program)
    optimizer, weights, _ = PROGRAMS[program]
    report = vram_check.analyze(model, batch_size=batch, dtype="bf16" if weights == torch.bfloat16 else "fp32", optimizer=optimizer)
    return report["estimate"].total_gb * 2**30


def torch_kitsune(program):
    from kitsune.predict import predict_hf_memory, predict_memory

    model, shape, batch = model_of(program, "cpu" if program in ("vit_timm", "resnet50_amp", "lstm") else "meta")
    optimizer, weights, autocast = PROGRAMS[program]
    flags = dict(batch_size=batch, dtype=autocast or weights, optimizer=optimizer, training=True)
    if hasattr(model, "config") and hasattr(model.config, "save_pretrained"):
        # Of a model of transformers it reads the configuration.
        with tempfile.TemporaryDirectory() as folder:
            model.config.save_pretrained(folder)
            found = predict_hf_memory(folder, seq_len=shape[0], **flags)
    else:
        found = predict_memory(model, input_shape=shape, **flags)
    return found.param_bytes + found.gradient_bytes + found.optimizer_bytes + found.activation_bytes + found.overhead_bytes


def optimizer_of(program, model):
    kind, _, _ = PROGRAMS[program]
    return torch.optim.AdamW(model.parameters()) if kind == "adamw" else torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.0 if program == "lstm" else 0.9)


def mem_tracker(program):
    """On the CPU: the backward pass of fake CUDA tensors asks for a CUDA context, which needs a GPU."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode(), torch.device("cpu"):
        model, shape, batch = made(program)
        model = Loss(program, model)
        optimizer, tracker = optimizer_of(program, model), MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            for step in range(2):
                if step:
                    tracker.reset_mod_stats()
                model(*batch_of(program, shape, batch)).backward()
                optimizer.step()
                optimizer.zero_grad()
        return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


def fakegpu(program):
    from fakegpu import estimate_module_memory

    model, shape, batch = model_of(program, "cpu")
    found = estimate_module_memory(Loss(program, model), batch_of(program, shape, batch), mode="training", optimizer=PROGRAMS[program][0], target_device="cuda")
    return found["estimated_peak_bytes"]


#: Its name, the package that it comes with, and what calls it.
CALCULATORS = {
    "16 bytes for each parameter": (None, parameters),
    "accelerate estimate-memory": ("accelerate", accelerate),
    "DeepSpeed's estimator, ZeRO 2, one GPU": ("deepspeed", deepspeed),
    "vram-check": ("vram-check", vram_check),
    "torch-kitsune": ("torch-kitsune", torch_kitsune),
    "PyTorch's MemTracker over fake tensors": ("torch", mem_tracker),
    "FakeGPU, estimate_module_memory": ("fakegpu", fakegpu),
}


def version_of(package):
    try:
        return importlib.metadata.version(package).split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return __import__(package).__version__


def answer(program, names):
    """Prints what each calculator says, as far as it does."""
    for name, (_, calculator) in CALCULATORS.items():
        if name not in names:
            continue
        try:
            print(f"{name}\t{int(calculator(program))}", flush=True)
        except Exception as error:
            print(f"{program}, {name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}", file=sys.stderr, flush=True)


def asked(program):
    known = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    missing = [name for name in CALCULATORS if f"{program}, {name}" not in known]
    if missing:
        asking = subprocess.Popen([sys.executable, __file__, program, *missing], stdout=subprocess.PIPE, text=True)
        for line in asking.stdout:
            name, tab, said = line.rstrip().partition("\t")
            if tab and name in CALCULATORS:
                known[f"{program}, {name}"] = int(said)
                ANSWERS.write_text(json.dumps(known, indent=1))
                print(f"{program}, {line.rstrip()}", file=sys.stderr, flush=True)
        asking.wait()
    return {name: known.get(f"{program}, {name}") for name in CALCULATORS}


def recorded(file):
    with open(RECORDS / file, newline="") as rows:
        return {row["program"]: int(row["peak_allocated"]) for row in csv.DictReader(rows) if row["program"] in PROGRAMS}


def table():
    measured = recorded("h200-measured.csv")
    lines = [f"| | {' | '.join(PROGRAMS)} |", f"|---|{'---:|' * len(PROGRAMS)}"]

    def row(name, found):
        def cell(program):
            if found.get(program) is None:
                return "–"
            apart = "" if found is measured else f" ({found[program] / measured[program] - 1:+.0%})"
            return f"{found[program] / 2**30:.2f}{apart}"

        lines.append(f"| {name} | {' | '.join(cell(program) for program in PROGRAMS)} |")
        print(lines[-1], file=sys.stderr, flush=True)

    row("**measured on an H200**", measured)
    row("`vramlab rehearse --gpu h200`, before that", recorded("h200-rehearsed.csv"))
    answers = {program: asked(program) for program in PROGRAMS}
    for name, (package, _) in CALCULATORS.items():
        row(f"{name} ({version_of(package)})" if package else name, {program: answers[program].get(name) for program in PROGRAMS})
    return "\n".join(lines).replace("(-0%", "(0%").replace("(+0%", "(0%").replace("(-", "(−")


if __name__ == "__main__":
    if "--fakegpu" in sys.argv:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (sys.argv[2], os.environ.get("PYTHONPATH"))))
        sys.path.insert(0, sys.argv[2])
    if sys.argv[1:] and sys.argv[1] in PROGRAMS:
        answer(sys.argv[1], sys.argv[2:] or CALCULATORS)
    else:
        before, rest = PAGE.read_text().split("<!-- calculators: written by records/calculators/estimate.py -->\n")
        after = rest.split("<!-- end of calculators -->")[1]
        PAGE.write_text(f"{before}<!-- calculators: written by records/calculators/estimate.py -->\n\n{table()}\n\n<!-- end of calculators -->{after}")
