"""``select``: select samples and members of shards by key, by a table or by a function, before anything is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from ..core.arguments import check
from ..core.arguments.calls import explained_as
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.options import RetryPolicy, StorageOptions, policy_of
from ..core.urls import RemoteUrl
from ..errors import MissingKeyError
from ..fetch.listing.shard_set import options_beside
from ..fetch.listing.source_argument import pipe_of, url_of
from ..fetch.listing.url_table import StringColumn
from ..fetch.selections.key_indexes import key_indexes
from ..fetch.selections.selection import (
    IndexedSample,
    key_column,
    keys_of_file,
    planned_views,
    require_whole_shards,
)
from ..formats.error_policy import OnBadMember, raise_error
from ..formats.tables import RowFilter
from .base.chain import all_pipes
from .base.datapipe import DataPipe
from .base.members import alternatives
from .base.slots import require_end

_EXAMPLE = "lambda sample: sample.members['jpg'] < 1 << 20"


@functional_datapipe("select")
class Select(DataPipe[RemoteUrl]):
    """Select samples and members of tar shards (functional name: ``select``).

    Readers then request the bytes of what was selected only, and nothing is written. It is planned by the files of keys
    beside the shards (``shard.tar.keys``, of ``ShardWriter`` and ``torchdata-remote manifest``), 16 requests at a time;
    without them the headers of the shards are read, with a warning. A plan of unchanged shards is made once in a
    process. Put it between ``list_remote`` and ``shuffle_shards``.

    Args:
        source_datapipe: URLs of uncompressed tar shards.
        keys: of the samples, as ``"__key__"`` has them. A list, a set, a column of a table or another iterable; or the
            URL or path of a file: a ``.txt`` with a key in each line, or a ``.parquet``, ``.arrow`` or ``.feather``,
            which need pyarrow (``pip install 'torchdata_remote[tables]'``). A key that several shards have selects all
            its samples. ``None`` selects all keys.
        where: a function that is called with the :class:`IndexedSample` of each sample (that ``keys`` selects), and
            returns whether it is selected, as for Python's ``filter``; one that workers receive must be importable.
            With the URL of a table, an expression of ``pyarrow.compute`` that its rows must fulfil.
        members: of each selected sample that are read: extensions, in any case; of ``"jpg;jpeg;png"`` the first
            that the sample has. ``None`` reads all.
        key_column: of a file that is a table, the column with the keys.
        on_missing_key: policy for keys that no shard has: ``raise_error``, ``skip_with_warning``, or a function that is
            called with the error.
        on_bad_member: policy for members that cannot be part of a sample, where headers of shards are read. Pass the
            reader's, as ``stream_shards`` does.
        retry: policy for transient errors, for each request.
        storage_options: for the store, in fsspec's vocabulary; also for the file of ``keys`` in the same kind of store.

    Yields:
        RemoteUrl: of each shard that has a selected sample, in the order of the source, with its number of selected
        samples. It is the URL of the shard itself if all of it is selected and its manifest has checksums.

    Raises:
        MissingKeyError: if no shard has some of the keys: their number, and some of them.
        MissingMemberError: if a selected sample has none of the alternatives in ``members``.
        EmptyListingError: if nothing is selected.
        ManifestError: if the file of keys belongs to another version of the shard.
        ShardReadError: for a shard without such a file that is compressed, a zip, or damaged.
        UrlError: for samples that were selected elsewhere.
        ValueError: after ``sharding_filter_rank`` or another ``select``.
        RemoteDataError: if the file of ``keys`` is damaged or of an unknown kind, or has no such column.

    Example:
        >>> from torchdata_remote import ShardWriter
        >>> with ShardWriter("memory://chosen/{shard}.tar", overwrite=True) as writer:
        ...     _ = [writer.write({"__key__": str(i), "txt": "x" * i, "cls": i}) for i in range(7)]
        >>> urls = IterableWrapper(["memory://chosen/index.json"]).list_remote()
        >>> chosen = Select(urls, keys={"2", "5", "6"}, where=lambda sample: sample.members["txt"] < 6, members=["txt"])
        >>> [url.num_samples for url in chosen], list(chosen.shard_tar_reader().to_tuple("__key__", "txt"))
        ([2], [('2', b'xx'), ('5', b'xxxxx')])
    """

    gives_urls = True

    def __init__(
        self,
        source_datapipe: IterDataPipe[str],
        *,
        keys: Any = None,
        where: Callable[[IndexedSample], object] | Any = None,
        members: str | Sequence[str] | None = None,
        key_column: str = "__key__",
        on_missing_key: Callable[[MissingKeyError], object] = raise_error,
        on_bad_member: OnBadMember = raise_error,
        retry: RetryPolicy | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.source_datapipe = pipe_of(source_datapipe, of="select")
        _require_listing(self.source_datapipe)
        require_end(self.source_datapipe)
        if keys is None and where is None and members is None:
            raise ValueError("select needs keys=, where= or members=: without them it selects everything.")
        self._column = check.text("key_column", key_column, example="__key__")
        self._keys = _keys_or_file(keys)
        if isinstance(self._keys, str) and not callable(where):
            self._filter, where = None if where is None else RowFilter(where), None
        else:
            self._filter = None
        self._where = check.function_or_none("where", where, example=_EXAMPLE)
        self._members = _alternatives(members)
        self._on_missing_key = check.function("on_missing_key", on_missing_key, example="skip_with_warning")
        self._on_bad_member = check.function("on_bad_member", on_bad_member, example="skip_with_warning")
        self._retry, self._storage_options = policy_of(retry), StorageOptions(storage_options)
        # The shards of the last plan, and what was selected of them
        self._planned: tuple[list[tuple[Any, ...]], list[RemoteUrl]] | None = None

    def __iter__(self) -> Iterator[RemoteUrl]:
        shards = list(require_whole_shards(url_of(url, of="select") for url in self.source_datapipe))
        versions = [url.__getnewargs__() for url in shards]
        if self._planned is None or self._planned[0] != versions:
            self._planned = versions, self._plan(shards)
        yield from self._planned[1]

    @explained_as("select")
    def _plan(self, shards: list[RemoteUrl]) -> list[RemoteUrl]:
        keys = self._keys
        if isinstance(keys, str):
            options = options_beside(keys, shards[0], self._storage_options) if shards else self._storage_options
            keys = keys_of_file(keys, self._column, self._filter, options, self._retry)
        policy = self._on_bad_member
        with closing(key_indexes(shards, self._storage_options, self._retry, on_bad_member=policy)) as indexes:
            return planned_views(indexes, keys, self._where, self._members, self._on_missing_key)


def _require_listing(pipe: IterDataPipe[Any]) -> None:
    """Refuse a chain that is split or selected already, whatever its shards are."""
    for found in all_pipes(pipe):
        if hasattr(type(found), "current_world"):
            raise ValueError(
                "select plans all shards, and this chain has the share of one reader: put select() before "
                "sharding_filter_rank()."
            )
        if isinstance(found, Select):
            raise ValueError("this chain has a select() already: pass keys=, where= and members= to one of them.")


def _keys_or_file(keys: Any) -> StringColumn | str | None:
    """Return the keys, or the URL of their file."""
    if isinstance(keys, str | os.PathLike):
        return check.path_or_url("keys", keys, example="s3://b/train.parquet")
    if keys is None:
        return None
    if isinstance(keys, bytes) or not isinstance(keys, Iterable) or hasattr(type(keys), "columns"):
        raise check.marked(
            TypeError(
                "keys must be an iterable of keys, such as a column of a table, or the URL of a file such as "
                f"'s3://b/train.parquet', got {check.shown(keys)}."
            )
        )
    return key_column(keys.to_pylist() if hasattr(keys, "to_pylist") else keys)


def _alternatives(members: Any) -> tuple[tuple[str, ...], ...] | None:
    if members is None:
        return None
    names = [members] if isinstance(members, str) else members
    if not isinstance(names, Iterable):
        raise check.marked(
            TypeError(f"members must be extensions such as ('jpg;png', 'cls'), got {check.shown(members)}.")
        )
    found = []
    for name in names:
        if not isinstance(name, str) or not name.strip("; "):
            raise check.marked(
                ValueError(f"members must be extensions such as ('jpg;png', 'cls'), got {check.shown(name)} in them.")
            )
        found.append(alternatives(name.lower()))
    if not found:
        raise check.marked(ValueError("members must be extensions such as ('jpg;png', 'cls'), and there are none."))
    return tuple(found)
