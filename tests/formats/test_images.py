"""The list of image extensions, and that everything that reads, writes or shows images uses it."""

from __future__ import annotations

import io
import uuid

import fsspec
import numpy as np
import pytest
from PIL import Image

from torchdata_remote import ShardWriter
from torchdata_remote.formats.decoders import DEFAULT_DECODERS, rgb
from torchdata_remote.formats.encoders import encode_member
from torchdata_remote.formats.images import IMAGE_FOLDER_SUFFIXES, IMAGE_FORMATS, is_image_name
from torchdata_remote.inspection.picture_sheet import draw_sheet
from torchdata_remote.inspection.pictures import pictures
from torchdata_remote.inspection.summary import summarize

COLOUR = (200, 100, 50)
IMAGE = Image.new("RGB", (16, 16), COLOUR)


def shows_colour(sheet: bytes | None) -> bool:
    """Whether the colour is in the first cell of a contact sheet."""
    assert sheet is not None
    pixels = np.asarray(Image.open(io.BytesIO(sheet)).convert("RGB")).astype(int)
    return bool((abs(pixels - COLOUR).max(axis=2) < 12).any())


@pytest.mark.parametrize("extension", IMAGE_FORMATS)
def test_each_image_extension_is_encoded_and_decoded_by_default(extension: str) -> None:
    """To the format that the extension names, and back to the same colour."""
    data = encode_member(extension, IMAGE)
    assert Image.open(io.BytesIO(data)).format == IMAGE_FORMATS[extension]
    assert DEFAULT_DECODERS[extension] is rgb
    assert np.abs(np.asarray(rgb(data)).astype(int) - COLOUR).max() < 12


@pytest.mark.parametrize("extension", IMAGE_FORMATS)
def test_each_image_extension_is_shown_wherever_images_are_shown(extension: str) -> None:
    """By the pictures of the command line, and by the summary and contact sheet of the service: in shards and loose."""
    root = f"memory://{uuid.uuid4().hex}"
    with ShardWriter(f"{root}/shards/{{shard}}.tar") as writer:
        writer.write({"__key__": "cat/1", extension: IMAGE})
    fsspec.filesystem("memory").pipe(f"/{root[9:]}/loose/cat/1.{extension.upper()}", encode_member(extension, IMAGE))
    assert [picture.key for picture in pictures(f"{root}/shards/", num_pictures=9)] == ["cat/1"]
    for folder in ("shards", "loose"):
        assert summarize(f"{root}/{folder}/", None).has_pictures
        assert shows_colour(draw_sheet(f"{root}/{folder}/", None))
    assert summarize(f"{root}/loose/", None).kind == "images"
    fsspec.filesystem("memory").rm(f"/{root[9:]}", recursive=True)


def test_code_for_loose_images_reads_those_that_image_folders_leave_out() -> None:
    """torchvision's ``ImageFolder`` takes no ``.gif``, so code for a folder of these streams the files instead."""
    root = f"memory://{uuid.uuid4().hex}"
    for extension, function in (("gif", "stream_files"), ("png", "RemoteImageFolder")):
        paths = {f"/{root[9:]}/{extension}/{name}/1.{extension}": b"12" for name in ("cat", "dog")}
        fsspec.filesystem("memory").pipe(paths)
        assert f"tdr.{function}(" in summarize(f"{root}/{extension}/", None).code
    fsspec.filesystem("memory").rm(f"/{root[9:]}", recursive=True)


def test_suffixes_of_image_folders_are_those_of_torchvision() -> None:
    """In any order; all of them can be decoded."""
    expected = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}
    assert set(IMAGE_FOLDER_SUFFIXES) == expected


@pytest.mark.parametrize("name", ["a.txt", "jpg/a", "a.jpg.txt", "ajpg", "", "a.svg"])
def test_other_names_are_not_images(name: str) -> None:
    """Whatever else their path contains."""
    assert not is_image_name(name)
