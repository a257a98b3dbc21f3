"""JPEG files of the size and weight of photographs, made from nothing, the same each time: 30 to 120 kB for some 500 x 375 pixels."""

import os
import shutil
import tempfile
from pathlib import Path

import torch

LONG, SHORT = 500, 375
# Raised when the pictures change.
VERSION = 2


def made(count):
    """Paths of so many, which are made where they are not there. The folder appears whole or not at all, also where several processes make it."""
    folder = _cache() / f"photographs-v{VERSION}-{count}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".photographs-", dir=folder.parent))
        for number in range(count):
            _picture(number).save(aside / f"{number:05}.jpg", quality=90, subsampling=2)
        try:
            aside.rename(folder)
        except OSError:
            # Another process was first.
            shutil.rmtree(aside)
    return sorted(folder.glob("*.jpg"))


def _cache():
    for name, below in [("VRAMLAB_DATA", ""), ("XDG_CACHE_HOME", "vramlab"), ("HOME", ".cache/vramlab")]:
        if os.environ.get(name):
            return Path(os.environ[name]) / below
    return Path(tempfile.gettempdir()) / "vramlab"


def _picture(number):
    """Hills, fine texture, grain and slowly changing colour; how rough it is differs between pictures, and a quarter of them stand upright."""
    from PIL import Image

    random = torch.Generator().manual_seed(number)
    width, height = (SHORT, LONG) if number % 4 == 3 else (LONG, SHORT)
    rough = 0.25 + torch.rand((), generator=random)

    def noise(cell, channels, amplitude):
        corners = torch.rand(1, channels, height // cell + 2, width // cell + 2, generator=random) * 2 - 1
        return amplitude * torch.nn.functional.interpolate(corners, size=(height, width), mode="bilinear", align_corners=True)[0]

    light = noise(160, 1, 120) + noise(61, 1, 90) + sum(noise(cell, 1, 60 * rough) for cell in (23, 11, 5, 3))
    pixels = 128 + light + noise(97, 3, 80) + noise(1, 3, 16 * rough)
    # NumPy may not be there.
    return Image.frombytes("RGB", (width, height), bytes(pixels.clamp(0, 255).to(torch.uint8).permute(1, 2, 0).flatten().tolist()))
