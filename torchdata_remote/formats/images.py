"""Which members and files are images: the one list of their extensions."""

from __future__ import annotations

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", "pbm", "pnm")
"""Of members that are decoded to images; lower case, without the dot."""

IMAGE_FOLDER_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Of files that torchvision's ``ImageFolder`` takes, in its order."""
