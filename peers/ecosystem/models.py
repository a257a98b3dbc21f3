"""Trains every model of a library for two steps, many in one process, and prints a line of JSON for each. Run by run.py under rehearsal.

    models.py GROUP [--only TEXT] [--after NAME]

Each line begins with MATRIX: that a model begins, then its peak of torch.cuda.max_memory_allocated() and its seconds, or why it failed.
`--after` goes on behind a model that ended the process.
"""

import argparse
import functools
import gc
import importlib
import inspect
import json
import shutil
import sys
import tempfile
import time
import traceback
import warnings

import torch
import torch.nn.functional as F

STEPS = 2
DEVICE = "cuda"


def train(model, batch, loss_of):
    """The plain loop."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(STEPS):
        loss = loss_of(model, batch())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def tensors(value):
    """The floating-point tensors of a model's output, whatever it is."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() and value.requires_grad else []
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for each in value for tensor in tensors(each)] if isinstance(value, (list, tuple)) else []


def mean_of_all(model, batch):
    return sum(tensor.float().mean() for tensor in tensors(model(batch)))


# ---- torchvision -----------------------------------------------------------------------------------------------------------------------


def torchvision_classification():
    from torchvision import models

    for name in models.list_models(module=models):
        yield name, functools.partial(_classify, name)


def _classify(name):
    from torchvision import models

    slow_start = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model = models.get_model(name, weights=None, **slow_start)
    side = 299 if name == "inception_v3" else 224

    def loss_of(model, batch):
        x, y = batch
        output = model(x)
        logits = output if isinstance(output, torch.Tensor) else output[0]
        return F.cross_entropy(logits, y)

    train(model, lambda: (torch.randn(8, 3, side, side).to(DEVICE), torch.randint(1000, (8,)).to(DEVICE)), loss_of)


def torchvision_segmentation():
    from torchvision import models

    for name in models.list_models(module=models.segmentation):
        yield name, functools.partial(_segment, name)


def _segment(name):
    from torchvision import models

    def loss_of(model, batch):
        x, y = batch
        return sum(F.cross_entropy(output, y) for output in model(x).values())

    model = models.get_model(name, weights=None, weights_backbone=None, num_classes=21)
    train(model, lambda: (torch.randn(2, 3, 224, 224).to(DEVICE), torch.randint(21, (2, 224, 224)).to(DEVICE)), loss_of)


def torchvision_detection():
    from torchvision import models

    for name in models.list_models(module=models.detection):
        yield name, functools.partial(_detect, name)


def _detect(name):
    from torchvision import models

    def batch():
        images = [torch.rand(3, 320, 400).to(DEVICE) for _ in range(2)]
        targets = []
        for _ in images:
            corner = torch.rand(4, 2) * 150
            target = {"boxes": torch.cat([corner, corner + 60], 1), "labels": torch.randint(1, 2, (4,))}
            if name.startswith("maskrcnn"):
                target["masks"] = torch.zeros(4, 320, 400, dtype=torch.uint8)
            if name.startswith("keypointrcnn"):
                target["keypoints"] = torch.cat([torch.rand(4, 17, 2) * 200, torch.ones(4, 17, 1)], 2)
            targets.append({key: value.to(DEVICE) for key, value in target.items()})
        return images, targets

    # Their anchors stay where they were made.
    with torch.device("cpu"):
        model = models.get_model(name, weights=None, weights_backbone=None).to(DEVICE)
    train(model, batch, lambda model, batch: sum(model(*batch).values()))


# ---- timm ------------------------------------------------------------------------------------------------------------------------------


def timm():
    import timm

    for module in timm.list_modules():
        names = timm.list_models(module=module)
        if names:
            yield f"{module}: {names[0]}", functools.partial(_timm, names[0])


def _timm(name):
    import timm

    model = timm.create_model(name)
    size = model.default_cfg["input_size"]
    train(model, lambda: torch.randn(4, *size).to(DEVICE), mean_of_all)


# ---- transformers ----------------------------------------------------------------------------------------------------------------------

LAYERS = {
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_encoder_layers",
    "num_decoder_layers", "depth", "vision_layers", "text_encoder_layers", "speech_encoder_layers",
}  # fmt: skip
DEPTH = 4


def shallow(config):
    """A configuration of this class with few layers and its own widths; as it comes where it cannot be made shallow."""
    known = config().to_dict()
    small = {name: DEPTH for name in LAYERS & set(known) if isinstance(known[name], int) and known[name] > DEPTH}
    for name, part in (getattr(config, "sub_configs", None) or {}).items():
        if inspect.isclass(part) and part.__name__ != "AutoConfig" and isinstance(known.get(name), dict):
            small[name] = shallow(part).to_dict()
    try:
        return config(**small)
    except Exception:
        return config()


