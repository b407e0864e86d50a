"""Orders that depend on names and numbers only: the same in every process, whatever its random state."""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np

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


def permutation_array(length: int, *parts: int | str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """As :func:`permutation`, quicker and in another order, for millions; shape ``(length,)``.

    Sorted are 64-bit numbers of PCG64 (M. O'Neill, 2014), whose raw output NumPy keeps from version to version.
    """
    seed = blake2b("/".join(map(str, parts)).encode(), digest_size=16).digest()
    keys = np.random.PCG64(int.from_bytes(seed, "little")).random_raw(length)
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)


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
