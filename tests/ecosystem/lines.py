"""The lines that `vramlab rehearse --what-if` tells people to write, written: does a script with them ask for the bytes that the technique
was measured with? Here are those that name another library; tests/rehearse/what_if.rs has the others.

    lines.py PROGRAM        with the Python that runs this, which has transformers, accelerate, torchao and bitsandbytes

Its exit status is 1 where a script with the lines asks for other bytes.
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path


@dataclasses.dataclass
class Script:
    """A script, how it says its techniques, and what stands where their lines go."""

    title: str
    techniques: list
    source: str
    paste: object


def instead_of_the_optimizer(source, lines):
    before = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)"
    assert source.count(before) == 1
    return source.replace(before, lines.replace("lr=...", "lr=1e-3"))


def before_the_optimizer(source, lines):
    assert source.count("optimizer = ") == 1
    return source.replace("optimizer = ", f"{lines}\noptimizer = ")


def as_arguments(source, lines):
    more = lines.removeprefix("TrainingArguments(..., ").removesuffix(")")
    assert lines == f"TrainingArguments(..., {more})" and source.count("report_to=") == 1
    return source.replace("report_to=", f"{more}, report_to=")


PLAIN = '''
import torch
from torch import nn

blocks = [nn.Sequential(nn.LayerNorm(512), nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(4)]
model = nn.Sequential(*blocks).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
while True:
    x = torch.randn(32, 512).cuda()
    nn.functional.mse_loss(model(x), x).backward()
    optimizer.step()
    optimizer.zero_grad()
'''

TRAINER = '''
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

config = LlamaConfig(hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8, vocab_size=4096)
rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(4096, (64, 256))]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, per_device_train_batch_size=4, max_steps=8, save_strategy="no", disable_tqdm=True, report_to="none")
    Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=rows).train()
'''

EIGHT_BIT = ["8-bit-torchao", "8-bit-bitsandbytes"]

SCRIPTS = [
    Script("a plain loop", EIGHT_BIT, PLAIN, instead_of_the_optimizer),
    Script("a plain loop", ["qlora"], PLAIN, before_the_optimizer),
    Script(
        "Hugging Face Trainer",
        [*EIGHT_BIT, "factored", "autocast-bf16", "autocast-fp16", "checkpoint-every", "checkpoint-second"],
        TRAINER,
        as_arguments,
    ),
]


def rehearse(folder, flags):
    """The answer of train.py in the folder, and what was said."""
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    words = [sys.argv[1], "rehearse", "--quiet", "--json", str(answer), *flags, "--", sys.executable, str(folder / "train.py")]
    done = subprocess.run(words, capture_output=True, text=True)
    return json.loads(answer.read_text()) if answer.exists() else {}, done.stderr.strip()


def main():
    failed = False
    for script in SCRIPTS:
        with tempfile.TemporaryDirectory() as folder:
            train = Path(folder) / "train.py"
            train.write_text(script.source)
            measured, said = rehearse(Path(folder), ["--what-if", "--only", ",".join(script.techniques)])
            for technique in script.techniques:
                row = next((row for row in measured or [] if row["techniques"] == [technique]), {"reason": said})
                why = row.get("reason") or ""
                if not why:
                    train.write_text(script.paste(script.source, row["snippet"]))
                    answer, said = rehearse(Path(folder), [])
                    differ = [peak for peak in ("peak_allocated", "peak_reserved") if row[peak] != answer.get(peak)]
                    told = ", ".join(f"{peak} {row[peak]} B by its hooks and {answer.get(peak)} B by its lines" for peak in differ)
                    why = told if answer else said
                print(f"{script.title}, {technique}: {why or 'the bytes of its hooks'}", flush=True)
                failed |= bool(why)
    sys.exit(failed)


if __name__ == "__main__":
    main()