def _architectures(mapping):
    from transformers.models.auto import configuration_auto, modeling_auto

    for kind, names in getattr(modeling_auto, mapping).items():
        names = [names] if isinstance(names, str) else names
        for name in names:
            module = configuration_auto.model_type_to_module_name(kind)
            yield kind, name, module, configuration_auto.CONFIG_MAPPING_NAMES.get(kind)


def _transformers(mapping, batch_of):
    seen = set()
    for kind, name, module, config in _architectures(mapping):
        if (name, config) in seen:
            continue
        seen.add((name, config))
        yield f"{kind}: {name}", functools.partial(_plain, module, name, config, batch_of)
        yield f"{kind}: {name}, Trainer", functools.partial(_trainer, module, name, config, batch_of)


# What an architecture wants beside the rule.
SEQUENCE = {"reformer": 4096, "big_bird": 1024, "bigbird_pegasus": 1024}


def _made(module, name, config):
    models = importlib.import_module(f"transformers.models.{module}")
    made = _encoder_decoder() if module == "encoder_decoder" else shallow(getattr(models, config))
    if module == "reformer":
        made.is_decoder = name == "ReformerModelWithLMHead"
    model = getattr(models, name)(made)
    return model.train(), made


def _encoder_decoder():
    from transformers import BertConfig, EncoderDecoderConfig

    small = lambda: BertConfig(num_hidden_layers=DEPTH)
    made = EncoderDecoderConfig.from_encoder_decoder_configs(small(), small())
    made.decoder_start_token_id, made.pad_token_id = 101, 0
    return made


def _plain(module, name, config, batch_of):
    model, made = _made(module, name, config)
    samples = [batch_of(module, made) for _ in range(2)]
    batch = {key: torch.stack([sample[key] for sample in samples]) for key in samples[0]}

    def loss_of(model, batch):
        output = model(**batch)
        loss = getattr(output, "loss", None)
        return loss if loss is not None else sum(tensor.float().mean() for tensor in tensors(dict(output)))

    train(model, lambda: {key: value.to(DEVICE) for key, value in batch.items()}, loss_of)


def _trainer(module, name, config, batch_of):
    from transformers import Trainer, TrainingArguments

    model, made = _made(module, name, config)
    folder = tempfile.mkdtemp()
    arguments = TrainingArguments(
        folder, max_steps=STEPS, per_device_train_batch_size=2, bf16=True, report_to="none", save_strategy="no", disable_tqdm=True
    )
    with torch.device("cpu"):
        rows = [batch_of(module, made) for _ in range(2 * STEPS)]
        Trainer(model=model, args=arguments, train_dataset=rows).train()
    shutil.rmtree(folder, ignore_errors=True)


def _ids(module, config):
    text = config.get_text_config()
    vocabulary = min(getattr(text, "vocab_size", None) or 1000, 1000)
    with torch.device("cpu"):
        return torch.randint(10, vocabulary - 10, (SEQUENCE.get(module, 64),))


def _tokens(module, config):
    ids = _ids(module, config)
    return {"input_ids": ids, "labels": ids.clone()}


def _image(module, config):
    side = getattr(config, "image_size", None) or getattr(getattr(config, "vision_config", None), "image_size", None) or 224
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    with torch.device("cpu"):
        return {
            "pixel_values": torch.randn(getattr(config, "num_channels", None) or 3, height, width),
            "labels": torch.randint(config.num_labels, ()),
        }


def transformers_causal():
    yield from _transformers("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", _tokens)


def transformers_masked():
    yield from _transformers("MODEL_FOR_MASKED_LM_MAPPING_NAMES", _tokens)


def transformers_encoder_decoder():
    yield from _transformers("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", _tokens)


def transformers_vision():
    yield from _transformers("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", _image)


# ---- PEFT ------------------------------------------------------------------------------------------------------------------------------


