"""``list_line_ranges`` and ``line_reader``: the lines of text files, of JSON lines and tables of text, as samples."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from itertools import islice
from typing import Any, NamedTuple

from ..core import arguments as check
from ..core.arguments import whole
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.options import MIB, RetryPolicy, StorageOptions, policy_of
from ..core.urls import LineRange, RemoteUrl, object_path
from ..errors import ShardReadError
from ..fetch.line_ranges import line_too_long, list_ranges
from ..fetch.listing.source_argument import url_of
from ..fetch.streams import parts_of
from ..formats.compression import CompressionLimits, decompressed
from ..formats.error_policy import OnBadShard, ShardErrorHandler, raise_error
from ..formats.grouping import SampleRun
from ..formats.position import ReadPosition
from ..formats.sample import KEY, URL, Sample
from .datapipe import SourcePipe
from .env import Env
from .passes import ListedPass, Pass
from .readers import OpenShard, ShardPass, ShardReader

MAX_LINE_BYTES = 16 * MIB

_COMPRESSED = re.compile(r"\.(gz|gzip|bz2|xz|zst)$", re.IGNORECASE)
_JSON = frozenset({"jsonl", "ndjson", "json"})
_SEPARATORS = {"csv": ",", "tsv": "\t"}
_AT_ONCE = 1_000


@functional_datapipe("list_line_ranges")
class ListLineRanges(SourcePipe[RemoteUrl]):
    r"""Cut large text files into ranges of complete lines (functional name: ``list_line_ranges``).

    Ranges are then the unit that ``shuffle_shards`` shuffles, ``sharding_filter_rank`` splits and ``line_reader``
    reads, in place of whole files. A request of 64 KiB finds the end of a line near each border, 16 at once. Files of
    at most ``range_bytes`` are not touched. Files whose names end in ``.gz``, ``.bz2``, ``.xz``, ``.zst``, ``.csv`` or
    ``.tsv`` can only be read from their beginning, so each of them stays one.

    Args:
        source_datapipe: URLs of files, as ``list_remote`` yields them. Lines end with a line feed, as in UTF-8.
        range_bytes: about the length of a range.
        max_line_bytes: a longer line is an error.
        retry: policy for transient errors.
        storage_options: for the store, in fsspec's vocabulary.

    Yields:
        RemoteUrl: ``part of s3://b/x.jsonl (bytes 0 to 33554432)``, with size and etag of the file; or its own URL.

    Raises:
        ShardReadError: if a line is longer than ``max_line_bytes``.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe("/doc/x.txt", b"one\ntwo\nthree\n")
        >>> list(ListLineRanges(IterableWrapper(["memory://doc/x.txt"]), range_bytes=6))
        ['part of memory://doc/x.txt (bytes 0 to 8)', 'part of memory://doc/x.txt (bytes 8 to 14)']
    """

    gives_urls = lists_data = True

    def __init__(
        self,
        source_datapipe: IterDataPipe[str],
        *,
        range_bytes: int = 32 * MIB,
        max_line_bytes: int = MAX_LINE_BYTES,
        retry: RetryPolicy | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(source_datapipe)
        self.range_bytes = whole("range_bytes", range_bytes)
        self.max_line_bytes = whole("max_line_bytes", max_line_bytes)
        self._retry, self._storage_options = policy_of(retry), StorageOptions(storage_options)

    def open(self, env: Env) -> Pass[RemoteUrl]:
        source = env.open(self.source_datapipe)
        urls = (url_of(url, of="list_line_ranges") for url in source)
        return ListedPass(
            lambda: list_ranges(urls, self.range_bytes, self.max_line_bytes, self._storage_options, self._retry), source
        )


@functional_datapipe("line_reader")
class LineReader(ShardReader):
    r"""Read the lines of text files as samples (functional name: ``line_reader``).

    A line of ``.jsonl`` or ``.ndjson`` is the member ``json``, that of another file is ``txt``, without its line feed;
    ``decode_sample`` makes values and ``str`` of them. Lines of JSON that are empty are left out. The rows of ``.csv``
    and ``.tsv`` are samples with a ``str`` for each column, whose names are in the first row. Compression by gzip,
    bzip2, xz and zstd is told by the end of the name.

    Chain ``list_line_ranges`` before ``shuffle_shards`` and ``sharding_filter_rank``, so that large files are read by
    several readers. Files that are compressed, or tables, are read from their beginning, also after a resume.
    The number of lines is not known before they are read, so there is no ``len``.

    Args:
        source_datapipe: URLs of files, or of ranges of their lines; or ``(url, file_like)`` pairs, binary.
        member: name of the member that has a line, in place of ``json`` and ``txt``.
        interleave: number of files or ranges that are read concurrently, one line of each in turn.
        max_line_bytes: a longer line is an error, before memory is taken for it.
        on_bad_shard: called with the ``ShardReadError`` of a file that cannot be read further; raises, or returns to
            skip the rest of the file or range.
        storage_options: for bare URLs, in fsspec's vocabulary.

    Yields:
        dict: ``"__key__"`` (str), the path of the file and the first byte of the line, or its number in files that are
        read from their beginning; ``"__url__"`` (str), and the line as ``bytes``, or a ``str`` for each column.

    Raises:
        ShardReadError: for a line that is longer than ``max_line_bytes``, a file whose compression is damaged, or a row
            that has more or fewer columns than the first one.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe("/doc/y.jsonl", b'{"a": 1}\n{"a": 2}\n')
        >>> for sample in LineReader(IterableWrapper(["memory://doc/y.jsonl"])).decode_sample():
        ...     print(sample["__key__"], sample["json"])
        doc/y.jsonl/000000000000 {'a': 1}
        doc/y.jsonl/000000000009 {'a': 2}
    """

    order_names = "interleave", "member"

    def __init__(
        self,
        source_datapipe: IterDataPipe[str | tuple[str, Any]],
        *,
        member: str | None = None,
        interleave: int = 1,
        max_line_bytes: int = MAX_LINE_BYTES,
        on_bad_shard: OnBadShard = raise_error,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            source_datapipe, on_bad_shard=on_bad_shard, interleave=interleave, storage_options=storage_options
        )
        self.member = None if member is None else check.extension("member", member, example="txt")
        self.max_line_bytes = whole("max_line_bytes", max_line_bytes)

    @property
    def is_counted(self) -> bool:
        """Whether it yields as many samples as a manifest counts, which it does not count."""
        return False

    def open(self, env: Env) -> Pass[Sample]:
        return _LinePass(self, env)


class _LinePass(ShardPass):
    def first_byte(self, place: Any) -> Any:
        # That before the place, because a file of unknown size may end there
        return max(0, place[0] - 1)

    def opened(self, url: str, stream: Any, place: Any) -> OpenShard:
        return super().opened(url.shards[0] if isinstance(url, LineRange) else url, stream, place)

    def runs_in(self, url: str, stream: Any, guard: ShardErrorHandler, position: ReadPosition) -> Iterator[SampleRun]:
        path, parts = object_path(url), parts_of(url, stream)
        is_compressed = _COMPRESSED.search(path) is not None
        extension = _COMPRESSED.sub("", path).rpartition(".")[2].lower()
        separator, most = _SEPARATORS.get(extension), self.pipe.max_line_bytes
        member = self.pipe.member or ("json" if extension in _JSON else "txt")
        with ExitStack() as opened:
            if is_compressed:
                _, bare = decompressed(parts, url=url, limits=CompressionLimits())
                parts = opened.enter_context(closing(bare))
            if separator is None and not is_compressed:
                begun = getattr(stream, "first_byte", 0)
                blocks = _blocks(parts, begun, position.start.byte - begun, url, most)
                yield from _lines(blocks, url, path, member, position)
            else:
                blocks = _blocks(parts, 0, 0, url, most)
                lines = _counted(blocks, url, path, member)
                yield from _from_start(
                    lines if separator is None else _rows(blocks, url, path, separator, most), position
                )
        position.ended = True


class _Block(NamedTuple):
    """Consecutive lines.

    Args:
        start: first byte.
        lines: without line feeds.
        end: the byte after the last line feed, or of the file.
    """

    start: int
    lines: list[bytes]
    end: int


def _blocks(parts: Iterable[Any], start: int, num_passed: int, url: str, max_line_bytes: int) -> Iterator[_Block]:
    """Yield the complete lines of consecutive pieces.

    Args:
        parts: the pieces.
        start: first byte of them.
        num_passed: bytes of them that are passed over.
        url: for errors.
        max_line_bytes: a longer line is an error.
    """
    rest: list[bytes] = []
    rest_bytes = 0
    start += num_passed
    for part in parts:
        piece = bytes(part[num_passed:])
        num_passed = max(0, num_passed - len(part))
        end = piece.rfind(b"\n") + 1
        if end:
            block = b"".join([*rest, piece[:end]])
            lines = block.split(b"\n")
            del lines[-1]
            if len(block) > max_line_bytes < max(map(len, lines)):
                first = next(at for at, line in enumerate(lines) if len(line) > max_line_bytes)
                begin = start + sum(map(len, lines[:first])) + first
                yield _Block(start, lines[:first], begin)
                raise line_too_long(url, begin, max_line_bytes)
            yield _Block(start, lines, start + len(block))
            start, rest, rest_bytes = start + len(block), [], 0
        rest.append(piece[end:])
        rest_bytes += len(piece) - end
        if rest_bytes > max_line_bytes:
            raise line_too_long(url, start, max_line_bytes)
    if last := b"".join(rest):
        yield _Block(start, [last], start + len(last))


def _lines(blocks: Iterator[_Block], url: str, path: str, member: str, position: ReadPosition) -> Iterator[SampleRun]:
    """Lines whose places are their first bytes."""
    for block in blocks:
        starts, made, at = [], [], block.start
        for line in block.lines:
            bare = _bare(line, at)
            if bare or member != "json":
                starts.append(at)
                made.append({KEY: f"{path}/{at:012d}", URL: url, member: bare})
            at += len(line) + 1
        position.batch_offset, position.batch_starts = 0, [*starts, block.end]
        position.batch_rest = run = iter(made)
        if made:
            yield run


def _from_start(samples: Iterator[Sample], position: ReadPosition) -> Iterator[SampleRun]:
    """Samples that are counted, because their file can be read from its beginning only."""
    position.num_read = 0
    errors: list[ShardReadError] = []
    readable = _until_error(samples, errors)
    while made := list(islice(readable, _AT_ONCE)):
        num_passed = max(0, position.start.num_skipped - position.num_read)
        position.num_read += len(made)
        position.batch_rest = run = iter(made)
        for _ in islice(run, num_passed):
            pass
        yield run
    if errors:
        raise errors.pop()


def _until_error(samples: Iterator[Sample], errors: list[ShardReadError]) -> Iterator[Sample]:
    """Yield samples; an error ends them, and is kept for after those that were read before it."""
    try:
        yield from samples
    except ShardReadError as error:
        errors.append(error)


def _counted(blocks: Iterator[_Block], url: str, path: str, member: str) -> Iterator[Sample]:
    for number, line in enumerate(line for block in blocks for line in block.lines):
        bare = _bare(line, number)
        if bare or member != "json":
            yield {KEY: f"{path}/{number:012d}", URL: url, member: bare}


def _rows(blocks: Iterator[_Block], url: str, path: str, separator: str, max_line_bytes: int) -> Iterator[Sample]:
    """Yield the rows of a table of text, whose quoted fields may have line feeds."""
    lines = (line for block in blocks for line in block.lines)
    texts = (
        f"{line.decode() if at else line.removeprefix(codecs.BOM_UTF8).decode()}\n" for at, line in enumerate(lines)
    )
    rows = csv.reader(texts, delimiter=separator, strict=True)
    csv.field_size_limit(max(csv.field_size_limit(), max_line_bytes))  # of the process; lines have this limit already
    try:
        names = next(rows, [])
        if len(set(names)) < len(names) or {KEY, URL} & set(names):
            raise ShardReadError(f"{url}: the first row must have a name for each column, got {names!r:.200}.", url=url)
        for number, row in enumerate(row for row in rows if row):
            if len(row) != len(names):
                raise ShardReadError(
                    f"{url}: row {number:,} has {len(row)} columns, and the first row names {len(names)}.", url=url
                )
            yield {KEY: f"{path}/{number:012d}", URL: url, **dict(zip(names, row, strict=True))}
    except (csv.Error, UnicodeDecodeError) as error:
        raise ShardReadError(f"{url}: damaged near line {rows.line_num + 1:,}: {error}.", url=url) from error


def _bare(line: bytes, at: int) -> bytes:
    """Return a line without a carriage return at its end, and the first one without a mark of its encoding."""
    line = line.removesuffix(b"\r")
    return line if at else line.removeprefix(codecs.BOM_UTF8)
