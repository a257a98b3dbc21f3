"""Writes the pixels that torchvision makes of the images in tests/pixels, which the loader's are compared with.

    .venv/bin/python tests/reference/make/pixels.py

For each image and each of CROPS: crop, resize to SIDE x SIDE with antialias, flip where asked; as torchvision 0.26 and Pillow do it.
Written as bytes from 0 to 255, [3, SIDE, SIDE] after one another. tests/pixels/base.jpg is a made-up photograph of the lab; the other
images are made of it where they are missing.
"""

from pathlib import Path

import torch
import torchvision
from PIL import Image
from torchvision.transforms import InterpolationMode, functional

FOLDER = Path(__file__).resolve().parents[2] / "pixels"
SIDE = 32
# Of an image of the size WHOLE, and in these shares of one of another size:
# left, top, width, height, mirrored: smaller, much smaller, larger, as it is, uneven, at the border
CROPS = [
    (11, 7, 90, 80, False),
    (0, 0, 240, 176, False),
    (100, 60, 19, 23, True),
    (64, 32, 32, 32, False),
    (33, 50, 150, 41, True),
    (209, 150, 31, 26, False),
]
ORIENTATION = 0x0112
# How images differ that people have: chroma subsampling, colours, progressive, restart markers, a camera held on its side, sizes that no
# block of 8 or 16 pixels fits. By name: mode, size, how they are saved.
WHOLE = (246, 179)
VARIANTS = {
    "444.jpg": ("RGB", WHOLE, dict(quality=90, subsampling=0)),
    "422.jpg": ("RGB", WHOLE, dict(quality=85, subsampling=1)),
    "411.jpg": ("RGB", WHOLE, dict(quality=85, subsampling="4:1:1")),
    "progressive.jpg": ("RGB", WHOLE, dict(quality=85, subsampling=2, progressive=True)),
    "progressive-444.jpg": ("RGB", (101, 67), dict(quality=75, subsampling=0, progressive=True)),
    "grey.jpg": ("L", WHOLE, dict(quality=90)),
    "grey-progressive.jpg": ("L", (101, 67), dict(quality=60, progressive=True)),
    "cmyk.jpg": ("CMYK", (120, 88), dict(quality=90)),
    "rgb.jpg": ("RGB", (120, 88), dict(quality=90, keep_rgb=True)),
    "restarts.jpg": ("RGB", (120, 88), dict(quality=85, restart_marker_blocks=3)),
    "odd.jpg": ("RGB", (61, 47), dict(quality=85, subsampling=2)),
    "narrow.jpg": ("RGB", (9, 130), dict(quality=85, subsampling=2)),
    "tiny.jpg": ("RGB", (1, 1), dict(quality=85, subsampling=2)),
    "rotated.jpg": ("RGB", (61, 47), dict(quality=85, exif=True)),
}


def variants():
    base = Image.open(FOLDER / "base.jpg").convert("RGB")
    for name, (mode, size, options) in VARIANTS.items():
        if (FOLDER / name).exists():
            continue
        image = (base if size == WHOLE else base.resize(size)).convert(mode)
        if options.pop("exif", False):
            options["exif"] = image.getexif()
            options["exif"][ORIENTATION] = 6
        image.save(FOLDER / name, **options)


def pixels(image, left, top, width, height, mirrored):
    size = [SIDE, SIDE]
    across, down = image.size
    left, top = left * across // WHOLE[0], top * down // WHOLE[1]
    width, height = max(1, width * across // WHOLE[0]), max(1, height * down // WHOLE[1])
    resized = functional.resized_crop(image, top, left, height, width, size, InterpolationMode.BILINEAR, antialias=True)
    if mirrored:
        resized = functional.hflip(resized)
    return functional.pil_to_tensor(resized)


def main():
    variants()
    for path in sorted(FOLDER.glob("*.jpg")):
        image = Image.open(path).convert("RGB")
        values = torch.stack([pixels(image, *crop) for crop in CROPS])
        path.with_suffix(".bytes").write_bytes(values.numpy().tobytes())
        print(path.name, image.size, tuple(values.shape), f"torchvision {torchvision.__version__}")


if __name__ == "__main__":
    main()
