"""How large an image may be, and how far it is made smaller while it is decoded."""

from __future__ import annotations

MAX_PIXELS = 1 << 26  # 67 million, 200 MB as RGB; ImageNet's largest has 13 million. Pillow warns above 89 million.


def check_size(width: int, height: int) -> None:
    """Before memory is taken for the pixels.

    Raises:
        ValueError: if they are more than ``MAX_PIXELS``.
    """
    if width * height > MAX_PIXELS:
        raise ValueError(f"{width} x {height} are more pixels than the limit of {MAX_PIXELS:,}")


def divisor(width: int, height: int, min_size: int | None) -> int:
    """The largest of 8, 4, 2 that leaves both sides at least ``min_size``, else 1.

    Example:
        >>> divisor(500, 375, 224), divisor(500, 448, 224), divisor(500, 448, None)
        (1, 2, 1)
    """
    if min_size is None:
        return 1
    return next((by for by in (8, 4, 2) if min(width, height) // by >= min_size), 1)
