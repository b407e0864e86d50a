"""Keys and members of a shard's samples: the ``.keys`` file beside it.

A NumPy archive (``.npz``, readable by ``numpy.load``) with these arrays, about 10 bytes a sample in the file:

- ``keys``: UTF-8, separated by NUL characters, in the order of the samples;
- ``extensions``: the different extensions, likewise;
- ``counts``: number of members of each sample;
- ``members``: of each member, the number of its extension;
- ``gaps``, ``sizes``: of each member, the bytes between the end of the member before it and its data (its headers, and
  what readers skip), and those of its data.
"""

from __future__ import annotations

import io
import zipfile
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.urls import url_beside
from .npy_header import npy_header
from .sample_index import index_url
from .tar import BLOCK

Ints = npt.NDArray[np.int64]
Names = tuple[str, ...]

_LEVEL = 1  # a third of the time of numpy.savez_compressed, for 2 to 7 % more bytes
_OVERHEAD_BYTES = 4 << 10  # of six arrays and the directory, without numbers and texts
_COLUMNS = ("keys", "extensions", "counts", "members", "gaps", "sizes")
_MOST_BYTES = 1 << 30  # of the decompressed arrays, of a shard of unknown size
_END = 1 << 62  # no shard is that long: sums below do not overflow


def keys_url(url: str) -> str:
    """Return the URL of the keys of a shard."""
    return url_beside(url, ".keys")


COMPANION_ENDINGS = (index_url(""), keys_url(""))


def companion_urls(url: str) -> list[str]:
    """Return the URLs of the objects beside a shard, whether they exist or not.

    >>> companion_urls("s3://photos/0.tar")
    ['s3://photos/0.tar.idx', 's3://photos/0.tar.keys']
    """
    return [index_url(url), keys_url(url)]


def without_companion_ending(name: str) -> str:
    """Return the name of the shard that an object is beside; any other name as it is.

    >>> without_companion_ending("0.tar.keys"), without_companion_ending("0.tar")
    ('0.tar', '0.tar')
    """
    return next((name.removesuffix(ending) for ending in COMPANION_ENDINGS if name.endswith(ending)), name)


