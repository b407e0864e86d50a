"""Deterministic permutations: the same in every process, whatever its random state."""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np

_BLOCK = 1024


def permutation(length: int, *key: int | str) -> list[int]:
    """Return the numbers below ``length`` in a uniformly random order.

    Args:
        length: number of items.
        *key: what the order depends on, such as seed and epoch.
    """
    draw = _generator(*key).random
    keys = [draw() for _ in range(length)]
    return sorted(range(length), key=keys.__getitem__)


def permutation_array(length: int, *key: int | str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return another permutation than :func:`permutation`, faster for millions of items; shape ``(length,)``.

    The sort keys are 64-bit numbers of PCG64 (M. O'Neill, 2014), whose raw output is the same in all versions of NumPy.
    """
    seed = blake2b("/".join(map(str, key)).encode(), digest_size=16).digest()
    keys = np.random.PCG64(int.from_bytes(seed, "little")).random_raw(length)
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)


def uniforms(start: int, *key: int | str) -> Iterator[float]:
    """Yield an endless sequence of numbers from 0 to 1, from its item ``start`` on.

    Args:
        start: number of items to skip, in constant time.
        *key: what the numbers depend on.
    """
    block, offset = divmod(start, _BLOCK)
    while True:
        draw = _generator(*key, block).random
        yield from [draw() for _ in range(_BLOCK)][offset:]
        block, offset = block + 1, 0


def _generator(*key: int | str) -> random.Random:
    # Python promises not to change these two of its module random: seeding with a str, and random()
    return random.Random("/".join(map(str, key)))
