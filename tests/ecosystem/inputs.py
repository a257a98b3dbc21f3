"""Makes what the entry points of other people read: data sets, and checkpoints of real shapes whose values are zero. Nothing is downloaded.

    inputs.py FOLDER

FOLDER/hub has them under the names that they have on the Hugging Face hub, so that a command that is started there finds `openai-community/gpt2`
as its documentation says it. Weights are holes in their files: an 8B model takes no disk. Needs torch, torchvision, transformers,
diffusers, timm, Pillow and scipy.
"""

import base64
import gzip
import json
import pickle
import random
import struct
import sys
import wave
from pathlib import Path

import diffusers
import numpy as np
import pyarrow
import pyarrow.parquet
import timm
import torch
import torchvision
import transformers
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(sys.argv[1]).resolve()
HUB = ROOT / "hub"
random.seed(0)
NUMBERS = np.random.default_rng(0)
WORDS = ["the", "cat", "sat", "on", "a", "mat", "model", "train", "memory", "answer", "question", "what", "is", "why", "how", "tensor", "sum"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<pad>"]
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% generation %}{{ m['content'] }}<|im_end|>\n{% endgeneration %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BERT = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
ROBERTA = dict(bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>", cls_token="<s>", sep_token="</s>", mask_token="<mask>")
QWEN = dict(
    vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
    tie_word_embeddings=True, max_position_embeddings=32768, max_window_layers=24,
)  # fmt: skip
LLAMA = dict(max_position_embeddings=131072, rope_theta=500000.0, bos_token_id=0, eos_token_id=2, pad_token_id=3, num_key_value_heads=8)
LLAMAS = {
    "1B": dict(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, head_dim=64, tie_word_embeddings=True),
    "3B": dict(vocab_size=128256, hidden_size=3072, intermediate_size=8192, num_hidden_layers=28, num_attention_heads=24, head_dim=128, tie_word_embeddings=True),
    "8B": dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32),
}  # fmt: skip


def text(words):
    return " ".join(random.choices(WORDS, k=words))


def lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


# ---- checkpoints -----------------------------------------------------------------------------------------------------------------------


def holes(path, tensors):
    """A safetensors file of zeros that takes no disk."""
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64"}
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        head[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(head).encode()
    head += b" " * (-len(head) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + at)


def byte_level(special):
    """Byte-level BPE over the words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text(50) for _ in range(200)], trainer)
    return tokenizer


def tokenizer(path, special=None, length=None):
    special = special or dict(bos_token="<|endoftext|>", eos_token="<|im_end|>", pad_token="<pad>", unk_token="<|endoftext|>")
    one = byte_level(list(dict.fromkeys([*special.values(), *SPECIAL])))
    if "cls_token" in special:
        ends = [(special[name], one.token_to_id(special[name])) for name in ("sep_token", "cls_token")]
        from tokenizers.processors import BertProcessing

        one.post_processor = BertProcessing(*ends)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=one, model_max_length=length or 32768, **special)
    fast.chat_template = CHAT
    fast.save_pretrained(path)


def model(names, config, kind, dtype=torch.float32, **of_tokenizer):
    """A model of transformers with random shapes kept and all values zero, in each folder named."""
    with torch.device("meta"):
        tensors = kind._from_config(config).to(dtype)
    tied = set(getattr(tensors, "all_tied_weights_keys", None) or {})
    config.architectures = [kind.__name__]
    config.dtype = dtype
    for name in names:
        path = HUB / name
        config.save_pretrained(path)
        holes(path / "model.safetensors", {key: tensor for key, tensor in tensors.state_dict().items() if key not in tied})
        if of_tokenizer is not None:
            tokenizer(path, **of_tokenizer)


def language_models():
    auto = transformers.AutoConfig.for_model
    # `mixtral-small` and `qwen3-moe-small` stand for mixtures of experts of usual shapes and few layers.
    model(["openai-community/gpt2", "gpt2"], auto("gpt2"), transformers.GPT2LMHeadModel, length=1024)
    bert = auto("bert", vocab_size=28996)
    names = ["google-bert/bert-base-cased", "google-bert/bert-base-uncased", "bert-base-cased", "bert-base-uncased"]
    model(names, bert, transformers.BertForMaskedLM, special=BERT, length=512)
    roberta = auto("roberta", vocab_size=50265, max_position_embeddings=514)
    model(["FacebookAI/roberta-base"], roberta, transformers.RobertaForMaskedLM, special=ROBERTA, length=512)
    t5 = auto("t5", decoder_start_token_id=0)
    special = dict(eos_token="</s>", pad_token="<pad>", unk_token="<unk>")
    model(["google-t5/t5-small"], t5, transformers.T5ForConditionalGeneration, special=special, length=512)
    qwens = [f"Qwen/Qwen2{point}-0.5B{tuned}" for point in ("", ".5") for tuned in ("", "-Instruct")]
    model(qwens, auto("qwen2", **QWEN, bos_token_id=0, eos_token_id=2, pad_token_id=3), transformers.Qwen2ForCausalLM, torch.bfloat16)
    moe = auto(
        "qwen3_moe", vocab_size=32000, hidden_size=1024, intermediate_size=3072, moe_intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=16, num_key_value_heads=4, num_experts=32, num_experts_per_tok=4, bos_token_id=0, eos_token_id=2, pad_token_id=3,
    )  # fmt: skip
    model(["qwen3-moe-small"], moe, transformers.Qwen3MoeForCausalLM, torch.bfloat16)
    for size, shape in LLAMAS.items():
        name = f"meta-llama/Llama-3.{1 if size == '8B' else 2}-{size}"
        names = [name, f"{name}-Instruct", f"NousResearch/{name.split('/')[1]}"]
        model(names, auto("llama", **LLAMA, **shape), transformers.LlamaForCausalLM, torch.bfloat16)
        for name in names:
            # What torchtune reads: a file of tiktoken's, 256 bytes and pairs of letters.
            pairs = [bytes([first, second]) for first in range(97, 123) for second in range(97, 123)]
            ranks = [bytes([byte]) for byte in range(256)] + pairs
            path = HUB / name / "original" / "tokenizer.model"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(ranks)))


def vision_and_speech():
    vit = transformers.ViTConfig()
    path = "google/vit-base-patch16-224-in21k"
    model([path], vit, transformers.ViTModel)
    transformers.ViTImageProcessor().save_pretrained(HUB / path)

    codes = list(transformers.models.whisper.tokenization_whisper.LANGUAGES)
    tasks = ["translate", "transcribe", "startoflm", "startofprev", "nocaptions", "notimestamps"]
    names = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{name}|>" for name in [*codes, *tasks])]
    config = transformers.WhisperConfig(
        d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12, decoder_attention_heads=12, encoder_ffn_dim=3072,
        decoder_ffn_dim=3072, max_target_positions=448,
    )  # fmt: skip
    path = HUB / "openai/whisper-small"
    model([str(path.relative_to(HUB))], config, transformers.WhisperForConditionalGeneration)
    one = byte_level(names)
    ends = dict(bos_token=names[0], eos_token=names[0], pad_token=names[0], unk_token=names[0])
    transformers.PreTrainedTokenizerFast(tokenizer_object=one, **ends).save_pretrained(path)
    told = json.loads((path / "tokenizer_config.json").read_text())
    told.update(tokenizer_class="WhisperTokenizer", additional_special_tokens=names[1:], model_max_length=448)
    (path / "tokenizer_config.json").write_text(json.dumps(told))
    vocabulary = json.loads((path / "tokenizer.json").read_text())["model"]
    (path / "vocab.json").write_text(json.dumps(vocabulary["vocab"]))
    (path / "merges.txt").write_text("#version: 0.2\n" + "".join(" ".join(merge) + "\n" for merge in vocabulary["merges"]))
    transformers.WhisperFeatureExtractor().save_pretrained(path)
    ids = {name: one.token_to_id(name) for name in names}
    generation = transformers.GenerationConfig(
        decoder_start_token_id=ids["<|startoftranscript|>"], eos_token_id=ids["<|endoftext|>"], pad_token_id=ids["<|endoftext|>"],
        lang_to_id={f"<|{code}|>": ids[f"<|{code}|>"] for code in codes}, task_to_id={task: ids[f"<|{task}|>"] for task in tasks[:2]},
        is_multilingual=True, no_timestamps_token_id=ids["<|notimestamps|>"], max_length=448,
    )  # fmt: skip
    generation.save_pretrained(path)


def stable_diffusion():
    """Stable Diffusion 1.4's shapes."""
    path = HUB / "CompVis/stable-diffusion-v1-4"
    with torch.device("meta"):
        unet = diffusers.UNet2DConditionModel(cross_attention_dim=768, attention_head_dim=8, sample_size=64)
        down, up = ["DownEncoderBlock2D"] * 4, ["UpDecoderBlock2D"] * 4
        vae = diffusers.AutoencoderKL(
            down_block_types=down, up_block_types=up, block_out_channels=[128, 256, 512, 512], layers_per_block=2, sample_size=512
        )
    for name, part in (("unet", unet), ("vae", vae)):
        part.save_config(path / name)
        holes(path / name / "diffusion_pytorch_model.safetensors", part.state_dict())
    text_config = transformers.CLIPTextConfig(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12, projection_dim=768, bos_token_id=0, eos_token_id=1
    )  # fmt: skip
    where = str((path / "text_encoder").relative_to(HUB))
    model([where], text_config, transformers.CLIPTextModel)
    one = byte_level(["<|startoftext|>", "<|endoftext|>"])
    folder = path / "tokenizer"
    ends = dict(bos_token="<|startoftext|>", eos_token="<|endoftext|>", pad_token="<|endoftext|>", unk_token="<|endoftext|>")
    transformers.PreTrainedTokenizerFast(tokenizer_object=one, model_max_length=77, **ends).save_pretrained(folder)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(vocabulary["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(" ".join(merge) + "\n" for merge in vocabulary["merges"]))
    told = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**told, "tokenizer_class": "CLIPTokenizer"}))
    diffusers.PNDMScheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, skip_prk_steps=True, steps_offset=1).save_pretrained(
        path / "scheduler"
    )
    index = {"_class_name": "StableDiffusionPipeline", "_diffusers_version": "0.30.0", "requires_safety_checker": False}
    parts = {
        "unet": ["diffusers", "UNet2DConditionModel"], "vae": ["diffusers", "AutoencoderKL"], "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"], "scheduler": ["diffusers", "PNDMScheduler"], "safety_checker": [None, None],
        "feature_extractor": [None, None],
    }  # fmt: skip
    (path / "model_index.json").write_text(json.dumps({**index, **parts}))


