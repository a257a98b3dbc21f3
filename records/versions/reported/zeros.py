"""A folder with a model of transformers whose weights are zeros: the file has a hole in their place, so that it takes no room on the disk."""
import json
import pathlib
import struct
import tempfile

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def model(config):
    folder = pathlib.Path(tempfile.mkdtemp())
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    config.save_pretrained(folder)
    with torch.device("meta"):
        sizes = {name: list(tensor.shape) for name, tensor in AutoModelForCausalLM.from_config(config).state_dict().items()}
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in sizes.items():
        end = at + 2 * torch.Size(shape).numel()
        header[name], at = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}, end
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    return folder
