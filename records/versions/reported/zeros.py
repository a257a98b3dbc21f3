"""A folder with a model of transformers whose weights are zeros: the files have a hole in their place, so that they take no room on the disk."""
import json
import pathlib
import struct
import tempfile

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

# Linux maps no more at once than it has memory.
MOST = 8 << 30


def model(config, architecture=None):
    folder = pathlib.Path(tempfile.mkdtemp())
    architecture = architecture or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]
    config.architectures = [architecture]
    config.save_pretrained(folder)
    with torch.device("meta"):
        sizes = {name: list(tensor.shape) for name, tensor in getattr(transformers, architecture)(config).state_dict().items()}
    files, at = [], MOST
    for name, shape in sizes.items():
        if at >= MOST:
            files.append({"__metadata__": {"format": "pt"}})
            at = 0
        end = at + 2 * torch.Size(shape).numel()
        files[-1][name], at = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}, end
    places = {}
    for number, header in enumerate(files, 1):
        text = json.dumps(header).encode()
        name = f"model-{number:05}-of-{len(files):05}.safetensors" if len(files) > 1 else "model.safetensors"
        with open(folder / name, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + max(each["data_offsets"][1] for key, each in header.items() if key != "__metadata__"))
        places |= {key: name for key in header if key != "__metadata__"}
    if len(files) > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder
