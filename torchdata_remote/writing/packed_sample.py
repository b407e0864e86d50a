"""Samples that are ready to be written: encoded and checked. Their headers are made later, for many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from ..errors import EncodeError, ShardWriteError
from ..formats.encoders import encode_member
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
        values: data of the members, or all pieces if it is not plain.
        suffixes: of the members' names, which begin with the key.
        is_plain: whether all headers have room for name and size, so that they can be made later.
        extents: if it is not plain, bytes of the headers of each member, and of its data.
    """

    key: str
    num_bytes: int
    values: Sequence[Data]
    suffixes: tuple[str, ...]
    is_plain: bool
    extents: Sequence[tuple[int, int]] = ()

    def pieces(self) -> Iterator[Data]:
        """Yield header, data and padding of each member; of a small one together."""
        if not self.is_plain:
            yield from self.values
            return
        for suffix, data in zip(self.suffixes, self.values, strict=True):
            yield from _pieces_of(self.key + suffix, data)


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
    return _new(PackedSample, (key, num_bytes, values, suffixes, True, ()))


# As PackedSample(...) does, in a third of the time
_new = tuple.__new__


def _pack_with_care(key: str, layout: _Layout, values: Sequence[Any], max_member_bytes: int) -> PackedSample:
    encoded: list[Data] = []
    pieces: list[Data] = []
    extents: list[tuple[int, int]] = []
    plain = True
    for extension, value in zip(layout.extensions, values, strict=True):
        data = value if type(value) is bytes else _encoded(key, extension, value)
        size, name = len(data), f"{key}.{extension}"
        if size > max_member_bytes:
            raise ShardWriteError(
                f"Sample {key!r:.200}, member {extension!r:.200}: {size:,} bytes are more than readers accept "
                f"(max_member_bytes={max_member_bytes:,}). Split it, or raise that limit here and in the readers."
            )
        encoded.append(data)
        made = _pieces_of(name, data)
        pieces += made
        extents.append((sum(map(len, made)) - size - padding(size), size))
        plain &= is_plain(name, size)
    num_bytes = sum(map(len, pieces))
    if plain:
        return PackedSample(key, num_bytes, encoded, layout.suffixes, True)
    return PackedSample(key, num_bytes, pieces, layout.suffixes, False, extents)


def _pieces_of(name: str, data: Data) -> tuple[Data, ...]:
    pieces = pack_header(name, len(data)), data, bytes(padding(len(data)))
    return (b"".join(pieces),) if len(data) <= _COPIED_BYTES else pieces


def _encoded(key: str, extension: str, value: Any) -> Data:
    if type(value) is memoryview and value.ndim == 1 and value.format == "B" and value.contiguous:
        # Headers are made later, and a small view may be of a buffer that is used again
        return value if len(value) > _COPIED_BYTES else bytes(value)
    try:
        return encode_member(extension, value)
    except EncodeError as error:
        raise EncodeError(f"Sample {key!r}: {error}") from error


def join_samples(samples: Sequence[PackedSample], end: bytes = b"") -> bytes:
    """Return the tar bytes of samples, one after the other, and what follows them."""
    if all(map(_IS_PLAIN, samples)):
        parts = [_join_plain(samples)] if samples else []
    else:
        runs = groupby(samples, _IS_PLAIN)
        parts = [_join_plain(list(run)) if plain else _join_others(run) for plain, run in runs]
    return parts[0] if len(parts) == 1 and not end else b"".join([*parts, end])


_IS_PLAIN = attrgetter("is_plain")


def _join_plain(samples: Sequence[PackedSample]) -> bytes:
    names = [sample.key + suffix for sample in samples for suffix in sample.suffixes]
    return pack_plain_members(names, list(chain.from_iterable([sample.values for sample in samples])))


def _join_others(samples: Iterator[PackedSample]) -> bytes:
    return b"".join(chain.from_iterable(sample.pieces() for sample in samples))
