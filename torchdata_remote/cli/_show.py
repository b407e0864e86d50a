"""``torchdata-remote show``."""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import sys

from PIL import Image

from ..core.files import replaced, require_replaceable
from ..core.urls import redact
from ..errors import LabelError, RemoteDataError
from ..inspection import Cell, class_names, contact_sheet, pictures, thumbnail
from ._shared import Commands, add_command, add_storage_options, count, print_line, printable

_DEFAULT_PICTURES = 36


def add(commands: Commands) -> None:
    """Add this command's parser."""
    parser = add_command(
        commands,
        "show",
        _run,
        description="draw a contact sheet of images with their labels. Labels are class names if classes.json is "
        "beside the shards, else numbers, else keys. Only the images that are drawn are read.",
        example="show s3://bucket/train/ --grid out.png",
    )
    parser.add_argument("url", help="folder of shards, manifest, glob, or one shard")
    parser.add_argument("--grid", required=True, metavar="FILE", help="picture to write, such as out.png")
    parser.add_argument(
        "--num", type=count, default=_DEFAULT_PICTURES, metavar="N", help="images (default: %(default)s)"
    )
    parser.add_argument("--columns", type=count, metavar="C", help="images in a row (default: as many as rows)")
    parser.add_argument(
        "--cell-pixels", type=count, default=160, metavar="P", help="side of an image's cell (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, metavar="S", help="draw samples at random from all shards (default: the first ones)"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON document: grid, num_images, width, height, and url, key, label and caption of all images",
    )
    add_storage_options(parser)


def _run(args: argparse.Namespace) -> int:
    kind = _format(args.grid)
    require_replaceable(args.grid)
    names: dict[str, str] | None = None
    cells: list[Cell] = []
    shown: list[dict[str, str | None]] = []
    for picture in pictures(args.url, num_pictures=args.num, seed=args.seed, storage_options=args.storage_options):
        if names is None:
            names = _names(picture.url, args)
        cells.append((thumbnail(picture.data, args.cell_pixels), picture.caption(names)))
        shown.append({"url": redact(picture.url), "key": picture.key, "label": picture.label, "caption": cells[-1][1]})
    columns = args.columns or math.ceil(math.sqrt(len(cells)))
    try:
        sheet = contact_sheet(cells, num_columns=columns, cell_pixels=args.cell_pixels)
        _save(sheet, args.grid, kind)
    except (OSError, ValueError) as error:  # a full disk; too many pixels
        raise RemoteDataError(f"{args.grid}: {getattr(error, 'strerror', None) or error}") from error
    if args.json:
        sizes = {"num_images": len(cells), "width": sheet.width, "height": sheet.height}
        print_line(json.dumps({"grid": args.grid, **sizes, "images": shown}, indent=1))
        return 0
    print_line(f"{len(cells):,} images, {sheet.width:,} x {sheet.height:,} pixels: {printable(args.grid)}")
    return 0


def _names(url: str, args: argparse.Namespace) -> dict[str, str]:
    try:
        return class_names(url, storage_options=args.storage_options)
    except LabelError as error:
        print(f"torchdata-remote: {error} Labels are shown without names.", file=sys.stderr)
        return {}


def _format(path: str) -> str:
    """Return the format of a picture, by its extension, if it can be written."""
    extension = os.path.splitext(path)[1]
    found = Image.registered_extensions().get(extension.lower())
    try:
        # The registry also has formats that are only read, or lack a library
        Image.new("RGB", (1, 1)).save(io.BytesIO(), found or "")
    except (KeyError, OSError, RuntimeError, ValueError) as error:
        raise RemoteDataError(
            f"{path}: no picture can be written with the extension {extension!r}. Use a name such as out.png"
        ) from error
    return str(found)


def _save(sheet: Image.Image, path: str, kind: str) -> None:
    """Write a picture; an existing file is replaced when the new one is complete."""
    with replaced(path) as partial:
        sheet.save(partial, kind)