def torch_hub():
    """Weights of torchvision's that are in its cache already, and a repository there whose models DINO lists at its start."""
    folder = ROOT / "torch" / "hub" / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in (("resnet50", "resnet50-0676ba61.pth"), ("mobilenet_v3_large", "mobilenet_v3_large-8738ca79.pth")):
        torch.save(getattr(torchvision.models, name)().state_dict(), folder / file)
    listed = ROOT / "torch" / "hub" / "facebookresearch_xcit_main"
    listed.mkdir(exist_ok=True)
    (listed / "hubconf.py").touch()


# ---- data sets -------------------------------------------------------------------------------------------------------------------------


def card(name, configs):
    """A data set's README with its configurations: which files are which split's."""
    told = [
        {"config_name": config, "data_files": [{"split": split, "path": path} for split, path in splits.items()]} for config, splits in configs.items()
    ]
    # A label of GLUE has names.
    kinds = dict(sentence1="string", sentence2="string", label={"class_label": {"names": {"0": "no", "1": "yes"}}}, idx="int32")
    features = [{"name": column, "dtype": kind} for column, kind in kinds.items()]
    more = f"dataset_info: {json.dumps([{'config_name': 'mrpc', 'features': features}])}\n" if name == "nyu-mll/glue" else ""
    (HUB / name).mkdir(parents=True, exist_ok=True)
    (HUB / name / "README.md").write_text(f"---\nconfigs: {json.dumps(told)}\n{more}---\n")


