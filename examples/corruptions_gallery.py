"""A picture of the 19 corruptions at their five severities, on one of scikit-learn's sample photographs.

python examples/corruptions_gallery.py --out docs/images/corruptions.png
"""

from __future__ import annotations

import argparse
import io

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.nn import functional as F

from repulse._files import write_whole
from repulse_lab.data.corruptions import KINDS, SEVERITIES, corrupt

SIDE, GAP, NAMES, TOP = 56, 3, 128, 22
ROWS = -(-len(KINDS) // 2)


def photograph() -> Tensor:
    """The flower, `(1, 3, 56, 56)` as bytes."""
    flower = torch.from_numpy(np.array(load_sample_images().images[1])).permute(2, 0, 1)[None].float()
    square = flower[:, :, 0:400, 110:510]
    small = F.interpolate(square, size=(SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False)
    return small.round().byte()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="corruptions.png", help="picture to write")
    arguments = parser.parse_args()
    clean, step = photograph(), SIDE + GAP
    panel = NAMES + (1 + len(SEVERITIES)) * step
    picture = Image.new("RGB", (2 * panel, TOP + ROWS * step), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(size=13)
    for i, kind in enumerate(KINDS):
        left, top = (i // ROWS) * panel + NAMES, TOP + (i % ROWS) * step
        draw.text((left - 8, top + SIDE / 2), kind, fill="black", font=font, anchor="rm")
        shown = [clean, *(corrupt(clean, kind, severity) for severity in SEVERITIES)]
        for j, image in enumerate(shown):
            picture.paste(Image.fromarray(image[0].permute(1, 2, 0).numpy()), (left + j * step, top))
            if i % ROWS == 0:
                title = str(j) if j else "clean"
                draw.text((left + j * step + SIDE / 2, TOP / 2), title, fill="black", font=font, anchor="mm")
    buffer = io.BytesIO()
    steps = (
        (np.asarray(picture, dtype=np.int16) + 2) // 5 * 5
    )  # noise does not compress: 52 levels of each channel will do
    Image.fromarray(steps.astype(np.uint8)).save(buffer, "PNG", optimize=True)
    write_whole(arguments.out, buffer.getvalue())


if __name__ == "__main__":
    main()
