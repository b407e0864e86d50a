"""Readers of loose objects, zip shards and tables: ``file_reader``, ``shard_zip_reader``, ``table_reader``."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from ..core.arguments import whole
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.options import MIB, FetchOptions, RetryPolicy, policy_of
from ..core.urls import VirtualUrl, object_path, redact
from ..errors import RemoteDataError, SampleError
from ..fetch.listing.source_argument import url_of
from ..fetch.streams import numbered_urls, open_ahead, parts_of, whole_of
from ..fetch.tables import TableStream
from ..formats.error_policy import OnBadMember, OnBadShard, ShardErrorHandler, raise_error
from ..formats.grouping import SampleRun, sample_runs
from ..formats.limits import MAX_MEMBER_BYTES, MAX_RATIO
from ..formats.position import ReadPosition
from ..formats.sample import KEY, URL, Sample, split_key
from ..formats.split_name import SplitName, splitter
from ..formats.tables import Columns, RowFilter, require_pyarrow, row_samples
from ..formats.zip import ZipArchive
from .env import Env
from .passes import Pass, PipePass
from .readers import ShardPass, ShardReader, StreamReader
from .streams import StreamPass, UrlsAhead, number_of, refuse_part


@functional_datapipe("file_reader")
class FileReader(StreamReader):
    """Read each object as a sample with one member (functional name: ``file_reader``).

    Args:
        source_datapipe: ``(url, file_like)`` pairs, binary; or bare URLs, which are prefetched with the default
            options of ``async_prefetch``.
        split_name: how names of files are split into key and extension: at the ``"first"`` dot, as readers of shards
            do; at the ``"last"`` one (``22.05.png`` is ``22_05``); or by a function from a base name to ``(key,
            extension)``, such as ``os.path.splitext``. Dots of the key become underscores, dots before the extension
            are dropped.
        storage_options: for bare URLs, in fsspec's vocabulary.

    Yields:
        dict: ``"__key__"`` (str, path in the bucket without its extension), ``"__url__"`` (str), and the object's
        ``bytes`` under its extension in lower case.

    Raises:
        SampleError: for an object whose name has no extension.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe("/pets/cat/1.JPG", b"...")
        >>> list(FileReader(IterableWrapper(["memory://pets/cat/1.JPG"])))
        [{'__key__': 'pets/cat/1', '__url__': 'memory://pets/cat/1.JPG', 'jpg': b'...'}]
    """

    keys_are_paths = True

    def __init__(
        self,
        source_datapipe: IterDataPipe[str | tuple[str, Any]],
        *,
        split_name: SplitName = "first",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(source_datapipe, FetchOptions(), storage_options)
        self.split = splitter(split_name)

    def open(self, env: Env) -> Pass[Sample]:
        return _FilePass(self, self.input_of(env))


class _FilePass(PipePass[Sample]):
    """The position is the number of the next object."""

    _latest: int | None = -1  # number of the object that was read last

    @property
    def position(self) -> Any:
        return None if self._latest is None else self._latest + 1

    def seek(self, position: Any) -> None:
        self._latest = position - 1
        self.sources[0].seek({"next": position})

    def items(self) -> Iterator[Sample]:
        for url, stream in self.sources[0]:
            try:
                if isinstance(url, VirtualUrl):
                    refuse_part(url, "FileReader")
                key, extension = self._pipe.split(object_path(url))
                if not key or not extension or extension in (KEY, URL):
                    fault = "no key" if not key else f"the extension {extension!r}" if extension else "no extension"
                    raise SampleError(
                        f"{redact(url)}: the name has {fault}, so it cannot be part of a sample. Exclude it by a "
                        "pattern, as list_remote(pattern='*.jpg'). If it is a folder, list it first: "
                        "IterableWrapper([url]).list_remote().file_reader().",
                        url=redact(url),
                    )
                data = whole_of(url, stream)
                self._latest = number_of(stream)
                yield {KEY: key, URL: redact(url), extension: data}
            finally:
                stream.close()


@functional_datapipe("shard_zip_reader")
class ShardZipReader(ShardReader):
    """Read samples from zip shards (functional name: ``shard_zip_reader``).

    The directory at the end of the archive is read first, by a separate ranged request; then the members are streamed
    in the order in which they are stored. Stored and deflated members are supported; their checksums are verified
    before they are yielded. Members are grouped into samples as by ``shard_tar_reader``, which also documents
    ``skipped``.

    Args:
        source_datapipe: bare URLs, which are prefetched with the default options of ``async_prefetch``; or
            ``(url, file_like)`` pairs, binary, from ``async_prefetch`` or seekable.
        on_bad_shard: called with the ``ShardReadError`` of a shard that cannot be read on: ``raise_error``,
            ``skip_with_warning``, or a function that raises, or returns to skip the rest of the shard.
        on_bad_member: as in ``shard_tar_reader``: called with the ``BadMemberError`` of a member that cannot be part
            of a sample; raises, or returns to skip that member.
        interleave: number of shards that are read concurrently, one sample of each in turn, in a deterministic order.
        max_member_bytes: maximum size of a member; a larger one is an error, before memory is allocated for it.
        max_ratio: maximum ratio of decompressed to compressed bytes of a member, beyond 16 MiB.
        storage_options: for bare URLs, in fsspec's vocabulary.

    Yields:
        dict: ``"__key__"`` (str), ``"__url__"`` (str), and one ``bytes`` for each member under its extension.

    Raises:
        ShardReadError: for an archive that is truncated, damaged, encrypted or ambiguous. :class:`BadMemberError` for a
            member that cannot be part of a sample.
        RemoteDataError: for a file that is neither seekable nor from ``async_prefetch``.

    Example:
        >>> import fsspec, io, zipfile
        >>> data = io.BytesIO()
        >>> with zipfile.ZipFile(data, "w") as archive:
        ...     archive.writestr("cat/1.txt", "miaow")
        >>> fsspec.filesystem("memory").pipe("/doc/0.zip", data.getvalue())
        >>> list(ShardZipReader(IterableWrapper(["memory://doc/0.zip"])))
        [{'__key__': 'cat/1', '__url__': 'memory://doc/0.zip', 'txt': b'miaow'}]
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[str | tuple[str, Any]],
        *,
        on_bad_shard: OnBadShard = raise_error,
        on_bad_member: OnBadMember = raise_error,
        interleave: int = 1,
        max_member_bytes: int = MAX_MEMBER_BYTES,
        max_ratio: int = MAX_RATIO,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            source_datapipe,
            on_bad_shard=on_bad_shard,
            on_bad_member=on_bad_member,
            interleave=interleave,
            storage_options=storage_options,
        )
        self.max_member_bytes = whole("max_member_bytes", max_member_bytes)
        self.max_ratio = whole("max_ratio", max_ratio)

    def open(self, env: Env) -> Pass[Sample]:
        return _ZipPass(self, env)


