"""Samples that are ready to be written: encoded and checked. Their headers are made later, for many at once."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np

from ..errors import EncodeError, ShardWriteError
from ..formats.encoders import encode_member
from ..formats.key_index import KeyColumns, KeyIndex, member_starts
from ..formats.limits import MAX_MEMBER_BYTES
from ..formats.sample import KEY, Sample, are_plain, check_writable, extensions, is_plain_key
from ..formats.tar import BLOCK, MAX_SIZE, NAME_BYTES, is_plain, pack_header, pack_plain_members, padding

Data = bytes | memoryview

_COPIED_BYTES = 8 << 10  # members up to this size: one copy is cheaper than three pieces


class PackedSample(NamedTuple):
    """Members of a sample, sorted by extension.

    Args:
        key: of the sample.
        num_bytes: in the tar, with headers and padding.
        values: data of the members.
        suffixes: of the members' names, which begin with the key.
        is_plain: whether all headers have room for name and size.
    """

    key: str
    num_bytes: int
    values: Sequence[Data]
    suffixes: tuple[str, ...]
    is_plain: bool

    def pieces(self) -> Iterator[Data]:
        """Yield header, data and padding of each member; of a small one together."""
        for suffix, data in zip(self.suffixes, self.values, strict=True):
            pieces = pack_header(self.key + suffix, len(data)), data, bytes(padding(len(data)))
            yield from (b"".join(pieces),) if len(data) <= _COPIED_BYTES else pieces


_KEY, _VALUES, _SUFFIXES, _IS_PLAIN = itemgetter(0), itemgetter(2), itemgetter(3), attrgetter("is_plain")
_new = tuple.__new__  # as PackedSample(...) does, in a third of the time


class _Layout(NamedTuple):
    """What the names in a sample determine.

    Args:
        extensions: of the members, sorted.
        suffixes: what follows the key in their names.
        values: returns the members of a sample.
        max_key_length: of a key whose names fit into plain headers; negative if none does.
        has_key: whether there is a key, and all extensions are valid at first sight.
    """

    extensions: tuple[str, ...]
    suffixes: tuple[str, ...]
    values: Callable[[Sample], tuple[Any, ...]]
    max_key_length: int
    has_key: bool


@lru_cache(1024)
def _layout(names: tuple[Any, ...]) -> _Layout:
    is_valid = are_plain(names) and KEY in names
    found = extensions(dict.fromkeys(name for name in names if isinstance(name, str)))
    suffixes = tuple(f".{extension}" for extension in found)
    is_ascii = all(suffix.isascii() for suffix in suffixes)
    longest = max(map(len, suffixes), default=0)
    values: Callable[[Sample], Any] = (
        itemgetter(*found) if len(found) > 1 else lambda sample: tuple(sample[name] for name in found)
    )
    return _Layout(found, suffixes, values, NAME_BYTES - longest if is_ascii else -1, is_valid)


def pack_sample(sample: Sample, max_member_bytes: int = MAX_MEMBER_BYTES) -> PackedSample:
    """Check a sample, and encode its members for a tar.

    Raises:
        EncodeError: with the sample, the member and the types that its extension takes.
        ShardWriteError: for a key or an extension that a shard would not preserve, and for a member that is larger than
            readers accept.
    """
    layout = _layout(tuple(sample) if type(sample) is dict else ())
    key = sample[KEY] if layout.has_key else None
    if type(key) is not str or not is_plain_key(key):
        key = check_writable(sample)
        layout = _layout(tuple(sample))
    _, suffixes, values_of, max_key_length, _ = layout
    values, num_bytes = values_of(sample), 0
    for value in values:
        if type(value) is not bytes or (size := len(value)) > max_member_bytes:
            return _pack_with_care(key, layout, values, max_member_bytes)
        # Header, data and padding
        num_bytes += size + 2 * BLOCK - 1 & -BLOCK
    if len(key) > max_key_length or num_bytes > MAX_SIZE or not key.isascii():
        return _pack_with_care(key, layout, values, max_member_bytes)
    return _new(PackedSample, (key, num_bytes, values, suffixes, True))


def _pack_with_care(key: str, layout: _Layout, values: Sequence[Any], max_member_bytes: int) -> PackedSample:
    encoded, num_bytes, plain = list[Data](), 0, True
    for extension, value in zip(layout.extensions, values, strict=True):
        data = value if type(value) is bytes else _encoded(key, extension, value)
        size, name = len(data), f"{key}.{extension}"
        if size > max_member_bytes:
            raise ShardWriteError(
                f"Sample {key!r:.200}, member {extension!r:.200}: {size:,} bytes are more than readers accept "
                f"(max_member_bytes={max_member_bytes:,}). Split it, or raise that limit here and in the readers."
            )
        encoded.append(data)
        num_bytes += len(pack_header(name, size)) + size + padding(size)
        plain &= is_plain(name, size)
    return PackedSample(key, num_bytes, encoded, layout.suffixes, plain)


def _encoded(key: str, extension: str, value: Any) -> Data:
    if type(value) is memoryview and value.ndim == 1 and value.format == "B" and value.contiguous:
        # Headers are made later, and a small view may be of a buffer that is used again
        return value if len(value) > _COPIED_BYTES else bytes(value)
    try:
        return encode_member(extension, value)
    except EncodeError as error:
        raise EncodeError(f"Sample {key!r}: {error}") from error


def join_samples(samples: Sequence[PackedSample]) -> bytes:
    """Return the tar bytes of samples, one after the other."""
    runs = groupby(samples, _IS_PLAIN)
    return b"".join([_join_plain([*run]) if plain else b"".join(_pieces(run)) for plain, run in runs])


def _join_plain(samples: Sequence[PackedSample]) -> bytes:
    names = [sample.key + suffix for sample in samples for suffix in sample.suffixes]
    return pack_plain_members(names, list(chain.from_iterable(map(_VALUES, samples))))


def _pieces(samples: Iterator[PackedSample]) -> Iterator[Data]:
    return chain.from_iterable(sample.pieces() for sample in samples)


class PackedMembers:
    """Keys and members of the samples that were written: 12 bytes a sample and 8 bytes a member, besides the keys."""

    def __init__(self) -> None:
        self._columns = KeyColumns(lambda suffixes: tuple([suffix[1:] for suffix in suffixes]))
        self._sizes = array("q")
        self._header_bytes: dict[int, int] = {}  # of members whose headers are not plain

    def record(self, samples: Sequence[PackedSample]) -> None:
        """Append samples."""
        number = len(self._sizes)
        self._columns.add(list(map(_KEY, samples)), list(map(_SUFFIXES, samples)))
        self._sizes.extend(map(len, chain.from_iterable(map(_VALUES, samples))))
        if all(map(_IS_PLAIN, samples)):
            return
        for sample in samples:
            for suffix, data in zip(sample.suffixes, sample.values, strict=True):
                if not sample.is_plain:
                    self._header_bytes[number] = len(pack_header(sample.key + suffix, len(data)))
                number += 1

    def index(self) -> KeyIndex:
        """Return the index of the samples."""
        sizes = np.array(self._sizes, np.int64)
        gaps = np.full(len(sizes), BLOCK, np.int64)
        gaps[list(self._header_bytes)] = list(self._header_bytes.values())
        return self._columns.index(member_starts(gaps, sizes), sizes)
