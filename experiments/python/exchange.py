"""Tensors in safetensors files, as the lab's programs write and read them: the start of a cell, and what came out of it."""

import ctypes
import json

import torch

_KINDS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def read(path):
    """The tensors of a file, by name, each in memory of its own."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = bytearray(file.read())
    header.pop("__metadata__", None)
    tensors = {}
    for name, about in header.items():
        begin, end = about["data_offsets"]
        values = torch.frombuffer(data, dtype=torch.uint8, count=end - begin, offset=begin) if end > begin else torch.empty(0, dtype=torch.uint8)
        # A copy first: elements may stand where they are not aligned.
        tensors[name] = values.clone().view(_KINDS[about["dtype"]]).reshape(about["shape"])
    return tensors


def write(path, outcome):
    """Writes the lists of tensors of an outcome, as `NAME/0`, `NAME/1`, ...; those that are None are left out."""
    names = {kind: name for name, kind in _KINDS.items()}
    header, data = {}, bytearray()
    for quantity, tensors in outcome.items():
        for i, tensor in enumerate(tensors):
            if tensor is None:
                continue
            # Not through numpy, which may not be there.
            tensor = tensor.detach().cpu().contiguous()
            values = ctypes.string_at(tensor.data_ptr(), tensor.nbytes)
            header[f"{quantity}/{i}"] = {
                "dtype": names[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [len(data), len(data) + len(values)],
            }
            data += values
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head + data)