def peft():
    import peft as library

    linear = {"target_modules": ["q_proj", "v_proj"]}
    adapters = {
        "LoRA": lambda: library.LoraConfig(task_type="CAUSAL_LM", **linear),
        "DoRA": lambda: library.LoraConfig(task_type="CAUSAL_LM", use_dora=True, **linear),
        "AdaLoRA": lambda: library.AdaLoraConfig(task_type="CAUSAL_LM", total_step=10, **linear),
        "IA3": lambda: library.IA3Config(task_type="CAUSAL_LM", feedforward_modules=[], **linear),
        "LoHa": lambda: library.LoHaConfig(task_type="CAUSAL_LM", **linear),
        "LoKr": lambda: library.LoKrConfig(task_type="CAUSAL_LM", **linear),
        "OFT": lambda: library.OFTConfig(task_type="CAUSAL_LM", **linear),
        "VeRA": lambda: library.VeraConfig(task_type="CAUSAL_LM", **linear),
        "prefix tuning": lambda: library.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=8),
        "prompt tuning": lambda: library.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=8),
        "p-tuning": lambda: library.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=8),
    }
    for name, made in adapters.items():
        yield name, functools.partial(_adapted, made)


def _adapted(made):
    from peft import get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=DEPTH, num_attention_heads=16)
    with torch.device("cpu"):
        model = get_peft_model(LlamaForCausalLM(config), made()).to(DEVICE)
    ids = torch.randint(1000, (2, 64))
    train(model, lambda: ids.to(DEVICE), lambda model, ids: model(input_ids=ids, labels=ids).loss)


# ---- diffusers -------------------------------------------------------------------------------------------------------------------------


def diffusers():
    import diffusers as library

    noise = lambda *sizes: torch.randn(2, *sizes, device=DEVICE)
    times = lambda: torch.randint(1000, (2,), device=DEVICE)
    made = {
        "UNet2DModel": lambda: (library.UNet2DModel(sample_size=64), lambda m: m(noise(3, 64, 64), times()).sample),
        "UNet2DConditionModel": lambda: (
            library.UNet2DConditionModel(sample_size=64, cross_attention_dim=768),
            lambda m: m(noise(4, 64, 64), times(), noise(77, 768)).sample,
        ),
        "DiTTransformer2DModel": lambda: (
            library.DiTTransformer2DModel(num_layers=DEPTH),
            lambda m: m(noise(4, 32, 32), times(), torch.randint(1000, (2,), device=DEVICE)).sample,
        ),
        "PixArtTransformer2DModel": lambda: (
            library.PixArtTransformer2DModel(num_layers=DEPTH, sample_size=32, caption_channels=768, use_additional_conditions=False),
            lambda m: m(noise(4, 32, 32), noise(20, 768), times(), {"resolution": None, "aspect_ratio": None}).sample,
        ),
        "SD3Transformer2DModel": lambda: (
            library.SD3Transformer2DModel(num_layers=DEPTH, sample_size=64),
            lambda m: m(noise(16, 64, 64), noise(77, 4096), noise(2048), times()).sample,
        ),
        "AutoencoderKL": lambda: (
            library.AutoencoderKL(block_out_channels=(64, 128), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2),
            lambda m: m(noise(3, 64, 64)).sample,
        ),
    }  # fmt: skip
    for name, maker in made.items():
        yield name, functools.partial(_diffuse, maker)


def _diffuse(maker):
    model, step = maker()
    train(model, lambda: None, lambda model, _: step(model).square().mean())


# ---- one after the other ---------------------------------------------------------------------------------------------------------------

GROUPS = {
    function.__name__: function
    for function in (
        torchvision_classification, torchvision_segmentation, torchvision_detection, timm, transformers_causal, transformers_masked,
        transformers_encoder_decoder, transformers_vision, peft, diffusers,
    )
}  # fmt: skip


def tell(**line):
    print("MATRIX", json.dumps(line), flush=True)


def one(name, run):
    tell(begins=name)
    torch.cuda.reset_peak_memory_stats()
    began = time.monotonic()
    failed = None
    try:
        with torch.device(DEVICE):
            run()
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        failed = f"{type(error).__name__}: {lines[0]}"
        traceback.print_exc(file=sys.stderr)
        # What its frames hold.
        traceback.clear_frames(error.__traceback__)
        del error
    line = {"name": name, "seconds": round(time.monotonic() - began, 2)}
    tell(**line, peak=torch.cuda.max_memory_allocated(), **({"failed": failed} if failed else {}))
    gc.collect()
    torch.cuda.empty_cache()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("group", choices=GROUPS)
    arguments.add_argument("--only", default="")
    arguments.add_argument("--after")
    arguments = arguments.parse_args()
    warnings.filterwarnings("ignore")
    torch.cuda.init()
    waits = arguments.after is not None
    for name, run in GROUPS[arguments.group]():
        if waits:
            waits = name != arguments.after
        elif arguments.only in name:
            one(name, run)


if __name__ == "__main__":
    main()
