"""Wanted keys, of an iterable or of a file."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from functools import partial
from typing import Any

from ...core.arguments import check
from ...core.options import RetryPolicy, StorageOptions
from ...core.threads.ordered_map import ordered_map
from ...core.urls import RemoteUrl, join_url, object_path, redact, split_url
from ...errors import RemoteDataError
from ...formats.tables import Columns, RowFilter, require_pyarrow, row_samples
from ...storage import read_whole
from ..listing.patterns import literal_url
from ..listing.url_table import StringColumn
from ..read_ahead import OneObject
from ..tables import Group, TableFile

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
        UnicodeEncodeError: for one that is no Unicode.
    """
    column = StringColumn()
    for key in keys:
        if not isinstance(key, str):
            advice = "Keys are texts: '000017', not 17." if key is not None else "Take out the rows without a key."
            raise check.marked(
                TypeError(f"{source}: a key must be str such as 'train/000017', got {check.shown(key)}. {advice}")
            )
        column.append(key)
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
    file = TableFile(OneObject(url, options, retry, by_obstore=False), options)
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
