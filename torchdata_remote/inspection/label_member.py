"""Label members (``cls``): which ones are read, and their text."""

from __future__ import annotations

from ..formats.sample import split_key
from ..formats.tar import MemberHeader

LABEL_EXTENSION = "cls"
_MAX_LABEL_BYTES = 64


def is_label(name: str, num_bytes: int) -> bool:
    """Return whether a member is a label that is small enough to be read."""
    return num_bytes <= _MAX_LABEL_BYTES and split_key(name)[1] == LABEL_EXTENSION


def decode_label(header: MemberHeader | None) -> str | None:
    r"""Decode a label; ``None`` if the sample has none or its data were not read.

    Example:
        >>> decode_label(MemberHeader("1.cls", 3, 0, b"42\n"))
        '42'
    """
    if header is None or header.data is None:
        return None
    return header.data.decode("utf-8", "backslashreplace").strip()
