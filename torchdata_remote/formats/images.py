"""Image formats: the one list of extensions that decoders, encoders, image folders and previews use."""

from __future__ import annotations

IMAGE_FORMATS = {
    "jpg": "JPEG",
    "jpeg": "JPEG",
    "png": "PNG",
    "webp": "WEBP",
    "avif": "AVIF",
    "bmp": "BMP",
    "gif": "GIF",
    "tif": "TIFF",
    "tiff": "TIFF",
    "ppm": "PPM",
    "pgm": "PPM",
    "pbm": "PPM",
    "pnm": "PPM",
}
"""Extension (lower case, without the dot) -> Pillow's name of the format."""

_NOT_IN_IMAGE_FOLDERS = ("avif", "gif", "pbm", "pnm")
IMAGE_FOLDER_SUFFIXES = tuple(f".{extension}" for extension in IMAGE_FORMATS if extension not in _NOT_IN_IMAGE_FOLDERS)
"""Suffixes of the files that torchvision's ``ImageFolder`` takes."""

_SUFFIXES = tuple(f".{extension}" for extension in IMAGE_FORMATS)


def is_image_name(name: str) -> bool:
    """Return whether a path, or a member's extension, is one of an image.

    >>> is_image_name("cat/1.JPG"), is_image_name("mask.png"), is_image_name("gif"), is_image_name("1.jpg.txt")
    (True, True, True, False)
    """
    return f".{name.lower()}".endswith(_SUFFIXES)
