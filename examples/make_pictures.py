"""Draw small pictures of shapes into a folder for each class: a dataset to shard, show and train on.

python examples/make_pictures.py pictures [--num 120]
"""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path

from PIL import Image, ImageDraw

PIXELS, LARGER = 64, 4  # drawn four times as large and scaled down, which smooths the edges
CORNERS = {"circle": 60, "hexagon": 6, "square": 4, "triangle": 3}


def draw(num_corners: int, draw_from: random.Random) -> Image.Image:
    """A polygon of random position, size, rotation and colour on a plain background."""
    side = PIXELS * LARGER
    ground, colour = (tuple(draw_from.randrange(low, low + 96) for _ in range(3)) for low in (16, 144))
    image = Image.new("RGB", (side, side), ground)
    radius = side * draw_from.uniform(0.2, 0.38)
    x, y = (draw_from.uniform(radius, side - radius) for _ in range(2))
    turn = draw_from.uniform(0, 2 * math.pi)
    angles = [turn + 2 * math.pi * corner / num_corners for corner in range(num_corners)]
    ImageDraw.Draw(image).polygon([(x + radius * math.cos(a), y + radius * math.sin(a)) for a in angles], fill=colour)
    return image.resize((PIXELS, PIXELS), Image.Resampling.LANCZOS)


def main() -> None:
    parser = argparse.ArgumentParser(description="Small pictures of shapes, in a folder for each class.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--num", type=int, default=120, help="pictures of all classes together")
    options = parser.parse_args()
    draw_from = random.Random(0)
    names = sorted(CORNERS)
    for number in range(options.num):
        name = names[number % len(names)]
        path = options.folder / name / f"{number // len(names):04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(CORNERS[name], draw_from).save(path, quality=92)
    print(f"{options.num} pictures of {len(names)} classes in {options.folder}")


if __name__ == "__main__":
    main()
