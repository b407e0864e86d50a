"""``list_row_groups``: list the row groups of Parquet and Arrow files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.options import RetryPolicy, StorageOptions, policy_of
from ..core.processes.parent_watch import end_worker_with_trainer
from ..core.urls import RemoteUrl
from ..fetch.listing.source_argument import pipe_of, url_of
from ..fetch.tables import list_groups
from ..formats.tables import RowFilter, require_pyarrow
from .base.split_guard import SplitReader, require_split


@functional_datapipe("list_row_groups")
class ListRowGroups(SplitReader[RemoteUrl]):
    """List the row groups of Parquet and Arrow files (functional name: ``list_row_groups``).

    Row groups are then the unit that ``shuffle_shards`` shuffles, ``sharding_filter_rank`` splits and ``table_reader``
    reads, in place of whole files; and their numbers of rows are known, so that they can be split further and
    ``equalize_ranks`` can count. The record batches of an Arrow file count as its row groups.

    Only footers are read, of 16 files at once: one request for a Parquet file, two if the footer is longer than
    64 KiB. Arrow footers have no numbers of rows, and Arrow streams have no footers, so both take a request for each
    record batch of more than 256 KiB, one after the other. The footers of 512 files stay in memory for
    ``table_reader``, those of more than 256 KiB do not. Needs pyarrow: ``pip install 'torchdata_remote[tables]'``.

    Args:
        source_datapipe: URLs of files, as ``list_remote`` yields them.
        filter: row groups without a row that this condition accepts, by the statistics in the Parquet footer, are left
            out: a ``pyarrow.compute.Expression``, or a list of tuples as ``[("label", "in", [3, 4])]``. Pass
            ``table_reader`` the same one, which applies it to rows.
        retry: policy for transient errors.
        storage_options: for the store, in fsspec's vocabulary.

    Yields:
        RemoteUrl: ``part of s3://b/x.parquet (samples 0 to 1000)`` for rows 0 to 999, with ``num_samples``, and
        ``size`` and ``etag`` of the file. A file with a single row group has its own URL.

    Raises:
        ImportError: if pyarrow is not installed.
        ShardReadError: for a file that is damaged, or no table.
        SampleError: if the filter cannot be applied to the columns.

    Example:
        >>> import fsspec, pyarrow as pa, pyarrow.parquet as pq
        >>> with fsspec.open("memory://doc/x.parquet", "wb") as file:
        ...     pq.write_table(pa.table({"n": range(5)}), file, row_group_size=3)
        >>> [(url, url.num_samples) for url in ListRowGroups(IterableWrapper(["memory://doc/x.parquet"]))]
        ... # doctest: +NORMALIZE_WHITESPACE
        [('part of memory://doc/x.parquet (samples 0 to 3)', 3),
         ('part of memory://doc/x.parquet (samples 3 to 5)', 2)]
    """

    gives_urls = True

    def __init__(
        self,
        source_datapipe: IterDataPipe[str | os.PathLike[str]],
        *,
        filter: Any = None,  # noqa: A002  # as pyarrow calls it
        retry: RetryPolicy | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.source_datapipe = pipe_of(source_datapipe, of="list_row_groups")
        require_pyarrow("list_row_groups")
        self._filter = None if filter is None else RowFilter(filter)
        self._storage_options = StorageOptions(storage_options)
        self._retry = policy_of(retry)

    def __iter__(self) -> Iterator[RemoteUrl]:
        end_worker_with_trainer()
        require_split(self, lists_only=True)
        urls = (url_of(url, of="list_row_groups") for url in self.source_datapipe)
        with closing(list_groups(urls, self._filter, self._storage_options, self._retry)) as groups:
            yield from groups
