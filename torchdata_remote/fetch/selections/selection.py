"""Selections: the wanted keys, and each shard as a view of the samples and members that are chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...core import arguments as check
from ...core.options import RetryPolicy, StorageOptions
from ...core.shard_view import ShardView, key_sums, view_url
from ...core.threads import ordered_map
from ...core.urls import RemoteUrl, join_url, object_path, redact, split_url
from ...errors import EmptyListingError, MissingKeyError, MissingMemberError, RemoteDataError
from ...formats.key_index import KeyIndex
from ...formats.tables import Columns, RowFilter, require_pyarrow, row_samples
from ...storage import read_whole
from ..listing.patterns import literal_url
from ..listing.url_table import StringColumn
from ..ranges import OneObject
from ..tables import Group, TableFile

Bools = npt.NDArray[np.bool_]

_MAX_SHOWN = 5
_LINES, _TABLES = (".txt",), (".parquet", ".arrow", ".feather", ".ipc")
_KEY = "key"
_GROUPS_AT_ONCE = 4


class IndexedSample(NamedTuple):
    """A sample as the index of its shard has it, for a function that selects samples.

    Args:
        key: as readers give it by ``"__key__"``.
        url: of its shard.
        members: extension -> bytes of the member, in the order of the shard.

    Example:
        >>> sample = IndexedSample("train/000017", "s3://b/0.tar", {"jpg": 94_211, "cls": 1})
        >>> sample.key, sample.members["jpg"] < 1 << 20, "txt" in sample.members
        ('train/000017', True, False)
    """

    key: str
    url: str
    members: Mapping[str, int]


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
            what = f"{source}: a key must be str such as 'train/000017', got {check.shown(key)}."
            raise check.marked(TypeError(f"{what} Keys are texts: '000017', not 17."))
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


def planned_views(
    indexes: Iterable[tuple[RemoteUrl, KeyIndex]],
    keys: Sequence[str] | None,
    where: Callable[[IndexedSample], Any] | None,
    members: tuple[tuple[str, ...], ...] | None,
    on_missing_key: Callable[[MissingKeyError], object],
) -> list[RemoteUrl]:
    """Return what is selected of each shard, in order; shards without a selected sample are left out.

    A shard whose samples and members are all selected stays as it is, with its checksums, if its manifest has what
    readers need to split it by samples.

    Args:
        indexes: of the shards.
        keys: of the selected samples; ``None`` for all.
        where: returns whether a sample is selected; ``None`` for all.
        members: alternatives for each member that is read; ``None`` for all members.
        on_missing_key: policy for keys that no shard has.

    Raises:
        MissingKeyError: for keys that no shard has, unless the policy returns.
        MissingMemberError: if a selected sample has none of the alternatives of a member.
        EmptyListingError: if nothing is selected.
    """
    views: list[RemoteUrl] = []
    is_found = dict.fromkeys(keys or (), False)
    for url, index in indexes:
        chosen = np.ones(len(index.keys), np.bool_)
        if keys is not None:
            chosen = np.fromiter(map(is_found.__contains__, index.keys), np.bool_, len(index.keys))
            is_found |= dict.fromkeys(compress(index.keys, chosen), True)
        if where is not None:
            _filter(chosen, url, index, where)
        if chosen.any():
            views.append(_view(url, index, chosen, members))
    missing = [key for key, found in is_found.items() if not found]
    if missing:
        names = ", ".join(f"{key!r:.100}" for key in missing[:_MAX_SHOWN])
        on_missing_key(
            MissingKeyError(
                f"select: {len(missing):,} of {len(is_found):,} keys are in none of the shards, such as {names}. "
                "A key is the path of a member without its extension, such as 'train/000017'. Pass "
                "on_missing_key=skip_with_warning to select those that are there."
            )
        )
    if not views:
        raise EmptyListingError("select: none of the samples is selected. Check keys= and where=.")
    return views


def _filter(chosen: Bools, url: str, index: KeyIndex, where: Callable[[IndexedSample], Any]) -> None:
    """Deselect the samples that a function does not want."""
    firsts, sizes = index.firsts().tolist(), index.sizes.tolist()
    names, shard = [index.extensions[member] for member in index.members], str(url)
    for number in np.flatnonzero(chosen).tolist():
        members = slice(firsts[number], firsts[number + 1])
        found = dict(zip(names[members], sizes[members], strict=True))
        chosen[number] = bool(where(IndexedSample(index.keys[number], shard, found)))


def _view(url: RemoteUrl, index: KeyIndex, chosen: Bools, members: tuple[tuple[str, ...], ...] | None) -> RemoteUrl:
    are_read = np.repeat(chosen, index.counts)
    if members is not None:
        are_read &= _wanted_members(url, index, chosen, members)
    if are_read.all() and None not in (url.num_samples, url.index_crc32):
        return url
    starts, stops, counts = index.ranges(are_read)
    # Without a checksum, the keys may be those of another version
    sums = key_sums(compress(index.keys, chosen)) if url.keys_crc32 is None else None
    return view_url(ShardView((url,), counts[chosen], np.zeros_like(starts), starts, stops, sums))


def _wanted_members(url: str, index: KeyIndex, chosen: Bools, wanted: tuple[tuple[str, ...], ...]) -> Bools:
    """Return which members are read: of each list of alternatives the first one that the sample has."""
    names, are_read = np.array(index.extensions)[index.members], np.zeros(len(index.members), np.bool_)
    samples = np.repeat(np.arange(len(index.counts)), index.counts)
    for alternatives in wanted:
        are_lacking = np.ones(len(index.counts), np.bool_)
        for name in alternatives:
            found = (names == name) & are_lacking[samples]
            are_read |= found
            are_lacking[samples[found]] = False
        for number in np.flatnonzero(are_lacking & chosen).tolist():
            raise MissingMemberError(
                f"select: sample {index.keys[number]!r:.200} of {redact(url)} has no "
                f"{' or '.join(map(repr, alternatives))}. It has {sorted(names[samples == number].tolist())}. Deselect "
                "it by where=, or separate alternatives by ';': members=('jpg;png', 'cls').",
                url=redact(url),
            )
    return are_read