def table(name, row, config="default", splits=("train", "validation", "test"), rows=512):
    """A data set of `rows` rows for training and 64 for each other split."""
    card(name, {config: {split: f"{split}.jsonl" for split in splits}})
    for split in splits:
        lines(HUB / name / f"{split}.jsonl", [row(number) for number in range(rows if split == "train" else 64)])


def says(role, words):
    return {"role": role, "content": text(words)}


def hub_cache():
    """Weights of timm's, as its cache of the hub keeps them."""
    for name in ("resnet50d.ra2_in1k", "seresnext26d_32x4d.bt_in1k", "mobilenetv3_large_100.ra_in1k"):
        folder = ROOT / "hf" / "hub" / f"models--timm--{name}"
        with torch.device("meta"):
            weights = timm.create_model(name.split(".")[0]).state_dict()
        holes(folder / "snapshots" / ("0" * 40) / "model.safetensors", weights)
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text("0" * 40)


METRIC = """
import datasets
import evaluate

class Metric(evaluate.Metric):
    def _info(self):
        features = {"predictions": datasets.Value(%r), "references": datasets.Value(%r)}
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=datasets.Features(features))

    def _compute(self, predictions, references):
        return {%r: 0.0}
"""


def metrics():
    """Stand-ins for the metrics that `evaluate` would fetch."""
    for name, kind, result in (("accuracy", "int64", "accuracy"), ("glue", "int64", "accuracy"), ("rouge", "string", "rouge1"), ("wer", "string", "wer"), ("squad", "string", "f1")):
        (HUB / name).mkdir(parents=True, exist_ok=True)
        (HUB / name / f"{name}.py").write_text(METRIC % (kind, kind, result))
    # run_summarization.py looks for it at its start, and reads it when it evaluates.
    (ROOT / "nltk" / "tokenizers" / "punkt").mkdir(parents=True, exist_ok=True)


