"""Writes tests/reference/loader.json: which samples PyTorch's DataLoader gives, and which parts of images torchvision's
RandomResizedCrop takes.

    .venv/bin/python tests/reference/make/loader.py

tests/loader/reference.rs compares. Without shuffling the order is compared itself. A shuffled order cannot be the same, because the
generators are others; nor can random parts, of which the averages are compared.
"""

import json
import math
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from torchvision.transforms import RandomResizedCrop

OUT = Path(__file__).resolve().parents[1] / "loader.json"
DRAWS = 40_000


def order_cases():
    for length in [0, 1, 2, 7, 12, 13]:
        for batch in [1, 3, 5]:
            loader = DataLoader(range(length), batch)
            yield {"length": length, "batch": batch, "batches": [indices.tolist() for indices in loader]}


def crops(width, height, area, aspect):
    """Average and deviation of the parts' left, top, width, height and share of the image's area."""
    image = torch.empty(3, height, width)
    drawn = []
    for _ in range(DRAWS):
        top, left, high, wide = RandomResizedCrop.get_params(image, list(area), list(aspect))
        drawn.append([left, top, wide, high, wide * high / (width * height)])
    drawn = torch.tensor(drawn, dtype=torch.float64)
    return {
        "width": width,
        "height": height,
        "area": area,
        "aspect": aspect,
        "draws": DRAWS,
        "mean": drawn.mean(0).tolist(),
        "deviation": drawn.std(0).tolist(),
    }


def main():
    torch.manual_seed(0)
    usual = ((0.08, 1.0), (3 / 4, 4 / 3))
    cases = [json.dumps(case, separators=(",", ":")) for case in order_cases()]
    # Usual photographs, a small square, and images so long that most draws do not fit.
    parts = [
        crops(500, 375, *usual),
        crops(64, 64, *usual),
        crops(300, 40, *usual),
        crops(31, 200, *usual),
        crops(100, 80, (0.9, 1.0), (1.0, 1.0)),
        crops(10, 400, (0.5, 1.0), (0.5, 2.0)),
        crops(1, 1, *usual),
    ]
    assert all(math.isfinite(number) for part in parts for number in part["mean"])
    lists = {"orders": cases, "crops": [json.dumps(part) for part in parts]}
    lines = [f'"torch": "{torch.__version__.split("+")[0]}"']
    lines += [f'"{name}": [\n  ' + ",\n  ".join(items) + "\n ]" for name, items in lists.items()]
    OUT.write_text("{\n " + ",\n ".join(lines) + "\n}\n")
    print(OUT, len(cases), "orders")


if __name__ == "__main__":
    main()
