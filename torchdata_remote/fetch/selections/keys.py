"""Wanted keys, of an iterable or of a file, and the search for keys by their hashes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.arguments import check
from ...core.options import RetryPolicy, StorageOptions
from ...core.threads.ordered_map import ordered_map
from ...core.urls import RemoteUrl, join_url, object_path, redact, split_url
from ...errors import RemoteDataError
from ...formats.tables import Columns, RowFilter, require_pyarrow, row_samples
from ...storage import read_whole
from ..listing.patterns import literal_url
from ..listing.url_table import StringColumn
from ..tables import Group, TableFile

Ints = npt.NDArray[np.int64]

_LINES, _TABLES = (".txt",), (".parquet", ".arrow", ".feather", ".ipc")
_KEY = "key"
_GROUPS_AT_ONCE = 4


def key_column(keys: Iterable[Any], source: str = "keys") -> StringColumn:
    """Collect keys; a key may be there repeatedly. Each takes its characters and 8 bytes.

    Args:
        keys: texts.
        source: where they are from, as errors show it.

    Raises:
        TypeError: for a key that is no ``str``.
        ValueError: for one that is no Unicode.
    """
    column = StringColumn()
    for key in keys:
        if not isinstance(key, str):
            advice = "Keys are texts: '000017', not 17." if key is not None else "Take out the rows without a key."
            raise check.marked(
                TypeError(f"{source}: a key must be str such as 'train/000017', got {check.shown(key)}. {advice}")
            )
        try:
            column.append(key)
        except UnicodeEncodeError as error:
            raise check.marked(ValueError(f"{source}: no member can have the name {key!r}: {error}.")) from error
    return column


def keys_of_file(
    url: str, column: str, row_filter: RowFilter | None, options: StorageOptions, retry: RetryPolicy
) -> StringColumn:
    """Return the keys of a file: lines of a ``.txt``, or a column of a Parquet or Arrow file.

    Of a Parquet file only the columns of the keys and of the filter are read, and of these only the row groups that
    statistics do not exclude. obstore is not used, so that a process that only lists can be forked.

    Args:
        url: or path of the file.
        column: name of the column of keys.
        row_filter: of the rows of a table; ``None`` for all.
        options: for the store.
        retry: policy for transient faults.

    Raises:
        RemoteDataError: if the file is damaged, of a kind that is not known, or has no such column.
        ImportError: for a table without pyarrow.
        TypeError: if keys are not texts.
    """
    url = url if isinstance(url, RemoteUrl) else join_url(*split_url(literal_url(url)))
    shown, name = redact(url), object_path(url).lower()
    if name.endswith(_LINES) and row_filter is None:
        text = read_whole(url, options, retry, by_obstore=False).decode("utf-8-sig", "surrogateescape")
        return key_column(filter(None, text.replace("\r\n", "\n").split("\n")), shown)
    if not name.endswith(_TABLES):
        raise RemoteDataError(
            f"{shown}: keys are read from files named *{', *'.join(_LINES + _TABLES)}, and a filter needs a table. "
            "Pass those of another file as a list.",
            url=shown,
        )
    require_pyarrow("select(keys=) of a table")
    file = TableFile(url, options, retry, by_obstore=False)
    columns = Columns({column: _KEY}, column, row_filter).resolve(file.index.schema, shown)

    def keys_in(group: Group, sleep: object) -> list[Any]:
        pieces = [memoryview(file.read(*one)) for one in file.index.ranges(group.number, columns)]
        batches = file.batches(group, columns, pieces)
        return [
            one[_KEY] for first, rows in batches for one in row_samples(rows, first, columns, url=shown, stem="")[0]
        ]

    tasks = [partial(keys_in, group) for group in file.groups(row_filter, 0, file.num_rows)]
    with closing(ordered_map(tasks, max_threads=_GROUPS_AT_ONCE)) as found:
        return key_column((key for keys in found for key in keys), shown)


class KeyNumbers:
    """Finds the numbers of keys by sorted 64-bit hashes, and compares their texts. It takes 12 bytes for a key.

    Hashes are Python's, and differ between processes: this is not sent to others.

    Args:
        keys: the first one has the number 0.
    """

    def __init__(self, keys: StringColumn) -> None:
        self._keys, hashes = keys, _hashes(keys)
        self._order = np.argsort(hashes, kind="stable").astype(np.uint32 if len(hashes) < 1 << 32 else np.int64)
        self._sorted = hashes[self._order]

    def find(self, keys: Sequence[str]) -> Ints:
        """Return the number of each of these keys, the smallest one of a repeated key; -1 if it is not there."""
        found, hashes = np.full(len(keys), -1), _hashes(keys)
        places, ends = (np.searchsorted(self._sorted, hashes, side=side) for side in ("left", "right"))
        while len(at := np.flatnonzero((found < 0) & (places < ends))):
            numbers = self._order[places[at]].tolist()
            texts = zip(at.tolist(), numbers, self._keys.at(numbers), strict=True)
            found[at] = [number if text == keys[place] else -1 for place, number, text in texts]
            places[at] += 1
        return found

    def repeated(self) -> Ints:
        """Return the number of each key that was there before, with a smaller number."""
        suspects = self._order[1:][self._sorted[1:] == self._sorted[:-1]]
        repeated: Ints = suspects[self.find(self._keys.at(suspects.tolist())) != suspects]
        return repeated


def _hashes(keys: Sequence[str]) -> Ints:
    return np.fromiter(map(hash, keys), np.int64, len(keys))