def texts():
    def preference(_):
        asked = says("user", 40)
        return {"chosen": [asked, says("assistant", random.randint(50, 300))], "rejected": [asked, says("assistant", random.randint(50, 300))]}

    def instruction(_):
        return {"instruction": text(20), "input": "", "output": text(random.randint(50, 300)), "text": text(200)}

    def squad(number):
        context = text(random.randint(100, 400))
        return {"id": str(number), "title": "", "context": context, "question": text(10) + "?", "answers": {"text": [context[:7]], "answer_start": [0]}}

    table("wikitext", lambda _: {"text": text(random.randint(50, 400))}, "wikitext-2-raw-v1", rows=2048)
    table("nyu-mll/glue", lambda n: {"sentence1": text(20), "sentence2": text(20), "label": n % 2, "idx": n}, "mrpc")
    table("cnn_dailymail", lambda n: {"article": text(600), "highlights": text(50), "id": str(n)}, "3.0.0")
    table("rajpurkar/squad", squad, "plain_text", ("train", "validation"))
    conversation = lambda _: {"messages": [says("user", 40), says("assistant", random.randint(50, 400))]}  # noqa: E731
    table("trl-lib/Capybara", conversation, splits=("train", "test"))
    for name in ("trl-lib/ultrafeedback_binarized", "argilla/Capybara-Preferences"):
        table(name, preference, splits=("train", "test"))
    table("trl-lib/DeepMath-103K", lambda _: {"prompt": [says("user", 40)], "solution": "4"}, splits=("train", "test"))
    table("meta-math/MetaMathQA", lambda _: {"query": text(40), "response": text(random.randint(40, 180)), "type": "a"}, splits=("train",), rows=2048)
    table("HuggingFaceFW/finewiki", lambda _: {"text": text(400)}, splits=("train",))
    table("openai/gsm8k", lambda _: {"question": text(30), "answer": text(40) + " #### 4"}, "main", ("train", "test"))
    for name in ("tatsu-lab/alpaca", "yahma/alpaca-cleaned", "teknium/GPT4-LLM-Cleaned"):
        table(name, instruction, splits=("train",))
    alpaca = HUB / "tatsu-lab/alpaca/train.jsonl"
    (ROOT / "alpaca.json").write_text(json.dumps([json.loads(line) for line in alpaca.open()]))
    pairs = lambda n: {"premise": text(15), "hypothesis": text(10), "label": n % 3}  # noqa: E731
    table("sentence-transformers/all-nli", pairs, "pair-class", ("train", "dev", "test"), rows=10000)
    lines(HUB / "sentence-transformers/all-nli/dev.jsonl", [pairs(n) for n in range(1000)])
    table("sentence-transformers/stsb", lambda n: {"sentence1": text(15), "sentence2": text(15), "score": n % 5 / 5})
    (ROOT / "text").mkdir(exist_ok=True)
    for name, words in (("train", 200_000), ("valid", 20_000), ("test", 20_000)):
        said = "\n".join(text(20) for _ in range(words // 20))
        (ROOT / "text" / f"{name}.txt").write_text(said)


def pictures():
    def picture(path, width, height):
        path.parent.mkdir(parents=True, exist_ok=True)
        small = NUMBERS.integers(0, 255, (height // 8, width // 8, 3), dtype=np.uint8)
        Image.fromarray(small).resize((width, height)).save(path)

    for split, many in (("train", 256), ("val", 64)):
        for number in range(many):
            picture(ROOT / "imagefolder" / split / f"c{number % 10}" / f"{number:05d}.jpg", 256, 256)
    told = []
    for number in range(64):
        picture(ROOT / "captioned" / f"{number:05d}.jpg", 512, 512)
        picture(ROOT / "pets" / f"breed{number % 4}_{number}.jpg", 256, 256)
        told.append({"file_name": f"{number:05d}.jpg", "text": text(8)})
    lines(ROOT / "captioned" / "metadata.jsonl", told)
    rows = [f"{ROOT}/captioned/{one['file_name']}\t{one['text']}\n" for one in told * 4]
    (ROOT / "captions.csv").write_text("filepath\ttitle\n" + "".join(rows))
    coco = [number for number in range(1, 91) if number not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)]
    # detectron2 refuses COCO with other names.
    called = torchvision.models.detection.FasterRCNN_ResNet50_FPN_Weights.DEFAULT.meta["categories"]
    for split, many in (("train", 64), ("val", 8)):
        images, annotations = [], []
        for number in range(1, many + 1):
            # COCO's pictures have 640 pixels at their longer side.
            width, height = (640, 480) if number % 4 else (480, 640)
            name = f"{number:012d}"
            picture(ROOT / "coco" / f"{split}2017" / f"{name}.jpg", width, height)
            images.append(dict(id=number, file_name=f"{name}.jpg", width=width, height=height))
            boxes = []
            for _ in range(NUMBERS.integers(2, 12)):
                x, y, across, down = (float(NUMBERS.integers(*span)) for span in ((0, 300), (0, 300), (30, 170), (30, 170)))
                kind = int(NUMBERS.choice(len(coco)))
                outline = [[x, y, x + across, y, x + across, y + down, x, y + down]]
                annotations.append(
                    dict(id=len(annotations) + 1, image_id=number, category_id=coco[kind], bbox=[x, y, across, down], area=across * down, iscrowd=0, segmentation=outline)
                )  # fmt: skip
                middle = ((x + across / 2) / width, (y + down / 2) / height, across / width, down / height)
                boxes.append(f"{kind} " + " ".join(f"{one:.4f}" for one in middle) + "\n")
            (ROOT / "yolo" / "labels" / split).mkdir(parents=True, exist_ok=True)
            (ROOT / "yolo" / "labels" / split / f"{name}.txt").write_text("".join(boxes))
            picture(ROOT / "yolo" / "images" / split / f"{name}.jpg", width, height)
        (ROOT / "coco" / "annotations").mkdir(exist_ok=True)
        whole = dict(info={}, images=images, annotations=annotations, categories=[dict(id=number, name=called[number]) for number in coco])
        (ROOT / "coco" / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(whole))
    names = "".join(f"  {number}: c{number}\n" for number in range(80))
    (ROOT / "coco8.yaml").write_text(f"path: {ROOT}/yolo\ntrain: images/train\nval: images/val\nnames:\n{names}")
    # MNIST in its own format.
    raw = ROOT / "mnist" / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for split, many in (("train", 60000), ("t10k", 10000)):
        digits = NUMBERS.integers(0, 255, (many, 28, 28), dtype=np.uint8)
        labels = NUMBERS.integers(0, 10, many, dtype=np.uint8)
        for name, content in (("images-idx3", struct.pack(">4i", 2051, many, 28, 28) + digits.tobytes()), ("labels-idx1", struct.pack(">2i", 2049, many) + labels.tobytes())):
            (raw / f"{split}-{name}-ubyte").write_bytes(content)
            with gzip.open(raw / f"{split}-{name}-ubyte.gz", "wb", 1) as file:
                file.write(content)


def sound():
    """Common Voice's columns: WAV files and their sentences."""
    name = "mozilla-foundation/common_voice_11_0"
    splits = ("train", "validation", "test")
    card(name, {"hi": {split: f"{split}/**" for split in splits}})
    for split in splits:
        told = []
        for number in range(32):
            path = HUB / name / split / f"{number}.wav"
            path.parent.mkdir(parents=True, exist_ok=True)
            with wave.open(str(path), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(16000)
                file.writeframes(NUMBERS.integers(-9999, 9999, 16000 * int(NUMBERS.integers(2, 12)), dtype=np.int16).tobytes())
            told.append({"file_name": path.name, "sentence": text(random.randint(4, 20))})
        lines(HUB / name / split / "metadata.jsonl", told)


def science():
    """nnU-Net's raw data, characters of Wikipedia's size for x-transformers, and nanochat's texts."""
    folder = ROOT / "nnunet" / "raw" / "Dataset004_Noise"
    for number in range(10):
        for part in ("imagesTr", "labelsTr"):
            (folder / part).mkdir(parents=True, exist_ok=True)
            name = f"case_{number:03d}{'_0000' if part == 'imagesTr' else ''}.png"
            pixels = NUMBERS.integers(0, 255, (256, 256), dtype=np.uint8)
            Image.fromarray(pixels if part == "imagesTr" else pixels // 128).save(folder / part / name)
    told = dict(channel_names={"0": "noise"}, labels={"background": 0, "one": 1}, numTraining=10, file_ending=".png")
    (folder / "dataset.json").write_text(json.dumps(told))
    (ROOT / "nnunet" / "preprocessed").mkdir(exist_ok=True)
    letters = (text(20000) + " ").encode()
    with gzip.open(ROOT / "enwik8.gz", "wb", 1) as file:
        for _ in range(96_000_000 // len(letters)):
            file.write(letters)
    (ROOT / "nanochat" / "base_data_climbmix").mkdir(parents=True, exist_ok=True)
    for shard in ("00000", "06542"):
        said = pyarrow.table({"text": [text(400) for _ in range(4000)]})
        pyarrow.parquet.write_table(said, ROOT / "nanochat" / "base_data_climbmix" / f"shard_{shard}.parquet", row_group_size=500)
    tokenizer(HUB / "EleutherAI" / "pythia-160m", dict(bos_token="<|endoftext|>", eos_token="<|endoftext|>"))


def graphs():
    """Cora: in Planetoid's raw form, and as its authors' two text files."""
    import scipy.sparse

    raw = ROOT / "Planetoid" / "Cora" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    nodes, features, classes = 2708, 1433, 7
    x = scipy.sparse.random(nodes, features, density=0.0127, format="csr", random_state=0, dtype=np.float32)
    x.data[:] = 1
    kinds = NUMBERS.integers(0, classes, nodes)
    y = np.eye(classes, dtype=np.int32)[kinds]
    edges = NUMBERS.integers(0, nodes, (5278, 2)).tolist()
    graph = {number: [] for number in range(nodes)}
    for one, other in edges:
        graph[one].append(other)
        graph[other].append(one)
    parts = dict(x=x[:140], y=y[:140], tx=x[1708:], ty=y[1708:], allx=x[:1708], ally=y[:1708], graph=graph)
    for name, part in parts.items():
        (raw / f"ind.cora.{name}").write_bytes(pickle.dumps(part))
    (raw / "ind.cora.test.index").write_text("\n".join(map(str, range(1708, nodes))))
    plain = ROOT / "cora"
    plain.mkdir(exist_ok=True)
    dense = x.toarray().astype(int)
    (plain / "cora.content").write_text("".join(f"{n}\t" + "\t".join(map(str, dense[n])) + f"\tkind{kinds[n]}\n" for n in range(nodes)))
    (plain / "cora.cites").write_text("".join(f"{one}\t{other}\n" for one, other in edges))
    # MUTAG in the format of TU Dortmund's collection.
    raw = ROOT / "TU" / "MUTAG" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    of_graph, pairs, of_edge = [], [], []
    for number in range(188):
        first = len(of_graph) + 1
        size = int(NUMBERS.integers(10, 28))
        of_graph += [number + 1] * size
        for node in range(first, first + size - 1):
            pairs += [(node, node + 1), (node + 1, node)]
            of_edge += [0, 0]
    tables = {
        "A": [f"{one}, {other}" for one, other in pairs], "graph_indicator": of_graph, "graph_labels": [1 - 2 * (n % 2) for n in range(188)],
        "node_labels": NUMBERS.integers(0, 7, len(of_graph)).tolist(), "edge_labels": NUMBERS.integers(0, 4, len(of_edge)).tolist(),
    }  # fmt: skip
    for name, column in tables.items():
        (raw / f"MUTAG_{name}.txt").write_text("".join(f"{value}\n" for value in column))


def tokens():
    """Token files of nanoGPT, in the folders where its own scripts of preparation would lay them, and characters."""
    for name, vocabulary, many in (("openwebtext", 50257, 4_000_000), ("shakespeare_char", 65, 1_000_000)):
        folder = ROOT / "nanoGPT" / name
        folder.mkdir(parents=True, exist_ok=True)
        for split in ("train", "val"):
            NUMBERS.integers(0, vocabulary, many, dtype=np.uint16).tofile(folder / f"{split}.bin")
    letters = ["\n", *(chr(32 + number) for number in range(64))]
    meta = {"vocab_size": 65, "itos": dict(enumerate(letters)), "stoi": {letter: number for number, letter in enumerate(letters)}}
    (ROOT / "nanoGPT" / "shakespeare_char" / "meta.pkl").write_bytes(pickle.dumps(meta))


def shards():
    """Token files as modded-nanogpt reads them: 256 numbers of 32 bits, of which three are told, and tokens of 16; documents end with 50256."""
    folder = ROOT / "fineweb10B"
    folder.mkdir(parents=True, exist_ok=True)
    for name, many in (("fineweb_train_000001", 21_000_000), ("fineweb_val_000000", 21_000_000)):
        values = NUMBERS.integers(0, 50256, many, dtype=np.uint16)
        values[::500] = 50256
        head = np.zeros(256, dtype=np.int32)
        head[:3] = 20240520, 1, many
        (folder / f"{name}.bin").write_bytes(head.tobytes() + values.tobytes())


if __name__ == "__main__":
    for make in (language_models, vision_and_speech, stable_diffusion, torch_hub, hub_cache, metrics, texts, pictures, sound, science, graphs, tokens, shards):
        make()
        print(make.__name__, flush=True)
