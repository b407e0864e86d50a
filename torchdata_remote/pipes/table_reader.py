"""``table_reader``: read the rows of Parquet and Arrow files as samples."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.options import MIB, FetchOptions, RetryPolicy, policy_of
from ..core.urls import object_path
from ..errors import RemoteDataError
from ..fetch.listing.source_argument import url_of
from ..fetch.session import FetchSession
from ..fetch.streams import numbered_urls, open_ahead
from ..fetch.tables import TableStream
from ..formats.error_policy import OnBadShard, ShardErrorHandler, raise_error
from ..formats.grouping import SampleRun
from ..formats.position import ReadPosition
from ..formats.sample import Sample, split_key
from ..formats.tables import Columns, RowFilter, require_pyarrow, row_samples
from .env import Env
from .passes import Pass
from .readers import ShardPass, ShardReader
from .streams import Opened, StreamPass, UrlsAhead


@functional_datapipe("table_reader")
class TableReader(ShardReader):
    """Read the rows of Parquet and Arrow files as samples (functional name: ``table_reader``).

    Arrow files are IPC files (Feather) and IPC streams; the format is detected by content. Of Parquet, only the column
    chunks of the chosen columns are fetched, of several row groups ahead, and close ones by one request. Of Arrow,
    whole record batches are fetched. Rows are decoded in batches of 16 MiB or 8,192 rows.

    Whole files are read by default. Put ``list_row_groups()`` before ``shuffle_shards`` and ``sharding_filter_rank`` to
    shuffle and split row groups. Needs pyarrow: ``pip install 'torchdata_remote[tables]'``.

    Values are ``int``, ``float``, ``bool``, ``str``, ``bytes``, and ``None`` for null. A list of numbers is a NumPy
    array, or a ``list`` if there is a null in it; fixed-size lists in lists are arrays of several dimensions. A struct
    is a ``dict``, another list a ``list``. Timestamps and dates are ``numpy.datetime64`` in the unit of the file, in
    UTC; durations ``numpy.timedelta64``; times of a day ``datetime.time``; decimals ``decimal.Decimal``. Dictionary
    columns are decoded. Where the type of a column differs among the files, values stay as each file has them; a
    ``RuntimeWarning`` says it once, with both types and files.

    Args:
        source_datapipe: URLs of files, or of row groups.
        columns: names of the columns to read, or a mapping from them to the names in the sample; ``None`` for all.
            ``"image.bytes"`` is the field ``bytes`` of the struct ``image``: ``{"image.bytes": "jpg", "label": "cls"}``
            makes samples of a Hugging Face data set that ``decode_image`` and ``write_shards`` take.
        key: column of strings or integers that are the keys. ``None`` for the column ``__key__`` if there is one, else
            path of the file without extension, and number of the row: ``data/train-0/000000017``.
        optional: those of ``columns`` that a file may lack, such as ``["image.path"]``: ``None`` in its samples.
        filter: rows to yield: a ``pyarrow.compute.Expression``, or a list of tuples that are all required, as
            ``[("label", "in", [3, 4])]``. Row groups that the statistics of Parquet exclude are not fetched.
        interleave: number of files, or row groups, that are read concurrently, one sample of each in turn. A decoded
            batch of each of them is in memory.
        max_in_flight: concurrent requests.
        max_buffer_bytes: bound on the bytes that are fetched ahead. One row group per open file is always allowed.
        on_bad_shard: called with the ``ShardReadError`` of a file or row group that is damaged. It raises, as
            ``raise_error`` does; or it returns, as ``skip_with_warning`` does, and the rest of this file, or of
            this row group if they were listed, is skipped.
        retry: limits for retrying transient faults.
        storage_options: for the store, in fsspec's vocabulary.

    Yields:
        dict: ``"__key__"`` (str), ``"__url__"`` (str), and one value for each column.

    Raises:
        ImportError: if pyarrow is not installed.
        ShardReadError: for a file that is damaged, or no table.
        MissingMemberError: if a file has no such column.
        SampleError: if the filter cannot be applied to the columns; for a column named ``__url__``, or ``__key__`` that
            has no keys, unless ``columns`` renames it or leaves it out.
        ObjectChangedError: if a file was replaced after it was listed.

    Example:
        >>> import fsspec, pyarrow as pa, pyarrow.parquet as pq
        >>> with fsspec.open("memory://doc/pets.parquet", "wb") as file:
        ...     pq.write_table(pa.table({"name": ["cat", "dog"], "box": [[1, 2], [3, 4]], "n": [1, 2]}), file)
        >>> files = IterableWrapper(["memory://doc/pets.parquet"])
        >>> for sample in TableReader(files, columns=["name", "box"], filter=[("n", ">", 1)]):
        ...     print(sample["__key__"], sample["name"], sample["box"])
        doc/pets/000000001 dog [3 4]
    """

    keys_are_paths = True

    def __init__(
        self,
        source_datapipe: IterDataPipe[str],
        *,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        key: str | None = None,
        optional: Collection[str] = (),
        filter: Any = None,  # noqa: A002  # as pyarrow calls it
        interleave: int = 1,
        max_in_flight: int = 16,
        max_buffer_bytes: int = 128 * MIB,
        on_bad_shard: OnBadShard = raise_error,
        retry: RetryPolicy | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            source_datapipe, on_bad_shard=on_bad_shard, interleave=interleave, storage_options=storage_options
        )
        require_pyarrow("table_reader")
        self.columns = Columns(columns, key, None if filter is None else RowFilter(filter), optional)
        self._options = FetchOptions(
            max_in_flight=max_in_flight,
            max_buffer_bytes=max_buffer_bytes,
            interleave=self.interleave,
            retry=policy_of(retry),
        )

    @property
    def drops_samples(self) -> bool:
        """Whether fewer samples may be yielded than the row groups have rows."""
        return self.columns.row_filter is not None

    def order_options(self) -> Mapping[str, Any]:
        # Pipes behind that keep rows, such as shuffle_samples, count those that the filter accepts
        row_filter = self.columns.row_filter
        return {**super().order_options(), **({} if row_filter is None else {"filter": row_filter.described()})}

    def opener_of(self, session: FetchSession, env: Env) -> Opened:
        # The fetcher's threads start with the first URL
        opens = partial(TableStream, self.columns)
        return lambda urls, state: open_ahead(numbered_urls(_only_urls(urls), state), session, opens)

    def input_of(self, env: Env) -> Pass[tuple[str, Any]]:
        session = env.shared.session(self, self._options, self._storage_options)
        return StreamPass(UrlsAhead(self, env), self.opener_of(session, env))

    def open(self, env: Env) -> Pass[Sample]:
        return _TablePass(self, env)


class _TablePass(ShardPass):
    reads_parts = True

    def first_byte(self, place: Any) -> int:
        return int(place[0])  # the row

    def runs_in(self, url: str, stream: Any, guard: ShardErrorHandler, position: ReadPosition) -> Iterator[SampleRun]:
        stem = f"{split_key(object_path(stream.url))[0]}/"
        with closing(stream.batches()) as batches:
            for columns, begin, batch in batches:
                self.pipe.columns.say_changes(columns.kinds, url)
                samples, rows = row_samples(batch, begin, columns, url=url, stem=stem)
                position.batch_offset = 0
                position.batch_starts = [*rows, begin + batch.num_rows]
                position.batch_rest = run = iter(samples)
                if samples:
                    yield run


def _only_urls(items: Iterable[Any]) -> Iterator[str]:
    for item in items:
        if isinstance(item, tuple):
            raise RemoteDataError(
                "table_reader: expected URLs of tables, got a (url, file_like) pair. Remove async_prefetch(): "
                "table_reader fetches by itself."
            )
        yield url_of(item, of="table_reader")
