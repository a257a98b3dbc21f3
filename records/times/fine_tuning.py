"""Steps of fine-tuning that others timed, predicted by rehearsals and then set beside what they measured: fine_tuning.csv.

    python records/times/fine_tuning.py predict VRAMLAB PYTHON [SOURCE...]   # PYTHON has torch, transformers and peft
    python records/times/fine_tuning.py measured PEFT FMS                    # clones of the repositories below
    python records/times/fine_tuning.py compare

`peft`: PEFT's methods on Llama 3.2 3B (../real_gpus/peft_methods.csv), batches of four texts of the mean length; what was measured is the mean of the
first 250 steps (huggingface/peft @ 5d602fdb, method_comparison/MetaMathQA/results). `fms`: all weights or LoRA of two models, packed texts, checkpoints,
100 steps (foundation-model-stack/fms-acceleration @ 876e2ed6, scripts/benchmarks/refs; its attention is FlashAttention's, ours PyTorch's own form of
it). The host takes so long for each launch as fits KernelBench's rows of other machines with these cards (docs/time.md).
"""

import csv
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
FILE = HERE / "fine_tuning.csv"
FIELDS = "source,case,card,predicted,low,high,device,host,bound_by,measured".split(",")
# By source: the card, and microseconds of a launch.
CARDS = {"peft": ("l40s", 16), "fms": ("a100-80g", 32)}
FMS = {"mistral-7b": "mistralai/Mistral-7B-v0.1", "powerlm-3b": "ibm/PowerLM-3b"}
# With which a variant of the same step is compared.
BASES = {"peft": lambda case: "lora--rank32", "fms": lambda case: case.replace("lora", "full").replace(" 8", " 4")}

sys.path.insert(0, str(HERE.parent / "real_gpus"))
import peft_methods  # noqa: E402


def cases(source):
    if source == "peft":
        return list(peft_methods.rows())
    return [f"{model} {trained} {batch}" for model in FMS for trained in ("full", "lora") for batch in (4, 8)]


def peft_model(method):
    import torch

    model = peft_methods.model_of(json.loads(peft_methods.rows()[method]["configuration"]))
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-4, weight_decay=0.1)
    return model, optimizer, peft_methods.BATCH, peft_methods.MEAN


def fms_model(case):
    import peft
    import torch
    import transformers

    name, trained, batch = case.split()
    if name == "mistral-7b":
        # FlashAttention has no mask for a window as long as the text.
        kind, config = transformers.MistralForCausalLM, transformers.MistralConfig(
            vocab_size=32000, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
            sliding_window=None)
    else:
        kind, config = transformers.GraniteForCausalLM, transformers.GraniteConfig(
            vocab_size=49152, hidden_size=2304, intermediate_size=9216, num_hidden_layers=40, num_attention_heads=36, num_key_value_heads=36,
            tie_word_embeddings=True)
    config.use_cache = False
    with torch.device("cuda"):
        model = kind._from_config(config, dtype=torch.bfloat16)
    if trained == "lora":
        model.enable_input_require_grads()
        lora = peft.LoraConfig(r=16, lora_alpha=16, lora_dropout=0.1, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, lora)
    model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=2e-5, weight_decay=0.01)
    return model, optimizer, int(batch), 4096


def step(source, case):
    """In the rehearsal."""
    import torch

    model, optimizer, batch, length = {"peft": peft_model, "fms": fms_model}[source](case)
    model.train()
    for at in range(1, 5):
        given = {"input_ids": torch.randint(0, 32000, (batch, length)).to("cuda")}
        more = {}
        if source == "peft":
            mask = torch.ones_like(given["input_ids"])
            mask[1:, -1] = 0
            given["attention_mask"] = mask
            more["num_items_in_batch"] = mask.sum().item()
        optimizer.zero_grad()
        model(**given, labels=given["input_ids"].clone(), **more).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if hasattr(getattr(model, "base_model", None), "update_and_allocate"):
            model.base_model.update_and_allocate(at)


