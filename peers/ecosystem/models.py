"""Trains every model of a library for two steps, many in one process, and prints a line of JSON for each. Run by run.py under rehearsal.

    models.py GROUP [--only TEXT...] [--after NAME]

Each line begins with MATRIX: that a model begins, then its peak of torch.cuda.max_memory_allocated(), less what was allocated before, and
its seconds, or why it failed. One that failed is tried on the CPU: where it fails there with the same error, it is not the simulated GPU's.
`--after` goes on behind a model that ended the process.
"""

import argparse
import contextlib
import faulthandler
import functools
import gc
import importlib
import inspect
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings

import numpy as np
import torch
import torch.nn.functional as F

STEPS = 2
DEVICE = "cuda"
# Seconds of processor time that a model may take, and of wall clock after which its process is ended.
TIMEOUT, END = 90, 600
# Bytes that a model which failed may take of the host.
ON_THE_CPU = 8 << 30


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

    # Their anchors are moved after they were made.
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
# Layers of several kinds, of which four are not all.
DEEPER = {"BailingHybridConfig": 8, "JambaConfig": 8, "KimiLinearConfig": 8, "ZambaConfig": 12}
# What has no value of its own that works, or one that no card holds.
WANTED = {
    "BambaConfig": {"attn_layer_indices": [1, 3]},
    # Without a model's own entropy, which nobody computes here, to cut the text by; its cache asks for layers that it has no number of.
    "BltConfig": {"patching_mode": "static", "use_cache": False},
    "CohereCompassTextConfig": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "DbrxAttentionConfig": {"rope_theta": 10000.0, "clip_qkv": 8.0},
    # Grouped products want rows of whole 16 bytes; 1407, the default, has none.
    "DeepseekV2Config": {"num_experts_per_tok": 6, "moe_intermediate_size": 1408},
    "Dots1Config": {"n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2},
    "EsmConfig": {"vocab_size": 33, "pad_token_id": 1},
    "Gemma3nTextConfig": {"num_kv_shared_layers": 0},
    "HunYuanDenseV1Config": {"head_dim": 128},
    "HunYuanMoEV1Config": {"head_dim": 128},
    "InklingTextConfig": {"n_routed_experts": 32},
    "Lfm2MoeConfig": {"layer_types": ["conv", "full_attention"] * 2},
    "LongcatFlashConfig": {"n_routed_experts": 64, "zero_expert_num": 32},
    "MinistralConfig": {"head_dim": 128},
    "NemotronConfig": {"head_dim": 128, "num_key_value_heads": 8},
    "Qwen4ExpTextConfig": {
        "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 256, "indexer_budget": 512, "indexer_compress_ratio": 16,
    },
    "ShieldGemma2Config": {"mm_tokens_per_image": 16},
    "GraniteMoeHybridConfig": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "XmodConfig": {"default_language": "en_XX"},
}
# The same of one architecture of several: its cache counts the layers of the encoder that it has not.
WANTED_BY = {"BlenderbotForCausalLM": {"use_cache": False}}
# Modules whose own code mixes types, or calls what there is none of for bf16, where a Trainer's autocast gives them bf16.
IN_32_BITS = {"bigbird_pegasus", "deberta", "fnet", "inkling", "xmod", "yoso"}


def shallow(config):
    """A configuration of this class with few layers and its own widths; as it comes where it cannot be made shallow."""
    known = config().to_dict()
    depth = DEEPER.get(config.__name__, DEPTH)
    small = {name: depth for name in LAYERS & set(known) if isinstance(known[name], int) and known[name] > depth}
    small |= WANTED.get(config.__name__, {})
    for name, part in (getattr(config, "sub_configs", None) or {}).items():
        if inspect.isclass(part) and part.__name__ != "AutoConfig" and isinstance(known.get(name), dict):
            small[name] = shallow(part).to_dict()
    # Two names may stand for one thing, or one follow from another.
    for names in (LAYERS, *({name} for name in sorted(LAYERS & set(small))), set()):
        with contextlib.suppress(Exception):
            return config(**{name: value for name, value in small.items() if name not in LAYERS or name in names})
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
SEQUENCE = {"reformer": 4096, "big_bird": 1024, "bigbird_pegasus": 1024, "perceiver": 2048}


def _made(module, name, config):
    import transformers

    models = importlib.import_module(f"transformers.models.{module}")
    architecture = getattr(models, name, None) or getattr(transformers, name)
    # A model that is a part of others has a configuration of its own.
    config = getattr(architecture, "config_class", None) or getattr(models, config)
    made = _encoder_decoder() if module == "encoder_decoder" else shallow(config)
    for name_of, value in WANTED_BY.get(name, {}).items():
        setattr(made, name_of, value)
    if module == "perceiver":
        made.num_cross_attention_heads = 1
    if module == "reformer":
        made.is_decoder = name == "ReformerModelWithLMHead"
    if getattr(made, "is_encoder_decoder", False) and getattr(made, "decoder_start_token_id", None) is None:
        made.decoder_start_token_id = 0
    # Some parameters are made by constructors that know of no device.
    return architecture(made).train().to(DEVICE), made


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
        return loss if loss is not None else _mean(output)

    train(model, lambda: {key: value.to(DEVICE) for key, value in batch.items()}, loss_of)


def _mean(output):
    return sum(tensor.float().mean() for tensor in tensors(dict(output)))


def _trainer(module, name, config, batch_of):
    from transformers import Trainer, TrainingArguments

    class WithoutLoss(Trainer):
        """Of an architecture that knows no labels."""

        def compute_loss(self, model, inputs, return_outputs=False, **_):
            output = model(**inputs)
            return (_mean(output), output) if return_outputs else _mean(output)

    model, made = _made(module, name, config)
    folder = tempfile.mkdtemp()
    arguments = TrainingArguments(
        folder, max_steps=STEPS, per_device_train_batch_size=2, bf16=module not in IN_32_BITS, report_to="none", save_strategy="no",
        disable_tqdm=True, use_cpu=DEVICE == "cpu",
    )  # fmt: skip
    with torch.device("cpu"):
        rows = [batch_of(module, made) for _ in range(2 * STEPS)]
        knows_labels = "labels" in rows[0] and "labels" in inspect.signature(model.forward).parameters
        (Trainer if knows_labels else WithoutLoss)(model=model, args=arguments, train_dataset=rows).train()
    shutil.rmtree(folder, ignore_errors=True)


def note_of(run):
    return "in 32 bits" if run.func is _trainer and run.args[0] in IN_32_BITS else ""


def _ids(module, config):
    text = config.get_text_config()
    vocabulary = min(getattr(text, "vocab_size", None) or 1000, 1000)
    with torch.device("cpu"):
        return torch.randint(min(10, vocabulary // 4), vocabulary * 3 // 4, (SEQUENCE.get(module, 64),))


def _tokens(module, config):
    ids = _ids(module, config)
    batch = {"input_ids": ids, "labels": ids.clone()}
    if module == "git":
        batch["pixel_values"] = torch.randn(3, 224, 224, device="cpu")
    if module in ("musicgen", "musicgen_melody"):
        # Of each codebook one.
        codes = ids.repeat(config.get_text_config().num_codebooks, 1)
        batch = {"input_ids": codes, "labels": codes.T.clone()}
    if module == "voxtral_realtime":
        batch["input_features"] = torch.randn(config.audio_config.num_mel_bins, config.audio_length_per_tok * len(ids), device="cpu")
    return batch


def _image(module, config):
    side = getattr(config, "image_size", None) or getattr(getattr(config, "vision_config", None), "image_size", None) or 224
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    channels = getattr(config, "num_channels", None) or 3
    with torch.device("cpu"):
        labels = torch.randint(config.num_labels, ())
        if module == "imagegpt":
            return {"input_ids": torch.randint(512, (1024,)), "labels": labels}
        if module == "shieldgemma2":
            ids = _ids(module, config)
            ids[: config.mm_tokens_per_image] = config.image_token_index
            of_image = (ids == config.image_token_index).long()
            return {"input_ids": ids, "token_type_ids": of_image, "pixel_values": torch.randn(channels, height, width)}
        if module == "siglip2":
            patches, mask = torch.randn(256, channels * config.vision_config.patch_size**2), torch.ones(256, dtype=torch.int32)
            return {"pixel_values": patches, "pixel_attention_mask": mask, "spatial_shapes": torch.tensor([16, 16]), "labels": labels}
        return {"pixel_values": torch.randn(channels, height, width), "labels": labels}


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
    # Where boxes and experts lie decides on memory.
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    torch.cuda.reset_peak_memory_stats()
    # What a library keeps for the whole process is the peak's of the model that it was made for.
    left = torch.cuda.memory_allocated()
    began = time.monotonic()
    failed = why_not(run)
    line = {"name": name, "note": note_of(run), "seconds": round(time.monotonic() - began, 2)}
    line |= {"peak": torch.cuda.max_memory_allocated() - left, "left": left}
    if failed:
        line |= {"failed": failed, "on_the_cpu_too": on_the_cpu(run) == failed.replace("torch.cuda.", "torch.")}
    tell(**line)


def why_not(run):
    """Why it fails; None where it does not."""
    signal.setitimer(signal.ITIMER_PROF, TIMEOUT)
    faulthandler.dump_traceback_later(END, exit=True)
    try:
        with torch.device(DEVICE):
            run()
        return None
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        traceback.print_exc(file=sys.stderr)
        # What its frames hold.
        traceback.clear_frames(error.__traceback__)
        return f"{type(error).__name__}: {lines[0]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
        gc.collect()
        # What a library keeps, most of it code, need not be gone through again after each model.
        gc.freeze()
        # cuBLAS's workspaces, one for each thread that asked: the next model asks for its own.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def on_the_cpu(run):
    global DEVICE
    DEVICE = "cpu"
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + ON_THE_CPU, before[1]))
    # Parameters that nobody fills take no time, and no memory before they are read.
    torch.Tensor.normal_ = torch.Tensor.uniform_ = lambda tensor, *_, **__: tensor
    try:
        return why_not(run)
    finally:
        del torch.Tensor.normal_, torch.Tensor.uniform_
        resource.setrlimit(resource.RLIMIT_AS, before)
        DEVICE = "cuda"


def too_long(*_):
    raise TimeoutError(f"it takes more than {TIMEOUT} seconds of processor time")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("group", choices=GROUPS)
    arguments.add_argument("--only", nargs="*", default=[""])
    arguments.add_argument("--after")
    arguments = arguments.parse_args()
    warnings.filterwarnings("ignore")
    signal.signal(signal.SIGPROF, too_long)
    torch.cuda.init()
    waits = arguments.after is not None
    for name, run in GROUPS[arguments.group]():
        if waits:
            waits = name != arguments.after
        elif any(text in name for text in arguments.only):
            one(name, run)


if __name__ == "__main__":
    main()
