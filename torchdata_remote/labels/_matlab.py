"""Read an array of structs from a MATLAB 5 file. Strict: every length is compared before it is used.

Layout: MathWorks, "MAT-File Format", version 5. Read are what ``meta.mat`` holds: numbers and texts of one value each;
other fields are passed over.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from math import prod
from typing import NamedTuple

_HEADER_BYTES = 128
_MAX_BYTES = 8 << 20  # of what was compressed; ILSVRC's is about 2 MB
_MAX_ELEMENTS = 1 << 15  # next to each other; ILSVRC's has 15,000
_MAX_DIMENSIONS = 32

_MATRIX, _COMPRESSED = 14, 15
_INT8, _INT32, _UINT32 = 1, 5, 6
_STRUCT, _CHAR, _NUMBERS = 2, 4, range(6, 16)
_COMPLEX = 0x0800
_FORMATS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
_ENCODINGS = {1: "ascii", 2: "ascii", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}

Row = dict[str, float | int | str | None]


class _Element(NamedTuple):
    kind: int
    data: memoryview


def read_structs(data: bytes, variable: str) -> list[Row] | None:
    """The structs of a variable, by columns: field -> its value; ``None`` for a field of another form.

    Returns:
        ``None`` if there is no such variable.

    Raises:
        ValueError: for damaged data, for another format, and for a variable that is no array of structs. Says what.
    """
    if len(data) < _HEADER_BYTES:
        raise ValueError(f"{len(data)} bytes, of which the header would take {_HEADER_BYTES}")
    order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    if order is None:
        raise ValueError(f"its byte order is {data[126:128]!r}, expected b'IM' or b'MI'")
    (version,) = struct.unpack(f"{order}H", data[124:126])
    if version != 0x0100:
        what = "version 7.3, which is HDF5" if version == 0x0200 else f"version {version:#06x}"
        raise ValueError(f"{what}: save it by save(..., '-v7')")
    for element in _Reader(order).elements(memoryview(data)[_HEADER_BYTES:]):
        unpacked, rest = element, b""
        if element.kind == _COMPRESSED:
            whole = _decompressed(element.data)
            (unpacked, *more) = _Reader(order).elements(memoryview(whole)) or [element]
            rest = b"".join(bytes(one.data) for one in more)
        if unpacked.kind != _MATRIX or rest:
            raise ValueError(f"an element of type {unpacked.kind} where a variable should be")
        rows = _Reader(order).structs(unpacked.data, variable)
        if rows is not None:
            return rows
    return None


def _decompressed(data: memoryview) -> bytes:
    stream = zlib.decompressobj()
    try:
        whole = stream.decompress(data, _MAX_BYTES)
    except zlib.error as error:
        raise ValueError(f"compressed data are damaged ({error})") from error
    if not stream.eof or stream.unused_data:
        raise ValueError(f"compressed data do not end where they should, or hold more than {_MAX_BYTES:,} bytes")
    return whole


class _Reader:
    def __init__(self, order: str) -> None:
        self._order = order

    def elements(self, view: memoryview) -> list[_Element]:
        """All elements of a piece, one after the other."""
        found = list(islice(self._each(view), _MAX_ELEMENTS + 1))
        if len(found) > _MAX_ELEMENTS:
            raise ValueError(f"more than {_MAX_ELEMENTS:,} elements next to each other")
        return found

    def _each(self, view: memoryview) -> Iterator[_Element]:
        at = 0
        while at < len(view):
            if len(view) - at < 8:
                raise ValueError(f"{len(view) - at} bytes where an element should begin")
            kind, num_bytes = struct.unpack_from(f"{self._order}2I", view, at)
            start, after = at + 8, at + 8 + num_bytes
            if kind >> 16:  # a small element has its data in the tag
                kind, num_bytes = kind & 0xFFFF, kind >> 16
                start, after = at + 4, at + 8
                if num_bytes > 4:
                    raise ValueError(f"a small element of {num_bytes} bytes")
            elif kind != _COMPRESSED:
                after += -after % 8
            if start + num_bytes > len(view):
                raise ValueError(f"an element claims {num_bytes:,} bytes where {len(view) - start:,} are left")
            yield _Element(kind, view[start : start + num_bytes])
            at = after

    def structs(self, view: memoryview, variable: str) -> list[Row] | None:
        """The structs of a variable, if it is called so."""
        flags, dimensions, name, rest = self._head(view)
        if name != variable:
            return None
        if flags & 0xFF != _STRUCT or len(rest) < 2:
            raise ValueError(f"{variable} is no array of structs, such as those with a WNID")
        width = int(self._numbers(rest[0], _INT32, 1)[0])
        raw = bytes(rest[1].data)
        if rest[1].kind != _INT8 or not 0 < width <= 1024 or len(raw) % width:
            raise ValueError(f"names of fields in {len(raw)} bytes of {width} each")
        names = [_text(raw[at : at + width].partition(b"\0")[0], "ascii") for at in range(0, len(raw), width)]
        values = rest[2:]
        if not names or len(set(names)) < len(names) or len(values) != prod(dimensions) * len(names):
            raise ValueError(f"{len(values):,} values for {prod(dimensions):,} structs of {len(names)} fields")
        return [
            {field: self._value(values[at + index]) for index, field in enumerate(names)}
            for at in range(0, len(values), len(names))
        ]

    def _head(self, view: memoryview) -> tuple[int, list[int], str, list[_Element]]:
        """Flags, dimensions and name of an array, and what follows."""
        parts = self.elements(view)
        if len(parts) < 3:
            raise ValueError(f"an array of {len(parts)} elements, expected flags, dimensions and name")
        flags, dimensions, name, *rest = parts
        (word, _) = self._numbers(flags, _UINT32, 2)
        sizes = self._numbers(dimensions, _INT32, None)
        if not 2 <= len(sizes) <= _MAX_DIMENSIONS or any(size < 0 for size in sizes):
            raise ValueError(f"an array of the dimensions {sizes[:4]}")
        if name.kind != _INT8:
            raise ValueError(f"a name of type {name.kind}")
        return int(word), [int(size) for size in sizes], _text(bytes(name.data), "ascii"), rest

    def _value(self, element: _Element) -> float | int | str | None:
        """Of a text, or of a number; ``None`` for all else."""
        if element.kind != _MATRIX:
            raise ValueError(f"an element of type {element.kind} where a value should be")
        if not element.data:
            return None
        flags, dimensions, _, rest = self._head(element.data)
        if flags & 0xFF == _CHAR and dimensions[0] <= 1 and len(dimensions) == 2:
            if not rest or rest[0].kind not in _ENCODINGS:
                return "" if not prod(dimensions) else None
            encoding = _ENCODINGS[rest[0].kind]
            if encoding.startswith(("utf-16", "utf-32")):
                encoding += "-le" if self._order == "<" else "-be"
            return _text(bytes(rest[0].data), encoding)
        if flags & 0xFF in _NUMBERS and not flags & _COMPLEX and prod(dimensions) == 1 and len(rest) == 1:
            return self._numbers(rest[0], rest[0].kind, 1)[0]
        return None

    def _numbers(self, element: _Element, kind: int, count: int | None) -> list[float | int]:
        letter = _FORMATS.get(element.kind)
        if element.kind != kind or letter is None:
            raise ValueError(f"numbers of type {element.kind}")
        size = struct.calcsize(f"={letter}")
        number = len(element.data) // size if count is None else count
        if number * size != len(element.data):
            raise ValueError(f"{len(element.data)} bytes for {number} numbers of {size} bytes")
        return list(struct.unpack(f"{self._order}{number}{letter}", element.data))


def _text(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"text that is no {encoding} ({error.reason})") from error
