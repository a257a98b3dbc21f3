"""Writes the pixels that torchvision makes of the images in tests/pixels, which the loader's are compared with.

    python peers/pytorch/reference_pixels.py

For each image and each of CROPS: crop, resize to SIDE x SIDE with antialias, flip where asked, to floats, normalise; as torchvision 0.26 and
Pillow do it. Written as little-endian 32-bit floats, [3, SIDE, SIDE] after one another. tests/pixels/base.jpg is a made-up photograph of
the lab; the other images are made of it where they are missing.
"""

from pathlib import Path

import torch
import torchvision
from PIL import Image
from torchvision.transforms import InterpolationMode, functional

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "pixels"
SIDE = 32
# left, top, width, height, mirrored: smaller, much smaller, larger, as it is, uneven, at the border
CROPS = [
    (11, 7, 90, 80, False),
    (0, 0, 240, 176, False),
    (100, 60, 19, 23, True),
    (64, 32, 32, 32, False),
    (33, 50, 150, 41, True),
    (209, 150, 31, 26, False),
]
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
# How images differ that people have: chroma subsampling, grey, progressive.
VARIANTS = {
    "444.jpg": dict(quality=90, subsampling=0),
    "422.jpg": dict(quality=85, subsampling=1),
    "progressive.jpg": dict(quality=85, subsampling=2, progressive=True),
    "grey.jpg": dict(quality=90),
}


def variants():
    base = Image.open(FOLDER / "base.jpg").convert("RGB")
    for name, options in VARIANTS.items():
        if not (FOLDER / name).exists():
            (base.convert("L") if name == "grey.jpg" else base).save(FOLDER / name, **options)


def pixels(image, left, top, width, height, mirrored):
    size = [SIDE, SIDE]
    resized = functional.resized_crop(image, top, left, height, width, size, InterpolationMode.BILINEAR, antialias=True)
    if mirrored:
        resized = functional.hflip(resized)
    return functional.normalize(functional.to_tensor(resized), MEAN, DEVIATION)


def main():
    variants()
    for path in sorted(FOLDER.glob("*.jpg")):
        image = Image.open(path).convert("RGB")
        values = torch.stack([pixels(image, *crop) for crop in CROPS])
        path.with_suffix(".f32").write_bytes(values.numpy().astype("<f4").tobytes())
        print(path.name, image.size, tuple(values.shape), f"torchvision {torchvision.__version__}")


if __name__ == "__main__":
    main()
