"""Groups of small files that are transferred in one request each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ...storage.dataset_service.protocol import MAX_BATCH_FILE_BYTES, MAX_BATCH_FILES

T = TypeVar("T")
BATCH_BYTES = 4 << 20  # of files: less than the service's limit, since a broken request sends or fetches them again


def group_files(
    files: Iterable[T], num_files: int, size_of: Callable[[T], int], *, batch_bytes: int, max_in_flight: int
) -> Iterator[list[T]]:
    """Group small files in order; a large one is a group of its own.

    Args:
        files: in any order.
        num_files: how many there are.
        size_of: returns the bytes of a file.
        batch_bytes: of a group at most.
        max_in_flight: as many groups as that are made even of few files.

    >>> list(group_files([3, 3, 9, 3], 4, int, batch_bytes=8, max_in_flight=1))
    [[9], [3, 3], [3]]
    """
    max_files = max(1, min(MAX_BATCH_FILES, -(-num_files // max_in_flight)))
    group: list[T] = []
    num_bytes = 0
    for file in files:
        size = size_of(file)
        if size > min(batch_bytes, MAX_BATCH_FILE_BYTES):
            yield [file]
            continue
        if group and (len(group) == max_files or num_bytes + size > batch_bytes):
            yield group
            group, num_bytes = [], 0
        group.append(file)
        num_bytes += size
    if group:
        yield group
