"""Sums over groups of objects, which locate an object that differs.

Objects are sorted by URL and divided into at most 32 groups. For each field that is known of all objects of a group,
two sums are stored: of the values' CRC-32, and of these times the object's number in the group. If one object of a
group differs, the quotient of the two differences is its number (the first step of decoding a Reed-Solomon code). With
up to 32 objects, each is a group of its own, with one sum. If a field is known of some objects of a group only, as when
a manifest and a folder are listed together, the sums are of these, and a mark identifies them.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from itertools import count, pairwise
from operator import mul
from typing import Any, cast
from zlib import crc32

Sums = tuple[int, ...]
Pair = tuple[Sums | None, Sums | None]  # of one group in two listings

GROUPS = 32
PRIME = (1 << 48) - 59  # the largest below 2**48: a sum is eight characters of base64
_NUMBER_BYTES, _CHARACTERS, _UNKNOWN = 6, 8, "........"
_MARK_BYTES, _MARK_CHARACTERS, ALIKE = 3, 4, "...."  # of a group in which all values are known, or none
COUNTS = {"size": "bytes", "samples": "samples"}  # stored directly if each object is a group of its own


def groups_of(num_urls: int) -> list[range]:
    """The index range of each group; at most ``GROUPS``."""
    num_groups = min(num_urls, GROUPS)
    cuts = [number * num_urls // num_groups for number in range(num_groups + 1)] if num_groups else []
    return [range(*pair) for pair in pairwise(cuts)]


def packed(field: str, values: Sequence[Any], alone: bool) -> str:
    """Pack the sums of a group; with ``alone``, all groups are of one object, and the weighted sum is left out."""
    if values.count(None) == len(values):
        return _UNKNOWN * (1 if alone else 2)
    numbers = [0 if value is None else _number(field, value, alone) for value in values]
    sums = [sum(numbers)] if alone else [sum(numbers), sum(map(mul, numbers, count(1)))]
    return "".join(b64encode((sum_ % PRIME).to_bytes(_NUMBER_BYTES, "big")).decode() for sum_ in sums)


def _number(field: str, value: Any, alone: bool) -> int:
    if field in COUNTS:
        return int(value) % PRIME if alone else crc32(b"%d" % value)
    return crc32(encoded(str(value)))


def mark(values: Sequence[Any]) -> str:
    """A digest of which objects of a group have a known value."""
    if values.count(None) in (0, len(values)):
        return ALIKE
    known = bytes(value is not None for value in values)
    return b64encode((crc32(known) % (1 << 8 * _MARK_BYTES)).to_bytes(_MARK_BYTES, "big")).decode()


def marks_of(field: str, one: Mapping[str, Any]) -> list[str]:
    """Read the mark of each group."""
    num_groups, text = len(groups_of(one["num_urls"])), one.get("partly", {}).get(field)
    if text is None:
        return [ALIKE] * num_groups
    if len(text) != num_groups * _MARK_CHARACTERS:
        raise ValueError(f"{len(text)} characters of marks of {field!r} for {num_groups:,} groups")
    return [text[at : at + _MARK_CHARACTERS] for at in range(0, len(text), _MARK_CHARACTERS)]


def unpacked(field: str, one: Mapping[str, Any]) -> list[Sums | None]:
    """Unpack the sums of each group; ``None`` if unknown."""
    num_urls, text = one["num_urls"], one["fields"].get(field)
    groups = groups_of(num_urls)
    each = 1 if len(groups) == num_urls else 2
    if text is None:
        return [None] * len(groups)
    if len(text) != len(groups) * each * _CHARACTERS:
        raise ValueError(f"{len(text)} characters of {field!r} for {num_urls:,} objects")
    parts = [text[at : at + _CHARACTERS] for at in range(0, len(text), _CHARACTERS)]
    numbers = [None if part == _UNKNOWN else int.from_bytes(b64decode(part, validate=True), "big") for part in parts]
    sums = [tuple(numbers[at : at + each]) for at in range(0, len(numbers), each)]
    return [None if None in pair else cast(Sums, pair) for pair in sums]


def pairs(field: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Pair]:
    """The sums of each group in both fingerprints; ``None`` if they are of different objects of the group."""
    sums = zip(unpacked(field, first), unpacked(field, second), strict=True)
    marks = zip(marks_of(field, first), marks_of(field, second), strict=True)
    return [pair if before == after else (None, None) for pair, (before, after) in zip(sums, marks, strict=True)]


def encoded(text: str) -> bytes:
    """Encode a text for a sum; accepts unpaired surrogates."""
    return text.encode("utf-8", "surrogatepass")
