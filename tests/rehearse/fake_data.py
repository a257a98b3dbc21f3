"""Data sets that are not there, as scripts ask for them. Where datasets, torchvision or Pillow are not installed, a stand-in has their functions."""

import importlib.util
import os
import sys
import tempfile

STAND_IN = {
    "datasets/__init__.py": """
class config: HF_HUB_OFFLINE = False
class Value:
    def __init__(self, dtype): self.dtype = dtype
class ClassLabel:
    def __init__(self, num_classes): self.num_classes = num_classes
class Image: pass
class List:
    def __init__(self, feature, length=-1): self.feature, self.length = feature, length
class Sequence(List): pass
class Features(dict): pass
class Dataset(list):
    def from_list(rows, features):
        made = Dataset(rows)
        made.features = features
        return made
class DatasetDict(dict): pass
class IterableDatasetDict(dict): pass
from .load import load_dataset, load_dataset_builder
""",
    "datasets/load.py": """
import datasets
def load_dataset(path, name=None, split=None, streaming=False):
    assert datasets.config.HF_HUB_OFFLINE, 'it would be downloaded'
    raise ConnectionError('no network')
def load_dataset_builder(path, name=None):
    from datasets import ClassLabel, Features, List, Value
    if path != 'org/described': raise ConnectionError('no network')
    class split: num_examples = 100
    class builder:
        class info:
            messages = List({'role': Value('string'), 'content': Value('string')})
            features = Features(text=Value('large_string'), label=ClassLabel(num_classes=3), messages=messages, ids=List(Value('int64')))
            splits = {'train': split, 'test': split}
    return builder
""",
    "huggingface_hub/__init__.py": "",
    "huggingface_hub/constants.py": "HF_HUB_OFFLINE = False",
    "PIL/__init__.py": "",
    "PIL/Image.py": """
class Picture:
    def __init__(self, mode, size): self.mode, self.size = mode, size
    def save(self, file, kind): file.write(b'picture')
def new(mode, size, colour): return Picture(mode, size)
""",
    "torchvision/__init__.py": "",
    "torchvision/datasets.py": """
class ImageFolder:
    def __init__(self, root, transform=None, target_transform=None):
        raise FileNotFoundError(root)
class CIFAR10:
    def __init__(self, root, train=True, transform=None, target_transform=None, download=False):
        assert not download
        raise RuntimeError('Dataset not found or corrupted. You can use download=True to download it')
class CIFAR100(CIFAR10): pass
""",
}
folder = tempfile.mkdtemp()
for name, text in STAND_IN.items():
    if importlib.util.find_spec(name.split("/")[0]) is None:
        os.makedirs(os.path.dirname(f"{folder}/{name}"), exist_ok=True)
        with open(f"{folder}/{name}", "w") as file:
            file.write(text)
sys.path.append(folder)

import torch  # noqa: E402
import torchvision.datasets  # noqa: E402
from datasets import load_dataset  # noqa: E402

if "unknown" in sys.argv:
    load_dataset("org/unknown")
    raise AssertionError("nobody knows its columns")
if "described" in sys.argv:
    described = load_dataset("org/described", split="train[:10%]")
    row = described[4]
    assert len(described) == 100 and row["label"] == 1 and len(row["text"].split()) == 1024 and len(row["ids"]) == 128, row
    assert [each["role"] for each in row["messages"]] == ["user", "assistant"] * 2, row["messages"]
    assert set(load_dataset("org/described")) == {"train", "test"}
else:
    typed = load_dataset("org/unknown", split="train")
    assert len(typed) == 20 and typed[7]["label"] == 7 and len(typed[0]["text"].split()) == 200, typed[7]
    assert "image" in typed[0], typed[0]

images = torchvision.datasets.CIFAR100("./data", train=False, transform=lambda image: torch.full((3, *image.size), 1.0), download=True)
assert isinstance(images, torchvision.datasets.CIFAR10) and len(images) == 10000 and len(images.classes) == 100
loader = torch.utils.data.DataLoader(images, batch_size=16, num_workers=1)
folder = torchvision.datasets.ImageFolder("./train")
assert folder[3][0].size == (500, 375) and folder[3][1] == 3 and len(folder.classes) == 1000
weight = torch.nn.Parameter(torch.ones(3 * 32 * 32, len(images.classes), device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step, (batch, target) in zip(range(2), loader):
    torch.nn.functional.cross_entropy(batch.cuda().flatten(1) @ weight, target.cuda()).backward()
    optimizer.step()
