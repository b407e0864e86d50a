"""Label members (``cls``): which ones are read, and their text."""

from __future__ import annotations

from ..formats.sample import split_key
from ..formats.tar import MemberHeader

LABEL_EXTENSION = "cls"
_MAX_LABEL_BYTES = 64


def is_label(name: str, num_bytes: int) -> bool:
    """Return whether a member is a label that is small enough to be read."""
    return num_bytes <= _MAX_LABEL_BYTES and split_key(name)[1] == LABEL_EXTENSION


def is_unread(header: MemberHeader | None) -> bool:
    """Return whether a sample has a label that was too large to be read."""
    return header is not None and header.data is None


def not_counted(num_labels: int, num_samples: int) -> str:
    """Say that labels are not among the classes.

    Example:
        >>> not_counted(3, 5)
        '3 of 5 samples have a cls member of more than 64 bytes: they are not counted in the classes'
    """
    return (
        f"{num_labels:,} of {num_samples:,} samples have a {LABEL_EXTENSION} member of more than {_MAX_LABEL_BYTES} "
        "bytes: they are not counted in the classes"
    )


def decode_label(header: MemberHeader | None) -> str | None:
    r"""Decode a label; ``None`` if the sample has none or its data were not read.

    Example:
        >>> decode_label(MemberHeader("1.cls", 3, 0, b"42\n"))
        '42'
    """
    if header is None or header.data is None:
        return None
    return header.data.decode("utf-8", "backslashreplace").strip()
