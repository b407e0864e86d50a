"""Orders that depend on names and numbers only: the same in every process, whatever its random state."""

from __future__ import annotations

import random
from collections.abc import Iterator

_BLOCK = 1024


def permutation(length: int, *parts: int | str) -> list[int]:
    """The numbers below ``length`` in a uniformly random order.

    Args:
        length: how many.
        *parts: what the order depends on, such as seed and epoch.
    """
    draw = _generator(*parts).random
    keys = [draw() for _ in range(length)]
    return sorted(range(length), key=keys.__getitem__)


def uniforms(start: int, *parts: int | str) -> Iterator[float]:
    """An endless sequence of numbers from 0 to 1, from its item ``start`` on.

    Args:
        start: how many to pass over, which takes no longer for many.
        *parts: what the numbers depend on.
    """
    block, offset = divmod(start, _BLOCK)
    while True:
        draw = _generator(*parts, block).random
        yield from [draw() for _ in range(_BLOCK)][offset:]
        block, offset = block + 1, 0


def _generator(*parts: int | str) -> random.Random:
    # Of the module random, seeding with a str and random() are what Python promises not to change.
    return random.Random("/".join(map(str, parts)))
