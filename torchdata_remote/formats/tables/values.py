"""Values of Arrow arrays as those of Python and NumPy: a few calls for each array, not one for each value."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, Any]


def values_of(array: pa.Array) -> list[Any]:
    """Return the values of an array; ``None`` for null.

    =========================================  =======================================================================
    numbers, booleans                          ``int``, ``float``, ``bool``
    strings, binary                            ``str``, ``bytes``
    timestamps, dates; durations               ``numpy.datetime64`` in their unit, in UTC; ``numpy.timedelta64``
    times of a day; decimals                   ``datetime.time``, in microseconds; ``decimal.Decimal``
    lists of numbers, dates or durations       a NumPy array of its own for each row; with a null in it, a ``list``
    fixed-size lists in lists, fixed tensors   a NumPy array of so many dimensions
    other lists                                ``list``
    structs; maps                              ``dict``; a ``list`` of ``(key, value)``
    dictionaries, run-end encoded, extensions  as the values that they stand for
    =========================================  =======================================================================
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, types = array.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _of_extension(array)
    if types.is_dictionary(kind):
        return values_of(array.dictionary_decode())
    if types.is_run_end_encoded(kind):
        return values_of(pc.run_end_decode(array))
    if types.is_struct(kind):
        names, columns = [kind.field(index).name for index in range(kind.num_fields)], map(values_of, array.flatten())
        rows = zip(*columns, strict=True) if names else ((),) * len(array)
        return _with_nulls([dict(zip(names, row, strict=True)) for row in rows], array)
    if str(kind).startswith(("list_view", "large_list_view")):  # types.is_list_view came with pyarrow 16
        return _of_list_views(array)
    if types.is_list(kind) or types.is_large_list(kind):
        return _of_lists(array)
    if types.is_fixed_size_list(kind):
        return _of_fixed_lists(array)
    if _is_number(kind):
        return _with_nulls(_scalars(_numpy(array)), array)
    if types.is_time64(kind):
        return _list(array.cast(pa.time64("us"), safe=False).to_pylist())
    if str(kind) in _OBJECTS or types.is_fixed_size_binary(kind):
        return _list(array.to_numpy(zero_copy_only=False).tolist())
    return _list(array.to_pylist())


_OBJECTS = {"string", "large_string", "binary", "large_binary", "string_view", "binary_view"}


def _list(values: Any) -> list[Any]:
    found: list[Any] = values
    return found


def _is_number(kind: pa.DataType) -> bool:
    """Whether NumPy has a type for it."""
    from pyarrow import types

    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_timestamp(kind)
        or types.is_duration(kind)
        or types.is_date(kind)
    )


def _numpy(array: pa.Array) -> Array:
    """Return numbers; any value for null."""
    from pyarrow import types

    if array.null_count and (types.is_integer(array.type) or types.is_boolean(array.type)):
        array = array.fill_null(False if types.is_boolean(array.type) else 0)
    found: Array = array.to_numpy(zero_copy_only=False)
    return found


def _scalars(numbers: Array) -> list[Any]:
    # tolist() would return an int in place of a time in nanoseconds
    return list(numbers) if numbers.dtype.kind in "mM" else _list(numbers.tolist())


def _with_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    if array.null_count:
        for index in np.flatnonzero(~_is_valid(array)).tolist():
            values[index] = None
    return values


def _is_valid(array: pa.Array) -> Array:
    found: Array = array.is_valid().to_numpy(zero_copy_only=False)
    return found


def _of_extension(array: pa.Array) -> list[Any]:
    import pyarrow as pa

    if isinstance(array, pa.FixedShapeTensorArray) and not array.storage.flatten().null_count:
        present = array.take(pa.array(np.flatnonzero(_is_valid(array)))) if array.null_count else array
        tensors = iter(present.to_numpy_ndarray() if len(present) else ())
        return [next(tensors).copy() if is_valid else None for is_valid in _is_valid(array).tolist()]
    return values_of(array.storage)


def _dense(array: pa.Array) -> Array | None:
    """Return numbers, or fixed-size lists of numbers, as an array of shape ``(num_rows, ...)``; ``None`` with nulls."""
    from pyarrow import types

    if array.null_count:
        return None
    if types.is_fixed_size_list(array.type):
        inner = _dense(_within_fixed(array))
        return None if inner is None else inner.reshape(len(array), array.type.list_size, *inner.shape[1:])
    return _numpy(array) if _is_number(array.type) else None


def _within_fixed(array: pa.Array) -> pa.Array:
    size = array.type.list_size
    return array.values.slice(array.offset * size, len(array) * size)


def _of_fixed_lists(array: pa.Array) -> list[Any]:
    dense = _dense(array)
    if dense is not None:
        return [row.copy() for row in dense]
    size = array.type.list_size
    ends = range(0, (len(array) + 1) * size, size) if size else [0] * (len(array) + 1)
    return _with_nulls(_rows(_within_fixed(array), list(pairwise(ends))), array)


def _of_list_views(array: pa.Array) -> list[Any]:
    # Without a cast to lists, which loses the last rows in some versions of pyarrow
    valid, starts, sizes = _is_valid(array), array.offsets.to_numpy(), array.sizes.to_numpy()
    starts, stops = starts * valid, (starts + sizes) * valid
    return _with_nulls(_rows(array.values, list(zip(starts.tolist(), stops.tolist(), strict=True))), array)


def _of_lists(array: pa.Array) -> list[Any]:
    ends = array.offsets.to_numpy()
    flat = array.values.slice(int(ends[0]), int(ends[-1] - ends[0]))
    return _with_nulls(_rows(flat, list(pairwise((ends - ends[0]).tolist()))), array)


def _rows(flat: pa.Array, spans: list[tuple[int, int]]) -> list[Any]:
    """Cut the values of all rows into rows.

    Args:
        flat: values.
        spans: where each row begins and ends.
    """
    dense = _dense(flat)
    if dense is not None:
        # A copy each, so that a row that is kept does not keep its whole batch in memory
        return [dense[start:stop].copy() for start, stop in spans]
    values = values_of(flat)
    if not _is_number(flat.type):
        return [values[start:stop] for start, stop in spans]
    numbers, nulls = _numpy(flat), np.append(0, np.cumsum(~_is_valid(flat))).tolist()
    return [values[start:stop] if nulls[stop] > nulls[start] else numbers[start:stop].copy() for start, stop in spans]