@dataclass(frozen=True)
class KeyIndex:
    """Keys and members of a shard's samples, in their order.

    Args:
        keys: of the samples.
        counts: number of members of each sample; shape ``(num_samples,)``.
        extensions: the different ones.
        members: index in ``extensions`` of each member; shape ``(num_members,)``.
        starts: first byte of the data of each member in the tar; shape ``(num_members,)``.
        sizes: bytes of its data; shape ``(num_members,)``.
    """

    keys: Sequence[str]
    counts: Ints
    extensions: Sequence[str]
    members: Ints
    starts: Ints
    sizes: Ints

    def stops(self) -> Ints:
        """Return the byte after the padding of each member; the next one's headers begin there."""
        return self.starts + self.sizes + -self.sizes % BLOCK

    def begins(self) -> Ints:
        """Return the first byte of the headers of each member: the byte after the member before it."""
        return np.append(0, self.stops())[:-1]

    def firsts(self) -> Ints:
        """Return the index of each sample's first member, and the number of members; shape ``(num_samples + 1,)``."""
        return np.append(0, np.cumsum(self.counts))

    def ranges(self, are_read: npt.NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
        """Return the byte ranges of some members, with their headers. Neighbours in a sample are one range.

        Args:
            are_read: whether each member is one of them; shape ``(num_members,)``.

        Returns:
            First byte and end of each range; and the number of ranges of each sample, shape ``(num_samples,)``.
        """
        chosen = np.flatnonzero(are_read)
        samples = np.repeat(np.arange(len(self.counts)), self.counts)[chosen]
        follows = (np.diff(chosen) == 1) & (np.diff(samples) == 0)
        begin, end = np.append(True, ~follows)[: len(chosen)], np.append(~follows, True)[: len(chosen)]
        counts = np.bincount(samples[begin], minlength=len(self.counts)).astype(np.int64)
        return self.begins()[chosen[begin]], self.stops()[chosen[end]], counts


class KeyColumns:
    """Collects keys, and names of the members, of samples in their order: 4 bytes a sample besides its key.

    Args:
        extensions_of: returns the extensions of the members that have these names.
    """

    def __init__(self, extensions_of: Callable[[Names], Names]) -> None:
        self._extensions_of = extensions_of
        self._keys: list[str] = []
        # Names of a sample's members -> number; and that of each sample
        self._layouts: dict[Names, int] = {}
        self._numbers = array("I")

    def add(self, keys: Sequence[str], names: Sequence[Names]) -> None:
        """Append samples.

        Args:
            keys: of the samples.
            names: of the members of each.
        """
        self._keys += keys
        number, layouts = self._layouts.setdefault, self._layouts
        self._numbers.extend([number(one, len(layouts)) for one in names])

    def index(self, starts: Ints, sizes: Ints) -> KeyIndex:
        """Return the index of the samples.

        Args:
            starts: first byte of the data of each member; shape ``(num_members,)``.
            sizes: bytes of its data; shape ``(num_members,)``.
        """
        layouts = list(map(self._extensions_of, self._layouts))
        extensions = {extension: number for number, extension in enumerate(dict.fromkeys(chain(*layouts)))}
        numbers = [[extensions[extension] for extension in layout] for layout in layouts]
        members = np.fromiter(chain.from_iterable(map(numbers.__getitem__, self._numbers)), np.int64, len(starts))
        counts = np.array(list(map(len, layouts)), np.int64)[np.array(self._numbers, np.int64)]
        return KeyIndex(self._keys, counts, list(extensions), members, starts, sizes)


def dump_keys(index: KeyIndex) -> bytes:
    """Encode the keys of a shard. The same keys give the same bytes, from the same version of zlib."""
    gaps = index.starts - index.begins()
    columns = _text(index.keys), _text(index.extensions), *map(_small, (index.counts, index.members, gaps, index.sizes))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, column in zip(_COLUMNS, columns, strict=True):
            content = io.BytesIO()
            np.lib.format.write_array(content, column, allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy")  # of 1980: the time is not part of the file
            archive.writestr(entry, content.getbuffer(), zipfile.ZIP_DEFLATED, _LEVEL)
    return buffer.getvalue()


def max_dump_bytes(index: KeyIndex) -> int:
    """Return how large a file of these keys is at most, with numbers of 8 bytes that are not compressed."""
    texts = len(_text(index.keys)) + len(_text(index.extensions))
    return texts + 8 * (len(index.counts) + 3 * len(index.members)) + _OVERHEAD_BYTES


def is_dump_of(data: bytes, index: KeyIndex) -> bool:
    """Return whether a file holds these keys and members, whatever zlib has compressed it.

    Raises:
        ValueError: as :func:`parse_keys`.
    """
    expected = dump_keys(index)
    return data == expected or dump_keys(parse_keys(data)) == expected


def parse_keys(data: bytes, *, num_samples: int | None = None, shard_bytes: int | None = None) -> KeyIndex:
    """Decode the keys of a shard.

    Args:
        data: the file.
        num_samples: of the shard, if it is known.
        shard_bytes: size of the shard, if it is known.

    Raises:
        ValueError: if ``data`` are not the keys of such a shard. The message continues a sentence that begins with the
            file's URL.
    """
    try:
        keys_data, extensions_data, *numbers = _arrays(data, _MOST_BYTES if shard_bytes is None else shard_bytes)
        keys, extensions = _texts(keys_data), _texts(extensions_data)
        counts, members, gaps, sizes = (column.astype(np.int64) for column in numbers)
    except Exception as error:  # of zipfile, zlib, tokenize and numpy: which ones differs between versions
        raise ValueError(f"is not a file of keys ({type(error).__name__}: {error})") from error
    num_members = int(counts.clip(0, len(members) + 1).sum())
    if len(keys) != len(counts) or not len(members) == len(gaps) == len(sizes) == num_members:
        raise ValueError(
            f"has {len(keys):,} keys and {len(counts):,} samples, {num_members:,} and {len(sizes):,} members"
        )
    if (counts < 1).any() or (members < 0).any() or (members >= len(extensions)).any():
        raise ValueError("has a sample without members, or a member without an extension")
    are_places = (gaps >= BLOCK).all() and not (gaps % BLOCK).any() and (sizes >= 0).all()
    if not are_places or gaps.sum(dtype=float) + sizes.sum(dtype=float) + BLOCK * num_members > _END:
        raise ValueError(f"has a member whose headers are no multiple of {BLOCK} bytes, or one longer than any shard")
    if num_samples not in (None, len(keys)):
        raise ValueError(f"has {len(keys):,} samples, of a shard of {num_samples:,} samples")
    index = KeyIndex(keys, counts, extensions, members, member_starts(gaps, sizes), sizes)
    if shard_bytes is not None and num_members and int(index.stops()[-1]) > shard_bytes:
        raise ValueError(f"has members up to byte {index.stops()[-1]:,}, of a shard of {shard_bytes:,} bytes")
    return index


def member_starts(gaps: Ints, sizes: Ints) -> Ints:
    """Return the first byte of the data of each member.

    Args:
        gaps: bytes between the padding of the member before it and its data.
        sizes: bytes of its data.
    """
    padded = sizes + -sizes % BLOCK
    return np.asarray(np.cumsum(gaps + padded) - padded, np.int64)


def _text(texts: Sequence[str]) -> npt.NDArray[np.uint8]:
    return np.frombuffer("\0".join(texts).encode("utf-8", "surrogateescape"), np.uint8)


def _texts(data: npt.NDArray[np.uint8]) -> list[str]:
    return data.tobytes().decode("utf-8", "surrogateescape").split("\0") if len(data) else []


def _small(column: Ints) -> npt.NDArray[Any]:
    """Return a column in the smallest type that holds its values."""
    widest = int(column.max(initial=0))
    return column.astype(next(kind for kind in ("<u1", "<u2", "<u4", "<i8") if widest <= np.iinfo(kind).max))


def _arrays(data: bytes, most_bytes: int) -> list[npt.NDArray[Any]]:
    """Decode the arrays of a file. Memory is taken for bytes that were decompressed, not for announced ones.

    Args:
        data: the file.
        most_bytes: of the arrays together. A tar is longer than the keys and numbers of its members.
    """
    arrays = []
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > most_bytes + _OVERHEAD_BYTES:
            raise ValueError(f"its arrays have more than {most_bytes:,} bytes")
        for name in _COLUMNS:
            with archive.open(f"{name}.npy") as entry:
                content = entry.read(most_bytes + _OVERHEAD_BYTES)
            shape, _, kind, begin = npy_header(content)
            if len(shape) != 1 or kind.kind not in "ui" or len(content) - begin != shape[0] * kind.itemsize:
                raise ValueError(f"an array of {shape} values of {kind} has {len(content) - begin:,} bytes")
            arrays.append(np.frombuffer(content, kind, offset=begin))
    return arrays
