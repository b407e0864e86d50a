"""Cut text files into ranges of complete lines, by small requests near the borders."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing

from ..core.options import RetryPolicy, StorageOptions
from ..core.threads import ordered_map
from ..core.urls import LineRange, RemoteUrl, redact
from ..errors import ShardReadError
from .listing.sources import find_object
from .ranges import OneObject

_MAX_IN_FLIGHT = 16
_WINDOW_BYTES = 64 << 10  # in which the end of a line is looked for; twice as many where there is none
_READ_FROM_START = re.compile(r"(\.(gz|gzip|bz2|xz|zst)|\.[ct]sv)$", re.IGNORECASE)


def list_ranges(
    urls: Iterable[str], range_bytes: int, max_line_bytes: int, options: StorageOptions, retry: RetryPolicy
) -> Generator[RemoteUrl, None, None]:
    """Yield the URLs of files, and of ranges of lines of large ones, in their order. Borders are sought concurrently.

    Args:
        urls: read only in the thread that iterates.
        range_bytes: about the length of a range.
        max_line_bytes: a longer line is an error.
        options: for the stores.
        retry: policy for transient faults.

    Raises:
        ShardReadError: if a line is longer.
        StorageError: if a file cannot be read.
    """

    def borders() -> Iterator[Callable[[Callable[[float], None]], tuple[RemoteUrl, int]]]:
        for url in urls:
            file = url if isinstance(url, RemoteUrl) else RemoteUrl(url)
            if file.size is None and not _READ_FROM_START.search(file):
                file = find_object(file, options, retry) or file
            cuts = range(range_bytes, file.size or 0, range_bytes)
            yield lambda sleep, file=file: (file, 0)  # type: ignore[misc]  # mypy cannot infer lambdas with defaults
            for cut in () if _READ_FROM_START.search(file) else cuts:
                yield lambda sleep, file=file, cut=cut: (  # type: ignore[misc]
                    file,
                    _next_line(OneObject(file, options, retry, sleep=sleep), cut, max_line_bytes),
                )

    file, start = None, 0
    with closing(ordered_map(borders(), max_threads=_MAX_IN_FLIGHT)) as found:
        for of, border in found:
            if file is not of:
                if file is not None:
                    yield _range(file, start, file.size)
                file, start = of, 0
            elif start < border < (file.size or 0):
                yield _range(file, start, border)
                start = border
    if file is not None:
        yield _range(file, start, file.size)


def _range(file: RemoteUrl, start: int, stop: int | None) -> RemoteUrl:
    return file if stop is None or (start, stop) == (0, file.size) else LineRange.of(file, start, stop)


def _next_line(source: OneObject, cut: int, max_line_bytes: int) -> int:
    """Return the first byte of the line after the one that has the byte before a cut; the end of the file for none."""
    start = at = cut - 1
    size, window = source.listed_size or 0, _WINDOW_BYTES
    while at < size:
        data = source.read(at, min(at + window, size))
        if (end := data.find(b"\n")) >= 0:
            return at + end + 1
        at, window = at + len(data), 2 * window
        if at - start > max_line_bytes:
            raise line_too_long(redact(source.url), start, max_line_bytes)
    return size


def line_too_long(url: str, byte: int, max_line_bytes: int) -> ShardReadError:
    """Return the error of a line that is longer than the limit."""
    return ShardReadError(
        f"{url}: the line at byte {byte:,} is longer than max_line_bytes={max_line_bytes:,}. Pass a larger one, or "
        "read the file by file_reader(), if it has no lines.",
        url=url,
    )