def read():
    if not FILE.exists():
        return {}
    with open(FILE, newline="") as file:
        return {(row["source"], row["case"]): row for row in csv.DictReader(file)}


def write(rows):
    with open(FILE, "w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())


def predict(program, python, *sources):
    rows = read()
    for source in sources or CARDS:
        card, launch = CARDS[source]
        for case in cases(source):
            words = [program, "rehearse", "--gpu", card, "--steps", "4", "--launch-us", str(launch), "--json", "-"]
            done = subprocess.run([*words, "--", python, __file__, "step", source, case], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            try:
                time = json.loads(done.stdout)["time"]
                seconds = {name: time[f"{key}_seconds"] for name, key in
                           (("predicted", "step"), ("low", "low"), ("high", "high"), ("device", "device"), ("host", "host"))}
            except (ValueError, KeyError, TypeError):
                print(case, done.stderr[-2000:], file=sys.stderr)
                continue
            row = rows.setdefault((source, case), {"source": source, "case": case, "card": card, "measured": ""})
            row |= {name: f"{each:.4g}" for name, each in seconds.items()} | {"bound_by": time["bound_by"]}
            print(case, row["predicted"], row["bound_by"], file=sys.stderr)
            write(rows)


def of_peft(folder):
    for method in peft_methods.rows():
        name, _, rest = method.partition("--")
        with open(folder / f"method_comparison/MetaMathQA/results/{name}--llama-3.2-3B-{rest}.json") as file:
            first = json.load(file)["train_info"]["metrics"][0]
        yield method, first["train time"] / first["step"]


def of_fms(folder):
    for name in ("a100_80gb.csv", "a100_80gb_granite.csv"):
        with open(folder / "scripts/benchmarks/refs" / name, newline="") as file:
            for row in csv.DictReader(file):
                model = next((model for model, of in FMS.items() if of == row["model_name_or_path"]), None)
                if model and row["framework_config"] == "none" and row["num_gpus"] == "1" and row["train_runtime"]:
                    yield f"{model} {row['peft_method'] or 'full'} {row['per_device_train_batch_size']}", float(row["train_runtime"]) / 100


def measured(peft, fms):
    rows = read()
    for source, found in (("peft", of_peft(pathlib.Path(peft))), ("fms", of_fms(pathlib.Path(fms)))):
        for case, seconds in found:
            rows[source, case]["measured"] = f"{seconds:.4g}"
    write(rows)
    compare()


def compare():
    rows = read()
    for source in CARDS:
        of = lambda name: {case: float(row[name]) for (one, case), row in rows.items() if one == source}
        predicted, seconds, low, high = map(of, ("predicted", "measured", "low", "high"))
        ratio = lambda some, case: some[case] / some[BASES[source](case)]
        for case in sorted(seconds, key=seconds.get):
            ratios = f"{ratio(predicted, case):.2f} {ratio(seconds, case):.2f}"
            print(f"{case:32} {predicted[case]:7.3f} s predicted {seconds[case]:7.3f} s measured, beside {BASES[source](case)} {ratios}")
        errors = [abs(predicted[case] / seconds[case] - 1) for case in seconds]
        ratios = [abs(ratio(predicted, case) / ratio(seconds, case) - 1) for case in seconds if BASES[source](case) != case]
        for name, some in (("seconds", errors), ("ratios", ratios)):
            print(f"{source}, {name}: {statistics.median(some):.1%} / {statistics.quantiles(some, n=10, method='inclusive')[-1]:.1%} of {len(some)}")
        print(f"{source}, in the band: {sum(low[case] <= seconds[case] <= high[case] for case in seconds)} of {len(seconds)}")


if __name__ == "__main__":
    {"step": step, "predict": predict, "measured": measured, "compare": compare}[sys.argv[1]](*sys.argv[2:])