class _ZipPass(ShardPass):
    def runs_in(self, url: str, stream: Any, guard: ShardErrorHandler, position: ReadPosition) -> Iterator[SampleRun]:
        on_skip = self.skipped.count_member

        def files() -> Iterator[tuple[list[str], list[bytes]]]:
            for member in archive.members(
                parts_of(url, stream),
                start=position.start.byte,
                max_member_bytes=self.pipe.max_member_bytes,
                max_ratio=self.pipe.max_ratio,
            ):
                position.batch_offset = member.start
                if member.kind == "file":
                    yield [member.path], [member.read()]
                    continue
                on_skip(member.kind)
                if member.kind == "link":
                    guard.on_link(member.path)

        archive = _opened(url, stream)
        return sample_runs(
            files(),
            url=url,
            on_skip=on_skip,
            on_bad_member=guard.on_bad_member,
            on_empty=guard.on_empty,
            position=position,
        )


def _opened(url: str, stream: Any) -> ZipArchive:
    """Read the directory of the archive, and leave the stream at its first byte."""
    if hasattr(stream, "read_range"):
        return ZipArchive(stream.read_range, stream.find_num_bytes(), url)
    if not (hasattr(stream, "seekable") and stream.seekable()):
        raise RemoteDataError(
            f"{url}: the directory of a zip archive is at its end, and this {type(stream).__name__} is not seekable. "
            "Chain shard_zip_reader() after the URLs, after async_prefetch(), or after an opener of seekable files.",
            url=url,
        )

    def read_range(start: int, end: int) -> bytes:
        stream.seek(start)
        data: bytes = stream.read(end - start)
        return data

    archive = ZipArchive(read_range, stream.seek(0, io.SEEK_END), url)
    stream.seek(0)
    return archive


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
    columns are decoded. Where the type of a column differs among the files, values stay as each file has them.

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
            source_datapipe,
            on_bad_shard=on_bad_shard,
            interleave=interleave,
            storage_options=storage_options,
            max_in_flight=max_in_flight,
            max_buffer_bytes=max_buffer_bytes,
            retry=policy_of(retry),
        )
        require_pyarrow("table_reader")
        self.columns = Columns(columns, key, None if filter is None else RowFilter(filter), optional)

    @property
    def drops_samples(self) -> bool:
        """Whether fewer samples may be yielded than the row groups have rows."""
        return self.columns.row_filter is not None

    @property
    def is_counted(self) -> bool:
        """Whether it yields as many samples as the row groups have rows."""
        return not self.drops_samples and super().is_counted

    def order_options(self) -> Mapping[str, Any]:
        # Pipes behind that keep rows, such as shuffle_samples, count those that the filter accepts
        row_filter = self.columns.row_filter
        return {**super().order_options(), **({} if row_filter is None else {"filter": row_filter.described()})}

    def input_of(self, env: Env) -> Pass[tuple[str, Any]]:
        # The fetcher's threads start with the first URL
        opens = partial(TableStream, self.columns)
        session = env.shared.session(self, self._options, self._storage_options)
        return StreamPass(
            UrlsAhead(self, env),
            lambda urls, state: open_ahead(numbered_urls(_only_urls(urls), state), session, opens),
        )

    def open(self, env: Env) -> Pass[Sample]:
        return _TablePass(self, env)


class _TablePass(ShardPass):
    reads_parts = True

    def runs_in(self, url: str, stream: Any, guard: ShardErrorHandler, position: ReadPosition) -> Iterator[SampleRun]:
        stem = f"{split_key(object_path(stream.url))[0]}/"
        with closing(stream.batches()) as batches:
            for columns, begin, batch in batches:
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
